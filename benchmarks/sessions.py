"""Time to the first token of a prompt whose beginning another process left on the state disk,
beside reading it:

    .venv/bin/python -m benchmarks.sessions                 # demo model, 1,000 tokens; about a minute

Each figure is of a process of its own: the model is loaded, then one prompt is run to its first
token. Exit code 1 says that the gain in processor time is below 74%, or that a token differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.kvcache import page_nbytes, pages_of
from appliance.engine.forward.packing import Packing
from appliance.engine.scheduler import Scheduler
from appliance.kernels.runtime import table as kernel_table
from appliance.keys.providers import Secret
from appliance.models.sources.resident import open_resident
from appliance.state import page_format
from appliance.state.disk import StateDisk
from appliance.state.page_keys import StateKeys
from appliance.state.pages import PageShelf, PageWriter
from appliance.state.sessions import binding, shelf_nbytes

GAIN = 0.74
DEMO = Path("build/models/SmolLM2-135M-Instruct.Q4_1.gguf")
_SECRET, _LIFETIME_MS, _TENANT = bytes(range(1, 33)), 3_600_000, "tenant"


def once(model: Path, disk: Path | None, tokens: int, kind: str, seed: int) -> dict[str, object]:
    """One process's part: seconds to the first token, by the wall and of processor time, and what
    it found."""
    rng, room = np.random.default_rng(seed), tokens + 64
    kernels = kernel_table.load()
    source = open_resident(model, interleave=Packing(kernels))
    prefix = page_nbytes_of(source, kind) * pages_of(tokens)
    engine = Engine.open(source, EngineOptions(context_length=room, slots=1, kv_cache=kind, prefix_nbytes=prefix),
                         kernels=kernels)
    ids = [int(each) for each in rng.integers(100, engine.tokenizer.vocab_size - 100, tokens)]
    with contextlib.nullcontext() if disk is None else shelf_on(disk, engine, source.sha256) as shelf:
        scheduler = Scheduler(engine, tenants=[_TENANT], prefix_lifetime=3600.0, shelf=shelf)
        warm = scheduler.submit(GenerationRequest((5, 6, 7), 1, Sampling(temperature=0, seed=1)), "nobody",
                                lambda _: None)
        warm.wait()
        chosen = list[int]()
        wall, processor = time.perf_counter(), time.process_time()
        handle = scheduler.submit(GenerationRequest(tuple(ids), 1, Sampling(temperature=0, seed=1), ignore_end=True),
                                  _TENANT, lambda advance: chosen.append(advance.token or 0))
        handle.wait()
        found = {"wall": time.perf_counter() - wall, "processor": time.process_time() - processor,
                 "cached": handle.cached_tokens, "token": chosen[0]}
        scheduler.close()
    engine.close()
    source.close()
    return found


@contextlib.contextmanager
def shelf_on(disk: Path, engine: Engine, sha256: bytes) -> Iterator[PageShelf]:
    """Yield the shelf of an engine on a state disk, which is made where it is missing."""
    page = engine.page
    size = shelf_nbytes(page)
    if not disk.exists():
        disk.touch()
        os.truncate(disk, size + (8 << 20))
    state = StateDisk(disk, Secret(bytearray(_SECRET)))
    at, keeper = state.reserve(size + page_format.TABLES_BYTES), PageWriter(state.device)
    keys = StateKeys(state, at + size, _LIFETIME_MS, schedule=keeper.schedule)
    shelf = PageShelf(keeper, keys, binding("tiny", at, sha256, page.arithmetic), at=at, places=page.kept,
                      half=page.half_nbytes, states=page.states, state=page.state_nbytes)
    keeper.start()
    yield shelf
    keeper.close(keys.close, 60.0)
    state.close()


def page_nbytes_of(source: object, kind: str) -> int:
    """Bytes of a page of a model."""
    from appliance.families.header import architecture_of
    return page_nbytes(architecture_of(source.metadata), kind)  # type: ignore[attr-defined]


def main() -> int:
    """Run processes in turns, and print medians."""
    parser = argparse.ArgumentParser(description="first token after a restart, with sessions on the disk and without")
    parser.add_argument("model", nargs="?", type=Path, default=DEMO)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--kind", choices=("f16", "q8", "q4"), default="f16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--once", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once is not None:
        disk, seed = json.loads(args.once)
        print(json.dumps(once(args.model, None if disk is None else Path(disk), args.tokens, args.kind, seed)))
        return 0

    def process(disk: Path | None, seed: int) -> dict[str, float]:
        words = [sys.executable, "-m", "benchmarks.sessions", str(args.model), "--tokens", str(args.tokens), "--kind",
                 args.kind, "--once", json.dumps([None if disk is None else str(disk), seed])]
        result: dict[str, float] = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
        return result
    read, restored = list[dict[str, float]](), list[dict[str, float]]()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.rounds):
            disk = Path(folder) / f"disk{seed}"
            read.append(process(None, seed))
            process(disk, seed)
            restored.append(process(disk, seed))
    for name in ("wall", "processor"):
        before, after = (statistics.median(each[name] for each in some) for some in (read, restored))
        print(f"{name:9} {before:7.3f} s read, {after:7.3f} s restored: {1 - after / before:6.1%} less")
    cached, same = {each["cached"] for each in restored}, all(
        one["token"] == two["token"] for one, two in zip(read, restored, strict=True))
    print(f"tokens restored: {sorted(cached)} of {args.tokens}; same tokens: {same}; load {os.getloadavg()[0]:.1f}")
    gain = 1 - statistics.median(each["processor"] for each in restored) / statistics.median(
        each["processor"] for each in read)
    return 0 if gain >= GAIN and same else 1


if __name__ == "__main__":
    sys.exit(main())
