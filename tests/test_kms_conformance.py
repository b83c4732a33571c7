"""The conformance tests: the clients that need no server pass them, and what is wrong with a client fails them."""

from __future__ import annotations

import base64
import hashlib
import inspect
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyiceberg_encryption import KeyManagementClient, Secret
from pyiceberg_encryption.ciphers import AesGcm
from pyiceberg_encryption.errors import ClosedError, EncryptionError, KmsError, KmsKeyError, KmsUnavailableError
from pyiceberg_encryption.kms import GuardedClient, KeyGenerationResult
from pyiceberg_encryption.kms.keystore import Keystore
from pyiceberg_encryption.testing import KmsClientTests
from tests.support import JAVA_MASTER_KEYS, MEMORY_PROPERTIES, NO_PAUSE

if TYPE_CHECKING:
    from collections.abc import Mapping

KEYS = ("keyA", "keyB")


class TestMemory(KmsClientTests):
    @pytest.fixture
    def properties(self) -> Mapping[str, str]:
        return {"encryption.kms-type": "memory", **MEMORY_PROPERTIES}

    @pytest.fixture
    def master_key_ids(self) -> tuple[str, str]:
        return KEYS


class TestLocal(KmsClientTests):
    @pytest.fixture
    def properties(self, tmp_path: Path) -> Mapping[str, str]:
        Keystore.create(tmp_path / "keys.json", "a passphrase", list(KEYS))
        return {
            "encryption.kms-type": "local",
            "kms.local.keystore": str(tmp_path / "keys.json"),
            "kms.local.passphrase": "a passphrase",
        }

    @pytest.fixture
    def master_key_ids(self) -> tuple[str, str]:
        return KEYS


class Disabling(KeyManagementClient):
    """A client that is as it should be, and can disable and generate keys. Its defects derive from it."""

    disabled: frozenset[str] = frozenset()

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        self.closed = False

    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        return self.sealed(key, self.master_key(wrapping_key_id))

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        return self.opened(wrapped_key, self.master_key(wrapping_key_id))

    def supports_key_generation(self) -> bool:
        return True

    def generate_key(self, wrapping_key_id: str) -> KeyGenerationResult:
        key = os.urandom(32)
        return KeyGenerationResult(key, self.wrap_key(key, wrapping_key_id))

    def close(self) -> None:
        self.closed = True

    def master_key(self, key_id: str) -> bytes:
        if self.closed:
            raise ClosedError("closed")
        if key_id not in JAVA_MASTER_KEYS or key_id in self.disabled:
            raise KmsKeyError("disabled or unknown")
        return JAVA_MASTER_KEYS[key_id]

    def sealed(self, key: bytes, master_key: bytes) -> bytes:
        return AesGcm(Secret(master_key)).seal(key)

    def opened(self, wrapped_key: bytes, master_key: bytes) -> bytes:
        try:
            return AesGcm(Secret(master_key)).open(wrapped_key)
        except Exception as error:
            raise KmsError(type(error).__name__) from None


class TestDisabling(KmsClientTests):
    generates_keys = True

    @pytest.fixture
    def properties(self) -> Mapping[str, str]:
        return {"py-kms-impl": f"{__name__}.Disabling"}

    @pytest.fixture
    def master_key_ids(self) -> tuple[str, str]:
        return KEYS

    @pytest.fixture
    def disable_master_key(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        return lambda key_id: monkeypatch.setattr(Disabling, "disabled", frozenset({key_id}))


class Xor(Disabling):
    """Hides keys, and authenticates nothing."""

    def sealed(self, key: bytes, master_key: bytes) -> bytes:
        return bytes(a ^ b for a, b in zip(key, hashlib.sha256(master_key).digest(), strict=False))

    def opened(self, wrapped_key: bytes, master_key: bytes) -> bytes:
        return self.sealed(wrapped_key, master_key)


class Obfuscating(Disabling):
    def sealed(self, key: bytes, master_key: bytes) -> bytes:
        return b"v1:" + base64.b64encode(key)

    def opened(self, wrapped_key: bytes, master_key: bytes) -> bytes:
        return base64.b64decode(wrapped_key[3:])


class AnyMasterKey(Disabling):
    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        for key_id in JAVA_MASTER_KEYS:
            try:
                return super().unwrap_key(wrapped_key, key_id)
            except KmsError:
                pass
        raise KmsError("no master key fits")


class AnOutageItSays(Disabling):
    def opened(self, wrapped_key: bytes, master_key: bytes) -> bytes:
        try:
            return super().opened(wrapped_key, master_key)
        except KmsError:
            raise KmsUnavailableError("something went wrong") from None


class IgnoresWhatFollows(Disabling):
    def sealed(self, key: bytes, master_key: bytes) -> bytes:
        sealed = super().sealed(key, master_key)
        return bytes([len(sealed)]) + sealed

    def opened(self, wrapped_key: bytes, master_key: bytes) -> bytes:
        return super().opened(wrapped_key[1 : 1 + sum(wrapped_key[:1])], master_key)


class LastWrapped(Disabling):
    """Remembers instead of unwrapping."""

    last = b""

    def sealed(self, key: bytes, master_key: bytes) -> bytes:
        LastWrapped.last = key
        return super().sealed(key, master_key)

    def opened(self, wrapped_key: bytes, master_key: bytes) -> bytes:
        super().opened(wrapped_key, master_key)
        return LastWrapped.last


class InMemoryOnly(Disabling):
    """Wrapped keys that another client does not know."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        self.own = os.urandom(16)

    def master_key(self, key_id: str) -> bytes:
        return bytes(a ^ b for a, b in zip(super().master_key(key_id), self.own, strict=True))


class MakesOneKey(Disabling):
    def generate_key(self, wrapping_key_id: str) -> KeyGenerationResult:
        return KeyGenerationResult(bytes(32), self.wrap_key(bytes(32), wrapping_key_id))


class MakesUnknownKeys(Disabling):
    def master_key(self, key_id: str) -> bytes:
        return hashlib.sha256(key_id.encode()).digest()


class OneThread(Disabling):
    """Keeps what it works on where all threads see it."""

    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        self.key = key
        master_key = self.master_key(wrapping_key_id)
        threading.Event().wait(0.001)
        return self.sealed(self.key, master_key)


class OneProcess(Disabling):
    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(properties)
        self.made_in = os.getpid()

    def master_key(self, key_id: str) -> bytes:
        if os.getpid() != self.made_in:
            raise KmsError("the connection is another process's")
        return super().master_key(key_id)


class NeverClosed(Disabling):
    def close(self) -> None: ...


class Talkative(Disabling):
    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        try:
            return super().wrap_key(key, wrapping_key_id)
        except KmsError:
            raise KmsKeyError(f"cannot encrypt({key!r})") from None


TESTS = KmsClientTests()


@pytest.mark.parametrize(
    ("client_class", "test", "message"),
    [
        (InMemoryOnly, TESTS.test_a_key_comes_back_in_another_client, "IntegrityError"),
        (InMemoryOnly, TESTS.test_the_keys_of_a_table, "IntegrityError"),
        (LastWrapped, TESTS.test_each_wrapped_key_is_its_own, "taken for another"),
        (Obfuscating, TESTS.test_a_wrapped_key_does_not_show_the_key, "shows the key"),
        (Obfuscating, TESTS.test_another_master_key_does_not_unwrap, "was accepted"),
        (Xor, TESTS.test_another_master_key_does_not_unwrap, "was accepted"),
        (AnyMasterKey, TESTS.test_another_master_key_does_not_unwrap, "was accepted"),
        (AnOutageItSays, TESTS.test_another_master_key_does_not_unwrap, "an outage"),
        (Xor, TESTS.test_a_wrapped_key_that_was_changed_is_refused, "another byte 0 was accepted, and gave another"),
        (AnOutageItSays, TESTS.test_a_wrapped_key_that_was_changed_is_refused, "an outage"),
        (Xor, TESTS.test_a_wrapped_key_of_another_length_is_refused, "half a wrapped key was accepted"),
        (IgnoresWhatFollows, TESTS.test_a_wrapped_key_of_another_length_is_refused, "a byte more was accepted"),
        (MakesOneKey, TESTS.test_the_service_makes_keys_if_it_says_so, "the same key"),
        (LastWrapped, TESTS.test_many_threads, "another thread's key"),
        (MakesUnknownKeys, TESTS.test_a_master_key_that_does_not_exist, "does not exist: None"),
        (NeverClosed, TESTS.test_a_master_key_that_was_disabled, "a disabled master key: None"),
        (OneThread, TESTS.test_many_threads, "another thread's key"),
        (OneProcess, TESTS.test_a_forked_child, "another process's"),
        (NeverClosed, TESTS.test_use_after_close, "use after close: None"),
        (Talkative, TESTS.test_no_key_is_shown, "a KmsKeyError shows the key"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_client_with_a_defect_fails(
    client_class: type[KeyManagementClient], test: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"{__name__}.{client_class.__name__}"
    fixtures = {
        "kms": GuardedClient(client_class({}), NO_PAUSE),
        "properties": {"py-kms-impl": path},
        "master_key_ids": KEYS,
        "unknown_master_key_id": "unknown",
        "disable_master_key": lambda key_id: None,
        "length": 16,
        "caplog": caplog,
    }
    tests = KmsClientTests()
    tests.generates_keys = True
    arguments = {name: fixtures[name] for name in inspect.signature(test).parameters}
    with pytest.raises((AssertionError, EncryptionError), match=message):
        getattr(tests, test.__name__)(**arguments)


def test_every_conformance_test_is_shown_to_fail() -> None:
    (cases,) = (mark.args[1] for mark in test_a_client_with_a_defect_fails.pytestmark)
    shown = {test.__name__ for _, test, _ in cases}
    assert shown == {name for name in dir(KmsClientTests) if name.startswith("test_")}


OUR_MODULE = """
from pyiceberg_encryption.kms.memory import KEY_PREFIX, MemoryKeyManagementClient

class OurClient(MemoryKeyManagementClient):
    def __init__(self, properties):
        super().__init__({f"{KEY_PREFIX}orders": "A" * 43 + "=", f"{KEY_PREFIX}people": "B" * 42 + "A="})

    def close(self): ...
"""


def test_the_example_of_the_documentation_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "kms.md").read_text()
    (example,) = re.findall(r"```python\n(# test_our_client\.py.*?)```", page, re.DOTALL)
    (tmp_path / "our_module.py").write_text(OUR_MODULE)
    (tmp_path / "test_our_client.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "."]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert re.search(r"\d\d passed, 1 skipped", result.stdout)


def test_without_pytest_a_message_says_what_to_install() -> None:
    program = "import sys; sys.modules['pytest'] = None; import pyiceberg_encryption.testing"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "pip install pytest" in result.stderr.splitlines()[-1]


def test_the_package_itself_does_not_import_pytest() -> None:
    program = "import sys; sys.modules['pytest'] = None; import pyiceberg_encryption.catalogs"
    subprocess.run([sys.executable, "-c", program], check=True)
