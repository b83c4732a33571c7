"""Cloud services on the loopback interface, under their own names.

A proxy takes the place of the internet: whoever asks it for a host that is served here reaches the server here, over
TLS and with a certificate for that host. So clients run as they do in the cloud, and need no other addresses.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes

LOOPBACK = "127.0.0.1"


class Internet:
    """Where hosts are found, and which certificates are trusted."""

    def __init__(self, folder: Path) -> None:
        self._ports: dict[str, int] = {}
        self._authority = Authority(folder)
        self.trusted = self._authority.certificate
        self._listening = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listening.getsockname()[1]
        self.proxy = f"http://{LOOPBACK}:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def environment(self) -> dict[str, str]:
        """Variables that make `requests` use this internet."""
        return {"HTTPS_PROXY": self.proxy, "https_proxy": self.proxy, "REQUESTS_CA_BUNDLE": str(self.trusted)}

    def add(self, port: int, *hosts: str) -> None:
        self._ports |= dict.fromkeys(hosts, port)

    def credentials(self, *hosts: str) -> tuple[Path, Path]:
        """A certificate for these hosts, and its key."""
        return self._authority.issue(*hosts)

    def context(self, *hosts: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.credentials(*hosts))
        return context

    def java_trust_store(self) -> Path:
        """Its password is `password`: Java insists on one."""
        return self._authority.java_trust_store()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._tunnel, args=(connection,), daemon=True).start()

    def _tunnel(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request:
                received = near.recv(4096)
                if not received:
                    return
                request += received
            method, target, _ = request.split(b"\r\n")[0].decode().split(" ")
            port = self._ports.get(target.rpartition(":")[0])
            if method != "CONNECT" or port is None:
                near.sendall(b"HTTP/1.1 502 No such host here\r\nContent-Length: 0\r\n\r\n")
                return
            with socket.create_connection((LOOPBACK, port)) as far:
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                near.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                back = threading.Thread(target=_pass_on, args=(far, near), daemon=True)
                back.start()
                _pass_on(near, far)
                back.join()


class Authority:
    """Issues certificates that hold for a day."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Authority of these tests")])
        self.certificate = folder / "authority.pem"
        builder = self._builder(self._name, self._key.public_key(), ca=True)
        self._own = builder.sign(self._key, hashes.SHA256())
        self.certificate.write_bytes(self._own.public_bytes(serialization.Encoding.PEM))

    def issue(self, *hosts: str) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
        names = [
            x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host) for host in hosts
        ]
        builder = (
            self._builder(name, key.public_key(), ca=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        )
        certificate, key_file = self._folder / f"{hosts[0]}.pem", self._folder / f"{hosts[0]}.key"
        certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, key_file

    def java_trust_store(self) -> Path:
        path = self._folder / "authority.p12"
        trusted = pkcs12.PKCS12Certificate(self._own, b"authority")
        path.write_bytes(
            pkcs12.serialize_java_truststore([trusted], serialization.BestAvailableEncryption(b"password"))
        )
        return path

    def _builder(self, name: x509.Name, public_key: CertificatePublicKeyTypes, *, ca: bool) -> x509.CertificateBuilder:
        """With all that Python 3.13 wants to see in a certificate."""
        now = datetime.datetime.now(datetime.timezone.utc)
        own = self._key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=not ca,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    key_cert_sign=ca,
                    crl_sign=ca,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own), critical=False)
        )


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
