"""Wrapping with master keys that are at hand: what the memory and the local client share.

The wire form is that of Iceberg Java's clients of this kind: nonce, ciphertext and tag of AES-GCM without AAD.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg_encryption.ciphers import AesGcm
from pyiceberg_encryption.errors import ClosedError, FormatError, IntegrityError, KmsKeyError
from pyiceberg_encryption.kms.client import KeyManagementClient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyiceberg_encryption.secret import Secret


class MasterKeyClient(KeyManagementClient):
    where: str  # names the place of the master keys in messages

    def __init__(self, properties: Mapping[str, str], master_keys: Mapping[str, Secret]) -> None:
        super().__init__(properties)
        self._master_keys = dict(master_keys)
        self._closed = False

    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        return AesGcm(self._master_key(wrapping_key_id)).seal(key)

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        master_key = self._master_key(wrapping_key_id)
        try:
            return AesGcm(master_key).open(wrapped_key)
        except (IntegrityError, FormatError):
            raise IntegrityError(
                f"A key is not one that master key {wrapping_key_id!r} wrapped: the table's metadata was changed, or "
                "the master key was replaced by another of the same name"
            ) from None

    def close(self) -> None:
        self._closed = True
        self._master_keys.clear()

    def _master_key(self, key_id: str) -> Secret:
        if self._closed:
            raise ClosedError("This KMS client is closed")
        if key_id not in self._master_keys:
            known = ", ".join(map(repr, sorted(self._master_keys))) or "none"
            raise KmsKeyError(f"There is no master key {key_id!r} in {self.where}; there are {known}")
        return self._master_keys[key_id]
