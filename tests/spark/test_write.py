"""Writers as Spark uses them, without Spark: runs of the same write, of which some are killed, or fail, or are late."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyspark.sql.types import LongType, StructType

from pyiceberg_encryption import load_catalog
from pyiceberg_encryption.errors import UsageError
from pyiceberg_encryption.pipeline.commit import commit, sweep
from pyiceberg_encryption.spark import write
from pyiceberg_encryption.spark.options import Options
from pyiceberg_encryption.spark.write import StreamWriter, Writer, Written
from tests.table_support import path_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table
    from pyspark.sql.datasource import WriterCommitMessage

SCHEMA = StructType().add("id", LongType())
BATCH = 3
NO_ROWS = -1
NAMED = {"commit-id": "daily"}


@dataclass
class Context:
    """Of a task."""

    run: str
    attempt: int
    batch: ClassVar[int] = BATCH

    @staticmethod
    def get() -> Context:
        return current

    def getLocalProperty(self, name: str) -> str:  # noqa: N802
        query = self.run if self.run == "another query" else "query"
        known = {"queryId": query, "batchId": str(self.batch), "id": self.run}
        return known[name.rpartition(".")[2]]

    def attemptNumber(self) -> int:  # noqa: N802
        return 0

    def partitionId(self) -> int:  # noqa: N802
        return 0

    def taskAttemptId(self) -> int:  # noqa: N802
        return self.attempt


current = Context("none", 0)


@dataclass
class Run:
    """One attempt at a write: its task is done, and then its driver commits or aborts, or neither."""

    writer: Writer | StreamWriter
    written: Written
    batch: int = BATCH

    def commit(self) -> None:
        if isinstance(self.writer, Writer):
            self.writer.commit([self.written])
        else:
            self.writer.commit([self.written], self.batch)

    def abort(self, *, a_task_failed: bool = True) -> None:
        messages: list[WriterCommitMessage | None] = [self.written, *([None] if a_task_failed else [])]
        if isinstance(self.writer, Writer):
            self.writer.abort(messages)
        else:
            self.writer.abort(messages, self.batch)


class Starter:
    """Every run writes the same rows."""

    def __init__(self, own: dict[str, str]) -> None:
        self._own = own
        self.is_stream = not own

    def __call__(self, name: str, *ids: int, **options: str) -> Run:
        given = {"catalog": "streamed", "table": "db.t", **self._own, **options}
        kind = StreamWriter if self.is_stream else Writer
        writer = kind(Options.of(given), SCHEMA, None)
        return Run(writer, self.task(writer, name, *(ids or (1, 2))))

    @staticmethod
    def task(writer: Writer | StreamWriter, name: str, *ids: int) -> Written:
        global current
        current = Context(name, len(name))
        batches = [pa.record_batch({"id": pa.array(ids)})] if ids != (NO_ROWS,) else []
        there: Writer | StreamWriter = pickle.loads(pickle.dumps(writer))
        return there.write(iter(batches))


@pytest.fixture(params=[{}, NAMED], ids=["a batch of a stream", "a write with a name"])
def start(request: pytest.FixtureRequest, table: Table, monkeypatch: pytest.MonkeyPatch) -> Starter:
    monkeypatch.setattr(write, "TaskContext", Context)
    return Starter(request.param)


@pytest.fixture
def start_named(table: Table, monkeypatch: pytest.MonkeyPatch) -> Starter:
    """For what befalls no stream: a second run that begins beside it, or a table that is set back."""
    monkeypatch.setattr(write, "TaskContext", Context)
    return Starter(NAMED)


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []

    def noted(table: Any, job: str) -> list[str]:
        found.append(job)
        return sweep(table, job)

    monkeypatch.setattr(write, "sweep", noted)
    return found


def check_that_rows_are_there_once(table: Table) -> None:
    """And no file that is not the table's."""
    assert ids_of(table) == [1, 2]
    assert stored(table) == {path_of(path) for path in table.inspect.data_files()["file_path"].to_pylist()}


def stored(table: Table) -> set[Path]:
    return {path for path in (path_of(table.location()) / "data").rglob("*") if path.is_file()}


def test_a_run_that_was_killed_is_swept_by_the_next(table: Table, start: Starter) -> None:
    start("killed")
    start("killed again")
    start("last").commit()
    check_that_rows_are_there_once(table)


def test_a_run_that_was_killed_after_its_commit(table: Table, start: Starter) -> None:
    start("killed").commit()
    start("next").commit()
    check_that_rows_are_there_once(table)


def test_of_two_runs_at_once_one_comes_into_the_table(table: Table, start: Starter) -> None:
    slow, fast = start("slow"), start("fast")
    fast.commit()
    slow.commit()
    check_that_rows_are_there_once(table)


def test_a_run_that_aborts_leaves_the_files_of_another(table: Table, start: Starter) -> None:
    slow, fast = start("slow"), start("fast")
    slow.abort()
    fast.commit()
    check_that_rows_are_there_once(table)


def test_a_run_whose_commit_fails_leaves_the_files_of_another(
    table: Table, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = start("slow"), start("fast")

    def fails(*arguments: object, **more: object) -> bool:
        raise CommitFailedException("arranged")

    with monkeypatch.context() as patch:
        patch.setattr(write, "commit", fails)
        with pytest.raises(CommitFailedException):
            slow.commit()
    fast.commit()
    check_that_rows_are_there_once(table)


def test_a_run_that_aborts_leaves_nothing(table: Table, start: Starter) -> None:
    start("failed").abort()
    assert stored(table) == set()


def test_after_one_that_was_killed_and_one_that_failed(table: Table, start: Starter) -> None:
    start("killed")
    start("failed").abort()
    start("last").commit()
    check_that_rows_are_there_once(table)


def test_the_first_run_sweeps_what_a_later_one_left(table: Table, start_named: Starter) -> None:
    first = start_named("first")
    start_named("killed")
    first.commit()
    check_that_rows_are_there_once(table)


def test_a_run_without_rows_says_nothing_of_others(table: Table, start: Starter) -> None:
    slow = start("slow")
    start("killed")
    start("empty", NO_ROWS).commit()
    slow.commit()
    check_that_rows_are_there_once(table)


def test_the_same_write_into_another_branch(table: Table, start: Starter) -> None:
    table.manage_snapshots().create_branch(table_with_rows(table, 0), "dev").commit()
    slow = start("slow")
    start("there", branch="dev").commit()
    slow.commit()
    assert ids_of(table, "main") == ids_of(table, "dev") == [0, 1, 2]


def test_the_same_write_into_another_table_in_the_same_folder(table: Table, start: Starter) -> None:
    properties = {"encryption.key-id": "mine", "write.data.path": f"{table.location()}/data"}
    with load_catalog("streamed") as catalog:
        catalog.create_table("db.other", table.schema(), properties=properties)
        for name in ("first", "again"):
            start(name, table="db.other").commit()
            start(name).commit()
        for each in (table, catalog.load_table("db.other")):
            assert ids_of(each) == [1, 2]


def test_what_was_deleted_as_left_over_is_not_committed(table: Table, start_named: Starter) -> None:
    """Though nothing else tells of the run that did it."""
    before = table_with_rows(table, 0)
    slow, fast = start_named("slow"), start_named("fast")
    fast.commit()
    table.refresh().manage_snapshots().rollback_to_snapshot(before).commit()
    with pytest.raises(UsageError, match="deleted this one's files"):
        slow.commit()
    assert ids_of(table) == [0]


def test_a_task_that_ends_after_its_job(table: Table, start_named: Starter) -> None:
    run = start_named("killed")
    start_named("last").commit()
    with pytest.raises(UsageError, match="has ended without it"):
        start_named.task(run.writer, "late", 1, 2)
    check_that_rows_are_there_once(table)


def test_nothing_is_deleted_if_it_is_unknown_what_became_of_the_commit(
    table: Table, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, on_its_way = start("only"), []

    def commit_later(*arguments: Any, **more: Any) -> bool:
        on_its_way.append(lambda: commit(*arguments, **more))
        raise CommitStateUnknownException("arranged")

    monkeypatch.setattr(write, "commit", commit_later)
    with pytest.raises(CommitStateUnknownException):
        run.commit()
    run.abort(a_task_failed=False)
    assert on_its_way[0]()
    assert ids_of(table) == [1, 2]


def test_files_go_if_their_entries_cannot_be_opened(
    table: Table, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start("only")

    def fails(*arguments: object) -> None:
        raise OSError("arranged")

    monkeypatch.setattr(write, "opened_here", fails)
    with pytest.raises(OSError, match="arranged"):
        run.commit()
    assert not [path for path in stored(table) if path.suffix == ".parquet"]


def test_a_failure_to_tidy_up_is_no_failure_to_write(
    table: Table, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("killed")
    last = start("last")

    def fails(*arguments: object) -> None:
        raise OSError("arranged")

    monkeypatch.setattr(write, "sweep", fails)
    with pytest.warns(UserWarning, match="in the table, but not all has been tidied up: arranged"):
        last.commit()
    assert ids_of(table) == [1, 2]


def test_folders_are_listed_where_something_may_be_left_and_nowhere_else(
    table: Table, start: Starter, sweeps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start("first").commit()
    start("another query", **({} if start.is_stream else {"commit-id": "another"})).commit()
    assert len(sweeps) == 2 * start.is_stream  # the first batch of a run
    for batch in (BATCH + 1, BATCH + 2):
        monkeypatch.setattr(Context, "batch", batch)
        options = {} if start.is_stream else {"commit-id": str(batch)}
        run = start("first", **options)
        run.batch = batch
        run.commit()
    assert len(sweeps) == 2 * start.is_stream
    assert ids_of(table) == [1, 1, 1, 1, 2, 2, 2, 2]


def table_with_rows(table: Table, *ids: int) -> int:
    table.append(pa.table({"id": pa.array(ids, pa.int64())}))
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def ids_of(table: Table, branch: str = "main") -> list[int]:
    found: list[int] = table.refresh().scan().use_ref(branch).to_arrow()["id"].to_pylist()
    return sorted(found)
