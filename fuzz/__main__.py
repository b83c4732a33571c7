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
        sys.exit(f"Usage: python -m fuzz {{{','.join(targets.TARGETS)}}} [input that crashed] [libFuzzer options]")
    program, name, *options = sys.argv
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(targets.SEEDS[name]):
            (Path(corpus) / str(number)).write_bytes(seed)
        if not any(Path(option).is_file() for option in options):  # otherwise that input is run once
            options.append(corpus)
        atheris.Setup([program, *options], lambda data: targets.run(targets.TARGETS[name], data))
        atheris.Fuzz()


main()
