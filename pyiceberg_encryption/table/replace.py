"""Snapshots that replace files by others with the same rows, as Iceberg Java's RewriteFiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import ValidationException
from pyiceberg.manifest import FileFormat, ManifestContent
from pyiceberg.table.snapshots import Operation, Summary

from pyiceberg_encryption.table.manifests import V3DataFile, V3ManifestWriter
from pyiceberg_encryption.table.snapshots import V3SnapshotProducer

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile

    from pyiceberg_encryption.table.transaction import Transaction


class ReplaceFiles(V3SnapshotProducer):
    """Takes data files and delete files out. Whether they may be replaced is for the caller to know."""

    def __init__(self, transaction: Transaction, branch: str, snapshot_properties: dict[str, str]) -> None:
        # PyIceberg makes no summary for its own Operation.REPLACE.
        super().__init__(Operation.OVERWRITE, transaction, transaction._table.io, None, snapshot_properties, branch)
        self._replaced: dict[str, DataFile] = {}

    def delete_data_file(self, data_file: DataFile) -> ReplaceFiles:
        """By name, since deletion vectors in one file are equal to PyIceberg."""
        self._replaced[name_of_file(data_file)] = data_file
        self._deleted_data_files = self._replaced.values()  # type: ignore[assignment]
        return self

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        return Summary(Operation.REPLACE, **super()._summary(snapshot_properties or {}).additional_properties)

    def _existing_manifests(self) -> list[ManifestFile]:
        missing = dict(self._replaced)
        manifests: list[ManifestFile] = []
        if self._parent_snapshot_id is not None:
            parent = self._transaction.table_metadata.snapshot_by_id(self._parent_snapshot_id)
            for manifest in parent.manifests(self._io) if parent else ():
                entries = manifest.fetch_manifest_entry(self._io)
                gone = [missing.pop(name) for name in map(_name, entries) if name in missing]
                manifests.append(self._without(manifest, entries, set(map(name_of_file, gone))) if gone else manifest)
        if missing:
            raise ValidationException(f"Files to be replaced are not there any more: {', '.join(sorted(missing))}")
        return manifests

    def _deleted_entries(self) -> list[ManifestEntry]:
        """They are in the manifests that had them."""
        return []

    def _build_delete_files_partition_predicate(self) -> None:
        """All manifests are looked at."""

    def _validate_concurrency(self) -> None:
        """Left to the caller, by `Transaction.before_retry`."""

    def _without(self, manifest: ManifestFile, entries: list[ManifestEntry], gone: set[str]) -> ManifestFile:
        is_data = manifest.content == ManifestContent.DATA
        kind = V3ManifestWriter if is_data else _DeleteManifestWriter
        spec, output = self.spec(manifest.partition_spec_id), self.new_manifest_output()
        with kind(spec, self.schema(), output, self._snapshot_id, self._compression) as writer:
            for entry in entries:
                if _name(entry) in gone:
                    writer.delete(entry)
                else:
                    writer.existing(entry)
        return writer.to_manifest_file()


class _DeleteManifestWriter(V3ManifestWriter):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, Any]:
        return {**super()._meta, "content": "deletes"}


def name_of_file(file: DataFile) -> str:
    """Several deletion vectors may lie in one file."""
    if file.file_format == FileFormat.PUFFIN and isinstance(file, V3DataFile):
        return f"{file.file_path} {file.content_range}"
    return file.file_path


def _name(entry: ManifestEntry) -> str:
    return name_of_file(entry.data_file)
