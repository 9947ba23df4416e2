"""A small mutation fuzzer: seeds in, mutated bytes to a target, a time and a memory bound on every input.

A target is a module `tests.fuzz.<name>_fuzz` with `fuzz(data: bytes) -> None`, which returns or raises only errors
of the appliance's own tree that it catches itself, and `seeds() -> list[bytes]`. Anything that escapes `fuzz` is a
finding; so is an input that takes longer than `SECONDS_PER_INPUT` or grows the process past `MEMORY_BYTES`.

    python -m tests.fuzz.driver policy --seconds 600

The random seed is printed and may be given back with `--seed`. A finding is written to `build/fuzz/`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

SECONDS_PER_INPUT = 5
MEMORY_BYTES = 4 << 30
LONGEST_INPUT = 1 << 20
INTERESTING = [b"\x00", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff\xff\xff\xff\xff", b"\x80", b"${", b"{%", b'"',
               b"\\",
               b"[" * 64, b"{" * 64, b"(" * 64, b"\xef\xbb\xbf", b"\r\n", b"9" * 40, b"<<E\n", b"/*", b"\xed\xa0\x80"]


class TooSlowError(Exception):
    """One input took longer than the bound."""


def _mutate(rng: random.Random, data: bytes, pool: list[bytes]) -> bytes:
    """Apply one to eight random edits: flips, cuts, repeats, splices, boundary numbers, interesting strings."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(7)
        if kind == 0 and out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del out[at:at + rng.choice((1, 2, 8, 64, 1024))]
        elif kind == 2:
            out[at:at] = rng.choice(INTERESTING)
        elif kind == 3:
            width = rng.choice((1, 2, 4, 8))
            out[at:at + width] = rng.choice((0, 1, -1, 1 << (8 * width - 1), (1 << (8 * width - 1)) - 1)
                                            ).__index__().to_bytes(width + 1, "little", signed=True)[:width]
        elif kind == 4:
            other = rng.choice(pool)
            start = rng.randrange(len(other) + 1)
            out[at:at] = other[start:start + rng.choice((4, 16, 256))]
        elif kind == 5:
            out[at:at] = out[at:at + rng.choice((1, 8, 64))] * rng.choice((2, 5, 50))
        else:
            out[at:at + rng.choice((1, 4))] = rng.randbytes(rng.choice((1, 4)))
    return bytes(out[:LONGEST_INPUT])


@contextlib.contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TooSlowError(f"one input took more than {seconds} s")

    # Processor time, so that a busy machine is no finding; ten times that on the clock, for what waits.
    before = [signal.signal(number, ring) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.alarm(10 * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(number, handler)


def run(target: Callable[[bytes], None], seeds: list[bytes], *, seconds: float, seed: int, least: int = 0
        ) -> tuple[int, bytes | None]:
    """Fuzz for `seconds` of a processor, and for `least` inputs; return the number of inputs tried and the first that
    is a finding."""
    rng = random.Random(seed)
    pool = [item for item in seeds if item] or [b"x"]
    count, end = 0, time.process_time() + seconds
    plain = iter(seeds)
    while count < least or time.process_time() < end:
        data = next(plain, None)
        if data is None:
            data = _mutate(rng, rng.choice(pool), pool)
        count += 1
        try:
            with _time_limit(SECONDS_PER_INPUT):
                target(data)
        except BaseException:  # noqa: BLE001 - whatever escapes is the finding
            traceback.print_exc()
            return count, data
        if len(pool) < 2000 and rng.random() < 0.002:
            pool.append(data)
    return count, None


def main() -> int:
    """Fuzz one target by name; exit 0 without findings, 1 with one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=time.time_ns() % (1 << 32))
    args = parser.parse_args()
    module = importlib.import_module(f"tests.fuzz.{args.target}_fuzz")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    count, finding = run(module.fuzz, module.seeds(), seconds=args.seconds, seed=args.seed)
    print(f"{args.target}: {count} inputs, seed {args.seed}, {'no finding' if finding is None else 'A FINDING'}")
    if finding is None:
        return 0
    folder = Path("build/fuzz")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{args.target}-{hashlib.sha256(finding).hexdigest()[:16]}"
    path.write_bytes(finding)
    print(f"the input is in {path}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
