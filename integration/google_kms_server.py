"""Google Cloud KMS on the loopback interface, over HTTP and over gRPC, from the messages of Google's own SDK."""

from __future__ import annotations

import os
import threading
from concurrent import futures
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from json import dumps
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import grpc
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.cloud.kms_v1 import DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse
from google_crc32c import value as crc32c

from integration.internet import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from integration.internet import Internet

HOST = "cloudkms.googleapis.com"
TOKEN_HOST = "oauth2.googleapis.com"
TOKEN = "a token of Google's"
REFRESH_TOKEN = "what a token is given for"
HTTP_CODES = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
}


class Refusal(Exception):  # noqa: N818
    """With the name of a status; or with an HTTP code, as if something before the service had answered."""

    def __init__(self, status: str | int, message: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass
class Version:
    key: bytes = field(default_factory=lambda: os.urandom(32))
    state: str = "ENABLED"


class CloudKms:
    """Keys, and what the service does with them. The number of the version is the first byte of a ciphertext."""

    def __init__(self) -> None:
        self.keys: dict[str, list[Version]] = {}
        self.next_refusals: list[Refusal] = []
        self.next_token_codes: list[int] = []
        self.calls: list[str] = []
        self.lies: set[str] = set()  # fields of answers to get wrong
        self.damaged = b""  # a part of requests that does not arrive as it was sent

    def create_key(self, name: str) -> str:
        self.keys[name] = [Version()]
        return name

    def rotate(self, name: str) -> None:
        self.keys[name].append(Version())

    def encrypt(self, request: EncryptRequest) -> EncryptResponse:
        self._begin("encrypt", request.plaintext, request.plaintext_crc32c, "plaintext")
        versions = self._versions(request.name)
        number = len(versions)
        self._check_state(request.name, number)
        nonce = os.urandom(12)
        ciphertext = bytes([number]) + nonce + AESGCM(versions[-1].key).encrypt(nonce, request.plaintext, b"")
        return EncryptResponse(
            name=f"{request.name}/cryptoKeyVersions/{number}",
            ciphertext=ciphertext,
            ciphertext_crc32c=self._crc("ciphertext_crc32c", ciphertext),
            verified_plaintext_crc32c=(
                request.plaintext_crc32c is not None and "verified_plaintext_crc32c" not in self.lies
            ),
        )

    def decrypt(self, request: DecryptRequest) -> DecryptResponse:
        self._begin("decrypt", request.ciphertext, request.ciphertext_crc32c, "ciphertext")
        versions = self._versions(request.name)
        number = request.ciphertext[0] if request.ciphertext else 0
        if not 1 <= number <= len(versions):
            raise Refusal("INVALID_ARGUMENT", "Decryption failed: the ciphertext is invalid.")
        self._check_state(request.name, number)
        try:
            plaintext = AESGCM(versions[number - 1].key).decrypt(request.ciphertext[1:13], request.ciphertext[13:], b"")
        except InvalidTag:
            raise Refusal(
                "INVALID_ARGUMENT", "Decryption failed: verify that 'name' refers to the correct CryptoKey."
            ) from None
        return DecryptResponse(plaintext=plaintext, plaintext_crc32c=self._crc("plaintext_crc32c", plaintext))

    def _begin(self, method: str, data: bytes, checksum: int | None, what: str) -> None:
        self.calls.append(method)
        if self.next_refusals:
            raise self.next_refusals.pop(0)
        if self.damaged:
            data = data.replace(self.damaged, b"?" * len(self.damaged))
        if checksum is not None and checksum != crc32c(data):
            raise Refusal("INVALID_ARGUMENT", f"The checksum in field {what}_crc32c did not match the data.")

    def _versions(self, name: str) -> list[Version]:
        if name not in self.keys:
            raise Refusal("NOT_FOUND", f"CryptoKey {name} not found.")
        return self.keys[name]

    def _check_state(self, name: str, number: int) -> None:
        state = self.keys[name][number - 1].state
        if state != "ENABLED":
            version = f"{name}/cryptoKeyVersions/{number}"
            raise Refusal("FAILED_PRECONDITION", f"{version} is not enabled, current state is: {state}.")

    def _crc(self, name: str, data: bytes) -> int:
        return int(crc32c(data)) ^ (name in self.lies)


class Server:
    """Serves a CloudKms under Google's name, and under that of this machine."""

    def __init__(self, kms: CloudKms, internet: Internet) -> None:
        self._http = ThreadingHTTPServer((LOOPBACK, 0), _handler(kms))
        self._http.socket = internet.context(HOST, TOKEN_HOST, LOOPBACK).wrap_socket(
            self._http.socket, server_side=True, do_handshake_on_connect=False
        )
        self.address = f"{LOOPBACK}:{self._http.server_port}"
        internet.add(self._http.server_port, HOST, TOKEN_HOST)
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


def _handler(kms: CloudKms) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        timeout = 30

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            name, _, method = self.path.partition("?")[0].removeprefix("/v1/").rpartition(":")
            try:
                if self.headers["Host"] == TOKEN_HOST:
                    return self._answer(*_token(kms, body))
                if self.headers["Authorization"] != f"Bearer {TOKEN}":
                    raise Refusal("UNAUTHENTICATED", "Request had invalid authentication credentials.")
                if method == "encrypt":
                    encrypt = EncryptRequest.from_json(body)
                    encrypt.name = name
                    self._answer(200, EncryptResponse.to_json(kms.encrypt(encrypt)))
                else:
                    decrypt = DecryptRequest.from_json(body)
                    decrypt.name = name
                    self._answer(200, DecryptResponse.to_json(kms.decrypt(decrypt)))
            except Refusal as refusal:
                if isinstance(refusal.status, int):
                    return self._answer(refusal.status, f"<html>{refusal.message}</html>")
                code = HTTP_CODES[refusal.status]
                error = {"code": code, "message": refusal.message, "status": refusal.status}
                self._answer(code, dumps({"error": error}))
            return None

        def _answer(self, code: int, body: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    return Handler


def _token(kms: CloudKms, form: bytes) -> tuple[int, str]:
    kms.calls.append("token")
    if kms.next_token_codes:
        return kms.next_token_codes.pop(0), dumps({"error": "temporarily_unavailable"})
    if parse_qs(form.decode())["refresh_token"] != [REFRESH_TOKEN]:
        return 400, dumps({"error": "invalid_grant", "error_description": "Token has been expired or revoked."})
    return 200, dumps({"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"})


class GrpcServer:
    """The same service as Iceberg Java's client reaches it."""

    def __init__(self, kms: CloudKms, certificate: Path, key: Path) -> None:
        handlers = {
            "Encrypt": _method(kms.encrypt, EncryptRequest, EncryptResponse),
            "Decrypt": _method(kms.decrypt, DecryptRequest, DecryptResponse),
        }
        service = "google.cloud.kms.v1.KeyManagementService"
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
        self.port = self._server.add_secure_port(f"{LOOPBACK}:0", credentials)
        self._server.start()

    def close(self) -> None:
        self._server.stop(None).wait()


def _method(call: Callable[[Any], Any], request: Any, response: Any) -> Any:
    def answer(message: Any, context: Any) -> Any:
        if dict(context.invocation_metadata()).get("authorization") != f"Bearer {TOKEN}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "Request had invalid authentication credentials.")
        try:
            return call(message)
        except Refusal as refusal:
            context.abort(grpc.StatusCode[str(refusal.status)], refusal.message)

    return grpc.unary_unary_rpc_method_handler(answer, request.deserialize, response.serialize)
