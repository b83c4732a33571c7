"""A type for key bytes, so that they do not end up in a log, a traceback or a pickle by accident."""

from __future__ import annotations

import hmac
import os
from typing import TYPE_CHECKING, NoReturn

from pyiceberg_encryption.errors import ClosedError, SecretExposureError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer


class Secret:
    """Key bytes that show themselves only where `expose` is called.

    The bytes are overwritten by `wipe`, and when the object is collected. That is a best effort: Python and the
    libraries beneath it may hold copies that no program can reach (docs/security.md says which).
    """

    __slots__ = ("_data",)
    __hash__ = None  # type: ignore[assignment]  # a hash would be a fingerprint of the key

    def __init__(self, data: Buffer) -> None:
        self._data: bytearray | None = bytearray(data)

    @classmethod
    def random(cls, length: int, entropy: Callable[[int], bytes] = os.urandom) -> Secret:
        return cls(entropy(length))

    def expose(self) -> memoryview:
        """A read-only view of the bytes. Hand it to a cipher; keep no copy."""
        if self._data is None:
            raise ClosedError("This key was wiped and cannot be used any more")
        return memoryview(self._data).toreadonly()

    def wipe(self) -> None:
        if self._data is not None:
            self._data[:] = bytes(len(self._data))
            self._data = None

    def __del__(self) -> None:
        if hasattr(self, "_data"):
            self.wipe()

    def __len__(self) -> int:
        return len(self.expose())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self.expose(), other.expose())

    def __repr__(self) -> str:
        return "Secret(wiped)" if self._data is None else f"Secret({len(self._data)} bytes, redacted)"

    def __format__(self, format_spec: str) -> str:
        return format(repr(self), format_spec)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise SecretExposureError(
            "A key cannot be pickled or copied. Send the sealed key instead, and unseal it where it is needed"
        )
