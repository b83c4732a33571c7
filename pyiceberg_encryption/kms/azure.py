"""Azure Key Vault, wire-compatible with Iceberg Java's AzureKeyManagementClient.

Java's SDK may wrap with the public key, on its own machine; here Key Vault itself wraps, so that it checks who does.
The wrapped form is the same. It does not say which version of the master key wrapped it, and Key Vault does not search.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections import defaultdict
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from pyiceberg_encryption import process
from pyiceberg_encryption.errors import (
    ClosedError,
    ConfigurationError,
    EncryptionError,
    IntegrityError,
    KmsAccessDeniedError,
    KmsError,
    KmsKeyError,
    KmsThrottledError,
    KmsUnavailableError,
)
from pyiceberg_encryption.kms.client import KeyManagementClient
from pyiceberg_encryption.kms.guard import RetryPolicy

try:
    from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError, ServiceResponseError
    from azure.core.rest import HttpRequest
    from azure.identity import ClientSecretCredential, DefaultAzureCredential
    from azure.keyvault.keys import KeyClient
except ImportError:
    raise ConfigurationError(
        "Azure Key Vault needs azure-identity and azure-keyvault-keys: pip install azure-identity azure-keyvault-keys, "
        "or this package with its extra 'azure'"
    ) from None

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Mapping

# Iceberg Java: AzureProperties
VAULT_URL = "azure.keyvault.url"
KEY_WRAP_ALGORITHM = "azure.keyvault.key-wrap-algorithm"
KEY_WRAP_ALGORITHM_DEFAULT = "RSA-OAEP-256"
# Not RSA1_5: with it, a version that did not wrap a key may unwrap it to something else.
KEY_WRAP_ALGORITHMS = (KEY_WRAP_ALGORITHM_DEFAULT, "RSA-OAEP", "A128KW", "A192KW", "A256KW")

# PyIceberg: pyiceberg.io
TENANT_ID = "adls.tenant-id"
CLIENT_ID = "adls.client-id"
CLIENT_SECRET = "adls.client-secret"

VAULT_URL_FORM = re.compile(r"https://[^/?#@\\\s]+/?")
KEY_ID = re.compile(r"([0-9A-Za-z-]{1,127})(?:/([0-9A-Za-z]+))?")
# azure-identity calls it a failed authentication, too, when nothing answered, and often only its text shows that.
OUTAGE = re.compile(r"HTTP Error: 5\d\d|Connection aborted|HTTPSConnection|timed out")
CURRENT = ""  # version of a key
MOST_VERSIONS = 50  # tried for one key; a round trip each


class _Version(NamedTuple):
    name: str
    enabled: bool
    created: int


class AzureKeyManagementClient(KeyManagementClient):
    _lock: threading.Lock

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        self._vault_url = _vault_url(properties)
        self._algorithm = properties.get(KEY_WRAP_ALGORITHM, KEY_WRAP_ALGORITHM_DEFAULT)
        if self._algorithm not in KEY_WRAP_ALGORITHMS:
            raise ConfigurationError(
                f"Property {KEY_WRAP_ALGORITHM} is '{self._algorithm}'; it must be one of "
                f"{', '.join(KEY_WRAP_ALGORITHMS)}"
            )
        if CLIENT_SECRET in properties and not (TENANT_ID in properties and CLIENT_ID in properties):
            raise ConfigurationError(f"{CLIENT_SECRET} needs {TENANT_ID} and {CLIENT_ID} beside it")
        timeout = RetryPolicy.from_properties(properties).request_timeout
        # The guard around every client retries; the SDK would multiply that.
        self._options: dict[str, Any] = {"connection_timeout": timeout, "read_timeout": timeout, "retry_total": 0}
        process.give_lock(self)
        self._closed = False
        self._keys: KeyClient | None = None
        self._credential: ClientSecretCredential | DefaultAzureCredential | None = None
        self._keys_generation = process.generation()
        self._versions_that_unwrapped: dict[str, list[str]] = defaultdict(list)  # by key name, the latest first

    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        name, version = _name_and_version(wrapping_key_id)
        return self._operate("wrapkey", name, version, key)[0]

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        """Under which version of the master key it was wrapped shows in that this version unwraps it."""
        name, version = _name_and_version(wrapping_key_id)
        if version:
            return self._operate("unwrapkey", name, version, wrapped_key)[0]
        refusal: EncryptionError = IntegrityError(
            "no version of the master key unwraps this key: the table's metadata was changed, a version was deleted, "
            f"or {KEY_WRAP_ALGORITHM} is not what it was wrapped with"
        )
        for candidate in self._versions_to_try(name):
            try:
                key, version = self._operate("unwrapkey", name, candidate, wrapped_key)
            except IntegrityError:
                continue
            except _KeyNotFoundError:
                if candidate == CURRENT:
                    raise
            except _KeyNotUsableError as error:
                refusal = error
            else:
                self._remember(name, version)
                return key
        raise refusal

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._keys is not None and self._credential is not None:
                self._keys.close()
                self._credential.close()
                self._keys = self._credential = None

    def _versions_to_try(self, name: str) -> Iterator[str]:
        """Those that unwrapped before, the current one, and then all others, the newest first."""
        with self._lock:
            remembered = list(self._versions_that_unwrapped[name])
        yield from remembered
        yield CURRENT
        listed = sorted(self._listed(name), key=lambda version: version.created, reverse=True)
        enabled = [version.name for version in listed if version.enabled and version.name not in remembered]
        yield from enabled[:MOST_VERSIONS]
        if len(enabled) > MOST_VERSIONS:
            raise KmsKeyError(
                f"none of the newest {MOST_VERSIONS} versions of the master key unwraps this key. If an older one "
                "wrapped it, name that one in the key id: name/version"
            )
        disabled = [version.name for version in listed if not version.enabled]
        if disabled:
            raise KmsKeyError(
                "no enabled version of the master key unwraps this key. If a disabled one wrapped it "
                f"({', '.join(disabled)}), enable that one; otherwise the table's metadata was changed"
            )

    def _remember(self, name: str, version: str) -> None:
        with self._lock:
            versions = self._versions_that_unwrapped[name]
            if version in versions:
                versions.remove(version)
            versions.insert(0, version)

    def _listed(self, name: str) -> list[_Version]:
        versions: list[_Version] = []
        url = f"/keys/{name}/versions"
        while url:
            page = self._send(HttpRequest("GET", url), "list")
            with _understood():
                for item in page["value"]:
                    enabled, created = item["attributes"]["enabled"], item["attributes"]["created"]
                    versions.append(_Version(_version(item["kid"]), bool(enabled), int(created)))
                url = page.get("nextLink")
        return versions

    def _operate(self, operation: str, name: str, version: str, value: bytes) -> tuple[bytes, str]:
        """What Key Vault made of the value, and with which version of the key."""
        path = "/".join(["/keys", name, *([] if version == CURRENT else [version]), operation])
        body = {"alg": self._algorithm, "value": _encoded(value)}
        answer = self._send(HttpRequest("POST", path, json=body), operation)
        with _understood():
            return _decoded(answer["value"]), _version(answer["kid"])

    def _send(self, request: HttpRequest, operation: str) -> Any:
        failure: EncryptionError
        try:
            response = self._client().send_request(request)
            if response.status_code == HTTPStatus.OK:
                return response.json()
            failure = _failure(response, operation)
        except EncryptionError:
            raise
        except ClientAuthenticationError as error:
            failure = _unreachable(error) if OUTAGE.search(str(error)) else _no_token(error)
        except (ServiceRequestError, ServiceResponseError) as error:
            failure = _unreachable(error)
        except ValueError:
            failure = ConfigurationError(
                f"what answers at {VAULT_URL} is not Azure Key Vault, or the SDK of Azure does not take a value of "
                f"{VAULT_URL}, {TENANT_ID} or {CLIENT_ID}"
            )
        raise failure

    def _client(self) -> KeyClient:
        with self._lock:
            if self._closed:
                raise ClosedError("this KMS client is closed")
            if self._keys is None or self._keys_generation != process.generation():
                # a fork would share its connections
                self._credential = self._new_credential()
                self._keys = KeyClient(self._vault_url, self._credential, **self._options)
                self._keys_generation = process.generation()
            return self._keys

    def _new_credential(self) -> ClientSecretCredential | DefaultAzureCredential:
        if CLIENT_SECRET not in self.properties:
            return DefaultAzureCredential(**self._options)
        tenant, client, secret = (self.properties[name] for name in (TENANT_ID, CLIENT_ID, CLIENT_SECRET))
        return ClientSecretCredential(tenant, client, secret, **self._options)


class _KeyNotFoundError(KmsKeyError): ...


class _KeyNotUsableError(KmsKeyError): ...


def _failure(response: Any, operation: str) -> EncryptionError:
    """See https://learn.microsoft.com/azure/key-vault/general/rest-error-codes."""
    status, code, inner, message = _details(response)
    said = f"({status} {inner or code}: {message})" if message else f"({status} {inner or code})"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return KmsThrottledError(f"Azure Key Vault throttles this caller {said}")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.REQUEST_TIMEOUT:
        return KmsUnavailableError(f"Azure Key Vault is not available {said}")
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
        return _KeyNotFoundError(
            f"the master key or this version of it is not in the key vault, or is deleted. Check the key id and "
            f"{VAULT_URL} {said}"
        )
    if status == HTTPStatus.FORBIDDEN and inner.startswith("Key"):  # KeyDisabled, KeyOperationForbidden, …
        return _KeyNotUsableError(f"the master key cannot be used: it is disabled, or not for wrapping keys {said}")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return KmsAccessDeniedError(
            "Azure refuses these credentials. They need the key permissions wrapKey, unwrapKey and list, as in the "
            f"role Key Vault Crypto Service Encryption User {said}"
        )
    if status == HTTPStatus.BAD_REQUEST:  # its text may quote what was sent
        if operation == "unwrapkey":
            return IntegrityError(
                "the wrapped key is not one that this version of the master key wrapped: the table's metadata was "
                f"changed, or {KEY_WRAP_ALGORITHM} is not what it was wrapped with ({status} {code})"
            )
        return KmsKeyError(
            f"the master key does not wrap by {KEY_WRAP_ALGORITHM}. Check that property and the key's type "
            f"({status} {code})"
        )
    return KmsError(f"Azure Key Vault answered {status} {code}")


def _details(response: Any) -> tuple[int, str, str, str]:
    """The status, Key Vault's codes for it, and its text; those are empty if something else answered."""
    try:
        error = response.json()["error"]
        inner = error.get("innererror") or error.get("innerError") or {}
        return (
            response.status_code,
            str(error.get("code", "")),
            str(inner.get("code", "")),
            str(error.get("message", "")),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return response.status_code, "", "", ""


def _unreachable(error: Exception) -> KmsUnavailableError:
    return KmsUnavailableError(
        f"Azure Key Vault or Microsoft Entra ID cannot be reached ({type(error).__name__}). Check the network and "
        f"{VAULT_URL}"
    )


def _no_token(error: ClientAuthenticationError) -> KmsAccessDeniedError:
    code = re.search(r"AADSTS\d+", str(error))
    return KmsAccessDeniedError(
        "there are no Azure credentials, or Microsoft Entra ID refuses them "
        f"({code[0] if code else type(error).__name__}). Check {TENANT_ID}, {CLIENT_ID} and {CLIENT_SECRET}, or what "
        "azure-identity reads from the environment"
    )


def _name_and_version(key_id: str) -> tuple[str, str]:
    found = KEY_ID.fullmatch(key_id) if isinstance(key_id, str) else None
    if not found:
        raise KmsKeyError(
            f"the key id is not the name of a key in a key vault. Write it as name or name/version, without {VAULT_URL}"
        )
    return found[1], found[2] or CURRENT


def _vault_url(properties: Mapping[str, str]) -> str:
    url = properties.get(VAULT_URL) or ""
    if not VAULT_URL_FORM.fullmatch(url):
        raise ConfigurationError(
            f"Set {VAULT_URL} to the vault's address, such as https://name.vault.azure.net: {url!r}"
        )
    return url


def _version(kid: str) -> str:
    """Of https://name.vault.azure.net/keys/name/version."""
    return kid.rpartition("/")[2]


@contextlib.contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError):
        raise KmsError(f"what answers at {VAULT_URL} does not speak as Key Vault does. Check that property") from None


def _encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.b64decode(text.translate({ord("-"): "+", ord("_"): "/"}) + "=" * (-len(text) % 4), validate=True)
