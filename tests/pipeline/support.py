"""Rows that are written as a task writes them, and committed as a job commits them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, cast

from pyiceberg_encryption.kms.memory import MemoryKeyManagementClient
from pyiceberg_encryption.kms.registry import PY_KMS_IMPL
from pyiceberg_encryption.pipeline.commit import commit
from pyiceberg_encryption.pipeline.data_writer import DataFileWriter
from tests.support import MEMORY_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema

    from pyiceberg_encryption.table.file_io import EncryptedFileIO
    from pyiceberg_encryption.table.table import Table
    from tests.table_support import Lake

JOB = "a-job"


class KnownKeys(MemoryKeyManagementClient):
    """A KMS that a process reaches without being told a secret."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(MEMORY_PROPERTIES)


def new_table(lake: Lake, schema: Schema | pa.Schema, name: str = "db.t", **more: Any) -> Table:
    lake.kms = {PY_KMS_IMPL: f"{__name__}.{KnownKeys.__name__}"}
    properties = {"encryption.key-id": "keyA", **more.pop("properties", {})}
    return cast("Table", lake.catalog().create_table(name, schema, properties=properties, **more))


def writer(table: Table, name: str = JOB, *, fanout: bool = True) -> DataFileWriter:
    return DataFileWriter(cast("EncryptedFileIO", table.io), table.metadata, name, fanout=fanout)


def written(table: Table, rows: pa.Table, name: str = JOB) -> list[DataFile]:
    task = writer(table, name)
    for batch in rows.to_batches():
        task.write(batch)
    return [entry.data_file for entry in task.finish()]


def append(table: Table, rows: pa.Table) -> list[DataFile]:
    files = written(table, rows, uuid.uuid4().hex)
    assert commit(table, files)
    return files
