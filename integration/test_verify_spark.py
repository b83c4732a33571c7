"""A table is verified on Spark's executors, by the code that verifies it without them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from integration.spark import plain_session, submit
from pyiceberg_encryption.catalogs import load_catalog
from pyiceberg_encryption.kms.keystore import Keystore
from pyiceberg_encryption.pipeline.verify import verify
from tests.table_support import data_files, path_of, snapshots

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyiceberg_encryption.catalogs import EncryptingCatalog
    from pyiceberg_encryption.catalogs.sql import SqlCatalog
    from pyiceberg_encryption.pipeline.report import Report
    from pyiceberg_encryption.table.table import Table

pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")

CATALOG = "verified"
ROWS = pa.table({"id": range(40_000), "s": [f"{number:09}" for number in range(40_000)]})
SCRIPT = """
import sys
from datetime import timedelta
from pyspark.sql import SparkSession
from pyiceberg_encryption import load_catalog
from pyiceberg_encryption.pipeline.verify import verify

spark = SparkSession.builder.master("local[2]").getOrCreate()
report = verify(load_catalog("verified").load_table(sys.argv[1]), spark, older_than=timedelta(0))
spark.stop()
print(report.to_json())
sys.exit(report.exit_code)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the processes that do the work are configured with."""
    folder = tmp_path_factory.mktemp("verified")
    Keystore.create(folder / "keystore.json", "a passphrase", ["orders"])
    settings = {
        "TYPE": "sql",
        "URI": f"sqlite:///{folder}/catalog.db",
        "WAREHOUSE": f"file://{folder}/warehouse",
        "ENCRYPTION__KMS_TYPE": "local",
        "KMS__LOCAL__KEYSTORE": str(folder / "keystore.json"),
        "KMS__LOCAL__PASSPHRASE": "a passphrase",
    }
    return {f"PYICEBERG_CATALOG__{CATALOG.upper()}__{name}": value for name, value in settings.items()}


@pytest.fixture(scope="module")
def spark(environment: dict[str, str]) -> Iterator[Any]:
    with plain_session(environment) as session:
        # Another test may have started Spark before, and its workers have that one's environment.
        session.sparkContext.environment.update(environment)
        yield session


@pytest.fixture
def catalog(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[EncryptingCatalog]:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    catalog = cast("SqlCatalog", load_catalog(CATALOG))
    catalog.create_namespace_if_not_exists("db")
    yield catalog
    catalog.close()


def create(catalog: EncryptingCatalog, name: str, **properties: str) -> Table:
    chosen = {"encryption.key-id": "orders", **properties}
    table = catalog.create_table(f"db.{name}", ROWS.schema, properties=chosen)
    table.append(ROWS)
    return cast("Table", table)


def damage(table: Table) -> set[tuple[str, str]]:
    """Of several kinds. Returns what has to be found."""
    by_size = sorted(data_files(table), key=lambda file: file.file_size_in_bytes, reverse=True)
    flipped, missing, replaced = (file.file_path for file in by_size[:3])
    content = bytearray(path_of(flipped).read_bytes())
    content[-8 - int.from_bytes(content[-8:-4], "little") - 1] ^= 1  # the end of the last page
    path_of(flipped).write_bytes(content)
    path_of(missing).unlink()
    path_of(replaced).write_bytes(b"PAR1" + path_of(replaced).read_bytes()[4:])
    oldest = snapshots(table)[0].manifest_list
    path_of(oldest).write_bytes(path_of(oldest).read_bytes()[:-1])
    return {("damaged", flipped), ("missing", missing), ("plaintext", replaced), ("damaged", oldest)}


def problems(report: Report) -> set[tuple[str, str]]:
    return {(finding.problem, finding.path) for finding in report.findings}


def test_what_spark_finds_is_what_is_found_without(catalog: EncryptingCatalog, spark: Any) -> None:
    """In a table with many small files, a large one, Avro files, and old snapshots."""
    sizes = {"write.parquet.row-group-limit": "10000", "read.split.target-size": "100000"}
    table = create(catalog, "many", **sizes)
    for start in range(8):
        table.append(ROWS.slice(start, 3))
    with table.transaction() as transaction:
        transaction.set_properties({"write.format.default": "avro"})
    table.append(pa.table({"id": [50_000, 50_001], "s": ["x", "y"]}))
    table.delete("id = 50000")
    seen: list[tuple[int, int]] = []

    sound = verify(table, spark, progress=lambda done, known: seen.append((done, known)))

    assert sound.ok, sound
    assert sound == verify(table)
    assert sound.counts["manifest list"].files == len(snapshots(table))
    assert seen[-1][0] == seen[-1][1] == sum(count.files for count in sound.counts.values())
    expected = damage(table)
    report = verify(table, spark)
    assert problems(report) == expected
    assert report == verify(table)


def test_the_exit_code_of_a_spark_application(
    catalog: EncryptingCatalog, tmp_path: Path, environment: dict[str, str]
) -> None:
    table = create(catalog, "submitted")
    script = tmp_path / "verify_table.py"
    script.write_text(SCRIPT)
    name = ".".join(table.name())

    done = submit(script, name, environment=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["findings"] == []

    path_of(data_files(table)[0].file_path).write_bytes(b"PAR1")
    stray = path_of(table.location()) / "data" / "stray.parquet"
    stray.write_bytes(b"PAR1")
    done = submit(script, name, environment=environment)
    assert done.returncode == 1, done.stderr
    assert {(found["problem"], found["path"]) for found in json.loads(done.stdout)["findings"]} == {
        ("plaintext", data_files(table)[0].file_path),
        ("orphaned", f"file://{stray}"),
    }
