"""Our engine as a measured process: `python -m benchmarks.own_server [TARGET]`."""

from __future__ import annotations

import itertools
import mmap
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from appliance.boot.planning.footprint import known_roles
from appliance.engine.forward.forward import ROWS, Forward
from appliance.engine.forward.kvcache import KVCache
from appliance.engine.forward.packing import Packing
from appliance.engine.forward.program_tables import order_of
from appliance.families.header import architecture_of
from appliance.families.program import program
from appliance.families.tensors import check_tensors
from appliance.kernels.runtime import table
from appliance.kernels.runtime.threads import Pool
from appliance.models.sources.resident import open_resident
from appliance.models.sources.source import TileSource
from benchmarks.serving import serve, spread

_ROOM = 64 << 20


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Own:
    """One model and one set of buffers."""

    def __init__(self, target: str | None) -> None:
        self._kernels = table.load(target)
        self._bare = resident_bytes()
        # Addresses beside each other for the code of `hardware`, which is compiled after a model
        # was mapped: what LLVM loads must not be 2 GiB apart, or it ends the process.
        self._room = mmap.mmap(-1, _ROOM)
        self._path = ""
        self._source: TileSource | None = None
        self._forward: Forward | None = None
        self._pool: Pool | None = None
        self._depth = self._behind = (0, 0)

    def open(self, model: str, threads: int, context: int, slots: int) -> dict[str, Any]:
        """Load a model (again only if it is another one) and make buffers."""
        start = time.perf_counter()
        if self._forward is not None and self._pool is not None:
            self._forward.release()
            self._cache.release()
            self._pool.close()
        if self._path != model:
            if self._source is not None:
                self._source.close()
            self._source, self._path = self._load(Path(model)), model
        assert self._source is not None
        shape = architecture_of(self._source.metadata)
        plan = check_tensors(shape, self._source.tensors)
        self._pool = Pool(self._kernels, threads)
        self._cache = KVCache(shape, slots, context)
        self._forward = Forward(self._source, shape, plan, self._cache, self._kernels, self._pool)
        self._vocabulary, self._depth, self._behind = shape.vocabulary, (0, 0), (0, 0)
        self._used = 0 if shape.mixture is None else shape.mixture.used
        self._matrices = [*itertools.chain(*order_of(program(shape, plan))), plan.output]
        return {"seconds": time.perf_counter() - start, "resident": resident_bytes(), "bare": self._bare,
                "origin": self._kernels.origin, "target": self._kernels.target.name}

    def _load(self, model: Path) -> TileSource:
        return open_resident(model, interleave=Packing(self._kernels), roles=known_roles)

    def _tokens(self, count: int) -> list[int]:
        return np.random.default_rng(count).integers(3, self._vocabulary, count).tolist()

    def _prompt(self, slot: int, tokens: int, *, wanted: bool) -> None:
        """Read a prompt from position 0 on, in as few passes as the engine does."""
        assert self._forward is not None
        ids = self._tokens(tokens)
        for first in range(0, tokens, ROWS):
            part = ids[first:first + ROWS]
            last = [len(part) - 1] if wanted and first + len(part) == tokens else []
            self._forward.run(part, range(first, first + len(part)), [slot] * len(part), last)

    def _fill(self, sequences: int, depth: int) -> None:
        """Bring the cache to `depth` positions in each of the first slots."""
        assert self._forward is not None
        fresh, self._behind = self._depth != (sequences, depth), (0, 0)
        for slot in range(self._cache.slots):
            self._forward.boundary.forget(slot, depth if not fresh and slot < sequences else 0)
        if fresh and depth:
            for slot in range(sequences):
                self._prompt(slot, depth, wanted=False)
        self._depth = (sequences, depth)

    def first(self, tokens: int) -> dict[str, Any]:
        """Prefill in an empty context."""
        self._fill(0, 0)
        start = time.perf_counter()
        self._prompt(0, tokens, wanted=True)
        return {"seconds": time.perf_counter() - start}

    def decode(self, depth: int, tokens: int) -> dict[str, Any]:
        """Single tokens after `depth` positions."""
        return self.batch(1, depth, tokens)

    def batch(self, sequences: int, depth: int, tokens: int) -> dict[str, Any]:
        """Steps of one token for each sequence."""
        assert self._forward is not None
        self._fill(sequences, depth)
        ids, slots = self._tokens(tokens), range(sequences)
        start = time.perf_counter()
        for step, token in enumerate(ids):
            self._forward.run([spread(token, slot, self._vocabulary) for slot in slots],
                              [depth + step] * sequences, slots, slots)
        return {"seconds": time.perf_counter() - start}

    def follow(self, depth: int, tokens: int) -> dict[str, Any]:
        """Single tokens behind a text of `depth`, which is read where the call before had another
        depth. The next call goes on behind them: a recurrent layer's state does not go back."""
        assert self._forward is not None
        if self._behind[0] != depth:
            self._fill(0, 0)
            self._prompt(0, depth, wanted=False)
            self._behind = depth, depth
        at, ids = self._behind[1], self._tokens(tokens)
        self._behind = depth, at + tokens
        start = time.perf_counter()
        for step, token in enumerate(ids):
            self._forward.run([token], [at + step], [0], [0])
        return {"seconds": time.perf_counter() - start}

    def line(self) -> dict[str, Any]:
        """How far the open pool's threads are from each other."""
        return {"seconds": self._hardware().line()}

    def limits(self, peak: bool) -> dict[str, Any]:
        """Read bandwidth, and the integer peak if asked for, of the open pool's threads."""
        hardware = self._hardware()
        return {"bandwidth": hardware.bandwidth(), "dot_peak": hardware.dot_peak() if peak else None}

    def reads(self, tokens: int) -> dict[str, Any]:
        """The bytes of the weights of so many tokens, and the seconds in which the open pool's
        threads read those very bytes where they are. Of a layer's experts each token has others, by
        chance."""
        pieces = [piece for random in map(np.random.default_rng, range(tokens)) for piece in self._weights(random)]
        return {"nbytes": sum(nbytes for _, nbytes in pieces), "seconds": self._hardware().seconds(pieces)}

    def _weights(self, random: np.random.Generator) -> list[tuple[int, int]]:
        """Address and bytes of what a token is multiplied with, in the order of a pass."""
        assert self._source is not None
        found, chosen = list[tuple[int, int]](), dict[str, list[int]]()
        for name in self._matrices:
            weight, layer = self._source.weight(name), name.rpartition(".ffn")[0]
            runs = [0]
            if weight.runs > 1:
                runs = chosen.setdefault(layer, random.permutation(weight.runs)[:self._used].tolist())
            found += [(weight.address + run * weight.nbytes, weight.nbytes) for run in runs]
        return found

    def _hardware(self) -> Any:
        from benchmarks.hardware import Hardware  # brings the compiler; not before memory was measured

        assert self._pool is not None
        self._room.close()
        return Hardware.of(self._pool)


if __name__ == "__main__":
    serve(Own(sys.argv[1] if len(sys.argv) > 1 else None))
