"""What produces snapshots of format V3: PyIceberg's own producers, but their manifests have keys and row ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.table.update.snapshot import (
    UpdateSnapshot as PyIcebergUpdateSnapshot,
)
from pyiceberg.table.update.snapshot import (
    _DeleteFiles,
    _FastAppendFiles,
    _MergeAppendFiles,
    _new_manifest_list_file_name,
    _OverwriteFiles,
    _SnapshotProducer,
)

from pyiceberg_encryption.table.file_io import EncryptedFileIO, EncryptedOutputFile
from pyiceberg_encryption.table.manifests import KEY_METADATA, V3ManifestListWriter, V3ManifestWriter, V3Snapshot
from pyiceberg_encryption.table.models import FIRST_ROW_ID, AddEncryptionKeyUpdate, EncryptionKeyEntry
from pyiceberg_encryption.table.specs import LastingSpec, has_unknown_types

if TYPE_CHECKING:
    import uuid

    from pyiceberg.io import OutputFile
    from pyiceberg.manifest import DataFile, ManifestWriter
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table.update import TableRequirement, UpdatesAndRequirements


class V3SnapshotProducer(_SnapshotProducer[Any]):
    """Comes after PyIceberg's own producers in the order of inheritance, and before what these have in common."""

    def append_data_file(self, data_file: DataFile) -> V3SnapshotProducer:
        if isinstance(self._io, EncryptedFileIO) and data_file.key_metadata is None:
            key = self._io.take_key(data_file.file_path)
            if key is None:
                self._io.keys.check_may_be_plaintext(data_file.file_path)
            data_file[KEY_METADATA] = key
        if not hasattr(data_file, "_spec_id"):  # PyIceberg writes by the spec that there is, and does not say which
            data_file.spec_id = self._transaction.table_metadata.default_spec_id
        super().append_data_file(data_file)
        return self

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        lasting, output = self.spec(spec.spec_id), self.new_manifest_output()
        return V3ManifestWriter(lasting, self.schema(), output, self._snapshot_id, self._compression)

    def spec(self, spec_id: int) -> PartitionSpec:
        return LastingSpec.of(self._transaction.table_metadata, spec_id)

    def _build_delete_files_partition_predicate(self) -> None:
        """Which manifests are looked at: all, where the type of a partition's values is not known any more."""
        super()._build_delete_files_partition_predicate()
        for spec_id in {file.spec_id for file in self._deleted_data_files}:
            if has_unknown_types(self.spec(spec_id).partition_type(self.schema())):
                self.partition_filters[spec_id] = AlwaysTrue()

    def _commit(self) -> UpdatesAndRequirements:
        try:
            return self._write_snapshot()
        except BaseException:
            self._clean_all_uncommitted()
            raise

    def _write_snapshot(self) -> UpdatesAndRequirements:
        metadata = self._transaction.table_metadata
        if any(file.spec_id != metadata.default_spec_id for file in self._added_data_files):
            raise ValidationException(
                "The partition spec of the table was changed after its new files were written: write them again"
            )
        manifests = self._manifests()
        output = self._manifest_list_output()
        first_row_id: int = getattr(metadata, "next_row_id", None) or FIRST_ROW_ID
        sequence_number = metadata.next_sequence_number()
        writer = V3ManifestListWriter(
            output, self._snapshot_id, self._parent_snapshot_id, sequence_number, first_row_id, self._compression
        )
        with writer:
            writer.add_manifests(manifests)
        key_id, added_keys = self._seal(output)
        snapshot = V3Snapshot(
            snapshot_id=self._snapshot_id,
            parent_snapshot_id=self._parent_snapshot_id,
            manifest_list=output.location,
            sequence_number=sequence_number,
            summary=self._summary(self.snapshot_properties),
            schema_id=metadata.current_schema_id,
            first_row_id=first_row_id,
            added_rows=writer.next_row_id - first_row_id,
            key_id=key_id,
        )
        updates: tuple[Any, ...] = (*added_keys, AddSnapshotUpdate(snapshot=snapshot))
        requirements: tuple[TableRequirement, ...] = ()
        if self._target_branch is not None:
            head = metadata.refs.get(self._target_branch)
            updates += (
                SetSnapshotRefUpdate(  # type: ignore[call-arg]  # the others have defaults
                    snapshot_id=self._snapshot_id, ref_name=self._target_branch, type=SnapshotRefType.BRANCH
                ),
            )
            requirements = (
                AssertRefSnapshotId(snapshot_id=head.snapshot_id if head else None, ref=self._target_branch),
            )
        return updates, requirements

    def _manifest_list_output(self) -> OutputFile:
        name = _new_manifest_list_file_name(self._snapshot_id, attempt=0, commit_uuid=self.commit_uuid)
        location = self._transaction._table.location_provider().new_metadata_location(name)
        self._written_manifest_lists.append(location)
        return self._io.new_output(location)

    def _seal(self, manifest_list: OutputFile) -> tuple[str | None, list[AddEncryptionKeyUpdate]]:
        """The id of the key of the manifest list, and what has to be added to the table's keys."""
        if not (isinstance(self._io, EncryptedFileIO) and isinstance(manifest_list, EncryptedOutputFile)):
            return None, []
        keyring = self._io.keys.keyring(self._transaction.table_metadata)
        key_id = keyring.seal_manifest_list_key(manifest_list.key().open())
        self._io.keys.learn(keyring.added)  # for what reads this snapshot before it is committed
        for location in (*self._written_manifests, manifest_list.location):
            self._io.take_key(location)
        return key_id, [AddEncryptionKeyUpdate(encryption_key=EncryptionKeyEntry.of(key)) for key in keyring.added]


class DeleteFiles(_DeleteFiles, V3SnapshotProducer):
    pass


class FastAppendFiles(_FastAppendFiles, V3SnapshotProducer):
    pass


class MergeAppendFiles(_MergeAppendFiles, V3SnapshotProducer):
    pass


class OverwriteFiles(_OverwriteFiles, V3SnapshotProducer):
    pass


class UpdateSnapshot(PyIcebergUpdateSnapshot):
    def fast_append(self) -> FastAppendFiles:
        return FastAppendFiles(Operation.APPEND, **self._arguments())

    def merge_append(self) -> MergeAppendFiles:
        return MergeAppendFiles(Operation.APPEND, **self._arguments())

    def overwrite(self, commit_uuid: uuid.UUID | None = None) -> OverwriteFiles:
        is_first = self._transaction.table_metadata.snapshot_by_name(self._branch) is None
        operation = Operation.APPEND if is_first else Operation.OVERWRITE
        return OverwriteFiles(operation, commit_uuid=commit_uuid, **self._arguments())

    def delete(self) -> DeleteFiles:
        return DeleteFiles(Operation.DELETE, **self._arguments())

    def _arguments(self) -> dict[str, Any]:
        return {
            "transaction": self._transaction,
            "io": self._io,
            "branch": self._branch,
            "snapshot_properties": self._snapshot_properties,
        }
