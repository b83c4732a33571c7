"""The data source beside Iceberg Java's Spark runtime, on the same encrypted table in a Hive catalog, in one session:
`python -m benchmarks.spark --gigabytes 1`.

In each round every operation is done once by either, in turns. Shown is the time of the data source as a share of
Java's, and how much plain Arrow goes through it in a second.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.streams import timed
from integration import java, spark

if TYPE_CHECKING:
    from collections.abc import Callable

FORMAT = "iceberg_encrypted"
CATALOG = "bench"
BYTES_PER_ROW = 124  # of Arrow: what the columns below take
GIGABYTE = 10**9
MEMORY, PYTHON_MEMORY = "2g", "2g"
SELECT = [
    "id",
    "id * 31 % 1000003 AS customer",
    "timestamp_micros(1700000000000000 + id * 1000) AS at",
    "cast(id % 97 AS double) * 1.5 AS amount",
    "cast(id % 1000 AS int) AS shop",
    "concat('category ', cast(id % 50 AS string)) AS category",
    "sha2(cast(id AS string), 256) AS reference",
]
PROPERTIES = "'format-version'='3', 'encryption.key-id'='keyA', 'write.parquet.compression-codec'='zstd'"
COLUMNS = "id bigint, customer bigint, at timestamp, amount double, shop int, category string, reference string"


class Bench:
    def __init__(self, session: Any, rows: int) -> None:
        self.session = session
        self.rows = rows
        self.appended = 0

    def generated(self) -> Any:
        return self.session.range(0, self.rows, numPartitions=max(2, self.rows // 2_000_000)).selectExpr(*SELECT)

    def create(self, name: str) -> str:
        table = f"{spark.CATALOG}.bench.{name}"
        self.session.sql(f"CREATE TABLE {table} ({COLUMNS}) USING iceberg TBLPROPERTIES ({PROPERTIES})")
        return table

    def frame(self, side: str, *columns: str, row_filter: str | None = None) -> Any:
        """Options are for the data source alone: Java hears of columns and filters from Spark."""
        if side == "java":
            frame = self.session.table(f"{spark.CATALOG}.bench.t")
            return frame.select(*columns) if columns else frame
        reader = self.session.read.format(FORMAT).options(catalog=CATALOG, table="bench.t")
        for name, value in (("columns", ",".join(columns)), ("row-filter", row_filter)):
            reader = reader.option(name, value) if value else reader
        return reader.load()

    def read(self, side: str) -> None:
        done(self.frame(side))

    def read_projected(self, side: str) -> None:
        done(self.frame(side, "shop", "amount"))

    def read_filtered(self, side: str) -> None:
        """A fiftieth of the rows, which are next to each other."""
        row_filter = f"id >= {self.rows // 2} AND id < {self.rows // 2 + self.rows // 50}"
        if side == "java":
            done(self.frame(side).where(row_filter))
        else:
            done(self.frame(side, row_filter=row_filter))

    def aggregate(self, side: str) -> None:
        self.frame(side, "category", "amount").groupBy("category").sum("amount").collect()

    def append(self, side: str) -> None:
        self.appended += 1
        name = f"a{self.appended}"
        table = self.create(name)
        if side == "java":
            self.generated().writeTo(table).append()
        else:
            writer = self.generated().write.format(FORMAT).options(catalog=CATALOG, table=f"bench.{name}")
            writer.mode("append").save()
        self.session.sql(f"DROP TABLE {table} PURGE")

    def generate_only(self, side: str) -> None:
        done(self.generated())


def done(frame: Any) -> None:
    """All columns of all rows are asked for, and thrown away."""
    frame.write.format("noop").mode("overwrite").save()


def configure(folder: Path, metastore: str) -> None:
    lines = {
        "type": "hive",
        "uri": metastore,
        "warehouse": f"file://{folder}/warehouse",
        "py-kms-impl": "integration.unitest_kms.UnitestKms",
    }
    content = "".join(f"    {name}: {value}\n" for name, value in lines.items())
    (folder / ".pyiceberg.yaml").write_text(f"catalog:\n  {CATALOG}:\n{content}")
    root = str(Path(__file__).parent.parent)
    os.environ |= {"PYICEBERG_HOME": str(folder), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": root}
    # Each of two Python workers may have half of its memory, and no more.
    os.environ["PYSPARK_SUBMIT_ARGS"] = (
        f"--driver-memory {MEMORY} --conf spark.executor.pyspark.memory={PYTHON_MEMORY} pyspark-shell"
    )


def run(folder: Path, gigabytes: float, rounds: int) -> None:
    from pyiceberg_encryption.spark import register

    with spark.hive_metastore(folder / "hive") as metastore:
        configure(folder, metastore)
        with spark.session(metastore, folder / "warehouse") as session:
            session.sparkContext.setLogLevel("ERROR")
            register(session)
            session.sql(f"CREATE NAMESPACE {spark.CATALOG}.bench")
            bench = Bench(session, int(gigabytes * GIGABYTE / BYTES_PER_ROW))
            bench.generated().writeTo(bench.create("t")).append()
            memory = f"Java's heap {MEMORY}, Python workers {PYTHON_MEMORY}"
            print(f"{gigabytes} GB of plain Arrow, {bench.rows:,} rows, {memory}", flush=True)
            operations: list[Callable[[str], None]] = [
                bench.read,
                bench.read_projected,
                bench.read_filtered,
                bench.aggregate,
                bench.append,
            ]
            baseline = min(timed(lambda: bench.generate_only("")) for _ in range(2))
            print(f"making the rows alone: {baseline:.1f} s", flush=True)
            for operation in operations:
                times: dict[str, list[float]] = {"java": [], "ours": []}
                for _ in range(rounds):
                    for side in times:
                        times[side].append(timed(partial(operation, side)))
                ratios = [ours / java for ours, java in zip(times["ours"], times["java"], strict=True)]
                best = {side: min(found) for side, found in times.items()}
                print(
                    f"{operation.__name__:15} java {best['java']:7.2f} s, data source {best['ours']:7.2f} s, "
                    f"best {best['ours'] / best['java']:.2f}, median {statistics.median(ratios):.2f}, "
                    f"{gigabytes * 1000 / best['ours']:.0f} MB/s",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    java.jars("spark")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        run(Path(folder), arguments.gigabytes, arguments.rounds)


if __name__ == "__main__":
    main()
