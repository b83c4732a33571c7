"""PyIceberg's own tests: beside this package they end as without it, and on encrypted tables they pass as well."""

from __future__ import annotations

import pytest

from integration import pyiceberg_suite
from integration.pyiceberg_suite import SuiteUnavailableError

pytestmark = pytest.mark.timeout(1800)


def run(plugin: str | None, *arguments: str) -> pyiceberg_suite.Outcomes:
    try:
        return pyiceberg_suite.run(plugin, *arguments)
    except SuiteUnavailableError as error:
        pytest.skip(f"PyIceberg's own tests were left out: {error}")


def test_pyiceberg_behaves_as_without_this_package() -> None:
    """Only what does not pass is run without this package too. `python -m integration.pyiceberg_suite` runs all."""
    loaded = run("loaded", *pyiceberg_suite.UNIT_TESTS)
    assert loaded.keys() == run(None, "--collect-only", *pyiceberg_suite.UNIT_TESTS).keys()
    unusual = {test: end for test, end in loaded.items() if end["outcome"] not in ("passed", "left out")}
    assert pyiceberg_suite.counts(loaded)["passed"] > 3900
    assert not pyiceberg_suite.differences(unusual, run(None, *unusual) if unusual else {})


def test_pyiceberg_works_on_encrypted_tables() -> None:
    """`pyiceberg_suite/unfit.txt` has the tests that cannot pass there, with the reasons."""
    outcomes = run("encrypted", *pyiceberg_suite.TESTS_OF_TABLES)
    failed = {test: end["reason"][-2000:] for test, end in outcomes.items() if end["outcome"] == "failed"}
    assert not failed, "\n\n".join(f"{test}\n{reason}" for test, reason in failed.items())
    assert sum(end["outcome"] == "passed" and end["encrypted"] for end in outcomes.values()) > 1000
