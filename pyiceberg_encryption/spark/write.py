"""Writes: executors write encrypted files, and the driver makes one snapshot of them."""

from __future__ import annotations

import contextlib
import hashlib
import uuid
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table import _parse_row_filter
from pyiceberg.table.refs import MAIN_BRANCH
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema

from pyiceberg_encryption.errors import ConfigurationError, UsageError
from pyiceberg_encryption.pipeline.commit import CommittedBeforeError, Marks, Once, Overwrite, ancestors, commit, sweep
from pyiceberg_encryption.pipeline.data_writer import DataFileWriter, check_columns
from pyiceberg_encryption.pipeline.sealed import Envelope, SealedEntries, SealedTable, opened_here, send
from pyiceberg_encryption.spark import options as names
from pyiceberg_encryption.spark.read import load_table
from pyiceberg_encryption.spark.types import FromSpark
from pyiceberg_encryption.spark.worker import make_ready_for_next_task
from pyiceberg_encryption.table import policy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql.types import StructType

    from pyiceberg_encryption.spark.options import Options
    from pyiceberg_encryption.table.table import Table

# Of snapshots that a stream made. Iceberg Java: SparkWrite
QUERY_ID, EPOCH_ID = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
RUN_ID = "pyiceberg-encryption.streaming.run-id"
COMMIT_ID = "pyiceberg-encryption.commit-id"
_TASK_QUERY_ID, _TASK_BATCH_ID, _TASK_RUN_ID = (  # what Spark tells its tasks
    "sql.streaming.queryId",
    "streaming.sql.batchId",
    "spark.jobGroup.id",
)


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote."""

    envelope: Envelope
    files: SealedEntries
    job: str
    family: str
    query_id: str | None
    run_id: str | None
    attempt_number: int
    attempt_id: int


class _Job:
    """What the writers of batches and of streams share: one attempt of one task, and the end of it all.

    A job is one run of a write. Its family are all runs of the same write, of which one alone comes into the table. So
    what the family has left is swept once one did, and not before: another one may be about to commit.
    """

    def __init__(self, options: Options, schema: StructType, overwrite: Overwrite | None) -> None:
        self._options = options
        self._schema = schema
        self._overwrite = overwrite
        self._sealed: SealedTable | None = None
        self._name = uuid.uuid4().hex

    def __getstate__(self) -> dict[str, Any]:
        """Spark pickles the writer of a stream for its executors, and makes another one that only commits."""
        if self._sealed is None:
            self._prepare()
        return self.__dict__.copy()

    def _prepare(self) -> Table:
        table = _table_to_write(self._options, self._schema)
        from_spark = FromSpark(table.schema())
        check_columns(table.metadata, from_spark.schema(to_arrow_schema(self._schema)))
        self._sealed, _ = send(table)
        return table

    def _names(self, context: TaskContext) -> tuple[str, str]:
        """Of the job, and of its family."""
        raise NotImplementedError

    def _branch(self) -> str:
        return self._options.own.get(names.BRANCH, MAIN_BRANCH)

    def _is_running(self, marks: Marks) -> bool:
        return True

    def _write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        if self._sealed is None or context is None:
            raise UsageError("A writer writes within a task of Spark")
        table = self._sealed.remote
        job, family = self._names(context)
        marks = Marks(table, job)
        if context.attemptNumber() > 0:
            marks.add_retry()
        name = f"{context.partitionId():05d}-{context.taskAttemptId()}-{job}"
        writer = DataFileWriter(table.io, table.metadata, name, fanout=self._options.flag(names.FANOUT, True))
        try:
            from_spark = FromSpark(table.metadata.schema())
            for batch in batches:
                writer.write(from_spark(batch))
            files = table.seal_entries(writer.finish())
            if not self._is_running(marks):
                marks.remove_retry()
                raise UsageError("The job of this task has ended without it")
        except BaseException:
            writer.abort()
            raise
        make_ready_for_next_task()
        return Written(
            self._sealed.envelope,
            files,
            job,
            family,
            context.getLocalProperty(_TASK_QUERY_ID),
            context.getLocalProperty(_TASK_RUN_ID),
            context.attemptNumber(),
            context.taskAttemptId(),
        )

    def _commit(
        self,
        table: Table,
        written: list[Written],
        family: str,
        once: Once | None,
        summary: Mapping[str, str],
        is_replay: bool,
    ) -> None:
        jobs = {message.job for message in written}
        try:
            files = _files(table, written)
        except Exception:
            _sweep(table, jobs)
            raise
        try:
            is_new = commit(
                table,
                files,
                overwrite=self._overwrite,
                branch=self._branch(),
                summary={**self._options.after(names.SUMMARY_PREFIX), **summary},
                once=once,
            )
        except (CommitFailedException, ValidationException, UsageError):
            # Any other error leaves open whether the table has the files.
            _sweep(table, jobs)
            raise
        was_there = bool(files) and not is_new
        with _after_commit():
            if was_there or (is_new and is_replay):
                sweep(table, family)
            elif _has_retries(table, written):
                _sweep(table, jobs)

    def _abort(self, table: Table, messages: list[WriterCommitMessage | None]) -> bool:
        """Whether a task failed. If none did, it was the commit, which has cleaned up as far as is safe."""
        written = _written(messages)
        if messages and len(written) == len(messages):
            return False
        _sweep(table, {message.job for message in written} or {self._name})
        return True


class Writer(_Job, DataSourceArrowWriter):
    """With a name for the commit, all writes of that name are a family. It has a mark while a run is under way or was
    killed, and from when a second run finds that mark another one, which stays until what is left over was swept."""

    def __init__(self, options: Options, schema: StructType, overwrite: Overwrite | None) -> None:
        super().__init__(options, schema, overwrite)
        table = self._prepare()
        self._commit_id = options.own.get(names.COMMIT_ID)
        self._family = self._name
        if self._commit_id is not None:
            self._family = family_of(table.metadata, self._branch(), self._commit_id)
            self._name = f"{self._family}-{self._name}"
            marks = Marks(table, self._family)
            if marks.is_running():
                marks.add_retry()
            marks.begin()
        Marks(table, self._name).begin()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        table = load_table(self._options)
        written, marks = _written(messages), Marks(table, self._name)
        if self._commit_id is None:
            marks.end()
            self._commit(table, written, self._family, None, {}, is_replay=False)
            return
        commit_id = self._commit_id
        once = Once({COMMIT_ID: commit_id}, lambda summary: True if summary.get(COMMIT_ID) == commit_id else None)
        if not marks.is_running():
            try:
                once.check(table.metadata, self._branch())
            except CommittedBeforeError:
                return
            raise UsageError(f"Another write with the {names.COMMIT_ID} {commit_id!r} has deleted this one's files")
        marks.end()
        marks = Marks(table, self._family)
        self._commit(table, written, self._family, once, {}, is_replay=marks.has_retries())
        with _after_commit():
            marks.end()

    def _names(self, context: TaskContext) -> tuple[str, str]:
        return self._name, self._family

    def _is_running(self, marks: Marks) -> bool:
        return marks.is_running()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        table = load_table(self._options)
        Marks(table, self._name).end()
        has_swept = self._abort(table, messages)
        if has_swept and self._commit_id is not None:
            Marks(table, self._family).end()


class StreamWriter(_Job, DataSourceStreamArrowWriter):
    """The id of the query and the number of the batch are in the summary of the snapshot, as Iceberg Java has them.
    What is there already is not committed again."""

    def _names(self, context: TaskContext) -> tuple[str, str]:
        """The family's is the same, whichever run of the query the batch is in."""
        if self._sealed is None:
            raise UsageError("A writer writes within a task of Spark")
        query, batch, run = map(context.getLocalProperty, (_TASK_QUERY_ID, _TASK_BATCH_ID, _TASK_RUN_ID))
        family = family_of(self._sealed.remote.metadata, self._branch(), str(query), str(batch))
        return f"{family}-{run}", family

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = _written(messages)
        if not written:
            return
        query_id, run_id = written[0].query_id or "", written[0].run_id or ""

        def is_done(summary: Mapping[str, str]) -> bool | None:
            epoch = summary.get(EPOCH_ID, "")
            if summary.get(QUERY_ID) != query_id or not epoch.isdigit():
                return None
            return int(epoch) >= batchId

        table = load_table(self._options)
        summaries = (snapshot.summary for snapshot in ancestors(table.metadata, self._branch()))
        runs = (summary.get(RUN_ID) for summary in summaries if summary and summary.get(QUERY_ID) == query_id)
        is_replay = next(runs, None) != run_id
        once = Once({QUERY_ID: query_id, EPOCH_ID: str(batchId)}, is_done)
        self._commit(table, written, written[0].family, once, {RUN_ID: run_id}, is_replay)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._abort(load_table(self._options), messages)


def family_of(metadata: TableMetadata, branch: str, *write: str) -> str:
    """Not shared with writes into other tables or branches, for what these have committed does not tell on this."""
    scope = "\0".join((str(metadata.table_uuid), branch, *write))
    return hashlib.sha256(scope.encode()).hexdigest()[:32]


def overwrite_of(options: Options, overwrite: bool) -> Overwrite | None:
    mode, text = options.own.get(names.OVERWRITE_MODE, "static").lower(), options.own.get(names.OVERWRITE_FILTER)
    if mode not in ("static", "dynamic"):
        raise ConfigurationError(f"{names.OVERWRITE_MODE} is {mode!r}; it must be static or dynamic")
    if not overwrite:
        if text is not None or names.OVERWRITE_MODE in options.own:
            raise ConfigurationError(f"{names.OVERWRITE_FILTER} and {names.OVERWRITE_MODE} need mode('overwrite')")
        return None
    if text is not None and mode == "dynamic":
        raise ConfigurationError(f"{names.OVERWRITE_FILTER} and a dynamic {names.OVERWRITE_MODE} exclude each other")
    return Overwrite(AlwaysTrue() if text is None else _parse_row_filter(text), mode == "dynamic")


def _table_to_write(options: Options, schema: StructType) -> Table:
    if options.flag(names.CREATE, False):
        catalog = options.load_catalog()
        properties = options.after(names.TABLE_PROPERTY_PREFIX)
        default = f"{policy.TABLE_DEFAULT_PREFIX}{policy.KEY_ID}"
        if not (properties.get(policy.KEY_ID) or catalog.properties.get(default)):
            raise ConfigurationError(
                f"{options.table} would be created without encryption: set {names.TABLE_PROPERTY_PREFIX}"
                f"{policy.KEY_ID}, or the catalog's {default}"
            )
        catalog.create_table_if_not_exists(options.table, to_arrow_schema(schema.toNullable()), properties=properties)
    return load_table(options)


def _written(messages: list[WriterCommitMessage | None]) -> list[Written]:
    return [message for message in messages if isinstance(message, Written)]


def _sweep(table: Table, jobs: Iterable[str]) -> None:
    for job in jobs:
        sweep(table, job)


@contextlib.contextmanager
def _after_commit() -> Iterator[None]:
    """An error would have Spark say that nothing was written."""
    try:
        yield
    except Exception as error:
        warnings.warn(f"The rows are in the table, but not all has been tidied up: {error}", stacklevel=2)


def _files(table: Table, written: list[Written]) -> list[DataFile]:
    if not written:
        return []
    here = opened_here(written[0].envelope, table)
    return [entry.data_file for message in written for entry in here.open_entries(message.files)]


def _has_retries(table: Table, written: list[Written]) -> bool:
    """Whether there may have been other attempts at these tasks than those that succeeded.

    Every attempt has a number of its own in the application. One that failed in between leaves a gap. One that was
    started last and lost to another is the second at its task, and has left its mark. Not known: tasks whose process
    was killed, if Spark then begins the whole stage again, for it counts attempts anew.
    """
    if not written:
        return False
    ids = {message.attempt_id for message in written}
    marks = Marks(table, written[0].job)
    has_gap = len(ids) != max(ids) - min(ids) + 1
    return has_gap or any(message.attempt_number for message in written) or marks.has_retries()
