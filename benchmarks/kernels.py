"""How fast product kernels are, as a share of what this CPU can do: one thread, each format.

    python -m benchmarks.kernels [--formats Q4_K,Q6_K] [--target avx2] [--rounds 2] [--json]

Decode: one token against a matrix that is far larger than the caches, in GB/s of weights, against
the read bandwidth measured beside it. Prefill: 192 tokens against a matrix of 2048 columns, in 10^9
multiply-adds x 2 a second, against the peak of 8-bit dot products. Times are processor time of the
one thread that computes, so that other processes on the machine disturb little; each figure is the
best of several short runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import numpy as np

from appliance.kernels.layouts import shapes
from appliance.kernels.runtime import table, targets
from appliance.kernels.runtime.memory import Memory
from benchmarks import commandline

COLUMNS = 2048
BIG = 256 << 20
"""Bytes of weights of the decode measurement."""

PREFILL_ROWS, PREFILL_TOKENS = 512, 192
BATCHES = (2, 3, 4, 5, 6, 8, 12, 16, 24)


@dataclass
class Figures:
    """The measurements of one format."""

    format: str
    compile_seconds: float
    decode: float  # GB/s
    decode_share: float  # of the read bandwidth
    cached: float  # GB/s, weights in the second-level cache
    prefill: float  # GOPS
    prefill_share: float  # of the dot peak
    batches: dict[int, float]  # tokens -> speed-up of a token over decode


def _random(nbytes: int, name: str) -> Memory:
    """Bytes without pattern, every binary16 in them finite: bit 14 is cleared in each second byte.
    Of types with 8 bits of exponent normal floats: random bits would have products that are
    subnormal, which CPUs compute slowly."""
    memory, random = Memory(nbytes, huge=True), np.random.default_rng(0)
    if name in ("F32", "BF16"):
        floats = random.standard_normal(1 << 20, np.float32)
        piece = (floats if name == "F32" else floats.view(np.uint16)[1::2].copy()).view(np.uint8)[:nbytes]
    else:
        piece = random.integers(0, 256, min(nbytes, 4 << 20), dtype=np.uint8)
        piece[1::2] &= 0xBF
    view = memory.view("u1")
    for start in range(0, nbytes, len(piece)):
        view[start:start + len(piece)] = piece[:nbytes - start]
    return memory


class Bench:
    """Runs one format's product kernel."""

    def __init__(self, kernels: table.KernelTable, name: str) -> None:
        self.name, self.group = name, shapes.group_nbytes(name, COLUMNS)
        kind = shapes.activation_kind(name)
        start = time.thread_time()
        self.product = kernels.function(f"product_{name.lower()}")
        self.compile_seconds = time.thread_time() - start
        self.quantise = kernels.function(f"quantise_{kind}")
        self.groups = BIG // self.group
        self.weights = _random(self.groups * self.group, name)
        values = np.random.default_rng(1).standard_normal((PREFILL_TOKENS, COLUMNS)).astype(np.float32)
        self.x = Memory(values.nbytes)
        self.x.view("f4")[:] = values.ravel()
        self.act = Memory(shapes.activation_nbytes(kind, COLUMNS, PREFILL_TOKENS))
        self.y = Memory(PREFILL_TOKENS * (64 * self.groups + 64))

    def seconds(self, tokens: int, groups: int, repeat: int = 1) -> float:
        """One product."""
        self.quantise(self.x.address, 4 * COLUMNS, COLUMNS, self.act.address, 0, tokens, tokens)
        ldy = 64 * groups + 64
        start = time.thread_time()
        for _ in range(repeat):
            self.product(self.weights.address, COLUMNS, self.act.address, tokens, self.y.address, ldy, 0, 0, groups)
        return (time.thread_time() - start) / repeat

    def decode(self) -> float:
        """GB/s from memory."""
        return self.groups * self.group / self.seconds(1, self.groups) / 1e9

    def cached(self) -> float:
        """GB/s from the second-level cache."""
        groups = max(1, (256 << 10) // self.group)
        return groups * self.group / self.seconds(1, groups, 64) / 1e9

    def prefill(self) -> float:
        """Speed in GOPS."""
        groups = PREFILL_ROWS // 16
        return 2 * PREFILL_ROWS * COLUMNS * PREFILL_TOKENS / self.seconds(PREFILL_TOKENS, groups, 1) / 1e9

    def batch(self, tokens: int) -> float:
        """Tokens a second, times bytes of weights: comparable with `decode`."""
        groups = self.groups // 4
        return tokens * groups * self.group / self.seconds(tokens, groups) / 1e9


def _limits(kernels: table.KernelTable) -> Any:
    from appliance.kernels.runtime.threads import Pool
    from benchmarks.hardware import Hardware

    class Limits(Hardware):
        """In seconds of this thread, as everything here."""

        def _run(self, kernel: int, address: int, count: int) -> float:
            start = time.thread_time()
            super()._run(kernel, address, count)
            return time.thread_time() - start

    return Limits.of(Pool(kernels, 1))


def measure(kernels: table.KernelTable, names: list[str], rounds: int, peaks: tuple[float, float],
            out: TextIO) -> list[Figures]:
    """All figures of some formats, the best of `rounds`; a line of each to `out`."""
    found = []
    for name in names:
        bench = Bench(kernels, name)
        decode = max(bench.decode() for _ in range(rounds))
        cached = max(bench.cached() for _ in range(4 * rounds))
        prefill = max(bench.prefill() for _ in range(4 * rounds))
        batches = {tokens: max(bench.batch(tokens) for _ in range(rounds)) / decode for tokens in BATCHES}
        found.append(Figures(name, bench.compile_seconds, decode, decode / peaks[0], cached, prefill,
                             prefill / peaks[1], batches))
        _print(found[-1], out)
    return found


def _print(item: Figures, out: TextIO) -> None:
    batches = " ".join(f"{tokens}:{value:.2f}" for tokens, value in item.batches.items())
    print(f"{item.format:5s} compile {item.compile_seconds:4.1f} s  decode {item.decode:5.1f} GB/s "
          f"{item.decode_share:4.0%}  cached {item.cached:5.1f}  prefill {item.prefill:5.0f} GOPS "
          f"{item.prefill_share:4.0%}  batch {batches}", file=out, flush=True)


def _formats(text: str) -> list[str]:
    names = text.upper().split(",")
    if not set(names) <= set(shapes.SHAPES):
        raise argparse.ArgumentTypeError(f"{text!r}: expected some of {','.join(shapes.SHAPES)}")
    return names


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", type=_formats, default=",".join(shapes.SHAPES), help="default: %(default)s")
    parser.add_argument("--target", help="default: the best of this CPU")
    parser.add_argument("--rounds", type=commandline.ROUNDS, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    kernels = table.load(args.target or targets.detect().name)
    hardware = _limits(kernels)
    bandwidth = max(hardware.bandwidth() for _ in range(3)) / 1e9
    peak = max(hardware.dot_peak() for _ in range(3)) / 1e9
    out = sys.stderr if args.json else sys.stdout
    print(f"{kernels.target.name}: read {bandwidth:.1f} GB/s, dot peak {peak:.0f} GOPS", file=out, flush=True)
    figures = measure(kernels, args.formats, args.rounds, (bandwidth, peak), out)
    if args.json:
        print(json.dumps({"target": kernels.target.name, "bandwidth": bandwidth, "peak": peak,
                          "formats": [asdict(item) for item in figures]}))
    return 0


if __name__ == "__main__":
    commandline.run(main)
