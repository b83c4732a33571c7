from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import ICEBERG, METADATA_LOCATION, PREVIOUS_METADATA_LOCATION, TABLE_TYPE
from pyiceberg.catalog.dynamodb import (
    DYNAMODB_COL_IDENTIFIER,
    DYNAMODB_COL_UPDATED_AT,
    DYNAMODB_COL_VERSION,
    _add_property_prefix,
    _get_create_table_item,
)
from pyiceberg.catalog.dynamodb import DynamoDbCatalog as PyIcebergDynamoDbCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchIcebergTableError,
    NoSuchPropertyException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableResponse

from pyiceberg_encryption.catalogs.metastore import EncryptingMetastoreCatalog

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.typedef import Identifier

_LOCATION = _add_property_prefix(METADATA_LOCATION)


class DynamoDbCatalog(EncryptingMetastoreCatalog, PyIcebergDynamoDbCatalog):
    """Tables in a DynamoDB table. PyIceberg's own catalog cannot commit to them; this one does, as Iceberg Java."""

    def _convert_dynamo_table_item_to_iceberg_table(self, dynamo_table_item: dict[str, Any]) -> Table:
        name = dynamo_table_item[DYNAMODB_COL_IDENTIFIER]["S"]
        kind, location = (
            dynamo_table_item.get(_add_property_prefix(label), {}).get("S", "")
            for label in (TABLE_TYPE, METADATA_LOCATION)
        )
        if kind.lower() != ICEBERG:
            raise NoSuchIcebergTableError(f"{name} is not an Iceberg table: {TABLE_TYPE} is {kind!r}")
        if not location:
            raise NoSuchPropertyException(f"{name} has no {METADATA_LOCATION}")
        return self._load(self.identifier_to_tuple(name), location)

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

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        names = self.identifier_to_database_and_table(table.name(), NoSuchTableError)
        item: dict[str, Any] | None = None
        current: Table | None = None
        try:
            item = self._get_iceberg_table_item(*names)
            current = self._convert_dynamo_table_item_to_iceberg_table(item)
        except NoSuchTableError:
            pass
        staged = self._update_and_stage_table(current, names, requirements, updates)
        if current is not None and staged.metadata == current.metadata:
            return CommitTableResponse(metadata=current.metadata, metadata_location=current.metadata_location)
        self._write_metadata(staged.metadata, staged.io, staged.metadata_location)
        self._point_to(staged, names, item)
        return CommitTableResponse(metadata=staged.metadata, metadata_location=staged.metadata_location)

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
            condition = {
                "ConditionExpression": f"{DYNAMODB_COL_VERSION} = :version",
                "ExpressionAttributeValues": {":version": item[DYNAMODB_COL_VERSION]},
            }
        try:
            self.dynamodb.put_item(TableName=self.dynamodb_table_name, Item=new, **condition)
        except self.dynamodb.exceptions.ConditionalCheckFailedException:
            if not self._was_committed(staged):  # which boto3 tries again when the answer is lost
                raise CommitFailedException(f"{'.'.join(names)} was changed by another commit") from None

    def _was_committed(self, staged: Table) -> bool:
        try:
            item = self._get_iceberg_table_item(*self.identifier_to_database_and_table(staged.name()))
        except NoSuchTableError:
            return False
        return bool(item[_LOCATION]["S"] == staged.metadata_location)
