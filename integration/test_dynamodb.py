"""What PyIceberg's DynamoDB catalog cannot do, and this one does: commit, register, and rename in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, NoSuchIcebergTableError, TableAlreadyExistsError

from integration.environments import Environments
from pyiceberg_encryption import load_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table import Table

    from pyiceberg_encryption.catalogs.dynamodb import DynamoDbCatalog

SCHEMA = pa.schema([("id", pa.int64())])
ENCRYPTED = {"encryption.key-id": "keyA", "commit.retry.num-retries": "0"}


@pytest.fixture(scope="module")
def properties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with Environments(tmp_path_factory.mktemp("dynamodb")) as environments:
        yield environments.properties("DynamoDB", environments.storage("local, PyArrow"))


@pytest.fixture
def catalog(properties: dict[str, str]) -> Iterator[DynamoDbCatalog]:
    catalog: Any = load_catalog("d", **properties)
    catalog.create_namespace_if_not_exists("db")
    for name in catalog.list_tables("db"):
        catalog.drop_table(name)
    yield catalog
    catalog.close()


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)}, schema=SCHEMA)


def ids(table: Table) -> list[int]:
    return sorted(table.scan().to_arrow()["id"].to_pylist())


def test_a_commit_that_landed_although_boto3_tried_it_again(
    catalog: DynamoDbCatalog, properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the first try is lost, and another program commits before the second, which therefore fails."""
    table = catalog.create_table("db.t", SCHEMA, properties=ENCRYPTED)
    put = catalog.dynamodb.put_item

    def put_twice(**arguments: Any) -> Any:
        put(**arguments)
        monkeypatch.undo()
        load_catalog("d", **properties).load_table("db.t").append(rows(2))
        return put(**arguments)

    monkeypatch.setattr(catalog.dynamodb, "put_item", put_twice)
    table.append(rows(1))
    assert ids(catalog.load_table("db.t")) == [1, 2]


def test_a_commit_in_between(catalog: DynamoDbCatalog) -> None:
    table = catalog.create_table("db.t", SCHEMA, properties=ENCRYPTED)
    catalog.load_table("db.t").append(rows(1))
    with pytest.raises(CommitFailedException):
        table.append(rows(2))
    assert ids(catalog.load_table("db.t")) == [1]


def test_a_commit_while_a_table_is_renamed(catalog: DynamoDbCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog.create_table("db.t", SCHEMA, properties=ENCRYPTED).append(rows(1))
    write = catalog.dynamodb.transact_write_items

    def append_first(**arguments: Any) -> Any:
        monkeypatch.undo()
        catalog.load_table("db.t").append(rows(2))
        return write(**arguments)

    monkeypatch.setattr(catalog.dynamodb, "transact_write_items", append_first)
    with pytest.raises(CommitFailedException, match="try again"):
        catalog.rename_table("db.t", "db.u")
    assert not catalog.table_exists("db.u")
    assert ids(catalog.rename_table("db.t", "db.u")) == [1, 2]
    assert not catalog.table_exists("db.t")


def test_a_name_that_is_taken(catalog: DynamoDbCatalog) -> None:
    catalog.create_table("db.t", SCHEMA, properties=ENCRYPTED).append(rows(1))
    location = catalog.create_table("db.u", SCHEMA, properties=ENCRYPTED).metadata_location
    with pytest.raises(TableAlreadyExistsError):
        catalog.rename_table("db.t", "db.u")
    with pytest.raises(TableAlreadyExistsError):
        catalog.register_table("db.t", location)
    assert ids(catalog.load_table("db.t")) == [1]


def test_another_kind_of_table_is_left_alone(catalog: DynamoDbCatalog) -> None:
    key = {"identifier": {"S": "db.t"}, "namespace": {"S": "db"}}
    item = {**key, "v": {"S": "1"}, "p.table_type": {"S": "HUDI"}, "p.metadata_location": {"S": "file:///theirs"}}
    name = catalog.dynamodb_table_name
    catalog.dynamodb.put_item(TableName=name, Item=item)
    with pytest.raises((NoSuchIcebergTableError, TableAlreadyExistsError)):
        catalog.create_table("db.t", SCHEMA, properties=ENCRYPTED)
    assert catalog.dynamodb.get_item(TableName=name, Key=key)["Item"] == item
    catalog.dynamodb.delete_item(TableName=name, Key=key)
