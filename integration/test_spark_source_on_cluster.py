"""Tests of the data source again, with executors that are processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration import spark as java_spark

TESTS = ("same_values", "other_wrote", "take_turns", "partitioned", "evolved")
EXECUTORS = 2
ROOT = Path(__file__).parent.parent


@pytest.mark.timeout(900)
def test_types_catalogs_and_storages_on_a_cluster(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs Spark: `pip install --group test`")
    home = java_spark.home_for_cluster(tmp_path)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        java_spark.MASTER: f"local-cluster[{EXECUTORS},1,1024]",
        "PYTHONPATH": str(ROOT),
        "SPARK_HOME": str(home),
    }
    command = [sys.executable, "-m", "pytest", "integration/test_spark_source.py", "-k", " or ".join(TESTS)]
    options = ["--basetemp", str(tmp_path / "pytest"), "-p", "no:cacheprovider"]
    ran = subprocess.run([*command, *options], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]
    assert " skipped" not in ran.stdout
    assert len({log.parent for log in home.glob("work/*/*/stderr")}) >= EXECUTORS
