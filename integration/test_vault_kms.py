"""The Vault client against HashiCorp's own server, and over the wire against what a server can do wrong."""

from __future__ import annotations

import base64
import json
import secrets
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from integration import servers
from integration.relay import Answer, Relay
from pyiceberg_encryption import KekCache, Keyring, Secret, load_kms_client
from pyiceberg_encryption.errors import (
    ClosedError,
    IntegrityError,
    KmsAccessDeniedError,
    KmsError,
    KmsKeyError,
    KmsThrottledError,
    KmsUnavailableError,
)
from pyiceberg_encryption.kms.vault import ENVIRONMENT, VaultKeyManagementClient

if TYPE_CHECKING:
    from pathlib import Path

    from integration.vault import Vault

KEY = bytes(range(16))
pytestmark = pytest.mark.timeout(1800)  # Vault may have to be built
POLICY = """
path "{mount}/encrypt/{key}" {{ capabilities = ["update"] }}
path "{mount}/decrypt/{key}" {{ capabilities = ["update"] }}
path "{mount}/datakey/plaintext/{key}" {{ capabilities = ["update"] }}
"""


@pytest.fixture(autouse=True)
def no_vault_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the properties configures the client."""
    for name in ENVIRONMENT.values():
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def admin(vault: Vault) -> Any:
    return vault.admin()


@pytest.fixture(scope="module")
def mount(admin: Any) -> str:
    path = f"transit-{secrets.token_hex(4)}"
    admin.sys.enable_secrets_engine("transit", path=path)
    return path


@pytest.fixture
def properties(vault: Vault, mount: str) -> dict[str, str]:
    return {
        "encryption.kms-type": "vault",
        "kms.vault.address": vault.address,
        "kms.vault.token": vault.root_token,
        "kms.vault.mount": mount,
        "kms.max-attempts": "1",
    }


@pytest.fixture
def anonymous(properties: dict[str, str]) -> dict[str, str]:
    """The properties without those that say who calls."""
    return {name: value for name, value in properties.items() if name != "kms.vault.token"}


@pytest.fixture
def key(admin: Any, mount: str) -> str:
    name = f"orders-{secrets.token_hex(4)}"
    admin.secrets.transit.create_key(name, mount_point=mount)
    return name


@pytest.fixture
def policy(admin: Any, mount: str, key: str) -> str:
    """That of docs/kms.md."""
    admin.sys.create_or_update_policy(key, POLICY.format(mount=mount, key=key))
    return key


def test_wraps_and_unwraps(properties: dict[str, str], key: str) -> None:
    kms = load_kms_client(properties)
    for length in (16, 24, 32):
        wrapped = kms.wrap_key(Secret(bytes(length)), key)
        assert wrapped.startswith(b"vault:v1:")
        assert kms.unwrap_key(wrapped, key) == Secret(bytes(length))
    kms.close()


def test_hvac_reads_what_was_wrapped(properties: dict[str, str], key: str, admin: Any, mount: str) -> None:
    wrapped = load_kms_client(properties).wrap_key(Secret(KEY), key).decode()
    answer = admin.secrets.transit.decrypt_data(key, ciphertext=wrapped, mount_point=mount)
    assert base64.b64decode(answer["data"]["plaintext"]) == KEY


@pytest.mark.parametrize(("bits", "length"), [(None, 32), ("256", 32), ("128", 16)])
def test_generates_keys(properties: dict[str, str], key: str, bits: str | None, length: int) -> None:
    kms = load_kms_client({**properties, **({"kms.vault.data-key-bits": bits} if bits else {})})
    generated = kms.generate_key(key)
    assert generated is not None
    made, wrapped = generated
    assert len(made) == length
    assert kms.unwrap_key(wrapped, key) == made


@pytest.mark.parametrize("kind", ["chacha20-poly1305", "rsa-2048"])
def test_other_types_of_keys(properties: dict[str, str], admin: Any, mount: str, kind: str) -> None:
    admin.secrets.transit.create_key(kind, key_type=kind, mount_point=mount)
    kms = load_kms_client(properties)
    wrapped = bytearray(kms.wrap_key(Secret(KEY), kind))
    assert kms.unwrap_key(bytes(wrapped), kind) == Secret(KEY)
    wrapped[30] ^= 1
    with pytest.raises(IntegrityError):
        kms.unwrap_key(bytes(wrapped), kind)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"key_type": "ed25519"}, "of a type that does not encrypt"), ({"derived": True}, "a derived one")],
)
def test_keys_that_do_not_serve(
    properties: dict[str, str], admin: Any, mount: str, settings: dict[str, Any], message: str
) -> None:
    name = secrets.token_hex(4)
    admin.secrets.transit.create_key(name, mount_point=mount, **settings)
    with pytest.raises(KmsKeyError, match=message):
        load_kms_client(properties).generate_key(name)
    with pytest.raises(KmsKeyError, match=message):
        load_kms_client(properties).wrap_key(Secret(KEY), name)


def test_a_tables_keys(properties: dict[str, str], key: str) -> None:
    first = Keyring([], master_key_id=key, kek_cache=KekCache(load_kms_client(properties)))
    metadata = first.new_key_metadata().with_file_length(100)
    key_id = first.seal_manifest_list_key(metadata)
    second = Keyring(first.added, master_key_id=key, kek_cache=KekCache(load_kms_client(properties)))
    assert second.open_manifest_list_key(key_id) == metadata


def test_a_thousand_opens_from_many_threads_cost_one_request(properties: dict[str, str], key: str) -> None:
    first = Keyring([], master_key_id=key, kek_cache=KekCache(load_kms_client(properties)))
    key_id = first.seal_manifest_list_key(first.new_key_metadata().with_file_length(100))
    with Relay(to=properties["kms.vault.address"]) as relay:
        kms = load_kms_client({**properties, "kms.vault.address": relay.address})
        second = Keyring(first.added, master_key_id=key, kek_cache=KekCache(kms))
        with ThreadPoolExecutor(50) as pool:
            opened = list(pool.map(lambda _: second.open_manifest_list_key(key_id), range(1000)))
    assert len(opened) == 1000
    assert len(relay.requests) == 1


# Rotation, and keys that are gone


def test_rotation(properties: dict[str, str], key: str, admin: Any, mount: str) -> None:
    kms = load_kms_client(properties)
    old = kms.wrap_key(Secret(KEY), key)
    admin.secrets.transit.rotate_key(key, mount_point=mount)
    new = kms.wrap_key(Secret(KEY), key)
    assert new.startswith(b"vault:v2:")
    assert kms.unwrap_key(old, key) == kms.unwrap_key(new, key) == Secret(KEY)
    admin.secrets.transit.update_key_configuration(key, min_decryption_version=2, mount_point=mount)
    assert kms.unwrap_key(new, key) == Secret(KEY)
    with pytest.raises(KmsKeyError, match=f"'{key}': its min_decryption_version"):
        kms.unwrap_key(old, key)


def test_a_deleted_key(properties: dict[str, str], key: str, admin: Any, mount: str) -> None:
    kms = load_kms_client(properties)
    wrapped = kms.wrap_key(Secret(KEY), key)
    admin.secrets.transit.update_key_configuration(key, deletion_allowed=True, mount_point=mount)
    admin.secrets.transit.delete_key(key, mount_point=mount)
    with pytest.raises(KmsKeyError, match="no such master key"):
        kms.unwrap_key(wrapped, key)


def test_a_mistyped_name_makes_no_key(properties: dict[str, str], key: str, admin: Any, mount: str) -> None:
    """Not even with the root token, with which Vault itself would make one."""
    with pytest.raises(KmsKeyError, match="no such master key"):
        load_kms_client(properties).wrap_key(Secret(KEY), f"{key}x")
    assert f"{key}x" not in admin.secrets.transit.list_keys(mount_point=mount)["data"]["keys"]
    admin.secrets.transit.encrypt_data(f"{key}x", plaintext="", mount_point=mount)
    assert f"{key}x" in admin.secrets.transit.list_keys(mount_point=mount)["data"]["keys"]


def test_a_mount_that_does_not_exist(properties: dict[str, str], key: str) -> None:
    with pytest.raises(KmsKeyError, match=r"no transit engine at 'nowhere'\. Check kms\.vault\.mount"):
        load_kms_client({**properties, "kms.vault.mount": "nowhere"}).wrap_key(Secret(KEY), key)


# Who calls


def _token(admin: Any, policy: str, **settings: Any) -> str:
    return str(admin.auth.token.create(policies=[policy], **settings)["auth"]["client_token"])


def test_the_policy_of_the_documentation_is_enough(
    anonymous: dict[str, str], admin: Any, policy: str, key: str
) -> None:
    kms = load_kms_client({**anonymous, "kms.vault.token": _token(admin, policy)})
    assert kms.unwrap_key(kms.wrap_key(Secret(KEY), key), key) == Secret(KEY)
    assert kms.generate_key(key) is not None
    with pytest.raises(KmsAccessDeniedError, match=r"'update' on transit-\w+/encrypt/<key>.*the master key must exist"):
        kms.wrap_key(Secret(KEY), f"{key}x")


@pytest.mark.parametrize("settings", [{"ttl": "1s"}, {"num_uses": 1}])
def test_a_token_that_ends(
    anonymous: dict[str, str], admin: Any, policy: str, key: str, settings: dict[str, Any]
) -> None:
    kms = load_kms_client({**anonymous, "kms.vault.token": _token(admin, policy, **settings)})
    wrapped = kms.wrap_key(Secret(KEY), key)
    time.sleep(1.1)
    with pytest.raises(KmsAccessDeniedError, match="must not have expired"):
        kms.unwrap_key(wrapped, key)


def test_a_token_file_is_read_again_when_its_token_ends(
    anonymous: dict[str, str], admin: Any, policy: str, key: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(_token(admin, policy, num_uses=1) + "\n")
    kms = load_kms_client({**anonymous, "kms.vault.token-file": str(file)})
    wrapped = kms.wrap_key(Secret(KEY), key)
    with pytest.raises(KmsAccessDeniedError):
        kms.unwrap_key(wrapped, key)
    file.write_text(_token(admin, policy))
    assert kms.unwrap_key(wrapped, key) == Secret(KEY)


@pytest.fixture
def role(admin: Any, policy: str) -> dict[str, str]:
    """An AppRole whose tokens serve for two requests."""
    path = f"approle-{secrets.token_hex(4)}"
    admin.sys.enable_auth_method("approle", path=path)
    approle = admin.auth.approle
    approle.create_or_update_approle("writer", token_policies=[policy], token_num_uses=2, mount_point=path)
    return {
        "kms.vault.auth-mount": path,
        "kms.vault.role-id": approle.read_role_id("writer", mount_point=path)["data"]["role_id"],
        "kms.vault.secret-id": approle.generate_secret_id("writer", mount_point=path)["data"]["secret_id"],
    }


def test_approle_logs_in_again_when_its_token_ends(anonymous: dict[str, str], role: dict[str, str], key: str) -> None:
    with Relay(to=anonymous["kms.vault.address"]) as relay:
        kms = load_kms_client({**anonymous, **role, "kms.vault.address": relay.address})
        wrapped = [kms.wrap_key(Secret(KEY), key) for _ in range(5)]
    assert len(wrapped) == 5
    asked = [request.path.split("/")[-2 if "encrypt" in request.path else -1] for request in relay.requests]
    assert asked == ["login", *["encrypt"] * 3, *["login", *["encrypt"] * 3], *["login", "encrypt"]]
    assert "X-Vault-Token" not in relay.requests[0].headers


def test_approle_with_many_threads(anonymous: dict[str, str], role: dict[str, str], key: str, admin: Any) -> None:
    path = role["kms.vault.auth-mount"]
    admin.auth.approle.create_or_update_approle("writer", token_num_uses=0, mount_point=path)
    with Relay(to=anonymous["kms.vault.address"]) as relay:
        kms = load_kms_client({**anonymous, **role, "kms.vault.address": relay.address})
        with ThreadPoolExecutor(16) as pool:
            wrapped = list(pool.map(lambda _: kms.wrap_key(Secret(KEY), key), range(64)))
    assert len(set(wrapped)) == 64
    assert sum(request.path.endswith("login") for request in relay.requests) == 1


def test_approle_with_its_secret_in_a_file(
    anonymous: dict[str, str], role: dict[str, str], key: str, tmp_path: Path
) -> None:
    (tmp_path / "secret-id").write_text(role.pop("kms.vault.secret-id"))
    kms = load_kms_client({**anonymous, **role, "kms.vault.secret-id-file": str(tmp_path / "secret-id")})
    assert kms.unwrap_key(kms.wrap_key(Secret(KEY), key), key) == Secret(KEY)


@pytest.mark.parametrize("wrong", ["kms.vault.role-id", "kms.vault.secret-id", "kms.vault.auth-mount"])
def test_approle_refused(anonymous: dict[str, str], role: dict[str, str], key: str, wrong: str) -> None:
    kms = load_kms_client({**anonymous, **role, wrong: "hunter2"})
    with pytest.raises(KmsAccessDeniedError, match=r"log in with kms\.vault\.role-id \(status 40\d\)") as caught:
        kms.wrap_key(Secret(KEY), key)
    assert "hunter2" not in str(caught.value)


@pytest.fixture
def service_account(tmp_path: Path) -> Path:
    """The file that Kubernetes mounts into a pod. The signature is for the API server to check."""
    claims = {
        "iss": "kubernetes/serviceaccount",
        "sub": "system:serviceaccount:etl:writer",
        "kubernetes.io/serviceaccount/namespace": "etl",
        "kubernetes.io/serviceaccount/service-account.name": "writer",
        "kubernetes.io/serviceaccount/service-account.uid": "u-1",
    }
    parts = [json.dumps(part).encode() for part in ({"alg": "RS256", "typ": "JWT"}, claims)] + [bytes(256)]
    file = tmp_path / "service-account"
    file.write_text(".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts))
    return file


@pytest.mark.parametrize("is_known", [True, False])
def test_kubernetes(
    anonymous: dict[str, str],
    vault: Vault,
    admin: Any,
    policy: str,
    key: str,
    service_account: Path,
    is_known: bool,
) -> None:
    """Vault's own plugin, which asks a Kubernetes API server whose the token is."""
    if not vault.is_own:
        pytest.skip("this Vault was started by others, and might not reach a server of this process")
    user = {"username": "system:serviceaccount:etl:writer", "uid": "u-1"}
    status = {"authenticated": True, "user": user} if is_known else {"authenticated": False, "error": "not known"}
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status}
    path = f"kubernetes-{secrets.token_hex(4)}"
    admin.sys.enable_auth_method("kubernetes", path=path)
    with Relay(Answer(201, review, {"Content-Type": "application/json"})) as kubernetes:
        admin.write_data(
            f"auth/{path}/config",
            data={"kubernetes_host": kubernetes.address, "token_reviewer_jwt": "t", "disable_local_ca_jwt": True},
        )
        admin.auth.kubernetes.create_role(
            "writer",
            bound_service_account_names="writer",
            bound_service_account_namespaces="etl",
            policies=[policy],
            mount_point=path,
        )
        kms = load_kms_client(
            {
                **anonymous,
                "kms.vault.kubernetes-role": "writer",
                "kms.vault.kubernetes-token-file": str(service_account),
                "kms.vault.auth-mount": path,
            }
        )
        if is_known:
            assert kms.unwrap_key(kms.wrap_key(Secret(KEY), key), key) == Secret(KEY)
        else:
            with pytest.raises(KmsAccessDeniedError, match=r"log in with kms\.vault\.kubernetes-role"):
                kms.wrap_key(Secret(KEY), key)
    assert kubernetes.requests[0].path == "/apis/authentication.k8s.io/v1/tokenreviews"


def test_the_namespace_is_sent_with_each_request(anonymous: dict[str, str], role: dict[str, str], key: str) -> None:
    """Vault's free edition has none, and does not look at it."""
    with Relay(to=anonymous["kms.vault.address"]) as relay:
        settings = {"kms.vault.address": relay.address, "kms.vault.namespace": "teams/etl"}
        load_kms_client({**anonymous, **role, **settings}).wrap_key(Secret(KEY), key)
    assert [request.headers.get("X-Vault-Namespace") for request in relay.requests] == ["teams/etl"] * 2


# The connection


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A file with a certificate for 127.0.0.1 that vouches for itself, and its key."""
    private, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(timezone.utc)
    builder = x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    signed = builder.add_extension(names, critical=True).sign(private, hashes.SHA256())
    file = tmp_path / "certificate.pem"
    unencrypted = serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    file.write_bytes(
        signed.public_bytes(pem) + private.private_bytes(pem, serialization.PrivateFormat.PKCS8, unencrypted)
    )
    return file


def test_tls(properties: dict[str, str], key: str, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with Relay(to=properties["kms.vault.address"], tls=context) as relay:
        properties |= {"kms.vault.address": relay.address, "kms.max-attempts": "2"}
        with pytest.raises(
            KmsError, match=r"certificate is not one that is trusted here\. Set kms\.vault\.ca-file"
        ) as caught:
            load_kms_client(properties).wrap_key(Secret(KEY), key)
        assert not isinstance(caught.value, KmsUnavailableError)
        assert relay.requests == []
        load_kms_client({**properties, "kms.vault.ca-file": str(certificate)}).wrap_key(Secret(KEY), key)
        monkeypatch.setenv("VAULT_CACERT", str(certificate))
        load_kms_client(properties).wrap_key(Secret(KEY), key)
        assert len(relay.requests) == 2


def test_the_token_does_not_follow_a_redirect(properties: dict[str, str], key: str) -> None:
    with Relay(to=properties["kms.vault.address"]) as other:
        location = {"Location": f"{other.address}/v1/transit/encrypt/{key}"}
        with Relay(Answer(307, headers=location)) as standby:
            kms = load_kms_client({**properties, "kms.vault.address": standby.address})
            with pytest.raises(KmsUnavailableError, match=r"Set kms\.vault\.address to the active node"):
                kms.wrap_key(Secret(KEY), key)
    assert other.requests == []


def test_a_proxy_is_not_shown_what_goes_by_plain_http(
    properties: dict[str, str], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Relay(Answer(500)) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.address)
        monkeypatch.setenv("http_proxy", proxy.address)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        load_kms_client(properties).wrap_key(Secret(KEY), key)
    assert proxy.requests == []


def test_a_sealed_vault(properties: dict[str, str], key: str, vault: Vault, admin: Any) -> None:
    if not vault.is_own:
        pytest.skip("this Vault was started by others, and could not be unsealed again")
    kms = load_kms_client({**properties, "kms.max-attempts": "2"})
    admin.sys.seal()
    try:
        with pytest.raises(KmsUnavailableError, match=r"it has to be unsealed.*tried 2 times"):
            kms.wrap_key(Secret(KEY), key)
    finally:
        admin.sys.submit_unseal_key(vault.unseal_key)
    kms.wrap_key(Secret(KEY), key)


def test_a_quota(properties: dict[str, str], key: str, admin: Any, mount: str) -> None:
    kms = load_kms_client({**properties, "kms.max-attempts": "2"})
    admin.write_data("sys/quotas/rate-limit/tests", data={"path": f"{mount}/", "rate": 0.1})
    try:
        with pytest.raises(KmsThrottledError, match=r"throttles this caller.*tried 2 times"):
            [kms.wrap_key(Secret(KEY), key) for _ in range(3)]
    finally:
        admin.delete("sys/quotas/rate-limit/tests")


def test_nobody_listens(properties: dict[str, str]) -> None:
    properties |= {"kms.vault.address": f"http://127.0.0.1:{servers.free_port()}", "kms.max-attempts": "3"}
    with pytest.raises(KmsUnavailableError, match=r"cannot be reached \(ConnectionError\).*tried 3 times"):
        load_kms_client(properties).wrap_key(Secret(KEY), "m")


def test_a_server_that_never_answers(properties: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        properties |= {
            "kms.vault.address": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "kms.max-attempts": "2",
            "kms.request-timeout": "0.5",
        }
        start = time.monotonic()
        with pytest.raises(KmsUnavailableError, match="tried 2 times"):
            load_kms_client(properties).wrap_key(Secret(KEY), "m")
        with pytest.raises(KmsUnavailableError, match="ReadTimeout"):  # by itself too, so that no thread is left behind
            VaultKeyManagementClient(properties).wrap_key(KEY, "m")
        assert time.monotonic() - start < 5


WRAPPED = b"vault:v1:AAAA"


@pytest.mark.parametrize(
    ("answer", "kind", "requests"),
    [
        (Answer(429, {"errors": ["slow down"]}), KmsThrottledError, 3),
        (Answer(500, {"errors": ["internal error"]}), KmsUnavailableError, 3),
        (Answer(503, {"errors": ["Vault is sealed"]}), KmsUnavailableError, 3),
        (Answer(502, b"<html>bad gateway</html>"), KmsUnavailableError, 3),
        (Answer(412, {"errors": []}), KmsUnavailableError, 3),
        (Answer(307, headers={"Location": "https://vault.example.com/"}), KmsUnavailableError, 3),
        (Answer(403, {"errors": ["permission denied"]}), KmsAccessDeniedError, 1),
        (Answer(404, {"errors": []}), KmsKeyError, 1),
        (Answer(400, {"errors": ["encryption key not found"]}), KmsKeyError, 1),
        (Answer(400, {"errors": ["cipher: message authentication failed"]}), IntegrityError, 1),
        (Answer(400, {"errors": ["a text that may quote anything"]}), KmsError, 1),
        (Answer(400, {"errors": [["may quote"]]}), KmsError, 1),
        (Answer(400, ["may quote"]), KmsError, 1),
        (Answer(200, b"<html>may quote</html>"), KmsError, 1),
        (Answer(200, {"data": "may quote"}), KmsError, 1),
        (Answer(200, {"data": {}}), KmsError, 1),
        (Answer(200, {"data": {"plaintext": "may quote"}}), KmsError, 1),
        (Answer(200, {"data": {"plaintext": 5}}), KmsError, 1),
        (Answer(200, {"data": {"plaintext": ""}}), KmsError, 1),
        (Answer(204), KmsError, 1),
    ],
    ids=lambda value: f"{value.status} {value.body}" if isinstance(value, Answer) else "",
)
def test_what_a_server_answers(
    properties: dict[str, str], answer: Answer, kind: type[Exception], requests: int
) -> None:
    with Relay(answer) as server:
        kms = load_kms_client({**properties, "kms.vault.address": server.address, "kms.max-attempts": "3"})
        with pytest.raises(kind) as caught:
            kms.unwrap_key(WRAPPED, "m")
    assert type(caught.value) is kind
    assert len(server.requests) == requests
    assert "may quote" not in str(caught.value)


@pytest.mark.parametrize("answer", [{}, {"ciphertext": 5}, {"ciphertext": "a plain text"}])
def test_what_is_no_ciphertext_is_not_stored(properties: dict[str, str], answer: dict[str, Any]) -> None:
    with Relay(Answer(200, {"data": answer})) as server:
        kms = load_kms_client({**properties, "kms.vault.address": server.address})
        with pytest.raises(KmsError, match="not one of Vault's transit engine"):
            kms.wrap_key(Secret(KEY), "m")


@pytest.mark.parametrize("auth", [None, {}, {"client_token": ""}, {"client_token": "two\nlines"}])
def test_a_login_without_a_token(anonymous: dict[str, str], auth: object) -> None:
    with Relay(Answer(200, {"auth": auth})) as server:
        kms = load_kms_client({**anonymous, "kms.vault.address": server.address, "kms.vault.role-id": "r"})
        with pytest.raises(KmsError, match=r"not one of Vault's"):
            kms.wrap_key(Secret(KEY), "m")


def test_a_client_that_is_closed_while_it_is_used(properties: dict[str, str], key: str) -> None:
    client = VaultKeyManagementClient(properties)
    go_on = threading.Event()
    outcomes: list[str] = []

    def work() -> None:
        while not outcomes:
            try:
                client.wrap_key(KEY, key)
                go_on.set()
            except ClosedError:
                outcomes.append("closed")

    thread = threading.Thread(target=work)
    thread.start()
    assert go_on.wait(30)
    client.close()
    thread.join(30)
    assert outcomes == ["closed"]
