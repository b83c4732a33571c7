"""Attacks on the files of encrypted tables. The numbers are those of the threat table in docs/security.md."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from pyiceberg.manifest import FileFormat

from pyiceberg_encryption.errors import FormatError, IntegrityError
from pyiceberg_encryption.table.manifests import _MANIFEST_KEY_METADATA
from pyiceberg_encryption.table.policy import UnverifiedMetadataWarning
from tests.table_support import (
    FORGED_ROWS,
    ROWS,
    Lake,
    append_as_is,
    data_files,
    delete_file,
    ids,
    manifests,
    path_of,
    plain_file,
    snapshots,
    swap,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyiceberg.manifest import ManifestFile

    from pyiceberg_encryption.table.table import Table

ADMIT = {"encryption.plaintext-data-files": "admit"}
ONE_OF_EACH_FILE = pa.table({"id": [2, 5, 8], "s": ["new"] * 3})


def readers(table: Table) -> list[Callable[[], Any]]:
    return [
        lambda: table.scan().to_arrow(),
        lambda: table.scan(limit=100).to_arrow(),
        lambda: list(table.scan("id > 0", selected_fields=("s",)).to_arrow_batch_reader()),
        lambda: table.scan("s != 'x'").count(),
        lambda: table.delete("id in (2, 5, 8)"),
        lambda: table.upsert(ONE_OF_EACH_FILE, ["id"]),
    ]


def assert_unreadable(table: Table, match: str | None = None, more: Iterable[Callable[[], Any]] = ()) -> None:
    before = table.metadata_location
    for call in (*readers(table), *more):
        with pytest.raises((IntegrityError, FormatError), match=match):
            call()
    assert table.refresh().metadata_location == before  # nothing was committed


def inspections(table: Table) -> list[Callable[[], Any]]:
    return [table.inspect.files, table.inspect.entries, lambda: table.scan().plan_files(), lambda: table.scan().count()]


@pytest.mark.parametrize("kind", ["list", "manifest"])
def test_09_plaintext_in_place_of_a_manifest_or_manifest_list(lake: Lake, kind: str) -> None:
    """Even one that says the same, and where plaintext data is admitted."""
    table = lake.create()
    snapshot, manifest = snapshots(table)[-1], manifests(table)[0]
    location = snapshot.manifest_list if kind == "list" else manifest.manifest_path
    key = file_key_of_list(table) if kind == "list" else manifest.key_metadata
    plain = table.io.input(location, key).read()  # type: ignore[attr-defined]
    assert plain[:4] == b"Obj\x01"
    path_of(location).write_bytes(plain)
    table = lake.load(**ADMIT)
    assert_unreadable(table, location, inspections(table))


def file_key_of_list(table: Table) -> Any:
    from pyiceberg_encryption.table.file_io import manifest_list_key
    from pyiceberg_encryption.table.models import key_id

    snapshot = snapshots(table)[-1]
    return manifest_list_key(table.io, snapshot.manifest_list, key_id(snapshot))


@pytest.mark.parametrize("kind", ["list", "manifest"])
def test_09_manifests_or_manifest_lists_swapped(lake: Lake, kind: str) -> None:
    """Those of two snapshots: an older state of the table in place of the newest."""
    table = lake.create()
    if kind == "list":
        swap(*(snapshot.manifest_list for snapshot in snapshots(table)))
    else:
        swap(*(manifest.manifest_path for manifest in manifests(table)))
    table = lake.load()
    assert_unreadable(table, None, inspections(table))


def test_10_a_data_file_without_a_key(lake: Lake) -> None:
    """It was taken in while plaintext was admitted, and no longer is."""
    lake.create()
    converting = lake.load(**ADMIT)
    converting.add_files([plain_file(lake)])
    assert ids(converting) == [1, 2, 3, 4, 5, 7, 8, 9]
    assert_unreadable(lake.load(), "forged.parquet .*has no key")


@pytest.mark.parametrize("file_format", [FileFormat.PUFFIN, FileFormat.PARQUET, FileFormat.AVRO])
def test_10_a_delete_file_without_a_key(lake: Lake, file_format: FileFormat) -> None:
    """Not even while data is converted: it would say which rows are gone."""
    table = lake.create()
    file = data_files(table)[0]
    deletes = pa.table({"file_path": [file.file_path], "pos": pa.array([0], pa.int64())})
    location = plain_file(lake, deletes)
    place = {"content_offset": 0, "content_size_in_bytes": 10}
    append_as_is(table, delete_file(location, file, 10, file_format=file_format, **place))
    assert_unreadable(lake.load(**ADMIT), "forged.parquet .*has no key")


def test_10_a_manifest_without_a_key(lake: Lake) -> None:
    table = lake.create()
    manifest = manifests(table)[0]
    plain = table.io.input(manifest.manifest_path, manifest.key_metadata).read()  # type: ignore[attr-defined]

    def strip(listed: list[ManifestFile]) -> None:
        path_of(listed[0].manifest_path).write_bytes(plain)
        listed[0][_MANIFEST_KEY_METADATA] = None
        listed[0][1] = len(plain)

    append_as_is(table, data_files(table)[0], on_list=strip)
    table = lake.load(**ADMIT)
    assert_unreadable(table, "has no key", inspections(table))


def test_10_a_snapshot_without_a_key_id(lake: Lake) -> None:
    """Although the other snapshots have theirs. Its manifest list is there, in plaintext."""
    table = lake.create()
    snapshot = snapshots(table)[-1]
    plain = table.io.input(snapshot.manifest_list, file_key_of_list(table)).read()  # type: ignore[attr-defined]
    path_of(snapshot.manifest_list).write_bytes(plain)
    lake.commit_as_another_engine(lambda metadata: metadata["snapshots"][-1].pop("key-id"), table)
    with pytest.warns(UnverifiedMetadataWarning):
        table = lake.load(**ADMIT)
    assert_unreadable(table, "has no key", [*inspections(table), lambda: table.append(ROWS)])


def test_10_plaintext_files_added(lake: Lake) -> None:
    table = lake.create()
    with pytest.raises(IntegrityError, match="has no key"):
        table.add_files([plain_file(lake)])
    assert len(lake.load().metadata.snapshots) == 2


def encrypted_with(key: bytes, path: Path, *, store_aad_prefix: bool = False, **options: Any) -> None:
    properties = pe.create_encryption_properties(
        footer_key=key, aad_prefix=b"a" * 16, store_aad_prefix=store_aad_prefix, **options
    )
    pq.write_table(FORGED_ROWS, path, encryption_properties=properties)


def cut(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


REPLACEMENTS: dict[str, Callable[[Path, Path], object]] = {
    "plaintext": lambda path, other: pq.write_table(FORGED_ROWS, path),
    "another key": lambda path, other: encrypted_with(b"k" * 16, path),
    "another key, its prefix stored": lambda path, other: encrypted_with(b"k" * 16, path, store_aad_prefix=True),
    "signed footer in plaintext": lambda path, other: encrypted_with(b"k" * 16, path, plaintext_footer=True),
    "counter mode": lambda path, other: encrypted_with(b"k" * 16, path, encryption_algorithm="AES_GCM_CTR_V1"),
    "another file of the table": lambda path, other: shutil.copy(other, path),
    "no Parquet": lambda path, other: path.write_bytes(b"PARE" + bytes(1000) + b"PARE"),
    "empty": lambda path, other: cut(path, 0),
    "cut by a byte": lambda path, other: cut(path, -1),
    "cut to its magic": lambda path, other: cut(path, 4),
    "cut in the middle": lambda path, other: cut(path, 500),
    "a page flipped": lambda path, other: flip(path, 60),
    "the footer flipped": lambda path, other: flip(path, -50),
    "the length of the footer changed": lambda path, other: flip(path, -8),
}


def test_11_another_file_in_place_of_a_data_file(lake: Lake) -> None:
    """A file that has a key is never read without it, even where plaintext is admitted."""
    newest, oldest = (path_of(file.file_path) for file in data_files(lake.create()))
    whole = oldest.read_bytes()
    table = lake.load(**ADMIT)
    for replacement in REPLACEMENTS.values():
        replacement(oldest, newest)
        with pytest.raises(IntegrityError, match=f"{oldest.name} is not what was written with its key"):
            table.scan().to_arrow()
        assert table.scan("id > 3").to_arrow()["id"].to_pylist() == [4, 5]
        oldest.write_bytes(whole)
    assert ids(table) == [1, 2, 3, 4, 5]


def test_11_a_plaintext_data_file_however_it_is_read(lake: Lake) -> None:
    pq.write_table(FORGED_ROWS, path_of(data_files(lake.create())[-1].file_path))
    assert_unreadable(lake.load(), "is not what was written with its key")


def test_11_data_files_swapped(lake: Lake) -> None:
    swap(*(file.file_path for file in data_files(lake.create())))
    assert_unreadable(lake.load(), "is not what was written with its key")
