"""The tables that Iceberg Java wrote, through a catalog and scans: rows and their lineage are what Spark saw."""

from __future__ import annotations

import contextlib
import datetime
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.metadata import TableMetadataUtil

from integration.golden_tables import plain
from pyiceberg_encryption.catalogs import load_catalog
from pyiceberg_encryption.table.metadata_json import to_json
from pyiceberg_encryption.table.policy import UnverifiedMetadataWarning
from tests.support import MEMORY_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyiceberg.io.pyarrow import PyArrowFile
    from pyiceberg.table import Table

    Load = Callable[[str, Path], tuple[Table, dict[str, Any]]]

TABLES = Path(__file__).parent / "vectors" / "iceberg-java" / "tables"
NAMES = sorted(table.name for table in TABLES.iterdir())
WRITTEN_AT = "file:/tmp/iceberg-golden/golden.db/"  # where the tables say that they are
LINEAGE = ("*", "_row_id", "_last_updated_sequence_number")


class MovedFileIO(PyArrowFileIO):
    """Finds the files of the golden tables in the folder that the property `moved-to` names."""

    def new_input(self, location: str) -> PyArrowFile:
        return super().new_input(self._moved(location))

    def new_output(self, location: str) -> PyArrowFile:
        return super().new_output(self._moved(location))

    def _moved(self, location: str) -> str:
        return location.replace(WRITTEN_AT, f"{self.properties['moved-to']}/", 1)


@pytest.fixture
def load() -> Iterator[Load]:
    """Opens a golden table that lies in a folder, and tells what is expected of it."""
    with contextlib.ExitStack() as catalogs:
        yield lambda name, folder: _load(name, folder, catalogs)


def _load(name: str, folder: Path, catalogs: contextlib.ExitStack) -> tuple[Table, dict[str, Any]]:
    expected = json.loads((TABLES / name / "expected.json").read_text())
    catalog = load_catalog(
        "golden",
        type="in-memory",
        **{
            "py-io-impl": f"{__name__}.MovedFileIO",
            "moved-to": str(folder),
            "encryption.kms-type": "memory",
            "encryption.expected-key-id": expected["metastore-parameters"]["encryption.key-id"],
            **MEMORY_PROPERTIES,
        },
    )
    catalogs.enter_context(catalog)
    catalog.create_namespace_if_not_exists("golden")
    with pytest.warns(UnverifiedMetadataWarning, match="leaves no proof"):
        table = catalog.register_table(f"golden.{name}", expected["metadata-location"])
    return table, expected


@pytest.mark.parametrize("name", NAMES)
def test_rows_and_lineage_are_what_spark_saw(name: str, load: Load) -> None:
    table, expected = load(name, TABLES)
    rows = {ref: as_spark_reports(table.scan(selected_fields=LINEAGE).use_ref(ref).to_arrow()) for ref in table.refs()}
    if name == "empty":
        assert table.scan().to_arrow().num_rows == 0
    assert rows == {ref: sorted(found, key=in_order) for ref, found in expected["rows"].items() if ref in table.refs()}


@pytest.mark.parametrize("name", NAMES)
def test_metadata_is_written_as_java_writes_it(name: str, load: Load) -> None:
    """Java verifies a metadata file by writing anew what it read, so every byte counts."""
    table, _ = load(name, TABLES)
    for path in (TABLES / name / "metadata").glob("*.json"):
        assert to_json(TableMetadataUtil.parse_raw(path.read_text())) == path.read_bytes()
    assert table.metadata.format_version == 3


@pytest.mark.parametrize("name", [name for name in NAMES if name != "empty"])
def test_a_table_of_javas_goes_on_in_python(name: str, tmp_path: Path, load: Load) -> None:
    shutil.copytree(TABLES / name, tmp_path / name)
    table, _ = load(name, tmp_path)
    before = as_spark_reports(table.scan(selected_fields=LINEAGE).to_arrow())
    next_row_id = table.metadata.next_row_id  # type: ignore[union-attr]  # of V3 only
    (tmp_path / name / "data").mkdir(exist_ok=True)

    rows = table.scan().to_arrow().slice(0, 1)
    table.append(rows)

    after = as_spark_reports(table.refresh().scan(selected_fields=LINEAGE).to_arrow())
    added = [row for row in after if row not in before]
    assert len(after) == len(before) + rows.num_rows
    assert [row["_row_id"] for row in added] == [next_row_id]


def as_spark_reports(rows: pa.Table) -> list[dict[str, Any]]:
    """As the generator of the golden tables records what Spark returns."""
    return sorted((plain(without_zones(row)) for row in rows.to_pylist(maps_as_pydicts="strict")), key=in_order)


def without_zones(row: dict[str, Any]) -> dict[str, Any]:
    """Spark returns local times, of a session in UTC."""
    return {
        name: value.replace(tzinfo=None) if isinstance(value, datetime.datetime) else value
        for name, value in row.items()
    }


def in_order(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)
