"""Plaintext weights in the memory of another process: known weights of a sealed model, searched for
in its pages.

From each `STEP` bytes of every matrix, 8 bytes are taken that stand nowhere else in the model. The
number found times `STEP` is how much of the model is in the clear, give or take a few steps.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.models.sealed.reader import open_sealed

STEP = 4096  # bytes
_AT = 2048  # from the start of a step: past the scales at the start of a tile
_CHUNK = 1 << 20  # the result stays in a cache
_BITS = 26  # of a word, by which a table says whether it can be one that is looked for

Words = NDArray[np.uint64]
_PHASES = 8  # of 8 bytes, at which a copy may begin


def windows(data: bytes | bytearray | memoryview, step: int = 1) -> Words:
    """The 8 bytes at each of eight places in a row, once in `step` bytes: wherever a copy of `data`
    lies in memory, one of each eight stands at a multiple of 8. (Words of few different bytes, as
    zeros, are left out.)"""
    body = np.frombuffer(data, np.uint8)
    if body.size < 2 * _PHASES:
        return np.empty(0, np.uint64)
    places = np.arange(0, body.size - 2 * _PHASES + 1, step)[:, None] + np.arange(_PHASES)
    rows = np.lib.stride_tricks.sliding_window_view(body, 8)[places.reshape(-1)]
    ordered = np.sort(rows, axis=1)
    varied = rows[(np.diff(ordered, axis=1) != 0).sum(axis=1) >= 5]
    found: Words = np.unique(np.ascontiguousarray(varied).view(np.uint64).reshape(-1))
    return found


def known(path: Path, key: bytes) -> Words:
    """Sorted words of the plaintext of the sealed model at `path`, in kernel order."""
    found: list[Words] = []
    with open_sealed(path, key, header_sha256=None) as model:
        buffer = bytearray(model.tiling.max_tile_nbytes)
        for tile in model.tiling:
            nbytes = model.read_tile(tile.number, buffer)
            if tile.segment.kind == "matrix":
                words = np.frombuffer(buffer, np.uint64, nbytes // 8)
                found.append(words[_AT // 8::STEP // 8].copy())
    words, counts = np.unique(np.concatenate(found), return_counts=True)
    chosen: Words = words[counts == 1]
    return chosen


@dataclass(frozen=True)
class Seen:
    """The memory of a process at one moment: bytes searched, words found."""

    searched: int
    found: int

    @property
    def plaintext(self) -> int:
        """Bytes of the model in the clear, about."""
        return self.found * STEP


class Search:
    """Looks for `words` in the memory of processes."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._table = np.zeros(1 << _BITS, np.bool_)
        self._table[(words >> np.uint64(64 - _BITS)).astype(np.int64)] = True

    def memory(self, process: int) -> Seen:
        """All writable memory of a process, which should stand still."""
        searched, found = self.words(process)
        return Seen(searched, len(found))

    def words(self, process: int) -> tuple[int, Words]:
        """Bytes searched, and which of the words stand in writable memory, at multiples of 8 bytes.
        """
        searched, found = 0, [np.empty(0, np.uint64)]
        folder = Path(f"/proc/{process}")
        with (folder / "mem").open("rb", buffering=0) as memory:
            for line in (folder / "maps").read_text().splitlines():
                first, last = (int(end, 16) for end in line.split()[0].split("-"))
                if " rw" not in line or "[v" in line:
                    continue
                for start in range(first, last, _CHUNK):
                    try:
                        area = os.pread(memory.fileno(), min(_CHUNK, last - start), start)
                    except OSError:
                        continue
                    searched += len(area)
                    found.append(self._hits(np.frombuffer(area, np.uint64, len(area) // 8)))
        return searched, np.unique(np.concatenate(found))

    def _hits(self, words: Words) -> Words:
        likely = words[self._table[(words >> np.uint64(64 - _BITS)).astype(np.int64)]]
        places = np.searchsorted(self._words, likely)
        places[places == len(self._words)] = 0
        hits: Words = likely[self._words[places] == likely]
        return hits

    def stopped(self, process: int) -> Seen:
        """`memory`, while the process is stopped."""
        os.kill(process, signal.SIGSTOP)
        try:
            time.sleep(0.05)
            return self.memory(process)
        finally:
            os.kill(process, signal.SIGCONT)
