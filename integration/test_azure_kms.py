"""The Azure client against a server that speaks the API of Key Vault, and against Iceberg Java's client."""

from __future__ import annotations

import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from integration import azure_key_vault_server as azure
from integration import servers
from integration.azure_key_vault_server import KeyVault, Refusal
from integration.kms_support import (
    KEY,
    assert_opens_a_tables_keys,
    assert_shows_no_key,
    last_line_without,
    silent_server,
    what_forked_children_do,
)
from pyiceberg_encryption import Secret, load_kms_client
from pyiceberg_encryption.errors import (
    ClosedError,
    ConfigurationError,
    IntegrityError,
    KmsAccessDeniedError,
    KmsError,
    KmsKeyError,
    KmsThrottledError,
    KmsUnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from integration.internet import Internet
    from integration.java import Peer

CREDENTIALS = {
    "adls.tenant-id": azure.TENANT,
    "adls.client-id": azure.CLIENT,
    "adls.client-secret": azure.CLIENT_SECRET,
}
WITHOUT_CREDENTIALS = {
    "encryption.kms-type": "azure",
    "azure.keyvault.url": f"https://{azure.VAULT}",
    "kms.max-attempts": "1",
}
PROPERTIES = {**WITHOUT_CREDENTIALS, **CREDENTIALS}
PATIENT = {**PROPERTIES, "kms.max-attempts": "3"}
JAVA = {
    **WITHOUT_CREDENTIALS,
    "adls.token-credential-provider": "org.apache.iceberg.encryption.TestingTokens",
    "adls.token-credential-provider.token": azure.TOKEN,
}


@pytest.fixture(autouse=True)
def no_azure_environment(in_the_cloud: Internet) -> None: ...


@pytest.fixture
def vault(internet: Internet) -> Iterator[KeyVault]:
    vault = KeyVault()
    server = azure.Server(vault, internet)
    for name in ("orders", "people"):
        vault.create_key(name)
    yield vault
    server.close()


@pytest.fixture
def disabled(vault: KeyVault) -> str:
    """The name of a disabled version of the key `orders`."""
    version = vault.keys["orders"][-1]
    version.enabled = False
    return version.name


@pytest.mark.parametrize("algorithm", [None, "RSA-OAEP-256", "RSA-OAEP", "A256KW"])
def test_wraps_and_unwraps(vault: KeyVault, algorithm: str | None) -> None:
    if algorithm == "A256KW":
        vault.rotate("orders", symmetric=True)
    kms = load_kms_client({**PROPERTIES, **({"azure.keyvault.key-wrap-algorithm": algorithm} if algorithm else {})})
    for length in (16, 24, 32):
        wrapped = kms.wrap_key(Secret(bytes(length)), "orders")
        assert kms.unwrap_key(wrapped, "orders") == Secret(bytes(length))
    assert kms.generate_key("orders") is None
    kms.close()
    with pytest.raises(ClosedError):
        kms.unwrap_key(wrapped, "orders")


def test_key_vault_itself_wraps(vault: KeyVault) -> None:
    """So that it checks who does, and whether the key is meant for it."""
    load_kms_client(PROPERTIES).wrap_key(Secret(KEY), "orders")
    assert vault.calls == ["token", "wrapkey"]


def test_a_tables_keys(vault: KeyVault) -> None:
    assert_opens_a_tables_keys(load_kms_client(PROPERTIES), load_kms_client(PROPERTIES), "orders")


@pytest.mark.parametrize("pinned", [False, True])
def test_javas_client_opens_what_this_one_wrapped_and_the_other_way_round(
    vault: KeyVault, java_in_the_cloud: Peer, pinned: bool
) -> None:
    """With the same configuration, but for the credentials: Java takes them from a class, or from the environment."""
    key_id = f"orders/{vault.keys['orders'][0].name}" if pinned else "orders"
    if pinned:
        vault.rotate("orders")
    kms = load_kms_client(PROPERTIES)
    ask: dict[str, Any] = {"do": "kms", "properties": JAVA, "keyId": key_id}
    wrapped = java_in_the_cloud.ask(**ask, wrap=True, bytes=KEY.hex())["bytes"]
    assert kms.unwrap_key(bytes.fromhex(wrapped), key_id) == Secret(KEY)
    ours = kms.wrap_key(Secret(KEY), key_id).hex()
    assert java_in_the_cloud.ask(**ask, wrap=False, bytes=ours)["bytes"] == KEY.hex()


def test_rotation(vault: KeyVault) -> None:
    kms = load_kms_client(PROPERTIES)
    old = kms.wrap_key(Secret(KEY), "orders")
    first = vault.keys["orders"][0].name
    for _ in range(3):
        vault.rotate("orders")
    new = kms.wrap_key(Secret(bytes(16)), "orders")
    vault.calls.clear()
    assert kms.unwrap_key(old, "orders") == Secret(KEY)
    versions = [version.name for version in reversed(vault.keys["orders"])]
    assert vault.calls == ["unwrapkey", "versions", *(f"{version}/unwrapkey" for version in versions)]
    vault.calls.clear()
    assert kms.unwrap_key(old, "orders") == Secret(KEY)  # it remembers the version
    assert vault.calls == [f"{first}/unwrapkey"]
    assert kms.unwrap_key(new, "orders") == Secret(bytes(16))
    assert kms.unwrap_key(old, "orders") == Secret(KEY)
    assert "versions" not in vault.calls


def test_a_version_that_unwrapped_before_and_is_gone(vault: KeyVault) -> None:
    kms = load_kms_client(PROPERTIES)
    kms.unwrap_key(kms.wrap_key(Secret(KEY), "orders"), "orders")
    vault.rotate("orders")
    del vault.keys["orders"][0]
    assert kms.unwrap_key(kms.wrap_key(Secret(KEY), "orders"), "orders") == Secret(KEY)


def test_a_table_that_outlives_a_rotation(vault: KeyVault) -> None:
    from pyiceberg_encryption import KekCache, Keyring

    kms = load_kms_client(PROPERTIES)
    first = Keyring([], master_key_id="orders", kek_cache=KekCache(kms))
    metadata = first.new_key_metadata().with_file_length(100)
    list_key_id = first.seal_manifest_list_key(metadata)
    vault.rotate("orders")
    second = Keyring(first.added, master_key_id="orders", kek_cache=KekCache(load_kms_client(PROPERTIES)))
    assert second.open_manifest_list_key(list_key_id) == metadata


def test_a_version_in_the_key_id(vault: KeyVault) -> None:
    """No other is tried then."""
    kms = load_kms_client(PROPERTIES)
    first = f"orders/{vault.keys['orders'][0].name}"
    second = f"orders/{vault.rotate('orders')}"
    wrapped = kms.wrap_key(Secret(KEY), first)
    assert kms.unwrap_key(wrapped, first) == Secret(KEY)
    vault.calls.clear()
    with pytest.raises(IntegrityError, match="this version of the master key"):
        kms.unwrap_key(wrapped, second)
    assert len(vault.calls) == 1


def test_more_versions_than_are_tried(vault: KeyVault, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg_encryption.kms import azure as client

    kms = load_kms_client(PROPERTIES)
    wrapped = kms.wrap_key(Secret(KEY), "orders")
    only = vault.keys["people"][0]
    vault.keys["orders"] += [azure.Version(only.key, only.created + 10 + age) for age in range(azure.PAGE + 5)]
    monkeypatch.setattr(client, "MOST_VERSIONS", azure.PAGE + 5)
    with pytest.raises(KmsKeyError, match=f"none of the newest {azure.PAGE + 5} versions.*name/version"):
        kms.unwrap_key(wrapped, "orders")
    assert vault.calls.count("versions") == 2  # pages
    monkeypatch.setattr(client, "MOST_VERSIONS", azure.PAGE + 6)
    assert kms.unwrap_key(wrapped, "orders") == Secret(KEY)


def test_the_current_version_is_disabled(vault: KeyVault) -> None:
    kms = load_kms_client(PROPERTIES)
    old = kms.wrap_key(Secret(KEY), "orders")
    current = vault.rotate("orders")
    new = kms.wrap_key(Secret(KEY), "orders")
    vault.keys["orders"][-1].enabled = False
    assert kms.unwrap_key(old, "orders") == Secret(KEY)
    with pytest.raises(KmsKeyError, match=rf"disabled one wrapped it \({current}\), enable that one"):
        kms.unwrap_key(new, "orders")


def test_a_disabled_key(vault: KeyVault, disabled: str) -> None:
    """Key Vault does wrap with it."""
    kms = load_kms_client(PATIENT)
    wrapped = kms.wrap_key(Secret(KEY), "orders")
    vault.calls.clear()
    with pytest.raises(KmsKeyError, match=disabled):
        kms.unwrap_key(wrapped, "orders")
    assert vault.calls == ["unwrapkey", "versions"]
    with pytest.raises(KmsKeyError, match="KeyDisabled: Operation unwrapKey is not allowed on a disabled key"):
        kms.unwrap_key(wrapped, f"orders/{disabled}")


def test_a_key_that_does_not_exist_or_was_deleted(vault: KeyVault) -> None:
    kms = load_kms_client(PATIENT)
    wrapped = kms.wrap_key(Secret(KEY), "orders")
    assert kms.unwrap_key(wrapped, "orders") == Secret(KEY)
    del vault.keys["orders"]
    for call in (lambda: kms.unwrap_key(wrapped, "orders"), lambda: kms.wrap_key(Secret(KEY), "orders")):
        with pytest.raises(KmsKeyError, match=r"'orders'.*is not in the key vault.*KeyNotFound"):
            call()


@pytest.mark.parametrize(
    "key_id", ["", "a/b/c", "../secrets", f"https://{azure.VAULT}/keys/orders", "orders/", "a?b", 5]
)
def test_a_key_id_that_names_no_key(vault: KeyVault, key_id: Any) -> None:
    kms = load_kms_client(PROPERTIES)
    for call in (lambda: kms.wrap_key(Secret(KEY), key_id), lambda: kms.unwrap_key(b"wrapped", key_id)):
        with pytest.raises(KmsKeyError, match="name/version"):
            call()
    assert vault.calls == []


def test_a_wrapped_key_tampered_with(vault: KeyVault) -> None:
    kms = load_kms_client(PATIENT)
    wrapped = bytearray(kms.wrap_key(Secret(KEY), "orders"))
    wrapped[-1] ^= 1
    vault.calls.clear()
    with pytest.raises(IntegrityError, match="the table's metadata was changed"):
        kms.unwrap_key(bytes(wrapped), "orders")
    assert vault.calls == ["unwrapkey", "versions", f"{vault.keys['orders'][0].name}/unwrapkey"]


def test_a_key_wrapped_by_another_master_key(vault: KeyVault) -> None:
    kms = load_kms_client(PROPERTIES)
    wrapped = kms.wrap_key(Secret(KEY), "people")
    with pytest.raises(IntegrityError, match="no version of the master key unwraps this key"):
        kms.unwrap_key(wrapped, "orders")


def test_an_algorithm_that_the_key_is_not_for(vault: KeyVault) -> None:
    kms = load_kms_client({**PROPERTIES, "azure.keyvault.key-wrap-algorithm": "A256KW"})
    with pytest.raises(KmsKeyError, match=r"does not wrap by azure\.keyvault\.key-wrap-algorithm") as caught:
        kms.wrap_key(Secret(KEY), "orders")  # the server's answer quotes the key
    assert_shows_no_key(caught.value)


@pytest.mark.parametrize("algorithm", ["RSA1_5", "ROT13", ""])
def test_an_algorithm_that_is_refused(algorithm: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"is '{algorithm}'; it must be one of RSA-OAEP-256"):
        load_kms_client({**PROPERTIES, "azure.keyvault.key-wrap-algorithm": algorithm})


@pytest.mark.parametrize(
    "url", [None, "", "orders", "http://127.0.0.1", "https://", "https://u@a", "https://a/keys", "https://a\\b"]
)
def test_an_address_that_is_not_a_vaults(url: str | None) -> None:
    properties = {name: value for name, value in PROPERTIES.items() if name != "azure.keyvault.url"}
    with pytest.raises(ConfigurationError, match=r"Set azure\.keyvault\.url to the vault's address"):
        load_kms_client({**properties, **({} if url is None else {"azure.keyvault.url": url})})


@pytest.mark.parametrize(
    ("refusal", "kind", "calls"),
    [
        (Refusal(429, "Throttled", "Too many requests", **{"Retry-After": "30"}), KmsThrottledError, 3),
        (Refusal(503, "ServiceUnavailable"), KmsUnavailableError, 3),
        (Refusal(500, "InternalServerError"), KmsUnavailableError, 3),
        (Refusal(401, "Unauthorized", "AKV10032: Invalid issuer"), KmsAccessDeniedError, 1),
        (Refusal(403, "Forbidden", "Caller is not authorized", "ForbiddenByRbac"), KmsAccessDeniedError, 1),
        (Refusal(403, "Forbidden", "Client address is not allowed", "ForbiddenByFirewall"), KmsAccessDeniedError, 1),
        (Refusal(409, "Conflict", "being deleted", "ObjectIsBeingDeleted"), KmsKeyError, 1),
        (Refusal(418, "SomethingNew", "a text that may quote anything"), KmsError, 1),
    ],
)
def test_what_the_service_answers(vault: KeyVault, refusal: Refusal, kind: type[Exception], calls: int) -> None:
    vault.next_refusals = [refusal] * 3
    with pytest.raises(kind) as caught:
        load_kms_client(PATIENT).unwrap_key(b"wrapped", "orders")
    assert type(caught.value) is kind
    assert vault.calls == ["token"] + ["unwrapkey"] * calls
    assert "may quote" not in str(caught.value)


def test_a_key_that_must_not_unwrap(vault: KeyVault) -> None:
    forbidden = Refusal(403, "Forbidden", "Operation unwrapKey is not permitted on this key.", "KeyOperationForbidden")
    kms = load_kms_client(PROPERTIES)
    wrapped = kms.wrap_key(Secret(KEY), "people")
    vault.next_refusals = [forbidden]
    with pytest.raises(KmsKeyError, match="KeyOperationForbidden: Operation unwrapKey is not permitted"):
        kms.unwrap_key(wrapped, "orders")


def test_versions_may_not_be_listed(vault: KeyVault) -> None:
    kms = load_kms_client(PROPERTIES)
    wrapped = kms.wrap_key(Secret(KEY), "orders")
    vault.rotate("orders")
    vault.next_refusals = [Refusal(400, "BadParameter"), Refusal(403, "Forbidden", "no", "ForbiddenByPolicy")]
    with pytest.raises(KmsAccessDeniedError, match=r"wrapKey, unwrapKey and list.*ForbiddenByPolicy"):
        kms.unwrap_key(wrapped, "orders")


def test_an_outage_while_versions_are_tried(vault: KeyVault) -> None:
    """Is not taken for a version that does not fit."""
    kms = load_kms_client(PATIENT)
    wrapped = kms.wrap_key(Secret(KEY), "orders")
    vault.rotate("orders")
    vault.next_refusals = [Refusal(400, "BadParameter"), Refusal(503, "ServiceUnavailable")]
    assert kms.unwrap_key(wrapped, "orders") == Secret(KEY)


@pytest.mark.parametrize("from_environment", [False, True])
@pytest.mark.parametrize("answers", [False, True])
def test_entra_is_out_of_order(
    vault: KeyVault, internet: Internet, monkeypatch: pytest.MonkeyPatch, answers: bool, from_environment: bool
) -> None:
    if answers:
        vault.next_entra_codes = [503]
    else:
        internet.add(servers.free_port(), azure.ENTRA)
    if from_environment:
        use_environment(monkeypatch)
    kms = load_kms_client({**(WITHOUT_CREDENTIALS if from_environment else PROPERTIES), "kms.max-attempts": "2"})
    with pytest.raises(KmsUnavailableError, match=r"or Microsoft Entra ID cannot be reached.*tried 2 times"):
        kms.wrap_key(Secret(KEY), "orders")
    assert vault.calls == ["token"] * answers  # azure-identity remembers the failure for a minute


def use_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")  # and not those of this machine
    monkeypatch.setenv("AZURE_TENANT_ID", azure.TENANT)
    monkeypatch.setenv("AZURE_CLIENT_ID", azure.CLIENT)
    monkeypatch.setenv("AZURE_CLIENT_SECRET", azure.CLIENT_SECRET)


def test_a_secret_that_entra_does_not_take(vault: KeyVault) -> None:
    with pytest.raises(KmsAccessDeniedError, match=r"refuses them \(AADSTS7000215\)\. Check adls\.tenant-id") as caught:
        load_kms_client({**PROPERTIES, "adls.client-secret": "hunter2"}).wrap_key(Secret(KEY), "orders")
    assert "hunter2" not in str(caught.value)


def test_credentials_of_the_environment(vault: KeyVault, monkeypatch: pytest.MonkeyPatch) -> None:
    use_environment(monkeypatch)
    kms = load_kms_client(WITHOUT_CREDENTIALS)
    assert kms.unwrap_key(kms.wrap_key(Secret(KEY), "orders"), "orders") == Secret(KEY)


def test_no_credentials(vault: KeyVault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    with pytest.raises(KmsAccessDeniedError, match="there are no Azure credentials"):
        load_kms_client(WITHOUT_CREDENTIALS).wrap_key(Secret(KEY), "orders")
    assert vault.calls == []


@pytest.mark.parametrize("missing", ["adls.tenant-id", "adls.client-id"])
def test_half_of_the_credentials(missing: str) -> None:
    with pytest.raises(ConfigurationError, match=r"adls\.client-secret needs"):
        load_kms_client({name: value for name, value in PROPERTIES.items() if name != missing})


def test_a_vault_that_asks_for_a_token_of_others(vault: KeyVault) -> None:
    """It could use it in the caller's name."""
    vault.challenged_resource = "https://vault.example.org"
    kms = load_kms_client(PROPERTIES)
    from azure.keyvault.keys._shared.http_challenge_cache import clear

    clear()
    with pytest.raises(ConfigurationError, match="is not Azure Key Vault"):
        kms.wrap_key(Secret(KEY), "orders")
    assert vault.calls == []


def test_a_server_that_cannot_prove_its_name(vault: KeyVault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    with pytest.raises(KmsUnavailableError, match="cannot be reached"):
        load_kms_client(PROPERTIES).wrap_key(Secret(KEY), "orders")
    assert vault.calls == []


def test_a_server_that_is_not_a_vault(vault: KeyVault, monkeypatch: pytest.MonkeyPatch) -> None:
    kms = load_kms_client(PROPERTIES)
    answers: list[Any] = [{}, {"kid": 5, "value": "AAAA"}, {"kid": "k", "value": "%%%"}, []]
    for answer in answers:
        monkeypatch.setattr(vault, "answer", lambda *request, answer=answer: answer)
        with pytest.raises(KmsError, match="does not speak as Key Vault does"):
            kms.wrap_key(Secret(KEY), "orders")


def test_nobody_listens(internet: Internet) -> None:
    internet.add(servers.free_port(), azure.VAULT, azure.ENTRA)
    with pytest.raises(KmsUnavailableError, match=r"cannot be reached .*tried 3 times"):
        load_kms_client(PATIENT).wrap_key(Secret(KEY), "orders")


def test_a_server_that_never_answers(internet: Internet) -> None:
    with silent_server() as port:
        internet.add(port, azure.VAULT, azure.ENTRA)
        start = time.monotonic()
        with pytest.raises(KmsUnavailableError, match="tried 2 times") as caught:
            load_kms_client({**PROPERTIES, "kms.max-attempts": "2", "kms.request-timeout": "0.5"}).wrap_key(
                Secret(KEY), "orders"
            )
        assert time.monotonic() - start < 5
        assert_shows_no_key(caught.value)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_forked_children_have_connections_of_their_own(vault: KeyVault) -> None:
    assert what_forked_children_do(PROPERTIES, "orders") == ["True 0"] * 3


def test_threads(vault: KeyVault) -> None:
    kms = load_kms_client(PROPERTIES)

    def round_trip(number: int) -> bool:
        key = Secret(bytes([number]) * 16)
        return kms.unwrap_key(kms.wrap_key(key, "orders"), "orders") == key

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(round_trip, range(32)))


@pytest.mark.parametrize("status", [400, 403, 404, 418, 429, 503])
def test_errors_show_no_key(vault: KeyVault, status: int) -> None:
    kms = load_kms_client(PROPERTIES)
    vault.next_refusals = [Refusal(status, "SomeCode")]
    with pytest.raises(KmsError) as caught:
        kms.wrap_key(Secret(KEY), "orders")
    assert_shows_no_key(caught.value)


def test_logs_show_no_key(vault: KeyVault, caplog: pytest.LogCaptureFixture) -> None:
    kms = load_kms_client(PROPERTIES)
    with caplog.at_level(logging.DEBUG):
        kms.unwrap_key(kms.wrap_key(Secret(KEY), "orders"), "orders")
    texts = [str(record.__dict__) for record in caplog.records]
    assert texts
    assert not [text for text in texts if "ZGVmZ2hpamtsbW5vcHFy" in text or KEY.decode() in text]


def test_without_the_sdk_a_message_says_what_to_install() -> None:
    for module in ("azure.identity", "azure.keyvault.keys"):
        assert "pip install azure-identity azure-keyvault-keys" in last_line_without(module, "azure")
