"""A table in plaintext is encrypted while whoever can write to the storage, or to the table, does what they can."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

from pyiceberg_encryption.errors import EncryptionError, IntegrityError, UsageError
from pyiceberg_encryption.pipeline import encrypt as module
from pyiceberg_encryption.pipeline import sealed
from pyiceberg_encryption.pipeline.encrypt import encrypt_in_place, encrypt_into
from pyiceberg_encryption.pipeline.journal import from_json, to_json
from pyiceberg_encryption.pipeline.rewrite import Rewritten
from pyiceberg_encryption.pipeline.sealed import opened_here
from tests.pipeline.test_encrypt import PoweredOffError, create, plaintext, rows_of
from tests.table_support import ROWS, Lake, change_in_place

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table

UNPARTITIONED = PartitionSpec()


def notes_of(lake: Lake) -> list[Path]:
    return [path for path in lake.files(".json") if path.name.startswith("encrypt-")]


def broken_off(lake: Lake, monkeypatch: pytest.MonkeyPatch, name: str = "db.plain") -> list[Path]:
    """All tasks are done, and nothing is committed."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "_commit_encryption", lambda *_: (_ for _ in ()).throw(PoweredOffError))
        with pytest.raises(PoweredOffError):
            encrypt_in_place(lake.catalog(), name, key="keyA")
    return notes_of(lake)


def change_note(note: Path, **changes: Any) -> None:
    note.write_text(json.dumps({**json.loads(note.read_text()), **changes}))


def test_a_note_without_files_loses_no_rows(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows_of(create(lake))
    for note in broken_off(lake, monkeypatch):
        change_note(note, rows=0, files=[], done=None)
    encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    assert rows_of(lake.load("db.plain")) == expected


def test_a_note_in_the_place_of_another_is_not_believed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows_of(create(lake))
    notes = broken_off(lake, monkeypatch)
    notes[0].write_bytes(notes[1].read_bytes())
    encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    assert rows_of(lake.load("db.plain")) == expected


def test_a_note_of_another_table_is_not_believed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows_of(create(lake, spec=UNPARTITIONED))
    create(lake, name="db.secret", spec=UNPARTITIONED)
    own = broken_off(lake, monkeypatch)
    others = [note for note in broken_off(lake, monkeypatch, "db.secret") if note not in own]
    own[0].write_bytes(others[0].read_bytes())
    encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    table = lake.load("db.plain")
    assert rows_of(table) == expected
    assert all("/secret/" not in task.file.file_path for task in table.scan().plan_files())


RAN: list[str] = []


def run() -> None:
    RAN.append("code of the storage")


class Code:
    def __reduce__(self) -> Any:
        return run, ()


def test_a_note_runs_no_code_even_of_who_knows_a_key(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of any table under the master key knows KEKs. Of an RSA master key, who knows the public half does."""
    create(lake)
    notes = broken_off(lake, monkeypatch)
    original = sealed._values
    for note in notes:
        entry = json.loads(note.read_text())
        key = entry["key"]
        envelope = sealed.Envelope(
            "lake", (), key["master-key-id"], base64.b64decode(key["wrapped-kek"]), base64.b64decode(key["salt"])
        )
        here = opened_here(envelope, lake.create(f"db.{note.stem.replace('-', '_')}", appends=0))
        done = from_json(json.loads(here.open_note(note.name, base64.b64decode(entry["done"]))))
        with monkeypatch.context() as patch:
            patch.setattr(sealed, "_values", lambda record: (*original(record), Code()))
            forged = Rewritten(here.seal_entries(here.open_entries(done.files)), done.rows)
        content = here.seal_note(note.name, json.dumps(to_json(forged)).encode())
        change_note(note, done=base64.b64encode(content).decode())
    RAN.clear()
    encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    assert RAN == []


def test_metadata_that_only_claims_to_be_encrypted(lake: Lake) -> None:
    """Nothing proves the metadata of a table in plaintext. With this change it looks like one that only has to be
    tidied up."""
    table = create(lake)
    before = plaintext(lake)

    def claim(metadata: dict[str, Any]) -> None:
        metadata["format-version"] = 3
        metadata["next-row-id"] = 0
        metadata["properties"]["encryption.key-id"] = "keyA"

    change_in_place(cast("Any", table), claim)
    with pytest.warns(UserWarning), pytest.raises(IntegrityError):
        encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    assert plaintext(lake) == before


def test_metadata_that_only_claims_to_be_encrypted_and_hides_its_branch(lake: Lake) -> None:
    table = create(lake)
    before = plaintext(lake)

    def claim(metadata: dict[str, Any]) -> None:
        metadata["format-version"] = 3
        metadata["next-row-id"] = 0
        metadata["properties"]["encryption.key-id"] = "keyA"
        metadata["refs"] = {}
        metadata["current-snapshot-id"] = None

    change_in_place(cast("Any", table), claim)
    with pytest.warns(UserWarning), pytest.raises(IntegrityError):
        encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    assert plaintext(lake) == before


def list_as_its_own(table: Table, location: str) -> None:
    """A file that was never the table's is listed as one that it had and has no more."""
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=1,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={},
        upper_bounds={},
    )
    file.spec_id = table.spec().spec_id
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(file)
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as overwrite:
        overwrite.delete_data_file(file)


def test_files_elsewhere_are_not_deleted(lake: Lake) -> None:
    victim = lake.folder / "elsewhere" / "precious.parquet"
    victim.parent.mkdir()
    victim.write_bytes(b"precious")
    create(lake, spec=UNPARTITIONED)
    list_as_its_own(lake.load("db.plain"), f"file://{victim}")
    with pytest.raises(UsageError, match="elsewhere"):
        encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    assert victim.exists()


def test_files_elsewhere_that_are_listed_late_are_not_deleted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = lake.folder / "elsewhere" / "precious.parquet"
    victim.parent.mkdir()
    victim.write_bytes(b"precious")
    expected = rows_of(create(lake))
    original = module._commit_encryption

    def late(*arguments: Any) -> None:
        original(*arguments)
        old = lake.load("db.plain").metadata.snapshots[0].manifest_list
        forge_manifest_list(lake, old, f"file://{victim}")

    monkeypatch.setattr(module, "_commit_encryption", late)
    before = plaintext(lake)
    with pytest.raises(EncryptionError, match="elsewhere"):
        encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    assert victim.exists()
    assert plaintext(lake) == before
    assert rows_of(lake.load("db.plain")) == expected


def forge_manifest_list(lake: Lake, location: str, victim: str) -> None:
    """It becomes that of another table, which has `victim` among its manifests."""
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.manifest import ManifestFile, read_manifest_list, write_manifest_list

    io = PyArrowFileIO()
    listed = list(read_manifest_list(io.new_input(location)))
    forged: ManifestFile = listed[0]
    forged[0] = victim
    with write_manifest_list(2, io.new_output(location), 1, None, 1, avro_compression="null") as writer:
        writer.add_manifests([forged])


@pytest.mark.parametrize("spelling", ["file:{}", "file:///{}", "file://{}//../data"])
def test_new_files_under_another_name_are_not_deleted(
    spelling: str, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = rows_of(create(lake))
    original = module._commit_encryption

    def late(*arguments: Any) -> None:
        original(*arguments)
        table = lake.load("db.plain")
        new = next(path for path in lake.files(".parquet") if path.read_bytes()[:4] == b"PARE")
        name = spelling.format(new) if "/.." not in spelling else f"file://{new.parent}/./{new.name}"
        forge_manifest_list(lake, table.metadata.snapshots[0].manifest_list, name)

    monkeypatch.setattr(module, "_commit_encryption", late)
    with pytest.raises(Exception):  # noqa: B017
        encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    assert rows_of(lake.load("db.plain")) == expected


def test_a_branch_that_was_made_meanwhile_is_not_dropped(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    create(lake, spec=UNPARTITIONED)
    original = module._commit_encryption

    def late(*arguments: Any) -> None:
        table = lake.load("db.plain")
        table.manage_snapshots().create_branch(table.metadata.current_snapshot_id or 0, "side").commit()
        table.append(pa.table({"id": [9], "text": ["i"]}), branch="side")
        original(*arguments)

    before = len(plaintext(lake))
    with monkeypatch.context() as patch:
        patch.setattr(module, "_commit_encryption", late)
        with pytest.raises(UsageError, match="side"):
            encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    assert "side" in lake.load("db.plain").metadata.refs
    assert len(plaintext(lake)) > before
    lake.load("db.plain").manage_snapshots().remove_branch("side").commit()
    encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    assert plaintext(lake) == []


def test_two_jobs_at_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rows_of(create(lake))
    original, calls = module._commit_encryption, list[int]()

    def late(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
        original(*arguments)

    monkeypatch.setattr(module, "_commit_encryption", late)
    encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    table = lake.load("db.plain")
    assert len(calls) == 2 and len(table.snapshots()) == 1
    assert rows_of(table) == expected
    assert plaintext(lake) == []


def test_code_that_plaintext_metadata_names_does_not_get_into_proven_metadata(lake: Lake) -> None:
    table = create(lake)
    change_in_place(
        cast("Any", table),
        lambda metadata: metadata["properties"].update({"write.py-location-provider.impl": "some.module.Provider"}),
    )
    with pytest.raises(IntegrityError, match="names code"):
        encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    with pytest.raises(IntegrityError, match="names code"):
        encrypt_into(lake.load("db.plain"), lake.catalog(), "db.copy", properties={"encryption.key-id": "keyA"})


def test_two_copies_of_a_table_whose_properties_name_folders(lake: Lake) -> None:
    source = lake.create(
        key_id=None,
        properties={
            "write.data.path": f"file://{lake.folder}/warehouse/shared/data",
            "write.metadata.path": f"file://{lake.folder}/warehouse/shared/metadata",
        },
    )
    properties = {"encryption.key-id": "keyA"}
    encrypt_into(source, lake.catalog(), "db.one", properties=properties)
    encrypt_into(source, lake.catalog(), "db.two", properties=properties)
    for name in ("db.one", "db.two", "db.t"):
        assert rows_of(lake.load(name)) == rows_of(source)
    assert ROWS.num_rows < len(rows_of(source))


def test_columns_of_a_copy_are_those_of_the_source_by_name(lake: Lake) -> None:
    """The copy's columns have other ids, where the source lost some of its own."""
    kinds = {
        "gone": pa.int64(),
        "a": pa.int64(),
        "b": pa.int64(),
        "nested": pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))]),
        "pairs": pa.map_(pa.string(), pa.float64()),
    }
    values = {"gone": [1, 2], "a": [3, 4], "b": [5, 6], "nested": [{"x": 7, "y": ["z", None]}, None]}
    rows = pa.table({**values, "pairs": [[("k", 1.5)], None]}, schema=pa.schema(kinds))
    source = lake.catalog().create_table("db.plain", rows.schema, properties={"format-version": "2"})
    source.append(rows)
    with source.update_schema() as update:
        update.delete_column("gone")
        update.rename_column("nested.x", "z")
        update.add_column("new", LongType())
    expected = source.scan().to_arrow().to_pylist()
    encrypt_into(source, lake.catalog(), "db.copy", properties={"encryption.key-id": "keyA"})
    assert lake.load("db.copy").scan().to_arrow().to_pylist() == expected
    encrypt_in_place(lake.catalog(), "db.plain", key="keyA")
    assert lake.load("db.plain").scan().to_arrow().to_pylist() == expected


def test_a_copy_that_was_begun_before_columns_were_renamed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    source = create(lake)
    properties = {"encryption.key-id": "keyA"}
    with monkeypatch.context() as patch:
        patch.setattr(module, "commit", lambda *_, **__: (_ for _ in ()).throw(PoweredOffError))
        with pytest.raises(PoweredOffError):
            encrypt_into(source, lake.catalog(), "db.copy", properties=properties)
    with source.update_schema() as update:
        update.rename_column("text", "other")
    with pytest.raises(UsageError, match="columns of the source were changed"):
        encrypt_into(source, lake.catalog(), "db.copy", properties=properties)
