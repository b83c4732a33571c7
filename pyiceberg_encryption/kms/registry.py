"""Chooses and makes the client that a catalog's properties ask for."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from pyiceberg_encryption.errors import ConfigurationError, EncryptionError
from pyiceberg_encryption.imports import import_class
from pyiceberg_encryption.kms.guard import GuardedClient, RetryPolicy, described

if TYPE_CHECKING:
    from collections.abc import Mapping

KMS_TYPE = "encryption.kms-type"
PY_KMS_IMPL = "py-kms-impl"
JAVA_KMS_IMPL = "encryption.kms-impl"
ENTRY_POINT_GROUP = "pyiceberg_encryption.kms"  # of packages that bring a type of their own

BUILT_IN = {
    "aws": "pyiceberg_encryption.kms.aws.AwsKeyManagementClient",
    "azure": "pyiceberg_encryption.kms.azure.AzureKeyManagementClient",
    "gcp": "pyiceberg_encryption.kms.gcp.GcpKeyManagementClient",
    "local": "pyiceberg_encryption.kms.local.LocalKeyManagementClient",
    "memory": "pyiceberg_encryption.kms.memory.MemoryKeyManagementClient",
    "vault": "pyiceberg_encryption.kms.vault.VaultKeyManagementClient",
}
# What a program may pass on to another: how to reach the KMS, and no secret. Each is described in docs/kms.md.
_PUBLIC = frozenset(
    (
        *(KMS_TYPE, PY_KMS_IMPL, "kms.request-timeout", "kms.max-attempts", "kms.kek-cache-ttl"),
        *("kms.local.keystore", "kms.local.passphrase-file"),
        *("kms.endpoint", "kms.encryption-algorithm-spec", "kms.data-key-spec"),
        *("client.region", "client.profile-name", "client.role-arn", "client.role-session-name"),
        *("azure.keyvault.url", "azure.keyvault.key-wrap-algorithm", "adls.tenant-id", "adls.client-id"),
        *("kms.vault.address", "kms.vault.ca-file", "kms.vault.namespace", "kms.vault.mount"),
        *("kms.vault.data-key-bits", "kms.vault.allow-plain-http", "kms.vault.auth-mount", "kms.vault.token-file"),
        *("kms.vault.role-id", "kms.vault.secret-id-file"),
        *("kms.vault.kubernetes-role", "kms.vault.kubernetes-token-file"),
    )
)
REQUIRED_METHODS = ("wrap_key", "unwrap_key", "supports_key_generation", "generate_key", "close")


def public_properties(properties: Mapping[str, Any]) -> dict[str, str]:
    """Those of a KMS that are no secrets. What is not known here, as of a client of one's own, may be one."""
    return {name: str(value) for name, value in properties.items() if name in _PUBLIC}


def load_kms_client(properties: Mapping[str, str]) -> GuardedClient:
    """The client for `encryption.kms-type` or `py-kms-impl`, inside the guard that every client gets."""
    policy = RetryPolicy.from_properties(properties)
    client_class = _client_class(properties)
    try:
        return GuardedClient(client_class(properties), policy)
    except EncryptionError:
        raise
    except Exception as error:
        failure = described(error)
    raise ConfigurationError(f"{client_class.__name__} could not be made: {failure}")


def _client_class(properties: Mapping[str, str]) -> Any:
    kms_type, implementation = (str(properties.get(name) or "") for name in (KMS_TYPE, PY_KMS_IMPL))
    if kms_type and implementation:
        raise ConfigurationError(
            f"Both {KMS_TYPE} ({kms_type}) and {PY_KMS_IMPL} ({implementation}) are set; keep the one you mean"
        )
    if implementation:
        return _client_class_at(implementation, PY_KMS_IMPL)
    if not kms_type:
        java = f" ({JAVA_KMS_IMPL} names a Java class, and is not read here)" if JAVA_KMS_IMPL in properties else ""
        raise ConfigurationError(
            f"No KMS is configured for this catalog{java}: set {KMS_TYPE} to one of {', '.join(_known_types())}, or "
            f"{PY_KMS_IMPL} to a class of your own"
        )
    name = kms_type.lower()
    if name in BUILT_IN:
        return _client_class_at(BUILT_IN[name], KMS_TYPE)
    found = [point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name.lower() == name]
    if len(found) > 1:
        raise ConfigurationError(f"Several packages bring a KMS type '{name}'; uninstall all but one")
    if not found:
        raise ConfigurationError(f"Unknown {KMS_TYPE} '{kms_type}'. Known types: {', '.join(_known_types())}")
    return _client_class_at(found[0].value, KMS_TYPE)


def _known_types() -> list[str]:
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def _client_class_at(path: str, property_name: str) -> Any:
    found = import_class(path, property_name)
    missing = [method for method in REQUIRED_METHODS if not callable(getattr(found, method, None))]
    missing += getattr(found, "__abstractmethods__", ())
    if missing:
        raise ConfigurationError(f"{path} is not a KMS client: it has no {', '.join(missing)}")
    return found
