"""Files in a table's folders that nothing leads to: left by writers that failed, and by snapshots that expired."""

from __future__ import annotations

import contextlib
import re
import zlib
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyiceberg.table.locations import load_location_provider
from pyiceberg.utils.properties import property_as_bool

from pyiceberg_encryption.errors import UsageError
from pyiceberg_encryption.pipeline.engine import LocalEngine
from pyiceberg_encryption.pipeline.listing import files_below, place
from pyiceberg_encryption.table import reached
from pyiceberg_encryption.table.file_io import plain_io

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata

    from pyiceberg_encryption.pipeline.listing import StoredFile
    from pyiceberg_encryption.table.table import Table

OLDER_THAN = timedelta(days=3)  # Iceberg Java: DeleteOrphanFilesSparkAction
SHORTEST_INTERVAL = timedelta(hours=24)  # Iceberg Java: RemoveOrphanFilesProcedure
GC_ENABLED = "gc.enabled"  # Iceberg Java: TableProperties
COMPRESSED_METADATA = (".gz.metadata.json", ".metadata.json.gz")  # Iceberg Java reads both
METADATA_ENDINGS = (".metadata.json", *COMPRESSED_METADATA)
_BEGINNING_LENGTH = 64 * 1024
_TABLE_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]+)"')
_CHECKSUMS = re.compile(r"/\.([^/]+)\.crc$")
_UNCLEAR = re.compile(r"/\.{1,2}(/|$)|[?#]")  # "." and "..", and what FileIOs cut off as a query or a fragment


def remove_orphan_files(
    table: Table,
    *,
    location: str | None = None,
    older_than: timedelta = OLDER_THAN,
    dry_run: bool = False,
    no_commits_under_way: bool = False,
) -> list[str]:
    """Deletes the files below `location` to which no snapshot leads, and returns where they were.

    What is kept: all files of all snapshots that have not expired, the metadata file and those of its log, statistics,
    what was last changed within `older_than` or at a time that the storage does not tell, and what begins with a dot
    or an underscore, since that belongs to other programs. If any of the metadata, manifest lists and manifests cannot
    be read and proven, nothing is deleted.

    `location` is the table's own, if it is not given, or a folder within it, or within what `write.data.path` and
    `write.metadata.path` name. The files of a commit under way look like orphans. So an interval below 24 hours is
    refused, but if the caller knows that there is none.

    Tables have to have their folders to themselves. If the metadata of another table lies below `location`, nothing is
    deleted. A table whose metadata lies elsewhere cannot be seen there: do not name a folder that several tables share
    as their `write.data.path`, and do not have two catalogs commit to one table.
    """
    if older_than < SHORTEST_INTERVAL and not no_commits_under_way:
        raise UsageError(
            f"Files of a commit under way look like orphans. Set older_than to {SHORTEST_INTERVAL} or more, or "
            "no_commits_under_way to True if nothing writes to the table"
        )
    check_owns_its_files(table)
    own = folders(table.metadata)
    if location is not None and (".." in location or not any(_is_below(location, folder) for folder in own)):
        raise UsageError(f"{location} is not a folder of {'.'.join(table.name())}, which has {own}")
    folder = location or table.metadata.location
    plain = plain_io(table.io)
    latest = datetime.now(timezone.utc) - older_than
    listed = list(files_below(plain, folder))
    table.refresh()  # after the listing: what is committed in between is no orphan
    found = unreached(table, listed, reached_by(table))
    _check_no_other_table(table, plain, found)
    removed = [
        file.location
        for file in found
        if file.changed is not None and file.changed <= latest and not _is_hidden(file.location, folder)
    ]
    for name in () if dry_run else removed:
        with contextlib.suppress(FileNotFoundError):
            plain.delete(name)
    return removed


def check_owns_its_files(table: Table) -> None:
    if not property_as_bool(table.properties, GC_ENABLED, True):
        raise UsageError(
            f"{'.'.join(table.name())} has {GC_ENABLED} set to false: its files may belong to other tables too, and "
            "nothing is deleted. Set it to true if they do not"
        )


def folders(metadata: TableMetadata) -> list[str]:
    """Where the files of a table are, but for those that were added from elsewhere. None lies within another."""
    provider = load_location_provider(metadata.location, metadata.properties)
    found: list[str] = []
    for folder in (metadata.location, provider.data_path, provider.metadata_path):
        if not any(_is_below(folder, other) for other in found):
            found = [other for other in found if not _is_below(other, folder)] + [folder]
    return found


def unreached(table: Table, listed: Iterable[StoredFile], locations: Iterable[str]) -> list[StoredFile]:
    """Those that are not among the locations, nor their checksums, nor where tables without a catalog have their newest
    version."""
    provider = load_location_provider(table.metadata.location, table.metadata.properties)
    places = {place(location) for location in locations}
    places.add(place(f"{provider.metadata_path}/version-hint.text"))
    return [file for file in listed if places.isdisjoint({place(file.location), _checksummed(place(file.location))})]


def reached_by(table: Table) -> Iterator[str]:
    metadata = table.metadata
    if not table.metadata_location:
        raise UsageError(f"The catalog does not say where the metadata of {'.'.join(table.name())} is")
    yield from reached.metadata_files(metadata, table.metadata_location)
    yield from reached.statistics_files(metadata)
    yield from (snapshot.manifest_list for snapshot in metadata.snapshots)
    manifests = reached.manifests(metadata, table.io)
    yield from (manifest.manifest_path for manifest in manifests)
    yield from (entry.data_file.file_path for entry in reached.entries(manifests, table.io))


def outside(metadata: TableMetadata, locations: Iterable[str]) -> list[str]:
    """Those that are not below the table's folders, or are written so that nobody can tell."""
    own = [_normal(folder) for folder in folders(metadata)]
    return [
        location
        for location in locations
        if _UNCLEAR.search(location) or not any(_is_below(_normal(location), folder) for folder in own)
    ]


def _check_no_other_table(table: Table, plain: FileIO, found: Iterable[StoredFile]) -> None:
    """An empty file is no table's metadata. Writers that were killed leave such on disks."""
    own = str(table.metadata.table_uuid)
    others = [file.location for file in found if file.location.endswith(METADATA_ENDINGS) and file.length]
    for location, owner in zip(others, LocalEngine().run(partial(_table_uuid, plain), others), strict=True):
        if owner != own:
            raise UsageError(
                f"{location} is the metadata of another table, or of no known one, so nothing was deleted: it is not "
                "known whose files lie there. If that table was dropped, delete what it left behind first"
            )


def _table_uuid(plain: FileIO, location: str) -> str | None:
    """From the beginning of a metadata file, where all writers have it."""
    with plain.new_input(location).open() as stream:
        beginning = bytes(stream.read(_BEGINNING_LENGTH))
    if location.endswith(COMPRESSED_METADATA):
        with contextlib.suppress(zlib.error):
            beginning = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(beginning, _BEGINNING_LENGTH)
    found = _TABLE_UUID.search(beginning)
    return found[1].decode() if found else None


def _normal(location: str) -> str:
    """With its scheme and authority, in one of the ways in which engines write them."""
    parsed = urlsplit(location)
    scheme = {"": "file", "s3a": "s3", "s3n": "s3"}.get(parsed.scheme, parsed.scheme)
    return f"{scheme}://{parsed.netloc}{place(location)}"


def _checksummed(place: str) -> str:
    """Which file this one has the checksums of, if so. Hadoop keeps them beside each file on local disks."""
    return _CHECKSUMS.sub(r"/\1", place)


def _is_below(folder: str, other: str) -> bool:
    return f"{folder.rstrip('/')}/".startswith(f"{other.rstrip('/')}/")


def _is_hidden(location: str, folder: str) -> bool:
    """As in Iceberg Java's PartitionAwareHiddenPathFilter, but for partitions of any name."""
    parts = location.removeprefix(folder).split("/")
    return any(part.startswith((".", "_")) and "=" not in part for part in parts)
