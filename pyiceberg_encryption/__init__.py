"""Apache Iceberg table encryption for PyIceberg, byte-compatible with Iceberg Java."""

from __future__ import annotations

from pyiceberg_encryption.errors import EncryptionError, IntegrityError
from pyiceberg_encryption.kek_cache import KekCache
from pyiceberg_encryption.key_metadata import StandardKeyMetadata
from pyiceberg_encryption.keyring import EncryptedKey, Keyring
from pyiceberg_encryption.kms import KeyManagementClient, load_kms_client
from pyiceberg_encryption.secret import Secret
from pyiceberg_encryption.stream import AesGcmInputStream, AesGcmOutputStream

__version__ = "0.1.0.dev0"

__all__ = [
    "AesGcmInputStream",
    "AesGcmOutputStream",
    "EncryptedKey",
    "EncryptionError",
    "IntegrityError",
    "KekCache",
    "KeyManagementClient",
    "Keyring",
    "Secret",
    "StandardKeyMetadata",
    "load_kms_client",
]
