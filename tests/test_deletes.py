"""Which delete files apply to a data file."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus
from pyiceberg.typedef import Record

from pyiceberg_encryption.table.deletes import DeleteIndex
from tests.table_support import delete_file

DATA = DataFile.from_args(file_path="data.parquet")


def entry(location: str, partition: Record, content: DataFileContent) -> ManifestEntry:
    of_parquet: dict[str, Any] = {"file_format": FileFormat.PARQUET, "referenced_data_file": None}
    file = delete_file(location, DATA, 10, content=content, partition=partition, **of_parquet)
    return ManifestEntry.from_args(status=ManifestEntryStatus.EXISTING, sequence_number=1, data_file=file)


@pytest.mark.parametrize(
    ("deleted", "same", "other"),
    [
        (0.5, 0.5, 0.25),
        (float("nan"), float("nan"), 0.5),
        (-0.0, 0.0, float("nan")),
        (None, None, float("nan")),
        ("a", "a", None),
    ],
)
def test_position_deletes_apply_to_their_partition(deleted: Any, same: Any, other: Any) -> None:
    index = DeleteIndex()
    deletes = entry("deletes.parquet", Record(deleted), DataFileContent.POSITION_DELETES)
    index.add(deletes)
    assert index.for_data_file(entry("one.parquet", Record(same), DataFileContent.DATA)) == {deletes.data_file}
    assert index.for_data_file(entry("two.parquet", Record(other), DataFileContent.DATA)) == set()
