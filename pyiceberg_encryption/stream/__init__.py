"""AGS1, the AES GCM Stream file format: https://iceberg.apache.org/gcm-stream-spec/"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyiceberg_encryption.errors import UsageError
from pyiceberg_encryption.stream import layout
from pyiceberg_encryption.stream.blocks import BlockCipher
from pyiceberg_encryption.stream.layout import encrypted_length, plain_length
from pyiceberg_encryption.stream.reader import AesGcmInputStream
from pyiceberg_encryption.stream.writer import AesGcmOutputStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from pyiceberg_encryption.key_metadata import StandardKeyMetadata

__all__ = [
    "AesGcmInputStream",
    "AesGcmOutputStream",
    "decrypt",
    "decrypt_into",
    "encrypt",
    "encrypt_into",
    "encrypted_length",
    "plain_length",
]


def encrypt(
    plaintext: Buffer, key_metadata: StandardKeyMetadata, *, entropy: Callable[[int], bytes] = os.urandom
) -> bytes:
    """A whole file, encrypted. Store its key metadata with `key_metadata.with_file_length(len(result))`."""
    plain = memoryview(plaintext).cast("B")
    out = bytearray(encrypted_length(len(plain)))
    encrypt_into(plain, key_metadata, out, entropy=entropy)
    return bytes(out)


def encrypt_into(
    plaintext: Buffer, key_metadata: StandardKeyMetadata, out: Buffer, *, entropy: Callable[[int], bytes] = os.urandom
) -> None:
    """Encrypts a whole file into `out`, of `encrypted_length(len(plaintext))` bytes, which must not overlap it."""
    plain = memoryview(plaintext).cast("B")
    view = _fitting(out, encrypted_length(len(plain)))
    view[: layout.HEADER_LENGTH] = layout.HEADER
    BlockCipher(key_metadata, entropy).seal(0, plain, view[layout.HEADER_LENGTH :])


def decrypt(
    encrypted: Buffer,
    key_metadata: StandardKeyMetadata,
    *,
    location: str | None = None,
    allow_unrecorded_length: bool = False,
) -> bytes:
    """A whole file, decrypted. The arguments are those of `AesGcmInputStream`."""
    with AesGcmInputStream(
        memoryview(encrypted), key_metadata, location=location, allow_unrecorded_length=allow_unrecorded_length
    ) as stream:
        return stream.read()


def decrypt_into(
    encrypted: Buffer,
    key_metadata: StandardKeyMetadata,
    out: Buffer,
    *,
    location: str | None = None,
    allow_unrecorded_length: bool = False,
) -> None:
    """Decrypts a whole file into `out`, whose length must be the plain length of the file."""
    with AesGcmInputStream(
        memoryview(encrypted), key_metadata, location=location, allow_unrecorded_length=allow_unrecorded_length
    ) as stream:
        stream.readinto(_fitting(out, stream.length))


def _fitting(out: Buffer, length: int) -> memoryview:
    view = memoryview(out).cast("B")
    if len(view) != length:
        raise UsageError(f"The output buffer has {len(view)} bytes; it must have {length}")
    return view
