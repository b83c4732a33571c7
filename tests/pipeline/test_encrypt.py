"""Tables in plaintext, encrypted: beside themselves, or in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog as load_plain_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from pyiceberg_encryption.errors import ConfigurationError, IntegrityError, UsageError
from pyiceberg_encryption.pipeline import encrypt as module
from pyiceberg_encryption.pipeline import journal
from pyiceberg_encryption.pipeline.commit import commit
from pyiceberg_encryption.pipeline.encrypt import encrypt_in_place, encrypt_into
from pyiceberg_encryption.pipeline.verify import verify
from tests.table_support import MORE_ROWS, OTHER_ROWS, ROWS, Lake

if TYPE_CHECKING:
    from pyiceberg.table import Table

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", StringType()))
SPEC = PartitionSpec(
    PartitionField(1, 1000, BucketTransform(2), "id_bucket"), PartitionField(2, 1001, IdentityTransform(), "s")
)
MARKS = (b"PAR1", b"Obj\x01")


def create(lake: Lake, version: str = "2", name: str = "db.plain", spec: PartitionSpec = SPEC) -> Table:
    """By PyIceberg alone, with a row that was deleted, one that was changed, and a column that was renamed."""
    catalog = load_plain_catalog("lake", type="sql", **lake.properties())
    catalog.create_namespace_if_not_exists("db")
    properties = {"format-version": version, "read.split.target-size": "1", "owner": "Ada"}
    table = catalog.create_table(name, SCHEMA, partition_spec=spec, properties=properties)
    for rows in (ROWS, MORE_ROWS, OTHER_ROWS):
        table.append(rows)
    table.delete("id = 2")
    with table.update_schema() as update:
        update.rename_column("s", "text")
    cast("Any", catalog).close()
    return table


def rows_of(table: Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.scan().to_arrow().sort_by("id").to_pylist()
    return rows


def plaintext(lake: Lake) -> list[str]:
    found = [path for path in lake.files() if path.suffix != ".json" and path.read_bytes()[:4] in MARKS]
    return [path.name for path in found]


@pytest.mark.parametrize("version", ["1", "2"])
def test_in_place(version: str, lake: Lake) -> None:
    plain = create(lake, version)
    expected, uuid = rows_of(plain), plain.metadata.table_uuid
    done = encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    table = lake.load("db.plain")
    assert rows_of(table) == expected
    assert table.is_encrypted
    assert table.metadata.table_uuid == uuid
    assert table.properties["owner"] == "Ada"
    assert table.spec() == plain.spec()
    assert done.rows == len(expected)
    assert done.report.ok
    assert plaintext(lake) == []
    assert done.plaintext_files_deleted > 0
    assert len(table.snapshots()) == 1
    assert not [path for path in lake.files() if "encrypt-" in path.name and path.suffix == ".json"]
    table.append(pa.table({"id": [9], "text": ["i"]}))
    assert len(rows_of(lake.load("db.plain"))) == len(expected) + 1
    assert verify(lake.load("db.plain")).ok


def test_in_place_of_format_v3_keeps_lineage(lake: Lake) -> None:
    table = lake.create(key_id=None, appends=3, properties={"format-version": "3"})
    table.delete("id = 2")
    lineage = ("*", "_row_id", "_last_updated_sequence_number")
    expected = table.scan(selected_fields=lineage).to_arrow().sort_by("id").to_pylist()
    encrypt_in_place(lake.catalog(), "db.t", key="keyA", data_key_length=32)
    encrypted = lake.load()
    assert encrypted.scan(selected_fields=lineage).to_arrow().sort_by("id").to_pylist() == expected
    assert encrypted.properties["encryption.data-key-length"] == "32"
    assert plaintext(lake) == []


def test_in_place_of_an_empty_table(lake: Lake) -> None:
    lake.create(key_id=None, appends=0)
    encrypt_in_place(lake.catalog(), "db.t", key="keyA")
    table = lake.load()
    table.append(ROWS)
    assert table.is_encrypted and plaintext(lake) == []


class PoweredOffError(Exception):
    pass


STEPS = ("journal.write", "_commit_encryption", "verify", "_delete_plaintext", "_delete", "_clean_up")


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_in_place_broken_off_anywhere_goes_on(
    step: str, at: int, when: str, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = rows_of(create(lake))
    owner, name = (journal, step.removeprefix("journal.")) if step.startswith("journal.") else (module, step)
    original, calls = getattr(owner, name), list[int]()

    def failing(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == at and when == "before":
            raise PoweredOffError
        result = original(*arguments, **named)
        if len(calls) == at:
            raise PoweredOffError
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing)
        try:
            encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
        except PoweredOffError:
            assert rows_of(lake.load("db.plain")) == expected
        else:
            assert len(calls) < at
            return
    encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    table = lake.load("db.plain")
    assert rows_of(table) == expected
    assert plaintext(lake) == []
    listed = {task.file.file_path for task in table.scan().plan_files()}
    assert {f"file://{path}" for path in lake.files(".parquet")} == listed
    assert not [path for path in lake.files(".json") if path.name.startswith("encrypt-")]


def test_what_is_in_the_journal_is_not_done_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    create(lake)
    original, calls = journal.write, list[int]()

    def failing(*arguments: Any) -> None:
        original(*arguments)
        calls.append(1)
        if len(calls) == 2:
            raise PoweredOffError

    with monkeypatch.context() as patch:
        patch.setattr(journal, "write", failing)
        with pytest.raises(PoweredOffError):
            encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    seen: list[tuple[int, int]] = []
    encrypt_in_place(lake.catalog(), "db.plain", key="keyA", progress=lambda done, of: seen.append((done, of)))
    assert seen[0][0] == 3 and seen[-1][0] == seen[-1][1]


def test_a_changed_journal_is_not_believed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows_of(create(lake))
    with monkeypatch.context() as patch:
        patch.setattr(module, "_commit_encryption", lambda *_: (_ for _ in ()).throw(PoweredOffError))
        with pytest.raises(PoweredOffError):
            encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    notes = [path for path in lake.files(".json") if path.name.startswith("encrypt-")]
    assert len(notes) > 3
    contents = [note.read_bytes() for note in notes]
    notes[0].write_bytes(contents[0].replace(b"A", b"B"))
    notes[1].write_bytes(b"[]")
    notes[2].write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    assert rows_of(lake.load("db.plain")) == expected


def test_appends_meanwhile_are_encrypted_too(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    create(lake)
    original, calls = module._commit_encryption, list[int]()

    def late(*arguments: Any) -> None:
        if not calls:
            lake.load("db.plain").append(pa.table({"id": [9], "text": ["i"]}))
        calls.append(1)
        original(*arguments)

    monkeypatch.setattr(module, "_commit_encryption", late)
    encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    assert len(calls) == 2
    assert [row["id"] for row in rows_of(lake.load("db.plain"))] == [1, 3, 4, 5, 6, 7, 9]
    assert plaintext(lake) == []


def test_nothing_is_deleted_before_the_encrypted_table_is_verified(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    create(lake)
    before = plaintext(lake)
    original = module._commit_encryption

    def damaging(*arguments: Any) -> None:
        original(*arguments)
        written = next(path for path in lake.files(".parquet") if path.read_bytes()[:4] == b"PARE")
        written.write_bytes(written.read_bytes()[:-50] + bytes(50))

    with monkeypatch.context() as patch:
        patch.setattr(module, "_commit_encryption", damaging)
        with pytest.raises(IntegrityError, match="nothing was deleted"):
            encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    assert set(before) <= set(plaintext(lake))


def test_refused_before_anything_is_written(lake: Lake) -> None:
    table = create(lake)
    table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "keep").commit()
    with pytest.raises(UsageError, match=r"other branches or tags \(keep\)"):
        encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    with pytest.raises(Exception, match="keyX"):
        encrypt_into(table, lake.catalog(), "db.copy", properties={"encryption.key-id": "keyX"})
    with pytest.raises(ConfigurationError, match="Which master key"):
        encrypt_into(table, lake.catalog(), "db.copy2", properties={})
    encrypted = lake.create()
    with pytest.raises(UsageError, match="encrypted already"):
        encrypt_into(encrypted, lake.catalog(), "db.copy2", properties={"encryption.key-id": "keyA"})
    with pytest.raises(ConfigurationError, match="by 'keyA'"):
        encrypt_in_place(lake.catalog(), "db.t", key="keyB")


@pytest.mark.parametrize("version", ["1", "2"])
def test_beside_the_source(version: str, lake: Lake) -> None:
    source = create(lake, version)
    files = lake.files()
    done = encrypt_into(source, lake.catalog(), "db.copy", properties={"encryption.key-id": "keyA"})
    copy = lake.load("db.copy")
    assert rows_of(copy) == rows_of(source)
    assert copy.is_encrypted and copy.properties["owner"] == "Ada"
    assert [field.name for field in copy.spec().fields] == [field.name for field in source.spec().fields]
    assert (done.rows, done.report.ok) == (len(rows_of(source)), True)
    assert set(files) <= set(lake.files())
    again = encrypt_into(source, lake.catalog(), "db.copy", properties={"encryption.key-id": "keyA"})
    assert rows_of(lake.load("db.copy")) == rows_of(source)
    assert (again.files_read, again.files_written, again.rows, again.report.ok) == (0, 0, 0, True)
    assert verify(lake.load("db.copy")).ok


def test_beside_the_source_broken_off(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    source = create(lake)
    original = commit

    def lost(*arguments: Any, **named: Any) -> bool:
        original(*arguments, **named)
        raise CommitFailedException("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(module, "commit", lost)
        with pytest.raises(CommitFailedException):
            encrypt_into(source, lake.catalog(), "db.copy", properties={"encryption.key-id": "keyA"})
    encrypt_into(source, lake.catalog(), "db.copy", properties={"encryption.key-id": "keyA"})
    assert rows_of(lake.load("db.copy")) == rows_of(source)


def test_a_table_that_exists_is_not_taken_for_the_copy(lake: Lake) -> None:
    source = create(lake)
    lake.create("db.copy")
    with pytest.raises(UsageError, match="was not made to encrypt"):
        encrypt_into(source, lake.catalog(), "db.copy", properties={"encryption.key-id": "keyA"})


def test_a_copy_does_not_pretend_to_have_what_was_added_since(lake: Lake) -> None:
    source = create(lake)
    encrypt_into(source, lake.catalog(), "db.copy", properties={"encryption.key-id": "keyA"})
    lake.load("db.plain").append(pa.table({"id": [9], "text": ["i"]}))
    source = lake.load("db.plain")
    with pytest.raises(UsageError, match="has others by now"):
        encrypt_into(source, lake.catalog(), "db.copy", properties={"encryption.key-id": "keyA"})
    assert len(rows_of(lake.load("db.copy"))) == len(rows_of(source)) - 1
