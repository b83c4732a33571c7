"""Streams whose driver is killed. `python -m integration.streaming_soak` does it for as long as you like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from integration.spark import QUICK_JAVA
from integration.streaming_soak import soak

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(900)
def test_every_row_once_although_the_driver_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK_JAVA)
    seen = soak(tmp_path, batches=5, longest_life=4.0)
    assert seen["kills"] > 0
    assert min(seen["first"], seen["second"]) > 0
