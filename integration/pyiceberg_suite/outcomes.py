"""A pytest plugin that writes the outcome of each test as JSON. It does not load the package that is under test."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

OUTPUT = "PYICEBERG_SUITE_OUTCOMES"

_outcomes: dict[str, dict[str, object]] = {}


def pytest_itemcollected(item: pytest.Item) -> None:
    _outcomes[item.nodeid] = {"outcome": "left out", "reason": ""}


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if not report.passed:
        _outcomes[report.nodeid] = {"outcome": report.outcome, "reason": str(report.longrepr)}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    entry = _outcomes.setdefault(report.nodeid, {})
    if report.when == "call" or not report.passed:
        entry |= {"outcome": report.outcome, "reason": str(report.longrepr or "")}
    entry |= dict(report.user_properties)


def pytest_sessionfinish() -> None:
    Path(os.environ[OUTPUT]).write_text(json.dumps(_outcomes))
