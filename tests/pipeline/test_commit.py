"""One snapshot of what many tasks wrote, whatever others commit meanwhile, and no file that no snapshot has."""

from __future__ import annotations

import math
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import And, EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, NotEqualTo, NotNaN, parser
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, UUIDType

from pyiceberg_encryption.errors import UsageError
from pyiceberg_encryption.pipeline.commit import Marks, Once, Overwrite, commit, data_files, sweep
from pyiceberg_encryption.pipeline.sealed import send
from tests.pipeline.support import JOB, append, new_table, writer, written
from tests.table_support import path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyiceberg.expressions import BooleanExpression

    from pyiceberg_encryption.catalogs import EncryptingCatalog
    from pyiceberg_encryption.table.table import Table
    from tests.table_support import Lake

SCHEMA = Schema(NestedField(1, "id", LongType()), NestedField(2, "kind", StringType()))
BY_KIND = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "kind"))
QUICK_RETRIES = {"commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "2"}


def rows(*ids: int, kind: str = "a") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "kind": pa.array([kind] * len(ids))})


def ids(table: Table, branch: str = "main") -> list[int]:
    table.refresh()
    found: list[int] = table.scan().use_ref(branch).to_arrow()["id"].to_pylist()
    return sorted(found)


def expression(kind: Any, *arguments: Any) -> BooleanExpression:
    found: BooleanExpression = kind(*arguments)
    return found


@pytest.fixture
def table(lake: Lake) -> Table:
    table = new_table(lake, SCHEMA, partition_spec=BY_KIND, properties=QUICK_RETRIES)
    append(table, rows(1, 2))
    append(table, rows(3, 4, kind="b"))
    append(table, rows(5, kind="b"))
    return table


@pytest.fixture
def others_commit(monkeypatch: pytest.MonkeyPatch, lake: Lake) -> Callable[..., None]:
    """Has something happen right before each of the next commits reaches the catalog."""
    left: list[Callable[[Table], object]] = []
    catalog_class: type[EncryptingCatalog] = type(lake.catalog())
    commit_table = catalog_class.commit_table

    def commit_later(self: EncryptingCatalog, *arguments: Any) -> Any:
        if left:
            change, rest = left[0], left[1:]
            left.clear()  # what others commit meets no others
            change(lake.load())
            left.extend(rest)
        return commit_table(self, *arguments)

    monkeypatch.setattr(catalog_class, "commit_table", commit_later)
    return lambda *changes: left.extend(changes)


def test_an_append_is_one_snapshot(table: Table) -> None:
    count = len(table.metadata.snapshots)
    files = [*written(table, rows(6, 7), "one"), *written(table, rows(8, kind="c"), "two")]
    assert commit(table, files, summary={"team": "x"})
    assert ids(table) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(table.metadata.snapshots) == count + 1
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert (snapshot.summary.operation.value, snapshot.summary["team"]) == ("append", "x")
    assert snapshot.summary["added-records"] == "3"


def test_nothing_to_do_makes_no_snapshot(table: Table) -> None:
    count = len(table.metadata.snapshots)
    assert not commit(table, [])
    assert not commit(table, [], overwrite=Overwrite(expression(EqualTo, "kind", "z")))
    assert not commit(table, [], overwrite=Overwrite(is_dynamic=True))
    table.refresh()
    assert len(table.metadata.snapshots) == count


OVERWRITES: dict[str, tuple[Overwrite, list[int]]] = {
    "whole": (Overwrite(), [9]),
    "by a partition": (Overwrite(expression(EqualTo, "kind", "b")), [1, 2, 9]),
    "by what fits whole files": (
        Overwrite(And(expression(GreaterThan, "id", 2), expression(LessThan, "id", 5))),
        [1, 2, 5, 9],
    ),
    "dynamically": (Overwrite(is_dynamic=True), [1, 2, 9]),
}


@pytest.mark.parametrize("how", OVERWRITES)
def test_an_overwrite_is_one_snapshot(table: Table, how: str) -> None:
    overwrite, expected = OVERWRITES[how]
    count = len(table.metadata.snapshots)
    assert commit(table, written(table, rows(9, kind="b"), "new"), overwrite=overwrite)
    assert ids(table) == expected
    assert len(table.metadata.snapshots) == count + 1


def test_an_overwrite_by_nothing_deletes(table: Table) -> None:
    assert commit(table, [], overwrite=Overwrite(expression(EqualTo, "kind", "a")))
    assert ids(table) == [3, 4, 5]
    assert commit(table, [], overwrite=Overwrite())
    assert ids(table) == []


def test_an_overwrite_of_parts_of_files_is_refused(table: Table) -> None:
    with pytest.raises(UsageError, match="and may have others"):
        commit(table, written(table, rows(9)), overwrite=Overwrite(expression(GreaterThanOrEqual, "id", 2)))
    assert ids(table) == [1, 2, 3, 4, 5]


UNLIKE_A = {
    "kind != 'a'": [1, 3],
    "not kind = 'a'": [1, 3],
    "kind not in ('a', 'z')": [1],  # with which scans show null
    "kind not like 'a%'": [1, 3],
    "kind != 'a' and kind not in ('c', 'd')": [1, 3],
    "kind != 'a' or kind is null": [1],
}


@pytest.mark.parametrize("row_filter", UNLIKE_A)
def test_null_is_not_overwritten_by_what_is_unlike_a_value(lake: Lake, row_filter: str) -> None:
    table = new_table(lake, SCHEMA, partition_spec=BY_KIND)
    append(table, pa.table({"id": [1, 2, 3], "kind": ["a", "b", None]}))
    shown = table.scan(row_filter).to_arrow()["id"].to_pylist()
    assert commit(table, [], overwrite=Overwrite(parser.parse(row_filter)))
    assert ids(table) == UNLIKE_A[row_filter] == sorted({1, 2, 3}.difference(shown))


def test_null_is_not_overwritten_by_what_is_not_nan(lake: Lake) -> None:
    table = new_table(lake, Schema(NestedField(1, "id", LongType()), NestedField(2, "x", DoubleType())))
    append(table, pa.table({"id": [1, 2], "x": pa.array([None, None], pa.float64())}))
    append(table, pa.table({"id": [3, 4], "x": [1.0, 2.0]}))
    assert commit(table, [], overwrite=Overwrite(expression(NotNaN, "x")))
    assert ids(table) == [1, 2]


def test_null_beside_values_is_not_overwritten(lake: Lake) -> None:
    table = new_table(lake, SCHEMA)
    append(table, pa.table({"id": [1, 2], "kind": ["b", None]}))
    with pytest.raises(UsageError, match="and may have others"):
        commit(table, [], overwrite=Overwrite(expression(NotEqualTo, "kind", "a")))
    assert ids(table) == [1, 2]


@pytest.mark.parametrize(
    ("kind", "values", "again"),
    [
        (DoubleType(), [math.nan, 0.1, None], [math.nan]),
        (DoubleType(), [math.nan, 0.1, None], [0.1, None]),
        (UUIDType(), [uuid.UUID(int=7).bytes, uuid.UUID(int=8).bytes, None], [uuid.UUID(int=7).bytes]),
    ],
)
def test_any_partition_is_overwritten(lake: Lake, kind: Any, values: list[Any], again: list[Any]) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "value", kind))
    table = new_table(lake, schema, partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "value")))
    arrow = schema.as_arrow().field("value").type

    def with_values(first: int, some: list[Any]) -> pa.Table:
        return pa.table({"id": range(first, first + len(some)), "value": pa.array(some, arrow)})

    append(table, with_values(0, values))
    assert commit(table, written(table, with_values(10, again), "new"), overwrite=Overwrite(is_dynamic=True))
    kept = [number for number, value in enumerate(values) if repr(value) not in map(repr, again)]
    assert ids(table) == [*kept, *range(10, 10 + len(again))]


def test_partitions_of_another_spec_are_not_overwritten_dynamically(table: Table) -> None:
    with table.update_spec() as spec:
        spec.remove_field("kind")
    with pytest.raises(UsageError, match="no partitions that could be overwritten"):
        commit(table, written(table, rows(9)), overwrite=Overwrite(is_dynamic=True))
    with table.update_spec() as spec:
        spec.add_field("id", IdentityTransform(), "id")
    with pytest.raises(UsageError, match="written with another partition spec"):
        commit(table, written(table, rows(9)), overwrite=Overwrite(is_dynamic=True))
    assert ids(table) == [1, 2, 3, 4, 5]


def test_a_spec_that_changed_after_files_were_written(table: Table, others_commit: Callable[..., None]) -> None:
    files = written(table, rows(9))

    def evolve(other: Table) -> None:
        with other.update_spec() as spec:
            spec.remove_field("kind")

    evolve(table)
    with pytest.raises(UsageError, match="spec of the table was changed"):
        commit(table, files)
    files = written(table, rows(9))

    def and_append(other: Table) -> None:
        with other.update_spec() as spec:
            spec.add_field("id", IdentityTransform(), "id")
        other.append(rows(10))

    others_commit(and_append)
    with pytest.raises(UsageError, match="spec of the table was changed"):
        commit(table, files)
    assert ids(table) == [1, 2, 3, 4, 5, 10]


# Others who commit at once


def test_an_append_goes_on_top_of_what_others_committed(table: Table, others_commit: Callable[..., None]) -> None:
    files = written(table, rows(9))
    others_commit(lambda other: other.append(rows(6)), lambda other: other.delete("id = 5"))
    assert commit(table, files)
    assert ids(table) == [1, 2, 3, 4, 6, 9]


@pytest.mark.parametrize("isolation", ["serializable", "snapshot"])
@pytest.mark.parametrize("how", OVERWRITES)
def test_an_overwrite_replaces_what_is_there_when_it_is_committed(
    table: Table, how: str, isolation: str, others_commit: Callable[..., None]
) -> None:
    names = ("write.delete.isolation-level", "write.update.isolation-level", "write.merge.isolation-level")
    with table.transaction() as transaction:
        transaction.set_properties(dict.fromkeys(names, isolation))
    overwrite, expected = OVERWRITES[how]
    files = written(table, rows(9, kind="b"), "new")
    others_commit(lambda other: other.append(rows(4, kind="b")), lambda other: other.delete("id = 5"))
    assert commit(table, files, overwrite=overwrite)
    assert ids(table) == [number for number in expected if number != 5]


def test_an_empty_table_is_overwritten_too(lake: Lake, others_commit: Callable[..., None]) -> None:
    table = new_table(lake, SCHEMA, properties=QUICK_RETRIES)
    files = written(table, rows(9))
    others_commit(lambda other: other.append(rows(1)))
    assert commit(table, files, overwrite=Overwrite())
    assert ids(table) == [9]


def test_an_overwrite_that_never_wins_gives_up(table: Table, others_commit: Callable[..., None]) -> None:
    files = written(table, rows(90))
    others_commit(*[lambda other: other.append(rows(6))] * 20)
    with pytest.raises((CommitFailedException, ValidationException)):
        commit(table, files, overwrite=Overwrite())
    assert 90 not in ids(table)
    assert len(sweep(table, JOB)) == 1


def test_many_commit_at_once(lake: Lake) -> None:
    retries = {"commit.retry.num-retries": "50", **QUICK_RETRIES}
    new_table(lake, SCHEMA, properties=retries)
    tables = [lake.load() for _ in range(6)]

    def work(number: int) -> bool:
        return commit(tables[number], written(tables[number], rows(number), f"job-{number}"))

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(work, range(6)))
    assert ids(lake.load()) == [0, 1, 2, 3, 4, 5]


def test_a_branch(table: Table) -> None:
    head = table.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_branch(head.snapshot_id, "side").commit()
    assert commit(table, written(table, rows(6), "one"), branch="side")
    assert commit(table, written(table, rows(9), "two"), overwrite=Overwrite(), branch="new")
    assert (ids(table), ids(table, "side"), ids(table, "new")) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], [9])
    assert commit(table, written(table, rows(8), "three"), overwrite=Overwrite(), branch="side")
    assert (ids(table), ids(table, "side")) == ([1, 2, 3, 4, 5], [8])


# Once


def once(value: str) -> Once:
    def is_done(summary: Mapping[str, str]) -> bool | None:
        found = summary.get("batch")
        return None if found is None else int(found) >= int(value)

    return Once({"batch": value}, is_done)


def test_what_was_committed_is_not_committed_again(table: Table) -> None:
    assert commit(table, written(table, rows(6), "one"), once=once("1"))
    append(table, rows(7))
    assert not commit(table, written(table, rows(6), "again"), once=once("1"))
    assert commit(table, written(table, rows(8), "two"), once=once("2"))
    assert not commit(table, written(table, rows(6), "late"), overwrite=Overwrite(), once=once("1"))
    assert ids(table) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert commit(table, written(table, rows(6), "side"), branch="side", once=once("1"))


def test_a_snapshot_that_expired_in_between_hides_nothing(table: Table) -> None:
    """PyIceberg takes the parent from what came after it."""
    assert commit(table, written(table, rows(6), "one"), once=once("1"))
    first = table.refresh().metadata.current_snapshot_id
    assert first is not None
    table.manage_snapshots().create_tag(first, "kept").commit()
    append(table, rows(7))
    (between,) = {snapshot.snapshot_id for snapshot in table.refresh().snapshots()[-1:]}
    append(table, rows(8))
    table.refresh()
    table.maintenance.expire_snapshots().by_id(between).commit()
    table.refresh()
    assert not commit(table, written(table, rows(6), "again"), once=once("1"))
    assert ids(table) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("overwrite", [None, Overwrite()])
def test_of_two_who_commit_the_same_one_wins(
    table: Table, overwrite: Overwrite | None, others_commit: Callable[..., None]
) -> None:
    files = written(table, rows(6), "slow")
    others_commit(lambda other: commit(other, written(other, rows(6), "fast"), once=once("1")))
    assert not commit(table, files, overwrite=overwrite, once=once("1"))
    assert ids(table) == [1, 2, 3, 4, 5, 6]
    assert sweep(table, "slow") == [files[0].file_path]
    assert ids(table) == [1, 2, 3, 4, 5, 6]


# Files that are left


def test_what_no_snapshot_has_is_swept(lake: Lake) -> None:
    """Whatever the names of partitions are."""
    table = new_table(lake, SCHEMA, partition_spec=BY_KIND)
    kinds = ["a/b", "c d", "ü", "50%", "x=y", "#?&"]
    listed = [
        file for number, kind in enumerate(kinds) for file in written(table, rows(1, kind=kind), f"{number}-{JOB}")
    ]
    assert commit(table, listed[:-1])
    stray = [*listed[-1:], *(file for kind in kinds for file in written(table, rows(2, kind=kind), f"late-{JOB}"))]
    of_others = written(table, rows(3), "another")
    unfinished = writer(table, f"unfinished-{JOB}")
    for batch in rows(4).to_batches():
        unfinished.write(batch)
    unfinished._sort_out_pending()
    for partition in unfinished._open.values():
        unfinished._write_waiting(partition)
    assert data_files(table, JOB) == {file.file_path for file in listed[:-1]}
    assert set(sweep(table, JOB)) == {file.file_path for file in stray} | set(unfinished._started)
    assert sweep(table, JOB) == []
    assert len(ids(table)) == len(kinds) - 1
    assert {file.name for file in lake.files(".parquet")} == {
        path_of(file.file_path).name for file in [*listed[:-1], *of_others]
    }


def test_files_of_old_snapshots_are_spared(table: Table) -> None:
    assert commit(table, written(table, rows(6)))
    table.delete("id = 6")
    first = table.metadata.snapshots[-2].snapshot_id
    assert sweep(table, JOB) == []
    assert sorted(table.scan(snapshot_id=first).to_arrow()["id"].to_pylist()) == [1, 2, 3, 4, 5, 6]


def test_files_that_are_listed_by_another_name_are_spared(table: Table) -> None:
    """As engines write locations differently, and some leave out the scheme."""
    assert commit(table, written(table, rows(6)))
    with table.transaction() as transaction:
        transaction.set_properties({"write.data.path": f"{table.location()}/data".removeprefix("file://")})
    assert sweep(table, JOB) == []
    assert ids(table) == [1, 2, 3, 4, 5, 6]


def test_what_was_committed_meanwhile_is_spared(table: Table, lake: Lake) -> None:
    """By who sweeps a table that was loaded before."""
    files = written(table, rows(6))
    other = lake.load()
    assert commit(table, files)
    assert sweep(other, JOB) == []
    assert ids(other) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("file_io", ["pyarrow.PyArrowFileIO", "fsspec.FsspecFileIO"])
@pytest.mark.parametrize("layout", [{}, {"write.object-storage.enabled": "true"}])
def test_marks_of_a_job(lake: Lake, layout: dict[str, str], file_io: str) -> None:
    """The driver and its tasks see the same ones, and nothing is left of them."""
    new_table(lake, SCHEMA, properties=layout)
    table = lake.load(**{"py-io-impl": f"pyiceberg.io.{file_io}"})
    _, remote = send(table)
    driver, task, of_others = Marks(table, JOB), Marks(remote, JOB), Marks(remote, "another")
    assert not task.is_running()
    driver.begin()
    assert task.is_running()
    assert not driver.has_retries()
    task.add_retry()
    task.add_retry()
    assert driver.has_retries()
    assert not of_others.has_retries()
    assert not of_others.is_running()
    driver.end()
    driver.end()
    assert not task.is_running()
    assert len(sweep(table, JOB)) == 1
    assert not driver.has_retries()
    task.add_retry()
    task.remove_retry()
    assert not driver.has_retries()
    assert [file for file in lake.files() if JOB in file.name] == []


def test_data_elsewhere_is_swept_too(lake: Lake) -> None:
    table = new_table(lake, SCHEMA, properties={"write.data.path": f"file://{lake.folder}/elsewhere/"})
    (file,) = written(table, rows(1))
    assert path_of(file.file_path).parent == lake.folder / "elsewhere"
    assert sweep(table, JOB) == [file.file_path]
