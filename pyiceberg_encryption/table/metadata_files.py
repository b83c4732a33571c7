"""Metadata files whose name proves their content: the UUID in it is made of the content's SHA-256.

A catalog that keeps no more of a table than the location of its metadata thereby keeps the proof too.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import uuid
import zlib
from typing import TYPE_CHECKING

from pyiceberg.catalog import TABLE_METADATA_FILE_NAME_REGEX
from pyiceberg.table.metadata import TableMetadataUtil

from pyiceberg_encryption.errors import FormatError, IntegrityError

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata

UUID_VERSION = 8  # RFC 9562, section 5.8: for what an application makes of its own


def named_after(content: bytes, location: str) -> str:
    """The location of a metadata file, with the name that this content gives it."""
    folder, _, name = location.rpartition("/")
    found = TABLE_METADATA_FILE_NAME_REGEX.fullmatch(name)
    version = found.group(1) if found else "00000"
    return f"{folder}/{version}-{_content_uuid(content)}.metadata.json"


def hive_hash(content: bytes) -> str:
    """What Iceberg Java keeps in the metastore. Iceberg Java: HMSTablePropertyHelper.hashOf"""
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


def read(io: FileIO, location: str, expected_hive_hash: str | None) -> tuple[TableMetadata, bool]:
    """The metadata, and whether it was proven to be what was committed. What fails the proof is not even parsed."""
    with io.new_input(location).open() as stream:
        stored = stream.read()
    claimed = _uuid_in(location)
    is_named_after_content = claimed is not None and claimed.version == UUID_VERSION
    if is_named_after_content and claimed != _content_uuid(stored):
        raise IntegrityError(
            f"{location} is not the metadata that was committed under this name: it was changed or replaced"
        )
    content = _decompressed(stored, location) if location.endswith(".gz.metadata.json") else stored
    if expected_hive_hash and hive_hash(content) != expected_hive_hash:
        raise IntegrityError(
            f"{location} is not the metadata whose hash is in the metastore: it was changed or replaced"
        )
    return TableMetadataUtil.parse_raw(content.decode()), is_named_after_content or bool(expected_hive_hash)


def _uuid_in(location: str) -> uuid.UUID | None:
    found = TABLE_METADATA_FILE_NAME_REGEX.fullmatch(location.rpartition("/")[2])
    try:
        return uuid.UUID(found[2]) if found else None
    except ValueError:
        return None


def _content_uuid(content: bytes) -> uuid.UUID:
    digest = int.from_bytes(hashlib.sha256(content).digest()[:16], "big")
    version = UUID_VERSION << 76
    variant = 0b10 << 62
    return uuid.UUID(int=digest & ~(0xF << 76) & ~(0b11 << 62) | version | variant)


def _decompressed(stored: bytes, location: str) -> bytes:
    try:
        return gzip.decompress(stored)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{location} is not compressed as its name says: {error}") from None
