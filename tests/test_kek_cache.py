from __future__ import annotations

import threading
import time

import pytest

from pyiceberg_encryption import KekCache, Secret, kek_cache
from pyiceberg_encryption.errors import KmsAccessDeniedError, UsageError
from pyiceberg_encryption.kms import GuardedClient
from tests.support import NO_PAUSE, Clock, RecordingClient

KEK = b"k" * 16


def wrapped(client: RecordingClient, kek: bytes = KEK, master_key: str = "keyA") -> bytes:
    blob = client.wrap_key(kek, master_key)
    client.calls.clear()
    return blob


def test_one_call_until_the_ttl_ends() -> None:
    client, clock = RecordingClient(), Clock()
    blob = wrapped(client)
    cache = KekCache(GuardedClient(client), ttl_seconds=60, clock=clock)
    for _ in range(10):
        assert cache.unwrap(blob, "keyA") == Secret(KEK)
    assert len(client.calls) == 1
    clock.seconds += 59.9
    cache.unwrap(blob, "keyA")
    assert len(client.calls) == 1
    clock.seconds += 0.1
    cache.unwrap(blob, "keyA")
    assert len(client.calls) == 2


def test_no_ttl_no_cache() -> None:
    client = RecordingClient()
    blob = wrapped(client)
    cache = KekCache(GuardedClient(client), ttl_seconds=0)
    for _ in range(3):
        cache.unwrap(blob, "keyA")
    assert len(client.calls) == 3


def test_a_hundred_threads_cost_one_call() -> None:
    client = RecordingClient()
    blob = wrapped(client)
    client.fail = lambda: time.sleep(0.3)  # long enough for all threads to arrive
    cache = KekCache(GuardedClient(client))
    together = threading.Barrier(100)
    keks: list[Secret] = []

    def ask() -> None:
        together.wait()
        keks.append(cache.unwrap(blob, "keyA"))

    run_threads(ask, 100)
    assert keks == [Secret(KEK)] * 100
    assert len(client.calls) == 1


def test_a_hundred_threads_get_the_one_error_and_the_next_one_asks_again() -> None:
    client = RecordingClient()
    blob = wrapped(client)

    def deny() -> None:
        time.sleep(0.3)
        raise KmsAccessDeniedError("no")

    client.fail = deny
    cache = KekCache(GuardedClient(client, NO_PAUSE))
    together = threading.Barrier(100)
    errors: list[Exception] = []

    def ask() -> None:
        together.wait()
        try:
            cache.unwrap(blob, "keyA")
        except KmsAccessDeniedError as error:
            errors.append(error)

    run_threads(ask, 100)
    assert len(errors) == 100
    assert len(client.calls) == 1
    client.fail = lambda: None
    assert cache.unwrap(blob, "keyA") == Secret(KEK)


def test_a_slow_call_for_one_kek_does_not_hold_up_another() -> None:
    client = RecordingClient()
    slow, quick = wrapped(client), wrapped(client, b"q" * 16)
    cache = KekCache(GuardedClient(client))
    cache.unwrap(quick, "keyA")
    go_on = threading.Event()
    client.fail = lambda: go_on.wait(10) and None  # type: ignore[assignment]
    thread = threading.Thread(target=cache.unwrap, args=(slow, "keyA"))
    thread.start()
    assert cache.unwrap(quick, "keyA") == Secret(b"q" * 16)
    assert thread.is_alive()
    go_on.set()
    thread.join()


def test_another_master_key_or_blob_is_another_entry() -> None:
    client = RecordingClient()
    cache = KekCache(GuardedClient(client))
    of_a, of_b = wrapped(client), wrapped(client, master_key="keyB")
    cache.unwrap(of_a, "keyA")
    cache.unwrap(of_b, "keyB")
    assert [key_id for _, key_id in client.calls] == ["keyA", "keyB"]


def test_is_bounded_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kek_cache, "MAX_ENTRIES", 3)
    client = RecordingClient()
    cache = KekCache(GuardedClient(client))
    blobs = [client.wrap_key(KEK, "keyA") for _ in range(4)]
    for blob in blobs:
        cache.unwrap(blob, "keyA")
    client.calls.clear()
    cache.unwrap(blobs[1], "keyA")
    assert client.calls == []
    cache.unwrap(blobs[0], "keyA")
    assert len(client.calls) == 1


def test_a_kek_that_was_made_is_at_hand() -> None:
    client = RecordingClient()
    cache = KekCache(GuardedClient(client))
    kek, blob = cache.make("keyA", 24)
    assert cache.unwrap(blob, "keyA") is kek
    assert client.calls == [("wrap", "keyA")]
    assert KekCache(GuardedClient(client)).unwrap(blob, "keyA") == kek


def test_a_client_without_its_guard_is_refused() -> None:
    with pytest.raises(UsageError, match="load_kms_client"):
        KekCache(RecordingClient())  # type: ignore[arg-type]


def test_a_call_that_was_interrupted_is_made_again() -> None:
    client = RecordingClient()
    blob = wrapped(client)
    interrupts = [KeyboardInterrupt()]

    class Interrupted(GuardedClient):
        def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> Secret:
            if interrupts:
                raise interrupts.pop()
            return super().unwrap_key(wrapped_key, wrapping_key_id)

    cache = KekCache(Interrupted(client))
    with pytest.raises(KeyboardInterrupt):
        cache.unwrap(blob, "keyA")
    assert cache.unwrap(blob, "keyA") == Secret(KEK)


def run_threads(work: object, count: int) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
