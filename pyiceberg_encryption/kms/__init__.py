"""Key management services: the interface to them, and how a client is chosen by a catalog's properties."""

from __future__ import annotations

from pyiceberg_encryption.kms.client import KeyGenerationResult, KeyManagementClient
from pyiceberg_encryption.kms.guard import GuardedClient
from pyiceberg_encryption.kms.registry import load_kms_client

__all__ = ["GuardedClient", "KeyGenerationResult", "KeyManagementClient", "load_kms_client"]
