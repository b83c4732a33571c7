"""The interface between this package and a key management service."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from pyiceberg_encryption.errors import UsageError
from pyiceberg_encryption.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from typing_extensions import Buffer, Self


class KeyGenerationResult:
    """A new key, in the clear and wrapped by a master key."""

    def __init__(self, key: Buffer, wrapped_key: bytes) -> None:
        self.key = Secret(key)
        self.wrapped_key = wrapped_key

    def __repr__(self) -> str:
        return f"KeyGenerationResult(key={self.key!r})"


class KeyManagementClient(ABC):
    """Wraps and unwraps keys with master keys that stay in the service.

    A client is made once for a catalog, from the catalog's properties, and used from several threads. It need not
    retry, limit its time or guard against its library's messages: all clients run inside `GuardedClient`. It raises
    the errors that derive from KmsError, and IntegrityError for a wrapped key that the service finds to be damaged or
    wrapped by another master key.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = properties

    @abstractmethod
    def wrap_key(self, key: bytes, wrapping_key_id: str) -> bytes:
        """Encrypts `key` with the named master key. What it returns is stored in the table's metadata."""

    @abstractmethod
    def unwrap_key(self, wrapped_key: bytes, wrapping_key_id: str) -> bytes:
        """Decrypts what `wrap_key` returned. Must not accept a key that another master key wrapped."""

    def supports_key_generation(self) -> bool:
        """Whether the service makes keys itself: then `generate_key` is used where a new key is needed."""
        return False

    def generate_key(self, wrapping_key_id: str) -> KeyGenerationResult:
        raise UsageError(f"{type(self).__name__} does not generate keys")

    def close(self) -> None:  # noqa: B027 (most clients have nothing to let go of)
        """Lets go of connections and keys."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        self.close()
