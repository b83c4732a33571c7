"""Data written again under new keys: the rows, their ids and the time of their last change stay what they were."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.exceptions import ValidationException
from pyiceberg.table.snapshots import Operation

from pyiceberg_encryption.errors import UsageError
from pyiceberg_encryption.pipeline import rekey as module
from pyiceberg_encryption.pipeline.rekey import rekey
from pyiceberg_encryption.table.manifests import file_key
from tests.table_support import MORE_ROWS, OTHER_ROWS, ROWS, Lake
from tests.test_golden_tables_in_pyiceberg import LINEAGE, NAMES, TABLES, as_spark_reports, load

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table

    from tests.test_golden_tables_in_pyiceberg import Load

__all__ = ["load"]  # the fixture


def rows_of(table: Table) -> list[dict[str, Any]]:
    return as_spark_reports(table.refresh().scan(selected_fields=LINEAGE).to_arrow())


def keys_of(table: Table) -> dict[str, bytes]:
    found = {}
    for task in table.refresh().scan().plan_files():
        key = file_key(task.file)
        assert key is not None
        found[task.file.file_path] = bytes(key.open().encryption_key.expose())
    return found


def data_files_of(lake: Lake) -> set[str]:
    return {f"file://{path}" for path in lake.files(".parquet")}


@pytest.mark.parametrize("name", NAMES)
def test_tables_of_java_keep_their_rows_and_lineage(name: str, load: Load, tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    shutil.copytree(TABLES, folder)
    table, _ = load(name, folder)
    before, keys = rows_of(table), keys_of(table)
    done = rekey(table)
    assert rows_of(table) == before
    assert done.rows == len(before)
    assert done.files_replaced == len(keys)
    assert not set(keys.values()) & set(keys_of(table).values())
    if keys:
        snapshot = table.current_snapshot()
        assert snapshot is not None and snapshot.summary is not None
        assert snapshot.summary.operation == Operation.REPLACE
        assert snapshot.summary["total-delete-files"] == "0"
        assert not any(task.delete_files for task in table.scan().plan_files())


def test_files_that_may_have_rows_of_a_filter(lake: Lake) -> None:
    table = lake.create(appends=3)
    before, rows = keys_of(table), rows_of(table)
    done = rekey(table, row_filter="id = 4")
    after = keys_of(table)
    assert done.files_replaced == 1
    assert len(set(before) & set(after)) == 2
    assert rows_of(table) == rows


def test_files_older_than_a_time(lake: Lake) -> None:
    table = lake.create(appends=2)
    first = table.snapshots()[0].timestamp_ms
    second = table.snapshots()[1].timestamp_ms
    between = datetime.fromtimestamp((first + second) / 2000, timezone.utc)
    kept = set(keys_of(table))
    assert rekey(table, older_than=between).files_replaced == 1
    assert len(kept & set(keys_of(table))) == 1


def test_a_job_that_was_broken_off_goes_on(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create(appends=3, properties={"read.split.target-size": "1"})
    before = rows_of(table)
    commit, calls = module._replace, []

    def failing_at_the_second(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise ConnectionError("the machine was switched off")
        commit(*arguments)

    monkeypatch.setattr(module, "_replace", failing_at_the_second)
    with pytest.raises(ConnectionError):
        rekey(table, job_id="nightly", max_bytes_per_commit=1)
    monkeypatch.setattr(module, "_replace", commit)
    again = rekey(table, job_id="nightly", max_bytes_per_commit=1)
    assert (again.files_replaced, again.commits) == (2, 2)
    assert rekey(table, job_id="nightly").files_replaced == 0
    assert rows_of(table) == before
    assert len(lake.files(".parquet")) == 6  # three old ones, which the old snapshots still have


def test_rows_deleted_meanwhile_do_not_come_back(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create(appends=2)
    other = lake.load()
    commit = module._replace

    def late(*arguments: Any) -> None:
        other.delete("id = 1")
        commit(*arguments)

    monkeypatch.setattr(module, "_replace", late)
    with pytest.raises(ValidationException, match="by another writer"):
        rekey(table)
    assert [row["id"] for row in rows_of(table)] == [2, 3, 4, 5]
    assert data_files_of(lake) >= {task.file.file_path for task in table.scan().plan_files()}
    assert len(lake.files(".parquet")) == 3


def test_appends_meanwhile_stay(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.create(appends=1)
    other = lake.load()
    commit = module._replace

    def late(*arguments: Any) -> None:
        other.append(MORE_ROWS)
        commit(*arguments)

    monkeypatch.setattr(module, "_replace", late)
    rekey(table)
    assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4, 5]


def test_a_commit_in_between_is_built_upon(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog refuses the first attempt, since another writer was faster."""
    table = lake.create(appends=1, properties={"commit.retry.min-wait-ms": "1"})
    catalog = table.catalog
    commit = type(catalog).commit_table
    others = iter([lake.load()])

    def slow(self: Any, *arguments: Any) -> Any:
        for other in others:
            other.append(OTHER_ROWS)
        return commit(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(type(catalog), "commit_table", slow)
        rekey(table)
    assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 6, 7]


def test_progress_and_an_empty_table(lake: Lake) -> None:
    table = lake.create(appends=0)
    assert rekey(table).commits == 0
    table.append(ROWS)
    seen: list[tuple[int, int]] = []
    rekey(table, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(1, 1)]
    assert table.scan().to_arrow().num_rows == len(ROWS)


def test_arguments_that_make_no_sense(lake: Lake) -> None:
    table = lake.create()
    for older_than in (timedelta(days=1), datetime.now()):
        with pytest.raises(UsageError, match="a datetime with a time zone"):
            rekey(table, older_than=older_than)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="above 0"):
        rekey(table, max_bytes_per_commit=0)
