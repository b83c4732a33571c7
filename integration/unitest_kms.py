"""The master keys of Iceberg Java's UnitestKMS, for processes that have only PyIceberg's configuration, in which the
names of properties are in lower case, and so cannot be ids of keys that are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg_encryption.kms.master_keys import MasterKeyClient
from pyiceberg_encryption.secret import Secret
from tests.support import JAVA_MASTER_KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping


class UnitestKms(MasterKeyClient):
    where = "Iceberg Java's UnitestKMS"

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties, {key_id: Secret(key) for key_id, key in JAVA_MASTER_KEYS.items()})
