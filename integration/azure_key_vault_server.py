"""Azure Key Vault and the part of Microsoft Entra ID that gives out tokens, on the loopback interface."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from integration.internet import LOOPBACK

if TYPE_CHECKING:
    from integration.internet import Internet

VAULT = "orders.vault.azure.net"
ENTRA = "login.microsoftonline.com"
TENANT = "00000000-0000-0000-0000-000000000001"
CLIENT = "00000000-0000-0000-0000-000000000002"
CLIENT_SECRET = "a secret of Entra's"
TOKEN = "a-token-of-Entras"
PAGE = 25  # versions that one answer lists at most


class Refusal(Exception):  # noqa: N818
    def __init__(self, status: int, code: str, message: str = "", inner: str = "", **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"code": code, "message": message}
        if inner:
            self.body["innererror"] = {"code": inner}
        self.headers = headers


@dataclass
class Version:
    key: rsa.RSAPrivateKey | bytes
    created: int
    name: str = field(default_factory=lambda: os.urandom(16).hex())
    enabled: bool = True


class KeyVault:
    """Keys, and what the service does with them. It looks at the version that it is asked for, and at no other."""

    def __init__(self) -> None:
        self.keys: dict[str, list[Version]] = {}
        self.next_refusals: list[Refusal] = []
        self.next_entra_codes: list[int] = []
        self.calls: list[str] = []
        self.challenged_resource = "https://vault.azure.net"

    def create_key(self, name: str, *, symmetric: bool = False) -> str:
        self.keys[name] = []
        self.rotate(name, symmetric=symmetric)
        return name

    def rotate(self, name: str, *, symmetric: bool = False) -> str:
        key = os.urandom(32) if symmetric else rsa.generate_private_key(65537, 2048)
        self.keys[name].append(Version(key, int(time.time()) - 1000 + len(self.keys[name])))
        return self.keys[name][-1].name

    def answer(self, path: list[str], body: dict[str, Any], start: int) -> dict[str, Any]:
        """What `/keys/…` answers."""
        _, name, *rest = path
        versions = self.keys.get(name, [])
        self.calls.append("/".join(rest))
        if self.next_refusals:
            raise self.next_refusals.pop(0)
        if rest == ["versions"]:
            return self._list(name, versions, start)
        operation = rest.pop() if rest and rest[-1] in ("wrapkey", "unwrapkey") else "get"
        wanted = rest[0] if rest else ""
        found = [version for version in versions if version.name == wanted or not wanted]
        if not found:
            raise Refusal(404, "KeyNotFound", f"A key with (name/id) {name}/{wanted} was not found in this key vault.")
        version = found[-1]
        kid = f"https://{VAULT}/keys/{name}/{version.name}"
        if operation == "get":
            return {"key": {"kid": kid, **_jwk(version.key)}, "attributes": _attributes(version)}
        if operation == "unwrapkey" and not version.enabled:
            raise Refusal(403, "Forbidden", "Operation unwrapKey is not allowed on a disabled key.", "KeyDisabled")
        value = _operate(operation, version.key, body["alg"], _decoded(body["value"]))
        return {"kid": kid, "value": _encoded(value)}

    def _list(self, name: str, versions: list[Version], start: int) -> dict[str, Any]:
        page = sorted(versions, key=lambda version: version.name)[start : start + PAGE]
        more = start + PAGE < len(versions)
        return {
            "value": [
                {"kid": f"https://{VAULT}/keys/{name}/{version.name}", "attributes": _attributes(version)}
                for version in page
            ],
            "nextLink": f"https://{VAULT}/keys/{name}/versions?api-version=7.4&$skiptoken={start + PAGE}"
            if more
            else None,
        }


def _operate(operation: str, key: rsa.RSAPrivateKey | bytes, algorithm: str, value: bytes) -> bytes:
    if isinstance(key, bytes) != (algorithm == "A256KW"):
        raise Refusal(400, "BadParameter", f"Key and algorithm do not fit: {_encoded(value)}")
    try:
        if isinstance(key, bytes):
            return aes_key_wrap(key, value) if operation == "wrapkey" else aes_key_unwrap(key, value)
        digest = hashes.SHA256() if algorithm == "RSA-OAEP-256" else hashes.SHA1()
        oaep = padding.OAEP(padding.MGF1(digest), digest, None)
        return key.public_key().encrypt(value, oaep) if operation == "wrapkey" else key.decrypt(value, oaep)
    except (ValueError, InvalidUnwrap):
        raise Refusal(400, "BadParameter", "Error occurred while decoding OAEP padding.") from None


class Server:
    """Serves a KeyVault, and Entra, under Microsoft's names."""

    def __init__(self, vault: KeyVault, internet: Internet) -> None:
        self._http = ThreadingHTTPServer((LOOPBACK, 0), _handler(vault))
        self._http.socket = internet.context(VAULT, ENTRA).wrap_socket(
            self._http.socket, server_side=True, do_handshake_on_connect=False
        )
        internet.add(self._http.server_port, VAULT, ENTRA)
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def _handler(vault: KeyVault) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        timeout = 30

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            try:
                if self.headers["Host"] == ENTRA:
                    self._answer(*_entra(vault, self.path, body))
                else:
                    self._answer(200, self._vault(body))
            except Refusal as refusal:
                self._answer(refusal.status, {"error": refusal.body}, refusal.headers)

        def _vault(self, body: bytes) -> dict[str, Any]:
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                challenge = f'Bearer authorization="https://{ENTRA}/{TENANT}", resource="{vault.challenged_resource}"'
                raise Refusal(
                    401,
                    "Unauthorized",
                    "AKV10000: Request is missing a Bearer or PoP token.",
                    **{"WWW-Authenticate": challenge},
                )
            url = urlsplit(self.path)
            start = int(parse_qs(url.query).get("$skiptoken", ["0"])[0])
            return vault.answer(url.path.strip("/").split("/"), json.loads(body or b"{}"), start)

        def _answer(self, status: int, answer: dict[str, Any], headers: dict[str, str] | None = None) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    return Handler


def _entra(vault: KeyVault, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    if not path.endswith("/token"):
        base = f"https://{ENTRA}/{TENANT}"
        return 200, {
            "issuer": f"{base}/v2.0",
            "authorization_endpoint": f"{base}/oauth2/v2.0/authorize",
            "token_endpoint": f"{base}/oauth2/v2.0/token",
            "tenant_discovery_endpoint": f"{base}/v2.0/.well-known/openid-configuration",
            "metadata": [],
        }
    vault.calls.append("token")
    if vault.next_entra_codes:
        return vault.next_entra_codes.pop(0), {"error": "temporarily_unavailable"}
    form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
    if form["client_secret"] != CLIENT_SECRET or form["scope"] != "https://vault.azure.net/.default":
        description = "AADSTS7000215: Invalid client secret provided."
        return 401, {"error": "invalid_client", "error_description": description}
    return 200, {"token_type": "Bearer", "expires_in": 3600, "access_token": TOKEN}


def _attributes(version: Version) -> dict[str, Any]:
    return {"enabled": version.enabled, "created": version.created, "updated": version.created}


def _jwk(key: rsa.RSAPrivateKey | bytes) -> dict[str, Any]:
    assert not isinstance(key, bytes)
    numbers = key.public_key().public_numbers()
    return {
        "kty": "RSA",
        "key_ops": ["encrypt", "decrypt", "sign", "verify", "wrapKey", "unwrapKey"],
        "n": _encoded(numbers.n.to_bytes(256, "big")),
        "e": _encoded(numbers.e.to_bytes(3, "big")),
    }


def _encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
