"""What a forked child has to know: that it is one, and that no thread of its parent's came along."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class HasLock(Protocol):
    _lock: threading.Lock


_generation = 0
_with_locks: weakref.WeakSet[HasLock] = weakref.WeakSet()


def generation() -> int:
    """A number that differs between a process and the children it forks. Much quicker than os.getpid."""
    return _generation


def give_lock(owner: HasLock) -> None:
    """Sets `owner._lock`: a lock that is free in a child, even if a thread held it at the moment of the fork.

    It is a plain lock, so that Ctrl-C cannot come between `with owner._lock` and its effect.
    """
    owner._lock = threading.Lock()
    _with_locks.add(owner)


def _forked() -> None:
    global _generation
    _generation += 1
    for owner in _with_locks:
        owner._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
