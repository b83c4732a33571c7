"""Master keys in a keystore file, for one machine or a team's share: the default that needs no server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg_encryption import process
from pyiceberg_encryption.errors import ConfigurationError
from pyiceberg_encryption.kms.keystore import Keystore, secret_passphrase
from pyiceberg_encryption.kms.master_keys import MasterKeyClient
from pyiceberg_encryption.secret import Secret

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

KEYSTORE = "kms.local.keystore"
PASSPHRASE = "kms.local.passphrase"
PASSPHRASE_FILE = "kms.local.passphrase-file"


class LocalKeyManagementClient(MasterKeyClient):
    _lock: threading.Lock

    def __init__(self, properties: Mapping[str, str]) -> None:
        if not properties.get(KEYSTORE):
            raise ConfigurationError(f"Set {KEYSTORE} to the path of a keystore file")
        self._path = Path(properties[KEYSTORE]).expanduser().absolute()
        self._passphrase = _passphrase(properties)
        process.give_lock(self)
        self._read_from = self._identity()
        super().__init__(properties, Keystore.open(self._path, self._passphrase).keys)
        self.where = f"keystore {self._path}"

    def _master_key(self, key_id: str) -> Secret:
        """A key that is missing may have been added since: by another process, or after this one started."""
        with self._lock:
            found = self._identity()
            if not self._closed and key_id not in self._master_keys and found != self._read_from:
                self._master_keys.update(Keystore.open(self._path, self._passphrase).keys)
                self._read_from = found
        return super()._master_key(key_id)

    def _identity(self) -> tuple[int, int] | None:
        """Changes when the file is replaced."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns


def _passphrase(properties: Mapping[str, str]) -> Secret:
    given, file = properties.get(PASSPHRASE), properties.get(PASSPHRASE_FILE)
    if given and file:
        raise ConfigurationError(f"Both {PASSPHRASE} and {PASSPHRASE_FILE} are set; keep one of them")
    if given:
        return secret_passphrase(str(given))
    if not file:
        raise ConfigurationError(f"Set {PASSPHRASE}, or {PASSPHRASE_FILE} to a file that holds it")
    try:
        passphrase = Secret(Path(str(file)).expanduser().read_bytes().rstrip(b"\r\n"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{PASSPHRASE_FILE} cannot be read: {error}") from None
    if len(passphrase) == 0:
        raise ConfigurationError(f"The file that {PASSPHRASE_FILE} names is empty")
    return passphrase
