"""The key metadata of one file: its key, its AAD prefix and its encrypted length.

On the wire: the byte 0x01, then an Avro datum of
record { encryption_key: bytes, aad_prefix: union { null, bytes }, file_length: union { null, long } }.
The code is written out, rather than left to an Avro library, so that it is bounded, and refuses what it does not know.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyiceberg_encryption.ciphers import KEY_LENGTHS, check_key_length
from pyiceberg_encryption.errors import FormatError
from pyiceberg_encryption.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

VERSION = 1
AAD_PREFIX_LENGTH = 16  # Iceberg Java: TableProperties.ENCRYPTION_AAD_LENGTH_DEFAULT
MAX_AAD_PREFIX_LENGTH = 1024  # A bound of this project's own: every known writer makes 16 bytes
MAX_FILE_LENGTH = 2**63 - 1  # Avro long


@dataclass(frozen=True)
class StandardKeyMetadata:
    encryption_key: Secret
    aad_prefix: bytes | None = None
    file_length: int | None = None

    def __post_init__(self) -> None:
        check_key_length(len(self.encryption_key), "The encryption key in key metadata")
        if self.aad_prefix is not None and len(self.aad_prefix) > MAX_AAD_PREFIX_LENGTH:
            raise FormatError(f"The AAD prefix in key metadata has {len(self.aad_prefix)} bytes: too many")
        if self.file_length is not None and not 0 <= self.file_length <= MAX_FILE_LENGTH:
            raise FormatError(f"The file length in key metadata is {self.file_length}")

    @classmethod
    def generate(cls, key_length: int, entropy: Callable[[int], bytes] = os.urandom) -> StandardKeyMetadata:
        """A fresh key and AAD prefix for a file to be written."""
        if key_length not in KEY_LENGTHS:
            raise FormatError(
                f"A data key cannot have {key_length} bytes; set encryption.data-key-length to 16, 24 or 32"
            )
        return cls(Secret.random(key_length, entropy), entropy(AAD_PREFIX_LENGTH))

    def with_file_length(self, file_length: int) -> StandardKeyMetadata:
        return replace(self, file_length=file_length)

    def encode(self) -> bytes:
        """The wire form. It holds the key in the clear: it belongs into an encrypted file, or sealed by a KEK."""
        parts: list[Buffer] = [bytes((VERSION,)), _long(len(self.encryption_key)), self.encryption_key.expose()]
        parts += [b"\x00"] if self.aad_prefix is None else [b"\x02", _long(len(self.aad_prefix)), self.aad_prefix]
        parts += [b"\x00"] if self.file_length is None else [b"\x02", _long(self.file_length)]
        return b"".join(parts)

    @classmethod
    def decode(cls, data: Buffer) -> StandardKeyMetadata:
        view = memoryview(data)
        del data  # so that no traceback shows it
        if len(view) == 0 or view[0] != VERSION:
            raise FormatError("Key metadata does not begin with a known version byte (0x01)")
        reader = _DatumReader(view, 1)
        metadata = cls(
            encryption_key=Secret(reader.bytes(max(KEY_LENGTHS))),
            aad_prefix=bytes(reader.bytes(MAX_AAD_PREFIX_LENGTH)) if reader.present() else None,
            file_length=reader.long() if reader.present() else None,
        )
        reader.finish()
        return metadata


class _DatumReader:
    __slots__ = ("_at", "_view")

    def __init__(self, view: memoryview, at: int) -> None:
        self._view = view
        self._at = at

    def long(self) -> int:
        """A zig-zag variable-length integer, of which only the shortest form is accepted."""
        unsigned = shift = 0
        while True:
            if self._at == len(self._view):
                raise FormatError("Key metadata ends in the middle of a number")
            byte = self._view[self._at]
            self._at += 1
            unsigned |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise FormatError("Key metadata contains a number of more than 64 bits")
        if (byte == 0 and shift > 0) or unsigned >= 1 << 64:
            raise FormatError("Key metadata contains a malformed number")
        return (unsigned >> 1) ^ -(unsigned & 1)

    def bytes(self, at_most: int) -> memoryview:
        length = self.long()
        if not 0 <= length <= at_most:
            raise FormatError(f"Key metadata contains a value of {length} bytes, where at most {at_most} are expected")
        if length > len(self._view) - self._at:
            raise FormatError("Key metadata ends in the middle of a value")
        start = self._at
        self._at += length
        return self._view[start : self._at]

    def present(self) -> bool:
        """Whether a union of null and something holds the something."""
        branch = self.long()
        if branch not in (0, 1):
            raise FormatError("Key metadata contains an unknown union branch")
        return branch == 1

    def finish(self) -> None:
        if self._at != len(self._view):
            raise FormatError("Key metadata has bytes after its end")


def _long(value: int) -> bytes:
    unsigned = value << 1  # zig-zag of a value that is never negative
    encoded = bytearray()
    while unsigned > 0x7F:
        encoded.append(unsigned & 0x7F | 0x80)
        unsigned >>= 7
    encoded.append(unsigned)
    return bytes(encoded)
