"""Avro data files: against those of Iceberg Java, what Java makes of a schema, fastavro, and PyIceberg's own reader."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
from datetime import date, datetime, time, timezone
from decimal import Decimal
from hashlib import sha256
from typing import IO, TYPE_CHECKING, Any, cast
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import InputFile, OutputFile, OutputStream
from pyiceberg.io.fileformat import FileFormatModel
from pyiceberg.io.pyarrow import _to_requested_schema, pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema, prune_columns, sanitize_column_names
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UnknownType,
    UUIDType,
)

from pyiceberg_encryption.errors import ConfigurationError, FormatError, UsageError
from pyiceberg_encryption.table import avro_data
from pyiceberg_encryption.table.avro_data import AvroDataFile, AvroFormatModel, AvroFormatWriter, to_avro
from tests.test_golden_tables import GoldenTable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from pyiceberg_encryption import AesGcmInputStream

CODECS = ["gzip", "zstd", "snappy", "uncompressed"]


def optional(field_id: int, name: str, type_: IcebergType, doc: str | None = None) -> NestedField:
    return NestedField(field_id, name, type_, required=False, doc=doc)


def required(field_id: int, name: str, type_: IcebergType) -> NestedField:
    return NestedField(field_id, name, type_, required=True)


SCHEMA = Schema(
    required(1, "id", LongType()),
    optional(2, "flag", BooleanType(), "a flag"),
    optional(3, "int_", IntegerType()),
    required(4, "f", FloatType()),
    optional(5, "d", DoubleType()),
    optional(6, "d1", DecimalType(1, 0)),
    optional(7, "d9", DecimalType(9, 2)),
    required(8, "d18", DecimalType(18, 18)),
    optional(9, "d38", DecimalType(38, 10)),
    optional(10, "d9again", DecimalType(9, 2)),
    optional(11, "day", DateType()),
    optional(12, "time", TimeType()),
    optional(13, "ts", TimestampType()),
    required(14, "tstz", TimestamptzType()),
    optional(15, "tsn", TimestampNanoType()),
    optional(16, "tstzn", TimestamptzNanoType()),
    optional(17, "s", StringType()),
    optional(18, "u", UUIDType()),
    required(19, "u2", UUIDType()),
    optional(20, "fx", FixedType(5)),
    optional(21, "fx2", FixedType(5)),
    optional(22, "b", BinaryType()),
    optional(
        23,
        "st",
        StructType(
            optional(24, "x", IntegerType()),
            required(25, "y", StructType(required(26, "z", TimestampType()), optional(27, "w", DecimalType(9, 2)))),
        ),
    ),
    optional(28, "li", ListType(29, IntegerType(), element_required=False)),
    optional(30, "ls", ListType(31, StructType(optional(32, "q", UUIDType())), element_required=True)),
    optional(33, "ll", ListType(34, ListType(35, DecimalType(38, 10), element_required=False), element_required=False)),
    optional(36, "m", MapType(37, StringType(), 38, IntegerType(), value_required=True)),
    optional(39, "ms", MapType(40, StringType(), 41, StructType(optional(42, "v", DateType())), value_required=False)),
    optional(43, "mi", MapType(44, IntegerType(), 45, StringType(), value_required=False)),
    optional(
        46,
        "mk",
        MapType(
            47,
            StructType(required(48, "k", LongType())),
            49,
            ListType(50, MapType(51, UUIDType(), 52, DoubleType(), value_required=True)),
            value_required=True,
        ),
    ),
    optional(53, "unk", UnknownType()),
    optional(54, "lst_unk", ListType(55, UnknownType(), element_required=False)),
    optional(56, "map_unk", MapType(57, IntegerType(), 58, UnknownType(), value_required=False)),
    optional(59, "2 strange-nämé.€", StringType()),
)

# What AvroSchemaUtil.convert(SCHEMA, "table") of Iceberg Java 1.12.0 returns
JAVA_SCHEMA = """
{"type": "record", "name": "table", "fields": [{"name": "id", "type": "long", "field-id": 1}, {"name": "flag", "type":
["null", "boolean"], "doc": "a flag", "default": null, "field-id": 2}, {"name": "int_", "type": ["null", "int"],
"default": null, "field-id": 3}, {"name": "f", "type": "float", "field-id": 4}, {"name": "d", "type": ["null",
"double"], "default": null, "field-id": 5}, {"name": "d1", "type": ["null",{"type": "fixed", "name": "decimal_1_0",
"size": 1, "logicalType": "decimal", "precision": 1, "scale": 0}], "default": null, "field-id": 6}, {"name": "d9",
"type": ["null",{"type": "fixed", "name": "decimal_9_2", "size": 4, "logicalType": "decimal", "precision": 9, "scale":
2}], "default": null, "field-id": 7}, {"name": "d18", "type": {"type": "fixed", "name": "decimal_18_18", "size": 8,
"logicalType": "decimal", "precision": 18, "scale": 18}, "field-id": 8}, {"name": "d38", "type": ["null",{"type":
"fixed", "name": "decimal_38_10", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 10}], "default":
null, "field-id": 9}, {"name": "d9again", "type": ["null", "decimal_9_2"], "default": null, "field-id": 10}, {"name":
"day", "type": ["null",{"type": "int", "logicalType": "date"}], "default": null, "field-id": 11}, {"name": "time",
"type": ["null",{"type": "long", "logicalType": "time-micros"}], "default": null, "field-id": 12}, {"name": "ts",
"type": ["null",{"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": false}], "default": null,
"field-id": 13}, {"name": "tstz", "type": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": true},
"field-id": 14}, {"name": "tsn", "type": ["null",{"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc":
false}], "default": null, "field-id": 15}, {"name": "tstzn", "type": ["null",{"type": "long", "logicalType":
"timestamp-nanos", "adjust-to-utc": true}], "default": null, "field-id": 16}, {"name": "s", "type": ["null",
"string"], "default": null, "field-id": 17}, {"name": "u", "type": ["null",{"type": "fixed", "name": "uuid_fixed",
"size": 16, "logicalType": "uuid"}], "default": null, "field-id": 18}, {"name": "u2", "type": "uuid_fixed",
"field-id": 19}, {"name": "fx", "type": ["null",{"type": "fixed", "name": "fixed_5", "size": 5}], "default": null,
"field-id": 20}, {"name": "fx2", "type": ["null", "fixed_5"], "default": null, "field-id": 21}, {"name": "b", "type":
["null", "bytes"], "default": null, "field-id": 22}, {"name": "st", "type": ["null",{"type": "record", "name": "r23",
"fields": [{"name": "x", "type": ["null", "int"], "default": null, "field-id": 24}, {"name": "y", "type": {"type":
"record", "name": "r25", "fields": [{"name": "z", "type": {"type": "long", "logicalType": "timestamp-micros",
"adjust-to-utc": false}, "field-id": 26}, {"name": "w", "type": ["null", "decimal_9_2"], "default": null, "field-id":
27}]}, "field-id": 25}]}], "default": null, "field-id": 23}, {"name": "li", "type": ["null",{"type": "array", "items":
["null", "int"], "element-id": 29}], "default": null, "field-id": 28}, {"name": "ls", "type": ["null",{"type":
"array", "items": {"type": "record", "name": "r31", "fields": [{"name": "q", "type": ["null", "uuid_fixed"],
"default": null, "field-id": 32}]}, "element-id": 31}], "default": null, "field-id": 30}, {"name": "ll", "type":
["null",{"type": "array", "items": ["null",{"type": "array", "items": ["null", "decimal_38_10"], "element-id": 35}],
"element-id": 34}], "default": null, "field-id": 33}, {"name": "m", "type": ["null",{"type": "map", "values": "int",
"key-id": 37, "value-id": 38}], "default": null, "field-id": 36}, {"name": "ms", "type": ["null",{"type": "map",
"values": ["null",{"type": "record", "name": "r41", "fields": [{"name": "v", "type": ["null",{"type": "int",
"logicalType": "date"}], "default": null, "field-id": 42}]}], "key-id": 40, "value-id": 41}], "default": null,
"field-id": 39}, {"name": "mi", "type": ["null",{"type": "array", "items": {"type": "record", "name": "k44_v45",
"fields": [{"name": "key", "type": "int", "field-id": 44}, {"name": "value", "type": ["null", "string"], "default":
null, "field-id": 45}]}, "logicalType": "map"}], "default": null, "field-id": 43}, {"name": "mk", "type":
["null",{"type": "array", "items": {"type": "record", "name": "k47_v49", "fields": [{"name": "key", "type": {"type":
"record", "name": "r47", "fields": [{"name": "k", "type": "long", "field-id": 48}]}, "field-id": 47}, {"name":
"value", "type": {"type": "array", "items": {"type": "array", "items": {"type": "record", "name": "k51_v52", "fields":
[{"name": "key", "type": "uuid_fixed", "field-id": 51}, {"name": "value", "type": "double", "field-id": 52}]},
"logicalType": "map"}, "element-id": 50}, "field-id": 49}]}, "logicalType": "map"}], "default": null, "field-id": 46},
{"name": "unk", "type": "null", "default": null, "field-id": 53}, {"name": "lst_unk", "type": ["null",{"type":
"array", "items": "null", "element-id": 55}], "default": null, "field-id": 54}, {"name": "map_unk", "type":
["null",{"type": "array", "items": {"type": "record", "name": "k57_v58", "fields": [{"name": "key", "type": "int",
"field-id": 57}, {"name": "value", "type": "null", "field-id": 58}]}, "logicalType": "map"}], "default": null,
"field-id": 56}, {"name": "_2_x20strange_x2Dnämé_x2E_x20AC", "type": ["null", "string"], "default": null,
"iceberg-field-name": "2 strange-nämé.€", "field-id": 59}]}
"""


class Kept(io.BytesIO):
    """A stream that can be looked at when it was closed, and knows how."""

    kept = b""
    failed = False

    def close(self) -> None:
        if not self.closed:
            self.kept = self.getvalue()
        super().close()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self.failed = exc_type is not None
        super().__exit__(exc_type, exc_val, exc_tb)


class MemoryFile(OutputFile, InputFile):
    def __init__(self) -> None:
        super().__init__("memory:file.avro")
        self.stream = Kept()

    def __len__(self) -> int:
        return len(self.stream.kept)

    def exists(self) -> bool:
        return True

    def to_input_file(self) -> InputFile:
        return self

    def create(self, overwrite: bool = False) -> OutputStream:
        assert overwrite
        return self.stream

    def open(self, seekable: bool = True) -> io.BytesIO:
        return io.BytesIO(self.stream.kept)


def written(schema: Schema, *tables: pa.Table, **properties: str) -> MemoryFile:
    file = MemoryFile()
    with AvroFormatWriter(
        file, schema, {f"write.avro.{key}".replace("_", "-"): v for key, v in properties.items()}
    ) as w:
        for table in tables:
            w.write(table)
    assert w.result().record_count == sum(table.num_rows for table in tables)
    return file


def read(file: MemoryFile, wanted: set[int] | None = None) -> pa.Table:
    avro = AvroDataFile(file.open())
    schema = avro.schema if wanted is None else next(avro.batches(wanted)).schema
    return pa.Table.from_batches(avro.batches(wanted), schema)


def arrow(schema: Schema, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as PyIceberg would hand them to a writer. Dates and times are given as integers."""

    def storage(type_: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(type_):
            return pa.struct([(field.name, storage(field.type)) for field in type_])
        if pa.types.is_map(type_):
            return pa.map_(storage(type_.key_type), storage(type_.item_type))
        if pa.types.is_nested(type_):
            return pa.large_list(storage(type_.value_type))
        return pa.binary(16) if type_ == pa.uuid() else type_  # Arrow makes no UUIDs from rows

    def exact(array: pa.Array, type_: pa.DataType) -> pa.Array:
        nulls = array.is_null()
        if pa.types.is_struct(type_):
            columns = [exact(array.field(index), field.type) for index, field in enumerate(type_)]
            return pa.StructArray.from_arrays(columns, fields=list(type_), mask=nulls)
        if pa.types.is_map(type_):
            keys, items = exact(array.keys, type_.key_type), exact(array.items, type_.item_type)
            return pa.MapArray.from_arrays(array.offsets, keys, items, type_, mask=nulls)
        if pa.types.is_nested(type_):
            return pa.LargeListArray.from_arrays(
                array.offsets, exact(array.values, type_.value_type), type_, mask=nulls
            )
        return array.cast(type_)

    target = pa.struct(schema_to_pyarrow(schema))
    array = exact(pa.array(rows, storage(target)), target)
    array.validate(full=True)
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(array)])


EXTREME_MICROS = [-1, 0, -62_135_596_800_000_000, 253_402_300_799_999_999, -(2**63), 2**63 - 1]  # years 1 and 9999
MICROS = st.sampled_from(EXTREME_MICROS) | st.integers(-(2**63), 2**63 - 1)
VALUES: dict[type[IcebergType], st.SearchStrategy[Any]] = {
    BooleanType: st.booleans(),
    IntegerType: st.integers(-(2**31), 2**31 - 1),
    LongType: st.integers(-(2**63), 2**63 - 1),
    FloatType: st.floats(width=32, allow_nan=False),
    DoubleType: st.floats(allow_nan=False),
    DateType: st.sampled_from([-1, -719_162, 2_932_896]) | st.integers(-(2**31), 2**31 - 1),
    TimeType: st.integers(0, 24 * 60 * 60 * 1_000_000 - 1),
    TimestampType: MICROS,
    TimestamptzType: MICROS,
    TimestampNanoType: MICROS,
    TimestamptzNanoType: MICROS,
    StringType: st.text(max_size=20),
    UUIDType: st.binary(min_size=16, max_size=16),
    BinaryType: st.binary(max_size=20),
    UnknownType: st.none(),
}


def values(type_: IcebergType) -> st.SearchStrategy[Any]:
    def of(field: NestedField) -> st.SearchStrategy[Any]:
        return values(field.field_type) if field.required else st.none() | values(field.field_type)

    if isinstance(type_, StructType):
        return st.fixed_dictionaries({field.name: of(field) for field in type_.fields})
    if isinstance(type_, ListType):
        return st.lists(of(type_.element_field), max_size=3)
    if isinstance(type_, MapType):
        return st.lists(
            st.tuples(of(type_.key_field), of(type_.value_field)), max_size=3, unique_by=lambda e: repr(e[0])
        )
    if isinstance(type_, FixedType):
        return st.binary(min_size=len(type_), max_size=len(type_))
    if isinstance(type_, DecimalType):
        largest, scale = 10**type_.precision - 1, type_.scale
        digits = st.sampled_from([largest, -largest, -1, 0]) | st.integers(-largest, largest)
        return digits.map(lambda unscaled: Decimal(f"{unscaled}e-{scale}"))
    return VALUES[type(type_)]


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    ids = itertools.count(1)

    def primitive() -> IcebergType:
        kind: Any = draw(st.sampled_from([*VALUES, FixedType, DecimalType]))
        if kind is FixedType:
            return FixedType(draw(st.integers(1, 20)))
        if kind is DecimalType:
            precision = draw(st.integers(1, 38))
            return DecimalType(precision, draw(st.integers(0, precision)))
        primitive: IcebergType = kind()
        return primitive

    def type_(depth: int) -> IcebergType:
        kind = draw(st.sampled_from(["primitive", "struct", "list", "map"])) if depth < 3 else "primitive"
        if kind == "struct":
            return StructType(*fields(depth + 1))
        if kind == "list":
            element = field("element", depth + 1)
            return ListType(element.field_id, element.field_type, element.required)
        if kind == "map":
            key, value = field("key", depth + 1, required=True), field("value", depth + 1)
            return MapType(key.field_id, key.field_type, value.field_id, value.field_type, value.required)
        return primitive()

    def field(name: str, depth: int, required: bool = False) -> NestedField:
        field_id, of = next(ids), type_(depth)
        if required and isinstance(of, UnknownType):
            of = StringType()
        required = required or (draw(st.booleans()) and not isinstance(of, UnknownType))
        return NestedField(field_id, name, of, required=required)

    def fields(depth: int) -> list[NestedField]:
        return [field(f"f{number}", depth) for number in range(draw(st.integers(1, 3)))]

    return Schema(*fields(0))


@st.composite
def tables(draw: st.DrawFn) -> tuple[Schema, pa.Table]:
    schema = draw(schemas())
    return schema, arrow(schema, draw(st.lists(values(schema.as_struct()), min_size=1, max_size=5)))


FILE_SCHEMA = sanitize_column_names(SCHEMA)
ROWS = st.lists(values(FILE_SCHEMA.as_struct()), min_size=1, max_size=5).map(lambda rows: arrow(FILE_SCHEMA, rows))


def file_of(metadata: dict[str, bytes], *blocks: tuple[int, bytes]) -> io.BytesIO:
    """An Avro file that need not be a good one."""
    stream, sync = io.BytesIO(), bytes(16)
    stream.write(b"Obj\x01")
    fastavro.schemaless_writer(stream, {"type": "map", "values": "bytes"}, metadata)
    stream.write(sync)
    for count, block in blocks:
        fastavro.schemaless_writer(stream, "long", count)
        fastavro.schemaless_writer(stream, "bytes", block)
        stream.write(sync)
    stream.seek(0)
    return stream


def schema_of(*fields: dict[str, Any]) -> dict[str, bytes]:
    return {"avro.schema": json.dumps({"type": "record", "name": "table", "fields": fields}).encode()}


# Iceberg Java


def java_files() -> Iterator[tuple[dict[str, Any], AesGcmInputStream]]:
    table = GoldenTable("avro")
    for file, key in {file["file_path"]: (file, key) for file, key in table.files()}.values():
        with table.stream(file["file_path"], key) as stream:
            yield file, stream


def test_javas_files_are_read() -> None:
    rows = []
    for file, stream in java_files():
        of_file = pa.Table.from_batches(AvroDataFile(stream).batches()).to_pylist()
        assert len(of_file) == file["record_count"]
        rows += of_file
    expected = {row["id"]: row["noise"] for row in GoldenTable("avro").expected["rows"]["main"]}
    assert {row["id"]: digest(row["noise"]) for row in rows} == expected
    assert len(rows) == len(expected)


def digest(noise: str | None) -> str | None:
    return noise and f"sha256:{sha256(noise.encode()).hexdigest()}"


def test_schemas_are_those_of_javas_files() -> None:
    for _, stream in java_files():
        metadata = fastavro.reader(cast("IO[Any]", stream)).metadata
        assert to_avro(Schema.model_validate_json(metadata["iceberg.schema"])) == json.loads(metadata["avro.schema"])


def test_a_schema_of_all_types_is_what_java_makes_of_it() -> None:
    assert to_avro(SCHEMA) == json.loads(JAVA_SCHEMA)


def test_statistics_are_those_of_java() -> None:
    file = MemoryFile()
    with AvroFormatWriter(file, ONE_LONG, {}) as writer:
        writer.write(LONGS)
    ours = writer.result().to_serialized_dict()
    for theirs, _ in java_files():
        assert all(bool(ours[name]) == bool(theirs[name]) for name in ours)


def test_a_file_says_the_same_of_itself_as_javas() -> None:
    ours = fastavro.reader(written(ONE_LONG, LONGS).open()).metadata
    assert Schema.model_validate_json(ours["iceberg.schema"]) == ONE_LONG
    for _, stream in java_files():
        theirs = fastavro.reader(cast("IO[Any]", stream)).metadata
        assert ours.keys() == theirs.keys()
        assert ours["avro.codec"] == theirs["avro.codec"]


# Round trips


@settings(max_examples=60, deadline=None)
@given(tables())
def test_what_was_written_is_read(case: tuple[Schema, pa.Table]) -> None:
    schema, table = case
    assert read(written(schema, table)).equals(table, check_metadata=True)


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=5, deadline=None)
@given(table=ROWS)
def test_all_types_at_once_with_every_codec(codec: str, table: pa.Table) -> None:
    assert read(written(FILE_SCHEMA, table, compression_codec=codec)).equals(table)


@pytest.mark.parametrize("precision", range(1, 39))
def test_decimals_of_all_precisions(precision: int) -> None:
    schema = Schema(optional(1, "d", DecimalType(precision, precision // 2)))
    largest = 10**precision - 1
    digits = [Decimal(f"{value}e-{precision // 2}") for value in (largest, -largest, 0, 1, -1)]
    table = arrow(schema, [{"d": value} for value in [*digits, None]])
    assert read(written(schema, table)).equals(table)


def test_numbers_that_are_none() -> None:
    schema = Schema(required(1, "f", FloatType()), optional(2, "d", DoubleType()))
    numbers = [math.nan, math.inf, -math.inf, -0.0]
    back = read(written(schema, arrow(schema, [{"f": number, "d": number} for number in numbers]))).to_pydict()
    assert repr(back) == repr({"f": numbers, "d": numbers})


def test_an_empty_table_has_its_schema() -> None:
    file = written(FILE_SCHEMA, arrow(FILE_SCHEMA, []))
    assert read(file).schema == schema_to_pyarrow(FILE_SCHEMA)
    assert list(AvroDataFile(file.open()).batches()) == []


def test_a_file_can_be_read_again() -> None:
    avro = AvroDataFile(written(ONE_LONG, LONGS).open())
    assert list(avro.batches()) == list(avro.batches())


# Who else reads it


def test_fastavro_finds_the_logical_types() -> None:
    schema = Schema(
        required(1, "decimal", DecimalType(9, 2)),
        required(2, "date", DateType()),
        required(3, "time", TimeType()),
        required(4, "timestamp", TimestampType()),
        required(5, "timestamptz", TimestamptzType()),
        required(6, "uuid", UUIDType()),
        required(7, "names", MapType(8, StringType(), 9, IntegerType(), value_required=False)),
        required(10, "numbers", MapType(11, IntegerType(), 12, StringType(), value_required=False)),
        optional(13, "nothing", UnknownType()),
    )
    row = {
        "decimal": Decimal("-1.50"),
        "date": -1,
        "time": 1,
        "timestamp": -1,
        "timestamptz": 0,
        "uuid": bytes(range(16)),
        "names": [("a", 1), ("b", None)],
        "numbers": [(1, "a"), (2, None)],
        "nothing": None,
    }
    assert list(fastavro.reader(written(schema, arrow(schema, [row])).open())) == [
        {
            "decimal": Decimal("-1.50"),
            "date": date(1969, 12, 31),
            "time": time(0, 0, 0, 1),
            "timestamp": datetime(1969, 12, 31, 23, 59, 59, 999999, timezone.utc),  # as Avro has it for all timestamps
            "timestamptz": datetime(1970, 1, 1, tzinfo=timezone.utc),
            "uuid": bytes(range(16)),  # it knows them only as strings
            "names": {"a": 1, "b": None},
            "numbers": [{"key": 1, "value": "a"}, {"key": 2, "value": None}],
            "nothing": None,
        }
    ]


def test_pyicebergs_own_reader_agrees() -> None:
    # It knows no timestamps of nanoseconds, no maps from integers, and no type that is used twice
    schema = Schema(
        required(1, "id", LongType()),
        optional(2, "decimal", DecimalType(38, 10)),
        optional(3, "timestamp", TimestampType()),
        optional(4, "uuid", UUIDType()),
        optional(5, "fixed", FixedType(3)),
        optional(6, "list", ListType(7, ListType(8, IntegerType(), element_required=False), element_required=True)),
        optional(9, "map", MapType(10, DoubleType(), 11, StringType(), value_required=False)),
        optional(12, "struct", StructType(optional(13, "date", DateType()), required(14, "binary", BinaryType()))),
    )
    row: dict[str, Any] = {
        "id": 1,
        "decimal": Decimal("-1.5"),
        "timestamp": EXTREME_MICROS[2],
        "uuid": bytes(16),
        "fixed": b"abc",
        "list": [[1, None], []],
        "map": [(1.5, "one"), (-2.0, None)],
        "struct": {"date": -1, "binary": b"b"},
    }
    table = arrow(schema, [row, {"id": 2}])
    with AvroFile[Any](written(schema, table)) as file:
        assert file.schema.as_struct() == schema.as_struct()
        first, second = (list(record) for record in file)
    expected = {**row, "uuid": UUID(bytes=bytes(16)), "map": {1.5: "one", -2.0: None}}
    assert first[:-1] == list(expected.values())[:-1]
    assert list(first[-1]) == [-1, b"b"]
    assert second == [2] + [None] * 7


@settings(max_examples=20, deadline=None)
@given(tables())
def test_pyiceberg_understands_the_schema(case: tuple[Schema, pa.Table]) -> None:
    schema, table = case
    back = AvroDataFile(written(schema, table).open())
    assert pyarrow_to_schema(back.schema, format_version=3).as_struct() == schema.as_struct()


def test_batches_fit_pyicebergs_projection() -> None:
    nested = StructType(optional(4, "x", UUIDType()), optional(5, "y", IntegerType()))
    schema = Schema(optional(1, "a", LongType()), optional(2, "s", nested), optional(3, "old", IntegerType()))
    rows: list[dict[str, Any]] = [
        {"a": 1, "s": {"x": bytes(16), "y": 2}, "old": 3},
        {"a": None, "s": None, "old": None},
    ]
    avro = AvroDataFile(written(schema, arrow(schema, rows)).open())
    requested = Schema(
        optional(3, "new", LongType()),
        optional(2, "s", StructType(optional(5, "z", IntegerType()))),
        optional(9, "b", DateType()),
    )
    (batch,) = avro.batches({3, 5, 9})
    file_schema = prune_columns(pyarrow_to_schema(avro.schema, format_version=3), {3, 5}, select_full_types=False)
    assert _to_requested_schema(requested, file_schema, batch).to_pylist() == [
        {"new": 3, "s": {"z": 2}, "b": None},
        {"new": None, "s": None, "b": None},
    ]


# Columns and batches


@pytest.mark.parametrize(
    "wanted, names",
    [
        ({1}, ["id"]),
        ({26}, ["st"]),
        ({55, 12}, ["time", "lst_unk"]),
        ({52, 999}, ["mk"]),
        ({44}, ["mi"]),
        ({999}, []),
        (set(), []),
    ],
)
@settings(max_examples=3, deadline=None)
@given(table=ROWS)
def test_wanted_columns(wanted: set[int], names: list[str], table: pa.Table) -> None:
    back = read(written(FILE_SCHEMA, table), wanted)
    assert back.equals(table.select(names))
    assert back.num_rows == table.num_rows


def test_batches_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema(required(1, "b", BinaryType()))
    table = arrow(schema, [{"b": bytes(1000)}] * 1000)
    file = written(schema, table, compression_codec="uncompressed")
    stream = file.open()
    batches = AvroDataFile(stream).batches(batch_rows=100)
    first = next(batches)
    assert 100 <= len(first) < 200
    assert stream.tell() < len(file) / 4
    assert pa.Table.from_batches([first, *batches]).equals(table)

    monkeypatch.setattr(avro_data, "BATCH_BYTES", 200_000)
    sizes = [len(batch) for batch in AvroDataFile(file.open()).batches()]
    assert sum(sizes) == 1000
    assert max(sizes) < 300


def test_blocks_are_about_as_long_as_javas() -> None:
    schema = Schema(required(1, "b", BinaryType()))
    file = written(schema, arrow(schema, [{"b": bytes(1000)}] * 1000), compression_codec="uncompressed")
    lengths = [block.size for block in fastavro.block_reader(file.open())]
    assert len(lengths) == pytest.approx(16, abs=1)
    assert max(lengths) < 70_000


# Writing

ONE_LONG = Schema(optional(1, "n", LongType()))
LONGS = arrow(ONE_LONG, [{"n": number} for number in (1, None, -(2**63))])


def test_a_writer_takes_many_tables() -> None:
    assert read(written(ONE_LONG, LONGS, LONGS.slice(0, 0), LONGS)).equals(pa.concat_tables([LONGS, LONGS]))


@settings(max_examples=20, deadline=None)
@given(ROWS)
def test_slices_are_written(table: pa.Table) -> None:
    (batch,) = pa.concat_tables([table, table, table]).combine_chunks().to_batches()
    part = pa.Table.from_batches([batch.slice(1, len(batch) - 2)])
    assert read(written(FILE_SCHEMA, part)).equals(part)


def test_columns_may_have_arrows_smaller_types() -> None:
    schema = Schema(
        required(1, "s", StringType()),
        optional(2, "l", ListType(3, BinaryType(), element_required=False)),
        optional(4, "t", TimestamptzType()),
        optional(5, "d", DecimalType(9, 2)),
        optional(6, "i", DecimalType(12, 2)),
    )
    table = pa.table(
        {
            "i": pa.array([1], pa.int32()),
            "t": pa.array([1], pa.timestamp("us", "+00:00")),
            "l": pa.array([[b"x"]], pa.list_(pa.binary())),
            "d": pa.array([Decimal("1.5")], pa.decimal128(4, 1)),
            "s": pa.array(["x"]).dictionary_encode(),
        }
    )
    back = read(written(schema, table))
    assert back.to_pylist() == [
        {"s": "x", "l": [b"x"], "t": datetime(1970, 1, 1, 0, 0, 0, 1, timezone.utc), "d": Decimal("1.50"), "i": 1}
    ]
    assert back.schema == schema_to_pyarrow(schema)


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"m": [1]}),
        pa.table({"n": [1], "m": [1]}),
        pa.table({"n": ["one"]}),
        pa.table({"n": [[1]]}),
        pa.table({"n": [{"n": 1}]}),
        pa.table({"n": [1.5]}),
        pa.table({"n": pa.array([2**63], pa.uint64())}),
    ],
)
def test_other_columns_are_refused(table: pa.Table) -> None:
    with pytest.raises(UsageError, match=r"memory:file\.avro: the rows are not of the file's schema"):
        written(ONE_LONG, table)


@pytest.mark.parametrize(
    "type_, value",
    [
        (LongType(), None),
        (BooleanType(), None),
        (StringType(), None),
        (DecimalType(3, 1), None),
        (UUIDType(), None),
        (StructType(required(2, "x", DoubleType())), None),
        (StructType(required(2, "x", DoubleType())), {"x": None}),
        (ListType(2, FloatType(), element_required=True), [None]),
        (ListType(2, FloatType(), element_required=True), None),
        (MapType(2, StringType(), 3, BinaryType(), value_required=True), [("secret", None)]),
        (MapType(2, StringType(), 3, BinaryType(), value_required=True), None),
    ],
)
def test_nulls_in_required_fields_are_refused(type_: IcebergType, value: Any) -> None:
    schema = Schema(required(1, "n", type_))
    with pytest.raises(UsageError, match="is required, but null in some") as caught:
        written(schema, arrow(schema, [{"n": value}]))
    assert "secret" not in str(caught.value)


def test_an_interrupted_file_is_not_completed() -> None:
    file = MemoryFile()
    with contextlib.suppress(KeyboardInterrupt), AvroFormatWriter(file, ONE_LONG, {}) as writer:
        writer.write(LONGS)
        raise KeyboardInterrupt
    assert file.stream.failed
    with pytest.raises(RuntimeError):
        writer.result()


def test_an_interruption_before_the_first_row_opens_nothing() -> None:
    file = MemoryFile()
    with contextlib.suppress(KeyboardInterrupt), AvroFormatWriter(file, ONE_LONG, {}):
        raise KeyboardInterrupt
    assert not file.stream.closed


def test_a_file_without_any_table_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing was written"), AvroFormatWriter(MemoryFile(), ONE_LONG, {}):
        pass


def test_closing_again_changes_nothing() -> None:
    file = MemoryFile()
    writer = AvroFormatWriter(file, ONE_LONG, {})
    writer.write(LONGS)
    assert writer.close() is writer.close()
    assert len(file) == len(file.stream.kept) > 0


@pytest.mark.parametrize("codec", ["GZIP", "zstd"])
@pytest.mark.parametrize("level", ["1", "9"])
def test_compression_levels(codec: str, level: str) -> None:
    assert read(written(ONE_LONG, LONGS, compression_codec=codec, compression_level=level)).equals(LONGS)


@pytest.mark.parametrize(
    "properties, message",
    [
        ({"write.avro.compression-codec": "lzo"}, "write.avro.compression-codec is 'lzo'; it must be gzip"),
        ({"write.avro.compression-level": "best"}, "write.avro.compression-level is 'best', which gzip does not have"),
        ({"write.avro.compression-level": "10"}, "which gzip does not have"),
        ({"write.avro.compression-codec": "zstd", "write.avro.compression-level": ""}, "which zstd does not have"),
    ],
)
def test_compression_that_there_is_not(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        AvroFormatWriter(MemoryFile(), ONE_LONG, properties)


def test_the_model_is_one_of_pyicebergs() -> None:
    model = AvroFormatModel()
    assert isinstance(model, FileFormatModel)
    assert (model.format, model.file_extension()) == (FileFormat.AVRO, "avro")
    assert isinstance(model.create_writer(MemoryFile(), ONE_LONG, {}), AvroFormatWriter)
    metadata: dict[bytes, bytes] = {}
    model.add_field_metadata(ONE_LONG.fields[0], metadata, False)
    assert metadata == {}
    model.add_field_metadata(ONE_LONG.fields[0], metadata, True)
    assert metadata == {b"PARQUET:field_id": b"1"}


# Files that others wrote


def test_decimals_may_be_of_any_length() -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    file = file_of(schema_of({"name": "d", "type": decimal, "field-id": 1}), (3, b"\x02\xff\x00\x06\x00\x00\x64"))
    assert pa.Table.from_batches(AvroDataFile(file).batches()).to_pydict() == {
        "d": [Decimal("-0.01"), Decimal("0.00"), Decimal("1.00")]
    }


def test_null_may_be_the_second_of_two() -> None:
    file = file_of(schema_of({"name": "n", "type": ["int", "null"], "field-id": 1}), (2, b"\x00\x02\x02"))
    assert pa.Table.from_batches(AvroDataFile(file).batches()).to_pydict() == {"n": [1, None]}


def test_a_union_of_one() -> None:
    file = file_of(schema_of({"name": "n", "type": ["int"], "field-id": 1}), (1, b"\x00\x02"))
    avro = AvroDataFile(file)
    assert not avro.schema.field("n").nullable
    assert pa.Table.from_batches(avro.batches()).to_pydict() == {"n": [1]}


def test_milliseconds() -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis", "adjust-to-utc": True}
    avro = AvroDataFile(file_of(schema_of({"name": "t", "type": millis, "field-id": 1}), (1, b"\x02")))
    assert pa.Table.from_batches(avro.batches())["t"].cast(pa.int64()).to_pylist() == [1]
    assert avro.schema.field("t").type == pa.timestamp("ms", "UTC")


def test_logical_types_that_iceberg_does_not_know_are_ignored() -> None:
    duration = {"type": "fixed", "name": "d", "size": 2, "logicalType": "duration"}
    file = file_of(schema_of({"name": "t", "type": duration, "field-id": 1}), (1, b"ab"))
    assert pa.Table.from_batches(AvroDataFile(file).batches()).to_pydict() == {"t": [b"ab"]}


LONG = {"name": "n", "type": "long", "field-id": 1}


@pytest.mark.parametrize(
    "fields, message",
    [
        ([{"name": "n", "type": "long"}], "'n' of the Avro file has no Iceberg field id.*name mapping"),
        ([{**LONG, "type": {"type": "array", "items": "int"}}], "'element' of the Avro file has no Iceberg field id"),
        ([{**LONG, "type": {"type": "map", "values": "int", "key-id": 2}}], "'value' of the Avro file has no Iceberg"),
        ([{**LONG, "type": ["int", "string"]}], "is a union"),
        ([{**LONG, "type": "int64"}], "does not know: 'int64'"),
        ([{**LONG, "type": {"type": "enum", "name": "e", "symbols": ["A"]}}], "does not know: 'enum'"),
        ([{**LONG, "type": {"type": "fixed", "name": "f"}}], "cannot be understood"),
        ([{**LONG, "type": "table"}], "cannot be understood"),
        ([{"field-id": 1}], "cannot be understood"),
        ([{**LONG, "field-id": "first"}], "cannot be understood"),
        ([LONG, LONG], "two fields of the same name"),
        ([7], "cannot be understood"),
        (
            [{**LONG, "type": {"type": "bytes", "logicalType": "decimal", "precision": 39}}],
            "cannot be understood",
        ),
        (
            [{**LONG, "type": {"type": "array", "logicalType": "map", "items": {"type": "record", "fields": [LONG]}}}],
            "does not consist of keys and values",
        ),
    ],
)
def test_schemas_that_are_none_of_icebergs(fields: list[Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        AvroDataFile(file_of(schema_of(*fields)))


@pytest.mark.parametrize("schema", [b"", b"[]", b"null", b'"long"', b'{"type": "long"}', b"\xff", b"{" * 100_000])
def test_what_is_no_schema(schema: bytes) -> None:
    with pytest.raises(FormatError):
        AvroDataFile(file_of({"avro.schema": schema}))


@pytest.mark.parametrize("data", [b"", b"Obj", b"PAR1", b"PAR1" * 100, b"Obj\x01", b"Obj\x01" + b"\xff" * 20])
def test_what_is_no_avro_file(data: bytes) -> None:
    with pytest.raises(FormatError):
        AvroDataFile(io.BytesIO(data))


def test_a_codec_that_cannot_be_read() -> None:
    with pytest.raises(FormatError, match="compressed with 'lzo'"):
        AvroDataFile(file_of({**schema_of(LONG), "avro.codec": b"lzo"}))


@pytest.mark.parametrize(
    "count, block",
    [
        (1, b""),
        (1, b"\x80"),
        (2, b"\x02"),
        (1, b"\x02\x02"),
        (0, b"\x02"),
        (-1, b"\x01\x02"),
        (2**62, b"\x02"),
        (1, b"\xff" * 9),
    ],
)
def test_blocks_with_other_rows_than_they_say(count: int, block: bytes) -> None:
    with pytest.raises(FormatError):
        list(AvroDataFile(file_of(schema_of(LONG), (count, block))).batches())


@pytest.mark.parametrize("codec", [b"deflate", b"snappy", b"zstandard"])
@pytest.mark.parametrize("block", [b"", b"\x00", b"abcdefgh", b"\xff" * 20])
def test_blocks_that_cannot_be_decompressed(codec: bytes, block: bytes) -> None:
    with pytest.raises(FormatError):
        list(AvroDataFile(file_of({**schema_of(LONG), "avro.codec": codec}, (1, block))).batches())


def test_values_beyond_the_type() -> None:
    file = file_of(schema_of({**LONG, "type": "int"}), (1, b"\x80\x80\x80\x80\x80\x01"))
    with pytest.raises(FormatError):
        list(AvroDataFile(file).batches())


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_cut_anywhere_is_missed(codec: str) -> None:
    whole = written(ONE_LONG, LONGS, compression_codec=codec).stream.kept
    without_blocks = len(written(ONE_LONG, LONGS.slice(0, 0), compression_codec=codec).stream.kept)
    for length in range(len(whole)):
        if length != without_blocks:  # a good file of no rows; the stream's own length is what tells them apart
            with pytest.raises(FormatError):
                list(AvroDataFile(io.BytesIO(whole[:length])).batches())


@settings(max_examples=150, deadline=None)
@given(ROWS, st.sampled_from(CODECS), st.data())
def test_changed_bytes_are_read_or_refused(table: pa.Table, codec: str, data: st.DataObject) -> None:
    changed = bytearray(written(FILE_SCHEMA, table, compression_codec=codec).stream.kept)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(FormatError):
        list(AvroDataFile(io.BytesIO(changed)).batches())
