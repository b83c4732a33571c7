"""Fuzzes one target, guided by coverage: python -m fuzz TARGET [options of libFuzzer]. `make fuzz` runs them all."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["pyiceberg_encryption", "fuzz.targets"]):
    from fuzz import targets


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in targets.TARGETS:
        sys.exit(f"Usage: python -m fuzz {{{','.join(targets.TARGETS)}}} [libFuzzer options]")
    name = sys.argv[1]
    target = targets.TARGETS[name]
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(targets.SEEDS[name]):
            (Path(corpus) / str(number)).write_bytes(seed)
        atheris.Setup([sys.argv[0], corpus, *sys.argv[2:]], lambda data: targets.run(target, data))
        atheris.Fuzz()


main()
