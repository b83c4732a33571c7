from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyiceberg_encryption.ciphers import NONCE_LENGTH, TAG_LENGTH
from pyiceberg_encryption.errors import FormatError, UsageError
from pyiceberg_encryption.stream import layout

BLOCK = layout.PLAIN_BLOCK_LENGTH
CIPHER_BLOCK = layout.CIPHER_BLOCK_LENGTH

plain_lengths = st.integers(0, layout.MAX_PLAIN_LENGTH) | st.builds(
    lambda blocks, around: max(0, blocks * BLOCK + around), st.integers(0, 100), st.integers(-2, 2)
)


@pytest.mark.parametrize(
    ("plain", "encrypted"),
    [
        (0, 36),
        (1, 37),
        (BLOCK - 1, 8 + 28 + BLOCK - 1),
        (BLOCK, 8 + 28 + BLOCK),
        (BLOCK + 1, 8 + 2 * 28 + BLOCK + 1),
        (3 * BLOCK + BLOCK // 2, 8 + 4 * 28 + 3 * BLOCK + BLOCK // 2),
        (layout.MAX_PLAIN_LENGTH, layout.MAX_ENCRYPTED_LENGTH),
    ],
)
def test_lengths(plain: int, encrypted: int) -> None:
    assert layout.encrypted_length(plain) == encrypted
    assert layout.plain_length(encrypted) == plain


@given(plain_lengths)
def test_encrypted_length_and_back(length: int) -> None:
    assert layout.plain_length(layout.encrypted_length(length)) == length


@given(st.integers(0, 10 * CIPHER_BLOCK))
def test_a_length_is_either_that_of_one_plain_length_or_refused(encrypted: int) -> None:
    try:
        plain = layout.plain_length(encrypted)
    except FormatError:
        assert encrypted < 36 or (encrypted - 8) % CIPHER_BLOCK in range(1, 29)
    else:
        assert layout.encrypted_length(plain) == encrypted


@pytest.mark.parametrize("length", [-1, layout.MAX_PLAIN_LENGTH + 1])
def test_lengths_that_no_stream_has(length: int) -> None:
    with pytest.raises(UsageError):
        layout.encrypted_length(length)


def test_more_blocks_than_an_int32_counts_are_refused() -> None:
    with pytest.raises(FormatError, match="too many"):
        layout.plain_length(layout.MAX_ENCRYPTED_LENGTH + 1)


@given(st.integers(0, layout.MAX_PLAIN_LENGTH - 1))
def test_locate(offset: int) -> None:
    block, in_block, cipher_offset = layout.locate(offset)
    assert block * BLOCK + in_block == offset
    assert cipher_offset == 8 + block * CIPHER_BLOCK + NONCE_LENGTH + in_block
    assert layout.plain_offset(cipher_offset, layout.MAX_PLAIN_LENGTH) == offset


@given(plain_lengths, st.data())
def test_splits_cover_the_plain_file_without_overlap(length: int, data: st.DataObject) -> None:
    """Whatever offsets the encrypted file is cut at, each plain byte is in exactly one split."""
    end = layout.encrypted_length(length)
    cuts = sorted(data.draw(st.lists(st.integers(0, end), max_size=10)))
    edges = [layout.plain_offset(cut, length) for cut in [0, *cuts, end]]
    assert edges[0] == 0
    assert edges[-1] == length
    assert edges == sorted(edges)


@pytest.mark.parametrize(
    ("cipher_offset", "plain"),
    [
        (0, 0),  # header
        (8, 0),  # first nonce
        (20, 0),  # first byte
        (21, 1),
        (20 + BLOCK, BLOCK),  # first tag
        (8 + CIPHER_BLOCK, BLOCK),  # second nonce
        (8 + CIPHER_BLOCK + NONCE_LENGTH + 5, BLOCK + 5),
        (8 + CIPHER_BLOCK + NONCE_LENGTH + 10 + TAG_LENGTH, BLOCK + 10),  # the end of the file
    ],
)
def test_bytes_without_data_belong_to_the_next_plain_byte(cipher_offset: int, plain: int) -> None:
    assert layout.plain_offset(cipher_offset, BLOCK + 10) == plain


@given(plain_lengths, st.data())
def test_cipher_range_holds_just_the_blocks_that_the_plain_range_touches(length: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, length))
    stop = data.draw(st.integers(start, length))
    first, end = layout.cipher_range(start, stop, length)
    assert (first - 8) % CIPHER_BLOCK == 0
    assert end == layout.encrypted_length(length) or (end - 8) % CIPHER_BLOCK == 0
    if start < stop:
        assert first <= layout.locate(start).cipher_offset < first + CIPHER_BLOCK
        assert end - CIPHER_BLOCK <= layout.locate(stop - 1).cipher_offset < end
    else:
        assert end - first <= CIPHER_BLOCK


def test_a_range_outside_the_stream_is_refused() -> None:
    for start, stop in [(-1, 1), (5, 4), (0, 11)]:
        with pytest.raises(UsageError):
            layout.cipher_range(start, stop, 10)
