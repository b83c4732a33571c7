"""Manifests and manifest lists of format V3, encrypted or not, on PyIceberg's Avro code.

PyIceberg resolves the same Avro schemas again for each file, which takes most of the time of planning. Here what was
resolved once is kept.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pyiceberg.avro.codecs import AVRO_CODEC_KEY, CODEC_MAPPING_ICEBERG_TO_AVRO
from pyiceberg.avro.decoder import BinaryDecoder, StreamingBinaryDecoder, new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import (
    _SCHEMA_KEY,
    MAGIC,
    META_SCHEMA,
    SYNC_SIZE,
    AvroFileHeader,
    AvroOutputFile,
)
from pyiceberg.avro.reader import DoubleReader, FixedReader
from pyiceberg.avro.resolver import ReadSchemaResolver, SchemaPartnerAccessor, construct_reader, construct_writer
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    UNASSIGNED_SEQ,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestListWriter,
    ManifestListWriterV2,
    ManifestWriterV2,
    PartitionFieldSummary,
    _inherit_from_manifest,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.schema import visit_with_partner
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record
from pyiceberg.types import StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from pyiceberg_encryption.errors import FormatError, UsageError
from pyiceberg_encryption.table.file_io import EncryptedOutputFile, FileKey, checked_key, manifest_list_key, read_whole
from pyiceberg_encryption.table.models import VERSION, key_id
from pyiceberg_encryption.table.specs import has_unknown_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

    from pyiceberg.avro.codecs import AvroCompressionCodec
    from pyiceberg.avro.reader import Reader
    from pyiceberg.avro.writer import Writer
    from pyiceberg.io import FileIO, OutputFile
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import TableVersion
    from pyiceberg.types import DoubleType, IcebergType, UUIDType

RECORDS_PER_BLOCK = 1000
UUID_LENGTH = 16

_DATA_FILE_FIELDS = [field.name for field in DATA_FILE_TYPE[VERSION].fields]
_PARTITION = _DATA_FILE_FIELDS.index("partition")
KEY_METADATA = _DATA_FILE_FIELDS.index("key_metadata")
FIRST_ROW_ID = _DATA_FILE_FIELDS.index("first_row_id")
REFERENCED_DATA_FILE = _DATA_FILE_FIELDS.index("referenced_data_file")
CONTENT_OFFSET = _DATA_FILE_FIELDS.index("content_offset")
CONTENT_SIZE = _DATA_FILE_FIELDS.index("content_size_in_bytes")

_STATISTICS = [
    _DATA_FILE_FIELDS.index(name)
    for name in (
        *("column_sizes", "value_counts", "null_value_counts", "nan_value_counts"),
        *("lower_bounds", "upper_bounds"),
    )
]

_MANIFEST_FIELDS = [field.name for field in MANIFEST_LIST_FILE_SCHEMAS[VERSION].fields]
_MANIFEST_KEY_METADATA = _MANIFEST_FIELDS.index("key_metadata")
_MANIFEST_FIRST_ROW_ID = _MANIFEST_FIELDS.index("first_row_id")


def file_key(file: DataFile) -> FileKey | None:
    return checked_key(file.file_path, file.key_metadata)


class V3DataFile(DataFile):
    """A data or delete file as a manifest lists it, with what it inherits from its entry and the manifest."""

    sequence_number: int | None = None

    @property
    def first_row_id(self) -> int | None:
        value: int | None = self[FIRST_ROW_ID]
        return value

    @property
    def referenced_data_file(self) -> str | None:
        value: str | None = self[REFERENCED_DATA_FILE]
        return value

    @property
    def content_range(self) -> tuple[int, int]:
        """Where in its file a deletion vector lies."""
        offset, size = self[CONTENT_OFFSET], self[CONTENT_SIZE]
        if offset is None or size is None or offset < 0 or not 0 <= size <= self.file_size_in_bytes:
            raise FormatError(f"{self.file_path}: a deletion vector has no valid place in its file")
        return offset, size


class V3ManifestFile(ManifestFile):
    """A line of a manifest list."""

    @property
    def first_row_id(self) -> int | None:
        value: int | None = self[_MANIFEST_FIRST_ROW_ID]
        return value

    def fetch_manifest_entry(self, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:
        data = read_whole(io, self.manifest_path, checked_key(self.manifest_path, self.key_metadata))
        is_authentic = self.key_metadata is not None
        entries: list[ManifestEntry] = []
        next_row_id = self.first_row_id
        is_committed = self.sequence_number != UNASSIGNED_SEQ
        has_rows = self.content == ManifestContent.DATA
        for entry in _read(data, _entry_reader, self.manifest_path, is_authentic=is_authentic):
            _inherit_from_manifest(entry, self)
            file = entry.data_file
            file[KEY_METADATA] = file_key(file)
            file.sequence_number = entry.sequence_number
            if has_rows and entry.status != ManifestEntryStatus.DELETED:
                if next_row_id is None and is_committed:
                    file[FIRST_ROW_ID] = None  # of a table that was below V3, and was not written to since
                elif next_row_id is not None and file[FIRST_ROW_ID] is None:
                    file[FIRST_ROW_ID] = next_row_id
                    next_row_id += file.record_count
            if not discard_deleted or entry.status != ManifestEntryStatus.DELETED:
                entries.append(entry)
        return entries


class V3Snapshot(Snapshot):
    def manifests(self, io: FileIO) -> list[ManifestFile]:
        """Not through PyIceberg's process-wide cache, since what is read here holds keys."""
        key = manifest_list_key(io, self.manifest_list, key_id(self))
        data = read_whole(io, self.manifest_list, key)
        manifests: list[ManifestFile] = []
        for manifest in _read(data, _list_reader, self.manifest_list, is_authentic=key is not None):
            manifest[_MANIFEST_KEY_METADATA] = checked_key(manifest.manifest_path, manifest.key_metadata)
            manifests.append(manifest)
        return manifests


def with_v3_snapshots(metadata: TableMetadata) -> TableMetadata:
    """The same metadata, with snapshots that can find their keys."""
    if metadata.format_version < VERSION:
        return metadata
    snapshots = [
        snapshot if isinstance(snapshot, V3Snapshot) else V3Snapshot.model_construct(**dict(snapshot))
        for snapshot in metadata.snapshots
    ]
    return metadata.model_copy(update={"snapshots": snapshots})


def _read(data: bytes, reader_of: Any, location: str, *, is_authentic: bool) -> Iterator[Any]:
    """PyIceberg's fast decoder does not look where the data ends. So only what was encrypted is given to it."""
    try:
        yield from _records(data, reader_of, new_decoder if is_authentic else _CarefulDecoder)
    except FormatError:
        raise
    except Exception as error:
        raise FormatError(f"{location} is not a manifest or manifest list: {error}") from None


def _records(data: bytes, reader_of: Any, decoder_of: Callable[[bytes], BinaryDecoder]) -> Iterator[Any]:
    decoder = decoder_of(data)
    header = _header_reader().read(decoder)
    if header.magic != MAGIC:
        raise ValueError("no Avro file")
    reader = reader_of(header.meta[_SCHEMA_KEY])
    codec = header.compression_codec()
    while decoder.tell() < len(data):
        count = decoder.read_int()
        block = decoder.read_bytes()
        records = codec.decompress(block) if codec else block
        if count > len(records):
            raise ValueError("a block with more records than bytes")
        in_block = decoder_of(records)
        for _ in range(count):
            yield reader.read(in_block)
        if decoder.read(SYNC_SIZE) != header.sync:
            raise ValueError("a block without its sync marker")


class _CarefulDecoder(StreamingBinaryDecoder):
    def skip(self, n: int) -> None:
        self.read(n)


class _ExactDoubleReader(DoubleReader):
    """PyIceberg's fast decoder reads doubles as if they were floats, and so finds other partitions than there are."""

    def read(self, decoder: BinaryDecoder) -> float:
        value: float = struct.unpack("<d", decoder.read(8))[0]
        return value


class _Resolver(ReadSchemaResolver):
    def visit_double(self, double_type: DoubleType, partner: IcebergType | None) -> Reader:
        return _ExactDoubleReader()  # type: ignore[no-untyped-call]

    def visit_uuid(self, uuid_type: UUIDType, partner: IcebergType | None) -> Reader:
        """As bytes, which is how PyIceberg writes them and what it compares with."""
        return FixedReader(UUID_LENGTH)


@lru_cache(maxsize=1)
def _header_reader() -> Reader:
    return construct_reader(META_SCHEMA, {-1: AvroFileHeader})


@lru_cache(maxsize=256)
def _entry_reader(avro_schema: str) -> Reader:
    resolver = _Resolver(
        read_types={-1: ManifestEntry, 2: V3DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    )
    return _resolved(avro_schema, MANIFEST_ENTRY_SCHEMAS[VERSION], resolver)


@lru_cache(maxsize=16)
def _list_reader(avro_schema: str) -> Reader:
    resolver = _Resolver(read_types={-1: V3ManifestFile, 508: PartitionFieldSummary}, read_enums={517: ManifestContent})
    return _resolved(avro_schema, MANIFEST_LIST_FILE_SCHEMAS[VERSION], resolver)


def _resolved(avro_schema: str, wanted: Schema, resolver: _Resolver) -> Reader:
    written = AvroSchemaConversion().avro_to_iceberg(json.loads(avro_schema))
    reader: Reader = visit_with_partner(written, wanted, resolver, SchemaPartnerAccessor())  # type: ignore[misc]
    return reader


class _AvroSchema(NamedTuple):
    """What has to be known to write files of one schema."""

    name: str
    schema: Schema
    writer: Writer
    json: str

    @classmethod
    def of(cls, name: str, schema: Schema) -> _AvroSchema:
        avro = AvroSchemaConversion().iceberg_to_avro(schema, schema_name=name)
        return cls(name, schema, construct_writer(schema), json.dumps(avro))


@lru_cache(maxsize=256)
def _entry_schema(partition_type: StructType) -> _AvroSchema:
    data_file = data_file_with_partition(partition_type, VERSION)
    return _AvroSchema.of("manifest_entry", manifest_entry_schema_with_data_file(VERSION, data_file))


@lru_cache(maxsize=1)
def _list_schema() -> _AvroSchema:
    return _AvroSchema.of("manifest_file", MANIFEST_LIST_FILE_SCHEMAS[VERSION])


class _AvroFile(AvroOutputFile[Any]):
    """Collects what it is given into blocks of many records, where PyIceberg makes a block for each."""

    def __init__(self, output_file: OutputFile, schema: _AvroSchema, metadata: dict[str, str]) -> None:
        # The parent's constructor would resolve the schema once more.
        self.output_file = output_file
        self.file_schema = schema.schema
        self.schema_name = schema.name
        self.metadata = metadata
        self.sync_bytes = os.urandom(SYNC_SIZE)
        self.writer = schema.writer
        self._schema_json = schema.json
        self._pending: list[Any] = []

    def _write_header(self) -> None:
        codec = self.metadata[AVRO_CODEC_KEY]
        avro = {_SCHEMA_KEY: self._schema_json, AVRO_CODEC_KEY: CODEC_MAPPING_ICEBERG_TO_AVRO.get(codec, codec)}
        _header_writer().write(self.encoder, AvroFileHeader(MAGIC, {**self.metadata, **avro}, self.sync_bytes))

    def write_block(self, objects: list[Any]) -> None:
        self._pending += objects
        if len(self._pending) >= RECORDS_PER_BLOCK:
            self._write_pending()

    def __enter__(self) -> _AvroFile:
        self.output_stream = self.output_file.create(overwrite=True)
        self.encoder = BinaryEncoder(self.output_stream)
        with self._discarded_on_error():
            self._write_header()
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        if exctype is not None:
            self._discard()
            return
        with self._discarded_on_error():
            if self._pending:
                self._write_pending()
            self.output_stream.close()

    @contextlib.contextmanager
    def _discarded_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._discard()
            raise

    def _discard(self) -> None:
        """What was written up to an error does not read as a whole file."""
        with contextlib.suppress(Exception):
            getattr(self.output_stream, "discard", self.output_stream.close)()

    def _write_pending(self) -> None:
        """What is written holds keys. So it goes by a memoryview, and no traceback of a broken storage shows it."""
        records, self._pending = self._pending, []
        block = io.BytesIO()
        encoder = _KeyEncoder(block)
        for record in records:
            self.writer.write(encoder, record)
        codec = self.compression_codec()
        content = memoryview(codec.compress(block.getvalue())[0] if codec else block.getvalue())
        self.encoder.write_int(len(records))
        self.encoder.write_int(len(content))
        self.encoder.write(content)  # type: ignore[arg-type]
        self.encoder.write(self.sync_bytes)


class _KeyEncoder(BinaryEncoder):
    """Encodes keys, which look redacted to all others."""

    def write_bytes(self, b: bytes) -> None:
        super().write_bytes(b.encode() if isinstance(b, FileKey) else b)


def encode_entries(entries: Iterable[ManifestEntry]) -> bytes:
    """Files with their keys, for what is sealed and sent to another process. Manifests are made by V3ManifestWriter.

    Partitions are left out: of columns that are gone, nothing might tell the types any more.
    """
    encoded = io.BytesIO()
    encoder, writer = _KeyEncoder(encoded), _entry_schema(StructType()).writer
    for entry in entries:
        file = _padded(V3DataFile, entry.data_file, len(_DATA_FILE_FIELDS))
        writer.write(encoder, ManifestEntry(*(entry[position] for position in range(len(entry) - 1)), file))
    return encoded.getvalue()


def decode_entries(encoded: bytes, partitions: Iterable[Record], spec_id: int) -> list[ManifestEntry]:
    """What `encode_entries` made, with the partition of each. It must be authentic."""
    decoder, reader = new_decoder(encoded), _entry_reader(_entry_schema(StructType()).json)
    entries: list[ManifestEntry] = []
    for partition in partitions:
        entry: ManifestEntry = reader.read(decoder)
        file = entry.data_file
        file[KEY_METADATA] = file_key(file)
        file[_PARTITION] = partition
        file.spec_id = spec_id
        if isinstance(file, V3DataFile):
            file.sequence_number = entry.sequence_number
        entries.append(entry)
    return entries


def without_statistics(entry: ManifestEntry) -> ManifestEntry:
    """The same entry. What it says of columns makes the most of it, and only filters need that."""
    for position in _STATISTICS:
        entry.data_file[position] = None
    return entry


def encode_manifests(manifests: Iterable[ManifestFile]) -> bytes:
    """Manifests with their keys, for what is sealed and sent to another process."""
    encoded = io.BytesIO()
    encoder, writer = _KeyEncoder(encoded), _list_schema().writer
    for manifest in manifests:
        writer.write(encoder, _padded(V3ManifestFile, manifest, len(_MANIFEST_FIELDS)))
    return encoded.getvalue()


def decode_manifests(encoded: bytes) -> list[V3ManifestFile]:
    """What `encode_manifests` made. It must be authentic."""
    decoder, reader = new_decoder(encoded), _list_reader(_list_schema().json)
    manifests: list[V3ManifestFile] = []
    while decoder.tell() < len(encoded):
        manifest: V3ManifestFile = reader.read(decoder)
        manifest[_MANIFEST_KEY_METADATA] = checked_key(manifest.manifest_path, manifest.key_metadata)
        manifests.append(manifest)
    return manifests


class V3ManifestWriter(ManifestWriterV2):
    @property
    def version(self) -> TableVersion:
        return VERSION

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        partition_type = self._spec.partition_type(self._schema)
        if has_unknown_types(partition_type):  # PyIceberg would write what cannot be read
            raise UsageError(
                f"No schema of the table tells the type of a column any more that spec {self._spec.spec_id} partitions "
                "by, so that its files cannot be listed anew. Copy the rows into a new table"
            )
        return _AvroFile(self._output_file, _entry_schema(partition_type), self._meta)

    def prepare_entry(self, entry: ManifestEntry) -> ManifestEntry:
        entry = super().prepare_entry(entry)
        file = _padded(V3DataFile, entry.data_file, len(_DATA_FILE_FIELDS))
        if entry.status == ManifestEntryStatus.ADDED:
            file[FIRST_ROW_ID] = None  # to be inherited from the manifest list
        return ManifestEntry(*(entry[position] for position in range(len(entry) - 1)), file)

    def to_manifest_file(self) -> ManifestFile:
        manifest = _padded(V3ManifestFile, super().to_manifest_file(), len(_MANIFEST_FIELDS))
        if isinstance(self._output_file, EncryptedOutputFile):
            manifest[_MANIFEST_KEY_METADATA] = self._output_file.key()
        return manifest


class V3ManifestListWriter(ManifestListWriterV2):
    """Gives row ids to the manifests that have none yet."""

    def __init__(
        self,
        output_file: OutputFile,
        snapshot_id: int,
        parent_snapshot_id: int | None,
        sequence_number: int,
        first_row_id: int,
        compression: AvroCompressionCodec,
    ) -> None:
        super().__init__(output_file, snapshot_id, parent_snapshot_id, sequence_number, compression)
        self._format_version = VERSION
        self._meta |= {"format-version": str(VERSION), "first-row-id": str(first_row_id)}
        self.next_row_id = first_row_id

    def __enter__(self) -> ManifestListWriter:
        self._writer = _AvroFile(self._output_file, _list_schema(), self._meta)
        self._writer.__enter__()
        return self

    def prepare_manifest(self, manifest_file: ManifestFile) -> ManifestFile:
        manifest = _padded(V3ManifestFile, super().prepare_manifest(manifest_file), len(_MANIFEST_FIELDS))
        if manifest.content == ManifestContent.DATA and manifest.first_row_id is None:
            manifest[_MANIFEST_FIRST_ROW_ID] = self.next_row_id
            # Iceberg Java: room for existing rows too, since those of a table from before V3 have no ids
            self.next_row_id += (manifest.existing_rows_count or 0) + (manifest.added_rows_count or 0)
        return manifest


R = TypeVar("R", bound=Record)


def _padded(kind: type[R], record: Record, length: int) -> R:
    """A copy with all fields of format V3. Records that PyIceberg makes end before those."""
    values = [record[position] for position in range(len(record))]
    return kind(*values, *[None] * (length - len(values)))


@lru_cache(maxsize=1)
def _header_writer() -> Writer:
    return construct_writer(META_SCHEMA)
