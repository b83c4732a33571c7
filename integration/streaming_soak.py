"""Streams whose driver is killed again and again: `python -m integration.streaming_soak --batches 2000`.

One query writes numbers into an encrypted table, and another streams that table into a second one. Both tables must
have every number once in the end, and no file beside those that their snapshots list.
"""

from __future__ import annotations

import argparse
import base64
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, TimestamptzType

from integration import spark
from pyiceberg_encryption import load_catalog

if TYPE_CHECKING:
    from pyiceberg.table import Table

ROWS_PER_BATCH = 50
TABLES = ("soak.first", "soak.second")
SCHEMA = Schema(NestedField(1, "timestamp", TimestamptzType()), NestedField(2, "value", LongType()))
SECONDS_BETWEEN_KILLS = (40.0, 150.0)
PROPERTIES = {"encryption.key-id": "soak", "write.metadata.previous-versions-max": "5"}


def properties(folder: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
        "encryption.kms-type": "memory",
        "kms.memory.key.soak": base64.b64encode(b"0123456789abcdef").decode(),
    }


def environment(folder: Path) -> dict[str, str]:
    """How a catalog of PyIceberg is configured for other processes."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    lines = [f"      {name}: {value!r}" for name, value in properties(folder).items()]
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


def soak(folder: Path, batches: int, between_kills: tuple[float, float] = SECONDS_BETWEEN_KILLS) -> dict[str, int]:
    catalog = load_catalog("soak", **properties(folder))
    catalog.create_namespace_if_not_exists("soak")
    tables = [catalog.create_table(name, SCHEMA, properties=PROPERTIES) for name in TABLES]
    kills = 0
    while committed(tables[0]) < batches:
        driver = _start(folder)
        with suppress(subprocess.TimeoutExpired):
            driver.wait(random.uniform(*between_kills))
        if driver.poll() is not None:
            raise RuntimeError(f"the driver ended by itself: {(folder / 'driver.log').read_text()[-3000:]}")
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        kills += 1
        print(f"{kills} kills, {[committed(table) for table in tables]} batches", flush=True)
    (folder / "end").touch()
    assert _start(folder).wait(600) == 0, (folder / "driver.log").read_text()[-3000:]
    for table in tables:
        check(table)
    return {"kills": kills, "first": committed(tables[0]), "second": committed(tables[1])}


def committed(table: Table) -> int:
    """How many batches are in it."""
    summaries = [snapshot.summary for snapshot in table.refresh().snapshots()]
    return sum(1 for summary in summaries if summary and "spark.sql.streaming.epochId" in summary.additional_properties)


def check(table: Table) -> None:
    """Every number once, from the first on; and nothing in storage that no snapshot lists."""
    values = table.refresh().scan(selected_fields=("value",)).to_arrow()["value"]
    assert pc.count_distinct(values).as_py() == len(values) == pc.max(values).as_py() + 1
    listed = {task.file.file_path for task in table.scan().plan_files()}
    stored = {f"file://{path}" for path in Path(table.location().removeprefix("file://"), "data").rglob("*.*")}
    left = {path for path in stored - listed if not path.endswith(".crc")}
    assert not left, f"left over: {sorted(left)[:5]}"
    assert all(not _reads_as_plaintext(path.removeprefix("file://")) for path in sorted(stored)[:3])


def _reads_as_plaintext(path: str) -> bool:
    try:
        pq.read_metadata(path)
    except OSError:
        return False
    return True


def _start(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "integration.streaming_soak", "--driver", str(folder)]
    with (folder / "driver.log").open("wb") as log:
        return subprocess.Popen(
            command, env=environment(folder), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--driver", type=Path, help="used by this program for the process that it kills")
    arguments = parser.parse_args()
    if arguments.driver:
        run_queries(arguments.driver)
        return
    with tempfile.TemporaryDirectory() as folder:
        print(soak(Path(folder), arguments.batches))


if __name__ == "__main__":
    main()
