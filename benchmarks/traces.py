"""`python -m benchmarks.traces`: how well a decoder reads tokens from what a host sees of a mixture
of experts.

A small mixture with random weights answers texts of a chain of words, one token a pass. Two hosts
look: one sees which places of the file are read, the other which pages of memory a pass touches,
each in their order. For each `access_pattern` a decoder is trained to name the token
of each pass, by the traces of that pass and of those around it. It is tried on texts that it has
not seen. Beside it stands the best that can be done without looking: always the same, most frequent
word.

The exit code is 1 where something tells tokens that must not (more than one point above words
without looking), or where a decoder does not read what is there to be read.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from tqdm import tqdm

from appliance.cli import numbers
from appliance.models.sources.source import Access
from tests.support import family_models
from tests.support.disk_traces import DiskTracer
from tests.support.page_traces import PageTracer
from tests.support.traced_mixture import EXPERTS, running, working

LENGTH, WORDS, FOLLOWERS = 24, 200, 8
HIDDEN, EPOCHS, BATCH, RATE = 96, 12, 128, 2e-3
POINT, CLEARLY = 0.01, 0.10
TELLING = {("disk", "leaks"), ("pages", "leaks"), ("pages", "hidden")}
"""Host and access pattern where tokens are to be read: "hidden" promises nothing of memory."""

Floats = NDArray[np.float32]
Trace = tuple[int, ...]


def texts(count: int, seed: int = 3) -> NDArray[np.int64]:
    """Draw texts (count, LENGTH) of words whose frequencies fall as in a language. Half of the time
    a word is one of a few that often follow the word before."""
    random = np.random.default_rng(seed)
    words = random.permutation(np.arange(3, family_models.VOCABULARY))[:WORDS]
    shares = 1 / np.arange(1, WORDS + 1)
    shares /= shares.sum()
    followers = random.choice(WORDS, (WORDS, FOLLOWERS), p=shares)
    found = np.zeros((count, LENGTH), np.int64)
    for text in found:
        at = 0
        for place in range(LENGTH):
            at = random.choice(WORDS, p=shares) if random.random() < 0.5 else followers[at, random.integers(FOLLOWERS)]
            text[place] = words[at]
    return found


def seen(host: str, access: str, tokens: NDArray[np.int64], folder: Path) -> Iterator[list[Trace]]:
    """Yield the traces of each text that a host sees, one for each of its tokens."""
    with pytest.MonkeyPatch.context() as patch:
        disk = DiskTracer(patch)
        with running("compiled sealed", folder, cast(Access, access), kept=EXPERTS if host == "pages" else ()) as (
                engine, source):
            memory = PageTracer(working(engine, source), folder, window=8) if host == "pages" else None
            for text in tqdm(tokens.tolist(), desc=f"{host}, {access}", unit="text", file=sys.stderr):
                engine._forward.boundary.forget(0)
                found: list[Trace] = []
                for place, token in enumerate(text):
                    disk.reads.clear()
                    if memory is None:
                        engine._forward.run([token], [place], [0], [0])
                        found.append(tuple(offset for offset, _ in disk.reads))
                        continue
                    with memory.tracing():
                        engine._forward.run([token], [place], [0], [0])
                    found.append(tuple(np.frombuffer(memory.pages, np.uint64).tolist()))
                yield found


def features(traces: Sequence[Sequence[Trace]]) -> Floats:
    """Make columns (texts, LENGTH, columns) of what each pass touched: how often, and when first.
    Columns that never differ are left out."""
    number: dict[int, int] = {}
    for text in traces:
        for trace in text:
            for place in trace:
                number.setdefault(place, len(number))
    found = np.zeros((len(traces), LENGTH, 2, len(number)), np.float32)
    for rows, passes in zip(found, traces, strict=True):
        for row, trace in zip(rows, passes, strict=True):
            for at in range(len(trace) - 1, -1, -1):
                row[0, number[trace[at]]] += 1
                row[1, number[trace[at]]] = 1 + at / len(trace)
    flat = found.reshape(-1, 2 * len(number))
    return flat[:, np.ptp(flat, axis=0) > 0].reshape(len(traces), LENGTH, -1)


def around(values: Floats) -> Floats:
    """Rows with those of the pass before and of the pass after beside them, and the place in the
    text."""
    empty = np.zeros_like(values[:, :1])
    places = np.broadcast_to(np.eye(LENGTH, dtype=np.float32), (len(values), LENGTH, LENGTH))
    before, after = np.concatenate([empty, values[:, :-1]], 1), np.concatenate([values[:, 1:], empty], 1)
    return np.concatenate([before, values, after, places], 2).reshape(len(values) * LENGTH, -1)


class Decoder:
    """A network with one hidden layer, trained by Adam on the likelihood of tokens."""

    def __init__(self, columns: int, tokens: int) -> None:
        self._random = np.random.default_rng(1)
        shapes = ((columns, HIDDEN), (HIDDEN,), (HIDDEN, tokens), (tokens,))
        self._weights = [self._random.standard_normal(shape).astype(np.float32) * np.float32(
            (2 / shape[0])**0.5 if len(shape) > 1 else 0) for shape in shapes]
        self._means = [[np.zeros_like(weights) for weights in self._weights] for _ in range(2)]
        self._steps = 0

    def _forward(self, x: Floats) -> tuple[Floats, Floats]:
        first, bias, last, end = self._weights
        hidden = np.maximum(x @ first + bias, 0)
        return hidden, hidden @ last + end

    def train(self, x: Floats, y: NDArray[np.int64]) -> None:
        """Go through all rows EPOCHS times."""
        for _ in range(EPOCHS):
            order = self._random.permutation(len(x))
            for start in range(0, len(x), BATCH):
                rows = order[start:start + BATCH]
                self._step(x[rows], y[rows])

    def _step(self, x: Floats, y: NDArray[np.int64]) -> None:
        hidden, scores = self._forward(x)
        error = np.exp(scores - scores.max(1, keepdims=True))
        error /= error.sum(1, keepdims=True)
        error[np.arange(len(y)), y] -= 1
        error /= len(y)
        back = (error @ self._weights[2].T) * (hidden > 0)
        self._steps += 1
        for index, slope in enumerate((x.T @ back, back.sum(0), hidden.T @ error, error.sum(0))):
            first, second = self._means[0][index], self._means[1][index]
            first += 0.1 * (slope - first)
            second += 0.001 * (slope * slope - second)
            size = np.sqrt(second / (1 - 0.999**self._steps)) + 1e-8
            self._weights[index] -= np.float32(RATE) * first / np.float32(1 - 0.9**self._steps) / size

    def right(self, x: Floats, y: NDArray[np.int64]) -> float:
        """The share of tokens that it names."""
        return float((self._forward(x)[1].argmax(1) == y).mean())


@dataclass(frozen=True)
class Result:
    """One host and access pattern."""

    host: str
    access: str
    kinds: int  # of traces
    passes: int
    decoder: float
    without: float  # the most frequent word

    @property
    def as_promised(self) -> bool:
        """Whether tokens can be read where they may be, and nowhere else."""
        gain = self.decoder - self.without
        return gain > CLEARLY if (self.host, self.access) in TELLING else gain <= POINT


def measure(host: str, access: str, tokens: NDArray[np.int64], folder: Path) -> Result:
    """Train on three quarters of the texts, and try the rest."""
    traces, count = list(seen(host, access, tokens, folder)), len(tokens) * 3 // 4
    x, (_, y) = features(traces), np.unique(tokens, return_inverse=True)
    scale = x[:count].std((0, 1)) + 1e-6
    rows, y = around((x - x[:count].mean((0, 1))) / scale), y.reshape(-1)
    split, most = count * LENGTH, np.bincount(y[:count * LENGTH]).argmax()
    decoder = Decoder(rows.shape[1], int(y.max()) + 1)
    decoder.train(rows[:split], y[:split])
    return Result(host, access, len({trace for text in traces for trace in text}), len(y),
                  decoder.right(rows[split:], y[split:]), float((y[split:] == most).mean()))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=numbers.whole(8, 100_000), default=400, help="default: %(default)s")
    parser.add_argument("--hosts", choices=("disk", "pages", "both"), default="both", help="default: %(default)s")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    tokens, found = texts(args.texts), []
    for host in ("disk", "pages") if args.hosts == "both" else (args.hosts,):
        for access in ("hidden", "oblivious", "leaks"):
            with tempfile.TemporaryDirectory() as folder:
                found.append(measure(host, access, tokens, Path(folder)))
            row = found[-1]
            print(f"{host:5s} {access:9s} {row.kinds} different traces in {row.passes} passes; "
                  f"decoder {row.decoder:.1%}, without looking {row.without:.1%}: "
                  f"{'as promised' if row.as_promised else 'NOT AS PROMISED'}",
                  file=sys.stderr if args.json else sys.stdout, flush=True)
    if args.json:
        shown: list[dict[str, Any]] = [vars(row) | {"as promised": row.as_promised} for row in found]
        print(json.dumps(shown, indent=1))
    return 0 if all(row.as_promised for row in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
