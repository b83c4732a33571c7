"""Reads in batches, as Spark asks for them, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

pytest.importorskip("pyspark", reason="needs Spark: `pip install --group test`")

from pyspark.sql.datasource import EqualTo, Filter

from pyiceberg_encryption.errors import UsageError
from pyiceberg_encryption.spark.options import Options
from pyiceberg_encryption.spark.read import ReaderWithFilters, load_table, scan_of
from pyiceberg_encryption.spark.types import to_spark_schema

if TYPE_CHECKING:
    from pyiceberg.table import Table

FIRST = {"id": 1, "kept": 1, "s": 1, "swapped": 1}


@pytest.fixture
def old(table: Table) -> Table:
    """With a tag, after which other columns got the names of some."""
    with table.update_schema() as update:
        for name in ("kept", "s", "swapped"):
            update.add_column(name, LongType())
    table.append(pa.Table.from_pylist([FIRST, dict.fromkeys(FIRST, 2)]))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_tag(snapshot.snapshot_id, "old").commit()
    with table.update_schema() as update:
        update.delete_column("s")
        update.rename_column("id", "number")
    with table.update_schema() as update:
        update.add_column("s", LongType())
        update.rename_column("swapped", "id")
    with table.update_schema() as update:
        update.rename_column("number", "swapped")
    return table


def read(offered: list[Filter], **options: str) -> list[dict[str, int]]:
    given = {"catalog": "streamed", "table": "db.t", "tag": "old"}
    chosen = Options.of({**given, **{name.replace("_", "-"): text for name, text in options.items()}})
    schema = to_spark_schema(scan_of(load_table(chosen), chosen).projection())
    reader = ReaderWithFilters(chosen, schema, 1)
    assert list(reader.pushFilters(offered)) == offered
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("name", ["id", "s", "swapped"])
def test_a_filter_of_a_column_that_was_another_one_is_left_to_spark(old: Table, name: str) -> None:
    assert read([EqualTo((name,), 1)]) == [FIRST, dict.fromkeys(FIRST, 2)]
    assert read([EqualTo((name,), 1), EqualTo(("kept",), 1)]) == [FIRST]


def test_a_filter_of_a_column_without_a_place_in_the_schema_is_left_to_spark(old: Table) -> None:
    assert len(read([EqualTo(("_row_id",), 0)], columns="id,_row_id")) == 2


@pytest.mark.parametrize("text", ["id = 1", "s = 1", "kept = 1 or swapped = 1", "number = 1", "nothing = 1"])
def test_a_row_filter_of_a_column_that_was_another_one_is_refused(old: Table, text: str) -> None:
    with pytest.raises(UsageError, match=r"row-filter names a column .*filter what load\(\) returns"):
        read([], row_filter=text)


def test_a_row_filter_of_a_column_that_is_the_same(old: Table) -> None:
    assert read([], row_filter="kept = 1") == [FIRST]
    assert read([], row_filter="KEPT = 1", case_sensitive="false") == [FIRST]
