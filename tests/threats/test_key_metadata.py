"""8: key metadata that nobody wrote."""

from __future__ import annotations

import tracemalloc

import pytest

from pyiceberg_encryption import Secret, StandardKeyMetadata
from pyiceberg_encryption.errors import FormatError

WHOLE = StandardKeyMetadata(Secret(b"k" * 16), b"p" * 16, 1_000_000).encode()
KEY, PREFIX, LENGTH = b"\x20" + b"k" * 16, b"\x02\x20" + b"p" * 16, b"\x02\x80\x89\x7a"
assert WHOLE == b"\x01" + KEY + PREFIX + LENGTH

ENORMOUS = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # 2^63 - 1


def assert_refused(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            StandardKeyMetadata.decode(data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("version", [0, 2, 127, 128, 255])
def test_08_wrong_version(version: int) -> None:
    assert_refused(bytes([version]) + WHOLE[1:])


@pytest.mark.parametrize("data", [b"\x01" + ENORMOUS + KEY, b"\x01" + KEY + b"\x02" + ENORMOUS, b"\x01\x01"])
def test_08_huge_or_negative_length(data: bytes) -> None:
    assert_refused(data)


@pytest.mark.parametrize("more", [b"\x00", b"\x02", WHOLE])
def test_08_trailing_bytes(more: bytes) -> None:
    assert_refused(WHOLE + more)


@pytest.mark.parametrize("length", [0, 1, 15, 17, 31, 33, 64])
def test_08_key_of_another_length(length: int) -> None:
    assert_refused(b"\x01" + bytes([2 * length]) + b"k" * length + PREFIX + LENGTH)


def test_08_truncated_anywhere() -> None:
    for end in range(len(WHOLE)):
        assert_refused(WHOLE[:end])


@pytest.mark.parametrize("branch", [b"\x04", b"\x01", b"\x03", ENORMOUS])
def test_08_unknown_union_branch(branch: bytes) -> None:
    assert_refused(b"\x01" + KEY + branch + PREFIX[1:] + LENGTH)


@pytest.mark.parametrize(
    "number", [b"\xa0\x00", b"\xa0\x80\x00", b"\x80" * 9 + b"\x02", b"\x80" * 10 + b"\x01", b"\xff" * 2000]
)
def test_08_number_that_is_not_in_its_shortest_form_or_of_more_than_64_bits(number: bytes) -> None:
    assert_refused(b"\x01" + number + b"k" * 16 + PREFIX + LENGTH)
    assert_refused(b"\x01" + KEY + PREFIX + b"\x02" + number)


def test_08_negative_file_length() -> None:
    assert_refused(b"\x01" + KEY + PREFIX + b"\x02\x01")


def test_08_more_bytes_than_any_writer_makes() -> None:
    million = b"\x80\x89\x7a"
    assert_refused(b"\x01" + KEY + b"\x02" + million + b"p" * 1_000_000 + LENGTH)
    assert_refused(b"\x01" + million + b"k" * 1_000_000 + PREFIX + LENGTH)
