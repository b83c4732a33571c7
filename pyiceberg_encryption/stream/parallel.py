"""Spreads work on independent blocks over the cores. AES-GCM releases the GIL, so threads are enough."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from pyiceberg_encryption import process

if TYPE_CHECKING:
    from collections.abc import Callable

MIN_BLOCKS = 4  # Below this, handing work to a thread costs more than it gains
MAX_THREADS = 4  # AES-GCM on four cores is as fast as memory

_pool: ThreadPoolExecutor | None = None
_pool_generation = -1  # the threads of a pool do not survive a fork


def _available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _shared_pool() -> ThreadPoolExecutor:
    global _pool, _pool_generation
    if _pool is None or _pool_generation != process.generation():
        _pool = ThreadPoolExecutor(MAX_THREADS - 1, thread_name_prefix="ags1")
        _pool_generation = process.generation()
    return _pool


def for_each(count: int, work: Callable[[int], None]) -> None:
    """Calls `work(index)` for every index below `count`, in no order. Returns, or raises, when all calls ended."""
    threads = min(_available_cores(), MAX_THREADS) if count >= MIN_BLOCKS else 1

    def share(of: int) -> None:
        for index in range(of, count, threads):
            work(index)

    others: list[Future[None]] = []
    try:
        for of in range(1, threads):
            others.append(_shared_pool().submit(share, of))
        share(0)
    finally:
        _wait_for(others)
    for other in others:
        other.result()


def _wait_for(others: list[Future[None]]) -> None:
    """Waits even when it is interrupted: the others are at work on buffers that the caller will use again."""
    interrupt: BaseException | None = None
    while not all(other.done() for other in others):
        try:
            wait(others)
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
