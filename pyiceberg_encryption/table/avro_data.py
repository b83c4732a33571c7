"""Iceberg data files in Avro, from and to Arrow.

fastavro gets a schema of its own in place of the file's: one without logical types, and with maps as arrays of records,
which have the same bytes. So dates, times and decimals pass it as the integers and bytes that they are in the file,
within no limits of Python's types, and Arrow converts whole columns of them.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from pyiceberg.io.fileformat import DataFileStatistics, FileFormatModel, FileFormatWriter
from pyiceberg.io.pyarrow import PYARROW_PARQUET_FIELD_ID_KEY
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import make_compatible_name, visit
from pyiceberg.table import TableProperties
from pyiceberg.utils.schema_conversion import ConvertSchemaToAvro

from pyiceberg_encryption.errors import ConfigurationError, FormatError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from pyiceberg.io import InputStream, OutputFile, OutputStream
    from pyiceberg.schema import Schema
    from pyiceberg.typedef import Properties
    from pyiceberg.types import DecimalType, FixedType, ListType, MapType, NestedField, UUIDType

MAGIC = b"Obj\x01"
SYNC_LENGTH = 16
BATCH_ROWS = 65_536
BATCH_BYTES = 8 * 1024 * 1024  # of Avro; as Python objects it takes some ten times as much
BLOCK_BYTES = 64_000  # Avro Java: DataFileConstants.DEFAULT_SYNC_INTERVAL
RECORD_NAME = "table"  # Iceberg Java: Avro.WriteBuilder
COMPRESSION_LEVEL = "write.avro.compression-level"
DECIMAL_LENGTH = 16  # of Arrow's decimal128
SNAPPY_LENGTH_LENGTH = 5  # at most, for 32 bits
SNAPPY_LARGEST_RATIO = 64  # an element has a byte or more, and stands for 64 at most
SNAPPY_CHECKSUM_LENGTH = 4

_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.large_string(),
    "bytes": pa.large_binary(),
}
_LOGICAL_TYPES = {
    ("int", "date"): pa.date32(),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms"),
    ("long", "timestamp-micros"): pa.timestamp("us"),
    ("long", "timestamp-nanos"): pa.timestamp("ns"),
}


class AvroDataFile:
    """An Avro data file. `stream` is seekable, and stays the caller's to close.

    `schema` is the file's own, with the Iceberg field ids where PyIceberg looks for them in a Parquet file.
    """

    def __init__(self, stream: InputStream) -> None:
        self._source = _Source(stream)
        if self._source.read(len(MAGIC)) != MAGIC:
            raise FormatError("This is not an Avro file")
        metadata = self._source.metadata()
        self._sync = self._source.read(SYNC_LENGTH)
        self._start = self._source.tell()
        codec = metadata.get("avro.codec", b"null").decode(errors="replace")
        if codec not in _DECOMPRESSORS:
            raise FormatError(f"The Avro file is compressed with {codec!r}; only {sorted(_DECOMPRESSORS)} can be read")
        self._decompress = _DECOMPRESSORS[codec]
        self._row = _row_type(metadata.get("avro.schema", b""))
        self._rows = _array_of(self._row)
        self.schema = pa.schema(list(self._row.arrow))

    def batches(self, wanted: set[int] | None = None, batch_rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """The rows in order, in batches of `batch_rows` or a few more, or less if these are large.

        Of all columns, or of those that have one of the `wanted` field ids, themselves or in a field within.
        """
        columns = [index for index, field in enumerate(self._row.arrow) if wanted is None or wanted & _field_ids(field)]
        raw = pa.struct([self._row.raw.field(index) for index in columns])
        arrow = pa.struct([self._row.arrow.field(index) for index in columns])
        rows: list[dict[str, Any]] = []
        size = 0
        for count, block in self._blocks():
            rows += self._decoded(count, block)
            size += len(block)
            if len(rows) >= batch_rows or size >= BATCH_BYTES:
                yield _batch(rows, raw, arrow)
                rows, size = [], 0
        if rows:
            yield _batch(rows, raw, arrow)

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        self._source.seek(self._start)
        while not self._source.at_end():
            count = self._source.long()
            compressed = self._source.data()
            if count < 0 or self._source.read(SYNC_LENGTH) != self._sync:
                raise FormatError("The Avro file has a block that does not end where it should")
            try:
                block = self._decompress(compressed)
            except (OSError, ValueError, zlib.error, pa.ArrowException) as error:
                raise FormatError(f"The Avro file has a block that cannot be decompressed: {error}") from None
            yield count, block

    def _decoded(self, count: int, block: bytes) -> list[dict[str, Any]]:
        """The rows of a block: it becomes a whole array with its length in front and an end behind."""
        encoded = io.BytesIO(_long(count) + block + _long(0))
        try:
            rows: Any = schemaless_reader(encoded, self._rows, None)
        except (EOFError, IndexError, OverflowError, ValueError) as error:
            raise FormatError(f"The Avro file has rows that are not of its schema: {error}") from None
        if len(rows) != count or encoded.read(1):
            raise FormatError("The Avro file has a block with more rows than it says")
        return list(rows)


class AvroFormatWriter(FileFormatWriter):
    """Writes tables, with the columns of `file_schema`, to an Avro file as Iceberg Java would.

    If a `with` block is left by an exception, the output stream's own `__exit__` gets it, and need not complete the
    file.
    """

    def __init__(self, output_file: OutputFile, file_schema: Schema, properties: Properties) -> None:
        self._output_file = output_file
        self._codec, self._compress = _compressor(properties)
        avro_schema = json.dumps(to_avro(file_schema)).encode()
        self._metadata = {
            "avro.schema": avro_schema,
            "avro.codec": self._codec.encode(),
            "iceberg.schema": file_schema.model_dump_json().encode(),
        }
        self._row = _row_type(avro_schema)
        self._rows = _array_of(self._row)
        self._sync = os.urandom(SYNC_LENGTH)
        self._stream: OutputStream | None = None
        self._record_count = 0

    @property
    def position(self) -> int:
        """How long the file is by now."""
        return 0 if self._stream is None else int(self._stream.tell())

    def write(self, table: pa.Table) -> None:
        if self._stream is None:
            self._stream = self._output_file.create(overwrite=True)
            self._stream.write(MAGIC + _encoded({"type": "map", "values": "bytes"}, self._metadata) + self._sync)
        for batch in table.to_batches():
            rows_per_block = max(1, batch.num_rows * BLOCK_BYTES // max(1, batch.nbytes))
            for start in range(0, batch.num_rows, rows_per_block):
                self._stream.write(self._block(batch.slice(start, rows_per_block)))
        self._record_count += table.num_rows

    def close(self) -> DataFileStatistics:
        if self._result is None:
            if self._stream is None:
                raise UsageError(f"{self._output_file.location}: nothing was written; write a table, even an empty one")
            self._stream.close()
            # Iceberg Java knows no more of an Avro file: AvroMetrics, and the splitOffsets of FileAppender
            self._result = DataFileStatistics(
                record_count=self._record_count,
                column_sizes={},
                value_counts={},
                null_value_counts={},
                nan_value_counts={},
                column_aggregates={},
                split_offsets=[],
            )
        return self._result

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        if exc_type is None:
            self.close()
        elif self._stream is not None:
            self._stream.__exit__(exc_type, exc_val, exc_tb)

    def _block(self, batch: pa.RecordBatch) -> bytes:
        try:
            exact = _converted(batch.to_struct_array(), self._row.arrow)  # what comes may be string, say, or list
        except (AttributeError, KeyError, ValueError, pa.ArrowException) as error:
            raise UsageError(f"{self._output_file.location}: the rows are not of the file's schema: {error}") from None
        rows = _converted(exact, self._row.raw).to_pylist()
        encoded = _encoded(self._rows, rows)
        count = _long(len(rows))
        block = self._compress(encoded[len(count) : -len(_long(0))])
        return count + _long(len(block)) + block + self._sync


class AvroFormatModel(FileFormatModel):
    """Avro, for PyIceberg's FileFormatFactory."""

    @property
    def format(self) -> FileFormat:
        return FileFormat.AVRO

    def file_extension(self) -> str:
        return "avro"

    def create_writer(self, output_file: OutputFile, file_schema: Schema, properties: Properties) -> AvroFormatWriter:
        return AvroFormatWriter(output_file, file_schema, properties)

    def add_field_metadata(self, field: NestedField, metadata: dict[bytes, bytes], include_field_ids: bool) -> None:
        if include_field_ids:
            metadata[PYARROW_PARQUET_FIELD_ID_KEY] = str(field.field_id).encode()


def to_avro(schema: Schema) -> Any:
    """The Avro schema that Iceberg Java gives to the data files of a table with this schema."""
    return visit(schema, _ToAvro(RECORD_NAME))


class _ToAvro(ConvertSchemaToAvro):
    """As Iceberg Java's TypeToSchema.

    PyIceberg's is made for manifests. It has no optional elements and values, no lists in lists, and no two decimals
    of the same type.
    """

    def __init__(self, schema_name: str) -> None:
        super().__init__(schema_name)
        self._defined: set[str] = set()

    def field(self, field: NestedField, field_result: Any) -> dict[str, Any]:
        name = make_compatible_name(field.name)
        avro = {"name": name, "type": _element(field, field_result), "field-id": field.field_id}
        if field.doc is not None:
            avro["doc"] = field.doc
        if field.optional:
            avro["default"] = None
        if name != field.name:
            avro["iceberg-field-name"] = field.name
        return avro

    def list(self, list_type: ListType, element_result: Any) -> dict[str, Any]:
        element = list_type.element_field
        return {"type": "array", "items": _element(element, element_result), "element-id": element.field_id}

    def map(self, map_type: MapType, key_result: Any, value_result: Any) -> dict[str, Any]:
        key, value = map_type.key_field, map_type.value_field
        if key_result == "string":
            values = _element(value, value_result)
            return {"type": "map", "values": values, "key-id": key.field_id, "value-id": value.field_id}
        fields = [self.field(key, key_result), self.field(value, value_result)]
        if value_result == "null":
            del fields[1]["default"]  # so does Iceberg Java
        entry = {"type": "record", "name": f"k{key.field_id}_v{value.field_id}", "fields": fields}
        return {"type": "array", "items": entry, "logicalType": "map"}

    def visit_fixed(self, fixed_type: FixedType) -> Any:
        return self._once(super().visit_fixed(fixed_type))

    def visit_decimal(self, decimal_type: DecimalType) -> Any:
        return self._once(super().visit_decimal(decimal_type))

    def visit_uuid(self, uuid_type: UUIDType) -> Any:
        return self._once(super().visit_uuid(uuid_type))

    def _once(self, avro: Any) -> Any:
        """The definition of a named type, or where it was defined before its name."""
        if avro["name"] in self._defined:
            return avro["name"]
        self._defined.add(avro["name"])
        return avro


def _element(field: NestedField, avro: Any) -> Any:
    if isinstance(avro, dict) and avro["type"] == "record":
        avro["name"] = f"r{field.field_id}"
    return ["null", avro] if field.optional and avro != "null" else avro


@dataclass(frozen=True)
class _Type:
    """An Avro type in three ways."""

    plain: Any  # what fastavro gets: the same bytes, but no logical types, and maps as arrays of records
    raw: pa.DataType  # what the values are then
    arrow: pa.DataType  # what they mean


@dataclass(frozen=True)
class _Field:
    plain: dict[str, Any]
    raw: pa.Field
    arrow: pa.Field


class _Types:
    """Understands the types of one Avro schema."""

    def __init__(self) -> None:
        self._defined: dict[str, dict[str, Any]] = {}
        self._names = (f"type_{number}" for number in itertools.count())

    def type(self, avro: Any) -> _Type:
        if isinstance(avro, str):
            avro = self._defined.get(avro, {"type": avro})
        elif "name" in avro:
            self._defined[avro["name"]] = avro
        if avro["type"] == "record":
            return self._struct(avro["fields"])
        if avro["type"] == "array" and avro.get("logicalType") == "map":
            return self._map(avro["items"]["fields"])
        if avro["type"] == "array":
            return self._list({"name": "element", "type": avro["items"], "field-id": avro.get("element-id")})
        if avro["type"] == "map":
            key = {"name": "key", "type": "string", "field-id": avro.get("key-id")}
            return self._map([key, {"name": "value", "type": avro["values"], "field-id": avro.get("value-id")}])
        return self._primitive(avro)

    def _field(self, avro: dict[str, Any]) -> _Field:
        name, union = avro["name"], avro["type"]
        if avro.get("field-id") is None:
            raise FormatError(
                f"Field {name!r} of the Avro file has no Iceberg field id: "
                "the file would need a name mapping, which is not supported for Avro"
            )
        options: list[Any] = union if isinstance(union, list) else [union]
        types = [self.type(option) for option in options if option != "null"] or [self.type("null")]
        if len(types) > 1:
            raise FormatError(f"Field {name!r} of the Avro file is a union, which Iceberg has no type for")
        optional = "null" in options
        plain = [option if option == "null" else types[0].plain for option in options]
        metadata = {PYARROW_PARQUET_FIELD_ID_KEY: str(int(avro["field-id"])).encode()}
        return _Field(
            {"name": name, "type": plain if isinstance(union, list) else plain[0]},
            pa.field(name, types[0].raw, optional),
            pa.field(name, types[0].arrow, optional, metadata),
        )

    def _struct(self, avro_fields: Iterable[dict[str, Any]]) -> _Type:
        fields = [self._field(field) for field in avro_fields]
        if len({field.arrow.name for field in fields}) < len(fields):
            raise FormatError("The Avro file has two fields of the same name in one record")
        return _Type(
            {"type": "record", "name": next(self._names), "fields": [field.plain for field in fields]},
            pa.struct([field.raw for field in fields]),
            pa.struct([field.arrow for field in fields]),
        )

    def _list(self, avro_element: dict[str, Any]) -> _Type:
        element = self._field(avro_element)
        return _Type(
            {"type": "array", "items": element.plain["type"]},
            pa.large_list(element.raw),
            pa.large_list(element.arrow),
        )

    def _map(self, avro_fields: list[dict[str, Any]]) -> _Type:
        entry = self._struct(avro_fields)
        if [field.name for field in entry.arrow] != ["key", "value"]:
            raise FormatError("A map of the Avro file does not consist of keys and values")
        return _Type({"type": "array", "items": entry.plain}, pa.list_(entry.raw), pa.map_(*entry.arrow))

    def _primitive(self, avro: dict[str, Any]) -> _Type:
        kind, logical = avro["type"], avro.get("logicalType", "")
        if kind == "fixed":
            raw = pa.binary(avro["size"])
            plain: Any = {"type": "fixed", "name": next(self._names), "size": avro["size"]}
        elif kind in _PRIMITIVES:
            raw, plain = _PRIMITIVES[kind], kind
        else:
            raise FormatError(f"The Avro file has a type that Iceberg does not know: {kind!r}")
        arrow: Any = _LOGICAL_TYPES.get((kind, logical), raw)
        if logical == "decimal":
            arrow = pa.decimal128(avro["precision"], avro.get("scale", 0))
        elif logical == "uuid" and raw == pa.binary(16):
            arrow = pa.uuid()
        elif pa.types.is_timestamp(arrow) and avro.get("adjust-to-utc"):
            arrow = pa.timestamp(arrow.unit, tz="UTC")
        return _Type(plain, raw, arrow)


def _row_type(schema: bytes) -> _Type:
    try:
        row = _Types().type(json.loads(schema))
        if not pa.types.is_struct(row.arrow):
            raise TypeError("it is not a record")
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError, pa.ArrowException) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"The Avro file has a schema that cannot be understood: {error}") from None
    return row


def _array_of(row: _Type) -> Any:
    return {"type": "array", "items": parse_schema(row.plain)}


def _field_ids(field: pa.Field) -> set[int]:
    """The Iceberg id of a field, and those of all the fields within."""
    within: list[pa.Field] = []
    if pa.types.is_struct(field.type):
        within = list(field.type)
    elif pa.types.is_map(field.type):
        within = [field.type.key_field, field.type.item_field]
    elif pa.types.is_nested(field.type):
        within = [field.type.value_field]
    return {int(field.metadata[PYARROW_PARQUET_FIELD_ID_KEY])}.union(*map(_field_ids, within))


def _batch(rows: list[dict[str, Any]], raw: pa.DataType, arrow: pa.DataType) -> pa.RecordBatch:
    try:
        return pa.RecordBatch.from_struct_array(_converted(pa.array(rows, raw), arrow))
    except (OverflowError, ValueError, pa.ArrowException) as error:
        raise FormatError(f"The Avro file has values that are not of its schema: {error}") from None


def _converted(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Between raw types, Arrow types, and others that are nested alike."""
    if pa.types.is_struct(target):
        if target.num_fields == 0:
            return array  # rebuilt from no columns, it would have no rows either
        if array.type.num_fields != target.num_fields:
            raise ValueError(f"it has {target}, they have {array.type}")
        nulls = array.is_null()
        columns = [_converted_field(array.field(field.name), field, nulls) for field in target]
        return pa.StructArray.from_arrays(columns, fields=list(target), mask=nulls)
    if pa.types.is_nested(target):
        # An array may be a slice, and offsets of a slice do not go with a mask
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        values = array.values.slice(first, last - first)
        offsets, nulls = pc.subtract(array.offsets, array.offsets[0]), array.is_null()
        if pa.types.is_map(target):
            keys = _converted_field(values.field(0), target.key_field)
            items = _converted_field(values.field(1), target.item_field)
            return pa.MapArray.from_arrays(offsets, keys, items, target, mask=nulls)
        kind = pa.LargeListArray if pa.types.is_large_list(target) else pa.ListArray
        return kind.from_arrays(offsets, _converted_field(values, target.value_field), target, mask=nulls)
    if pa.types.is_decimal(target) and (pa.types.is_fixed_size_binary(array.type) or array.type == pa.large_binary()):
        return _recoded(array, "big", "little", DECIMAL_LENGTH).view(target)
    if pa.types.is_decimal(array.type) and not pa.types.is_decimal(target):
        return _recoded(array.view(pa.binary(DECIMAL_LENGTH)), "little", "big", target.byte_width)
    return array.cast(target)


def _converted_field(array: pa.Array, field: pa.Field, absent: pa.Array | None = None) -> pa.Array:
    """The same for what a field holds, which has to be something, except where the whole is `absent`."""
    if not field.nullable and array.null_count > 0:
        missing = array.is_null() if absent is None else pc.and_not(array.is_null(), absent)
        if pc.any(missing).as_py():
            raise ValueError(f"field {field.name!r} is required, but null in some")
    return _converted(array, field.type)


def _recoded(array: pa.Array, source: Any, target: Any, length: int) -> pa.Array:
    """Signed integers, in another byte order and length."""
    values = (
        None if value is None else int.from_bytes(value, source, signed=True).to_bytes(length, target, signed=True)
        for value in array.to_pylist()
    )
    return pa.array(values, pa.binary(length))


class _Source:
    """Reads what Avro's container format consists of."""

    def __init__(self, stream: InputStream) -> None:
        self._stream = stream
        self.seek, self.tell = stream.seek, stream.tell
        self.seek(0, os.SEEK_END)
        self._end = self.tell()
        self.seek(0)

    def at_end(self) -> bool:
        return self.tell() >= self._end

    def read(self, length: int) -> bytes:
        data = self._stream.read(length) if 0 <= length <= self._end - self.tell() else b""
        if len(data) != length:
            raise FormatError("The Avro file ends too early")
        return data

    def long(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            (byte,) = self.read(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise FormatError("The Avro file has a number of more than 64 bits")

    def data(self) -> bytes:
        return self.read(self.long())

    def metadata(self) -> dict[str, bytes]:
        metadata = {}
        while count := self.long():
            if count < 0:
                self.long()  # the length in bytes follows
            for _ in range(abs(count)):
                key = self.data().decode(errors="replace")
                metadata[key] = self.data()
        return metadata


def _encoded(schema: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    schemaless_writer(buffer, schema, value)
    return buffer.getvalue()


def _long(value: int) -> bytes:
    return _encoded("long", value)


def _compressor(properties: Properties) -> tuple[str, Callable[[bytes], bytes]]:
    """The name that Avro has for the codec of the table's properties, and what compresses with it."""
    name = TableProperties.WRITE_AVRO_COMPRESSION
    codec = properties.get(name, TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT).lower()
    level = properties.get(COMPRESSION_LEVEL)
    try:
        if codec == "uncompressed":
            return "null", bytes
        if codec == "gzip":
            deflate_level = 9 if level is None else int(level)  # as Iceberg Java
            zlib.compressobj(deflate_level)
            return "deflate", lambda block: _deflate(block, deflate_level)
        if codec == "snappy":
            return "snappy", _snap
        if codec == "zstd":
            zstd = pa.Codec("zstd", 1 if level is None else int(level))  # as Iceberg Java
            return "zstandard", lambda block: zstd.compress(block, asbytes=True)
    except ValueError:
        raise ConfigurationError(f"{COMPRESSION_LEVEL} is {level!r}, which {codec} does not have") from None
    raise ConfigurationError(f"{name} is {codec!r}; it must be gzip, zstd, snappy or uncompressed")


def _deflate(block: bytes, level: int) -> bytes:
    compressor = zlib.compressobj(level, wbits=-zlib.MAX_WBITS)
    return compressor.compress(block) + compressor.flush()


def _inflate(block: bytes) -> bytes:
    return zlib.decompress(block, -zlib.MAX_WBITS)


def _snap(block: bytes) -> bytes:
    compressed: bytes = pa.compress(block, "snappy", asbytes=True)
    return compressed + zlib.crc32(block).to_bytes(SNAPPY_CHECKSUM_LENGTH, "big")


def _unsnap(block: bytes) -> bytes:
    """Snappy begins with the plain length, and Avro has it end with a checksum of the plain bytes."""
    length = 0
    for index, byte in enumerate(block[:SNAPPY_LENGTH_LENGTH]):
        length |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            break
    if length > SNAPPY_LARGEST_RATIO * len(block):
        raise ValueError("its length is wrong")
    plain: bytes = pa.decompress(block[:-SNAPPY_CHECKSUM_LENGTH], length, "snappy", asbytes=True)
    if zlib.crc32(plain) != int.from_bytes(block[-SNAPPY_CHECKSUM_LENGTH:], "big"):
        raise ValueError("its checksum is wrong")
    return plain


def _unzstd(block: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(block), "zstd") as stream:
        plain: bytes = stream.read()
    return plain


_DECOMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _inflate,
    "snappy": _unsnap,
    "zstandard": _unzstd,
}
