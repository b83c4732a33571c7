"""Is every file of a table what was written? All that its metadata leads to is read to the last byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestFile
from pyiceberg.table import FileScanTask
from pyiceberg.utils.bin_packing import PackingIterator

from pyiceberg_encryption.errors import (
    ConfigurationError,
    FormatError,
    IntegrityError,
    KmsUnavailableError,
    UsageError,
)
from pyiceberg_encryption.pipeline.engine import LocalEngine, engine_for
from pyiceberg_encryption.pipeline.listing import files_below
from pyiceberg_encryption.pipeline.orphans import OLDER_THAN, folders, unreached
from pyiceberg_encryption.pipeline.report import FILE_KINDS, Count, FileKind, Finding, KekUse, Problem, Report
from pyiceberg_encryption.pipeline.sealed import RemoteTable, SealedEntries, SealedTable, send
from pyiceberg_encryption.pipeline.splits import SealedTasks, SplitSizes, open_tasks, packed, seal_tasks
from pyiceberg_encryption.table import metadata_files, reached
from pyiceberg_encryption.table.file_io import EncryptedFileIO, FileKey, checked_key, manifest_list_key
from pyiceberg_encryption.table.manifests import V3DataFile, without_statistics
from pyiceberg_encryption.table.models import encryption_keys, key_id
from pyiceberg_encryption.table.read import SplitTask
from pyiceberg_encryption.table.watched_io import WatchedFileIO
from pyiceberg_encryption.table.whole_files import check_puffin, check_rows, looks_plain

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyspark.sql import SparkSession

    from pyiceberg_encryption.pipeline.engine import Engine
    from pyiceberg_encryption.table.table import Table

T = TypeVar("T")
Progress = Callable[[int, int], None]

MANIFEST_BYTES_PER_TASK = 8 * 1024 * 1024  # Iceberg Java: TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT
MANIFESTS_PER_TASK = 16
MANIFEST_LOOKBACK = 10
ENCRYPTED_BEGINNINGS = (b"AGS1", b"PARE")
# What the contents of a file can be guilty of. Arrow has OSError for what it cannot parse.
_SIGNS_OF_DAMAGE = (IntegrityError, FormatError, pa.ArrowException, OSError, EOFError, ValueError)


def verify(
    table: Table,
    spark: SparkSession | None = None,
    *,
    progress: Progress | None = None,
    orphans: bool = True,
    older_than: timedelta = OLDER_THAN,
) -> Report:
    """Reads all files of all snapshots, each once, and says what is wrong with which.

    Manifests, data and delete files are read by Spark's executors, or without Spark by threads of this process. Their
    contents are decrypted and decoded to the end. `progress` is told how many files were read, of how many that are
    known so far.

    With `orphans`, files in the table's folders that no snapshot leads to are findings too, if they were last changed
    before `older_than`. Where tables share a folder, the files of one look orphaned to the other.

    What is wrong with a file, or with the storage, is in the report. A KMS that cannot be reached is an error.
    """
    if not isinstance(table.io, EncryptedFileIO):
        return _plain_table(table)
    verification = _Verification(table, table.io, engine_for(spark), progress or (lambda done, known: None))
    verification.metadata()
    verification.statistics()
    verification.contents(verification.manifest_lists())
    reason = verification.orphans(older_than) if orphans else "that was not asked for"
    return verification.report(reason)


def _plain_table(table: Table) -> Report:
    finding = Finding(
        "plaintext", table.metadata.location, "the table is not encrypted, so that nothing proves its files"
    )
    return Report(
        ".".join(table.name()),
        table.metadata_location,
        counts={},
        unproven_metadata=0,
        keks=(),
        findings=(finding,),
        orphans_not_sought="the table is not encrypted",
    )


@dataclass
class _Reached:
    kind: FileKind
    length: int
    keks: frozenset[str]


class _Verification:
    """What is known of a table, and more and more so."""

    def __init__(self, table: Table, io: EncryptedFileIO, engine: Engine, progress: Progress) -> None:
        self._table = table
        self._io = io
        self._engine = engine
        self._progress = progress
        self._reached: dict[str, _Reached] = {}
        self._findings: dict[tuple[Problem, str], Finding] = {}
        self._seen: set[str] = set()
        self._unproven = 0
        self._reaches_all = True
        self._key_entries = {entry.key_id: entry for entry in encryption_keys(table.metadata)}

    def metadata(self) -> None:
        locations = reached.metadata_files(self._table.metadata, self._table.metadata_location)
        for location, seen in self._each_here(_metadata_file, locations):
            length, is_proven = (0, True) if isinstance(seen, Finding) else seen
            self._reach(location, "metadata", length)
            self._unproven += not is_proven

    def statistics(self) -> None:
        """Metadata has no place for a key that would be sealed. So they cannot be encrypted, and tell of what is."""
        for location, seen in self._each_here(_statistics_file, reached.statistics_files(self._table.metadata)):
            length, finding = (0, None) if isinstance(seen, Finding) else seen
            self._reach(location, "statistics", length)
            if finding:
                self._find(finding)

    def manifest_lists(self) -> list[tuple[Snapshot, list[ManifestFile]]]:
        """The snapshots whose lists can be read, with their manifests."""
        snapshots = {snapshot.manifest_list: snapshot for snapshot in self._table.metadata.snapshots}
        opened = []
        for location, seen in self._each_here(partial(_manifest_list, snapshots), list(snapshots)):
            snapshot = snapshots[location]
            length, manifests = (0, None) if isinstance(seen, Finding) else seen
            self._reach(location, "manifest list", length, self._keks_of(snapshot))
            if manifests is None:
                self._reaches_all = False
            else:
                opened.append((snapshot, manifests))
        return opened

    def contents(self, lists: list[tuple[Snapshot, list[ManifestFile]]]) -> None:
        """All that the lists lead to."""
        manifests = list(self._manifests(lists))
        if not manifests:
            return
        sealed, here = send(self._table, self._metadata_of([snapshot for snapshot, _ in lists]))
        entries = self._entries(sealed, here, manifests)
        sizes = SplitSizes.of(self._table.properties, {})
        bins = packed([FileScanTask(file) for file in self._files(entries)], sizes)
        results = self._engine.run(_CheckFiles(sealed), (seal_tasks(here, tasks) for tasks in bins))
        for tasks, findings in zip(bins, results, strict=True):
            for finding in here.open(findings):
                self._find(finding)
            self._advance(*(task.file.file_path for task in tasks))

    def orphans(self, older_than: timedelta) -> str | None:
        """Why they were not looked for, if so."""
        if not self._reaches_all:
            return "not all of the manifests could be read, and what they list would look orphaned"
        if not self._table.metadata_location:
            return "the catalog does not say where the metadata is, which would look orphaned"
        latest = datetime.now(timezone.utc) - older_than
        for folder in folders(self._table.metadata):
            try:
                listed = list(files_below(self._io.plain, folder))
            except UsageError as error:
                return str(error)
            except Exception as error:
                self._find(Finding("unreadable", folder, f"the folder cannot be listed: {_named(error)}"))
                continue
            for file in unreached(self._table, listed, self._reached):
                if file.changed is None or file.changed <= latest:
                    self._find(Finding("orphaned", file.location, "nothing that the metadata names leads there"))
        return None

    def report(self, orphans_not_sought: str | None) -> Report:
        files: Counter[FileKind] = Counter()
        lengths: Counter[FileKind] = Counter()
        keks: Counter[str] = Counter()
        for file in self._reached.values():
            files[file.kind] += 1
            lengths[file.kind] += file.length
            keks.update(file.keks)
        return Report(
            ".".join(self._table.name()),
            self._table.metadata_location,
            {kind: Count(files[kind], lengths[kind]) for kind in FILE_KINDS},
            self._unproven,
            tuple(KekUse(kek, self._sealed_by(kek), number) for kek, number in sorted(keks.items())),
            tuple(sorted(self._findings.values(), key=lambda finding: (finding.path, finding.problem))),
            orphans_not_sought,
        )

    def _each_here(
        self, look: Callable[[EncryptedFileIO, str], T], locations: list[str]
    ) -> Iterator[tuple[str, T | Finding]]:
        def looked(location: str) -> T | Finding:
            return _examined(self._io, location, lambda io: look(io, location))

        for location, seen in zip(locations, LocalEngine().run(looked, locations), strict=True):
            if isinstance(seen, Finding):
                self._find(seen)
            yield location, seen
            self._advance(location)

    def _manifests(self, lists: list[tuple[Snapshot, list[ManifestFile]]]) -> Iterator[ManifestFile]:
        """Each once."""
        known: dict[str, ManifestFile] = {}
        for snapshot, manifests in lists:
            for manifest in manifests:
                path = manifest.manifest_path
                self._reach(path, "manifest", manifest.manifest_length, self._keks_of(snapshot))
                same = known.setdefault(path, manifest)
                if manifest.key_metadata is None:
                    self._find(Finding("plaintext", path, "its manifest list has no key for it"))
                    self._reaches_all = False
                    self._advance(path)
                elif same is manifest:
                    yield manifest
                elif same.manifest_length != manifest.manifest_length or not _have_same_key(same, manifest):
                    self._find(_contradiction(path))

    def _metadata_of(self, snapshots: list[Snapshot]) -> TableMetadata:
        """With no more than the keys that were used to open these: others may be damaged, and are not needed."""
        names = {key_id(snapshot) for snapshot in snapshots}
        names |= {self._sealed_by(name) for name in names if name}
        entries = getattr(self._table.metadata, "encryption_keys", None) or ()
        return self._table.metadata.model_copy(
            update={"snapshots": snapshots, "encryption_keys": [entry for entry in entries if entry.key_id in names]}
        )

    def _entries(
        self, sealed: SealedTable, here: RemoteTable, manifests: list[ManifestFile]
    ) -> Iterator[tuple[DataFile, frozenset[str]]]:
        """The files that the manifests list, with the KEKs of these."""
        least = MANIFEST_BYTES_PER_TASK // MANIFESTS_PER_TASK
        bins = PackingIterator(
            manifests, MANIFEST_BYTES_PER_TASK, MANIFEST_LOOKBACK, lambda manifest: max(manifest.manifest_length, least)
        )
        for result in self._engine.run(_ReadManifests(sealed), (here.seal_manifests(batch) for batch in bins)):
            for path, seen in here.open(result):
                if isinstance(seen, Finding):
                    self._find(seen)
                    self._reaches_all = False
                else:
                    keks = self._reached[path].keks
                    yield from ((entry.data_file, keks) for entry in here.open_entries(seen))
                self._advance(path)

    def _files(self, listed: Iterable[tuple[DataFile, frozenset[str]]]) -> Iterator[DataFile]:
        """Each once, and all deletion vectors of a Puffin file one after the other. Those without a key are left out,
        unless the table is being converted."""
        known: dict[str, dict[tuple[int, int] | None, DataFile]] = {}
        for file, keks in listed:
            path = file.file_path
            kind: FileKind = "data" if file.content == DataFileContent.DATA else "delete"
            self._reach(path, kind, file.file_size_in_bytes, keks)
            if file.key_metadata is None:
                self._find(Finding("plaintext", path, "its manifest has no key for it"))
                if not self._io.keys.admits_plaintext_data:
                    self._advance(path)
                    continue
            try:
                same = known.setdefault(path, {}).setdefault(_place_in_file(file), file)
            except FormatError as error:
                self._find(Finding("damaged", path, _without(path, error)))
                self._advance(path)
                continue
            if not _is_same(same, file):
                self._find(_contradiction(path))
        for files in known.values():
            yield from files.values()

    def _reach(self, path: str, kind: FileKind, length: int, keks: frozenset[str] = frozenset()) -> None:
        known = self._reached.setdefault(path, _Reached(kind, length, keks))
        if known.keks != keks:
            known.keks |= keks

    def _find(self, finding: Finding) -> None:
        self._findings.setdefault((finding.problem, finding.path), finding)

    def _advance(self, *paths: str) -> None:
        self._seen.update(paths)
        self._progress(len(self._seen), len(self._reached))

    def _keks_of(self, snapshot: Snapshot) -> frozenset[str]:
        name = key_id(snapshot)
        kek = self._sealed_by(name) if name else None
        return frozenset((kek,)) if kek else frozenset()

    def _sealed_by(self, name: str) -> str | None:
        entry = self._key_entries.get(name)
        return entry.encrypted_by_id if entry else None


@dataclass(frozen=True)
class _ReadManifests:
    """Work: for each manifest its entries, or what is wrong with it."""

    table: SealedTable

    def __call__(self, manifests: bytes) -> bytes:
        table = self.table.remote
        return table.seal(
            [(manifest.manifest_path, _read(table, manifest)) for manifest in table.open_manifests(manifests)]
        )


@dataclass(frozen=True)
class _CheckFiles:
    """Work: what is wrong with the files, or parts of files."""

    table: SealedTable

    def __call__(self, tasks: SealedTasks) -> bytes:
        table = self.table.remote
        vectors: dict[str, list[V3DataFile]] = {}
        checks: list[tuple[str, Callable[[EncryptedFileIO], None]]] = []
        for task in open_tasks(table, tasks):
            file = task.file
            if file.file_format == FileFormat.PUFFIN and isinstance(file, V3DataFile):
                vectors.setdefault(file.file_path, []).append(file)
            else:
                split = task.split if isinstance(task, SplitTask) else None
                checks.append((file.file_path, partial(check_rows, file=file, split=split)))
        checks += [(path, partial(check_puffin, vectors=files)) for path, files in vectors.items()]
        seen = (_examined(table.io, path, check) for path, check in checks)
        return table.seal([finding for finding in seen if finding is not None])


def _examined(io: EncryptedFileIO, location: str, look: Callable[[EncryptedFileIO], T]) -> T | Finding:
    """What was seen, or what kept from seeing it."""
    watched = WatchedFileIO(io.plain)
    try:
        return look(EncryptedFileIO(watched, io.keys))
    except (ConfigurationError, KmsUnavailableError):
        raise  # whatever the file
    except Exception as error:
        if isinstance(watched.failure, FileNotFoundError):
            return Finding("missing", location, "there is no such file")
        if watched.failure is not None:
            return Finding("unreadable", location, f"the storage failed: {_named(watched.failure)}")
        if isinstance(error, (NotImplementedError, MemoryError)) or not isinstance(error, _SIGNS_OF_DAMAGE):
            return Finding("unreadable", location, _named(error))
        problem: Problem = "plaintext" if looks_plain(io, location) else "damaged"
        return Finding(problem, location, _without(location, error))


def _metadata_file(io: EncryptedFileIO, location: str) -> tuple[int, bool]:
    _, is_proven = metadata_files.read(io.plain, location, None)
    return len(io.plain.new_input(location)), is_proven


def _statistics_file(io: EncryptedFileIO, location: str) -> tuple[int, Finding]:
    file = io.plain.new_input(location)
    with file.open() as stream:
        begins = bytes(stream.read(4))
    if begins in ENCRYPTED_BEGINNINGS:
        return len(file), Finding("unreadable", location, "it is encrypted, and nothing says by which key")
    return len(file), Finding("plaintext", location, "statistics are not encrypted")


def _manifest_list(
    snapshots: Mapping[str, Snapshot], io: EncryptedFileIO, location: str
) -> tuple[int, list[ManifestFile]]:
    snapshot = snapshots[location]
    key = manifest_list_key(io, location, key_id(snapshot))
    manifests = snapshot.manifests(io)
    return (key.open().file_length or 0) if key else 0, manifests


def _read(table: RemoteTable, manifest: ManifestFile) -> SealedEntries | Finding:
    seen = _examined(table.io, manifest.manifest_path, partial(_live_entries, manifest))
    if isinstance(seen, Finding):
        return seen
    return table.seal_entries(without_statistics(entry) for entry in seen)


def _live_entries(manifest: ManifestFile, io: EncryptedFileIO) -> list[ManifestEntry]:
    key = checked_key(manifest.manifest_path, manifest.key_metadata)
    if key is not None and key.open().file_length != manifest.manifest_length:
        raise IntegrityError(f"{manifest.manifest_path} is not as long as its manifest list says")
    return manifest.fetch_manifest_entry(io)


def _place_in_file(file: DataFile) -> tuple[int, int] | None:
    """Of a deletion vector."""
    return file.content_range if file.file_format == FileFormat.PUFFIN and isinstance(file, V3DataFile) else None


def _is_same(one: DataFile, other: DataFile) -> bool:
    return (
        one.file_size_in_bytes == other.file_size_in_bytes
        and one.record_count == other.record_count
        and _have_same_key(one, other)
    )


def _have_same_key(one: DataFile | ManifestFile, other: DataFile | ManifestFile) -> bool:
    first, second = one.key_metadata, other.key_metadata
    if isinstance(first, FileKey) and isinstance(second, FileKey):
        return first.is_same_as(second)
    return first is second


def _contradiction(path: str) -> Finding:
    return Finding(
        "damaged", path, "it is listed twice, with another key, length or number of rows, so that one is wrong"
    )


def _without(location: str, error: Exception) -> str:
    """What an error says of a file that is named beside it."""
    return str(error).removeprefix(location).lstrip(":, ")


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
