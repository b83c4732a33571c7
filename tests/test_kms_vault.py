"""The Vault client as far as no server is needed: `integration/test_vault_kms.py` has the rest."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pyiceberg_encryption import Secret, load_kms_client, process
from pyiceberg_encryption.errors import ConfigurationError, IntegrityError, KmsKeyError, KmsUnavailableError
from pyiceberg_encryption.kms import vault

if TYPE_CHECKING:
    from pathlib import Path

NOBODY = "https://127.0.0.1:1"  # a port on which nobody listens
PROPERTIES = {"encryption.kms-type": "vault", "kms.vault.address": NOBODY, "kms.vault.token": "hvs.t"}


@pytest.fixture(autouse=True)
def no_vault_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in vault.ENVIRONMENT.values():
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"kms.vault.address": ""}, r"Set kms\.vault\.address, or VAULT_ADDR"),
        ({"kms.vault.address": "vault.example.com:8200"}, "must be like https://"),
        ({"kms.vault.address": "ftp://vault.example.com"}, "must be like https://"),
        ({"kms.vault.address": "https://"}, "must be like https://"),
        ({"kms.vault.address": "https://vault.example.com:port"}, "must be like https://"),
        ({"kms.vault.address": "https://[vault.example.com"}, "must be like https://"),
        ({"kms.vault.address": "https://user:hunter2@vault.example.com"}, "must be like https://"),
        ({"kms.vault.address": "https://vault.example.com?x=1"}, "must be like https://"),
        ({"kms.vault.address": "http://vault.example.com"}, r"in the clear\. Use https, or set kms\.vault\.allow"),
        ({"kms.vault.address": "HTTP://vault.example.com"}, "in the clear"),
        ({"kms.vault.address": "http://127.0.0.1.example.com"}, "in the clear"),
        ({"kms.vault.address": "http://10.0.0.1", "kms.vault.allow-plain-http": "yes"}, "must be true or false"),
        ({"kms.vault.ca-file": "/no/such/file"}, "/no/such/file, which does not exist"),
        ({"kms.vault.data-key-bits": "512"}, "'512'; it must be 128 or 256"),
        ({"kms.vault.token": ""}, r"Set one of kms\.vault\.token, .* or VAULT_TOKEN"),
        ({"kms.vault.role-id": "r"}, r"kms\.vault\.token and kms\.vault\.role-id are set; keep one"),
        ({"kms.vault.secret-id": "s"}, r"kms\.vault\.secret-id cannot stand like this"),
        (
            {
                "kms.vault.token": "",
                "kms.vault.role-id": "r",
                "kms.vault.secret-id": "s",
                "kms.vault.secret-id-file": "f",
            },
            "cannot stand like this",
        ),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_kms_client({**PROPERTIES, **properties})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "properties",
    [
        {"kms.vault.address": "http://localhost:8200"},
        {"kms.vault.address": "http://127.0.0.2:8200"},
        {"kms.vault.address": "http://[::1]:8200"},
        {"kms.vault.address": "http://vault.example.com", "kms.vault.allow-plain-http": "true"},
        {"kms.vault.address": "https://vault.example.com/behind/a/proxy/"},
    ],
)
def test_an_address_that_can_be_meant(properties: dict[str, str]) -> None:
    load_kms_client({**PROPERTIES, **properties}).close()


def test_what_vaults_own_clients_read_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VAULT_ADDR", "https://from.environment")
    monkeypatch.setenv("VAULT_TOKEN", "from-environment")
    monkeypatch.setenv("VAULT_NAMESPACE", "team")
    monkeypatch.setenv("VAULT_CACERT", str(tmp_path))
    client = vault.VaultKeyManagementClient({})
    connected = client._client()
    assert connected.url == "https://from.environment"
    assert connected.token == "from-environment"
    assert connected.adapter.namespace == "team"
    assert connected.session.verify == str(tmp_path)
    assert vault.VaultKeyManagementClient(PROPERTIES)._client().token == "hvs.t"  # properties come first
    client.close()


@pytest.mark.parametrize("name", ["", "two words", "../sys/seal", "a/b", "-a", "a-", "ä", "a?b", "a\n"])
def test_a_name_that_no_key_of_transit_can_have(name: str) -> None:
    """It never becomes a part of a URL."""
    kms = load_kms_client(PROPERTIES)
    with pytest.raises(KmsKeyError, match="no key of transit can have this name"):
        kms.wrap_key(Secret(bytes(16)), name)


@pytest.mark.parametrize(
    "wrapped",
    [b"", b"vault:v1:", b"vault:v1:AA\n", b"vault:vx:AAAA", b"vault:v1:A=AA", b"\xffvault:v1:AAAA", bytes(60)],
)
def test_what_is_no_ciphertext_of_vaults_is_not_sent_there(wrapped: bytes) -> None:
    with pytest.raises(IntegrityError, match="not a ciphertext of Vault's"):
        load_kms_client(PROPERTIES).unwrap_key(wrapped, "orders")


@pytest.mark.parametrize("content", [b"", b"\n", b"two\nlines", b"\xff\xfe", "tökén".encode()])
def test_a_token_file_that_holds_no_token(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(content)
    properties = {**PROPERTIES, "kms.vault.token": "", "kms.vault.token-file": str(tmp_path / "token")}
    with pytest.raises(ConfigurationError, match=r"kms\.vault\.token-file") as caught:
        load_kms_client(properties).wrap_key(Secret(bytes(16)), "orders")
    assert "lines" not in str(caught.value)


def test_a_token_that_cannot_stand_in_a_header_is_not_quoted() -> None:
    with pytest.raises(ConfigurationError, match="holds no token") as caught:
        load_kms_client({**PROPERTIES, "kms.vault.token": "hvs.\nhunter2"}).wrap_key(Secret(bytes(16)), "orders")
    assert "hunter2" not in str(caught.value)


def test_a_forked_child_has_a_connection_of_its_own_and_the_same_token(monkeypatch: pytest.MonkeyPatch) -> None:
    client = vault.VaultKeyManagementClient(PROPERTIES)
    before = client._client()
    assert client._client() is before
    monkeypatch.setattr(process, "_generation", process.generation() + 1)
    after = client._client()
    assert after.session is not before.session
    assert after.token == before.token
    assert client._client() is after


def test_the_error_of_the_http_library_which_holds_the_key_is_not_chained() -> None:
    with pytest.raises(KmsUnavailableError, match="ConnectionError") as caught:
        vault.VaultKeyManagementClient(PROPERTIES).wrap_key(bytes(16), "orders")
    assert caught.value.__context__ is None


def test_without_hvac_a_message_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['hvac'] = None\n"
        "from pyiceberg_encryption import load_kms_client\n"
        "load_kms_client({'encryption.kms-type': 'vault'})"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install hvac" in result.stderr.splitlines()[-1]
