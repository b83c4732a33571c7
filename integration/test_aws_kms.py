"""The AWS client against a server process that speaks the API of AWS KMS, and against Iceberg Java's client."""

from __future__ import annotations

import base64
import logging
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from integration import servers
from integration.kms_support import AWS_CREDENTIALS, aws_admin
from pyiceberg_encryption import KekCache, Keyring, Secret, load_kms_client
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

    from integration.java import Peer

CREDENTIALS = {"client.region": "eu-west-1", **AWS_CREDENTIALS}
KEY = bytes(range(16))


@pytest.fixture(autouse=True)
def no_aws_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the properties configures the client."""
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def properties(aws_endpoint: str) -> dict[str, str]:
    return {"encryption.kms-type": "aws", "kms.endpoint": aws_endpoint, "kms.max-attempts": "1", **CREDENTIALS}


@pytest.fixture
def admin(aws_endpoint: str) -> Any:
    return aws_admin(aws_endpoint)


@pytest.fixture
def key_arn(admin: Any) -> str:
    return str(admin.create_key()["KeyMetadata"]["Arn"])


def test_wraps_and_unwraps(properties: dict[str, str], key_arn: str) -> None:
    kms = load_kms_client(properties)
    for length in (16, 24, 32):
        wrapped = kms.wrap_key(Secret(bytes(length)), key_arn)
        assert kms.unwrap_key(wrapped, key_arn) == Secret(bytes(length))
    kms.close()


def test_an_alias_and_a_bare_id_name_the_key_too(properties: dict[str, str], admin: Any, key_arn: str) -> None:
    key_id = key_arn.rpartition("/")[2]
    admin.create_alias(AliasName=f"alias/orders-{key_id}", TargetKeyId=key_id)
    kms = load_kms_client(properties)
    wrapped = kms.wrap_key(Secret(KEY), f"alias/orders-{key_id}")
    for name in (f"alias/orders-{key_id}", key_id, key_arn):
        assert kms.unwrap_key(wrapped, name) == Secret(KEY)


@pytest.mark.parametrize(("spec", "length"), [(None, 32), ("AES_256", 32), ("AES_128", 16)])
def test_generates_keys(properties: dict[str, str], key_arn: str, spec: str | None, length: int) -> None:
    kms = load_kms_client({**properties, **({"kms.data-key-spec": spec} if spec else {})})
    generated = kms.generate_key(key_arn)
    assert generated is not None
    key, wrapped = generated
    assert len(key) == length
    assert kms.unwrap_key(wrapped, key_arn) == key


def test_an_rsa_key(properties: dict[str, str], admin: Any) -> None:
    arn = admin.create_key(KeySpec="RSA_2048", KeyUsage="ENCRYPT_DECRYPT")["KeyMetadata"]["Arn"]
    kms = load_kms_client({**properties, "kms.encryption-algorithm-spec": "RSAES_OAEP_SHA_256"})
    assert kms.generate_key(arn) is None
    assert kms.unwrap_key(kms.wrap_key(Secret(KEY), arn), arn) == Secret(KEY)


def test_a_tables_keys(properties: dict[str, str], key_arn: str) -> None:
    kms = load_kms_client(properties)
    first = Keyring([], master_key_id=key_arn, kek_cache=KekCache(kms))
    metadata = first.new_key_metadata().with_file_length(100)
    key_id = first.seal_manifest_list_key(metadata)
    other = load_kms_client(properties)
    second = Keyring(first.added, master_key_id=key_arn, kek_cache=KekCache(other))
    assert second.open_manifest_list_key(key_id) == metadata


def test_javas_client_opens_what_this_one_wrapped_and_the_other_way_round(
    properties: dict[str, str], key_arn: str, java: Peer
) -> None:
    """With one and the same configuration, but for the name of the class."""
    kms = load_kms_client(properties)
    javas = {
        "encryption.kms-type": "aws",
        "kms.endpoint": properties["kms.endpoint"],
        "client.region": "eu-west-1",
        "client.credentials-provider": "org.apache.iceberg.encryption.TestingCredentials",
    }
    wrapped = java.ask("kms", properties=javas, keyId=key_arn, wrap=True, bytes=KEY.hex())["bytes"]
    assert kms.unwrap_key(bytes.fromhex(wrapped), key_arn) == Secret(KEY)
    ours = kms.wrap_key(Secret(KEY), key_arn).hex()
    assert java.ask("kms", properties=javas, keyId=key_arn, wrap=False, bytes=ours)["bytes"] == KEY.hex()


def test_a_role_is_assumed_and_its_credentials_renewed(
    properties: dict[str, str], key_arn: str, aws_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datetime import timedelta

    from pyiceberg_encryption.kms import aws

    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", aws_endpoint)
    client = aws.AwsKeyManagementClient({**properties, "client.role-arn": "arn:aws:iam::123456789012:role/reader"})
    wrapped = client.wrap_key(KEY, key_arn)
    first = client._kms
    assert client.unwrap_key(wrapped, key_arn) == KEY
    assert client._kms is first
    assert first._request_signer._credentials.access_key != "testing"
    monkeypatch.setattr(aws, "ROLE_RENEWAL", timedelta(days=2))  # as if they ended soon
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{servers.free_port()}")
    assert client.unwrap_key(wrapped, key_arn) == KEY
    assert client._kms is first  # the old ones still do
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", aws_endpoint)
    assert client.unwrap_key(wrapped, key_arn) == KEY
    assert client._kms is not first
    client.close()
    with pytest.raises(ClosedError):
        client.unwrap_key(wrapped, key_arn)


def test_debugging_shows_no_key(properties: dict[str, str], key_arn: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    kms = load_kms_client(properties)
    assert kms.unwrap_key(kms.wrap_key(Secret(KEY), key_arn), key_arn) == Secret(KEY)
    generated = kms.generate_key(key_arn)
    assert generated is not None
    assert "botocore" in caplog.text
    for key in (KEY, bytes(generated[0].expose())):
        assert base64.b64encode(key).decode().rstrip("=") not in caplog.text
        assert key.hex() not in caplog.text
        assert repr(key)[2:-1] not in caplog.text


def test_a_key_that_does_not_exist(properties: dict[str, str], key_arn: str) -> None:
    missing = key_arn[:-4] + "0000"
    with pytest.raises(KmsKeyError, match=f"'{missing}'.*NotFoundException"):
        load_kms_client(properties).wrap_key(Secret(KEY), missing)


def test_a_wrapped_key_tampered_with(properties: dict[str, str], key_arn: str) -> None:
    kms = load_kms_client(properties)
    wrapped = bytearray(kms.wrap_key(Secret(KEY), key_arn))
    wrapped[-1] ^= 1
    with pytest.raises(IntegrityError, match="InvalidCiphertextException"):
        kms.unwrap_key(bytes(wrapped), key_arn)


def test_a_key_wrapped_by_another_master_key(properties: dict[str, str], admin: Any, key_arn: str) -> None:
    other = admin.create_key()["KeyMetadata"]["Arn"]
    kms = load_kms_client(properties)
    wrapped = kms.wrap_key(Secret(KEY), other)
    with pytest.raises((IntegrityError, KmsAccessDeniedError)):  # AWS says IncorrectKeyException, moto denies access
        kms.unwrap_key(wrapped, key_arn)


def test_credentials_missing(properties: dict[str, str], key_arn: str) -> None:
    left = {name: value for name, value in properties.items() if name not in CREDENTIALS or name == "client.region"}
    with pytest.raises(KmsAccessDeniedError, match="no AWS credentials"):
        load_kms_client(left).wrap_key(Secret(KEY), key_arn)
    with pytest.raises(ConfigurationError, match="go together"):
        load_kms_client({**left, "client.access-key-id": "testing"})


def test_region_missing(properties: dict[str, str], key_arn: str) -> None:
    del properties["client.region"]
    with pytest.raises(KmsError, match=r"NoRegionError.*client\.\*"):
        load_kms_client(properties).wrap_key(Secret(KEY), key_arn)


@pytest.mark.parametrize(
    ("name", "value"), [("kms.data-key-spec", "AES_512"), ("kms.encryption-algorithm-spec", "ROT13")]
)
def test_a_setting_that_aws_does_not_know(properties: dict[str, str], name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is '{value}'; it must be one of"):
        load_kms_client({**properties, name: value})


def test_nobody_listens(properties: dict[str, str]) -> None:
    properties |= {"kms.endpoint": f"http://127.0.0.1:{servers.free_port()}", "kms.max-attempts": "3"}
    with pytest.raises(KmsUnavailableError, match=r"EndpointConnectionError.*tried 3 times"):
        load_kms_client(properties).wrap_key(Secret(KEY), "m")


def test_a_server_that_never_answers(properties: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        properties |= {
            "kms.endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "kms.max-attempts": "2",
            "kms.request-timeout": "0.5",
        }
        start = time.monotonic()
        with pytest.raises(KmsUnavailableError, match="tried 2 times"):
            load_kms_client(properties).wrap_key(Secret(KEY), "m")
        assert time.monotonic() - start < 5


class Answering:
    """A server that gives the next of its answers to each request."""

    def __init__(self, *answers: tuple[int, str, str]) -> None:
        self._answers = list(answers)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.requests = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        for status, code, message in self._answers:
            connection, _ = self._listening.accept()
            with connection:
                connection.recv(65536)
                self.requests += 1
                body = f'{{"__type": "{code}", "message": "{message}"}}'.encode()
                head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                connection.sendall(head.encode() + body)

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def answering(request: pytest.FixtureRequest) -> Iterator[Answering]:
    server = Answering(*request.param)
    yield server
    server.close()


@pytest.mark.parametrize(
    ("answering", "kind", "requests"),
    [
        ([(400, "ThrottlingException", "Rate exceeded")] * 3, KmsThrottledError, 3),
        ([(500, "KMSInternalException", "oops")] * 3, KmsUnavailableError, 3),
        ([(503, "Whatever", "oops")] * 3, KmsUnavailableError, 3),
        ([(400, "AccessDeniedException", "not authorized")], KmsAccessDeniedError, 1),
        ([(400, "ExpiredTokenException", "expired")], KmsAccessDeniedError, 1),
        ([(400, "DisabledException", "disabled")], KmsKeyError, 1),
        ([(400, "KMSInvalidStateException", "pending deletion")], KmsKeyError, 1),
        ([(400, "IncorrectKeyException", "another key")], IntegrityError, 1),
        ([(400, "SomethingNew", "a text that may quote anything")], KmsError, 1),
    ],
    indirect=["answering"],
)
def test_what_the_service_answers(
    properties: dict[str, str], answering: Answering, kind: type[Exception], requests: int
) -> None:
    properties |= {"kms.endpoint": answering.endpoint, "kms.max-attempts": "3"}
    with pytest.raises(kind) as caught:
        load_kms_client(properties).unwrap_key(b"wrapped", "m")
    assert type(caught.value) is kind
    assert answering.requests == requests
    assert "may quote" not in str(caught.value)


def test_boto3s_own_validation_does_not_quote_the_key(properties: dict[str, str]) -> None:
    with pytest.raises(KmsError) as caught:
        load_kms_client(properties).wrap_key(Secret(KEY), 5)  # type: ignore[arg-type]
    assert caught.value.__context__ is None
    assert "x01" not in str(caught.value)


def test_a_thousand_opens_from_many_threads_cost_one_call(
    properties: dict[str, str], key_arn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg_encryption.kms.aws import AwsKeyManagementClient

    kms = load_kms_client(properties)
    first = Keyring([], master_key_id=key_arn, kek_cache=KekCache(kms))
    key_id = first.seal_manifest_list_key(first.new_key_metadata().with_file_length(100))
    calls: list[str] = []
    unwrap = AwsKeyManagementClient.unwrap_key

    def counted(self: AwsKeyManagementClient, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        calls.append(wrapping_key_id)
        return unwrap(self, wrapped_key, wrapping_key_id)

    monkeypatch.setattr(AwsKeyManagementClient, "unwrap_key", counted)
    second = Keyring(first.added, master_key_id=key_arn, kek_cache=KekCache(kms))
    with ThreadPoolExecutor(50) as pool:
        opened = list(pool.map(lambda _: second.open_manifest_list_key(key_id), range(1000)))
    assert len(opened) == 1000
    assert calls == [key_arn]


def test_without_boto3_a_message_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['boto3'] = None\n"
        "from pyiceberg_encryption import load_kms_client\n"
        "load_kms_client({'encryption.kms-type': 'aws'})"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install boto3" in result.stderr.splitlines()[-1]
