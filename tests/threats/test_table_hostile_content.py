"""25: hostile manifests and deletion vectors. Those of an encrypted table are authentic, but a plain one's are not."""

from __future__ import annotations

import random
import tracemalloc
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from pyroaring import BitMap64

from pyiceberg_encryption.errors import FormatError
from tests.table_support import Lake, append_as_is, data_files, delete_file, ids, manifests, path_of, snapshots

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg_encryption.table.table import Table

PLACE_OF_THE_LAST_RECORD = -16 - 1  # before the sync marker


def plain_table(lake: Lake, codec: str = "gzip") -> Table:
    return lake.create(key_id=None, properties={"format-version": "3", "write.avro.compression-codec": codec})


def read(table: Table) -> None:
    for manifest in snapshots(table)[-1].manifests(table.io):
        if path_of(manifest.manifest_path).exists():
            manifest.fetch_manifest_entry(table.io)


def kinds(table: Table) -> list[Path]:
    return [path_of(snapshots(table)[-1].manifest_list), path_of(manifests(table)[0].manifest_path)]


@pytest.mark.parametrize("codec", ["gzip", "null"])
def test_25_manifests_and_manifest_lists_changed_or_cut_anywhere(lake: Lake, codec: str) -> None:
    table = plain_table(lake, codec)
    chance = random.Random(25)
    refused = 0
    for path in kinds(table):
        whole = path.read_bytes()
        for at in range(60):
            damaged = bytearray(whole)
            if at % 3:
                damaged[chance.randrange(len(whole))] = chance.choice((0, 1, 127, 128, 255))
            else:
                del damaged[chance.randrange(len(whole)) :]
            path.write_bytes(damaged)
            try:
                read(table)
            except FormatError:
                refused += 1
        path.write_bytes(whole)
    assert refused > 90
    assert ids(table) == [1, 2, 3, 4, 5]


def test_25_a_number_that_goes_on_behind_the_end(lake: Lake) -> None:
    """PyIceberg's fast decoder would follow it to wherever in memory that is, and crash in the end."""
    table = plain_table(lake, "null")
    path = path_of(snapshots(table)[-1].manifest_list)
    data = bytearray(path.read_bytes())
    data[PLACE_OF_THE_LAST_RECORD] |= 0x80
    path.write_bytes(data)
    with pytest.raises(FormatError, match="is not a manifest or manifest list"):
        read(table)


def test_25_lengths_that_nothing_follows(lake: Lake) -> None:
    table = plain_table(lake, "null")
    for path in kinds(table):
        whole = path.read_bytes()
        start = whole.index(whole[-16:]) + 16
        for claim in (
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x02" + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ):
            path.write_bytes(whole[:start] + claim + whole[start + 1 :])
            tracemalloc.start()
            try:
                with pytest.raises(FormatError):
                    read(table)
                assert tracemalloc.get_traced_memory()[1] < 1_000_000
            finally:
                tracemalloc.stop()
        path.write_bytes(whole)


VECTOR = BitMap64([1]).serialize()


def blob(vector: bytes = VECTOR, magic: bytes = b"\xd1\xd3\x39\x64", length: int | None = None, crc: int = 0) -> bytes:
    payload = magic + vector
    size = len(payload) if length is None else length
    return size.to_bytes(4, "big") + payload + (zlib.crc32(payload) ^ crc).to_bytes(4, "big")


def with_vector(table: Table, content: bytes, **fields: Any) -> None:
    path = path_of(table.location()) / "data" / f"{random.random()}.puffin"
    path.write_bytes(b"PFA1" + content + b"PFA1")
    place = {"content_offset": 4, "content_size_in_bytes": len(content)}
    file = delete_file(f"file://{path}", data_files(table)[-1], len(content) + 8, **{**place, **fields})
    append_as_is(table, file)


def test_25_a_deletion_vector_that_is_as_it_should_be_deletes(lake: Lake) -> None:
    table = plain_table(lake)
    with_vector(table, blob())
    assert ids(table) == [1, 3, 4, 5]


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        pytest.param(blob(), fields, id=name)
        for name, fields in {
            "behind the end": {"content_offset": 10_000},
            "over the end": {"content_offset": 20},
            "before the start": {"content_offset": -4},
            "huge offset": {"content_offset": 2**62},
            "negative size": {"content_size_in_bytes": -1},
            "no size": {"content_size_in_bytes": None},
            "no offset": {"content_offset": None},
            "huge size": {"content_size_in_bytes": 2**62, "file_size_in_bytes": 2**62},
            "empty": {"content_size_in_bytes": 0},
            "less rows than it says": {"record_count": 2},
            "of no file": {"referenced_data_file": None},
        }.items()
    ]
    + [
        pytest.param(content, {}, id=name)
        for name, content in {
            "more rows than it says": blob(BitMap64([1, 2]).serialize()),
            "wrong CRC": blob(crc=1),
            "wrong magic": blob(magic=b"\xd1\xd3\x39\x65"),
            "length too short": blob(length=4),
            "length too long": blob(length=2**32 - 1),
            "no vector": blob(b""),
            "no bitmap": blob(b"\xff" * 50),
            "cut": blob(VECTOR[:-1]),
            "huge count": blob(b"\xff" * 8 + VECTOR[8:]),
        }.items()
    ],
)
def test_25_a_hostile_deletion_vector(lake: Lake, content: bytes, fields: dict[str, Any]) -> None:
    table = plain_table(lake)
    with_vector(table, content, **fields)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="deletion vector"):
            table.scan().to_arrow()
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_25_two_deletion_vectors_for_one_file(lake: Lake) -> None:
    table = plain_table(lake)
    with_vector(table, blob())
    with_vector(table, blob())
    with pytest.raises(FormatError, match="more than one, deletion vector"):
        table.scan().to_arrow()
