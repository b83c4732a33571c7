"""Reading AGS1."""

from __future__ import annotations

import contextlib
import io
import operator
import os
from typing import TYPE_CHECKING, Any

from pyiceberg_encryption import process
from pyiceberg_encryption.ciphers import OVERHEAD
from pyiceberg_encryption.errors import ClosedError, EncryptionError, FormatError, IntegrityError, UsageError
from pyiceberg_encryption.stream import layout
from pyiceberg_encryption.stream.blocks import BlockCipher
from pyiceberg_encryption.stream.files import check_is_binary, name_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from pyiceberg_encryption.key_metadata import StandardKeyMetadata

FETCH_BLOCKS = 8  # A long read of a file fetches this many blocks at a time, and opens them on several cores


class AesGcmInputStream(io.BufferedIOBase):
    """Decrypts `source`, a seekable binary file that it owns and closes, or a buffer that holds a whole file.

    Only the blocks that a read touches are fetched, and nothing of a block is handed out before its tag was verified.
    Like any file object it has one position, so threads need one stream each.

    The encrypted length in the key metadata is the only protection against a file cut off between two blocks. It is
    required, and the source must have exactly that length; `allow_unrecorded_length` admits key metadata without it.
    `location` is named in error messages, in place of the source's own name.
    """

    def __init__(
        self,
        source: Any,
        key_metadata: StandardKeyMetadata,
        *,
        location: str | None = None,
        allow_unrecorded_length: bool = False,
    ) -> None:
        self._given_location = location
        self._source = _opened(source)
        try:
            self._length = _checked_length(key_metadata.file_length, self._source.length, allow_unrecorded_length)
            self._cipher = BlockCipher(key_metadata)
        except BaseException as error:
            with contextlib.suppress(Exception):
                self._source.close()
            if isinstance(error, EncryptionError):
                raise type(error)(f"{self._location}: {error}") from None
            raise
        self._position = 0
        self._header_verified = False
        self._cached = memoryview(b"")  # one opened block, for reads that touch only a part of it
        self._cached_block = -1
        self._cache_buffer = bytearray()
        self._closed = False

    @property
    def _location(self) -> str:
        return self._given_location or self._source.name

    @property
    def length(self) -> int:
        """The plain length."""
        return self._length

    @property
    def closed(self) -> bool:
        return self._closed

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        self._check_open()
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._check_open()
        offset = operator.index(offset)
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}.get(whence)
        if base is None or base + offset < 0:
            raise UsageError(f"Cannot seek to {offset} (whence {whence})")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        self._check_open()
        start = self._position
        stop = self._length if size is None or size < 0 else min(start + size, self._length)
        count = stop - start
        if count <= 0:
            self._verify_empty()
            return b""
        offset = start - self._cached_block * layout.PLAIN_BLOCK_LENGTH
        if self._cached_block >= 0 and offset >= 0 and offset + count <= len(self._cached):
            data = bytes(self._cached[offset : offset + count])
        elif self._is_whole_block(start, count):
            data = self._open_whole_block(start // layout.PLAIN_BLOCK_LENGTH)
        else:
            filled = bytearray(count)
            self._fill(memoryview(filled))
            data = bytes(filled)
        self._position = stop
        return data

    def read1(self, size: int = -1, /) -> bytes:
        return self.read(size if size >= 0 else layout.PLAIN_BLOCK_LENGTH)

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Buffer, /) -> int:
        self._check_open()
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._length - self._position))
        if count == 0:
            self._verify_empty()
            return 0
        self._fill(view[:count])
        self._position += count
        return count

    def readinto1(self, buffer: Buffer, /) -> int:
        return self.readinto(buffer)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._cached = memoryview(b"")
            self._cached_block = -1
            self._cache_buffer = bytearray()
            self._source.close()

    def __enter__(self) -> AesGcmInputStream:
        self._check_open()
        return self

    def __del__(self) -> None:
        if hasattr(self, "_closed"):  # __init__ got to its end
            self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self._location}: the stream is closed")

    def _verify_empty(self) -> None:
        """An empty stream has a tag too, and it is checked before the stream is called empty."""
        if self._length == 0 and self._cached_block != 0:
            self._cache(0)

    def _fill(self, out: memoryview) -> None:
        """Fills `out` with the bytes from the position on: whole blocks straight into it, parts by way of the cache."""
        at, end = self._position, self._position + len(out)
        while at < end:
            block, offset = divmod(at, layout.PLAIN_BLOCK_LENGTH)
            whole = self._whole_blocks(block, end) if offset == 0 and block != self._cached_block else 0
            if whole > 0:
                take = min(whole * layout.PLAIN_BLOCK_LENGTH, self._length - at)
                self._open_blocks(block, whole, out[:take])
            else:
                take = min(layout.block_length(block, self._length) - offset, end - at)
                self._cache(block)
                out[:take] = self._cached[offset : offset + take]
            at += take
            out = out[take:]

    def _whole_blocks(self, block: int, end: int) -> int:
        """How many whole blocks there are from `block` on up to the plain offset `end`, as many as to open at once."""
        stop = layout.block_count(self._length) if end == self._length else end // layout.PLAIN_BLOCK_LENGTH
        return min(stop - block, self._source.max_blocks)

    def _cache(self, block: int) -> None:
        if block == self._cached_block:
            return
        self._cached_block = -1
        if not self._cache_buffer:
            self._cache_buffer = bytearray(min(layout.PLAIN_BLOCK_LENGTH, self._length))
        self._cached = memoryview(self._cache_buffer)[: layout.block_length(block, self._length)]
        self._open_blocks(block, 1, self._cached)
        self._cached_block = block

    def _is_whole_block(self, start: int, count: int) -> bool:
        block, offset = divmod(start, layout.PLAIN_BLOCK_LENGTH)
        return offset == 0 and count == layout.block_length(block, self._length)

    def _open_whole_block(self, block: int) -> bytes:
        """With one copy less than into a buffer."""
        try:
            length = layout.block_length(block, self._length) + OVERHEAD
            return self._cipher.open_as_bytes(block, self._fetch(block, length))
        except IntegrityError as error:
            raise self._located(error) from None

    def _open_blocks(self, first: int, count: int, out: memoryview) -> None:
        try:
            self._cipher.open(first, self._fetch(first, len(out) + count * OVERHEAD), out)
        except IntegrityError as error:
            raise self._located(error) from None

    def _located(self, error: IntegrityError) -> IntegrityError:
        return IntegrityError(f"{self._location}, {error}")

    def _fetch(self, first: int, length: int) -> memoryview:
        """The sealed blocks from `first` on, and in the same request the header where it lies before them."""
        header = layout.HEADER_LENGTH
        try:
            if not self._header_verified:
                if first == 0:
                    start = self._source.fetch(0, header + length)
                    self._verify_header(start[:header])
                    return start[header:]
                self._verify_header(self._source.fetch(0, header))
            return self._source.fetch(layout.block_start(first), length)
        except EOFError:
            raise IntegrityError("it became shorter while it was read") from None

    def _verify_header(self, header: memoryview) -> None:
        if header[: len(layout.MAGIC)] != layout.MAGIC:
            raise FormatError(f"{self._location}: not an AGS1 stream. Encrypted data was expected here")
        if header != layout.HEADER:
            length = int.from_bytes(header[len(layout.MAGIC) :], "little")
            raise FormatError(
                f"{self._location}: its blocks have {length} bytes; Iceberg knows only {layout.PLAIN_BLOCK_LENGTH}"
            )
        self._header_verified = True


def _checked_length(recorded: int | None, actual: int, allow_unrecorded: bool) -> int:
    """The plain length of a file that has this length, and should have the recorded one."""
    if recorded is None and not allow_unrecorded:
        raise FormatError(
            "its key metadata does not record a file length, so that a truncated file cannot be told from a whole one. "
            "If the writer of this file never records it, pass allow_unrecorded_length=True"
        )
    if recorded is not None and recorded != actual:
        raise IntegrityError(f"it has {actual} bytes, but {recorded} were written: it was cut or extended")
    return layout.plain_length(actual)


def _opened(source: Any) -> _Memory | _File:
    if hasattr(source, "read"):
        check_is_binary(source, is_usable=True)
        return _File(source)
    check_is_binary(source, _is_buffer(source))
    return _Memory(source)


def _is_buffer(source: Any) -> bool:
    try:
        memoryview(source).release()
    except TypeError:
        return False
    return True


class _Memory:
    """A whole file that lies in memory."""

    name = name_of(None)
    max_blocks = layout.MAX_BLOCKS

    def __init__(self, buffer: Buffer) -> None:
        self._view = memoryview(buffer).cast("B")
        self.length = len(self._view)

    def fetch(self, start: int, length: int) -> memoryview:
        return self._view[start : start + length]

    def close(self) -> None:
        self._view = memoryview(b"")


class _File:
    """A file object. What it delivers goes into one buffer that is used again."""

    max_blocks = FETCH_BLOCKS

    @property
    def name(self) -> str:
        return name_of(self._file)

    def __init__(self, file: Any) -> None:
        self._file = file
        self._process = process.generation()
        file.seek(0, os.SEEK_END)
        self.length: int = file.tell()
        self._at = self.length
        self._buffer = bytearray()

    def fetch(self, start: int, length: int) -> memoryview:
        if self._process != process.generation():
            raise UsageError("a file that was opened before a fork shares its position with the parent; open it anew")
        if self._at != start:
            self._file.seek(start)
        self._at = -1
        if hasattr(self._file, "readinto"):
            if len(self._buffer) < length:
                self._buffer = bytearray(length)
            view = memoryview(self._buffer)[:length]
            done = 0
            while done < length:
                count = self._file.readinto(view[done:])
                if count is None:
                    raise BlockingIOError("an encrypted stream cannot be read from a file that does not block")
                if count == 0:
                    raise EOFError
                done += count
        else:
            data = self._file.read(length)
            while len(data) < length:
                more = self._file.read(length - len(data))
                if not more:
                    raise EOFError
                data += more
            view = memoryview(data)[:length]
        self._at = start + length
        return view

    def close(self) -> None:
        self._buffer = bytearray()
        self._file.close()
