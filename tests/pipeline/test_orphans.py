"""Files that nothing leads to are deleted, and no others."""

from __future__ import annotations

import gzip
import os
import shutil
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from pyiceberg.io.fsspec import FsspecFileIO

from pyiceberg_encryption.errors import IntegrityError, UsageError
from pyiceberg_encryption.pipeline import orphans
from pyiceberg_encryption.pipeline.listing import StoredFile, files_below, place
from pyiceberg_encryption.pipeline.orphans import folders, remove_orphan_files
from pyiceberg_encryption.pipeline.verify import verify
from tests.table_support import MORE_ROWS, Lake, data_files, ids, manifests, path_of, snapshots

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.io import FileIO

    from pyiceberg_encryption.table.table import Table

NOW = timedelta(0)
DAY = 24 * 60 * 60


def stray(table: Table, name: str = "data/stray.parquet", days_old: float = 4) -> Path:
    path = path_of(table.location()) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"PAR1")
    made = time.time() - days_old * DAY
    os.utime(path, (made, made))
    return path


def grown_old(lake: Lake) -> None:
    """All files there are, so that only what is kept for another reason is kept."""
    for path in lake.files():
        os.utime(path, (0, 0))


def test_only_what_nothing_leads_to(lake: Lake) -> None:
    table = lake.create(appends=3)
    table.overwrite(MORE_ROWS)
    path = stray(table)
    grown_old(lake)
    kept = set(lake.files()) - {path}

    assert remove_orphan_files(table, dry_run=True) == [f"file://{path}"]
    assert path.exists()
    assert remove_orphan_files(table) == [f"file://{path}"]

    assert set(lake.files()) == kept
    assert verify(table, older_than=NOW).ok
    assert remove_orphan_files(table) == []


def test_fsspec(lake: Lake) -> None:
    lake.create()
    table = lake.load(**{"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"})
    assert isinstance(table.io.plain, FsspecFileIO)  # type: ignore[attr-defined]
    path = stray(table)
    grown_old(lake)
    assert remove_orphan_files(table) == [f"file://{path}"]
    assert not path.exists()


def test_young_files_are_kept(lake: Lake) -> None:
    table = lake.create()
    young, old = stray(table, "data/young.parquet", 2.9), stray(table, "data/old.parquet", 3.1)
    assert remove_orphan_files(table) == [f"file://{old}"]
    assert remove_orphan_files(table, older_than=timedelta(days=1)) == [f"file://{young}"]


def test_a_short_interval_is_refused(lake: Lake) -> None:
    table = lake.create()
    path = stray(table, days_old=0)
    for interval in (NOW, timedelta(hours=23), timedelta(days=-1)):
        with pytest.raises(UsageError, match="a commit under way"):
            remove_orphan_files(table, older_than=interval, dry_run=True)
    assert remove_orphan_files(table, older_than=NOW, no_commits_under_way=True) == [f"file://{path}"]


def test_files_of_which_no_age_is_known_are_kept(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create()
    path = stray(table)

    def without_ages(plain: FileIO, folder: str) -> list[StoredFile]:
        return [StoredFile(file.location, file.length, None) for file in files_below(plain, folder)]

    monkeypatch.setattr(orphans, "files_below", without_ages)
    assert remove_orphan_files(table) == []
    assert path.exists()


def test_files_of_expired_snapshots(lake: Lake) -> None:
    table = lake.create(appends=1)
    expired = snapshots(table)[0]
    (old,) = data_files(table)
    gone = {expired.manifest_list, old.file_path, manifests(table)[0].manifest_path}
    table.overwrite(MORE_ROWS)
    grown_old(lake)
    assert remove_orphan_files(table) == []
    first = {snapshot.snapshot_id: snapshot for snapshot in snapshots(table)}
    current = table.metadata.current_snapshot_id
    table.maintenance.expire_snapshots().by_ids([name for name in first if name != current]).commit()
    grown_old(lake)

    removed = set(remove_orphan_files(table))

    assert removed >= gone
    assert ids(lake.load()) == [4, 5]
    assert verify(lake.load(), older_than=NOW).ok


def test_what_was_committed_since_the_table_was_loaded(lake: Lake) -> None:
    table = lake.create()
    lake.load().append(MORE_ROWS)
    grown_old(lake)
    assert remove_orphan_files(table) == []


@pytest.mark.parametrize("kind", ["manifest list", "manifest"])
@pytest.mark.parametrize("is_missing", [True, False])
def test_nothing_is_deleted_if_something_cannot_be_read(kind: str, is_missing: bool, lake: Lake) -> None:
    table = lake.create()
    path = stray(table)
    broken = path_of(
        snapshots(table)[0].manifest_list if kind == "manifest list" else manifests(table)[1].manifest_path
    )
    if is_missing:
        broken.unlink()
    else:
        content = broken.read_bytes()
        broken.write_bytes(content[:-1] + bytes((content[-1] ^ 1,)))
    with pytest.raises((IntegrityError, FileNotFoundError)):
        remove_orphan_files(table)
    assert path.exists()


def test_nothing_is_deleted_if_the_metadata_was_changed(lake: Lake) -> None:
    table = lake.create()
    path = stray(table)
    metadata = path_of(table.metadata_location)
    metadata.write_bytes(metadata.read_bytes().replace(b'"snapshots"', b'"snapshot5"'))
    with pytest.raises(IntegrityError):
        remove_orphan_files(table)
    assert path.exists()


@pytest.mark.parametrize("where", ["within", "beside"])
@pytest.mark.parametrize("compressed", ["", ".gz.metadata.json", ".metadata.json.gz"])
def test_another_table_in_the_same_folder(where: str, compressed: str, lake: Lake) -> None:
    table = lake.create()
    other = lake.create("db.other")
    path = stray(table)
    folder = path_of(table.location())
    shutil.copytree(path_of(other.location()), folder / "nested" if where == "within" else folder, dirs_exist_ok=True)
    if compressed:
        for metadata in folder.rglob("*.metadata.json"):
            if metadata.name in {file.name for file in path_of(other.location()).rglob("*.json")}:
                name = metadata.name.replace(".metadata.json", compressed)
                metadata.with_name(name).write_bytes(gzip.compress(metadata.read_bytes()))
                metadata.unlink()
    with pytest.raises(UsageError, match="another table"):
        remove_orphan_files(table)
    assert path.exists()


def test_metadata_that_says_of_no_table_that_it_is_its(lake: Lake) -> None:
    table = lake.create()
    stray(table, "metadata/00000-x.metadata.json", days_old=0)
    with pytest.raises(UsageError, match="another table"):
        remove_orphan_files(table)


def test_metadata_of_a_writer_that_was_killed_before_it_wrote_any(lake: Lake) -> None:
    table = lake.create()
    path = stray(table, "metadata/00009-00000000-0000-8000-8000-000000000000.metadata.json")
    path.write_bytes(b"")
    os.utime(path, (0, 0))
    assert remove_orphan_files(table) == [f"file://{path}"]


def test_old_metadata_of_the_table_itself(lake: Lake) -> None:
    """It left the log."""
    table = lake.create(properties={"write.metadata.previous-versions-max": "1"}, appends=3)
    old = path_of(table.metadata.metadata_log[0].metadata_file)
    table.append(MORE_ROWS)
    assert old not in {path_of(entry.metadata_file) for entry in table.metadata.metadata_log}
    grown_old(lake)
    assert f"file://{old}" in remove_orphan_files(table)
    assert not old.exists()


def test_files_of_other_programs_are_kept(lake: Lake) -> None:
    table = lake.create()
    for name in ("data/_temporary/0/part.parquet", "data/.part.crc", "metadata/version-hint.text"):
        stray(table, name)
    removed = stray(table, "data/_year=2026/stray.parquet")
    assert remove_orphan_files(table) == [f"file://{removed}"]


def test_checksums_of_hadoop(lake: Lake) -> None:
    table = lake.create(appends=1)
    data = path_of(data_files(table)[0].file_path)
    stray(table, f"data/.{data.name}.crc")
    alone = stray(table, "data/.gone.parquet.crc")
    assert [finding.path for finding in verify(table).findings] == [f"file://{alone}"]


def test_a_location_within_the_table(lake: Lake) -> None:
    elsewhere = f"file://{lake.folder}/elsewhere/data"
    table = lake.create(properties={"write.data.path": elsewhere})
    here, there = stray(table, "old/stray.parquet"), lake.folder / "elsewhere" / "data" / "stray.parquet"
    there.write_bytes(b"PAR1")
    os.utime(there, (0, 0))
    assert folders(table.metadata) == [table.location(), elsewhere]
    assert remove_orphan_files(table, dry_run=True) == [f"file://{here}"]
    assert remove_orphan_files(table, location=elsewhere) == [f"file://{there}"]
    assert remove_orphan_files(table, location=f"{table.location()}/metadata") == []
    for location in (f"file://{lake.folder}", f"{table.location()}2", f"{table.location()}/../other", "file:///"):
        with pytest.raises(UsageError, match="is not a folder of"):
            remove_orphan_files(table, location=location)


def test_a_catalog_that_does_not_say_where_the_metadata_is(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create()
    grown_old(lake)
    monkeypatch.setattr(type(table), "refresh", lambda self: setattr(self, "metadata_location", None))
    with pytest.raises(UsageError, match="does not say where the metadata"):
        remove_orphan_files(table)
    report = verify(table, older_than=NOW)
    assert report.ok
    assert report.counts["metadata"].files == 2
    assert "does not say where the metadata" in str(report)


def test_a_table_that_is_not_encrypted(lake: Lake) -> None:
    table = lake.create(key_id=None)
    path = stray(table)
    grown_old(lake)
    assert remove_orphan_files(table) == [f"file://{path}"]
    assert ids(table) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("file:/a/b", "file:///a/b"),
        ("/a/b", "file:///a//b"),
        ("s3a://bucket/a b=1/c#d?e", "s3://bucket/a b=1/c#d?e"),
        ("abfss://c@a.dfs.core.windows.net/x", "abfs://c@a.dfs.core.windows.net/x"),
    ],
)
def test_locations_that_engines_write_differently(one: str, other: str) -> None:
    assert place(one) == place(other)
    assert place(one) != place(other + "x")
