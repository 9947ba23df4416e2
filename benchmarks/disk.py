"""`python -m benchmarks.disk`: a fully streamed model from disk, beside the speed of programs that
only read the disk.

Engine and readers take turns on the same file. It is dropped from the page cache before every turn,
and looked for there (mincore). So both find the host's caches below the disk in the same state. The
bound is the way of reading with the best median. First all ways have a turn, then the best of them
go on in every round.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from appliance.boot.planning import inspection, residency
from appliance.models.file import tiling
from appliance.models.sealed import reader as sealed
from benchmarks import commandline, memory, report
from benchmarks.cgroups import Group, needed
from benchmarks.process import Engine

_HUGE = 2 << 20
_AHEAD = 32 << 20
_BEST = 3  # ways that take part in every round
_CONTEXT, _LIMIT = 192, 320 << 20  # positions; bytes of memory for the process that streams


@dataclass(frozen=True)
class Way:
    """A way to read a file from front to back: so many threads, each with one block at a time."""

    kind: str  # direct: past the page cache; buffered: through it; ahead: and the system is asked to read ahead
    readers: int
    block: int

    @property
    def name(self) -> str:
        """For people and documents."""
        return f"{self.kind}, {self.readers} x {self.block >> 10} KiB"


WAYS = tuple(Way(kind, readers, block << 10) for kind in ("direct", "buffered", "ahead") for readers in (1, 2, 4, 8)
             for block in (256, 1024, 4096))


def blocks(size: int, block: int) -> Iterable[tuple[int, int]]:
    """Offset and bytes of each block of a file; the rest behind the last 4096 is left out, as
    direct reads need it."""
    end = size // 4096 * 4096
    return ((start, min(block, end - start)) for start in range(0, end, block))


def resident_pages(file: Path) -> int:
    """Pages of a file that the page cache has."""
    size = file.stat().st_size
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        whole = np.frombuffer(mapped, np.uint8)
        found = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        failed = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(whole.ctypes.data), ctypes.c_size_t(size), ctypes.c_void_p(found.ctypes.data))
        del whole
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return int(np.count_nonzero(found & 1))


def drop(file: Path) -> None:
    """Drop a file from the page cache. RuntimeError when some of it stays there."""
    memory.forget(file)
    left = resident_pages(file)
    if left:
        raise RuntimeError(f"{file}: {left} pages stay in the page cache; does another process read it?")


def read(file: Path, way: Way) -> float:
    """Bytes a second that `way` reads the file at, from the disk."""
    drop(file)
    descriptor = os.open(file, os.O_RDONLY | (os.O_DIRECT if way.kind == "direct" else 0))
    size, turn = file.stat().st_size, threading.Lock()
    todo = iter(blocks(size, way.block))

    def claim() -> tuple[int, int] | None:
        with turn:
            return next(todo, None)

    threads = [threading.Thread(target=_reader(descriptor, way, claim)) for _ in range(way.readers)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - begun
    os.close(descriptor)
    return size // 4096 * 4096 / seconds


def _reader(descriptor: int, way: Way, claim: Callable[[], tuple[int, int] | None]) -> Callable[[], None]:
    room = -(-way.block // _HUGE) * _HUGE
    pages = mmap.mmap(-1, room + _HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)  # a virtual disk takes few stretches of memory in one request
    start = -ctypes.addressof(ctypes.c_char.from_buffer(pages)) % _HUGE
    view = memoryview(pages)[start:start + room]
    view[:] = bytes(room)

    def run() -> None:
        while (found := claim()) is not None:
            offset, nbytes = found
            if way.kind == "ahead":
                os.posix_fadvise(descriptor, offset + _AHEAD, nbytes, os.POSIX_FADV_WILLNEED)
            if os.preadv(descriptor, [view[:nbytes]], offset) != nbytes:
                raise RuntimeError(f"byte {offset}: fewer bytes than there are")

    return run


def bound(rates: dict[str, list[float]]) -> tuple[str, float]:
    """The way with the best median, and that."""
    name = max(rates, key=lambda each: statistics.median(rates[each]))
    return name, statistics.median(rates[name])


def item(rates: dict[str, list[float]], speeds: list[float], needs: int, came: list[float],
         kept: list[float]) -> dict[str, Any]:
    """The result. `rates` are bytes a second of each way that was in every round, `speeds` tokens a
    second from disk. `needs` are bytes of records that a token reads, `came` bytes from the disk
    for each token. `kept` are tokens a second with all records in memory: the bound that processors
    set.
    """
    name, most = bound(rates)
    by_round = [speed * needs / max(turn) for speed, *turn in zip(speeds, *rates.values(), strict=True)]
    return {"kind": "disk", "bound_by": name, "bound": most, "rates": rates, "tokens_per_second": speeds,
            "bytes_per_token": needs, "disk_bytes_per_token": came, "in_memory_tokens_per_second": kept,
            "share_of_bound": statistics.median(speeds) * needs / most,
            "share_by_round": by_round}


def line(found: dict[str, Any]) -> str:
    """A result for people."""
    speed, low, high = (each(found["tokens_per_second"]) for each in (statistics.median, min, max))
    first, last = 100 * min(found["share_by_round"]), 100 * max(found["share_by_round"])
    return (f"from disk: {speed:.2f} tokens/s ({low:.2f}..{high:.2f}), {speed * found['bytes_per_token'] / 1e9:.2f} "
            f"GB/s, {100 * found['share_of_bound']:.0f}% of the bound ({first:.0f}..{last:.0f}), "
            f"{found['bound'] / 1e9:.2f} GB/s by {found['bound_by']}; with all of it in memory "
            f"{statistics.median(found['in_memory_tokens_per_second']):.2f} tokens/s")


def read_by_a_pass(file: Path) -> int:
    """Bytes of a sealed or plain file that a pass reads."""
    if not inspection.is_sealed(file):
        tiles = tiling.Tiling(inspection.header(file), file.stat().st_size, tiling.DEFAULT_TILE_SIZE, gaps=False)
        return sum(each.runs * each.run_nbytes for each in residency.read_by_a_pass(tiles))
    return sum(each.records_nbytes for each in residency.read_by_a_pass(sealed.structure(file)[1]))


def measure(file: Path, key: Path, threads: int, rounds: int, ways: Iterable[Way] = WAYS) -> dict[str, Any]:
    """Turns of readers and engine."""
    tried = {way: read(file, way) for way in tqdm(tuple(ways), file=sys.stderr, unit="way", disable=None)}
    best = sorted(tried, key=lambda way: tried[way], reverse=True)[:_BEST]
    plain, needs = not inspection.is_sealed(file), read_by_a_pass(file)
    tokens = max(1, min(_CONTEXT - 16, (2 << 30) // needs))
    group = Group("appliance-disk", _LIMIT)
    memory_share = "0" if plain else "kept"
    engines = list[Engine]()
    rates: dict[str, list[float]] = {way.name: [] for way in best}
    speeds: list[list[float]] = [[], []]
    came = list[float]()
    try:
        engines += [Engine("disk", "streamed_server", str(file), str(key), "disk", enter=group.enter),
                    Engine("memory", "streamed_server", str(file), str(key), memory_share)]
        for engine in engines:
            engine.ask("open", model=str(file), threads=threads, context=_CONTEXT, slots=1)
            engine.ask("decode", depth=8, tokens=1)
        for _ in tqdm(range(rounds), file=sys.stderr, unit="round", disable=None):
            for way in best:
                rates[way.name].append(read(file, way))
            for engine, found in zip(engines, speeds, strict=True):
                if engine is engines[0] or not plain:
                    drop(file)
                else:  # it is in the page cache for that, not in memory of its own
                    memory.bring(file)
                before = engine.ask("fetched")["bytes"]
                found.append(tokens / float(engine.ask("decode", depth=8, tokens=tokens)["seconds"]))
                if engine is engines[0]:
                    came.append((engine.ask("fetched")["bytes"] - before) / tokens)
    finally:
        for engine in engines:
            engine.close()
        group.close()
    return {**item(rates, speeds[0], needs, came, speeds[1]),
            "tried": {way.name: rate for way, rate in tried.items()}}


def main() -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.disk", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="1.1b", help=f"{commandline.NAMES}, or a GGUF file")
    parser.add_argument("--plain", action="store_true", help="the GGUF file, not a sealed one (default: sealed)")
    parser.add_argument("--threads", type=commandline.THREADS, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=commandline.ROUNDS, default=5)
    commandline.options(parser, "disk.json")
    args = commandline.parse(parser)
    needed()
    file, key = memory.sealed_model(args.model, args.work)
    file = commandline.model(args.model, args.work) if args.plain else file
    found = measure(file, key, args.threads, args.rounds)
    document = {"machine": report.machine(), "time": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
                "load_average": os.getloadavg()[0], "model": args.model, "threads": args.threads, "rows": [found]}
    args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(line(found))
    return 0


if __name__ == "__main__":
    commandline.run(main)
