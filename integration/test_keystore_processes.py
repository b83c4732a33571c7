"""A keystore file that several processes use at once, and one that is killed while it writes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from pyiceberg_encryption.kms.keystore import Keystore

if TYPE_CHECKING:
    from pathlib import Path

PASSPHRASE = "a passphrase"
QUICK = "from pyiceberg_encryption.kms import keystore; keystore.MEMORY_KIB = 64; keystore.ITERATIONS = 1\n"


def add_keys(path: Path, prefix: str, count: int) -> subprocess.Popen[bytes]:
    program = QUICK + (
        f"for number in range({count}): keystore.Keystore.add_key({str(path)!r}, {PASSPHRASE!r}, f'{prefix}{{number}}')"
    )
    return subprocess.Popen([sys.executable, "-c", program])


def test_processes_that_add_keys_at_once_lose_none(tmp_path: Path) -> None:
    path = tmp_path / "keystore.json"
    Keystore.create(path, PASSPHRASE, ["first"])
    processes = [add_keys(path, f"p{number}-", 20) for number in range(4)]
    while any(process.poll() is None for process in processes):
        assert "first" in Keystore.open(path, PASSPHRASE).keys  # a reader finds a whole file at any time
    assert [process.returncode for process in processes] == [0] * 4
    expected = {"first", *(f"p{process}-{number}" for process in range(4) for number in range(20))}
    assert Keystore.open(path, PASSPHRASE).keys.keys() == expected


def test_a_process_killed_in_mid_write_leaves_a_whole_file_and_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "keystore.json"
    Keystore.create(path, PASSPHRASE, ["first"])
    for kill in range(5):
        writer = add_keys(path, f"k{kill}-", 10_000)
        before = path.stat().st_mtime_ns
        while path.stat().st_mtime_ns == before:
            time.sleep(0.01)
        time.sleep(0.002 * kill)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert "first" in Keystore.open(path, PASSPHRASE).keys
    keys = Keystore.add_key(path, PASSPHRASE, "last").keys
    assert {"first", "last", "k0-0"} <= keys.keys()
