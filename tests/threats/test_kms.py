"""What the KMS does to us, and what we must not do to keys. The numbers are those of docs/security.md."""

from __future__ import annotations

import threading
import time

import pytest

from pyiceberg_encryption import KekCache, Keyring
from pyiceberg_encryption.errors import (
    KmsAccessDeniedError,
    KmsKeyError,
    KmsThrottledError,
    KmsUnavailableError,
)
from pyiceberg_encryption.kek_cache import TTL_SECONDS_DEFAULT
from pyiceberg_encryption.kms import GuardedClient
from pyiceberg_encryption.kms.guard import RetryPolicy
from tests.support import NO_PAUSE, Clock, RecordingClient, Table


class Failing:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", [KmsThrottledError("slow down"), KmsUnavailableError("connection refused")])
def test_19_kms_throttles_or_is_down(error: Exception) -> None:
    table = Table()
    table.client.fail = Failing(error)
    pauses: list[float] = []
    keyring = table.keyring(policy=RetryPolicy(max_attempts=4, sleep=pauses.append))
    with pytest.raises(type(error), match=rf"'keyA': {error} \(tried 4 times\)"):
        keyring.seal_manifest_list_key(keyring.new_key_metadata().with_file_length(50))
    assert len(table.client.calls) == 4
    assert len(pauses) == len(set(pauses)) == 3
    assert keyring.added == ()


def test_19_kms_is_down_for_a_moment() -> None:
    table = Table()
    failures = iter([KmsThrottledError("slow down"), KmsUnavailableError("connection refused")])

    def fail_twice() -> None:
        if error := next(failures, None):
            raise error

    table.client.fail = fail_twice
    keyring = table.keyring()
    keyring.seal_manifest_list_key(keyring.new_key_metadata().with_file_length(50))
    assert len(table.client.calls) == 3
    assert len(keyring.added) == 2


def test_19_kms_does_not_answer() -> None:
    table = Table()
    hanging = threading.Event()
    table.client.fail = lambda: hanging.wait(3) and None  # type: ignore[assignment]
    keyring = table.keyring(policy=RetryPolicy(request_timeout=0.05, max_attempts=2, sleep=lambda seconds: None))
    start = time.monotonic()
    with pytest.raises(KmsUnavailableError, match=r"no answer within 0\.05 s"):
        keyring.seal_manifest_list_key(keyring.new_key_metadata().with_file_length(50))
    assert time.monotonic() - start < 0.9  # two tries of 0.05 s
    assert keyring.added == ()
    hanging.set()


@pytest.mark.parametrize("kind", [KmsAccessDeniedError, KmsKeyError])
def test_20_kms_denies(kind: type[Exception]) -> None:
    table = Table()
    key_id, _ = table.commit()
    table.client.calls.clear()
    table.client.fail = Failing(kind("the key is disabled"))
    with pytest.raises(kind, match="the key is disabled"):
        table.keyring().open_manifest_list_key(key_id)
    assert len(table.client.calls) == 1


def test_20_access_outlives_a_revocation_until_the_ttl_ends() -> None:
    table = Table()
    key_id, sealed = table.commit()
    kms, clock = GuardedClient(table.client, NO_PAUSE), Clock()
    cache = KekCache(kms, clock=clock)
    keyring = Keyring(table.keys, master_key_id="keyA", kek_cache=cache, clock=table.clock)
    assert keyring.open_manifest_list_key(key_id) == sealed
    table.client.fail = Failing(KmsKeyError("the key is disabled"))
    clock.seconds += TTL_SECONDS_DEFAULT - 1
    assert keyring.open_manifest_list_key(key_id) == sealed
    clock.seconds += 1
    for _ in range(2):
        with pytest.raises(KmsKeyError):
            keyring.open_manifest_list_key(key_id)
        with pytest.raises(KmsKeyError):
            keyring.seal_manifest_list_key(keyring.new_key_metadata().with_file_length(50))


def test_20_a_use_does_not_prolong_the_ttl() -> None:
    client = RecordingClient()
    blob = client.wrap_key(b"k" * 16, "keyA")
    clock = Clock()
    cache = KekCache(GuardedClient(client), ttl_seconds=100, clock=clock)
    for _ in range(4):
        cache.unwrap(blob, "keyA")
        clock.seconds += 30
    client.fail = Failing(KmsKeyError("the key is disabled"))
    with pytest.raises(KmsKeyError):
        cache.unwrap(blob, "keyA")
