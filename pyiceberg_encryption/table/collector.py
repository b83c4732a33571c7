"""Python's garbage collector, paused while very many records are made.

Each time some hundred objects more exist, it looks through them for cycles, of which records have none; on a large plan
that takes as long as the rest. It is the process's, so pauses of several threads overlap, and the last one ends them.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_lock = threading.Lock()
_pauses = 0
_was_enabled = False


@contextlib.contextmanager
def paused() -> Iterator[None]:
    global _pauses, _was_enabled  # there is one collector
    with _lock:
        if _pauses == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_enabled:
                gc.enable()
