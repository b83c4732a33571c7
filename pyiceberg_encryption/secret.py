"""A type for key bytes, so that they do not end up in a log, a traceback or a pickle by accident."""

from __future__ import annotations

import hmac
import os
from typing import TYPE_CHECKING, NoReturn

from pyiceberg_encryption.errors import SecretExposureError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer


class Secret:
    """Key bytes that show themselves only where `expose` is called.

    They are overwritten when nothing refers to them any more. That is a best effort: Python and the libraries beneath
    it may hold copies that no program can reach (docs/security.md says which).
    """

    __slots__ = ("_data",)
    __hash__ = None  # type: ignore[assignment]  # a hash would be a fingerprint of the key

    def __init__(self, data: Buffer) -> None:
        self._data = _WipedBytes(memoryview(data))

    @classmethod
    def random(cls, length: int, entropy: Callable[[int], bytes] = os.urandom) -> Secret:
        return cls(entropy(length))

    def expose(self) -> memoryview:
        """A read-only view of the bytes. Hand it to a cipher; keep no copy."""
        return memoryview(self._data).toreadonly()

    def __len__(self) -> int:
        return len(self._data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._data, other._data)

    def __repr__(self) -> str:
        return f"Secret({len(self._data)} bytes, redacted)"

    def __format__(self, format_spec: str) -> str:
        return format(repr(self), format_spec)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        _refuse()

    def __getstate__(self) -> NoReturn:
        _refuse()


class _WipedBytes(bytearray):
    """Overwritten when the last view of it is gone, which may be later than the Secret that it belonged to."""

    def __del__(self) -> None:
        self[:] = bytes(len(self))


def _refuse() -> NoReturn:
    raise SecretExposureError(
        "A key cannot be pickled or copied. Send the sealed key instead, and unseal it where it is needed"
    )
