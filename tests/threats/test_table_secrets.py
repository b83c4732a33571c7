"""What logs, tracebacks and the storage say of an encrypted table. The numbers are those of docs/security.md."""

from __future__ import annotations

import base64
import copy
import io
import logging
import os
import pickle
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.io import OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO

from pyiceberg_encryption import Secret
from pyiceberg_encryption.errors import EncryptionError, SecretExposureError
from pyiceberg_encryption.table.file_io import EncryptedFileIO, FileKey
from pyiceberg_encryption.table.models import encryption_keys, key_id
from tests.support import JAVA_MASTER_KEYS
from tests.table_support import NAME, OTHER_ROWS, Lake, append_as_is, data_files, manifests, path_of, snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg_encryption.table.table import Table

LARGE_MANIFEST = 8000  # files, which take more than the MiB that is encrypted at once
TESTS = Path(__file__).parent.parent


@pytest.fixture
def table(lake: Lake) -> Table:
    return lake.create(properties={"write.avro.compression-codec": "null"})


def keys_of(table: Table) -> list[bytes]:
    """All keys there are: of the files, the KEK and the master keys."""
    assert isinstance(table.io, EncryptedFileIO)
    keyring = table.io.keys.keyring(table.metadata)
    found: list[Secret] = []
    for snapshot in snapshots(table):
        found.append(keyring.open_manifest_list_key(key_id(snapshot) or "").encryption_key)
        for manifest in snapshot.manifests(table.io):
            assert isinstance(manifest.key_metadata, FileKey)
            found.append(manifest.key_metadata.open().encryption_key)
            for entry in manifest.fetch_manifest_entry(table.io):
                assert isinstance(entry.data_file.key_metadata, FileKey)
                found.append(entry.data_file.key_metadata.open().encryption_key)
    keks = [key for key in encryption_keys(table.metadata) if key.encrypted_by_id == "keyA"]
    found += [keyring._unwrap(kek) for kek in keks]
    assert len(found) >= 4
    return [*(bytes(key.expose()) for key in found), *JAVA_MASTER_KEYS.values()]


def forms(key: bytes) -> Iterator[str]:
    """In which a key could be in a text, whatever is around it."""
    yield key.hex()
    yield repr(key)[2:-1]
    yield str(list(key))[1:-1]
    for start in range(3):
        whole = (len(key) - start) // 3 * 3
        yield base64.b64encode(key[start : start + whole]).decode()


def assert_no_key_in(data: str | bytes, keys: list[bytes]) -> None:
    if isinstance(data, bytes):
        assert not [key for key in keys if key in data]
        data = data.decode("latin-1")
    lower = data.lower()
    for key in keys:
        for form in forms(key):
            assert form.lower() not in lower


def holders(table: Table) -> list[Any]:
    scan = table.scan("id > 1")
    transaction = table.transaction()
    task = next(iter(scan.plan_files()))
    return [
        table,
        table.metadata,
        table.catalog,
        table.catalog.properties,
        table.io,
        table.io.properties,
        table.io.keys,  # type: ignore[attr-defined]
        vars(table.catalog),
        vars(table.io),
        scan,
        vars(scan),
        task,
        vars(task),
        transaction,
        transaction.update_snapshot().fast_append(),
        *table.metadata.snapshots,
        *manifests(table),
        *(entry for manifest in manifests(table) for entry in manifest.fetch_manifest_entry(table.io)),
        *data_files(table),
        *([file[position] for position in range(len(file))] for file in data_files(table)),
        *(file.key_metadata for file in data_files(table)),
        table.io.new_output("file:///tmp/unwritten"),
        table.io.input("file:///tmp/unread", data_files(table)[0].key_metadata),  # type: ignore[attr-defined]
    ]


def test_22_reprs_and_logs_of_tables(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    keys = keys_of(table)
    table.append(OTHER_ROWS)
    table.delete("id = 2")
    keys += keys_of(table)
    for holder in holders(table):
        for text in (repr(holder), str(holder), f"{[holder]}"):
            assert_no_key_in(text, keys)
        logging.error("Look: %s %r", holder, holder)
    assert_no_key_in(caplog.text, keys)
    assert "(encrypted)" in caplog.text


def test_22_inspections_of_tables(table: Table) -> None:
    keys = keys_of(table)
    inspect = table.inspect
    for found in (
        *(inspect.files(), inspect.data_files(), inspect.entries(), inspect.manifests(), inspect.all_manifests()),
        *(inspect.all_files(), inspect.all_data_files(), inspect.snapshots(), inspect.partitions()),
        *(inspect.history(), inspect.refs(), inspect.metadata_log_entries(), inspect.delete_files()),
    ):
        assert_no_key_in(str(found.to_pylist()), keys)
        assert_no_key_in(pickle.dumps(found.to_pydict()), keys)
    assert inspect.files()["key_metadata"].to_pylist() == [b"(encrypted)"] * 2


def test_22_pickles_and_copies_of_tables(table: Table) -> None:
    keys = keys_of(table)
    refused = 0
    for holder in holders(table):
        try:
            assert_no_key_in(pickle.dumps(holder), keys)
        except (EncryptionError, TypeError, AttributeError, pickle.PicklingError):
            refused += 1
    for holder in (table.io, data_files(table)[0], manifests(table)[0], data_files(table)[0].key_metadata):
        with pytest.raises(SecretExposureError):
            pickle.dumps(holder)
    assert_no_key_in(repr(copy.deepcopy(data_files(table)[0])), keys)
    assert refused


def reported(error: BaseException) -> str:
    """What an error tracker could send: all that is chained to the error, with the values of the variables in all
    functions but those of the tests."""
    chain = [error]
    while following := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(following)
    text = ""
    for link in chain:
        report = traceback.TracebackException.from_exception(link, capture_locals=True)
        frames = [frame for frame in report.stack if not Path(frame.filename).is_relative_to(TESTS)]
        text += "".join([*traceback.StackSummary.from_list(frames).format(), *report.format_exception_only()])
    return text


def tracebacks_of(*calls: Callable[[], Any]) -> str:
    text = ""
    for call in calls:
        try:
            call()
        except Exception as error:
            text += reported(error)
        else:
            pytest.fail("no error")
    return text


def test_22_tracebacks_of_reading_what_was_changed(table: Table) -> None:
    keys = keys_of(table)
    reads: list[Callable[[], Any]] = [lambda: table.scan().to_arrow(), lambda: table.delete("id in (2, 5)")]
    for location in (
        data_files(table)[0].file_path,
        manifests(table)[0].manifest_path,
        snapshots(table)[-1].manifest_list,
    ):
        path = path_of(location)
        whole = path.read_bytes()
        for damaged in (whole[:-1], whole[:40] + bytes(10) + whole[50:], b""):
            path.write_bytes(damaged)
            assert_no_key_in(tracebacks_of(*reads), keys)
        path.unlink()
        assert_no_key_in(tracebacks_of(*reads), keys)
        path.write_bytes(whole)


class BrokenStorage(PyArrowFileIO):
    """Fails for some files: when they are opened, or when they are written to, or when they are closed."""

    ending, moment = "", ""

    def new_output(self, location: str) -> Any:
        output = super().new_output(location)
        if not (location.endswith(self.ending) and self.ending):
            return output
        return BrokenOutput(output, self.moment)


class BrokenOutput(OutputFile):
    def __init__(self, output: OutputFile, moment: str) -> None:
        super().__init__(output.location)
        self._output, self._moment = output, moment

    def create(self, overwrite: bool = False) -> Any:
        if self._moment == "open":
            raise OSError("disk full")
        return BrokenStream(self._moment)

    def __len__(self) -> int:
        return len(self._output)

    def exists(self) -> bool:
        return self._output.exists()

    def to_input_file(self) -> Any:
        return self._output.to_input_file()


class BrokenStream(io.BytesIO):
    def __init__(self, moment: str) -> None:
        super().__init__()
        self._moment = moment

    def write(self, data: Any) -> int:
        if self._moment == "write":
            raise OSError("disk full")
        return super().write(data)

    def close(self) -> None:
        if self._moment == "close" and not self.closed:
            super().close()
            raise OSError("disk full")
        super().close()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys that are made during the test."""
    keys: list[bytes] = []
    random = Secret.random

    def recorded(length: int, entropy: Any = os.urandom) -> Secret:
        secret = random(length, entropy)
        keys.append(bytes(secret.expose()))
        return secret

    monkeypatch.setattr(Secret, "random", recorded)
    return keys


def break_storage(table: Table, ending: str, moment: str) -> None:
    broken = BrokenStorage(table.io.properties)
    broken.ending, broken.moment = ending, moment
    table.io.plain = broken  # type: ignore[attr-defined]


@pytest.mark.parametrize("moment", ["open", "write", "close"])
@pytest.mark.parametrize("ending", ["-m0.avro", ".avro", ".parquet"])
def test_22_tracebacks_of_writing_to_a_broken_storage(
    table: Table, ending: str, moment: str, drawn: list[bytes]
) -> None:
    keys = keys_of(table)
    break_storage(table, ending, moment)
    text = tracebacks_of(lambda: table.append(OTHER_ROWS), lambda: table.delete("id in (2, 5)"))
    assert "disk full" in text
    assert drawn
    assert_no_key_in(text, keys + drawn)


def test_22_tracebacks_of_a_storage_that_breaks_in_the_middle_of_a_manifest(table: Table) -> None:
    keys = keys_of(table)
    break_storage(table, "-m0.avro", "write")
    text = tracebacks_of(lambda: append_as_is(table, *data_files(table) * (LARGE_MANIFEST // 2)))
    assert "write_block" in text
    assert_no_key_in(text, keys)


LEAKED_BY_METADATA = ["column-marker", "partition-marker", "property-marker", "summary-marker"]
SEALED = ["data-marker", "key-marker"]


def test_23_what_the_storage_shows(lake: Lake) -> None:
    """Column names, properties, summaries, and in paths the values of partitions. No more than that, and no file but
    metadata.json is in plaintext."""
    schema = pa.schema([("column-marker", pa.string()), ("part", pa.string())])
    catalog = lake.catalog()
    table = catalog.create_table(
        NAME,
        schema,
        properties={"encryption.key-id": "keyA", "p": "property-marker", "write.avro.compression-codec": "null"},
    )
    with table.update_spec() as update:
        update.add_identity("part")
    rows = pa.table(
        {"column-marker": ["data-marker-1", "data-marker-2"], "part": ["partition-marker"] * 2}, schema=schema
    )
    table.append(rows, snapshot_properties={"s": "summary-marker"})
    table.delete("\"column-marker\" = 'data-marker-1'")
    table.upsert(
        pa.table({"column-marker": ["data-marker-2"], "part": ["partition-marker"]}, schema=schema), ["column-marker"]
    )
    listed = [entry for manifest in manifests(table) for entry in manifest.fetch_manifest_entry(table.io)]  # type: ignore[arg-type]
    assert b"data-marker" in listed[0].data_file.lower_bounds[1]  # which is why manifests are encrypted
    names = "".join(str(path) for path in lake.files())
    assert [marker for marker in (*LEAKED_BY_METADATA, *SEALED) if marker in names] == ["partition-marker"]
    for path in lake.files():
        data = path.read_bytes()
        shown = {marker for marker in (*LEAKED_BY_METADATA, *SEALED) if marker.encode() in data}
        if path.name.endswith(".metadata.json"):
            assert data[:1] == b"{"
            assert not shown & set(SEALED)
        else:
            assert data[:4] in (b"PARE", b"AGS1")
            assert not shown
    metadata = path_of(table.metadata_location).read_text()
    assert [marker for marker in LEAKED_BY_METADATA if marker not in metadata] == ["partition-marker"]
