"""Writers as Spark uses them, without Spark: runs of the same write, of which some are killed, or fail, or are late."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyspark.sql.types import LongType, StructType

from pyiceberg_encryption.spark import write
from pyiceberg_encryption.spark.options import Options
from pyiceberg_encryption.spark.write import StreamWriter, Writer, Written
from tests.table_support import path_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyiceberg.table import Table

SCHEMA = StructType().add("id", LongType())
BATCH = 3


@dataclass
class Context:
    """Of a task."""

    run: str
    attempt: int

    @staticmethod
    def get() -> Context:
        return current

    def getLocalProperty(self, name: str) -> str:  # noqa: N802
        return {"sql.streaming.queryId": "query", "streaming.sql.batchId": str(BATCH), "spark.jobGroup.id": self.run}[
            name
        ]

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

    def commit(self) -> None:
        if isinstance(self.writer, Writer):
            self.writer.commit([self.written])
        else:
            self.writer.commit([self.written], BATCH)

    def abort(self) -> None:
        """For a second task failed."""
        if isinstance(self.writer, Writer):
            self.writer.abort([self.written, None])
        else:
            self.writer.abort([self.written, None], BATCH)


@pytest.fixture(params=["a batch of a stream", "a write with a name"])
def start(request: pytest.FixtureRequest, table: Table, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Run]:
    """Every run writes the same rows."""
    monkeypatch.setattr(write, "TaskContext", Context)
    own = {} if request.param == "a batch of a stream" else {"commit-id": "daily"}
    options = Options.of({"catalog": "streamed", "table": "db.t", **own})

    def start(name: str) -> Run:
        global current
        current = Context(name, len(name))
        kind = Writer if own else StreamWriter
        writer = pickle.loads(pickle.dumps(kind(options, SCHEMA, None)))
        return Run(writer, writer.write(iter([pa.record_batch({"id": [1, 2]})])))

    return start


def check_that_rows_are_there_once(table: Table) -> None:
    """And no file that is not the table's."""
    assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == [1, 2]
    assert stored(table) == {path_of(path) for path in table.inspect.data_files()["file_path"].to_pylist()}


def stored(table: Table) -> set[Path]:
    return {path for path in (path_of(table.location()) / "data").rglob("*") if path.is_file()}


def test_a_run_that_was_killed_is_swept_by_the_next(table: Table, start: Callable[[str], Run]) -> None:
    start("killed")
    start("killed again")
    start("last").commit()
    check_that_rows_are_there_once(table)


def test_a_run_that_was_killed_after_its_commit(table: Table, start: Callable[[str], Run]) -> None:
    start("killed").commit()
    start("next").commit()
    check_that_rows_are_there_once(table)


def test_of_two_runs_at_once_one_comes_into_the_table(table: Table, start: Callable[[str], Run]) -> None:
    slow, fast = start("slow"), start("fast")
    fast.commit()
    slow.commit()
    check_that_rows_are_there_once(table)


def test_a_run_that_aborts_leaves_the_files_of_another(table: Table, start: Callable[[str], Run]) -> None:
    slow, fast = start("slow"), start("fast")
    slow.abort()
    fast.commit()
    check_that_rows_are_there_once(table)


def test_a_run_whose_commit_fails_leaves_the_files_of_another(
    table: Table, start: Callable[[str], Run], monkeypatch: pytest.MonkeyPatch
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


def test_a_run_that_aborts_leaves_nothing(table: Table, start: Callable[[str], Run]) -> None:
    start("failed").abort()
    assert stored(table) == set()
