"""Spreads work on independent blocks over the cores. AES-GCM releases the GIL, so threads are enough.

The helpers wait on a queue that is written in C. An executor of concurrent.futures has locks that are written in
Python: Ctrl-C in the midst of one would leave it held, and the next large read would hang.
"""

from __future__ import annotations

import contextlib
import os
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from pyiceberg_encryption import process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIN_BLOCKS = 4  # Below this, handing work to a thread costs more than it gains
MAX_THREADS = 4  # AES-GCM on four cores is as fast as memory
WAKE_UP_SECONDS = 0.01  # should a helper's word that it is done be lost to an interrupt

_waiting_for_work: SimpleQueue[Callable[[], None]] = SimpleQueue()
_helpers_generation = -1  # threads do not survive a fork


def for_each(count: int, work: Callable[[int], None]) -> None:
    """Calls `work(index)` for every index below `count`, in no order. Returns, or raises, when all calls ended."""
    helpers = min(_available_cores(), MAX_THREADS) - 1 if count >= MIN_BLOCKS else 0
    indexes = iter(range(count))  # each index is handed out once, to whoever asks next
    begun: list[None] = []
    ended: list[BaseException | None] = []
    news: SimpleQueue[None] = SimpleQueue()

    def help_out() -> None:
        begun.append(None)
        error = None
        try:
            for index in indexes:
                work(index)
        except BaseException as raised:
            error = raised
        ended.append(error)
        news.put(None)

    try:
        _ask_for_help(helpers, help_out)
        for index in indexes:
            work(index)
    finally:
        _wait(indexes, begun, ended, news)
    for error in ended:
        if error is not None:
            raise error


def _wait(indexes: Iterator[int], begun: list[Any], ended: list[Any], news: SimpleQueue[None]) -> None:
    """Waits for helpers even when it is interrupted: they are at work on buffers that the caller will use again."""
    interrupt: BaseException | None = None
    while True:
        try:
            for _ in indexes:
                pass  # nobody begins with another one
            while len(begun) != len(ended):
                with contextlib.suppress(Empty):
                    news.get(timeout=WAKE_UP_SECONDS)
            break
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def _available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ask_for_help(helpers: int, help_out: Callable[[], None]) -> None:
    """Whether or not help comes: the caller does what nobody else has begun."""
    global _waiting_for_work, _helpers_generation
    if helpers > 0 and _helpers_generation != process.generation():
        _waiting_for_work = SimpleQueue()
        _helpers_generation = process.generation()
        with contextlib.suppress(RuntimeError):  # no more threads, or the interpreter is about to end
            for _ in range(MAX_THREADS - 1):
                threading.Thread(target=_help, args=(_waiting_for_work,), name="ags1", daemon=True).start()
    for _ in range(helpers):
        _waiting_for_work.put(help_out)


def _help(waiting_for_work: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        waiting_for_work.get()()
