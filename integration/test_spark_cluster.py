"""A cluster of Spark: what goes between its processes, and what is left when tasks fail, hang, or are killed."""

from __future__ import annotations

import base64
import json
import os
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

from integration import cluster
from integration.sniffer import Sniffer, forms, found
from pyiceberg_encryption import load_catalog
from pyiceberg_encryption.table import reached
from pyiceberg_encryption.table.file_io import FileKey
from tests.table_support import data_files, path_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyiceberg_encryption.table.file_io import EncryptedFileIO
    from pyiceberg_encryption.table.table import Table

TABLES = ("plain", *cluster.FAULTS)
FAILED = {"failed", "failed_beside_slow"}


@dataclass(frozen=True, repr=False)
class Run:
    folder: Path
    report: dict[str, Any]
    wire: list[bytearray] | None  # None without root's rights
    lost: int

    def table(self, name: str) -> Table:
        with load_catalog(cluster.CATALOG, **cluster.properties(self.folder)) as catalog:
            return cast("Table", catalog.load_table(f"db.{name}"))

    def place(self, name: str) -> list[bytes]:
        files = (path for path in (self.folder / name, *(self.folder / name).rglob("*")) if path.is_file())
        return [path.read_bytes() for path in files]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All in one application, since it takes half a minute to start."""
    pytest.importorskip("pyspark", reason="needs Spark: `pip install --group test`")
    folder = tmp_path_factory.mktemp("cluster")
    try:
        sniffer = Sniffer()
    except PermissionError:
        ends = cluster.run(folder).wait()
        wire, lost = None, 0
    else:
        with sniffer:
            ends = cluster.run(folder).wait()
        wire, lost = list(sniffer.streams.values()), sniffer.lost
    assert ends == 0, (folder / "output").read_text()[-3000:]
    return Run(folder, json.loads((folder / "report").read_text()), wire, lost)


@pytest.mark.parametrize("name", TABLES)
def test_each_row_is_there_once_or_none_is(run: Run, name: str) -> None:
    error, rows = run.report[name], run.table(name).scan().to_arrow()
    if name in FAILED:
        assert "arranged" in error
        assert len(rows) == 0
    else:
        assert error is None
        assert sorted(rows["id"].to_pylist()) == [*range(cluster.ROWS)]
        assert all(
            kind == f"kind {number % cluster.KINDS}" for number, kind in zip(*rows.to_pydict().values(), strict=True)
        )


@pytest.mark.parametrize("name", TABLES)
def test_no_file_is_left_that_no_snapshot_has(run: Run, name: str) -> None:
    table = run.table(name)
    stored = {path for path in (path_of(table.location()) / "data").rglob("*") if path.is_file()}
    listed = data_files(table) if table.metadata.snapshots else []
    assert stored == {path_of(file.file_path) for file in listed}


def test_what_was_arranged_has_happened(run: Run) -> None:
    left = {
        f"{name} {part}"
        for name, faults in cluster.FAULTS.items()
        for part, fault in faults.items()
        if "always" in fault
    }
    assert {path.name for path in (run.folder / "faults").iterdir()} == left
    log = b"".join(run.place("logs")).decode(errors="replace")
    assert "Killing attempt 0 for task 3.0" in log
    assert "ExecutorLostFailure" in log
    assert "exited unexpectedly" in log or "crashed" in log


def test_a_file_is_read_in_parts(run: Run) -> None:
    assert run.report["read"]["ids"] == [*range(cluster.ROWS)]
    assert run.report["read"]["parts"] > len(data_files(run.table("plain"))) > 1


# Keys


def keys_of(run: Run) -> Iterator[bytes]:
    """Of all files of all tables, KEKs, and the master keys."""
    for name in TABLES:
        table = run.table(name)
        if table.metadata.snapshots:
            manifests = reached.manifests(table.metadata, table.io)
            keys = [file.key_metadata for file in data_files(table)]
            keys += [manifest.key_metadata for manifest in manifests]
            for key in keys:
                assert isinstance(key, FileKey)
                yield bytes(key.open().encryption_key.expose())
        _, kek = cast("EncryptedFileIO", table.io).keys.keyring(table.metadata).kek_for_transport()
        yield bytes(kek.expose())
    yield from cluster.MASTER_KEYS.values()


def check_holds_no_key(run: Run, place: Iterable[bytes | bytearray]) -> None:
    keys = set(keys_of(run))
    assert len(keys) > 60
    assert found([*keys, cluster.PLANTED], place) == {cluster.PLANTED}


def test_no_key_is_sent(run: Run) -> None:
    """From the driver to its JVM, to executors and their Python workers, and back."""
    if run.wire is None:
        pytest.skip("left out: only root can listen to what others say")
    assert run.lost == 0
    io = cast("EncryptedFileIO", run.table("plain").io)
    wrapped_kek, _ = io.keys.keyring(run.table("plain").metadata).kek_for_transport()
    assert found([wrapped_kek], run.wire)
    check_holds_no_key(run, run.wire)


@pytest.mark.parametrize("place", ["events", "kept", "logs", "ui"])
def test_no_key_is_kept_or_shown(run: Run, place: str) -> None:
    """In the event log, in what Spark spills to its local disk, in its logs, and in its UI."""
    check_holds_no_key(run, run.place(place))


def test_the_search_finds_every_form() -> None:
    secrets = [os.urandom(length) for length in (16, 24, 32) for _ in range(5)]
    for secret in secrets:
        for form in forms(secret):
            assert found(secrets, [os.urandom(random.randrange(30)) + form + os.urandom(9)]) == {secret}
        for before in range(7):
            assert found(secrets, [b"x" + base64.b64encode(os.urandom(before) + secret + b"after")]) == {secret}


def test_each_executor_asks_the_kms_once_for_a_kek(run: Run) -> None:
    asked = Counter(line for line in (run.folder / "journal").read_text().splitlines() if line.startswith("executor"))
    assert len({line.split()[1] for line in asked}) > cluster.WORKERS
    assert set(asked.values()) == {1}
