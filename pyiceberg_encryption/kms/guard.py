"""What every client needs around it: a time limit, retries where they help, and errors that say what to do.

Foreign exceptions are not passed on and not chained: their text may quote the arguments of the call, and one of these
is a key.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pyiceberg_encryption import errors as errors_module
from pyiceberg_encryption.errors import (
    ConfigurationError,
    EncryptionError,
    KmsError,
    KmsUnavailableError,
    UsageError,
)
from pyiceberg_encryption.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyiceberg_encryption.kms.client import KeyManagementClient

REQUEST_TIMEOUT = "kms.request-timeout"
REQUEST_TIMEOUT_DEFAULT = 10.0
MAX_REQUEST_TIMEOUT = 3600
MAX_ATTEMPTS = "kms.max-attempts"
MAX_ATTEMPTS_DEFAULT = 4
MOST_ATTEMPTS = 100
FIRST_BACKOFF_SECONDS = 0.2
MAX_BACKOFF_SECONDS = 5.0

T = TypeVar("T")


@dataclass(frozen=True)
class RetryPolicy:
    """Calls are tried again after an outage or a throttling only, after pauses of random length (full jitter)."""

    request_timeout: float = REQUEST_TIMEOUT_DEFAULT
    max_attempts: int = MAX_ATTEMPTS_DEFAULT
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[float, float], float] = random.uniform

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> RetryPolicy:
        return cls(
            number(properties, REQUEST_TIMEOUT, REQUEST_TIMEOUT_DEFAULT, float, MAX_REQUEST_TIMEOUT),
            number(properties, MAX_ATTEMPTS, MAX_ATTEMPTS_DEFAULT, int, MOST_ATTEMPTS),
        )

    def pause(self, failed_attempts: int) -> None:
        longest: float = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2 ** (failed_attempts - 1))
        self.sleep(self.jitter(0, longest))


class GuardedClient:
    """A client as the rest of this package uses it."""

    def __init__(self, client: KeyManagementClient, policy: RetryPolicy | None = None) -> None:
        self._client = client
        self._policy = policy or RetryPolicy()

    def wrap_key(self, key: Secret, wrapping_key_id: str) -> bytes:
        if not isinstance(key, Secret):
            raise UsageError("A key is given to the guard of a KMS client as a Secret: wrap_key(Secret(key), …)")

        def wrap() -> bytes:
            return _bytes(self._client.wrap_key(bytes(key.expose()), wrapping_key_id))

        return self._call("wrap a key", wrapping_key_id, wrap)

    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> Secret:
        def unwrap() -> Secret:
            return _secret(self._client.unwrap_key(wrapped_key, wrapping_key_id))

        return self._call("unwrap a key", wrapping_key_id, unwrap)

    def generate_key(self, wrapping_key_id: str) -> tuple[Secret, bytes] | None:
        """A new key, in the clear and wrapped; None if the service does not make keys."""

        def generate() -> tuple[Secret, bytes] | None:
            if not self._client.supports_key_generation():
                return None
            result = self._client.generate_key(wrapping_key_id)
            if not (hasattr(result, "key") and hasattr(result, "wrapped_key")):
                raise KmsError(f"generate_key returned {type(result).__name__} where KeyGenerationResult was expected")
            return _secret(result.key), _bytes(result.wrapped_key)

        return self._call("generate a key", wrapping_key_id, generate)

    def close(self) -> None:
        self._client.close()

    def _call(self, what: str, key_id: str, call: Callable[[], T]) -> T:
        for attempt in range(1, self._policy.max_attempts + 1):
            try:
                return self._call_in_time(what, key_id, call)
            except KmsUnavailableError as error:
                if attempt == self._policy.max_attempts:
                    raise type(error)(f"{error} (tried {attempt} times)") from None
                self._policy.pause(attempt)
        raise AssertionError("unreachable")

    def _call_in_time(self, what: str, key_id: str, call: Callable[[], T]) -> T:
        """Runs the call in a thread of its own, which is left behind if it does not end in time."""
        failed = f"Could not {what} with master key {key_id!r}"
        results: list[T] = []
        errors: list[EncryptionError] = []

        def run() -> None:
            try:
                results.append(call())
            except BaseException as error:
                errors.append(self._translated(error, failed))

        thread = threading.Thread(target=run, name="kms-call", daemon=True)
        thread.start()
        thread.join(self._policy.request_timeout)
        if results:
            return results[0]
        if errors:
            raise errors[0]
        raise KmsUnavailableError(
            f"{failed}: no answer within {self._policy.request_timeout:g} s. Check that the service can be reached, or "
            f"raise {REQUEST_TIMEOUT}"
        )

    def _translated(self, error: BaseException, failed: str) -> EncryptionError:
        with contextlib.suppress(Exception):  # a message that cannot be made
            if isinstance(error, EncryptionError):
                return _own_type(error)(f"{failed}: {error}")
        return KmsError(f"{failed}: {type(self._client).__name__} raised {described(error)}")


def described(error: BaseException) -> str:
    """A foreign error's type and place. Not its text: that may quote the arguments of a call, and so a key."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place} (its text is withheld, since it may quote a key)"


def _own_type(error: EncryptionError) -> type[EncryptionError]:
    """The nearest of this package's types: a subclass from elsewhere may not take a message alone."""
    return next(kind for kind in type(error).__mro__ if kind.__module__ == errors_module.__name__)


def _bytes(answer: object) -> bytes:
    if not isinstance(answer, (bytes, bytearray, memoryview)) or len(answer) == 0:
        raise KmsError(f"the KMS client returned {type(answer).__name__} where bytes that are not empty were expected")
    return bytes(answer)


def _secret(answer: object) -> Secret:
    return answer if isinstance(answer, Secret) else Secret(_bytes(answer))


def number(
    properties: Mapping[str, str],
    name: str,
    default: T,
    kind: Callable[[str], T],
    highest: int,
    *,
    may_be_zero: bool = False,
) -> T:
    """The value of a property, between 0 and `highest`."""
    if name not in properties:
        return default
    try:
        value = kind(properties[name])
    except (TypeError, ValueError):
        raise ConfigurationError(f"Property {name} is not a number: {properties[name]!r}") from None
    if not 0 <= value <= highest or (value == 0 and not may_be_zero):  # type: ignore[operator]
        lowest = "at least 0" if may_be_zero else "above 0"
        raise ConfigurationError(f"Property {name} must be {lowest} and at most {highest}, and is {properties[name]}")
    return value
