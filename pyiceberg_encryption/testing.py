"""The tests that every KMS client has to pass, a client of your own included. They run under pytest.

from pyiceberg_encryption.testing import KmsClientTests

class TestOurClient(KmsClientTests):
    @pytest.fixture
    def properties(self):
        return {"py-kms-impl": "our_module.OurClient", "kms.ours.address": "…"}

    @pytest.fixture
    def master_key_ids(self):
        return "orders", "people"
"""

from __future__ import annotations

import base64
import os
import signal
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pyiceberg_encryption.ciphers import KEY_LENGTHS
from pyiceberg_encryption.errors import (
    ClosedError,
    ConfigurationError,
    EncryptionError,
    IntegrityError,
    KmsAccessDeniedError,
    KmsError,
    KmsKeyError,
    KmsUnavailableError,
)
from pyiceberg_encryption.kek_cache import KekCache
from pyiceberg_encryption.keyring import Keyring
from pyiceberg_encryption.kms import load_kms_client
from pyiceberg_encryption.secret import Secret

try:
    import pytest
except ImportError:
    raise ConfigurationError("pyiceberg_encryption.testing runs under pytest: pip install pytest") from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyiceberg_encryption.kms import GuardedClient

THREADS = 16
CALLS_FOR_EACH_THREAD = 5
CHANGED_PLACES = 16  # of a wrapped key: enough to hit each part of it, and few enough for a service that is paid
CHILD_SECONDS = 60


class KmsClientTests:
    """Derive from it, in a class that pytest collects, and override the fixtures `properties` and `master_key_ids`."""

    generates_keys = False
    """Whether the service makes keys itself."""

    refuses_use_after_close = True
    """Whether a client that was closed refuses to work. One that holds nothing may go on."""

    can_be_forked = True
    """Whether the client works in a forked child after it was used in the parent."""

    @pytest.fixture
    def properties(self) -> Mapping[str, str]:
        """The catalog properties that make the client."""
        raise NotImplementedError("Override the fixture `properties`")

    @pytest.fixture
    def master_key_ids(self) -> tuple[str, str]:
        """The ids of two master keys that exist. A test may disable the second one if `disable_master_key` can."""
        raise NotImplementedError("Override the fixture `master_key_ids`")

    @pytest.fixture
    def unknown_master_key_id(self, master_key_ids: tuple[str, str]) -> str:
        """An id in the service's form, of no master key."""
        return f"{master_key_ids[0]}-unknown"

    @pytest.fixture
    def disable_master_key(self) -> Callable[[str], object]:
        """A function that disables the master key with this id."""
        pytest.skip("the fixture `disable_master_key` is not overridden")

    @pytest.fixture
    def kms(self, properties: Mapping[str, str]) -> Iterator[GuardedClient]:
        client = load_kms_client(properties)
        yield client
        client.close()

    @pytest.mark.parametrize("length", KEY_LENGTHS)
    def test_a_key_comes_back_in_another_client(
        self, kms: GuardedClient, properties: Mapping[str, str], master_key_ids: tuple[str, str], length: int
    ) -> None:
        key = Secret.random(length)
        wrapped = kms.wrap_key(key, master_key_ids[0])
        other = load_kms_client(properties)
        assert other.unwrap_key(wrapped, master_key_ids[0]) == key, "another client got another key"
        other.close()

    def test_each_wrapped_key_is_its_own(self, kms: GuardedClient, master_key_ids: tuple[str, str]) -> None:
        first, second = Secret.random(16), Secret.random(16)
        wrapped = [(key, kms.wrap_key(key, master_key_ids[0])) for key in (first, second, first)]
        for key, wrapped_key in wrapped:
            assert kms.unwrap_key(wrapped_key, master_key_ids[0]) == key, "one wrapped key was taken for another"

    def test_a_wrapped_key_does_not_show_the_key(self, kms: GuardedClient, master_key_ids: tuple[str, str]) -> None:
        key = Secret.random(32)
        _assert_not_shown(key, kms.wrap_key(key, master_key_ids[0]), "the wrapped key")

    def test_another_master_key_does_not_unwrap(self, kms: GuardedClient, master_key_ids: tuple[str, str]) -> None:
        first, second = master_key_ids
        wrapped = kms.wrap_key(Secret.random(16), first)
        _assert_refused(kms, wrapped, second, "a key that another master key wrapped")

    def test_a_wrapped_key_that_was_changed_is_refused(
        self, kms: GuardedClient, master_key_ids: tuple[str, str]
    ) -> None:
        """Some bits of an encoding may not matter; then the key is the same. It is never another one."""
        key = Secret.random(16)
        wrapped = kms.wrap_key(key, master_key_ids[0])
        last = len(wrapped) - 1
        for place in sorted({round(n * last / (CHANGED_PLACES - 1)) for n in range(CHANGED_PLACES)}):
            changed = bytearray(wrapped)
            changed[place] ^= 1
            what = f"a wrapped key of {len(wrapped)} bytes with another byte {place}"
            _assert_refused(kms, bytes(changed), master_key_ids[0], what, or_same=key)

    def test_a_wrapped_key_of_another_length_is_refused(
        self, kms: GuardedClient, master_key_ids: tuple[str, str]
    ) -> None:
        wrapped = kms.wrap_key(Secret.random(16), master_key_ids[0])
        _assert_refused(kms, b"", master_key_ids[0], "an empty wrapped key")
        _assert_refused(kms, wrapped[: len(wrapped) // 2], master_key_ids[0], "half a wrapped key")
        _assert_refused(kms, wrapped[:-1], master_key_ids[0], "a wrapped key without its last byte")
        _assert_refused(kms, wrapped + b"\0", master_key_ids[0], "a wrapped key and a byte more")

    def test_the_service_makes_keys_if_it_says_so(self, kms: GuardedClient, master_key_ids: tuple[str, str]) -> None:
        generated = kms.generate_key(master_key_ids[0])
        assert (generated is not None) == self.generates_keys, "supports_key_generation and generates_keys differ"
        if generated is not None:
            key, wrapped = generated
            assert len(key) in KEY_LENGTHS, f"a key of {len(key)} bytes was made"
            assert kms.unwrap_key(wrapped, master_key_ids[0]) == key, "what was made unwraps to another key"
            _assert_not_shown(key, wrapped, "the wrapped form of a key that the service made")
            again = kms.generate_key(master_key_ids[0])
            assert again is not None
            assert again[0] != key, "the same key was made twice"

    def test_a_master_key_that_does_not_exist(
        self, kms: GuardedClient, master_key_ids: tuple[str, str], unknown_master_key_id: str
    ) -> None:
        key = Secret.random(16)
        wrapped = kms.wrap_key(key, master_key_ids[0])
        calls: list[Callable[[], object]] = [
            lambda: kms.wrap_key(key, unknown_master_key_id),
            lambda: kms.unwrap_key(wrapped, unknown_master_key_id),
        ]
        if self.generates_keys:
            calls.append(lambda: kms.generate_key(unknown_master_key_id))
        for call in calls:
            error = _error(call)
            assert isinstance(error, KmsKeyError), f"a master key that does not exist: {error!r}"
            assert unknown_master_key_id in str(error), f"the message does not name the master key: {error}"

    def test_a_master_key_that_was_disabled(
        self, kms: GuardedClient, master_key_ids: tuple[str, str], disable_master_key: Callable[[str], object]
    ) -> None:
        _, second = master_key_ids
        wrapped = kms.wrap_key(Secret.random(16), second)
        disable_master_key(second)
        for call in (lambda: kms.unwrap_key(wrapped, second), lambda: kms.wrap_key(Secret.random(16), second)):
            error = _error(call)
            assert isinstance(error, (KmsKeyError, KmsAccessDeniedError)), f"a disabled master key: {error!r}"

    def test_many_threads(self, kms: GuardedClient, master_key_ids: tuple[str, str]) -> None:
        def work(number: int) -> None:
            master_key_id = master_key_ids[number % 2]
            key = Secret.random(16)
            wrapped = kms.wrap_key(key, master_key_id)
            assert kms.unwrap_key(wrapped, master_key_id) == key, "a thread got another thread's key"

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(THREADS * CALLS_FOR_EACH_THREAD)))

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
    def test_a_forked_child(self, kms: GuardedClient, master_key_ids: tuple[str, str]) -> None:
        if not self.can_be_forked:
            pytest.skip("can_be_forked is False")
        key = Secret.random(16)
        wrapped = kms.wrap_key(key, master_key_ids[0])
        outcome = _in_a_child(lambda: kms.unwrap_key(wrapped, master_key_ids[0]) == key)
        assert outcome == "True", f"in a forked child: {outcome}"
        assert kms.unwrap_key(wrapped, master_key_ids[0]) == key, "the parent got another key after its child's call"

    def test_use_after_close(self, kms: GuardedClient, master_key_ids: tuple[str, str]) -> None:
        key = Secret.random(16)
        wrapped = kms.wrap_key(key, master_key_ids[0])
        kms.close()
        kms.close()
        if self.refuses_use_after_close:
            error = _error(lambda: kms.unwrap_key(wrapped, master_key_ids[0]))
            assert isinstance(error, ClosedError), f"use after close: {error!r}"
        else:
            assert kms.unwrap_key(wrapped, master_key_ids[0]) == key, "another key after close"

    def test_no_key_is_shown(
        self,
        kms: GuardedClient,
        master_key_ids: tuple[str, str],
        unknown_master_key_id: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Neither in reprs, logs and messages, nor in tracebacks that record the values of variables."""
        key = Secret.random(32)
        with caplog.at_level(1):
            wrapped = kms.wrap_key(key, master_key_ids[0])
            kms.unwrap_key(wrapped, master_key_ids[0])
            errors = [
                _error(lambda: kms.wrap_key(key, unknown_master_key_id)),
                _error(lambda: kms.unwrap_key(wrapped, master_key_ids[1])),
                _error(lambda: kms.unwrap_key(wrapped[:-1], master_key_ids[0])),
            ]
        _assert_not_shown(key, caplog.text.encode(), "the log")
        _assert_not_shown(key, f"{kms!r} {kms._client!r}".encode(), "the client's repr")
        for error in errors:
            assert error is not None, "what had to be refused was not"
            told = traceback.TracebackException.from_exception(error, capture_locals=True)
            _assert_not_shown(key, f"{error!r} {''.join(told.format())}".encode(), f"a {type(error).__name__}")

    def test_the_keys_of_a_table(
        self, kms: GuardedClient, properties: Mapping[str, str], master_key_ids: tuple[str, str]
    ) -> None:
        """What one process seals in two commits, another opens."""
        writer = Keyring([], master_key_id=master_key_ids[0], kek_cache=KekCache(kms))
        sealed = [writer.new_key_metadata().with_file_length(length) for length in (100, 200)]
        key_ids = [writer.seal_manifest_list_key(key_metadata) for key_metadata in sealed]
        other = load_kms_client(properties)
        reader = Keyring(
            writer.added, master_key_id=master_key_ids[0], kek_cache=KekCache(other), snapshot_key_ids=key_ids
        )
        assert [reader.open_manifest_list_key(key_id) for key_id in key_ids] == sealed, (
            "a table's keys do not come back"
        )
        other.close()


def _error(call: Callable[[], object]) -> EncryptionError | None:
    try:
        call()
    except EncryptionError as error:
        return error
    return None


def _assert_refused(
    kms: GuardedClient, wrapped_key: bytes, master_key_id: str, what: str, or_same: Secret | None = None
) -> None:
    try:
        key = kms.unwrap_key(wrapped_key, master_key_id)
    except (IntegrityError, KmsError) as error:
        assert not isinstance(error, KmsUnavailableError), f"{what} counts as an outage: {error}"
        return
    assert or_same is not None, f"{what} was accepted"
    assert key == or_same, f"{what} was accepted, and gave another key"


def _assert_not_shown(key: Secret, text: bytes, where: str) -> None:
    shown = bytes(key.expose())
    forms = (shown, shown[::-1], shown.hex().encode(), base64.b64encode(shown), repr(shown)[2:-1].encode())
    assert not any(form in text for form in forms), f"{where} shows the key"


def _in_a_child(work: Callable[[], object]) -> str:
    """What `work` returns or raises in a forked child, as text. A child that hangs is ended."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks is the point
        child = os.fork()
    if child == 0:
        os.close(reading)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout may have put a handler of its own here
        signal.alarm(CHILD_SECONDS)
        try:
            outcome = str(work())
        except BaseException as error:
            outcome = repr(error)
        os.write(writing, outcome.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        outcome = answer.read()
    os.waitpid(child, 0)
    return outcome or f"no answer within {CHILD_SECONDS} s"
