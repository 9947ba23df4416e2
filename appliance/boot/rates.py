"""How fast this machine reads memory, a file, and through the cipher: short measurements for an estimate.

Half a second in all. Other work on the machine lowers the figures, and so does a clock that the host slows down.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from appliance.errors import ModelError
from appliance.models.disk_random import RandomFile

_TILE = 1 << 20
_SECONDS = 0.1  # of each measurement


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second by all threads together."""

    memory: float
    cipher: float
    cache: float  # a file in the page cache
    disk: float  # past the page cache


def measure(file: Path, threads: int, seconds: float = _SECONDS) -> Rates:
    """The rates of this machine, the file's where it can be read; each is measured for so many seconds."""
    cache = _rate(threads, _reader(file, direct=False), seconds)
    return Rates(memory=_rate(threads, _summer(), seconds), cipher=_rate(threads, _decrypter(), seconds), cache=cache,
                 disk=disk(file, threads, seconds) or cache)


def disk(file: Path, threads: int, seconds: float = _SECONDS) -> float:
    """Bytes a second that so many threads read of a file past the page cache; 0 where that cannot be. It takes 1 MiB of
    memory for each."""
    return _rate(threads, _reader(file, direct=True), seconds)


def _rate(threads: int, make: Callable[[int], Callable[[], int]], seconds: float) -> float:
    """Run `make(thread)()`, which gives bytes, again and again in each thread."""
    def run(thread: int) -> int:
        work, total, end = make(thread), 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            count = work()
            if not count:
                break
            total += count
        return total

    begun = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(run, range(threads)))
    return total / max(time.perf_counter() - begun, 1e-9)


def _summer() -> Callable[[int], Callable[[], int]]:
    def make(thread: int) -> Callable[[], int]:
        data = np.ones(8 << 20, np.uint64)  # 64 MiB: more than a cache, as a rule

        def work() -> int:
            data.max()
            return data.nbytes

        return work

    return make


def _decrypter() -> Callable[[int], Callable[[], int]]:
    def make(thread: int) -> Callable[[], int]:
        cipher, nonce = AESGCM(AESGCM.generate_key(256)), bytes(12)
        message, out = cipher.encrypt(nonce, bytes(_TILE), None), bytearray(_TILE)

        def work() -> int:
            cipher.decrypt_into(nonce, message, None, out)
            return _TILE

        return work

    return make


def _reader(path: Path, *, direct: bool) -> Callable[[int], Callable[[], int]]:
    """Read tiles one after the other, each thread from a place of its own; the first 8 twice if cached reads count."""
    def make(thread: int) -> Callable[[], int]:
        try:
            file = RandomFile(path)
            if direct:
                file.bypass_cache()
        except ModelError:
            return lambda: 0
        buffer = memoryview(mmap.mmap(-1, _TILE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        tiles = max(file.size // _TILE, 1)
        place = (thread * 7919 + os.getpid()) % tiles if direct else thread * 8

        def work() -> int:
            nonlocal place
            start = place % tiles * _TILE
            count = min(_TILE, file.size - start)
            place = place + 1 if direct else thread * 8 + (place + 1) % 8
            try:
                file.read_into(buffer[:count], start)
            except ModelError:
                return 0
            return count

        return work

    return make
