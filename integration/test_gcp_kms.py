"""The Google client against a server that speaks the API of Cloud KMS, and against Iceberg Java's client."""

from __future__ import annotations

import json
import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from integration import google_kms_server as google
from integration import servers
from integration.google_kms_server import CloudKms, Refusal
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
    from pathlib import Path

    from integration.internet import Internet
    from integration.java import Peer

RING = "projects/shop/locations/europe-west1/keyRings/tables"
ORDERS = f"{RING}/cryptoKeys/orders"
PEOPLE = f"{RING}/cryptoKeys/people"
PROPERTIES = {"encryption.kms-type": "gcp", "gcs.oauth2.token": google.TOKEN, "kms.max-attempts": "1"}
SDK_LOGGER = "google.cloud.kms_v1.services.key_management_service.transports.rest"
PATIENT = {**PROPERTIES, "kms.max-attempts": "3"}


@pytest.fixture(autouse=True)
def no_google_environment(in_the_cloud: Internet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.fixture
def cloud(internet: Internet) -> Iterator[CloudKms]:
    cloud = CloudKms()
    server = google.Server(cloud, internet)
    for name in (ORDERS, PEOPLE):
        cloud.create_key(name)
    yield cloud
    server.close()


def test_wraps_and_unwraps(cloud: CloudKms) -> None:
    kms = load_kms_client(PROPERTIES)
    for length in (16, 24, 32):
        wrapped = kms.wrap_key(Secret(bytes(length)), ORDERS)
        assert kms.unwrap_key(wrapped, ORDERS) == Secret(bytes(length))
    assert kms.generate_key(ORDERS) is None
    kms.close()
    with pytest.raises(ClosedError):
        kms.unwrap_key(wrapped, ORDERS)


def test_a_tables_keys(cloud: CloudKms) -> None:
    assert_opens_a_tables_keys(load_kms_client(PROPERTIES), load_kms_client(PROPERTIES), ORDERS)


def test_javas_client_opens_what_this_one_wrapped_and_the_other_way_round(
    cloud: CloudKms, internet: Internet, java_in_the_cloud: Peer
) -> None:
    """With one and the same configuration. Java reaches the service by gRPC, this client by HTTP."""
    kms = load_kms_client(PROPERTIES)
    ours = kms.wrap_key(Secret(KEY), ORDERS)
    server = google.GrpcServer(cloud, *internet.credentials(google.HOST))
    internet.add(server.port, google.HOST)
    ask: dict[str, Any] = {"do": "kms", "properties": PROPERTIES, "keyId": ORDERS}
    assert java_in_the_cloud.ask(**ask, wrap=False, bytes=ours.hex())["bytes"] == KEY.hex()
    wrapped = bytes.fromhex(java_in_the_cloud.ask(**ask, wrap=True, bytes=KEY.hex())["bytes"])
    server.close()
    again = google.Server(cloud, internet)
    assert kms.unwrap_key(wrapped, ORDERS) == Secret(KEY)
    again.close()


def test_another_endpoint(cloud: CloudKms, internet: Internet) -> None:
    server = google.Server(cloud, internet)
    internet.add(servers.free_port(), google.HOST)
    internet.add(int(server.address.rpartition(":")[2]), "127.0.0.1")
    for endpoint in (server.address, f"https://{server.address}", f"https://{server.address}/"):
        kms = load_kms_client({**PROPERTIES, "kms.endpoint": endpoint})
        assert kms.unwrap_key(kms.wrap_key(Secret(KEY), ORDERS), ORDERS) == Secret(KEY)
    server.close()


@pytest.mark.parametrize(
    "endpoint",
    ["http://127.0.0.1:1", "https://", "https://a/b", "https://u@a", "a:b", "a?b", "grpc://a", "https://a\\b"],
)
def test_an_endpoint_that_is_not_one(endpoint: str) -> None:
    """Plain HTTP among them, even to this machine: a proxy might be asked to take it elsewhere."""
    with pytest.raises(ConfigurationError, match=r"kms\.endpoint is .*write it as https"):
        load_kms_client({**PROPERTIES, "kms.endpoint": endpoint})


def test_a_server_that_cannot_prove_its_name(cloud: CloudKms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    with pytest.raises(KmsUnavailableError, match="SSLError"):
        load_kms_client(PROPERTIES).wrap_key(Secret(KEY), ORDERS)
    assert cloud.calls == []


def test_rotation(cloud: CloudKms) -> None:
    kms = load_kms_client(PROPERTIES)
    old = kms.wrap_key(Secret(KEY), ORDERS)
    cloud.rotate(ORDERS)
    new = kms.wrap_key(Secret(KEY), ORDERS)
    assert (old[0], new[0]) == (1, 2)
    for wrapped in (old, new):
        assert kms.unwrap_key(wrapped, ORDERS) == Secret(KEY)


@pytest.mark.parametrize("state", ["DISABLED", "DESTROYED", "DESTROY_SCHEDULED"])
def test_a_key_that_is_disabled_or_destroyed(cloud: CloudKms, state: str) -> None:
    kms = load_kms_client(PATIENT)
    wrapped = kms.wrap_key(Secret(KEY), ORDERS)
    cloud.keys[ORDERS][0].state = state
    for call in (lambda: kms.unwrap_key(wrapped, ORDERS), lambda: kms.wrap_key(Secret(KEY), ORDERS)):
        with pytest.raises(KmsKeyError, match=rf"'{ORDERS}'.*cryptoKeyVersions/1 is not enabled.*{state}"):
            call()
    assert len(cloud.calls) == 3


def test_a_key_that_does_not_exist(cloud: CloudKms) -> None:
    with pytest.raises(KmsKeyError, match="NOT_FOUND"):
        load_kms_client(PROPERTIES).wrap_key(Secret(KEY), f"{RING}/cryptoKeys/missing")


@pytest.mark.parametrize("key_id", ["orders", f"{ORDERS}/cryptoKeyVersions/1", f"{ORDERS}/", f"/{ORDERS}", 5])
def test_a_key_id_that_names_no_key(cloud: CloudKms, key_id: Any) -> None:
    kms = load_kms_client(PROPERTIES)
    for call in (lambda: kms.wrap_key(Secret(KEY), key_id), lambda: kms.unwrap_key(b"wrapped", key_id)):
        with pytest.raises(KmsKeyError, match="without a version"):
            call()
    assert cloud.calls == []


def test_a_wrapped_key_tampered_with(cloud: CloudKms) -> None:
    kms = load_kms_client(PATIENT)
    wrapped = kms.wrap_key(Secret(KEY), ORDERS)
    for index in range(len(wrapped)):
        tampered = bytearray(wrapped)
        tampered[index] ^= 1
        with pytest.raises(IntegrityError, match="INVALID_ARGUMENT"):
            kms.unwrap_key(bytes(tampered), ORDERS)
    assert len(cloud.calls) == 1 + len(wrapped)


def test_a_key_wrapped_by_another_master_key(cloud: CloudKms) -> None:
    kms = load_kms_client(PROPERTIES)
    wrapped = kms.wrap_key(Secret(KEY), PEOPLE)
    with pytest.raises(IntegrityError, match="the table's metadata was changed"):
        kms.unwrap_key(wrapped, ORDERS)


@pytest.mark.parametrize("lie", ["verified_plaintext_crc32c", "ciphertext_crc32c"])
def test_a_wrapped_key_damaged_on_its_way(cloud: CloudKms, lie: str) -> None:
    cloud.lies.add(lie)
    with pytest.raises(KmsUnavailableError, match=r"damaged on its way.*tried 3 times"):
        load_kms_client(PATIENT).wrap_key(Secret(KEY), ORDERS)
    assert cloud.calls == ["encrypt"] * 3


def test_a_key_damaged_on_its_way_back(cloud: CloudKms) -> None:
    kms = load_kms_client(PATIENT)
    wrapped = kms.wrap_key(Secret(KEY), ORDERS)
    cloud.lies.add("plaintext_crc32c")
    with pytest.raises(KmsUnavailableError, match=r"damaged on its way.*tried 3 times"):
        kms.unwrap_key(wrapped, ORDERS)


def test_a_key_damaged_on_its_way_to_the_service(cloud: CloudKms) -> None:
    """Not a sign of tampering with the table, though the service says INVALID_ARGUMENT then, too."""
    kms = load_kms_client(PROPERTIES)
    wrapped = kms.wrap_key(Secret(KEY), ORDERS)
    cloud.damaged = KEY[:5]
    with pytest.raises(KmsUnavailableError, match="damaged on its way"):
        kms.wrap_key(Secret(KEY), ORDERS)
    cloud.damaged = wrapped[:5]
    with pytest.raises(KmsUnavailableError, match="damaged on its way"):
        kms.unwrap_key(wrapped, ORDERS)


@pytest.mark.parametrize(
    ("refusal", "kind", "calls"),
    [
        (Refusal("RESOURCE_EXHAUSTED", "Quota exceeded"), KmsThrottledError, 3),
        (Refusal(429), KmsThrottledError, 3),
        (Refusal("UNAVAILABLE", "The service is currently unavailable."), KmsUnavailableError, 3),
        (Refusal("INTERNAL", "oops"), KmsUnavailableError, 3),
        (Refusal("DEADLINE_EXCEEDED", "too slow"), KmsUnavailableError, 3),
        (Refusal(502, "a load balancer's own page"), KmsUnavailableError, 3),
        (Refusal("PERMISSION_DENIED", "Permission 'useToEncrypt' denied"), KmsAccessDeniedError, 1),
        (Refusal(403, "a proxy's own page"), KmsAccessDeniedError, 1),
        (Refusal("FAILED_PRECONDITION", "wrong purpose"), KmsKeyError, 1),
        (Refusal(418, "a text that may quote anything"), KmsError, 1),
        (Refusal("INVALID_ARGUMENT", "a text that may quote anything"), IntegrityError, 1),
    ],
)
def test_what_the_service_answers(cloud: CloudKms, refusal: Refusal, kind: type[Exception], calls: int) -> None:
    cloud.next_refusals = [refusal] * 3
    with pytest.raises(kind) as caught:
        load_kms_client(PATIENT).unwrap_key(b"wrapped", ORDERS)
    assert type(caught.value) is kind
    assert cloud.calls == ["decrypt"] * calls
    assert "may quote" not in str(caught.value)
    assert "own page" not in str(caught.value)


def test_a_passing_outage(cloud: CloudKms) -> None:
    cloud.next_refusals = [Refusal("UNAVAILABLE"), Refusal("RESOURCE_EXHAUSTED")]
    kms = load_kms_client(PATIENT)
    assert kms.unwrap_key(kms.wrap_key(Secret(KEY), ORDERS), ORDERS) == Secret(KEY)


def test_a_key_of_another_kind(cloud: CloudKms) -> None:
    cloud.next_refusals = [Refusal("INVALID_ARGUMENT", f"a text that quotes the key: {KEY.hex()}")]
    with pytest.raises(KmsKeyError, match="symmetric encryption") as caught:
        load_kms_client(PROPERTIES).wrap_key(Secret(KEY), ORDERS)
    assert_shows_no_key(caught.value)


def test_a_token_that_google_does_not_take(cloud: CloudKms) -> None:
    with pytest.raises(KmsAccessDeniedError, match=r"Renew gcs\.oauth2\.token"):
        load_kms_client({**PROPERTIES, "gcs.oauth2.token": "another"}).wrap_key(Secret(KEY), ORDERS)


def test_a_token_that_has_expired(cloud: CloudKms) -> None:
    an_hour = 3600 * 1000
    now = int(time.time() * 1000)
    kms = load_kms_client({**PROPERTIES, "gcs.oauth2.token-expires-at": str(now + an_hour)})
    kms.wrap_key(Secret(KEY), ORDERS)
    kms = load_kms_client({**PATIENT, "gcs.oauth2.token-expires-at": str(now - an_hour)})
    with pytest.raises(KmsAccessDeniedError, match=r"RefreshError.*Renew gcs\.oauth2\.token"):
        kms.wrap_key(Secret(KEY), ORDERS)
    with pytest.raises(ConfigurationError, match="milliseconds"):
        load_kms_client({**PROPERTIES, "gcs.oauth2.token-expires-at": "soon"})


def test_no_credentials(cloud: CloudKms) -> None:
    with pytest.raises(KmsAccessDeniedError, match=r"no Google credentials were found\. Set gcs\.oauth2\.token"):
        load_kms_client({"encryption.kms-type": "gcp"}).wrap_key(Secret(KEY), ORDERS)


def test_default_credentials(cloud: CloudKms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials.json"
    credentials = {"type": "authorized_user", "client_id": "i", "client_secret": "s", "quota_project_id": "shop"}
    file.write_text(json.dumps({**credentials, "refresh_token": google.REFRESH_TOKEN}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    properties = {"encryption.kms-type": "gcp", "kms.max-attempts": "2"}
    kms = load_kms_client(properties)
    assert kms.unwrap_key(kms.wrap_key(Secret(KEY), ORDERS), ORDERS) == Secret(KEY)
    assert cloud.calls == ["token", "encrypt", "decrypt"]
    file.write_text(json.dumps({**credentials, "refresh_token": "revoked"}))
    with pytest.raises(KmsAccessDeniedError, match="RefreshError"):
        load_kms_client(properties).wrap_key(Secret(KEY), ORDERS)
    file.write_text("not JSON")
    with pytest.raises(KmsAccessDeniedError, match="no Google credentials"):
        load_kms_client(properties).wrap_key(Secret(KEY), ORDERS)


def test_nobody_listens(internet: Internet) -> None:
    internet.add(servers.free_port(), google.HOST)
    with pytest.raises(KmsUnavailableError, match=r"cannot be reached \((ProxyError|ConnectionError)\).*tried 3 times"):
        load_kms_client(PATIENT).wrap_key(Secret(KEY), ORDERS)


def test_a_server_that_never_answers(internet: Internet) -> None:
    with silent_server() as port:
        internet.add(port, google.HOST)
        start = time.monotonic()
        with pytest.raises(KmsUnavailableError, match="tried 2 times") as caught:
            load_kms_client({**PROPERTIES, "kms.max-attempts": "2", "kms.request-timeout": "0.5"}).wrap_key(
                Secret(KEY), ORDERS
            )
        assert time.monotonic() - start < 5
        assert_shows_no_key(caught.value)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_forked_children_have_connections_of_their_own(cloud: CloudKms) -> None:
    assert what_forked_children_do(PROPERTIES, ORDERS) == ["True 0"] * 3


def test_threads(cloud: CloudKms) -> None:
    kms = load_kms_client(PROPERTIES)

    def round_trip(number: int) -> bool:
        key = Secret(bytes([number]) * 16)
        return kms.unwrap_key(kms.wrap_key(key, ORDERS), ORDERS) == key

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(round_trip, range(32)))


@pytest.mark.parametrize("refusal", [Refusal("UNAVAILABLE"), Refusal("INVALID_ARGUMENT"), Refusal(400), Refusal(500)])
def test_errors_show_no_key(cloud: CloudKms, refusal: Refusal) -> None:
    kms = load_kms_client(PROPERTIES)
    cloud.next_refusals = [refusal]
    with pytest.raises(KmsError) as caught:
        kms.wrap_key(Secret(KEY), ORDERS)
    assert_shows_no_key(caught.value)


def test_logs_show_no_key(cloud: CloudKms, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even those of the SDK, at the level that attaches requests and answers."""
    kms = load_kms_client(PROPERTIES)
    monkeypatch.setattr(logging.getLogger(SDK_LOGGER), "level", logging.DEBUG)
    with caplog.at_level(logging.DEBUG):
        kms.unwrap_key(kms.wrap_key(Secret(KEY), ORDERS), ORDERS)
    texts = [str(record.__dict__) for record in caplog.records]
    assert texts
    assert not [text for text in texts if "ZGVmZ2hpamtsbW5vcHFy" in text or KEY.decode() in text]


def test_without_the_sdk_a_message_says_what_to_install() -> None:
    for module in ("google.cloud.kms_v1", "google_crc32c"):
        assert "pip install google-cloud-kms google-crc32c" in last_line_without(module, "gcp")
