"""An expression lets every row pass that the filter does, of files of many kinds. A few more may pass."""

from __future__ import annotations

import contextlib
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
)
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

pytest.importorskip("pyspark", reason="needs Spark: `pip install --group test`")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.pandas.types import to_arrow_schema

from pyiceberg_encryption.spark.filters import to_expression
from pyiceberg_encryption.spark.types import FromSpark, to_spark_schema
from tests.pipeline.support import append, new_table
from tests.table_support import Lake

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.table import Table

NAN, INFINITY = float("nan"), float("inf")
UTC = timezone.utc
MOMENTS = [
    datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime(1970, 1, 1),
    datetime(2024, 2, 29, 12, 30, 0, 1),
    datetime(2024, 3, 1),
]
VALUES: dict[str, list[Any]] = {
    "a_boolean": [False, True],
    "an_int": [-(2**31) + 8, -1, 0, 7, 2**31 - 1],
    "a_long": [-(2**63), -1, 0, 7, 2**63 - 1],
    "a_float": [-INFINITY, -1.5, -0.0, 0.0, INFINITY, NAN],
    "a_double": [-INFINITY, -1.5, -0.0, 0.0, 0.1, INFINITY, NAN],
    "a_decimal": [Decimal("-1.50"), Decimal("0.00"), Decimal("1.50"), Decimal("9999999.99")],
    "a_date": [date(1969, 12, 31), date(1970, 1, 1), date(2024, 2, 29), date(2024, 3, 1)],
    "a_timestamp": MOMENTS,
    "a_timestamptz": [moment.replace(tzinfo=UTC) for moment in MOMENTS],
    "a_string": ["", "ab", "ab" * 20, "b", "\uffff", "\U0001f511"],
    "a_binary": [b"", b"\x00\xff", b"\x7f", b"\x80", b"\xff" * 20],
}
TYPES = {
    "a_boolean": BooleanType(),
    "an_int": IntegerType(),
    "a_long": LongType(),
    "a_float": FloatType(),
    "a_double": DoubleType(),
    "a_decimal": DecimalType(9, 2),
    "a_date": DateType(),
    "a_timestamp": TimestampType(),
    "a_timestamptz": TimestamptzType(),
    "a_string": StringType(),
    "a_binary": BinaryType(),
}
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    *(NestedField(10 + number, name, kind) for number, (name, kind) in enumerate(TYPES.items())),
    NestedField(
        40,
        "within",
        StructType(*(NestedField(50 + number, name, kind) for number, (name, kind) in enumerate(TYPES.items()))),
    ),
    NestedField(80, "a_uuid", UUIDType()),
    NestedField(81, "a.dot", LongType()),
    NestedField(82, "a_list", ListType(83, LongType(), element_required=False)),
)
COUNT = max(map(len, VALUES.values())) + 1


def value(column: str, row: int) -> Any:
    """The last row has nulls, and so do columns of few values more often."""
    return VALUES[column][row] if row < len(VALUES[column]) else None


def rows() -> pa.Table:
    found = []
    for row in range(COUNT):
        values = {column: value(column, row) for column in VALUES}
        found.append({"id": row, **values, "within": values if row < COUNT - 1 else None})
    (batch,) = pa.Table.from_pylist(found, schema=to_arrow_schema(to_spark_schema(SCHEMA))).to_batches()
    return pa.Table.from_batches([FromSpark(SCHEMA)(batch)])


def by(**transforms: Transform[Any, Any]) -> PartitionSpec:
    return PartitionSpec(
        *(
            PartitionField(SCHEMA.find_field(column).field_id, 1000 + number, transform, f"by_{column}")
            for number, (column, transform) in enumerate(transforms.items())
        )
    )


COARSE = by(
    an_int=TruncateTransform(10),
    a_long=BucketTransform(2),
    a_decimal=TruncateTransform(100),
    a_date=MonthTransform(),
    a_timestamp=DayTransform(),
    a_timestamptz=DayTransform(),
    a_string=TruncateTransform(1),
    a_binary=TruncateTransform(1),
)
LAYOUTS = {
    "one file": PartitionSpec(),
    "a file for each row": by(id=IdentityTransform()),
    "by value": by(**dict.fromkeys(VALUES, IdentityTransform())),
    "by some of the value": COARSE,
}


@pytest.fixture(scope="module", params=LAYOUTS)
def table(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Table]:
    with contextlib.closing(Lake(tmp_path_factory.mktemp("lake"))) as lake:
        table = new_table(lake, SCHEMA, partition_spec=LAYOUTS[request.param])
        append(table, rows())
        yield table


def in_order(value: Any) -> Any:
    """As Spark compares."""
    if isinstance(value, float):
        return (1, 0.0) if value != value else (0, value)
    return value.encode() if isinstance(value, str) else value


def passes(offered: Filter, found: Any) -> bool | None:
    """What Spark makes of a filter on a value. None is its NULL."""
    match offered:
        case Not(child):
            result = passes(child, found)
            return None if result is None else not result
        case IsNull():
            return found is None
        case IsNotNull():
            return found is not None
        case EqualNullSafe(value=wanted) if found is None or wanted is None:
            return found is wanted
        case _ if found is None:
            return None
        case In(value=wanted):
            if in_order(found) in [in_order(one) for one in wanted if one is not None]:
                return True
            return None if None in wanted else False
        case EqualTo(value=wanted) | EqualNullSafe(value=wanted):
            return None if wanted is None else bool(in_order(found) == in_order(wanted))
        case GreaterThan(value=wanted):
            return bool(in_order(found) > in_order(wanted))
        case GreaterThanOrEqual(value=wanted):
            return bool(in_order(found) >= in_order(wanted))
        case LessThan(value=wanted):
            return bool(in_order(found) < in_order(wanted))
        case LessThanOrEqual(value=wanted):
            return bool(in_order(found) <= in_order(wanted))
        case StringStartsWith(value=wanted):
            return bool(found.startswith(wanted))
        case StringEndsWith(value=wanted):
            return bool(found.endswith(wanted))
        case StringContains(value=wanted):
            return wanted in found
    raise TypeError(offered)


COMPARISONS = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


def filters(path: tuple[str, ...]) -> Iterator[Filter]:
    values = VALUES[path[-1]]
    positive: list[Filter] = [kind(path, one) for kind in COMPARISONS for one in values]
    positive += [IsNull(path), IsNotNull(path), EqualTo(path, None), EqualNullSafe(path, None)]
    positive += [In(path, some) for some in (tuple(values[:2]), tuple(values[2:]), (values[0], None), (None,), ())]
    if path[-1] == "a_string":
        positive += [kind(path, one) for kind in (StringStartsWith, StringEndsWith, StringContains) for one in values]
    for one in positive:
        yield one
        yield Not(one)


def found(table: Table, *offered: Filter) -> set[int]:
    return set(table.scan(to_expression(offered, SCHEMA), selected_fields=("id",)).to_arrow()["id"].to_pylist())


@pytest.mark.parametrize("column", VALUES)
def test_no_row_is_lost(table: Table, column: str) -> None:
    paths = [(column,)] if table.spec().fields else [(column,), ("within", column)]
    for offered in (offered for path in paths for offered in filters(path)):
        if to_expression([offered], SCHEMA) != AlwaysTrue():
            expected = {row for row in range(COUNT) if passes(offered, value(column, row))}
            assert found(table, offered) >= expected, offered


EXACT = [
    (EqualTo(("an_int",), 7), {3}),
    (EqualTo(("a_double",), 0.0), {2, 3}),
    (GreaterThan(("a_double",), 0.0), {4, 5, 6}),
    (LessThan(("a_float",), 0.0), {0, 1}),
    (EqualTo(("a_decimal",), Decimal("1.50")), {2}),
    (In(("a_date",), (date(1970, 1, 1), None)), {1}),
    (LessThanOrEqual(("a_timestamp",), MOMENTS[0]), {0}),
    (GreaterThanOrEqual(("a_timestamptz",), MOMENTS[3].replace(tzinfo=UTC)), {3}),
    (StringStartsWith(("a_string",), "ab"), {1, 2}),
    (GreaterThan(("a_binary",), b"\x7f"), {3, 4}),
    (IsNull(("a_boolean",)), set(range(2, COUNT))),
]
NESTED = (EqualTo(("within", "a_string"), "b"), {3})  # there are no statistics of what is nested


@pytest.mark.parametrize(("offered", "expected"), [*EXACT, NESTED])
def test_rows_are_left_out_where_files_are_read(table: Table, offered: Filter, expected: set[int]) -> None:
    assert found(table, offered) == expected


@pytest.mark.parametrize("table", ["a file for each row"], indirect=True)
def test_files_are_left_out_where_the_scan_is_planned(table: Table) -> None:
    for offered, expected in EXACT:
        tasks = list(table.scan(to_expression([offered], SCHEMA)).plan_files())
        assert {task.file.partition[0] for task in tasks} == expected, offered
    together = to_expression([GreaterThan(("an_int",), -1), LessThan(("a_string",), "b")], SCHEMA)
    assert len(list(table.scan(together).plan_files())) == 1


@pytest.mark.parametrize(
    "offered",
    [
        EqualTo(("a_uuid",), "f79c3e09-677c-4bbd-a479-3f349cb785e7"),
        IsNotNull(("a_uuid",)),
        EqualTo(("a.dot",), 1),
        EqualTo(("nowhere",), 1),
        IsNull(("a_list",)),
        EqualTo(("a_double",), NAN),
        LessThanOrEqual(("a_double",), NAN),
        Not(LessThan(("a_double",), 1.0)),
        In(("a_double",), (1.0, NAN)),
        StringContains(("a_string",), "a"),
        Not(Not(EqualTo(("an_int",), 1))),
    ],
)
def test_what_has_no_equal_is_left_to_spark(offered: Filter) -> None:
    assert to_expression([offered], SCHEMA) == AlwaysTrue()


@pytest.mark.parametrize(
    "offered",
    [
        Not(In(("an_int",), (1, 2**40))),
        Not(EqualTo(("an_int",), -(2**40))),
        In(("a_decimal",), (Decimal("1.0"),)),
        EqualTo(("a_decimal",), Decimal("0.999")),
    ],
)
def test_values_that_the_column_cannot_have_are_left_to_spark(offered: Filter) -> None:
    """PyIceberg would leave out the greatest number, for one that is greater still."""
    schema = Schema(
        NestedField(1, "an_int", IntegerType(), required=False),
        NestedField(2, "a_decimal", DecimalType(9, 2), required=False),
    )
    assert to_expression([offered], schema) == AlwaysTrue()


@pytest.mark.parametrize("offered", [IsNull(("st", "a")), EqualNullSafe(("st", "a"), None)])
def test_a_required_field_is_null_where_its_struct_is(offered: Filter) -> None:
    """PyIceberg takes it to be null nowhere."""
    inner = StructType(NestedField(2, "a", LongType(), required=True), NestedField(3, "b", LongType()))
    schema = Schema(NestedField(1, "st", inner))
    assert to_expression([offered], schema) == AlwaysTrue()
    assert to_expression([IsNull(("st", "b"))], schema) != AlwaysTrue()
