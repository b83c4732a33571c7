"""Streams whose driver is killed again and again: `python -m integration.streaming_soak --batches 2000`.

One query writes numbers into an encrypted table, and another streams that table into a second one. Both tables must
have every number once in the end, and no file beside those that their snapshots list.
"""

from __future__ import annotations

import argparse
import base64
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.types import LongType, NestedField, TimestamptzType

from integration import spark
from pyiceberg_encryption import load_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.table import Table

ROWS_PER_BATCH = 50
TABLES = ("soak.first", "soak.second")
SCHEMA = Schema(NestedField(1, "timestamp", TimestamptzType()), NestedField(2, "value", LongType()))
LONGEST_LIFE = 120.0  # seconds, after the first batch
PATIENCE = 300.0
PROPERTIES = {"encryption.key-id": "soak", "write.metadata.previous-versions-max": "5"}


def properties(folder: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
        "encryption.kms-type": "memory",
        "kms.memory.key.soak": base64.b64encode(b"0123456789abcdef").decode(),
    }


def environment(folder: Path, configured: Mapping[str, str] | None = None) -> dict[str, str]:
    """How a catalog of PyIceberg is configured for other processes."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    lines = [f"      {name}: {value!r}" for name, value in (configured or properties(folder)).items()]
    (home / ".pyiceberg.yaml").write_text("\n".join(["catalog:", "  soak:", *lines, ""]))
    return {**os.environ, "PYICEBERG_HOME": str(home), "PYTHONPATH": str(Path.cwd()), "PYSPARK_PYTHON": sys.executable}


def run_queries(folder: Path) -> None:
    """The driver, which runs until it is killed, or told to end by a file."""
    from pyspark.sql import SparkSession

    from pyiceberg_encryption.spark import register

    session = spark.builder("local[2]").getOrCreate()
    assert isinstance(session, SparkSession)
    register(session)
    numbers = session.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH)
    numbers = numbers.option("numPartitions", 2)
    first, second = TABLES
    stream = session.readStream.format("iceberg_encrypted").options(catalog="soak", table=first)
    queries = [
        source.load()
        .writeStream.format("iceberg_encrypted")
        .options(catalog="soak", table=table, checkpointLocation=f"{folder}/checkpoints/{table}")
        .trigger(processingTime="0 seconds")
        .start()
        for source, table in ((numbers, first), (stream, second))
    ]
    while all(query.isActive for query in queries):
        if (folder / "end").exists():
            queries[0].stop()
            queries[1].processAllAvailable()
            queries[1].stop()
            return
        time.sleep(0.5)
    raise SystemExit(str([query.exception() for query in queries]))


def soak(folder: Path, batches: int, longest_life: float = LONGEST_LIFE) -> dict[str, int]:
    """Each driver is killed some time after its first batch; most of them in the middle of one."""
    catalog = load_catalog("soak", **properties(folder))
    catalog.create_namespace_if_not_exists("soak")
    tables = [catalog.create_table(name, SCHEMA, properties=PROPERTIES) for name in TABLES]
    kills = 0
    while committed(tables[0]) < batches:
        with _driver(folder) as driver:
            _wait_for_a_batch(driver, tables[0], folder)
            with suppress(subprocess.TimeoutExpired):
                driver.wait(random.uniform(0, longest_life))
                raise RuntimeError(f"the driver ended by itself: {_reason(folder)}")
        kills += 1
        print(f"{kills} kills, {[committed(table) for table in tables]} batches", flush=True)
    (folder / "end").touch()
    with _driver(folder) as driver:
        assert driver.wait(900) == 0, _reason(folder)
    for table in tables:
        check(table)
    return {"kills": kills, "first": committed(tables[0]), "second": committed(tables[1])}


def committed(table: Table) -> int:
    """How many batches are in it."""
    return len(_entries(table.refresh(), "spark.sql.streaming.epochId"))


def check(table: Table) -> None:
    """Every number once, from the first on; and nothing in storage that no snapshot lists."""
    values = table.refresh().scan(selected_fields=("value",)).to_arrow()["value"]
    assert pc.count_distinct(values).as_py() == len(values) == pc.max(values).as_py() + 1
    listed = {task.file.file_path for task in table.scan().plan_files()}
    stored = {f"file://{path}" for path in Path(table.location().removeprefix("file://"), "data").rglob("*.*")}
    left = {path for path in stored - listed if not path.endswith(".crc") and not _is_of_last_batch(path, table)}
    assert not left, f"left over: {sorted(left)[:5]}"
    assert all(not _reads_as_plaintext(path.removeprefix("file://")) for path in sorted(stored)[:3])


def _is_of_last_batch(path: str, table: Table) -> bool:
    """Of the batch in which a query was stopped for good. It would be swept when the query is started again."""
    from pyiceberg_encryption.spark.write import family_of

    (last,) = {int(batch) for batch in _entries(table, "spark.sql.streaming.epochId")[-1:]}
    (query,) = set(_entries(table, "spark.sql.streaming.queryId"))
    return family_of(table.metadata, MAIN_BRANCH, query, str(last + 1)) in path


def _entries(table: Table, name: str) -> list[str]:
    summaries = [snapshot.summary.additional_properties for snapshot in table.snapshots() if snapshot.summary]
    return [summary[name] for summary in summaries if name in summary]


def _reads_as_plaintext(path: str) -> bool:
    try:
        pq.read_metadata(path)
    except OSError:
        return False
    return True


def _wait_for_a_batch(driver: subprocess.Popen[bytes], table: Table, folder: Path) -> None:
    before, end = committed(table), time.monotonic() + PATIENCE
    while committed(table) == before:
        if driver.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the driver made no progress: {_reason(folder)}")
        time.sleep(0.5)


@contextmanager
def _driver(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Killed at the end, with all that it started."""
    command = [sys.executable, "-m", "integration.streaming_soak", "--driver", str(folder)]
    with (folder / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            command, env=environment(folder), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield driver
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def _reason(folder: Path) -> str:
    """Of all that Spark writes when it fails, what Python had to say."""
    log = (folder / "driver.log").read_text()
    return "\n".join(re.findall(r"^\w[\w.]*(?:Error|Exception)\b.*", log, re.MULTILINE)[:10]) or log[-3000:]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--driver", type=Path, help="used by this program for the process that it kills")
    arguments = parser.parse_args()
    if arguments.driver:
        run_queries(arguments.driver)
        return
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"in {folder}, which stays if something is wrong", flush=True)
    print(soak(folder, arguments.batches))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
