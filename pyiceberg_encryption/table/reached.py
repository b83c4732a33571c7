"""Which files a table's metadata leads to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table.metadata import TableMetadata


def manifests(metadata: TableMetadata, io: FileIO) -> list[ManifestFile]:
    """Those of all snapshots, each once."""
    found = {manifest.manifest_path: manifest for snapshot in metadata.snapshots for manifest in snapshot.manifests(io)}
    return list(found.values())


def entries(listed: Iterable[ManifestFile], io: FileIO, *, discard_deleted: bool = True) -> Iterator[ManifestEntry]:
    for manifest in listed:
        yield from manifest.fetch_manifest_entry(io, discard_deleted=discard_deleted)


def metadata_files(metadata: TableMetadata, location: str | None) -> list[str]:
    """The metadata file at this location, and those before it that it still names. A REST server may keep it to itself
    where the newest is."""
    return [*([location] if location else []), *(entry.metadata_file for entry in metadata.metadata_log)]


def statistics_files(metadata: TableMetadata) -> list[str]:
    return [file.statistics_path for file in (*metadata.statistics, *metadata.partition_statistics)]
