"""`python -m benchmarks.even_times`: whether the processor time of a text's way to tokens tells of
which kind the text is.

Texts of two kinds, prose and all others, have the same number of bytes. They are read in an order
that is drawn, by a tokenizer in oblivious form. Welch's t-test compares the processor times of both
kinds, as dudect does (Reparaz, Balasch, Verbauwhede: "Dude, is my code constant time?", 2017). All
times are compared, and then the times below some quantiles, since interrupts are not part of the
code. Two parts are timed: the compiled kernel, and the whole call from text to a list. The kernels
that read a text of as many bytes in the JSON of a body are timed after them. So are the two that
make text of a token, and JSON of a text.

The exit code is 1 where |t| is 4.5 or more for a kernel.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.cli import numbers
from appliance.kernels.layouts.blind import SLOTS
from appliance.kernels.runtime.table import KernelTable
from appliance.oblivious import Sweeps
from appliance.oblivious.answers import Writer
from appliance.oblivious.contents import BodyReader
from appliance.oblivious.stops import LENGTH as PART
from appliance.text import tokenizer
from tests.support import oblivious

BOUND = 4.5
QUANTILES = (1.0, 0.99, 0.95, 0.9, 0.75, 0.5)
_DIFFERENT = 300  # texts of each kind
_FIRST = 50  # that do not count
_PIECE = 6  # bytes of a token


class TimedKernels:
    """The kernels, of which one notes its processor time."""

    def __init__(self, kernels: KernelTable, name: str) -> None:
        self._kernels, self._name = kernels, name
        self.last = 0

    def function(self, name: str) -> Callable[..., Any]:
        """The kernel of a name."""
        call = self._kernels.function(name)
        return call if name != self._name else lambda *values: self._timed(call, values)

    def _timed(self, call: Callable[..., Any], values: Sequence[int]) -> Any:
        start = time.thread_time_ns()
        result = call(*values)
        self.last = time.thread_time_ns() - start
        return result


def prose(count: int, nbytes: int, seed: int) -> list[str]:
    """Texts of so many bytes, of words in ASCII."""
    rng, stems = random.Random(seed), ("the", "river", "in", "stone", "over", "light", "went", "house", "and", "of")
    return [" ".join(rng.choices(stems, k=nbytes))[:nbytes] for _ in range(count)]


def times(nbytes: int, count: int, seed: int, *, alike: bool = False) -> NDArray[np.int64]:
    """The kind of each text, and the nanoseconds of kernel and of the whole call (`count`, 3)."""
    timed, swept = TimedKernels(oblivious.kernels(), "encode_text"), tokenizer.load(oblivious.metadata())
    swept.sweeping = Sweeps(swept, timed)  # type: ignore[arg-type]
    others = oblivious.drawn_texts(2 * _DIFFERENT, nbytes, seed)
    kinds = (others[0::2] if alike else prose(_DIFFERENT, nbytes, seed)), others[1::2]
    rng, rows = random.Random(seed), list[tuple[int, int, int]]()
    for _ in range(count + _FIRST):
        kind = rng.randrange(2)
        text = rng.choice(kinds[kind])
        start = time.thread_time_ns()
        swept.encode(text)
        rows.append((kind, timed.last, time.thread_time_ns() - start))
    return np.array(rows[_FIRST:], np.int64)


def reading_times(kernel: str, nbytes: int, count: int, seed: int) -> NDArray[np.int64]:
    """The kind of each string of JSON, and the nanoseconds of a kernel that reads it (`count`, 2).
    """
    timed, rng, rows = TimedKernels(oblivious.kernels(), kernel), random.Random(seed), list[tuple[int, int]]()
    reader = BodyReader(timed)  # type: ignore[arg-type]
    others = [json.dumps(text, ensure_ascii=bool(number % 2))[1:-1].encode()[:nbytes].ljust(nbytes, b".")
              for number, text in enumerate(oblivious.drawn_texts(2 * _DIFFERENT, nbytes, seed))]
    kinds = [text.encode() for text in prose(_DIFFERENT, nbytes, seed)], others
    for _ in range(count + _FIRST):
        kind = rng.randrange(2)
        reader.read(b'{"prompt": "' + rng.choice(kinds[kind]) + b'"}')
        rows.append((kind, timed.last))
    return np.array(rows[_FIRST:], np.int64)


def writing_times(kernel: str, nbytes: int, count: int, seed: int) -> NDArray[np.int64]:
    """The kind of each text, or of each token of `_PIECE` bytes, and the nanoseconds of a kernel
    that writes it (`count`, 2)."""
    timed, (plain, swept), rng = TimedKernels(oblivious.kernels(), kernel), oblivious.both(), random.Random(seed)
    assert isinstance(swept.sweeping, Sweeps)
    writer = Writer(swept.sweeping.rows, timed)  # type: ignore[arg-type]
    texts = [text.encode()[:min(nbytes, PART)] for text in oblivious.drawn_texts(_DIFFERENT, nbytes, seed)]
    alike = [text.encode()[:min(nbytes, PART)] for text in prose(_DIFFERENT, nbytes, seed)]
    tokens: tuple[list[int], list[int]] = [], []
    for token in range(plain.vocab_size):
        piece = plain.piece(token)
        if len(piece) == _PIECE and not plain.is_special(token):
            tokens[not piece.strip().isalpha()].append(token)
    place, rows = memoryview(bytearray(SLOTS * PART)), list[tuple[int, int]]()
    for _ in range(count + _FIRST):
        kind = rng.randrange(2)
        if kernel == "write_string":
            writer.write(memoryview(rng.choice((alike, texts)[kind])), place)
        else:
            writer.complete(place[:4], 0, rng.choice(tokens[kind]), ())
        writer.wipe()
        rows.append((kind, timed.last))
    return np.array(rows[_FIRST:], np.int64)


def welch(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Welch's t of two samples."""
    spread = one.var(ddof=1) / one.size + other.var(ddof=1) / other.size
    return float((one.mean() - other.mean()) / np.sqrt(spread)) if spread else 0.0


def judged(kinds: NDArray[np.int64], found: NDArray[np.int64]) -> dict[str, Any]:
    """The mean of each kind, in microseconds, and t below each quantile."""
    by_quantile = {}
    for each in QUANTILES:
        below = found <= np.quantile(found, each)
        by_quantile[f"{each:g}"] = round(welch(found[below & (kinds == 0)], found[below & (kinds == 1)]), 2)
    means = (round(float(found[kinds == kind].mean()) / 1e3, 2) for kind in range(2))
    return dict(zip(("first_us", "second_us"), means, strict=True)) | {"t": by_quantile}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.even_times", description="times by kind of text")
    for name, least, most, default, words in (("count", 100, 10_000_000, 10_000, "texts"),
                                              ("bytes", 16, 65_536, 256, "of a text"),
                                              ("seed", 0, 2**32, 1, "of what is drawn")):
        parser.add_argument(f"--{name}", type=numbers.whole(least, most), default=default,
                            help=f"{words} (default: %(default)s)")
    parser.add_argument("--alike", action="store_true", help="both kinds are the others: what chance makes of t")
    arguments = parser.parse_args()
    rows = times(arguments.bytes, arguments.count, arguments.seed, alike=arguments.alike)
    found = {part: judged(rows[:, 0], rows[:, column]) for part, column in (("kernel", 1), ("call", 2))}
    for kernel in ("quote_places", "read_string"):
        read = reading_times(kernel, arguments.bytes, arguments.count, arguments.seed)
        found[kernel] = judged(read[:, 0], read[:, 1])
    for kernel in ("complete_text", "write_string"):
        written = writing_times(kernel, arguments.bytes, arguments.count, arguments.seed)
        found[kernel] = judged(written[:, 0], written[:, 1])
    print(json.dumps({"texts": len(rows), "bytes": arguments.bytes, **found}, indent=1))
    return int(max(abs(t) for part, each in found.items() if part != "call" for t in each["t"].values()) >= BOUND)


if __name__ == "__main__":
    raise SystemExit(main())
