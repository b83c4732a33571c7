from __future__ import annotations

import copy
import time
import uuid
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import METADATA_LOCATION, PREVIOUS_METADATA_LOCATION, TABLE_TYPE
from pyiceberg.catalog.dynamodb import (
    DYNAMODB_COL_IDENTIFIER,
    DYNAMODB_COL_NAMESPACE,
    DYNAMODB_COL_UPDATED_AT,
    DYNAMODB_COL_VERSION,
    _add_property_prefix,
    _get_create_table_item,
    _get_rename_table_item,
)
from pyiceberg.catalog.dynamodb import DynamoDbCatalog as PyIcebergDynamoDbCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)

from pyiceberg_encryption.catalogs.metastore import EncryptingMetastoreCatalog, metadata_location_of

if TYPE_CHECKING:
    from pyiceberg.table import CommitTableResponse, Table
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.typedef import Identifier

_LOCATION = _add_property_prefix(METADATA_LOCATION)


class DynamoDbCatalog(EncryptingMetastoreCatalog, PyIcebergDynamoDbCatalog):
    """Tables in a DynamoDB table. PyIceberg's own catalog cannot commit to them; this one does, as Iceberg Java."""

    def _convert_dynamo_table_item_to_iceberg_table(self, dynamo_table_item: dict[str, Any]) -> Table:
        name = dynamo_table_item[DYNAMODB_COL_IDENTIFIER]["S"]
        parameters = {
            label: dynamo_table_item.get(_add_property_prefix(label), {}).get("S", "")
            for label in (TABLE_TYPE, METADATA_LOCATION)
        }
        return self._load(self.identifier_to_tuple(name), metadata_location_of(name, parameters))

    def register_table(self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False) -> Table:
        if overwrite:
            raise NotImplementedError("`overwrite` isn't supported")
        names = self.identifier_to_database_and_table(identifier)
        self._ensure_namespace_exists(names[0])
        try:
            self._point_to(self._load(names, metadata_location), names, None)
        except CommitFailedException:
            raise TableAlreadyExistsError(f"Table {'.'.join(names)} already exists") from None
        return self.load_table(identifier)

    def rename_table(self, from_identifier: str | Identifier, to_identifier: str | Identifier) -> Table:
        """In one step, which fails if somebody commits meanwhile. PyIceberg's two would lose that commit."""
        before = self.identifier_to_database_and_table(from_identifier, NoSuchTableError)
        after = self.identifier_to_database_and_table(to_identifier)
        item = self._get_iceberg_table_item(*before)
        self._convert_dynamo_table_item_to_iceberg_table(item)
        self._ensure_namespace_exists(after[0])
        renamed = _get_rename_table_item(copy.deepcopy(item), *after)
        put = {"Item": renamed, "ConditionExpression": f"attribute_not_exists({DYNAMODB_COL_VERSION})"}
        delete = {
            "Key": {name: item[name] for name in (DYNAMODB_COL_IDENTIFIER, DYNAMODB_COL_NAMESPACE)},
            **_unchanged(item),
        }
        table = {"TableName": self.dynamodb_table_name}
        try:
            self.dynamodb.transact_write_items(TransactItems=[{"Put": put | table}, {"Delete": delete | table}])
        except self.dynamodb.exceptions.TransactionCanceledException:
            if self.table_exists(after):
                raise TableAlreadyExistsError(f"Table {'.'.join(after)} already exists") from None
            raise CommitFailedException(f"{'.'.join(before)} was changed while it was renamed; try again") from None
        return self.load_table(after)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        names = self.identifier_to_database_and_table(table.name(), NoSuchTableError)
        try:
            item = self._get_iceberg_table_item(*names)
        except NoSuchTableError:
            item = None
        current = None if item is None else self._convert_dynamo_table_item_to_iceberg_table(item)
        return self._commit(current, names, requirements, updates, lambda staged: self._point_to(staged, names, item))

    def _point_to(self, staged: Table, names: tuple[str, str], item: dict[str, Any] | None) -> None:
        """Fails if the item is not what it was. Iceberg Java compares the same attribute."""
        condition: dict[str, Any]
        if item is None:
            new = _get_create_table_item(*names, staged.metadata.properties, staged.metadata_location)
            condition = {"ConditionExpression": f"attribute_not_exists({DYNAMODB_COL_VERSION})"}
        else:
            new = {
                **item,
                DYNAMODB_COL_VERSION: {"S": str(uuid.uuid4())},
                DYNAMODB_COL_UPDATED_AT: {"N": str(round(time.time() * 1000))},
                _LOCATION: {"S": staged.metadata_location},
                _add_property_prefix(PREVIOUS_METADATA_LOCATION): item[_LOCATION],
            }
            condition = _unchanged(item)
        try:
            self.dynamodb.put_item(TableName=self.dynamodb_table_name, Item=new, **condition)
        except self.dynamodb.exceptions.ConditionalCheckFailedException:
            if not self._was_committed(staged):  # by an attempt whose answer was lost, and boto3 made another
                raise CommitFailedException(f"{'.'.join(names)} was changed by another commit") from None

    def _was_committed(self, staged: Table) -> bool:
        """Whether it is the table's metadata, or was, before others committed on top of it."""
        try:
            current = self.load_table(staged.name())
        except NoSuchTableError:
            return False
        locations = {entry.metadata_file for entry in current.metadata.metadata_log} | {current.metadata_location}
        return staged.metadata_location in locations


def _unchanged(item: dict[str, Any]) -> dict[str, Any]:
    """The condition that nobody has committed since this was read."""
    return {
        "ConditionExpression": f"{DYNAMODB_COL_VERSION} = :version",
        "ExpressionAttributeValues": {":version": item[DYNAMODB_COL_VERSION]},
    }
