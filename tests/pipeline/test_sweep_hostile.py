"""Jobs that clean up after themselves leave alone what belongs to others, and what may be committed yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.exceptions import CommitStateUnknownException

from pyiceberg_encryption.pipeline import rekey as module
from pyiceberg_encryption.pipeline.commit import commit, sweep
from pyiceberg_encryption.pipeline.rekey import rekey
from tests.pipeline.support import new_table, written
from tests.table_support import ROWS, Lake, ids

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(("one", "other"), [("1", "10"), ("a", "a-b"), ("a", "a.b"), ("", "x"), ("x", "../../x")])
def test_a_job_whose_name_begins_as_that_of_another(
    one: str, other: str, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(lake, ROWS.schema)
    table.append(ROWS)
    original: Callable[..., None] = module._replace
    calls = list[int]()

    def late(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            rekey(lake.load(), job_id=one, row_filter="id > 1000")
        original(*arguments)

    monkeypatch.setattr(module, "_replace", late)
    rekey(table, job_id=other)
    assert ids(lake.load()) == [1, 2, 3]
    folder = lake.load().location().removeprefix("file://")
    assert all(str(path).startswith(folder) for path in lake.files(".parquet"))


def test_batches_of_a_stream_are_told_apart(lake: Lake) -> None:
    table = new_table(lake, ROWS.schema)
    files = written(table, ROWS, "00000-7-query-10")
    sweep(table, "query-1")
    assert commit(table, files)
    assert ids(lake.load()) == [1, 2, 3]


def test_a_commit_that_lands_after_its_answer_was_lost(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(lake, ROWS.schema)
    table.append(ROWS)
    kind, under_way = type(table.catalog), list[tuple[Any, ...]]()
    original = kind.commit_table

    def slow(*arguments: Any) -> Any:
        under_way.append(arguments)
        raise CommitStateUnknownException("the gateway timed out")

    with monkeypatch.context() as patch:
        patch.setattr(kind, "commit_table", slow)
        with pytest.raises(CommitStateUnknownException):
            rekey(table, job_id="job")
    original(*under_way[0])
    assert ids(lake.load()) == [1, 2, 3]
