"""Master keys in a keystore file, for one machine or a team's share: the default that needs no server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg_encryption.errors import ConfigurationError
from pyiceberg_encryption.kms.keystore import Keystore
from pyiceberg_encryption.kms.master_keys import MasterKeyClient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg_encryption.secret import Secret

KEYSTORE = "kms.local.keystore"
PASSPHRASE = "kms.local.passphrase"
PASSPHRASE_FILE = "kms.local.passphrase-file"


class LocalKeyManagementClient(MasterKeyClient):
    def __init__(self, properties: Mapping[str, str]) -> None:
        if not properties.get(KEYSTORE):
            raise ConfigurationError(f"Set {KEYSTORE} to the path of a keystore file")
        self._path = Path(properties[KEYSTORE]).expanduser()
        self._passphrase = _passphrase(properties)
        self._read_from = self._identity()
        super().__init__(properties, Keystore.open(self._path, self._passphrase).keys)
        self.where = f"keystore {self._path}"

    def _master_key(self, key_id: str) -> Secret:
        """A key that is missing may have been added since: by another process, or after this one started."""
        if key_id not in self._master_keys and self._identity() != self._read_from:
            self._read_from = self._identity()
            self._master_keys.update(Keystore.open(self._path, self._passphrase).keys)
        return super()._master_key(key_id)

    def _identity(self) -> tuple[int, int] | None:
        """Changes when the file is replaced."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns


def _passphrase(properties: Mapping[str, str]) -> str:
    passphrase, file = properties.get(PASSPHRASE), properties.get(PASSPHRASE_FILE)
    if bool(passphrase) == bool(file):
        raise ConfigurationError(f"Set one of {PASSPHRASE} and {PASSPHRASE_FILE}")
    if passphrase:
        return passphrase
    try:
        return Path(str(file)).expanduser().read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{PASSPHRASE_FILE} cannot be read: {type(error).__name__}") from None
