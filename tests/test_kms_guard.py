from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pyiceberg_encryption import Secret
from pyiceberg_encryption.errors import (
    EncryptionError,
    IntegrityError,
    KmsAccessDeniedError,
    KmsError,
    KmsKeyError,
    KmsThrottledError,
    KmsUnavailableError,
)
from pyiceberg_encryption.kms import GuardedClient, KeyManagementClient
from pyiceberg_encryption.kms.guard import FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, RetryPolicy
from tests.support import NO_PAUSE, RecordingClient

if TYPE_CHECKING:
    from collections.abc import Callable


class Raising(RecordingClient):
    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self._errors = list(errors)
        self.fail = self._raise_next

    def _raise_next(self) -> None:
        if self._errors:
            raise self._errors.pop(0)


@pytest.mark.parametrize("error", [KmsThrottledError("slow"), KmsUnavailableError("down")])
def test_an_outage_is_sat_out(error: Exception) -> None:
    client = Raising(error, error, error)
    GuardedClient(client, NO_PAUSE).wrap_key(Secret(b"k" * 16), "keyA")
    assert len(client.calls) == 4


@pytest.mark.parametrize("kind", [KmsAccessDeniedError, KmsKeyError, KmsError, IntegrityError])
def test_what_another_try_cannot_mend_is_not_tried_again(kind: type[EncryptionError]) -> None:
    client = Raising(kind("because"))
    with pytest.raises(kind, match=r"master key 'keyA'.*because"):
        GuardedClient(client, NO_PAUSE).wrap_key(Secret(b"k" * 16), "keyA")
    assert len(client.calls) == 1


def test_pauses_are_of_random_length_within_growing_bounds() -> None:
    pauses: list[float] = []
    bounds: list[tuple[float, float]] = []

    def jitter(low: float, high: float) -> float:
        bounds.append((low, high))
        return high / 2

    policy = RetryPolicy(max_attempts=9, sleep=pauses.append, jitter=jitter)
    with pytest.raises(KmsThrottledError, match="tried 9 times"):
        GuardedClient(Raising(*[KmsThrottledError("slow")] * 9), policy).wrap_key(Secret(b"k" * 16), "keyA")
    expected = [min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2**n) for n in range(8)]
    assert bounds == [(0, high) for high in expected]
    assert pauses == [high / 2 for high in expected]


def test_the_real_jitter_differs_from_time_to_time() -> None:
    pauses: list[float] = []
    policy = RetryPolicy(max_attempts=30, sleep=pauses.append)
    with pytest.raises(KmsThrottledError):
        GuardedClient(Raising(*[KmsThrottledError("slow")] * 30), policy).wrap_key(Secret(b"k" * 16), "keyA")
    assert len(set(pauses)) == 29


class OwnOutageError(KmsUnavailableError):
    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port} is down")


def test_a_subclass_from_elsewhere_counts_as_what_it_derives_from() -> None:
    client = Raising(OwnOutageError("kms", 1), OwnOutageError("kms", 1))
    GuardedClient(client, NO_PAUSE).wrap_key(Secret(b"k" * 16), "keyA")
    assert len(client.calls) == 3


class Answering(KeyManagementClient):
    def __init__(self, answer: Any) -> None:
        super().__init__({})
        self.answer = answer

    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        return self.answer  # type: ignore[no-any-return]

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        return self.answer  # type: ignore[no-any-return]

    def supports_key_generation(self) -> bool:
        return True

    def generate_key(self, wrapping_key_id: str) -> Any:
        return SimpleNamespace(key=self.answer, wrapped_key=self.answer)


@pytest.mark.parametrize("answer", [None, "text", b"", 5, [1]])
@pytest.mark.parametrize(
    "call",
    [
        lambda kms: kms.wrap_key(Secret(b"k"), "m"),
        lambda kms: kms.unwrap_key(b"k", "m"),
        lambda kms: kms.generate_key("m"),
    ],
    ids=["wrap", "unwrap", "generate"],
)
def test_an_answer_that_is_no_bytes_is_an_error(answer: Any, call: Callable[[GuardedClient], Any]) -> None:
    with pytest.raises(KmsError, match="bytes that are not empty"):
        call(GuardedClient(Answering(answer)))


def test_bytes_of_any_kind_are_an_answer() -> None:
    for answer in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        assert GuardedClient(Answering(answer)).unwrap_key(b"x", "m") == Secret(b"abc")
        assert GuardedClient(Answering(answer)).generate_key("m") == (Secret(b"abc"), b"abc")


class UnspeakableError(KmsUnavailableError):
    def __str__(self) -> str:
        raise ValueError("quoted key SECRET")


def test_an_error_that_cannot_be_shown_is_an_error_all_the_same() -> None:
    with pytest.raises(KmsError, match="UnspeakableError") as caught:
        GuardedClient(Raising(UnspeakableError()), NO_PAUSE).wrap_key(Secret(b"k" * 16), "keyA")
    assert "SECRET" not in str(caught.value)
