"""A file of master keys, protected by a passphrase.

The file is JSON: a header that says how the passphrase becomes a key, and all master keys in one AES-GCM ciphertext
with the header as its AAD. So no master key can be changed, taken out or put in without the passphrase. An older copy
of the whole file still opens: who can write to the file can bring back a master key that was removed from it.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from filelock import FileLock, Timeout

from pyiceberg_encryption import process
from pyiceberg_encryption.ciphers import KEY_LENGTHS, AesGcm
from pyiceberg_encryption.errors import ConfigurationError, FormatError, IntegrityError, UsageError
from pyiceberg_encryption.secret import Secret

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

FORMAT = "pyiceberg-encryption-keystore"
VERSION = 1
MASTER_KEY_LENGTH = 32
MAX_FILE_LENGTH = 1 << 20
SALT_LENGTH = 16
# RFC 9106, section 4: the second recommended option, for where memory is constrained
ITERATIONS, LANES, MEMORY_KIB = 3, 4, 64 * 1024
# What a file may ask for, so that opening a forged one does not exhaust the machine
MAX_ITERATIONS, MAX_LANES, MAX_MEMORY_KIB = 10, 16, 256 * 1024
LOCK_TIMEOUT_SECONDS = 30.0


class Keystore:
    """The master keys of one file. `create` and `add_key` write it; an open keystore shows what it held when read."""

    def __init__(self, path: Path, keys: dict[str, Secret]) -> None:
        self.path = path
        self.keys = keys

    @classmethod
    def create(
        cls,
        path: str | Path,
        passphrase: str | Secret,
        key_ids: list[str],
        *,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> Keystore:
        """Makes a new file with a new master key for each id. Refuses to replace a file."""
        passphrase, path = secret_passphrase(passphrase), _resolved(path)
        if len(passphrase) == 0:
            raise ConfigurationError("A keystore needs a passphrase that is not empty")
        if not isinstance(key_ids, list):
            raise UsageError(f"The ids of the master keys must be a list, and are {key_ids!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            if path.exists():
                raise UsageError(f"{path} exists already. Add keys to it, or choose another name")
            store = cls(path, {})
            for key_id in key_ids:
                store._generate(key_id, entropy)
            store._save(passphrase, entropy)
        return store

    @classmethod
    def open(cls, path: str | Path, passphrase: str | Secret) -> Keystore:
        passphrase, path = secret_passphrase(passphrase), _resolved(path)
        try:
            with path.open("rb") as file:
                data = file.read(MAX_FILE_LENGTH + 1)
        except FileNotFoundError:
            raise _missing(path) from None
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"The keystore {path} cannot be read: {error}") from None
        return cls(path, _unseal(path, data, passphrase))

    @classmethod
    def add_key(
        cls,
        path: str | Path,
        passphrase: str | Secret,
        key_id: str,
        *,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> Keystore:
        """Adds a new master key to the file, whatever other processes add to it at the same time."""
        passphrase, path = secret_passphrase(passphrase), _resolved(path)
        if not path.exists():
            raise _missing(path)
        with _locked(path):
            store = cls.open(path, passphrase)
            store._generate(key_id, entropy)
            store._save(passphrase, entropy)
        return store

    def __repr__(self) -> str:
        return f"Keystore({str(self.path)!r}, key ids {sorted(self.keys)})"

    def _generate(self, key_id: str, entropy: Callable[[int], bytes]) -> None:
        if not isinstance(key_id, str) or not key_id:  # JSON would make a string of a number
            raise UsageError(f"The id of a master key must be a string that is not empty, and is {key_id!r}")
        if key_id in self.keys:
            raise UsageError(
                f"{self.path} has a master key {key_id!r} already; a new one of that name would orphan data"
            )
        self.keys[key_id] = Secret.random(MASTER_KEY_LENGTH, entropy)

    def _save(self, passphrase: Secret, entropy: Callable[[int], bytes]) -> None:
        header = {
            "format": FORMAT,
            "version": VERSION,
            "kdf": "argon2id",
            "salt": _to_base64(entropy(SALT_LENGTH)),
            "iterations": ITERATIONS,
            "lanes": LANES,
            "memory-kib": MEMORY_KIB,
        }
        sealed = AesGcm(_derive_key(header, passphrase), entropy).seal(self._encoded().expose(), _header_aad(header))
        data = json.dumps({**header, "keys": _to_base64(sealed)}, indent=2).encode() + b"\n"
        if len(data) > MAX_FILE_LENGTH:
            raise UsageError(f"{self.path} would become larger than {MAX_FILE_LENGTH} bytes, and could not be opened")
        _replace(self.path, data)

    def _encoded(self) -> Secret:
        return Secret(json.dumps({key_id: _to_base64(key.expose()) for key_id, key in self.keys.items()}).encode())


def secret_passphrase(passphrase: str | Secret) -> Secret:
    """So that no variable of a failing function shows it."""
    if not isinstance(passphrase, (str, Secret)):
        raise UsageError(f"A passphrase must be a string, and is {type(passphrase).__name__}")
    return passphrase if isinstance(passphrase, Secret) else Secret(passphrase.encode(errors="surrogatepass"))


def _unseal(path: Path, data: bytes, passphrase: Secret) -> dict[str, Secret]:
    try:
        if len(data) > MAX_FILE_LENGTH:
            raise FormatError(f"it is larger than {MAX_FILE_LENGTH} bytes")
        header = _parse_header(data)
        sealed = _from_base64(header.pop("keys", None))
        opened = Secret(AesGcm(_derive_key(header, passphrase)).open(sealed, _header_aad(header)))
        return _parse_keys(opened)
    except FormatError as error:
        raise FormatError(f"{path} is not a usable keystore: {error}") from None
    except IntegrityError:
        raise IntegrityError(f"{path} does not open: the passphrase is wrong, or the file was changed") from None


def _parse_keys(opened: Secret) -> dict[str, Secret]:
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        keys = {
            key_id: Secret(base64.b64decode(value, validate=True))
            for key_id, value in json.loads(bytes(opened.expose())).items()
        }
        if all(len(key) in KEY_LENGTHS for key in keys.values()):
            return keys
    raise FormatError("its content is not what this version writes")


def _parse_header(data: bytes) -> dict[str, Any]:
    try:
        header = json.loads(data)
    except (ValueError, RecursionError):
        raise FormatError("it is not JSON") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise FormatError(f"it does not say that its format is {FORMAT}")
    if header.get("version") != VERSION or header.get("kdf") != "argon2id":
        raise FormatError("it was made by a newer version of this package")
    limits = {"iterations": MAX_ITERATIONS, "lanes": MAX_LANES, "memory-kib": MAX_MEMORY_KIB}
    for name, limit in limits.items():
        value = header.get(name)
        if type(value) is not int or not 1 <= value <= limit:
            raise FormatError(f"its {name} is not a number from 1 to {limit}")
    if header["memory-kib"] < 8 * header["lanes"]:
        raise FormatError("its memory-kib is below 8 for each of its lanes")
    if len(_from_base64(header.get("salt"))) < SALT_LENGTH:
        raise FormatError(f"its salt is shorter than {SALT_LENGTH} bytes")
    return header


class _OneAtATime:
    """Threads that derive keys at the same time may wait for each other for ever, for the threads of OpenSSL."""

    _lock: threading.Lock

    def __init__(self) -> None:
        process.give_lock(self)


_derivations = _OneAtATime()


def _derive_key(header: dict[str, Any], passphrase: Secret) -> Secret:
    kdf = Argon2id(
        salt=_from_base64(header["salt"]),
        length=32,
        iterations=header["iterations"],
        lanes=header["lanes"],
        memory_cost=header["memory-kib"],
    )
    with _derivations._lock:
        return Secret(kdf.derive(bytes(passphrase.expose())))


def _header_aad(header: dict[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True).encode()


def _to_base64(data: bytes | memoryview) -> str:
    return base64.b64encode(data).decode()


def _from_base64(text: object) -> bytes:
    try:
        return base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except (binascii.Error, ValueError):
        raise FormatError("a value in it is not base64") from None


def _missing(path: Path) -> ConfigurationError:
    return ConfigurationError(f"There is no keystore at {path}. Create it first (Keystore.create)")


def _resolved(path: str | Path) -> Path:
    """The file itself, so that one that is reached by a link is locked and replaced where it lies."""
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be the path of a keystore: {error}") from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One writer at a time, across processes. Readers need no lock, since the file is replaced in one step."""
    try:
        with FileLock(f"{path}.lock", timeout=LOCK_TIMEOUT_SECONDS, mode=0o600):
            yield
    except PermissionError as error:
        raise UsageError(f"{path} cannot be written to by this user: {error}") from None
    except Timeout:
        raise UsageError(f"Another process has been writing to {path} for {LOCK_TIMEOUT_SECONDS:g} s") from None


def _replace(path: Path, data: bytes) -> None:
    """In one step. The new file is its owner's alone, unless the old one was made readable for others."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            if hasattr(os, "chown"):
                os.chown(temporary, -1, path.stat().st_gid)
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    if os.name == "posix":
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
