"""Tables that once were partitioned by a column which is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, VoidTransform
from pyiceberg.types import LongType, NestedField, StringType

from pyiceberg_encryption.errors import UsageError
from pyiceberg_encryption.pipeline.commit import Overwrite, commit
from pyiceberg_encryption.pipeline.encrypt import encrypt_in_place
from pyiceberg_encryption.pipeline.rekey import rekey
from pyiceberg_encryption.table.specs import LastingSpec
from tests.pipeline.support import append, new_table, written
from tests.table_support import data_files, ids, manifests

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import PrimitiveType

    from pyiceberg_encryption.table.table import Table
    from tests.table_support import Lake

BY_S = PartitionField(2, 1000, IdentityTransform(), "s")
BY_ID = PartitionField(1, 1001, BucketTransform(2), "bucket")
ONE_MORE = pa.table({"id": [9]})


def schema(kind: PrimitiveType) -> Schema:
    return Schema(NestedField(1, "id", LongType()), NestedField(2, "s", kind))


def drop_s(table: Table) -> None:
    with table.update_spec() as spec:
        spec.remove_field("s")
    with table.update_schema() as columns:
        columns.delete_column("s")


def lasting(metadata: TableMetadata, spec_id: int, schemas: list[Schema]) -> LastingSpec:
    spec = LastingSpec(*metadata.specs()[spec_id].fields, spec_id=spec_id)
    spec._schemas = schemas
    return spec


def commit_over(table: Table) -> bool:
    return commit(table, written(table, ONE_MORE), overwrite=Overwrite())


def partitions(table: Table) -> list[str]:
    return sorted(str(file.partition[0]) for file in data_files(table) if file.spec_id == 0)


@pytest.fixture(params=[StringType(), LongType()], ids=str)
def table(lake: Lake, request: pytest.FixtureRequest) -> Table:
    """Three partitions in one manifest, and a file that is of none."""
    table = new_table(lake, schema(request.param), partition_spec=PartitionSpec(BY_S))
    values = ["1", "2", None] if request.param == StringType() else [1, 2, None]
    append(table, pa.table({"id": [1, 2, 3], "s": values}))
    drop_s(table)
    append(table, pa.table({"id": [4]}))
    return table


def test_rekeying_some_leaves_the_others_in_their_partitions(table: Table) -> None:
    assert rekey(table, row_filter="id = 1").files_replaced == 1
    assert ids(table) == [1, 2, 3, 4]
    assert partitions(table) == ["2", "None"]
    (left,) = (manifest for manifest in manifests(table) if manifest.partition_spec_id == 0)
    assert left.partitions is not None
    (summary,) = left.partitions
    assert summary.contains_null
    assert summary.lower_bound is not None
    assert rekey(table).rows == 4
    assert ids(table) == [1, 2, 3, 4]


def test_overwriting(table: Table) -> None:
    assert commit_over(table)
    assert ids(table) == [9]


def test_deleting(table: Table) -> None:
    table.delete("id = 1")
    assert ids(table) == [2, 3, 4]
    assert partitions(table) == ["2", "None"]


@pytest.mark.parametrize("change", [lambda table: table.delete("id = 1"), lambda table: commit_over(table)])
def test_where_no_schema_tells_the_type_any_more(
    change: Callable[[Table], object], table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines remove schemas that no snapshot has. What PyIceberg writes then is no manifest."""
    append(table, pa.table({"id": [5]}))
    current = [table.schema()]
    monkeypatch.setattr(LastingSpec, "of", lambda metadata, spec_id: lasting(metadata, spec_id, current))
    with pytest.raises(UsageError, match="tells the type of a column any more that spec 0"):
        change(table)
    assert ids(table) == [1, 2, 3, 4, 5]
    append(table, ONE_MORE)
    table.delete("id = 5")
    assert ids(table) == [1, 2, 3, 4, 9]


def test_tables_of_format_v1_keep_a_void_field(lake: Lake) -> None:
    spec = PartitionSpec(BY_S, BY_ID)
    plain = lake.catalog().create_table(
        "db.t", schema(StringType()), partition_spec=spec, properties={"format-version": "1"}
    )
    plain.append(pa.table({"id": [1, 2, 3], "s": ["a", "b", None]}))
    drop_s(cast("Table", plain))
    assert encrypt_in_place(lake.catalog(), "db.t", key="keyA").rows == 3
    table = lake.load()
    assert isinstance(table.spec().fields[0].transform, VoidTransform)
    append(table, ONE_MORE)
    assert rekey(table, row_filter="id = 9").files_replaced == 1
    assert ids(table) == [1, 2, 3, 9]
    assert {file.partition[0] for file in data_files(table)} == {None}
    assert commit_over(table)
    assert ids(table) == [9]
