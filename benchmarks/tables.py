"""Encrypted tables beside plain PyIceberg (format V2), on the same data in one run: `make bench`.

In each round every operation is done once by plain PyIceberg, once on an encrypted table, and once more by plain
PyIceberg, in an order drawn anew: how far the two plain times are apart is what a figure is good for. Shown is time as
a share of plain PyIceberg's: of the best times, and the median over the rounds of the ratios within one round.
"""

from __future__ import annotations

import argparse
import base64
import functools
import random
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import load_catalog as load_plain_catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile

from benchmarks.streams import timed
from pyiceberg_encryption.catalogs import load_catalog
from pyiceberg_encryption.kms.memory import MemoryKeyManagementClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

PLAIN, AGAIN, ENCRYPTED = "plain", "plain again", "encrypted"
SMALL_APPENDS = 200
MANIFESTS = 1000
ENTRIES = 10


class CountingClient(MemoryKeyManagementClient):
    calls = 0

    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        CountingClient.calls += 1
        return super().wrap_key(key, wrapping_key_id)

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        CountingClient.calls += 1
        return super().unwrap_key(wrapped_key, wrapping_key_id)


class Contestant:
    """One kind of catalog, with the tables that the operations need."""

    def __init__(self, name: str, folder: Path, rows: pa.Table, manifests: int) -> None:
        self.name = name
        self.folder = folder
        self.rows = rows
        self.catalog = catalog_of(name, folder)
        self.catalog.create_namespace("bench")
        self.created = 0
        self.large = self.new_table()
        for part in range(4):
            self.large.append(rows.slice(part * len(rows) // 4, len(rows) // 4))
        self.many_manifests = self.new_table()
        add_manifests(self.many_manifests, rows.slice(0, 1000), manifests)

    def new_table(self) -> Table:
        self.created += 1
        return self.catalog.create_table(f"bench.t{self.created}", self.rows.schema)

    def append(self) -> None:
        table = self.new_table()
        table.append(self.rows)
        self.drop(table)

    def small_appends(self) -> None:
        table = self.new_table()
        for number in range(SMALL_APPENDS):
            table.append(self.rows.slice(number * 100, 100))
        self.drop(table)

    def drop(self, table: Table) -> None:
        self.catalog.drop_table(table.name())
        shutil.rmtree(table.location().removeprefix("file://"))

    def full_scan(self) -> None:
        self.large.scan().to_arrow()

    def streamed_scan(self) -> None:
        for _ in self.large.scan().to_arrow_batch_reader():
            pass

    def projection(self) -> None:
        self.large.scan(selected_fields=("id", "group")).to_arrow()

    def filtered_scan(self) -> None:
        self.large.scan(row_filter="group = 7 and id > 1000").to_arrow()

    def planning(self) -> None:
        list(self.many_manifests.scan().plan_files())


OPERATIONS: dict[str, Callable[[Contestant], None]] = {
    "append": Contestant.append,
    "full scan": Contestant.full_scan,
    "full scan, as a stream": Contestant.streamed_scan,
    "two of six columns": Contestant.projection,
    "filtered scan": Contestant.filtered_scan,
    f"{SMALL_APPENDS} small appends": Contestant.small_appends,
    "planning": Contestant.planning,
}


def add_manifests(table: Table, rows: pa.Table, count: int) -> None:
    """One snapshot with many manifests, each of which lists the same file ten times: planning opens no data files."""
    transaction = table.transaction()
    append = transaction.update_snapshot().fast_append()
    for file in _dataframe_to_data_files(table.metadata, rows, table.io):
        append.append_data_file(file)
    entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=append._added_data_files[0])

    def manifests() -> list[ManifestFile]:
        writers = [append.new_manifest_writer(table.spec()) for _ in range(count - 1)]
        for writer in writers:
            with writer:
                for _ in range(ENTRIES):
                    writer.add(entry)
        return [writer.to_manifest_file() for writer in writers]

    append._existing_manifests = manifests  # type: ignore[method-assign]
    append.commit()
    transaction.commit_transaction()


def catalog_of(name: str, folder: Path) -> Catalog:
    place = {"uri": f"sqlite:///{folder}/{name}.db", "warehouse": f"file://{folder}/{name}"}
    if name != ENCRYPTED:
        return load_plain_catalog(name, type="sql", **place)
    key = base64.b64encode(bytes(16)).decode()
    encryption = {"kms.memory.key.bench": key, "table-default.encryption.key-id": "bench"}
    return load_catalog(name, type="sql", **place, **{"py-kms-impl": f"{__name__}.CountingClient"}, **encryption)


def data(rows: int) -> pa.Table:
    """Numbers and texts that compress, but not to nothing."""
    values = pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(random.Random(1).randbytes(8 * rows))])
    customers = pc.binary_join_element_wise("customer", pc.bit_wise_and(values, 0xFFFF).cast(pa.string()), " ")
    return pa.table(
        {
            "id": pa.arange(0, rows),
            "value": values,
            "share": pc.divide(pc.bit_wise_and(values, 0xFFFFFFFF).cast(pa.float64()), 3.0),
            "group": pc.bit_wise_and(values, 0xFF).cast(pa.int32()),
            "customer": customers,
            "note": pc.binary_join_element_wise(customers, values.cast(pa.string()), " "),
        }
    )


def measure(contestants: list[Contestant], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds by operation and contestant, of each round."""
    seconds: dict[str, dict[str, list[float]]] = {name: {} for name in OPERATIONS}
    rng = random.Random(3)
    for round_ in range(-1, rounds):  # the first one warms up
        for name, operation in OPERATIONS.items():
            for contestant in rng.sample(contestants, len(contestants)):
                took = timed(functools.partial(operation, contestant))
                if round_ >= 0:
                    seconds[name].setdefault(contestant.name, []).append(took)
    return seconds


def report(seconds: dict[str, dict[str, list[float]]]) -> None:
    print(f"  {'':<26}{'plain, s':>9}   control: best, median    encrypted: best, median (range)")
    for name, of in seconds.items():
        plain = of[PLAIN]
        line = f"  {name:<26}{min(plain):9.3f}   "
        for other in (AGAIN, ENCRYPTED):
            ratios = [b / a for a, b in zip(plain, of[other], strict=True)]
            line += f"{min(of[other]) / min(plain):8.2f} {statistics.median(ratios):8.2f}    "
        print(f"{line}({min(ratios):.2f} to {max(ratios):.2f})")


def report_kms_calls(folder: Path, table: Table) -> None:
    name = table.name()
    cold = catalog_of(ENCRYPTED, folder)
    one_row = table.scan(limit=1).to_arrow()
    report_calls("a scan on a cold cache", lambda: cold.load_table(name).scan(limit=1).to_arrow())
    report_calls("a scan on a warm cache", lambda: cold.load_table(name).scan(limit=1).to_arrow())
    report_calls("an append on a warm cache", lambda: cold.load_table(name).append(one_row))
    cold = catalog_of(ENCRYPTED, folder)
    report_calls("an append on a cold cache", lambda: cold.load_table(name).append(one_row))


def report_calls(label: str, work: Callable[[], object]) -> None:
    before = CountingClient.calls
    work()
    print(f"  {label:<50}{CountingClient.calls - before}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--manifests", type=int, default=MANIFESTS)
    arguments = parser.parse_args()
    rows = data(arguments.rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        contestants = [Contestant(name, folder, rows, arguments.manifests) for name in (PLAIN, AGAIN, ENCRYPTED)]
        print(
            f"{arguments.rows:,} rows, {rows.nbytes / 2**20:,.0f} MiB in memory; planning over {arguments.manifests} "
            f"manifests; {arguments.rounds} rounds; time as a share of plain PyIceberg's"
        )
        report(measure(contestants, arguments.rounds))
        print("\nCalls of the KMS")
        report_kms_calls(folder, contestants[-1].large)
    return 0


if __name__ == "__main__":
    sys.exit(main())
