"""Work on many tiles by a few threads, which leave nothing of it on their stacks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from appliance.secure import stacks

T = TypeVar("T")
_THREADS = 2  # the disk and the memory are what they wait for


def ordered(work: Callable[[int], T], numbers: range) -> Iterator[T]:
    """`work` of each number, in order, done by a few threads a little ahead."""
    def wiped(number: int) -> T:
        try:
            return work(number)
        finally:
            stacks.wipe()

    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(_THREADS, "model-tiles") as pool:
        try:
            for number in numbers:
                waiting.append(pool.submit(wiped, number))
                if len(waiting) > 2 * _THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
