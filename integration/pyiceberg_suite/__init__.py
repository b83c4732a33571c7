"""PyIceberg's own tests, which its source distribution has, each run in a process of its own.

`python -m integration.pyiceberg_suite` runs them all without and with this package, and prints what differs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from integration.pyiceberg_suite.outcomes import OUTPUT

SOURCE = (
    "https://files.pythonhosted.org/packages/85/08/bde71e0bbcf1a62c92d7fa457b508691596c65fa7e52c1982c78c461cd1c/"
    "pyiceberg-0.12.0.tar.gz"
)
SHA256 = "19f165d298054f9436108691098b60fa0fa99d0eff5fb884700c43b29334a39d"
REPOSITORY = Path(__file__).parent.parent.parent
CACHE = REPOSITORY / ".cache" / "pyiceberg-suite"
NEEDED = ("datafusion", "duckdb", "fastavro", "moto", "polars", "pytest_lazy_fixtures", "pytest_mock", "requests_mock")

UNIT_TESTS = (
    "tests",
    *("-m", "(unmarked or parametrize) and not integration"),
    *("--ignore=tests/integration", "--ignore=tests/notebooks"),
)
NEED_SERVERS = (
    "add_files",  # S3, where plaintext files are, to be added to tables
    "hive_migration",
    "rest_catalog",
    "rest_manifest",  # what Spark wrote
    "rest_scan_planning_integration",
)
TESTS_OF_TABLES = (
    *("tests/table", "tests/cli", "tests/integration"),
    *(f"tests/catalog/test_{name}.py" for name in ("base", "catalog_behaviors", "sql")),
    # These need what only Spark and S3 can give: tables of Hive's, scans planned by a server, files to be added.
    *(f"--ignore=tests/integration/test_{name}.py" for name in ("hive_migration", "rest_catalog", "rest_manifest")),
    *(
        "--ignore=tests/integration/test_rest_scan_planning_integration.py",
        "--ignore=tests/integration/test_add_files.py",
    ),
)

# Python 3.11.2, for one, does not know the argument yet.
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}

Outcomes = dict[str, dict[str, Any]]


class SuiteUnavailableError(Exception):
    """Says what is missing, and how to get it."""


def run(plugin: str | None, *arguments: str) -> Outcomes:
    """The outcome of each test, by its id. What pytest prints is kept beside the suite."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SuiteUnavailableError(f"{', '.join(missing)} not found: `pip install --group test`")
    folder = _unpacked()
    name = plugin or "plain"
    with tempfile.TemporaryDirectory() as scratch:
        outcomes = Path(scratch) / "outcomes.json"
        selection = Path(scratch) / "arguments"
        selection.write_text("\n".join(arguments))
        plugins = [f"-pintegration.pyiceberg_suite.{each}" for each in ("outcomes", plugin) if each]
        path = os.pathsep.join(map(str, (folder, REPOSITORY)))
        with (CACHE / f"{name}.log").open("w") as log:
            subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-rfEs", "-pno:cacheprovider", *plugins, f"@{selection}"],
                cwd=folder,
                env=os.environ | {OUTPUT: str(outcomes), "PYTHONPATH": path, "TMPDIR": scratch},
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if not outcomes.exists():
            raise AssertionError(f"PyIceberg's tests did not run, see {log.name}")
        found: Outcomes = json.loads(outcomes.read_text())
        return found


def differences(one: Outcomes, other: Outcomes) -> dict[str, tuple[str, str]]:
    """The tests that did not end in the same way."""
    ends = {test: (_outcome(one, test), _outcome(other, test)) for test in sorted({*one, *other})}
    return {test: end for test, end in ends.items() if end[0] != end[1]}


def counts(outcomes: Outcomes) -> dict[str, int]:
    ends = [_outcome(outcomes, test) for test in outcomes]
    return {end: ends.count(end) for end in sorted(set(ends))}


def _outcome(outcomes: Outcomes, test: str) -> str:
    return str(outcomes[test]["outcome"]) if test in outcomes else "absent"


def _unpacked() -> Path:
    folder = CACHE / SHA256[:16]
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        try:
            with urllib.request.urlopen(SOURCE, timeout=120) as response:
                archive = response.read()
        except OSError as error:
            raise SuiteUnavailableError(f"{SOURCE} could not be fetched: {error}") from None
        if hashlib.sha256(archive).hexdigest() != SHA256:
            raise SuiteUnavailableError(f"{SOURCE} is not what it was (another SHA-256)")
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch, tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(scratch, **SAFELY)  # its content is known by its hash anyway
            (source,) = Path(scratch).iterdir()
            (source / "tests" / "__init__.py").touch()  # or this repository's `tests` would be found before them
            (source / "pyiceberg").rename(source / "pyiceberg-source")  # the installed one is to be tested
            source.rename(folder)
    return folder
