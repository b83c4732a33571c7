"""AES-GCM in the one layout that Iceberg uses everywhere: nonce, ciphertext, tag."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from pyiceberg_encryption.errors import FormatError, IntegrityError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from pyiceberg_encryption.secret import Secret

NONCE_LENGTH = 12  # NIST SP 800-38D, section 8.2.2: a 96-bit nonce from a random bit generator
TAG_LENGTH = 16
OVERHEAD = NONCE_LENGTH + TAG_LENGTH
KEY_LENGTHS = (16, 24, 32)
_ZEROS = memoryview(bytes(1 << 20))  # as many as a block of AGS1 has


def check_key_length(length: int, what: str) -> None:
    if length not in KEY_LENGTHS:
        raise FormatError(f"{what} has {length} bytes; an AES key has 16, 24 or 32")


class AesGcm:
    """A cipher for one key. Safe to use from several threads."""

    __slots__ = ("_aead", "_entropy")

    def __init__(self, key: Secret, entropy: Callable[[int], bytes] = os.urandom) -> None:
        check_key_length(len(key), "The key")
        self._aead = AESGCM(key.expose())
        self._entropy = entropy

    def seal(self, plaintext: Buffer, aad: bytes | None = None) -> bytes:
        nonce = self._entropy(NONCE_LENGTH)
        return nonce + self._aead.encrypt(nonce, memoryview(plaintext), aad)

    def open(self, sealed: Buffer, aad: bytes | None = None) -> bytes:
        view = _sealed_view(sealed)
        try:
            return self._aead.decrypt(view[:NONCE_LENGTH], view[NONCE_LENGTH:], aad)
        except InvalidTag:
            raise _integrity_error() from None

    def seal_into(self, plaintext: memoryview, aad: bytes | None, out: memoryview) -> None:
        """Seal into `out`, whose length must be that of the plaintext and `OVERHEAD` more."""
        nonce = self._entropy(NONCE_LENGTH)
        out[:NONCE_LENGTH] = nonce
        self._aead.encrypt_into(nonce, plaintext, aad, out[NONCE_LENGTH:])

    def open_into(self, sealed: Buffer, aad: bytes | None, out: memoryview) -> None:
        """Open into `out`, whose length must be that of the plaintext. What fails authentication is wiped from it."""
        view = _sealed_view(sealed)
        if len(out) != len(view) - OVERHEAD:
            raise UsageError(f"{len(view) - OVERHEAD} bytes of plaintext do not fit exactly into {len(out)}")
        zeros = _ZEROS[: len(out)] if len(out) <= len(_ZEROS) else bytes(len(out))
        try:
            self._aead.decrypt_into(view[:NONCE_LENGTH], view[NONCE_LENGTH:], aad, out)
        except InvalidTag:
            # OpenSSL writes the plaintext before it has seen the tag. No call comes first, for Ctrl-C to strike at.
            out[:] = zeros
            raise _integrity_error() from None


def _sealed_view(sealed: Buffer) -> memoryview:
    view = memoryview(sealed)
    if len(view) < OVERHEAD:
        raise FormatError(f"{len(view)} bytes are too few for a nonce and a tag ({OVERHEAD})")
    return view


def _integrity_error() -> IntegrityError:
    return IntegrityError("Authentication failed: the data was changed, or this is not the key that it was sealed with")
