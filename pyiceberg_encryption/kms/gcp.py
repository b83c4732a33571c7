"""Google Cloud KMS, wire-compatible with Iceberg Java's GcpKeyManagementClient.

Java's client speaks gRPC. This one has the same SDK speak HTTP, since gRPC's threads and connections do not survive a
fork. What a master key wraps is the same either way.
"""

from __future__ import annotations

import re
from datetime import datetime, timezone
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

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
from pyiceberg_encryption.kms.silence import calling, silence

try:
    import requests
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth import exceptions as auth_errors
    from google.cloud import kms_v1
    from google.oauth2.credentials import Credentials
    from google_crc32c import value as crc32c
except ImportError:
    raise ConfigurationError(
        "Google Cloud KMS needs google-cloud-kms and google-crc32c: pip install google-cloud-kms google-crc32c, or "
        "this package with its extra 'gcp'"
    ) from None

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

# Iceberg Java: GCPProperties
TOKEN = "gcs.oauth2.token"
TOKEN_EXPIRES_AT = "gcs.oauth2.token-expires-at"

ENDPOINT = "kms.endpoint"
ENDPOINT_FORM = re.compile(r"(?:https://)?((?:[0-9A-Za-z.-]+|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?)/?")
KEY_NAME = re.compile(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+")
INVALID_ARGUMENT = "INVALID_ARGUMENT"

# https://cloud.google.com/apis/design/errors#handling_errors
ERRORS: dict[type[EncryptionError], tuple[str, frozenset[str]]] = {
    KmsThrottledError: ("Google Cloud KMS throttles this project", frozenset({"RESOURCE_EXHAUSTED"})),
    KmsUnavailableError: (
        "Google Cloud KMS is not available",
        frozenset({"ABORTED", "CANCELLED", "DATA_LOSS", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "UNKNOWN"}),
    ),
    KmsAccessDeniedError: (
        "Google Cloud refuses these credentials. They need the role roles/cloudkms.cryptoKeyEncrypterDecrypter on the "
        "master key",
        frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED"}),
    ),
    KmsKeyError: (
        "the master key or the version of it that is needed does not exist, or is disabled or destroyed. Check the key "
        "id and the state of the key's versions",
        frozenset({"FAILED_PRECONDITION", "NOT_FOUND"}),
    ),
}
STATUSES: dict[int, str] = {  # of answers without one
    HTTPStatus.UNAUTHORIZED: "UNAUTHENTICATED",
    HTTPStatus.FORBIDDEN: "PERMISSION_DENIED",
    HTTPStatus.TOO_MANY_REQUESTS: "RESOURCE_EXHAUSTED",
}

silence(f"{kms_v1.__name__}.services.key_management_service.transports.rest")


class GcpKeyManagementClient(KeyManagementClient):
    _lock: threading.Lock

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        self._host = _host(properties)
        self._expiry = _expiry(properties)
        self._timeout = RetryPolicy.from_properties(properties).request_timeout
        process.give_lock(self)
        self._closed = False
        self._kms: Any = None
        self._kms_generation = process.generation()

    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        request = kms_v1.EncryptRequest(name=_key_name(wrapping_key_id), plaintext=key, plaintext_crc32c=crc32c(key))
        answer = self._call("encrypt", request)
        wrapped_key = bytes(answer.ciphertext)
        if not answer.verified_plaintext_crc32c or answer.ciphertext_crc32c != crc32c(wrapped_key):
            raise _damaged()
        return wrapped_key

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        request = kms_v1.DecryptRequest(
            name=_key_name(wrapping_key_id), ciphertext=wrapped_key, ciphertext_crc32c=crc32c(wrapped_key)
        )
        answer = self._call("decrypt", request)
        key = bytes(answer.plaintext)
        if answer.plaintext_crc32c != crc32c(key):
            raise _damaged()
        return key

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._kms is not None:
                self._kms.transport.close()
                self._kms = None

    def _call(self, method: str, request: Any) -> Any:
        failure: EncryptionError
        try:
            # The guard around every client retries; the SDK would multiply that.
            with calling():
                return getattr(self._client(), method)(request=request, retry=None, timeout=self._timeout)
        except EncryptionError:
            raise
        except GoogleAPICallError as error:
            failure = _translated(error, method)
        except auth_errors.DefaultCredentialsError:
            failure = KmsAccessDeniedError(
                f"no Google credentials were found. Set {TOKEN}, or what the SDK reads from the environment, such as "
                "GOOGLE_APPLICATION_CREDENTIALS"
            )
        except (auth_errors.TransportError, requests.RequestException) as error:
            failure = KmsUnavailableError(
                f"Google Cloud KMS or the source of its credentials cannot be reached ({type(error).__name__}). Check "
                f"the network and {ENDPOINT}"
            )
        except auth_errors.GoogleAuthError as error:
            failure = KmsAccessDeniedError(
                f"the Google credentials do not work, or no longer ({type(error).__name__}). Renew {TOKEN}, or what "
                "the SDK reads from the environment"
            )
        raise failure

    def _client(self) -> Any:
        with self._lock:
            if self._closed:
                raise ClosedError("this KMS client is closed")
            if self._kms is None or self._kms_generation != process.generation():  # a fork would share its connections
                token = self.properties.get(TOKEN)
                self._kms = kms_v1.KeyManagementServiceClient(
                    credentials=Credentials(token, expiry=self._expiry) if token else None,  # type: ignore[no-untyped-call]
                    transport="rest",
                    client_options={"api_endpoint": self._host} if self._host else None,
                )
                self._kms_generation = process.generation()
            return self._kms


def _translated(error: GoogleAPICallError, method: str) -> EncryptionError:
    status, message = _status(error)
    if status == INVALID_ARGUMENT:  # its text may quote what was sent
        if "crc32c" in message:
            return _damaged()
        if method == "decrypt":
            return IntegrityError(
                "the wrapped key is not one that this master key wrapped: the table's metadata was changed, or names "
                f"another key ({status})"
            )
        return KmsKeyError(f"the master key is not one for symmetric encryption. Check its purpose ({status})")
    for kind, (advice, statuses) in ERRORS.items():
        if status in statuses:
            return kind(f"{advice} ({status}: {message})")
    return KmsError(f"Google Cloud KMS answered {status}")


def _status(error: GoogleAPICallError) -> tuple[str, str]:
    """The status that the service gave, and its text; a guess if something else answered, such as a proxy."""
    try:
        details = error.response.json()["error"]
        return str(details["status"]), str(details.get("message", ""))
    except (AttributeError, KeyError, TypeError, ValueError):
        code = int(error.code or 0)
        unknown = "UNAVAILABLE" if code >= HTTPStatus.INTERNAL_SERVER_ERROR else f"HTTP {code}"
        return STATUSES.get(code, unknown), f"HTTP {code}"


def _damaged() -> KmsUnavailableError:
    """Worth another try: nothing is wrong with the table or the master key."""
    return KmsUnavailableError("a key was damaged on its way to Google Cloud KMS or back (CRC32C)")


def _key_name(key_id: str) -> str:
    """A version in the name would wrap what cannot be unwrapped: the service finds the version itself."""
    if not isinstance(key_id, str) or not KEY_NAME.fullmatch(key_id):
        raise KmsKeyError(
            "the key id is not the name of a key of Google Cloud KMS. Write it as "
            "projects/…/locations/…/keyRings/…/cryptoKeys/…, without a version"
        )
    return key_id


def _host(properties: Mapping[str, str]) -> str | None:
    """Of another endpoint. There is no plain HTTP: it would show keys."""
    endpoint = properties.get(ENDPOINT)
    if not endpoint:
        return None
    found = ENDPOINT_FORM.fullmatch(endpoint)
    if not found:
        raise ConfigurationError(f"Property {ENDPOINT} is '{endpoint}'; write it as https://host or https://host:port")
    return found[1]


def _expiry(properties: Mapping[str, str]) -> datetime | None:
    """As the SDK wants it: in UTC, and without saying so."""
    if TOKEN_EXPIRES_AT not in properties:
        return None
    try:
        return datetime.fromtimestamp(int(properties[TOKEN_EXPIRES_AT]) / 1000, timezone.utc).replace(tzinfo=None)
    except (TypeError, ValueError, OverflowError, OSError):
        raise ConfigurationError(
            f"Property {TOKEN_EXPIRES_AT} is not a time in milliseconds since 1970: {properties[TOKEN_EXPIRES_AT]!r}"
        ) from None
