"""Table metadata as the very JSON that Iceberg Java writes for it.

Java proves a metadata file by parsing it, writing what it parsed, and hashing that. So whatever commits to a table that
Java reads has to use Java's order of fields, spacing and escapes.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyiceberg.typedef import IcebergBaseModel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.table.metadata import TableMetadata

# Iceberg Java: TableMetadataParser.toJson and the parsers that it calls.
METADATA_FIELDS = (
    "format-version",
    "table-uuid",
    "location",
    "last-sequence-number",
    "last-updated-ms",
    "last-column-id",
    "current-schema-id",
    "schemas",
    "default-spec-id",
    "partition-specs",
    "last-partition-id",
    "default-sort-order-id",
    "sort-orders",
    "properties",
    "current-snapshot-id",
    "next-row-id",
    "encryption-keys",
    "refs",
    "snapshots",
    "statistics",
    "partition-statistics",
    "snapshot-log",
    "metadata-log",
)
SCHEMA_FIELDS = ("type", "schema-id", "identifier-field-ids", "fields")
COLUMN_FIELDS = ("id", "name", "required", "type", "doc", "initial-default", "write-default")
LIST_FIELDS = ("type", "element-id", "element", "element-required")
MAP_FIELDS = ("type", "key-id", "key", "value-id", "value", "value-required")
SPEC_FIELDS = ("spec-id", "fields")
PARTITION_FIELDS = ("name", "transform", "source-id", "field-id")
SORT_ORDER_FIELDS = ("order-id", "fields")
SORT_FIELDS = ("transform", "source-id", "direction", "null-order")
KEY_FIELDS = ("key-id", "encrypted-key-metadata", "encrypted-by-id", "properties")
REF_FIELDS = ("snapshot-id", "type", "min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms")
SNAPSHOT_FIELDS = (
    "sequence-number",
    "snapshot-id",
    "parent-snapshot-id",
    "timestamp-ms",
    "summary",
    "manifest-list",
    "schema-id",
    "first-row-id",
    "added-rows",
    "key-id",
)
STATISTICS_FIELDS = (
    "snapshot-id",
    "statistics-path",
    "file-size-in-bytes",
    "file-footer-size-in-bytes",
    "blob-metadata",
)
BLOB_FIELDS = ("type", "snapshot-id", "sequence-number", "fields", "properties")
PARTITION_STATISTICS_FIELDS = ("snapshot-id", "statistics-path", "file-size-in-bytes")
SNAPSHOT_LOG_FIELDS = ("timestamp-ms", "snapshot-id")
METADATA_LOG_FIELDS = ("timestamp-ms", "metadata-file")


def to_json(metadata: TableMetadata) -> bytes:
    """The content of a metadata file of format version 3."""
    fields = IcebergBaseModel.model_dump(metadata, mode="json")
    # PyIceberg leaves out what is null; Java writes this one as null.
    fields.setdefault("current-snapshot-id", None)
    parts = (
        (name, _encode(value) if name == "schemas" else _dumps(value)) for name, value in _metadata(fields).items()
    )
    return ("{" + ",".join(f'"{name}":{text}' for name, text in parts) + "}").encode()


def _metadata(fields: dict[str, Any]) -> dict[str, Any]:
    ordered = _ordered(fields, METADATA_FIELDS)
    ordered["schemas"] = [_struct(schema, SCHEMA_FIELDS) for schema in fields["schemas"]]
    ordered["partition-specs"] = [
        _with_fields(spec, SPEC_FIELDS, PARTITION_FIELDS) for spec in fields["partition-specs"]
    ]
    ordered["sort-orders"] = [_with_fields(order, SORT_ORDER_FIELDS, SORT_FIELDS) for order in fields["sort-orders"]]
    if keys := fields.get("encryption-keys"):
        ordered["encryption-keys"] = _all_ordered(keys, KEY_FIELDS)
    else:
        ordered.pop("encryption-keys", None)
    ordered["refs"] = {name: _ordered(ref, REF_FIELDS) for name, ref in fields["refs"].items()}
    ordered["snapshots"] = [_snapshot(snapshot) for snapshot in fields["snapshots"]]
    ordered["statistics"] = [_statistics(statistics) for statistics in fields["statistics"]]
    ordered["partition-statistics"] = _all_ordered(fields["partition-statistics"], PARTITION_STATISTICS_FIELDS)
    ordered["snapshot-log"] = _all_ordered(fields["snapshot-log"], SNAPSHOT_LOG_FIELDS)
    ordered["metadata-log"] = _all_ordered(fields["metadata-log"], METADATA_LOG_FIELDS)
    return ordered


def _struct(fields: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    struct = _ordered(fields, names)
    if not struct.get("identifier-field-ids"):
        struct.pop("identifier-field-ids", None)
    struct["fields"] = [_column(column) for column in fields["fields"]]
    return struct


def _column(fields: dict[str, Any]) -> dict[str, Any]:
    column = _ordered(fields, COLUMN_FIELDS)
    column["type"] = _type(fields["type"])
    return column


def _type(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub(r"^decimal\((\d+),(\d+)\)$", r"decimal(\1, \2)", value)
    if value["type"] == "struct":
        return _struct(value, ("type", "fields"))
    if value["type"] == "list":
        return _ordered(value, LIST_FIELDS) | {"element": _type(value["element"])}
    return _ordered(value, MAP_FIELDS) | {"key": _type(value["key"]), "value": _type(value["value"])}


def _with_fields(value: dict[str, Any], names: tuple[str, ...], names_of_fields: tuple[str, ...]) -> dict[str, Any]:
    return _ordered(value, names) | {"fields": _all_ordered(value["fields"], names_of_fields)}


def _snapshot(fields: dict[str, Any]) -> dict[str, Any]:
    snapshot = _ordered(fields, SNAPSHOT_FIELDS)
    if not snapshot.get("sequence-number"):
        snapshot.pop("sequence-number", None)
    return snapshot


def _statistics(fields: dict[str, Any]) -> dict[str, Any]:
    statistics = _ordered(fields, STATISTICS_FIELDS)
    statistics["blob-metadata"] = _all_ordered(fields["blob-metadata"], BLOB_FIELDS)
    for blob in statistics["blob-metadata"]:
        if not blob.get("properties"):
            blob.pop("properties", None)
    return statistics


def _all_ordered(values: Iterable[dict[str, Any]], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [_ordered(value, names) for value in values]


def _ordered(fields: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}


def _encode(value: Any) -> str:
    """Schemas alone can hold fractions, as defaults of columns, which Java writes in its own way."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_dumps(key)}:{_encode(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_encode, value)) + "]"
    return _java_double(value) if isinstance(value, float) else _dumps(value)


def _dumps(value: Any) -> str:
    """As Jackson does: no spaces, UTF-8 as it is, and upper-case hex digits in the escapes of control characters."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if "\\u" not in text:
        return text
    return re.sub(r"\\(?:u([0-9a-f]{4})|.)", lambda found: rf"\u{found[1].upper()}" if found[1] else found[0], text)


def _java_double(value: float) -> str:
    """As Double.toString does: at least one decimal, and an exponent from 10^7 up and below 10^-3."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return format(Decimal(repr(value)), "f") if "e" in repr(value) else repr(value)
    mantissa, _, exponent = format(Decimal(repr(value)).normalize(), "E").partition("E")
    return f"{mantissa if '.' in mantissa else mantissa + '.0'}E{int(exponent)}"
