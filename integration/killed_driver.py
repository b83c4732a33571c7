"""A program whose driver is killed at a commit, and which is run again: `python -m integration.killed_driver FOLDER`.

What is to befall it at its next commit is in a file, which is gone when it has happened.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from integration import spark as java_spark
from integration import streaming_soak
from pyiceberg_encryption import load_catalog
from pyiceberg_encryption.jobs import encrypt_in_place, rekey
from pyiceberg_encryption.spark import register

CATALOG = "soak"
WRITTEN, LAKE = "db.written", "db.lake"
ROWS = 40
BEFORE, AFTER = "before", "after"


class LethalFileIO(PyArrowFileIO):
    """Kills before the metadata of a table is written, or when it is read by who has just committed it."""

    _committed: ClassVar[set[str]] = set()

    def new_output(self, location: str) -> PyArrowFile:
        if location.endswith(".metadata.json"):
            if self._is_arranged(BEFORE):
                _die()
            if self._is_arranged(AFTER):
                self._committed.add(location)
        return super().new_output(location)

    def new_input(self, location: str) -> PyArrowFile:
        if location in self._committed:
            _die()
        return super().new_input(location)

    def _is_arranged(self, fault: str) -> bool:
        plan = Path(self.properties["fault"])
        if not plan.exists() or plan.read_text() != fault:
            return False
        plan.unlink()
        return True


def _die() -> None:
    """With the driver, which leads this session of processes, and its JVM."""
    os.killpg(os.getsid(0), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def properties(folder: Path) -> dict[str, str]:
    return {
        **streaming_soak.properties(folder),
        "py-io-impl": f"integration.killed_driver.{LethalFileIO.__name__}",
        "fault": str(folder / "fault"),
    }


def run(folder: Path, fault: str) -> int:
    (folder / "fault").write_text(fault)
    quick = {"JAVA_TOOL_OPTIONS": java_spark.QUICK_JAVA}
    environment = {**streaming_soak.environment(folder, properties(folder)), **quick}
    command = [sys.executable, "-m", "integration.killed_driver", str(folder)]
    with (folder / "output").open("wb") as out:
        done = subprocess.run(command, env=environment, stdout=out, stderr=out, start_new_session=True, check=False)
    return done.returncode


def write(spark: Any, start: int, mode: str, **options: str) -> None:
    given = {"catalog": CATALOG, "table": WRITTEN, "commit-id": f"{mode} of {start}", **options}
    rows = spark.range(start, start + ROWS, 1, 2)
    rows.write.format("iceberg_encrypted").options(**given).mode(mode).save()


def main(folder: Path) -> None:
    spark = java_spark.builder("local[2]", java_spark.QUICK).getOrCreate()
    register(spark)
    write(spark, 0, "append")
    write(spark, ROWS, "overwrite", **{"overwrite-filter": f"id < {ROWS // 2}"})
    with load_catalog(CATALOG, **properties(folder)) as catalog:
        rekey(catalog.load_table(WRITTEN), spark, job_id="again")
        encrypt_in_place(catalog, LAKE, key="soak", spark=spark)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
