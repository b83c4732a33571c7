"""Jobs on tables of every catalog, and jobs whose process is killed."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog as load_plain_catalog

from integration import streaming_soak
from integration.environments import CATALOGS, Environments
from pyiceberg_encryption import load_catalog
from pyiceberg_encryption.jobs import encrypt_in_place, encrypt_into, rekey, remove_orphan_files, verify
from pyiceberg_encryption.table.table import checked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyiceberg.table import Table

ROWS = pa.table({"id": range(50), "s": [f"name {number}" for number in range(50)]})
LINEAGE = ("id", "s", "_row_id", "_last_updated_sequence_number")
FIRST_KILL_AFTER, LATER_EACH_TIME = 0.7, 1.07  # seconds, and how much longer the next one lives
JOB = """
from pyiceberg_encryption import load_catalog
from pyiceberg_encryption.jobs import encrypt_in_place, rekey
catalog = load_catalog("soak")
encrypt_in_place(catalog, "db.t", key="soak")
rekey(catalog.load_table("db.t"), job_id="first", max_bytes_per_commit=1)
"""


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environments]:
    with Environments(tmp_path_factory.mktemp("environments")) as environments:
        yield environments


def rows_of(table: Table, columns: tuple[str, ...] = ("*",)) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.scan(selected_fields=columns).to_arrow().sort_by("id").to_pylist()
    return found


@pytest.mark.parametrize("place", ["local, PyArrow", "S3, fsspec"])
@pytest.mark.parametrize("kind", CATALOGS)
def test_a_table_is_encrypted_rekeyed_and_verified(kind: str, place: str, environments: Environments) -> None:
    storage = environments.storage(place)
    with load_catalog("jobs", **environments.properties(kind, storage)) as catalog:
        namespace = f"jobs_{CATALOGS.index(kind)}_{place.replace(', ', '_').lower()}"
        catalog.create_namespace(namespace, {"location": f"{storage.warehouse}/{namespace}"})
        name = f"{namespace}.t"
        plain = catalog.create_table(name, ROWS.schema, properties={"format-version": "2"})
        plain.append(ROWS.slice(0, 30))
        plain.append(ROWS.slice(30))
        plain.delete("id = 7")
        expected = rows_of(plain)
        copied = encrypt_into(plain, catalog, f"{namespace}.copy", properties={"encryption.key-id": "keyB"})
        assert (copied.rows, copied.report.ok) == (49, True)
        done = encrypt_in_place(catalog, name, key="keyA")
        assert done.rows == 49
        assert urlparse(plain.location()).scheme == urlparse(storage.warehouse).scheme
        table = checked(catalog.load_table(name))
        assert table.is_encrypted
        assert rows_of(table) == rows_of(catalog.load_table(f"{namespace}.copy")) == expected
        lineage = rows_of(table, LINEAGE)
        assert rekey(table).rows == 49
        table.append(ROWS.slice(7, 1))
        assert rows_of(table, LINEAGE)[:7] + rows_of(table, LINEAGE)[8:] == lineage
        assert verify(table, orphans=False).ok
        assert remove_orphan_files(table, dry_run=True) == []
        catalog.purge_table(name)
        catalog.purge_table(f"{namespace}.copy")


def test_jobs_killed_at_any_time_go_on_when_they_are_run_again(tmp_path: Path) -> None:
    properties = streaming_soak.properties(tmp_path)
    environment = streaming_soak.environment(tmp_path)
    with load_plain_catalog("soak", **properties) as plain_catalog:
        plain_catalog.create_namespace("db")
        table = plain_catalog.create_table(
            "db.t", ROWS.schema, properties={"format-version": "2", "read.split.target-size": "1"}
        )
        for number in range(10):
            table.append(ROWS.slice(5 * number, 5))
        expected = rows_of(table)
    left: set[frozenset[Path]] = set()
    killed_after = FIRST_KILL_AFTER
    while not ends(environment, killed_after):
        left.add(frozenset((tmp_path / "warehouse").rglob("*")))
        killed_after *= LATER_EACH_TIME
    assert len(left) > 2  # some were killed at work, and not at the same point
    with load_catalog("soak", **properties) as catalog:
        table = catalog.load_table("db.t")
        assert rows_of(table) == expected
        at_once = timedelta(0)
        remove_orphan_files(checked(table), older_than=at_once, no_commits_under_way=True)  # of commits, empty ones too
        assert verify(checked(table), older_than=at_once).ok
        stored = [path for path in (tmp_path / "warehouse").rglob("*") if path.suffix in (".parquet", ".avro")]
        assert not [path for path in stored if path.read_bytes()[:4] not in (b"PARE", b"AGS1")]


def ends(environment: dict[str, str], killed_after: float) -> bool:
    with subprocess.Popen([sys.executable, "-c", JOB], env=environment, stderr=subprocess.PIPE, text=True) as job:
        try:
            _, errors = job.communicate(timeout=killed_after)
        except subprocess.TimeoutExpired:
            job.kill()
            return False
    assert job.returncode == 0, errors[-3000:]
    return True
