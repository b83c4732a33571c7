"""Where things lie in an AGS1 stream: pure arithmetic between offsets in the plain and in the encrypted file.

An AGS1 file is `AGS1`, the plain block length as a little-endian uint32, then sealed blocks. All blocks but the
last hold `PLAIN_BLOCK_LENGTH` bytes; an empty stream holds one empty block.
"""

from __future__ import annotations

from typing import NamedTuple

from pyiceberg_encryption.ciphers import NONCE_LENGTH, OVERHEAD
from pyiceberg_encryption.errors import FormatError, UsageError

MAGIC = b"AGS1"
PLAIN_BLOCK_LENGTH = 1 << 20  # The format carries it in the header, but Iceberg Java writes and accepts this value only
HEADER = MAGIC + PLAIN_BLOCK_LENGTH.to_bytes(4, "little")
HEADER_LENGTH = len(HEADER)
CIPHER_BLOCK_LENGTH = PLAIN_BLOCK_LENGTH + OVERHEAD
MIN_ENCRYPTED_LENGTH = HEADER_LENGTH + OVERHEAD
MAX_BLOCKS = 2**31 - 1  # The block index in the AAD is an int32
MAX_PLAIN_LENGTH = MAX_BLOCKS * PLAIN_BLOCK_LENGTH
MAX_ENCRYPTED_LENGTH = HEADER_LENGTH + MAX_BLOCKS * CIPHER_BLOCK_LENGTH


class Position(NamedTuple):
    """Where one plain byte is: its block, its offset there, and the offset of its cipher byte in the file."""

    block: int
    offset_in_block: int
    cipher_offset: int


def encrypted_length(plain_length: int) -> int:
    return HEADER_LENGTH + plain_length + block_count(plain_length) * OVERHEAD


def plain_length(encrypted_length: int) -> int:
    """The plain length of a file of this encrypted length; an error if no AGS1 file has that length."""
    if encrypted_length < MIN_ENCRYPTED_LENGTH:
        raise FormatError(f"{encrypted_length} bytes are too few for an AGS1 stream (at least {MIN_ENCRYPTED_LENGTH})")
    if encrypted_length > MAX_ENCRYPTED_LENGTH:
        raise FormatError(f"{encrypted_length} bytes are too many for an AGS1 stream (at most {MAX_BLOCKS} blocks)")
    full_blocks, rest = divmod(encrypted_length - HEADER_LENGTH, CIPHER_BLOCK_LENGTH)
    if rest == 0:
        return full_blocks * PLAIN_BLOCK_LENGTH
    if rest < OVERHEAD or (rest == OVERHEAD and full_blocks > 0):
        raise FormatError(
            f"The last block of an AGS1 stream of {encrypted_length} bytes has {rest}: too few for a block"
        )
    return full_blocks * PLAIN_BLOCK_LENGTH + rest - OVERHEAD


def block_count(plain_length: int) -> int:
    if not 0 <= plain_length <= MAX_PLAIN_LENGTH:
        raise UsageError(f"An AGS1 stream cannot hold {plain_length} bytes (at most {MAX_PLAIN_LENGTH})")
    return max(1, -(-plain_length // PLAIN_BLOCK_LENGTH))


def block_start(block: int) -> int:
    """The offset in the encrypted file at which a block's nonce begins."""
    return HEADER_LENGTH + block * CIPHER_BLOCK_LENGTH


def block_length(block: int, plain_length: int) -> int:
    """How many plain bytes a block holds."""
    return min(PLAIN_BLOCK_LENGTH, plain_length - block * PLAIN_BLOCK_LENGTH)


def locate(plain_offset: int) -> Position:
    block, offset_in_block = divmod(plain_offset, PLAIN_BLOCK_LENGTH)
    return Position(block, offset_in_block, block_start(block) + NONCE_LENGTH + offset_in_block)


def plain_offset(cipher_offset: int, plain_length: int) -> int:
    """The inverse of `locate` for any offset in the encrypted file, such as the edge of a split of it.

    Bytes that hold no data (header, nonces, tags) belong to the next plain byte. So the mapping never decreases, and
    splits that cover the encrypted file without overlap become splits that cover the plain one without overlap.
    """
    block, rest = divmod(max(0, cipher_offset - HEADER_LENGTH), CIPHER_BLOCK_LENGTH)
    in_block = min(max(0, rest - NONCE_LENGTH), PLAIN_BLOCK_LENGTH)
    return min(block * PLAIN_BLOCK_LENGTH + in_block, plain_length)


def cipher_range(start: int, stop: int, plain_length: int) -> tuple[int, int]:
    """The part of the encrypted file (start, stop) that must be fetched to read plain bytes start to stop."""
    if not 0 <= start <= stop <= plain_length:
        raise UsageError(f"Bytes {start} to {stop} are not within a stream of {plain_length}")
    first = min(start // PLAIN_BLOCK_LENGTH, block_count(plain_length) - 1)
    last = max(first, (stop - 1) // PLAIN_BLOCK_LENGTH)
    return block_start(first), block_start(last) + block_length(last, plain_length) + OVERHEAD
