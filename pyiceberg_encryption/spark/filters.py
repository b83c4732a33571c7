"""Filters that Spark offers, as expressions of Iceberg.

An expression may let more rows pass than the filter, for Spark applies its filters to what it gets. It must never let
less pass. In Spark NaN is equal to itself and greater than any number; where files are read it is neither.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    NotNull,
    Or,
    StartsWith,
)
from pyiceberg.expressions.literals import AboveMax, BelowMin, literal
from pyiceberg.schema import index_by_id, prune_columns
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyspark.sql import datasource as spark

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.schema import Schema

_COMPARABLE = (
    *(BooleanType, IntegerType, LongType, FloatType, DoubleType, DecimalType, DateType, StringType, BinaryType),
    *(TimestampType, TimestamptzType),
)
_COMPARISONS = {
    spark.EqualTo: EqualTo,
    spark.GreaterThan: GreaterThan,
    spark.GreaterThanOrEqual: GreaterThanOrEqual,
    spark.LessThan: LessThan,
    spark.LessThanOrEqual: LessThanOrEqual,
}


def to_expression(filters: Iterable[spark.Filter], schema: Schema) -> BooleanExpression:
    expression: BooleanExpression = AlwaysTrue()
    for offered in filters:
        translated = _translated(offered, schema)
        if translated is not None:
            expression = And(expression, translated)
    return expression


def with_one_meaning(schema: Schema, current: Schema) -> Schema:
    """The columns that have the same name in both schemas. An older snapshot may have had other columns by a name."""
    same = {
        field_id
        for field_id, field in index_by_id(schema).items()
        if field.field_type.is_primitive and schema.find_column_name(field_id) == current.find_column_name(field_id)
    }
    return prune_columns(schema, same, select_full_types=False)


def _translated(offered: spark.Filter, schema: Schema) -> BooleanExpression | None:
    if isinstance(offered, spark.Not):
        return _negated(offered.child, schema)
    found = _column(offered, schema)
    if found is None:
        return None
    name, kind = found
    if isinstance(kind, UUIDType):  # which Arrow cannot compare, and it compares with statistics even to find nulls
        return None
    if isinstance(offered, spark.IsNull):
        return _is_null(name, schema)
    if isinstance(offered, spark.IsNotNull):
        return _predicate(NotNull, name)
    if not isinstance(kind, _COMPARABLE) or not _fits(offered, kind):
        return None
    floats = isinstance(kind, (FloatType, DoubleType))
    if isinstance(offered, spark.In):
        values = [value for value in offered.value if value is not None]
        return None if floats or not values else _predicate(In, name, values)
    if isinstance(offered, spark.EqualNullSafe):
        if offered.value is None:
            return _is_null(name, schema)
        return None if floats else _predicate(EqualTo, name, offered.value)
    if isinstance(offered, spark.StringStartsWith):
        return _predicate(StartsWith, name, offered.value) if isinstance(kind, StringType) else None
    comparison = _COMPARISONS.get(type(offered))
    value = getattr(offered, "value", None)
    if comparison is None or value is None or (floats and not math.isfinite(value)):
        return None  # to PyIceberg, what is infinite is no float
    expression = _predicate(comparison, name, value)
    if floats and isinstance(offered, (spark.GreaterThan, spark.GreaterThanOrEqual)):
        return Or(expression, _predicate(IsNaN, name))
    return expression


def _is_null(name: str, schema: Schema) -> BooleanExpression | None:
    """A required field is never null to PyIceberg, but that of a struct is, where the struct is."""
    return None if schema.find_field(name).required and "." in name else _predicate(IsNull, name)


def _predicate(kind: Any, *arguments: Any) -> BooleanExpression:
    """For mypy, which does not find the constructors of PyIceberg's predicates."""
    expression: BooleanExpression = kind(*arguments)
    return expression


def _negated(offered: spark.Filter, schema: Schema) -> BooleanExpression | None:
    found = _column(offered, schema)
    if found is None or not isinstance(found[1], _COMPARABLE) or isinstance(found[1], (FloatType, DoubleType)):
        return None
    name, kind = found
    if not _fits(offered, kind):
        return None
    if isinstance(offered, spark.EqualTo) and offered.value is not None:
        return _predicate(NotEqualTo, name, offered.value)
    if isinstance(offered, spark.In) and offered.value and None not in offered.value:
        return _predicate(NotIn, name, list(offered.value))
    return None


def _fits(offered: spark.Filter, kind: PrimitiveType) -> bool:
    """Whether the column could have these values. PyIceberg takes the nearest number for one that is out of range."""
    given = getattr(offered, "value", None)
    if isinstance(kind, (FloatType, DoubleType)):
        return True
    for value in given if isinstance(given, (list, tuple)) else [given]:
        try:
            if value is not None and isinstance(literal(value).to(kind), (AboveMax, BelowMin)):
                return False
        except (TypeError, ValueError):
            return False
    return True


def _column(offered: spark.Filter, schema: Schema) -> tuple[str, PrimitiveType] | None:
    path = getattr(offered, "attribute", ())
    if not path or any("." in part for part in path):
        return None
    name = ".".join(path)
    try:
        kind = schema.find_field(name).field_type
    except ValueError:
        return None
    return (name, kind) if isinstance(kind, PrimitiveType) else None
