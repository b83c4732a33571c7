"""A short, unguided run of the fuzzer's targets. `make fuzz` runs them for longer, guided by coverage."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.targets import SEEDS, TARGETS, run


@pytest.mark.parametrize("name", TARGETS)
def test_seeds(name: str) -> None:
    for seed in SEEDS[name]:
        run(TARGETS[name], seed)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_bytes_around_the_seeds(name: str, data: st.DataObject) -> None:
    changed = bytearray(data.draw(st.sampled_from(SEEDS[name])))
    for _ in range(data.draw(st.integers(0, 5))):
        at = data.draw(st.integers(0, len(changed)))
        changed[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    run(TARGETS[name], bytes(changed))
