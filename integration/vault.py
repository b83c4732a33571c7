"""Builds the tests' Vault from `vault_server/`, and sets it up: HashiCorp's own code, in memory."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hvac
from filelock import FileLock

from integration import tools

HERE = Path(__file__).parent
SOURCES = HERE / "vault_server"
CACHE = tools.CACHE / "vault"
QUICK_TO_BUILD = ["-trimpath", "-gcflags=all=-N -l -dwarf=false", "-ldflags=-s -w"]


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
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        out = Path(scratch) / "server"
        command = [tools.go_command(), "build", "-buildvcs=false", *QUICK_TO_BUILD, "-o", str(out), "."]
        tools.run(command, tools.go_environment(Path(scratch)), SOURCES)
        out.replace(server)
