"""How fast this machine reads memory, a file, and through the cipher: short measurements for an
estimate.

Half a second in all. Other work on the machine lowers the figures, and so does a clock that the
host slows down.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from appliance.errors import ModelError
from appliance.models.file.disk import RandomFile
from appliance.models.sources.read_ahead import ReadAhead

_TILE = 1 << 20
_TILES = 48  # of a file, that a thread reads from the page cache
_SECONDS = 0.1  # of each measurement


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second by all threads together."""

    memory: float
    cipher: float
    cache: float  # a file in the page cache
    disk: float  # past the page cache


def measure(file: Path, threads: int, seconds: float = _SECONDS) -> Rates:
    """The rates of this machine, the file's where it can be read; each is measured for so many
    seconds."""
    cache = _rate(threads, _reader(file), seconds)
    return Rates(memory=_rate(threads, _summer(), seconds), cipher=_rate(threads, _decrypter(), seconds), cache=cache,
                 disk=disk(file, seconds) or cache)


def disk(file: Path, seconds: float = _SECONDS) -> float:
    """Bytes a second of a file that is read ahead past the page cache, as a streamed model's is; 0
    where that cannot be. Begins somewhere in the file, as a disk's own cache may have what was
    measured before."""
    size = file.stat().st_size if file.is_file() else 0
    places = range(0, size - _TILE + 1, _TILE)
    first = time.monotonic_ns() // 1000 % max(len(places), 1)
    records = [(place, _TILE) for place in (*places[first:], *places[:first])]
    try:
        opened = ReadAhead(RandomFile(file), records)
    except ModelError:
        return 0.0
    with closing(opened) as ahead:
        total, begun = 0, time.perf_counter()
        while ahead.direct and records and time.perf_counter() < begun + seconds:
            for place, nbytes in records[total // _TILE % len(records):][:4]:
                if ahead.take(place, nbytes) is None:
                    return 0.0
                ahead.give_back(place)
                total += nbytes
        return total / (time.perf_counter() - begun)


def _rate(threads: int, make: Callable[[int], Callable[[], int]], seconds: float) -> float:
    """Run `make(thread)()`, which gives bytes, again and again in each thread."""
    def run(thread: int) -> float:
        work, total = make(thread), 0
        begun = time.perf_counter()
        while time.perf_counter() < begun + seconds:
            count = work()
            if not count:
                break
            total += count
        return total / max(time.perf_counter() - begun, 1e-9)

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(run, range(threads)))


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


def _reader(path: Path) -> Callable[[int], Callable[[], int]]:
    """Read the same tiles again and again, each thread its own: too many for a cache of the
    processor. The page cache has them after a first time, which does not count."""
    def make(thread: int) -> Callable[[], int]:
        try:
            file = RandomFile(path)
        except ModelError:
            return lambda: 0
        buffer = memoryview(mmap.mmap(-1, _TILE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        tiles = max(file.size // _TILE, 1)
        place = thread * _TILES

        def work() -> int:
            nonlocal place
            start = place % tiles * _TILE
            count = min(_TILE, file.size - start)
            place = thread * _TILES + (place + 1) % _TILES
            try:
                file.read_into(buffer[:count], start)
            except ModelError:
                return 0
            return count

        for _ in range(_TILES):
            work()
        return work

    return make
