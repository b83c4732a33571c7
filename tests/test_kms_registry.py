from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from typing import TYPE_CHECKING, Any

import pytest

from pyiceberg_encryption import KeyManagementClient, Secret, load_kms_client
from pyiceberg_encryption.errors import ConfigurationError, UsageError
from pyiceberg_encryption.kms import registry
from tests.support import MEMORY_PROPERTIES

if TYPE_CHECKING:
    from collections.abc import Mapping


class OwnClient(KeyManagementClient):
    """What a user writes: the three methods that have no default."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        if properties.get("fail"):
            raise RuntimeError(f"cannot log in with {properties['fail']}")

    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        return key[::-1]

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        return wrapped_key[::-1]


class FromPyIceberg:
    """A client of the same shape that does not derive from this package's class."""

    def __init__(self, properties: Mapping[str, str]) -> None: ...

    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        return b"w" + key

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        return wrapped_key[1:]

    def supports_key_generation(self) -> bool:
        return False

    def generate_key(self, wrapping_key_id: str) -> object:
        raise NotImplementedError

    def close(self) -> None: ...


class NoClient:
    def __init__(self, properties: Mapping[str, str]) -> None: ...

    def wrap_key(self) -> None: ...


class HalfDone(KeyManagementClient):
    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        return key


def test_a_type() -> None:
    for name in ("memory", "Memory", "MEMORY"):
        client = load_kms_client({"encryption.kms-type": name, **MEMORY_PROPERTIES})
        wrapped = client.wrap_key(Secret(b"k" * 16), "keyA")
        assert client.unwrap_key(wrapped, "keyA") == Secret(b"k" * 16)


@pytest.mark.parametrize("separator", [".", ":"])
@pytest.mark.parametrize("client_class", [OwnClient, FromPyIceberg])
def test_a_class_of_the_users_own(client_class: type, separator: str) -> None:
    client = load_kms_client({"py-kms-impl": f"{__name__}{separator}{client_class.__name__}"})
    wrapped = client.wrap_key(Secret(b"0123456789abcdef"), "any")
    assert client.unwrap_key(wrapped, "any") == Secret(b"0123456789abcdef")
    assert client.generate_key("any") is None
    client.close()


def test_a_type_that_another_package_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("Own", f"{__name__}:OwnClient", registry.ENTRY_POINT_GROUP)
    points = [point]
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints(points).select(group=group))
    assert load_kms_client({"encryption.kms-type": "own"}).wrap_key(Secret(b"ab"), "m") == b"ba"
    with pytest.raises(ConfigurationError, match="Known types: Own, aws, azure, gcp, local, memory, vault"):
        load_kms_client({"encryption.kms-type": "other"})
    points.append(EntryPoint("own", "elsewhere:Client", registry.ENTRY_POINT_GROUP))
    with pytest.raises(ConfigurationError, match="Several packages"):
        load_kms_client({"encryption.kms-type": "own"})


def test_another_package_cannot_take_the_name_of_a_built_in_type(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("memory", f"{__name__}:OwnClient", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints([point]).select(group=group))
    client = load_kms_client({"encryption.kms-type": "memory", **MEMORY_PROPERTIES})
    assert client.wrap_key(Secret(b"k" * 16), "keyA") != b"k" * 16


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, r"set encryption\.kms-type"),
        ({"encryption.kms-impl": "org.apache.iceberg.aws.AwsKeyManagementClient"}, "names a Java class"),
        ({"encryption.kms-type": "memory", "py-kms-impl": "a.B"}, "Both"),
        ({"encryption.kms-type": "memry"}, "Known types: aws, azure, gcp, local, memory, vault"),
        ({"py-kms-impl": "no.such.module.Client"}, "cannot be imported"),
        ({"py-kms-impl": "pyiceberg_encryption.NoSuchClass"}, "cannot be imported"),
        ({"py-kms-impl": "JustAName"}, r"write it as module\.Class"),
        ({"py-kms-impl": f"{__name__}.HalfDone"}, "has no unwrap_key"),
        ({"encryption.kms-type": "memory"}, r"Set kms\.memory\.key\.<id>"),
        ({"py-kms-impl": f"{__name__}.NoClient"}, "has no unwrap_key"),
        ({"encryption.kms-type": "memory", "kms.request-timeout": "soon"}, "not a number"),
        ({"encryption.kms-type": "memory", "kms.request-timeout": "0"}, "above 0"),
        ({"encryption.kms-type": "memory", "kms.request-timeout": "nan"}, "above 0"),
        ({"encryption.kms-type": "memory", "kms.request-timeout": "inf"}, "at most 3600"),
        ({"encryption.kms-type": "memory", "kms.max-attempts": "101"}, "at most 100"),
        ({"encryption.kms-type": 5}, "Unknown"),
        ({"encryption.kms-type": "memory", "kms.max-attempts": "2.5"}, "not a number"),
        ({"encryption.kms-type": "memory", "kms.memory.key.m": "not base64!"}, "not base64"),
        ({"encryption.kms-type": "memory", "kms.memory.key.m": "AAAA"}, "holds 3 bytes"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(properties: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_kms_client(properties)


def test_what_a_client_says_when_it_cannot_be_made_is_withheld() -> None:
    with pytest.raises(ConfigurationError, match=r"RuntimeError at test_kms_registry\.py:\d+ \(its text") as caught:
        load_kms_client({"py-kms-impl": f"{__name__}.OwnClient", "fail": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_client_without_key_generation_says_so() -> None:
    with pytest.raises(UsageError, match="does not generate"):
        OwnClient({}).generate_key("m")


def test_a_client_can_be_closed_by_a_block() -> None:
    with OwnClient({}) as client:
        assert client.wrap_key(b"ab", "m") == b"ba"
