"""HashiCorp Vault and OpenBao, by their secrets engine `transit`. The wrapped form is its `vault:v1:…`, in UTF-8."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import os
import re
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

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
from pyiceberg_encryption.kms.client import KeyGenerationResult, KeyManagementClient
from pyiceberg_encryption.kms.guard import RetryPolicy

try:
    import hvac
    import requests
    from hvac.adapters import RawAdapter
except ImportError:
    raise ConfigurationError("Vault needs hvac: pip install hvac, or this package with its extra 'vault'") from None

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping

ADDRESS = "kms.vault.address"
ALLOW_PLAIN_HTTP = "kms.vault.allow-plain-http"
CA_FILE = "kms.vault.ca-file"
NAMESPACE = "kms.vault.namespace"
MOUNT = "kms.vault.mount"
MOUNT_DEFAULT = "transit"
DATA_KEY_BITS = "kms.vault.data-key-bits"
DATA_KEY_BITS_DEFAULT = "256"
ALLOWED_DATA_KEY_BITS = ("128", "256")

TOKEN = "kms.vault.token"
TOKEN_FILE = "kms.vault.token-file"
ROLE_ID = "kms.vault.role-id"
SECRET_ID = "kms.vault.secret-id"
SECRET_ID_FILE = "kms.vault.secret-id-file"
KUBERNETES_ROLE = "kms.vault.kubernetes-role"
KUBERNETES_TOKEN_FILE = "kms.vault.kubernetes-token-file"
KUBERNETES_TOKEN_FILE_DEFAULT = "/var/run/secrets/kubernetes.io/serviceaccount/token"
AUTH_MOUNT = "kms.vault.auth-mount"
WAYS_TO_AUTHENTICATE = (TOKEN, TOKEN_FILE, ROLE_ID, KUBERNETES_ROLE)

# What Vault's own clients read, where the property is not set
ENVIRONMENT = {ADDRESS: "VAULT_ADDR", CA_FILE: "VAULT_CACERT", NAMESPACE: "VAULT_NAMESPACE", TOKEN: "VAULT_TOKEN"}

KEY_NAME = re.compile(r"\w(([\w.-]+)?\w)?", re.ASCII)  # Vault: framework.GenericNameRegex
CIPHERTEXT = re.compile(r"vault:v[0-9]+:[A-Za-z0-9+/]+={0,2}", re.ASCII)

# With `encrypt`, Vault makes a key that it does not have, if the caller may do so. A mistyped name would make a new
# master key; a type that does not exist makes Vault refuse that. Where the key exists, the type is not looked at.
TYPE_OF_NO_KEY = "none-is-to-be-made"

NOT_WRAPPED_BY_IT = "the wrapped key is not one that this master key wrapped: the table's metadata was changed"
NO_SUCH_KEY = f"there is no such master key. Check its name, {MOUNT} and {NAMESPACE}"
TOO_OLD = "its min_decryption_version, or what was trimmed, forbids the version of the master key that wrapped this key"

# What Vault may say in an error, and what that means. Nothing else of its answers is quoted.
ERRORS: dict[str, tuple[type[EncryptionError], str]] = {
    "invalid ciphertext": (IntegrityError, NOT_WRAPPED_BY_IT),
    "message authentication failed": (IntegrityError, NOT_WRAPPED_BY_IT),
    "failed to RSA decrypt": (IntegrityError, NOT_WRAPPED_BY_IT),
    "encryption key not found": (KmsKeyError, NO_SUCH_KEY),
    f"unknown key type {TYPE_OF_NO_KEY}": (KmsKeyError, NO_SUCH_KEY),
    "version is disallowed by policy": (KmsKeyError, TOO_OLD),
    "no such key version": (KmsKeyError, TOO_OLD),
    "not supported for key type": (KmsKeyError, "the master key is of a type that does not encrypt; aes256-gcm96 does"),
    "missing 'context' for key derivation": (KmsKeyError, "the master key is a derived one; take one that is not"),
    "Vault is sealed": (KmsUnavailableError, "it has to be unsealed"),
}


class VaultKeyManagementClient(KeyManagementClient):
    _lock: threading.Lock

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        self._address = _address(_setting(properties, ADDRESS))
        if self._address.startswith("http:") and not _is_loopback(self._address) and not _allows_plain_http(properties):
            raise ConfigurationError(
                f"{ADDRESS} is {self._address}: keys and the token would travel in the clear. Use https, or set "
                f"{ALLOW_PLAIN_HTTP} to true where the network itself is encrypted"
            )
        self._ca_file = _setting(properties, CA_FILE)
        if self._ca_file and not Path(self._ca_file).exists():
            raise ConfigurationError(f"{CA_FILE} names {self._ca_file}, which does not exist")
        self._namespace = _setting(properties, NAMESPACE)
        self._mount = (properties.get(MOUNT) or MOUNT_DEFAULT).strip("/")
        bits = properties.get(DATA_KEY_BITS, DATA_KEY_BITS_DEFAULT)
        if bits not in ALLOWED_DATA_KEY_BITS:
            raise ConfigurationError(f"{DATA_KEY_BITS} is {bits!r}; it must be {' or '.join(ALLOWED_DATA_KEY_BITS)}")
        self._data_key_bits = int(bits)
        self._way = _way_to_authenticate(properties)
        self._timeout = RetryPolicy.from_properties(properties).request_timeout
        process.give_lock(self)
        self._closed = False
        self._token: str | None = None
        self._vault: hvac.Client | None = None
        self._vault_generation = process.generation()

    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        answer = self._call(
            wrapping_key_id,
            lambda transit: transit.encrypt_data(
                name=wrapping_key_id,
                plaintext=base64.b64encode(key).decode(),
                type=TYPE_OF_NO_KEY,
                mount_point=self._mount,
            ),
        )
        return _ciphertext(answer)

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        text = wrapped_key.decode("latin-1")
        if not CIPHERTEXT.fullmatch(text):
            raise IntegrityError(
                "the wrapped key is not a ciphertext of Vault's: another kind of KMS wrapped it (check "
                "encryption.kms-type), or the table's metadata was changed"
            )
        answer = self._call(
            wrapping_key_id,
            lambda transit: transit.decrypt_data(name=wrapping_key_id, ciphertext=text, mount_point=self._mount),
        )
        return _plaintext(answer)

    def supports_key_generation(self) -> bool:
        return True

    def generate_key(self, wrapping_key_id: str) -> KeyGenerationResult:
        answer = self._call(
            wrapping_key_id,
            lambda transit: transit.generate_data_key(
                name=wrapping_key_id, key_type="plaintext", bits=self._data_key_bits, mount_point=self._mount
            ),
        )
        return KeyGenerationResult(_plaintext(answer), _ciphertext(answer))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._token = None
            if self._vault is not None:
                self._vault.adapter.close()
                self._vault = None

    def _call(self, key_id: str, request: Callable[[Any], requests.Response]) -> dict[str, Any]:
        """What transit answers; with another token, if there is one, where Vault refuses the one that is in use."""
        if not KEY_NAME.fullmatch(key_id):
            raise KmsKeyError("no key of transit can have this name: it may hold letters, digits, '_', '-' and '.'")
        vault = self._client()
        response = _sent(lambda: request(vault.secrets.transit))
        if response.status_code == HTTPStatus.FORBIDDEN:
            renewed = self._client(refused=vault)
            if renewed is not vault:
                response = _sent(lambda: request(renewed.secrets.transit))
        if response.status_code != HTTPStatus.OK:
            raise self._translated(response)
        return _part(response, "data")

    def _client(self, refused: hvac.Client | None = None) -> hvac.Client:
        """The hvac client that is in use. Not the refused one, if another token can be had."""
        with self._lock:
            if self._closed:
                raise ClosedError("this KMS client is closed")
            token = self._token
            if token is None or (refused is not None and self._vault is refused):
                token = self._new_token()
            is_forked = self._vault_generation != process.generation()  # and would share its parent's connections
            if self._vault is None or is_forked or token != self._token:
                self._vault, self._token = self._connected(token), token
                self._vault_generation = process.generation()
            return self._vault

    def _connected(self, token: str) -> hvac.Client:
        session = requests.Session()
        session.trust_env = self._address.startswith("https:")  # a proxy would see what is sent by plain http
        session.verify = self._ca_file or True
        return hvac.Client(
            url=self._address,
            token=token,
            namespace=self._namespace,
            verify=session.verify,
            timeout=self._timeout,
            session=session,
            allow_redirects=False,  # which would show the token to another host
            adapter=RawAdapter,
            ignore_exceptions=True,  # hvac's lack the status
        )

    def _new_token(self) -> str:
        properties = self.properties
        if self._way == TOKEN_FILE:
            return _read(properties[TOKEN_FILE], TOKEN_FILE)
        if self._way == ROLE_ID:
            secret_id, secret_id_file = properties.get(SECRET_ID), properties.get(SECRET_ID_FILE)
            if secret_id_file:
                secret_id = _read(secret_id_file, SECRET_ID_FILE)
            mount = properties.get(AUTH_MOUNT, "approle")
            return self._log_in(
                lambda auth: auth.approle.login(properties[ROLE_ID], secret_id, use_token=False, mount_point=mount)
            )
        if self._way == KUBERNETES_ROLE:
            service_account = _read(
                properties.get(KUBERNETES_TOKEN_FILE, KUBERNETES_TOKEN_FILE_DEFAULT), KUBERNETES_TOKEN_FILE
            )
            role, mount = properties[KUBERNETES_ROLE], properties.get(AUTH_MOUNT, "kubernetes")
            return self._log_in(
                lambda auth: auth.kubernetes.login(role, service_account, use_token=False, mount_point=mount)
            )
        return _checked_token(_setting(properties, TOKEN) or "", TOKEN)

    def _log_in(self, request: Callable[[Any], requests.Response]) -> str:
        anonymous = self._connected("")
        response = _sent(lambda: request(anonymous.auth))
        anonymous.adapter.close()
        if response.status_code in (HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
            raise KmsAccessDeniedError(
                f"Vault does not let this caller log in with {self._way} (status {response.status_code}). Check it, "
                f"what goes with it, {AUTH_MOUNT} and {NAMESPACE}"
            )
        if response.status_code != HTTPStatus.OK:
            raise self._translated(response)
        token = _part(response, "auth").get("client_token")
        if not isinstance(token, str) or not _can_be_a_token(token):
            raise _no_answer_of_vault()
        return token

    def _translated(self, response: requests.Response) -> EncryptionError:
        status, said = response.status_code, _errors(response)
        for text, (kind, meaning) in ERRORS.items():
            if text in said:
                return kind(f"{meaning} (Vault: {text})")
        if status == HTTPStatus.FORBIDDEN:
            paths = ", ".join(f"{self._mount}/{name}/<key>" for name in ("encrypt", "decrypt", "datakey/plaintext"))
            return KmsAccessDeniedError(
                f"Vault refuses this token. It needs a policy with the capability 'update' on {paths}, the token must "
                "not have expired, and the master key must exist"
            )
        if status == HTTPStatus.NOT_FOUND:
            return KmsKeyError(f"Vault has no transit engine at {self._mount!r}. Check {MOUNT} and {NAMESPACE}")
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            return KmsThrottledError("Vault throttles this caller")
        if response.is_redirect:
            return KmsUnavailableError(
                f"Vault at {self._address} sends its callers elsewhere, as a standby does, and the token is not sent "
                f"there. Set {ADDRESS} to the active node, or to a load balancer before it"
            )
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.PRECONDITION_FAILED:
            return KmsUnavailableError(f"Vault is not available (status {status})")
        return KmsError(f"Vault answered with status {status}")


def _sent(request: Callable[[], requests.Response]) -> requests.Response:
    failure: EncryptionError
    try:
        return request()
    except EncryptionError:
        raise
    except requests.exceptions.SSLError:
        failure = KmsError(f"Vault's certificate is not one that is trusted here. Set {CA_FILE} to that of its issuer")
    except requests.exceptions.RequestException as error:  # not its text or itself, which hold the request and the key
        failure = KmsUnavailableError(f"Vault cannot be reached ({type(error).__name__}). Check {ADDRESS}")
    raise failure


def _errors(response: requests.Response) -> str:
    try:
        return " ".join(response.json()["errors"])
    except (ValueError, KeyError, TypeError):
        return ""


def _part(response: requests.Response, name: str) -> dict[str, Any]:
    try:
        part = response.json()[name]
    except (ValueError, KeyError, TypeError):
        part = None
    if not isinstance(part, dict):
        raise _no_answer_of_vault()
    return part


def _plaintext(answer: dict[str, Any]) -> bytes:
    try:
        return base64.b64decode(answer["plaintext"], validate=True)
    except (binascii.Error, KeyError, TypeError, ValueError):
        pass
    raise _no_answer_of_vault()


def _ciphertext(answer: dict[str, Any]) -> bytes:
    text = answer.get("ciphertext")
    if not isinstance(text, str) or not CIPHERTEXT.fullmatch(text):
        raise _no_answer_of_vault()
    return text.encode()


def _no_answer_of_vault() -> KmsError:
    return KmsError(f"the answer is not one of Vault's transit engine. Check {ADDRESS} and {MOUNT}")


def _setting(properties: Mapping[str, str], name: str) -> str | None:
    return properties.get(name) or os.environ.get(ENVIRONMENT[name]) or None


def _address(text: str | None) -> str:
    if not text:
        raise ConfigurationError(f"Set {ADDRESS}, or {ENVIRONMENT[ADDRESS]}, to the address of Vault")
    try:
        parts = urlsplit(text)
        is_usable = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        is_usable = False
    if not is_usable or parts.username is not None or parts.query or parts.fragment:
        raise ConfigurationError(f"{ADDRESS} must be like https://vault.example.com:8200")
    return parts.geturl().rstrip("/")  # with a scheme in small letters


def _is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _allows_plain_http(properties: Mapping[str, str]) -> bool:
    value = properties.get(ALLOW_PLAIN_HTTP, "false").lower()
    if value not in ("true", "false"):
        raise ConfigurationError(f"{ALLOW_PLAIN_HTTP} is {value!r}; it must be true or false")
    return value == "true"


def _way_to_authenticate(properties: Mapping[str, str]) -> str:
    """The property that says how the token is come by."""
    given = [name for name in WAYS_TO_AUTHENTICATE if properties.get(name)]
    if len(given) > 1:
        raise ConfigurationError(f"{' and '.join(given)} are set; keep one of them")
    if not given and not os.environ.get(ENVIRONMENT[TOKEN]):
        raise ConfigurationError(
            f"Vault needs to know who calls. Set one of {', '.join(WAYS_TO_AUTHENTICATE)}, or {ENVIRONMENT[TOKEN]}"
        )
    secret_ids = [name for name in (SECRET_ID, SECRET_ID_FILE) if properties.get(name)]
    if len(secret_ids) > 1 or (secret_ids and given != [ROLE_ID]):
        raise ConfigurationError(f"{' and '.join(secret_ids)} cannot stand like this: one of them goes with {ROLE_ID}")
    return given[0] if given else TOKEN


def _read(file: str, name: str) -> str:
    path = Path(file).expanduser()
    try:
        text = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{name} cannot be read: {path} ({type(error).__name__})") from None
    return _checked_token(text, f"the file of {name}")


def _checked_token(text: str, origin: str) -> str:
    if not _can_be_a_token(text):
        raise ConfigurationError(f"{origin} holds no token: that has printable ASCII characters only")
    return text


def _can_be_a_token(text: str) -> bool:
    """Whether it can stand in a header. If it cannot, the error of the HTTP library would quote it."""
    return text != "" and text.isascii() and text.isprintable()
