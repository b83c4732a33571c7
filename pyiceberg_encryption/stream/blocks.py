"""The blocks of an AGS1 stream, sealed and opened in place, on several cores where there are enough of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyiceberg_encryption.ciphers import OVERHEAD, AesGcm
from pyiceberg_encryption.errors import IntegrityError
from pyiceberg_encryption.stream import layout
from pyiceberg_encryption.stream.parallel import for_each

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg_encryption.key_metadata import StandardKeyMetadata


class BlockCipher:
    """Seals and opens runs of blocks. In a run only the last block may be short, and the caller knows which it is."""

    __slots__ = ("_aad_prefix", "_cipher")

    def __init__(self, key_metadata: StandardKeyMetadata, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._cipher = AesGcm(key_metadata.encryption_key, entropy)
        self._aad_prefix = key_metadata.aad_prefix or b""

    def seal(self, first: int, plain: memoryview, sealed: memoryview) -> None:
        if len(plain) <= layout.PLAIN_BLOCK_LENGTH:
            self._cipher.seal_into(plain, self._aad(first), sealed)
            return

        def seal_block(index: int) -> None:
            block, cipher_block = _block_of_run(index, plain, sealed)
            self._cipher.seal_into(block, self._aad(first + index), cipher_block)

        for_each(layout.block_count(len(plain)), seal_block)

    def open(self, first: int, sealed: memoryview, plain: memoryview) -> None:
        """What fails authentication is not in `plain` afterwards."""
        if len(plain) <= layout.PLAIN_BLOCK_LENGTH:
            self._open_block(first, sealed, plain)
            return

        def open_block(index: int) -> None:
            block, cipher_block = _block_of_run(index, plain, sealed)
            self._open_block(first + index, cipher_block, block)

        for_each(layout.block_count(len(plain)), open_block)

    def seal_only_block(self, plain: memoryview) -> bytes:
        """The one block of a small stream. For some KiB this is quicker than sealing in place."""
        return self._cipher.seal(plain, self._aad(0))

    def open_as_bytes(self, block: int, sealed: memoryview) -> bytes:
        try:
            return self._cipher.open(sealed, self._aad(block))
        except IntegrityError as error:
            raise _in_block(block, error) from None

    def _open_block(self, block: int, sealed: memoryview, plain: memoryview) -> None:
        try:
            self._cipher.open_into(sealed, self._aad(block), plain)
        except IntegrityError as error:
            raise _in_block(block, error) from None

    def _aad(self, block: int) -> bytes:
        return self._aad_prefix + block.to_bytes(4, "little")


def _in_block(block: int, error: IntegrityError) -> IntegrityError:
    return IntegrityError(f"block {block}: {error}")


def _block_of_run(index: int, plain: memoryview, sealed: memoryview) -> tuple[memoryview, memoryview]:
    start = index * layout.PLAIN_BLOCK_LENGTH
    block = plain[start : start + layout.PLAIN_BLOCK_LENGTH]
    cipher_start = index * layout.CIPHER_BLOCK_LENGTH
    return block, sealed[cipher_start : cipher_start + len(block) + OVERHEAD]
