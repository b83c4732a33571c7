"""SDKs log requests and answers at DEBUG, and with them keys. While a KMS is called, such loggers are silent."""

from __future__ import annotations

import contextlib
import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_is_calling: ContextVar[bool] = ContextVar("is_calling", default=False)


def silence(*loggers: str) -> None:
    """Children of a logger have to be named too."""
    for name in loggers:
        logging.getLogger(name).addFilter(_shows_no_key)


@contextlib.contextmanager
def calling() -> Iterator[None]:
    before = _is_calling.set(True)
    try:
        yield
    finally:
        _is_calling.reset(before)


def _shows_no_key(record: logging.LogRecord) -> bool:
    return not _is_calling.get()
