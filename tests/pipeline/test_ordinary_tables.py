"""Tables as others make and keep them, on which jobs once failed, or worse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog as load_plain_catalog
from pyiceberg.exceptions import ValidationException
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.statistics import PartitionStatisticsFile
from pyiceberg.table.update import SetPartitionStatisticsUpdate
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import ListType, LongType, NestedField, StringType, StructType, TimestampType

from pyiceberg_encryption.errors import KmsKeyError, UsageError
from pyiceberg_encryption.pipeline import encrypt, rekey
from pyiceberg_encryption.pipeline.encrypt import encrypt_in_place, encrypt_into
from pyiceberg_encryption.pipeline.orphans import remove_orphan_files
from pyiceberg_encryption.pipeline.verify import verify
from tests.table_support import ROWS, Lake, data_files, ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.table import Table

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "n", LongType()))
BY_N = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "n"))
THREE = pa.table({"id": [1, 2, 3], "n": [10, 20, 30]})
KEY = {"encryption.key-id": "keyA"}


def plain_table(lake: Lake, **more: Any) -> Table:
    """By PyIceberg alone."""
    with load_plain_catalog("lake", type="sql", **lake.properties()) as catalog:
        catalog.create_namespace_if_not_exists("db")
        return catalog.create_table("db.t", SCHEMA, **more)


def test_partition_statistics(lake: Lake) -> None:
    plain_table(lake).append(THREE)
    table = lake.load()
    path = lake.folder / "warehouse" / "db" / "t" / "metadata" / "statistics.parquet"
    path.write_bytes(b"PAR1")
    statistics = PartitionStatisticsFile.model_validate(
        {
            "snapshot-id": table.metadata.current_snapshot_id,
            "statistics-path": f"file://{path}",
            "file-size-in-bytes": 4,
        }
    )
    table.catalog.commit_table(table, (), (SetPartitionStatisticsUpdate(partition_statistics=statistics),))
    encrypt_in_place(lake.catalog(), "db.t", key="keyA")
    assert not path.exists()
    assert verify(lake.load()).ok


class PoweredOffError(Exception):
    pass


def broken_off(lake: Lake, monkeypatch: pytest.MonkeyPatch, **how: Any) -> None:
    """When all data was written, and nothing committed."""

    def fail(*_: Any) -> None:
        raise PoweredOffError

    with monkeypatch.context() as patch, pytest.raises(PoweredOffError):
        patch.setattr(encrypt, "_commit_encryption", fail)
        encrypt_in_place(lake.catalog(), "db.t", key="keyA", **how)


@pytest.mark.parametrize("folder", ["t", "t/data", ""])
def test_metadata_and_data_in_one_folder(folder: str, lake: Lake) -> None:
    plain = plain_table(lake)
    path = f"{plain.location().removesuffix('/t')}/{folder}"
    with plain.transaction() as transaction:
        transaction.set_properties({"write.metadata.path": path})
    plain.append(THREE)
    encrypt_in_place(lake.catalog(), "db.t", key="keyA")
    table = lake.load()
    assert ids(table) == [1, 2, 3]
    assert verify(table).ok
    assert not [file for file in lake.files(".json") if file.name.startswith("encrypt-")]


def test_a_copy_whose_first_snapshot_has_expired(lake: Lake) -> None:
    source = plain_table(lake)
    source.append(THREE)
    encrypt_into(source, lake.catalog(), "db.copy", properties=KEY)
    copy = lake.load("db.copy")
    copy.append(pa.table({"id": [4], "n": [40]}))
    copy.maintenance.expire_snapshots().by_id(copy.snapshots()[0].snapshot_id).commit()
    encrypt_into(source, lake.catalog(), "db.copy", properties=KEY)
    assert ids(lake.load("db.copy")) == [1, 2, 3, 4]


def change_spec(table: Table) -> None:
    with table.update_spec() as update:
        update.remove_field("n")
        update.add_field("id", IdentityTransform(), "by_id")


def test_a_spec_that_changes_while_data_is_written_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.catalog().create_table("db.t", SCHEMA, partition_spec=BY_N, properties=KEY)
    table.append(THREE)
    commit = rekey._replace

    def late(*arguments: Any) -> None:
        change_spec(lake.load())
        commit(*arguments)

    with monkeypatch.context() as patch, pytest.raises(ValidationException, match="spec of the table was changed"):
        patch.setattr(rekey, "_replace", late)
        rekey.rekey(table)
    assert len(lake.files(".parquet")) == 3
    rekey.rekey(lake.load())
    assert lake.load().scan("id = 1").to_arrow()["n"].to_pylist() == [10]


def test_a_spec_that_others_changed_before_an_append(lake: Lake) -> None:
    """PyIceberg tries again, and lists what it has written as if it were of the new spec."""
    table = lake.catalog().create_table("db.t", SCHEMA, partition_spec=BY_N, properties=KEY)
    other = lake.load()
    change_spec(other)
    other.append(THREE)
    with pytest.raises(ValidationException, match="spec of the table was changed"):
        table.append(pa.table({"id": [4], "n": [40]}))
    assert ids(lake.load()) == [1, 2, 3]


def test_partitions_by_fields_of_structs(lake: Lake) -> None:
    inner = StructType(NestedField(3, "a", LongType()), NestedField(4, "s", StringType()))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "st", inner))
    spec = PartitionSpec(
        PartitionField(3, 1000, BucketTransform(4), "bucket"), PartitionField(4, 1001, TruncateTransform(1), "letter")
    )
    rows = pa.table({"id": [1, 2], "st": [{"a": 1, "s": "x"}, None]})
    with load_plain_catalog("lake", type="sql", **lake.properties()) as catalog:
        catalog.create_namespace_if_not_exists("db")
        catalog.create_table("db.t", schema, partition_spec=spec).append(rows)
    encrypt_in_place(lake.catalog(), "db.t", key="keyA")
    assert ids(lake.load()) == [1, 2]


def test_a_spec_that_changed_before_an_encryption_went_on(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_table(lake, partition_spec=BY_N).append(THREE)
    broken_off(lake, monkeypatch)
    change_spec(lake.load())
    encrypt_in_place(lake.catalog(), "db.t", key="keyA")
    table = lake.load()
    assert [table.scan(f"id = {number}").to_arrow()["n"].to_pylist() for number in (1, 2, 3)] == [[10], [20], [30]]


def test_a_column_that_was_replaced_before_a_copy_went_on(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    source = plain_table(lake)
    source.append(THREE)

    def fail(*_: Any, **__: Any) -> None:
        raise PoweredOffError

    with monkeypatch.context() as patch, pytest.raises(PoweredOffError):
        patch.setattr(encrypt, "commit", fail)
        encrypt_into(source, lake.catalog(), "db.copy", properties=KEY)
    with source.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("n")
    with source.update_schema() as update:
        update.add_column("n", LongType())
    encrypt_into(source, lake.catalog(), "db.copy", properties=KEY)
    assert lake.load("db.copy").scan().to_arrow()["n"].to_pylist() == [None, None, None]


def test_another_key_length_when_an_encryption_goes_on(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_table(lake).append(THREE)
    broken_off(lake, monkeypatch)
    encrypt_in_place(lake.catalog(), "db.t", key="keyA", data_key_length=32)
    (file,) = data_files(lake.load())
    assert file.key_metadata is not None
    assert len(file.key_metadata.open().encryption_key) == 32  # type: ignore[attr-defined]
    assert len(lake.files(".parquet")) == 1


def no_such_key(lake: Lake) -> None:
    with pytest.raises(KmsKeyError, match="no master key 'keyX'"):
        encrypt_in_place(lake.catalog(), "db.t", key="keyX")


def no_such_format(lake: Lake) -> None:
    with lake.load().transaction() as transaction:
        transaction.set_properties({"write.format.default": "orc"})
    with pytest.raises(UsageError, match="set it to parquet or avro"):
        encrypt_in_place(lake.catalog(), "db.t", key="keyA")


def files_of_others(lake: Lake) -> None:
    with lake.load().transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})
    with pytest.raises(UsageError, match="files may belong to other tables"):
        encrypt_in_place(lake.catalog(), "db.t", key="keyA")


@pytest.mark.parametrize("refused", [no_such_key, no_such_format, files_of_others])
def test_what_is_refused_is_not_upgraded(refused: Callable[[Lake], None], lake: Lake) -> None:
    """There is no way back from format V3, and PyIceberg could not write to it any more."""
    plain_table(lake).append(THREE)
    refused(lake)
    assert lake.load().format_version == 2


def test_orphans_of_a_table_whose_files_may_be_others(lake: Lake) -> None:
    table = lake.create(properties={"gc.enabled": "false"})
    with pytest.raises(UsageError, match="files may belong to other tables"):
        remove_orphan_files(table)


REQUIRED = StructType(
    *(NestedField(100, "number", LongType(), required=True), NestedField(101, "text", StringType(), required=True)),
    NestedField(102, "list", ListType(103, LongType()), required=True),
    NestedField(104, "at", StructType(NestedField(105, "time", TimestampType(), required=True)), required=True),
    NestedField(106, "other", StructType(NestedField(107, "n", LongType(), required=True))),
)


def test_a_new_column_with_required_fields(lake: Lake) -> None:
    table = lake.create(appends=1)
    with table.update_schema() as update:
        update.add_column("new", REQUIRED)
    expected = [{**row, "new": None} for row in ROWS.to_pylist()]
    assert table.scan().to_arrow().to_pylist() == expected
    assert table.scan().to_arrow_batch_reader().read_all().to_pylist() == expected
    assert rekey.rekey(table).rows == len(ROWS)
    assert lake.load().scan().to_arrow().to_pylist() == expected


def test_format_v3_that_pyiceberg_alone_has_loaded(lake: Lake) -> None:
    lake.create(key_id=None, properties={"format-version": "3"})
    with load_plain_catalog("lake", type="sql", **lake.properties()) as catalog:
        source = catalog.load_table("db.t")
    with pytest.raises(UsageError, match="load it by load_catalog of pyiceberg_encryption"):
        encrypt_into(source, lake.catalog(), "db.copy", properties=KEY)
