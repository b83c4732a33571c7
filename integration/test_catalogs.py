"""What every catalog can do with encrypted tables, on every storage. `docs/catalogs.md` shows what came out.

With PYICEBERG_ENCRYPTION_WRITE_DOCS=1 the table there is written anew.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from integration.environments import CATALOGS, COMBINATIONS, STORAGES, Environments
from pyiceberg_encryption import load_catalog
from pyiceberg_encryption.errors import IntegrityError
from pyiceberg_encryption.table.models import key_id
from pyiceberg_encryption.table.policy import UnverifiedMetadataWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg.table import Table

    from integration.storage import Storage
    from pyiceberg_encryption.catalogs import EncryptingCatalog

# fsspec's storages leave their connections to the garbage collector.
pytestmark = [
    pytest.mark.timeout(900),  # the servers may have to be built
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

PAGE = Path(__file__).parent.parent / "docs" / "catalogs.md"
BEGIN, END = "<!-- of integration/test_catalogs.py -->\n", "<!-- until here -->\n"
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "kind", StringType(), required=False),
    NestedField(3, "text", StringType(), required=False),
)
BY_KIND = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "kind"))
MARKER = "plaintext-nobody-may-see"
LINEAGE = ("id", "_row_id", "_last_updated_sequence_number")


def rows(*ids: int, text: str = MARKER) -> pa.Table:
    return pa.table(
        {"id": list(ids), "kind": ["even" if number % 2 == 0 else "odd" for number in ids], "text": [text] * len(ids)},
        schema=pa.schema([("id", pa.int64()), ("kind", pa.string()), ("text", pa.string())]),
    )


class Lake:
    """One catalog on one storage, and a namespace of its own for one operation."""

    def __init__(self, open_catalog: Callable[[], EncryptingCatalog], storage: Storage) -> None:
        self.catalog = open_catalog()
        self.open_catalog = open_catalog
        self.storage = storage
        self.namespace = f"n{uuid.uuid4().hex[:12]}"
        self.catalog.create_namespace(self.namespace)

    def name(self, table: str = "t") -> str:
        return f"{self.namespace}.{table}"

    def location(self, table: str) -> str:
        """Where the catalog would put it by itself too, but for Hive and Glue, which ask their servers."""
        return f"{self.catalog.properties['warehouse']}/{self.namespace}/{table}"

    def create(self, *ids: int, table: str = "t", **more: Any) -> Table:
        properties = {"encryption.key-id": "keyA", **more.pop("properties", {})}
        location = self.location(table)
        created = self.catalog.create_table(self.name(table), SCHEMA, location=location, properties=properties, **more)
        if ids:
            created.append(rows(*ids))
        return created

    def reload(self, table: str = "t") -> Table:
        """As another program sees it, except in memory, where there is none."""
        catalog = self.catalog if self.catalog.properties["type"] == "in-memory" else self.open_catalog()
        return catalog.load_table(self.name(table))


def ids(table: Table, **arguments: Any) -> list[int]:
    found: list[int] = table.scan(selected_fields=("id",), **arguments).to_arrow()["id"].to_pylist()
    return sorted(found)


def create_and_load(lake: Lake) -> None:
    lake.create()
    table = lake.reload()
    assert table.properties["encryption.key-id"] == "keyA"
    assert table.format_version == 3
    assert ids(table) == []


def append_and_scan(lake: Lake) -> None:
    table = lake.create(1, 2, 3)
    table.append(rows(4, 5))
    again = lake.reload()
    assert ids(again) == [1, 2, 3, 4, 5]
    assert ids(again, row_filter="id > 3") == [4, 5]
    assert len(again.scan(limit=2).to_arrow()) == 2
    assert again.scan().count() == 5
    assert all(key_id(snapshot) for snapshot in again.metadata.snapshots)


def nothing_in_plaintext(lake: Lake) -> None:
    lake.create(1, 2).append(rows(3))
    files = [path for path in lake.storage.folder.rglob("*") if path.is_file() and not path.name.endswith(".crc")]
    contents = [path.read_bytes() for path in files]
    beginnings = sum(content.count(b"AGS1") + content.count(b"PARE") for content in contents)
    assert beginnings >= 6  # of two snapshots, each with a data file, a manifest and a manifest list
    assert not any(MARKER.encode() in content for content in contents)


def overwrite(lake: Lake) -> None:
    table = lake.create(1, 2, 3)
    table.overwrite(rows(7), overwrite_filter="id = 2")
    assert ids(lake.reload()) == [1, 3, 7]


def dynamic_overwrite(lake: Lake) -> None:
    table = lake.create(1, 2, 3, partition_spec=BY_KIND)
    table.dynamic_partition_overwrite(rows(5, 7))
    assert ids(lake.reload()) == [2, 5, 7]


def delete(lake: Lake) -> None:
    table = lake.create(1, 2, 3)
    table.delete("id = 2")
    found = lake.reload().scan(selected_fields=LINEAGE).to_arrow().to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [(1, 0, 1), (3, 2, 1)]


def upsert(lake: Lake) -> None:
    table = lake.create(1, 2, 3)
    result = table.upsert(rows(2, 9, text="changed"), join_cols=["id"])
    assert (result.rows_updated, result.rows_inserted) == (1, 1)
    assert ids(lake.reload(), row_filter="text = 'changed'") == [2, 9]


def evolve_schema(lake: Lake) -> None:
    table = lake.create(1)
    with table.update_schema() as update:
        update.add_column("more", LongType())
        update.rename_column("text", "words")
    table.append(rows(2).rename_columns(["id", "kind", "words"]).append_column("more", pa.array([7], pa.int64())))
    found = lake.reload().scan(selected_fields=("id", "more")).to_arrow().to_pylist()
    assert sorted(found, key=str) == [{"id": 1, "more": None}, {"id": 2, "more": 7}]


def evolve_partitions(lake: Lake) -> None:
    table = lake.create(1, 2)
    with table.update_spec() as update:
        update.add_identity("kind")
    table.append(rows(3, 4))
    assert ids(lake.reload(), row_filter="kind = 'even'") == [2, 4]


def avro_data(lake: Lake) -> None:
    lake.create(1, 2, properties={"write.format.default": "avro"})
    assert ids(lake.reload(), row_filter="id > 1") == [2]


def transactions(lake: Lake) -> None:
    table = lake.create(1)
    with table.transaction() as transaction:
        transaction.append(rows(2, 3))
        transaction.delete("id = 1")
        transaction.set_properties(owner="somebody")
    again = lake.reload()
    assert ids(again) == [2, 3]
    assert again.properties["owner"] == "somebody"
    properties = {"encryption.key-id": "keyA"}
    with lake.catalog.create_table_transaction(
        lake.name("u"), SCHEMA, location=lake.location("u"), properties=properties
    ) as created:
        created.append(rows(1))
    assert ids(lake.reload("u")) == [1]


def branches_and_time_travel(lake: Lake) -> None:
    table = lake.create(1)
    first = table.current_snapshot()
    assert first is not None
    with table.manage_snapshots() as manage:
        manage.create_tag(first.snapshot_id, "start").create_branch(first.snapshot_id, "side")
    table.append(rows(2))
    table.append(rows(3), branch="side")
    again = lake.reload()
    assert ids(again) == [1, 2]
    assert ids(again, snapshot_id=first.snapshot_id) == [1]
    assert again.scan().use_ref("side").count() == 2
    with again.manage_snapshots() as manage:
        manage.rollback_to_snapshot(first.snapshot_id)
    assert ids(lake.reload()) == [1]


def expire(lake: Lake) -> None:
    table = lake.create(1)
    old = table.current_snapshot()
    assert old is not None
    table.append(rows(2))
    table.maintenance.expire_snapshots().by_id(old.snapshot_id).commit()
    again = lake.reload()
    assert len(again.snapshots()) == 1
    assert ids(again) == [1, 2]


def inspect(lake: Lake) -> None:
    table = lake.create(1, 2)
    assert table.inspect.files()["record_count"].to_pylist() == [2]
    assert table.inspect.files()["key_metadata"].to_pylist() == [b"(encrypted)"]


def rename(lake: Lake) -> None:
    lake.create(1)
    lake.catalog.rename_table(lake.name(), lake.name("renamed"))
    assert ids(lake.reload("renamed")) == [1]
    with pytest.raises(NoSuchTableError):
        lake.catalog.load_table(lake.name())


def register(lake: Lake) -> None:
    location = lake.create(1).metadata_location
    lake.catalog.drop_table(lake.name())
    is_proven = lake.catalog.properties["type"] != "rest"  # where the server named the file, not this package
    with contextlib.nullcontext() if is_proven else pytest.warns(UnverifiedMetadataWarning):
        table = lake.catalog.register_table(lake.name("back"), location)
    table.append(rows(2))
    assert ids(lake.reload("back")) == [1, 2]


def purge(lake: Lake) -> None:
    table = lake.create(1)
    table.append(rows(2))
    lake.catalog.purge_table(lake.name())
    with pytest.raises(NoSuchTableError):
        lake.catalog.load_table(lake.name())
    assert not table.io.plain.new_input(table.metadata_location).exists()  # type: ignore[attr-defined]
    left = [path for path in lake.storage.folder.rglob("*.parquet") if lake.namespace in str(path)]
    assert left == []


def writers_at_once(lake: Lake) -> None:
    retries = {"commit.retry.num-retries": "30", "commit.retry.min-wait-ms": "5", "commit.retry.max-wait-ms": "100"}
    lake.create(properties=retries)
    tables = [lake.reload() for _ in range(4)]

    def write(writer: int) -> None:
        for number in range(2):
            tables[writer].append(rows(10 * writer + number))

    with ThreadPoolExecutor(len(tables)) as pool:
        list(pool.map(write, range(len(tables))))
    table = lake.reload()
    assert ids(table) == [10 * writer + number for writer in range(4) for number in range(2)]
    row_ids = table.scan(selected_fields=("_row_id",)).to_arrow()["_row_id"].to_pylist()
    assert sorted(row_ids) == list(range(8))
    for snapshot in table.snapshots():
        assert ids(table, snapshot_id=snapshot.snapshot_id)


def replaced_manifest_list(lake: Lake) -> None:
    """Another one of the table, which its own key opens, in the place of the newest."""
    table = lake.create(1)
    table.append(rows(2))
    old, new = (snapshot.manifest_list for snapshot in table.metadata.snapshots)
    io = table.io.plain  # type: ignore[attr-defined]
    with io.new_output(new).create(overwrite=True) as stream:
        stream.write(io.new_input(old).open().read())
    with pytest.raises(IntegrityError):
        ids(lake.reload())


OPERATIONS = {
    "create, load": create_and_load,
    "append, scan": append_and_scan,
    "no plaintext": nothing_in_plaintext,
    "overwrite": overwrite,
    "dynamic overwrite": dynamic_overwrite,
    "delete": delete,
    "upsert": upsert,
    "schema": evolve_schema,
    "partitions": evolve_partitions,
    "Avro": avro_data,
    "transactions": transactions,
    "branches, time travel": branches_and_time_travel,
    "expire": expire,
    "inspect": inspect,
    "rename": rename,
    "register": register,
    "purge": purge,
    "writers at once": writers_at_once,
    "tampering noticed": replaced_manifest_list,
}


LEFT_OUT = {
    ("in-memory", "writers at once"),  # it has one connection, for one thread
    ("BigQuery", "rename"),  # PyIceberg has no such operation there
}
CELLS = [
    (catalog, storage, operation)
    for catalog, storage in COMBINATIONS
    for operation in OPERATIONS
    if (catalog, operation) not in LEFT_OUT
]


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environments]:
    with Environments(tmp_path_factory.mktemp("lake")) as environments:
        yield environments


@pytest.fixture(scope="module")
def results() -> dict[tuple[str, str, str], str]:
    """By catalog, storage and operation."""
    return {}


@pytest.mark.parametrize(("catalog", "storage", "operation"), CELLS)
def test_catalog(
    catalog: str,
    storage: str,
    operation: str,
    environments: Environments,
    results: dict[tuple[str, str, str], str],
) -> None:
    results[catalog, storage, operation] = "failed"
    on = environments.storage(storage)
    properties = environments.properties(catalog, on)
    opened: list[EncryptingCatalog] = []

    def open_catalog() -> EncryptingCatalog:
        opened.append(load_catalog("matrix", **properties))
        return opened[-1]

    try:
        OPERATIONS[operation](Lake(open_catalog, on))
    finally:
        for each in opened:
            each.close()
    results[catalog, storage, operation] = "✓"


def test_the_page_shows_these_results(results: dict[tuple[str, str, str], str]) -> None:
    if len(results) < len(CELLS):
        pytest.skip("not all were run")
    table = as_markdown(results)
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    shown, _, after = rest.partition(END)
    if os.environ.get("PYICEBERG_ENCRYPTION_WRITE_DOCS"):
        PAGE.write_text(before + BEGIN + table + END + after)
    else:
        assert shown == table, "run it with PYICEBERG_ENCRYPTION_WRITE_DOCS=1, and look at what changed"


def as_markdown(results: dict[tuple[str, str, str], str]) -> str:
    lines = [["catalog", "operation", *STORAGES]]
    for catalog in CATALOGS:
        for operation in OPERATIONS:
            lines.append(
                [catalog, operation, *(results.get((catalog, storage, operation), "") for storage in STORAGES)]
            )
    rule = ["---"] * len(lines[0])
    text = "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]]) + "\n"
    return re.sub(r" +\|", " |", text)
