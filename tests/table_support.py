"""Encrypted tables in a catalog on SQLite, and what whoever can write to their storage does to the files."""

from __future__ import annotations

import json
import sqlite3
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent, FileFormat, ManifestContent
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import EMPTY_DICT, Record

from pyiceberg_encryption.catalogs import load_catalog
from pyiceberg_encryption.table.manifests import V3DataFile, V3ManifestFile, V3ManifestWriter, V3Snapshot
from pyiceberg_encryption.table.snapshots import FastAppendFiles
from tests.support import MEMORY_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.manifest import ManifestFile, ManifestWriter
    from pyiceberg.partitioning import PartitionSpec

    from pyiceberg_encryption.catalogs.sql import SqlCatalog
    from pyiceberg_encryption.table.table import Table

NAME = "db.t"
ROWS = pa.table({"id": [1, 2, 3], "s": ["a", "b", "c"]})
MORE_ROWS = pa.table({"id": [4, 5], "s": ["d", "e"]})
OTHER_ROWS = pa.table({"id": [6, 7], "s": ["f", "g"]})
SCHEMA_OF_FILE = pa.schema(
    [
        pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"}),
        pa.field("s", pa.string(), metadata={"PARQUET:field_id": "2"}),
    ]
)
FORGED_ROWS = pa.table({"id": [7, 8, 9], "s": ["forged"] * 3}, schema=SCHEMA_OF_FILE)


class Lake:
    """A folder with a database, which is trusted, and a warehouse, which is not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kms = {"encryption.kms-type": "memory", **MEMORY_PROPERTIES}
        self._open: list[SqlCatalog] = []

    def properties(self, **more: str) -> dict[str, str]:
        return {"uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": f"file://{self.folder}/warehouse", **more}

    def catalog(self, **more: str) -> SqlCatalog:
        """As a program of its own would open it, with nothing kept from before."""
        catalog = cast("SqlCatalog", load_catalog("lake", type="sql", **self.properties(**{**self.kms, **more})))
        self._open.append(catalog)
        catalog.create_namespace_if_not_exists("db")
        return catalog

    def close(self) -> None:
        for catalog in self._open:
            catalog.close()

    def create(
        self,
        name: str = NAME,
        *,
        appends: int = 2,
        key_id: str | None = "keyA",
        properties: dict[str, str] = EMPTY_DICT,
    ) -> Table:
        """Each append adds a snapshot with one data file."""
        chosen = {"encryption.key-id": key_id, **properties} if key_id else properties
        table = cast("Table", self.catalog().create_table(name, ROWS.schema, properties=chosen))
        for rows in (ROWS, MORE_ROWS, OTHER_ROWS)[:appends]:
            table.append(rows)
        return table

    def load(self, name: str = NAME, **more: str) -> Table:
        return cast("Table", self.catalog(**more).load_table(name))

    def files(self, ending: str = "") -> list[Path]:
        return sorted(path for path in (self.folder / "warehouse").rglob(f"*{ending}") if path.is_file())

    def point_to(self, location: str, name: str = NAME) -> None:
        """As another engine commits."""
        with sqlite3.connect(self.folder / "catalog.db") as database:
            database.execute(
                "UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = ?", (location, name.split(".")[-1])
            )
        database.close()

    def commit_as_another_engine(self, change: Callable[[dict[str, Any]], object], table: Table) -> str:
        """Its metadata file has a name that proves nothing. Hence whoever made the change is not found out by it."""
        folder = table.metadata_location.rpartition("/")[0]
        location = f"{folder}/00009-{uuid.uuid4()}.metadata.json"
        path_of(location).write_text(json.dumps(changed(metadata_of(table), change)))
        self.point_to(location, ".".join(table.name()))
        return location


def path_of(location: str) -> Path:
    return Path(location.removeprefix("file://"))


def metadata_of(table: Table) -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads(path_of(table.metadata_location).read_text()))


def changed(metadata: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    change(metadata)
    return metadata


def change_in_place(table: Table, change: Callable[[dict[str, Any]], object]) -> None:
    path_of(table.metadata_location).write_text(json.dumps(changed(metadata_of(table), change)))


def snapshots(table: Table) -> list[V3Snapshot]:
    return [snapshot for snapshot in table.metadata.snapshots if isinstance(snapshot, V3Snapshot)]


def manifests(table: Table) -> list[V3ManifestFile]:
    """Those of the current snapshot, newest first."""
    found = snapshots(table)[-1].manifests(table.io)
    return [manifest for manifest in found if isinstance(manifest, V3ManifestFile)]


def data_files(table: Table) -> list[V3DataFile]:
    files = [entry.data_file for manifest in manifests(table) for entry in manifest.fetch_manifest_entry(table.io)]
    return [file for file in files if isinstance(file, V3DataFile)]


def ids(table: Table) -> list[int]:
    return sorted(cast("list[int]", table.scan().to_arrow()["id"].to_pylist()))


def plain_file(lake: Lake, rows: pa.Table = FORGED_ROWS) -> str:
    """A Parquet file that anyone could have written."""
    path = lake.folder / "warehouse" / "forged.parquet"
    pq.write_table(rows, path)
    return f"file://{path}"


def swap(one: str, other: str) -> None:
    first, second = path_of(one), path_of(other)
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)


def delete_file(location: str, data_file: DataFile, size: int, **more: Any) -> V3DataFile:
    """A deletion vector for `data_file`, as a manifest lists it. No key is given to it."""
    values: dict[str, Any] = {
        "content": DataFileContent.POSITION_DELETES,
        "file_path": location,
        "file_format": FileFormat.PUFFIN,
        "partition": Record(),
        "record_count": 1,
        "file_size_in_bytes": size,
        "referenced_data_file": data_file.file_path,
        **more,
    }
    file = V3DataFile(*(values.get(field.name) for field in DATA_FILE_TYPE[3].fields))
    file.spec_id = 0
    return file


class _DeletesWriter(V3ManifestWriter):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES


class AppendAsIs(FastAppendFiles):
    """What another writer could commit, or one with a defect: files are listed as they are given, with no key if they
    have none. `on_list` may change what the manifest list says."""

    on_list: Callable[[list[ManifestFile]], object]

    def append_data_file(self, data_file: DataFile) -> AppendAsIs:
        self._added_data_files.append(data_file)
        return self

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        deletes = any(file.content != DataFileContent.DATA for file in self._added_data_files)
        writer = _DeletesWriter if deletes else V3ManifestWriter
        return writer(spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression)

    def _manifests(self) -> list[ManifestFile]:
        found = super()._manifests()
        self.on_list(found)
        return found


def append_as_is(
    table: Table, *files: DataFile, on_list: Callable[[list[ManifestFile]], object] = lambda manifests: None
) -> None:
    with table.transaction() as transaction:
        append = AppendAsIs(Operation.APPEND, transaction, table.io)
        append.on_list = on_list
        for file in files:
            append.append_data_file(file)
        append.commit()
