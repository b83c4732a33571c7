"""What is done between two tasks of one Python process of Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import gc, importlib, json, sys, zipfile
from zipimport import zipimporter
from pyiceberg_encryption.spark.worker import make_ready_for_next_task

def seen():
    finders = [path for path, finder in sys.path_importer_cache.items() if isinstance(finder, zipimporter)]
    return {"frozen": gc.get_freeze_count(), "zips": finders}

import first_in_zip
before = seen()
make_ready_for_next_task()
after = seen()
garbage = [[] for _ in range(100_000)]
make_ready_for_next_task()
with zipfile.ZipFile(first_in_zip.__file__.partition(".zip")[0] + ".zip", "w") as archive:
    for name in ("another_module_before_it", "second_in_zip"):
        archive.writestr(f"{name}.py", "")
importlib.invalidate_caches()
import second_in_zip
make_ready_for_next_task()
print(json.dumps([before, after, seen(), second_in_zip.__file__]))
"""


def run(path: Path, **environment: str) -> Any:
    variables = {name: text for name, text in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    variables |= {"PYTHONPATH": os.pathsep.join([str(path), *filter(None, sys.path)]), **environment}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=variables, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    with zipfile.ZipFile(tmp_path / "modules.zip", "w") as archive:
        archive.writestr("first_in_zip.py", "")
    return tmp_path / "modules.zip"


def test_what_stays_is_not_searched_again(modules: Path) -> None:
    """But a zip file that was replaced is."""
    before, after, later, file = run(modules, SPARK_REUSE_WORKER="1")
    assert before["frozen"] == 0
    assert after["frozen"] > 10_000
    assert later["frozen"] < after["frozen"] + 50_000  # garbage of later tasks is still collected
    assert str(modules) in before["zips"]
    assert after["zips"] == later["zips"] == []
    assert file.startswith(str(modules))


def test_other_processes_are_left_alone(modules: Path) -> None:
    before, after, later, _ = run(modules)
    assert before["frozen"] == after["frozen"] == later["frozen"] == 0
    assert str(modules) in before["zips"]
    assert str(modules) in after["zips"]
