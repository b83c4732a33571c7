"""Apache Iceberg table encryption for PyIceberg, byte-compatible with Iceberg Java."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg_encryption.errors import EncryptionError, IntegrityError
from pyiceberg_encryption.kek_cache import KekCache
from pyiceberg_encryption.key_metadata import StandardKeyMetadata
from pyiceberg_encryption.keyring import EncryptedKey, Keyring
from pyiceberg_encryption.kms import KeyManagementClient, load_kms_client
from pyiceberg_encryption.secret import Secret
from pyiceberg_encryption.stream import AesGcmInputStream, AesGcmOutputStream

if TYPE_CHECKING:
    from pyiceberg_encryption.catalogs import load_catalog
    from pyiceberg_encryption.catalogs.static import StaticTable

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
    "StaticTable",
    "load_catalog",
    "load_kms_client",
]


def __getattr__(name: str) -> Any:
    """Tables need much more of PyIceberg and Arrow than streams and keys do: it is loaded when it is asked for."""
    if name == "load_catalog":
        from pyiceberg_encryption.catalogs import load_catalog

        return load_catalog
    if name == "StaticTable":
        from pyiceberg_encryption.catalogs.static import StaticTable

        return StaticTable
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
