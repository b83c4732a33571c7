"""Master keys given as properties. For tests only: whoever reads the configuration reads the keys."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from pyiceberg_encryption.ciphers import KEY_LENGTHS
from pyiceberg_encryption.errors import ConfigurationError
from pyiceberg_encryption.kms.master_keys import MasterKeyClient
from pyiceberg_encryption.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

KEY_PREFIX = "kms.memory.key."


class MemoryKeyManagementClient(MasterKeyClient):
    where = f"the properties {KEY_PREFIX}<id>"

    def __init__(self, properties: Mapping[str, str]) -> None:
        master_keys = {
            name.removeprefix(KEY_PREFIX): _decode(name, value)
            for name, value in properties.items()
            if name.startswith(KEY_PREFIX)
        }
        if not master_keys:
            raise ConfigurationError(f"Set {KEY_PREFIX}<id> to a master key in base64")
        super().__init__(properties, master_keys)


def _decode(name: str, value: str) -> Secret:
    try:
        key = Secret(base64.b64decode(value, validate=True))
    except (binascii.Error, ValueError):
        raise ConfigurationError(f"Property {name} is not base64") from None
    if len(key) not in KEY_LENGTHS:
        raise ConfigurationError(f"Property {name} holds {len(key)} bytes; a master key has 16, 24 or 32")
    return key
