"""Sound tables verify, and every kind of damage to every kind of file is found, and named by its path."""

from __future__ import annotations

import contextlib
import json
import pickle
import shutil
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.manifest import DATA_FILE_TYPE
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.transforms import IdentityTransform

from pyiceberg_encryption.errors import ConfigurationError, KmsAccessDeniedError, KmsUnavailableError
from pyiceberg_encryption.pipeline import sealed
from pyiceberg_encryption.pipeline import verify as verify_module
from pyiceberg_encryption.pipeline.report import Finding, Report
from pyiceberg_encryption.pipeline.verify import verify
from pyiceberg_encryption.table.manifests import _MANIFEST_KEY_METADATA, KEY_METADATA
from tests.support import JAVA_MASTER_KEYS, MEMORY_PROPERTIES
from tests.table_support import (
    MORE_ROWS,
    NAME,
    OTHER_ROWS,
    ROWS,
    Lake,
    append_as_is,
    change_in_place,
    data_files,
    manifests,
    metadata_of,
    path_of,
    plain_file,
    snapshots,
    swap,
)
from tests.test_golden_tables_in_pyiceberg import NAMES as GOLDEN_NAMES
from tests.test_golden_tables_in_pyiceberg import TABLES as GOLDEN_TABLES
from tests.test_golden_tables_in_pyiceberg import _load as load_golden
from tests.threats.test_table_kms import FAILING, FailingClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyiceberg.io import InputFile

    from pyiceberg_encryption.table.file_io import EncryptedFileIO, FileKey
    from pyiceberg_encryption.table.table import Table

NOW = timedelta(0)
STORAGE = {"py-io-impl": f"{__name__}.FailingFileIO"}
_FIELDS = [field.name for field in DATA_FILE_TYPE[3].fields]
KINDS = ("manifest list", "manifest", "data")


class FailingFileIO(PyArrowFileIO):
    """Fails for some files, when they are opened or when they are read."""

    on_open: ClassVar[dict[str, Exception]] = {}
    on_read: ClassVar[dict[str, Exception]] = {}

    def new_input(self, location: str) -> PyArrowFile:
        file = super().new_input(location)
        if location in self.on_open or location in self.on_read:
            return cast("PyArrowFile", _FailingFile(file, self.on_open.get(location), self.on_read.get(location)))
        return file


class _FailingFile:
    def __init__(self, file: InputFile, on_open: Exception | None, on_read: Exception | None) -> None:
        self._file = file
        self._on_open = on_open
        self._on_read = on_read
        self.location = file.location

    def open(self, seekable: bool = True) -> Any:
        if self._on_open:
            raise self._on_open
        return _FailingStream(self._file.open(), cast("Exception", self._on_read))


class _FailingStream:
    def __init__(self, stream: Any, error: Exception) -> None:
        self._stream = stream
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> _FailingStream:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.close()

    def read(self, *size: int) -> NoReturn:
        raise self._error

    def readinto(self, buffer: object) -> NoReturn:
        raise self._error


@pytest.fixture
def failing() -> Iterator[type[FailingFileIO]]:
    yield FailingFileIO
    FailingFileIO.on_open.clear()
    FailingFileIO.on_read.clear()


def paths(table: Table) -> dict[str, str]:
    """A file of each kind, that the oldest snapshot is the first to have."""
    return {
        "metadata": table.metadata_location,
        "old metadata": table.metadata.metadata_log[-1].metadata_file,
        "manifest list": snapshots(table)[0].manifest_list,
        "manifest": manifests(table)[-1].manifest_path,
        "data": data_files(table)[-1].file_path,
    }


def problems(report: Report) -> set[tuple[str, str]]:
    return {(finding.problem, finding.path) for finding in report.findings}


def files(report: Report) -> dict[str, int]:
    return {kind: count.files for kind, count in report.counts.items() if count.files}


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_sound_table(lake: Lake) -> None:
    table = lake.create(appends=3)
    seen: list[tuple[int, int]] = []

    report = verify(table, progress=lambda done, known: seen.append((done, known)), older_than=NOW)

    assert report.ok
    assert report.exit_code == 0
    assert report.orphans_not_sought is None
    assert files(report) == {"metadata": 4, "manifest list": 3, "manifest": 3, "data": 3}
    assert sum(count.bytes for count in report.counts.values()) == sum(path.stat().st_size for path in lake.files())
    assert report.unproven_metadata == 0
    assert [(kek.master_key_id, kek.files) for kek in report.keks] == [("keyA", 9)]
    assert seen[-1] == (13, 13)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert "all is well" in str(report)
    assert json.loads(report.to_json())["counts"]["data"]["files"] == 3


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_a_table_that_java_wrote(name: str) -> None:
    with contextlib.ExitStack() as catalogs:
        table, expected = load_golden(name, GOLDEN_TABLES, catalogs)
        report = verify(cast("Table", table))
    kept = Counter(path.suffix for path in (GOLDEN_TABLES / name).rglob("*.*") if path.name != "expected.json")
    assert report.ok, report
    assert report.counts["metadata"].files == report.unproven_metadata == kept[".json"]
    assert {kek.master_key_id for kek in report.keks} <= {expected["metastore-parameters"]["encryption.key-id"]}


@pytest.mark.parametrize("name", ["avro", "deletion_vectors", "copied_on_write"])
def test_damage_to_a_table_that_java_wrote(name: str, tmp_path: Path) -> None:
    """Bytes of each file are flipped, one after the other, from the first to the last."""
    shutil.copytree(GOLDEN_TABLES / name, tmp_path / name)
    with contextlib.ExitStack() as catalogs:
        table = cast("Table", load_golden(name, tmp_path, catalogs)[0])
        sound = verify(table)
        for path in sorted((tmp_path / name).rglob("*.*")):
            if path.suffix == ".json":
                continue
            content = path.read_bytes()
            for at in (0, 5, len(content) // 3, len(content) * 2 // 3, len(content) - 1):
                flip(path, at)
                report = verify(table)
                assert {finding.problem for finding in report.findings} == {"damaged"}, (path, at)
                assert {finding.path.rpartition("/")[2] for finding in report.findings} == {path.name}
                path.write_bytes(content)
        assert verify(table) == sound


@pytest.mark.parametrize("file_format", ["parquet", "avro"])
@pytest.mark.parametrize("kind", ["metadata", "old metadata", *KINDS])
def test_a_flipped_byte(kind: str, file_format: str, lake: Lake) -> None:
    table = lake.create(properties={"write.format.default": file_format})
    location = paths(table)[kind]
    content = path_of(location).read_bytes()
    for at in {0, 3, 4, 8, 20, len(content) // 2, len(content) - 9, len(content) - 1}:
        flip(path_of(location), at)
        report = verify(table)
        assert problems(report) == {("damaged", location)}
        assert report.exit_code == 1
        path_of(location).write_bytes(content)


def test_a_page_of_a_big_file(lake: Lake) -> None:
    """Its row groups are looked at by several tasks."""
    rows = pa.table({"id": range(60_000), "s": [f"{number:09}" for number in range(60_000)]})
    properties = {"write.parquet.row-group-limit": "10000", "read.split.target-size": "100000"}
    table = lake.create(appends=0, properties=properties)
    table.append(rows)
    (file,) = data_files(table)
    path = path_of(file.file_path)
    content = path.read_bytes()
    assert len(file.split_offsets or ()) == 6
    report = verify(table)
    assert report.ok
    assert files(report)["data"] == 1

    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for at in (*(file.split_offsets or ()), footer - 1, footer, len(content) // 2):
        flip(path, at)
        assert problems(verify(table)) == {("damaged", file.file_path)}, at
        path.write_bytes(content)


def test_files_of_old_snapshots_and_of_branches(lake: Lake) -> None:
    table = lake.create(appends=1)
    (old,) = data_files(table)
    table.overwrite(MORE_ROWS)
    table.manage_snapshots().create_branch(snapshots(table)[0].snapshot_id, "side").commit()
    table.append(OTHER_ROWS, branch="side")
    flip(path_of(old.file_path), 100)
    report = verify(table)
    assert problems(report) == {("damaged", old.file_path)}
    assert files(report)["data"] == 3


@pytest.mark.parametrize("kind", KINDS)
def test_two_files_swapped(kind: str, lake: Lake) -> None:
    table = lake.create()
    one, other = {
        "manifest list": [snapshot.manifest_list for snapshot in snapshots(table)],
        "manifest": [manifest.manifest_path for manifest in manifests(table)],
        "data": [file.file_path for file in data_files(table)],
    }[kind]
    swap(one, other)
    assert problems(verify(table)) == {("damaged", one), ("damaged", other)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"x", lambda content: b""])
def test_a_file_cut_or_extended(kind: str, change: Callable[[bytes], bytes], lake: Lake) -> None:
    table = lake.create()
    location = paths(table)[kind]
    path_of(location).write_bytes(change(path_of(location).read_bytes()))
    assert problems(verify(table)) == {("damaged", location)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_a_file_replaced_by_plaintext(kind: str, file_format: str, lake: Lake) -> None:
    properties = {"write.format.default": file_format}
    table = lake.create(properties=properties)
    plain = lake.create("db.plain", key_id=None, properties={"format-version": "3", **properties})
    location = paths(table)[kind]
    path_of(location).write_bytes(path_of(paths(plain)[kind]).read_bytes())
    report = verify(table)
    assert ("plaintext" if path_of(location).stat().st_size else "damaged", location) in problems(report)
    assert {finding.path for finding in report.findings} == {location}


@pytest.mark.parametrize("kind", ["metadata", "old metadata", *KINDS])
def test_a_missing_file(kind: str, lake: Lake) -> None:
    table = lake.create()
    location = paths(table)[kind]
    path_of(location).unlink()
    assert problems(verify(table)) == {("missing", location)}


@pytest.mark.parametrize("kind", ["metadata", "old metadata", *KINDS])
@pytest.mark.parametrize("error", [ConnectionError("reset"), PermissionError("denied"), RuntimeError("broken client")])
@pytest.mark.parametrize("moment", ["on_open", "on_read"])
def test_a_storage_that_fails_is_no_damage(
    kind: str, error: Exception, moment: str, lake: Lake, failing: type[FailingFileIO]
) -> None:
    lake.create()
    table = lake.load(**STORAGE)
    location = paths(table)[kind]
    getattr(failing, moment)[location] = error
    report = verify(table)
    assert problems(report) == {("unreadable", location)}
    assert str(error) in report.findings[0].reason
    assert report.exit_code == 1


def test_what_can_be_reached_past_a_damaged_manifest_list(lake: Lake) -> None:
    """The newest snapshot has the manifests of the others too."""
    table = lake.create(appends=3)
    lists = [snapshot.manifest_list for snapshot in snapshots(table)]
    broken = data_files(table)[0].file_path
    flip(path_of(broken), 60)
    flip(path_of(lists[0]), 60)
    report = verify(table)
    assert problems(report) == {("damaged", lists[0]), ("damaged", broken)}
    assert files(report)["data"] == 3

    flip(path_of(lists[2]), 60)
    report = verify(table, older_than=NOW)
    assert problems(report) == {("damaged", lists[0]), ("damaged", lists[2])}
    assert files(report)["data"] == 2  # those of the second snapshot
    assert "not all of the manifests" in str(report.orphans_not_sought)


def test_damaged_keys(lake: Lake) -> None:
    """As nothing proves the metadata, somebody changed the key of a manifest list. Others are still used."""
    table = lake.create()
    name = snapshots(table)[0].key_id  # type: ignore[attr-defined]  # a field that models.py adds

    def change(metadata: dict[str, Any]) -> None:
        (entry,) = (entry for entry in metadata["encryption-keys"] if entry["key-id"] == name)
        entry["encrypted-key-metadata"] = metadata["encryption-keys"][0]["encrypted-key-metadata"]

    lake.commit_as_another_engine(change, table)
    with pytest.warns(UserWarning):
        changed = lake.load()
    report = verify(changed)
    assert problems(report) == {("damaged", snapshots(table)[0].manifest_list)}
    assert report.unproven_metadata == 1
    assert files(report)["data"] == 2


def test_a_snapshot_without_a_key(lake: Lake) -> None:
    table = lake.create()
    plain = lake.create("db.plain", key_id=None, properties={"format-version": "3"})
    location = snapshots(table)[0].manifest_list
    path_of(location).write_bytes(path_of(snapshots(plain)[0].manifest_list).read_bytes())
    lake.commit_as_another_engine(lambda metadata: metadata["snapshots"][0].pop("key-id"), table)
    with pytest.warns(UserWarning):
        changed = lake.load()
    assert problems(verify(changed)) == {("plaintext", location)}


def test_a_manifest_without_a_key(lake: Lake) -> None:
    table = lake.create(appends=1)
    append_as_is(table, on_list=lambda listed: listed[0].__setitem__(_MANIFEST_KEY_METADATA, None))
    assert listed_without_key(table)
    assert problems(verify(table)) == {("plaintext", listed_without_key(table)[0])}


def listed_without_key(table: Table) -> list[str]:
    return [manifest.manifest_path for manifest in manifests(table) if manifest.key_metadata is None]


def test_a_master_key_that_is_another_one(lake: Lake) -> None:
    lake.create()
    table = lake.load(**{"kms.memory.key.keyA": MEMORY_PROPERTIES["kms.memory.key.keyB"]})
    assert problems(verify(table)) == {("damaged", snapshot.manifest_list) for snapshot in snapshots(table)}


def test_a_key_management_service_that_denies(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FailingClient, "error", KmsAccessDeniedError("no"), raising=False)
    lake.create()
    table = lake.load(**FAILING)
    assert problems(verify(table)) == {("unreadable", snapshot.manifest_list) for snapshot in snapshots(table)}


def test_a_key_management_service_that_is_down_or_not_configured(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FailingClient, "error", KmsUnavailableError("down"), raising=False)
    lake.create()
    with pytest.raises(KmsUnavailableError):
        verify(lake.load(**FAILING))
    with pytest.raises(ConfigurationError):
        verify(lake.load(**{"encryption.kms-type": ""}))


@pytest.mark.parametrize("setting", ["refuse", "admit"])
def test_a_data_file_without_a_key(setting: str, lake: Lake) -> None:
    lake.create()
    location = plain_file(lake)
    table = lake.load(**{"encryption.plaintext-data-files": "admit"})
    table.add_files([location])
    seen: list[tuple[int, int]] = []
    table = lake.load(**{"encryption.plaintext-data-files": setting})
    report = verify(table, progress=lambda done, known: seen.append((done, known)))
    assert problems(report) == {("plaintext", location)}
    assert files(report)["data"] == 3
    assert seen[-1][0] == seen[-1][1]


def test_plaintext_files_of_a_table_that_is_being_converted_are_read(lake: Lake) -> None:
    lake.create()
    location = plain_file(lake)
    table = lake.load(**{"encryption.plaintext-data-files": "admit"})
    table.add_files([location])
    path_of(location).unlink()
    assert problems(verify(table)) == {("plaintext", location), ("missing", location)}


def test_one_file_listed_with_two_keys(lake: Lake) -> None:
    """Only one of them can be right, and whichever is looked at first must not hide the other."""
    table = lake.create()
    one, other = data_files(table)
    one[KEY_METADATA] = other.key_metadata
    append_as_is(table, one)
    assert ("damaged", one.file_path) in problems(verify(table))


def test_a_row_count_that_is_wrong(lake: Lake) -> None:
    table = lake.create(appends=1)
    (file,) = data_files(table)
    content = path_of(file.file_path).read_bytes()
    copy = file.file_path.replace(".parquet", "-copy.parquet")
    path_of(copy).write_bytes(content)
    file[_FIELDS.index("file_path")] = copy
    file[_FIELDS.index("record_count")] = 4
    append_as_is(table, file)
    report = verify(table)
    assert problems(report) == {("damaged", copy)}
    assert "3 rows, not 4" in report.findings[0].reason


def test_statistics_are_plaintext(lake: Lake) -> None:
    table = lake.create(appends=1)
    location = f"{table.location()}/metadata/stats.puffin"
    path_of(location).write_bytes(b"PFA1 and so on PFA1")
    statistics = StatisticsFile(
        snapshot_id=snapshots(table)[0].snapshot_id,
        statistics_path=location,
        file_size_in_bytes=19,
        file_footer_size_in_bytes=4,
        blob_metadata=[],
    )
    with table.update_statistics() as update:
        update.set_statistics(statistics)
    report = verify(table, older_than=NOW)
    assert problems(report) == {("plaintext", location)}
    assert report.counts["statistics"].bytes == 19
    path_of(location).write_bytes(b"AGS1 and so on")
    assert problems(verify(table)) == {("unreadable", location)}
    path_of(location).unlink()
    assert problems(verify(table)) == {("missing", location)}


def test_a_table_that_is_not_encrypted(lake: Lake) -> None:
    report = verify(lake.create(key_id=None))
    assert [finding.problem for finding in report.findings] == ["plaintext"]
    assert report.exit_code == 1


def test_orphans(lake: Lake) -> None:
    table = lake.create()
    stray = path_of(table.location()) / "data" / "part=1" / "stray.parquet"
    stray.parent.mkdir()
    stray.write_bytes(b"PAR1")
    assert verify(table).ok  # it could be of a commit under way
    assert problems(verify(table, older_than=NOW)) == {("orphaned", f"file://{stray}")}
    report = verify(table, orphans=False, older_than=NOW)
    assert report.ok
    assert "not asked for" in str(report)


def test_orphans_in_folders_that_properties_name(lake: Lake) -> None:
    elsewhere = f"file://{lake.folder}/elsewhere"
    table = lake.create(properties={"write.data.path": elsewhere, "write.metadata.path": f"{elsewhere}/metadata"})
    stray = lake.folder / "elsewhere" / "stray.parquet"
    stray.write_bytes(b"PAR1")
    assert problems(verify(table, older_than=NOW)) == {("orphaned", f"file://{stray}")}


def test_a_storage_that_cannot_list_its_files(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create()
    io = cast("EncryptedFileIO", table.io)
    monkeypatch.setattr(verify_module, "files_below", lambda plain, folder: sealed_away(folder))
    report = verify(table, older_than=NOW)
    assert problems(report) == {("unreadable", table.location())}
    monkeypatch.undo()

    io.plain = _WithoutListing(io.plain)  # type: ignore[assignment]
    report = verify(table, older_than=NOW)
    assert report.ok
    assert "cannot list files" in str(report.orphans_not_sought)


def sealed_away(folder: str) -> NoReturn:
    raise PermissionError(f"{folder} cannot be listed")


class _WithoutListing:
    def __init__(self, plain: Any) -> None:
        self.properties = plain.properties
        self.new_input = plain.new_input


def test_a_column_that_was_partitioned_by_and_is_gone(lake: Lake) -> None:
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="s"))
    schema = lake.create("db.other", appends=0).schema()
    table = cast(
        "Table",
        lake.catalog().create_table(NAME, schema, partition_spec=spec, properties={"encryption.key-id": "keyA"}),
    )
    table.append(ROWS)
    with table.update_spec() as update:
        update.remove_field("s")
    with table.update_schema() as schema_update:
        schema_update.delete_column("s")
    report = verify(table)
    assert report.ok, report
    assert files(report)["data"] == 3


class RecordingEngine:
    """Sends work, tasks and results as bytes, as Spark does, and keeps them."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def run(self, work: Any, tasks: Iterable[Any]) -> Iterator[Any]:
        for task in tasks:
            self.sent.append(pickle.dumps((work, task)))
            there, received = pickle.loads(self.sent[-1])
            self.sent.append(pickle.dumps(there(received)))
            yield pickle.loads(self.sent[-1])


def test_what_travels_holds_no_key_and_no_row(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in lake.kms.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.replace('.', '__').replace('-', '_').upper()}", value)
    table = lake.create(appends=3)
    flip(path_of(data_files(table)[1].file_path), 50)
    here = verify(table)
    engine = RecordingEngine()
    monkeypatch.setattr(verify_module, "engine_for", lambda spark: engine)
    monkeypatch.setattr(sealed, "_sent", {})  # as in another process

    assert verify(table) == here

    sent = b"".join(engine.sent)
    listed = [file.key_metadata for file in data_files(table)] + [file.key_metadata for file in manifests(table)]
    for file_key in listed:
        key = cast("FileKey", file_key).open()
        assert bytes(key.encryption_key.expose()) not in sent
        assert key.aad_prefix is not None
        assert key.aad_prefix not in sent
    assert not any(key in sent for key in JAVA_MASTER_KEYS.values())
    assert b".parquet" not in sent


def test_findings_are_the_same_however_often_a_file_is_listed(lake: Lake) -> None:
    table = lake.create(appends=3)
    oldest = data_files(table)[-1].file_path
    flip(path_of(oldest), 50)
    report = verify(table)
    assert [type(finding) for finding in report.findings] == [Finding]
    assert metadata_of(table)["location"] in report.findings[0].path
    assert report.findings[0].path in str(report)
    assert "1 damaged" in str(report)


def test_metadata_changed_after_it_was_loaded(lake: Lake) -> None:
    table = lake.create()
    change_in_place(table, lambda metadata: metadata["properties"].clear())
    assert problems(verify(table)) == {("damaged", table.metadata_location)}
