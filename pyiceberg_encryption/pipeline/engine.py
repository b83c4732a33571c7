"""Where tasks run: in this process, or on Spark. Work and tasks are what can be pickled, and hold no secret."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeVar

from pyiceberg_encryption.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
BATCHES_AT_ONCE = 2  # so that no core waits for the last task of a batch


class Engine(Protocol):
    def run(self, work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """Results as they come, in the order of the tasks. An error ends it all."""


class LocalEngine:
    """Threads of this process, for small tables. What does the work releases Python's lock most of the time."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or os.cpu_count() or 1

    def run(self, work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        batches = ([task] for task in tasks)
        return _in_flight(self._threads, batches, partial(_each, work))


class SparkEngine:
    """Tasks of a Spark application, which has this package on its executors."""

    def __init__(self, spark: SparkSession) -> None:
        context = getattr(spark, "sparkContext", None)
        if context is None:
            raise UsageError("This needs a session of Spark itself, with its SparkContext. Spark Connect has none")
        self._context = context

    def run(self, work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        def on_executors(batch: list[T]) -> list[R]:
            found: list[R] = self._context.parallelize(batch, len(batch)).map(work).collect()
            return found

        return _in_flight(BATCHES_AT_ONCE, _batches(tasks, self._context.defaultParallelism), on_executors)


def engine_for(spark: SparkSession | None) -> Engine:
    return LocalEngine() if spark is None else SparkEngine(spark)


def _in_flight(at_once: int, batches: Iterable[list[T]], run: Callable[[list[T]], list[R]]) -> Iterator[R]:
    """Takes no more of the tasks than are under way."""
    with ThreadPoolExecutor(at_once) as threads:
        under_way: deque[Future[list[R]]] = deque()
        try:
            for batch in batches:
                under_way.append(threads.submit(run, batch))
                if len(under_way) >= at_once:
                    yield from under_way.popleft().result()
            while under_way:
                yield from under_way.popleft().result()
        finally:
            for left in under_way:
                left.cancel()


def _batches(tasks: Iterable[T], size: int) -> Iterator[list[T]]:
    left = iter(tasks)
    while batch := list(islice(left, size)):
        yield batch


def _each(work: Callable[[T], R], batch: list[T]) -> list[R]:
    return [work(task) for task in batch]
