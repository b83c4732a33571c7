"""Writing AGS1."""

from __future__ import annotations

import io
import os
import warnings
from typing import TYPE_CHECKING, Any

from pyiceberg_encryption import process
from pyiceberg_encryption.ciphers import OVERHEAD
from pyiceberg_encryption.errors import ClosedError, UsageError
from pyiceberg_encryption.stream import layout
from pyiceberg_encryption.stream.blocks import BlockCipher
from pyiceberg_encryption.stream.files import check_is_binary, name_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Buffer

    from pyiceberg_encryption.key_metadata import StandardKeyMetadata

BATCH_BLOCKS = 8  # Whole blocks at hand are sealed this many at a time, on several cores
SMALLEST_BUFFER = 8 * 1024
_HEADER = memoryview(layout.HEADER)


class AesGcmOutputStream(io.BufferedIOBase):
    """Encrypts what is written to it into `sink`, a writable binary file that it owns and closes.

    The stream is complete once `close` has returned: only then does `key_metadata` have the file length that a reader
    needs. If a `with` block is left by an exception, or the stream is dropped without `close`, what has reached the
    sink does not read as a complete stream, because the last byte of a block is held back until it is known that the
    stream goes on or ends well. A wrapper such as io.TextIOWrapper closes what it wraps, whatever happened: call
    `discard` before it does.

    One thread writes at a time, in the process that made the stream.
    """

    def __init__(
        self,
        sink: Any,
        key_metadata: StandardKeyMetadata,
        *,
        location: str | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        check_is_binary(sink, hasattr(sink, "write"))
        self._given_location = location
        self._cipher = BlockCipher(key_metadata, entropy)
        self._key_metadata = key_metadata
        self._sink = sink
        self._process = process.generation()
        self._position = 0
        self._block = 0
        self._pending = bytearray()  # the plaintext of the block under way, and room for more
        self._pending_length = 0
        # Sealed blocks go behind HEADER_LENGTH. What was not sent before, the header or the byte held back, ends there.
        self._sealed = _HEADER
        self._unsent = 0
        self._complete = False
        self._failed = False
        self._closed = False

    @property
    def _location(self) -> str:
        return self._given_location or name_of(self._sink)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def key_metadata(self) -> StandardKeyMetadata:
        """The key metadata to store for this file, with its encrypted length."""
        if not self._complete:
            over = self._closed or self._failed
            advice = "it was discarded or failed; write the file anew" if over else "close it first"
            raise UsageError(f"{self._location}: an incomplete stream has no key metadata to store: {advice}")
        return self._key_metadata.with_file_length(layout.encrypted_length(self._position))

    def write(self, data: Buffer) -> int:
        self._check_usable()
        view = memoryview(data).cast("B")
        if self._position + len(view) > layout.MAX_PLAIN_LENGTH:
            raise UsageError(f"An AGS1 stream cannot hold more than {layout.MAX_PLAIN_LENGTH} bytes")
        self._failed = True  # until the sink has taken it all
        at = 0
        while at < len(view):
            blocks = min((len(view) - at) // layout.PLAIN_BLOCK_LENGTH, BATCH_BLOCKS)
            if self._pending_length == 0 and blocks > 0:
                take = blocks * layout.PLAIN_BLOCK_LENGTH
                self._seal(view[at : at + take], blocks)
            else:
                take = min(len(view) - at, layout.PLAIN_BLOCK_LENGTH - self._pending_length)
                self._collect(view[at : at + take])
            at += take
        self._position += len(view)
        self._failed = False
        return len(view)

    def tell(self) -> int:
        """How many plain bytes were written."""
        return self._position

    def flush(self) -> None:
        """Passes on to the sink. A block under way stays here until it is full."""
        self._check_usable()
        if hasattr(self._sink, "flush"):
            self._sink.flush()

    def close(self) -> None:
        if self._closed:
            return
        self._check_usable()
        self._failed = True  # until the sink has taken it all
        pending = memoryview(self._pending)[: self._pending_length]
        if self._block == 0:
            self._send(memoryview(layout.HEADER + self._cipher.seal_only_block(pending)))
        elif len(pending) > 0:
            self._seal(pending, 1, last=True)
        else:
            self._send(self._sealed[self._unsent : layout.HEADER_LENGTH])
        self._sink.close()
        self._failed = False
        self._complete = True
        self._release()

    def discard(self) -> None:
        """Gives up: closes the sink. What it holds does not read as a complete stream, unless `close` sent it all."""
        if self._closed:
            return
        self._release()
        if self._process == process.generation():
            self._sink.close()

    def writable(self) -> bool:
        return True

    def __enter__(self) -> AesGcmOutputStream:
        self._check_usable()
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        if exctype is None:
            self.close()
        else:
            self.discard()

    def __del__(self) -> None:
        if hasattr(self, "_closed") and not self._closed:  # __init__ got to its end
            self.discard()
            if self._process == process.generation():
                message = f"{self._location}: never closed, and so incomplete"
                warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    def _check_usable(self) -> None:
        if self._closed:
            raise ClosedError(f"{self._location}: the stream is closed")
        if self._failed:
            raise ClosedError(f"{self._location}: writing failed before; discard the stream and write the file anew")
        if self._process != process.generation():
            raise UsageError(f"{self._location}: a stream belongs to the process that opened it; open one in this")

    def _release(self) -> None:
        self._closed = True
        self._pending = bytearray()
        self._sealed = _HEADER

    def _collect(self, data: memoryview) -> None:
        end = self._pending_length + len(data)
        if not self._pending:
            self._pending = bytearray(data)  # often all that there is
        elif end > len(self._pending):
            room = min(layout.PLAIN_BLOCK_LENGTH, max(end, 2 * len(self._pending), SMALLEST_BUFFER))
            grown = bytearray(room)
            grown[: self._pending_length] = memoryview(self._pending)[: self._pending_length]
            grown[self._pending_length : end] = data
            self._pending = grown
        else:
            memoryview(self._pending)[self._pending_length : end] = data
        self._pending_length = end
        if end == layout.PLAIN_BLOCK_LENGTH:
            self._seal(memoryview(self._pending), 1)
            self._pending_length = 0

    def _seal(self, plain: memoryview, count: int, last: bool = False) -> None:
        """Seals whole blocks, or the last one, and sends them, but for the byte to hold back."""
        end = layout.HEADER_LENGTH + len(plain) + count * OVERHEAD
        if end > len(self._sealed):
            larger = memoryview(bytearray(end))
            larger[: layout.HEADER_LENGTH] = self._sealed[: layout.HEADER_LENGTH]
            self._sealed = larger
        sealed = self._sealed
        self._cipher.seal(self._block, plain, sealed[layout.HEADER_LENGTH : end])
        self._send(sealed[self._unsent : end if last else end - 1])
        self._unsent = layout.HEADER_LENGTH - 1
        sealed[self._unsent] = sealed[end - 1]
        self._block += count

    def _send(self, data: memoryview) -> None:
        while True:
            written = self._sink.write(data)
            if written == len(data) or (written is None and not isinstance(self._sink, io.RawIOBase)):
                return  # a file-like object that does not count took it all
            if not written or written < 0:
                raise OSError("The file being written takes no more data")
            data = data[written:]
