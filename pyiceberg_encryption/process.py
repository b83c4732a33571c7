"""What a forked child has to know: that it is one, and that no thread of its parent's came along."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

_generation = 0


def generation() -> int:
    """A number that differs between a process and the children it forks. Much quicker than os.getpid."""
    return _generation


def _forked() -> None:
    global _generation
    _generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Lock:
    """A lock that is free in a child, even if a thread held it in the parent at the moment of the fork."""

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._generation = _generation

    def __enter__(self) -> None:
        if self._generation != _generation:
            self._renew()
        self._lock.acquire()

    def __exit__(
        self, exctype: type[BaseException] | None, excinst: BaseException | None, exctb: TracebackType | None
    ) -> None:
        self._lock.release()
