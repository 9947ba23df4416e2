"""The engine: one model, ready to answer. Opens a tile source, checks it, and makes the forward pass and its cache.

Two ways to use it: `generate` (one answer, in the caller's thread), and a `scheduler` on top (many answers). One of
them at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from appliance.engine.decode.batcher import Batcher, Running
from appliance.engine.decode.draft import Drafter
from appliance.engine.decode.generation import Advance, Generation, GenerationRequest
from appliance.engine.decode.scratch import Scratch
from appliance.engine.families import llama as architecture
from appliance.engine.families import llama_tensors as architecture_tensors
from appliance.engine.forward.forward import ROWS, Forward
from appliance.engine.forward.kvcache import KVCache
from appliance.engine.kernels.runtime import table as kernel_table
from appliance.engine.kernels.runtime.threads import Pool
from appliance.engine.text import tokenizer
from appliance.engine.text.tokenizer import Tokenizer
from appliance.errors import EngineError
from appliance.models.sources.source import TileSource
from appliance.secure import interrupts, stacks


class Engine:
    """Made by `Engine.open`; close it before its source."""

    def __init__(self, source: TileSource, shape: architecture.Architecture, forward: Forward, cache: KVCache,
                 pool: Pool, words: Tokenizer, scratch: Scratch, *, speculate: bool = True,
                 drafter: Drafter | None = None) -> None:
        self.architecture, self.tokenizer = shape, words
        self.load_seconds = 0.0
        self._source, self._forward, self._cache, self._pool = source, forward, cache, pool
        self._scratch, self._drafter = scratch, drafter
        self._batcher = Batcher(forward, cache, speculate=speculate, drafter=drafter)
        self._use = threading.Lock()
        self._open = True

    @classmethod
    def open(cls, source: TileSource, *, context_length: int | None = None, slots: int = 4, kv_cache: str = "f16",
             threads: int | None = None, kernels: kernel_table.KernelTable | None = None,
             speculate: bool = True, draft: TileSource | None = None, rows: int = ROWS) -> Engine:
        """Check the model and make it ready. `context_length` caps the positions of a slot (None: the default cap);
        `speculate` guesses tokens from the text before them, and from the small model `draft`, which changes no answer.
        A draft is closed after the engine, too. A pass has up to `rows` rows: its buffers are in proportion, and no bit
        depends on it.

        UnsupportedError and FormatError for the model, EngineError for kernels and memory.
        """
        start = time.monotonic()
        shape = architecture.read(source.metadata)
        plan = architecture_tensors.check(shape, source.tensors)
        words = tokenizer.load(source.metadata)
        if words.vocab_size > shape.vocabulary:
            raise EngineError(f"the tokenizer has {words.vocab_size} tokens, the model {shape.vocabulary} rows")
        kernels = kernel_table.load() if kernels is None else kernels
        pool, forward = Pool(kernels, threads, stacks.wipe), None
        try:
            context = shape.context(context_length)
            cache = KVCache(shape, slots, context, kv_cache)
            scratch = Scratch(words.vocab_size)
            forward = Forward(source, shape, plan, cache, kernels, pool, rows=rows)
            drafter = None if draft is None or not speculate else Drafter.open(
                source, draft, context=context, slots=slots, kind=kv_cache, kernels=kernels, pool=pool,
                rows=rows)
        except BaseException:
            pool.close()
            if forward is not None:
                forward.release()
            stacks.wipe()
            raise
        engine = cls(source, shape, forward, cache, pool, words, scratch, speculate=speculate, drafter=drafter)
        engine.load_seconds = time.monotonic() - start
        return engine

    @property
    def context(self) -> int:
        """Positions of a slot: prompt and answer together."""
        return self._cache.context

    @property
    def slots(self) -> int:
        """Texts that the cache has room for."""
        return self._cache.slots

    @property
    def concurrent(self) -> int:
        """Answers that can run at the same time: each has a slot, and a row with logits in every pass."""
        limits = self._forward.boundary.limits
        return min(self.slots, limits.wanted, limits.rows)

    @property
    def threads(self) -> int:
        """Threads of the forward pass."""
        return self._pool.threads

    def generation(self, request: GenerationRequest) -> Generation:
        """The state of a new answer; EngineError and CapacityError for a request that cannot be run."""
        return Generation(request, self.tokenizer, self.tokenizer.vocab_size, self.context, self._scratch)

    def acquire(self) -> Batcher:
        """Take the engine for one user; EngineError when another has it or it is closed."""
        if not self._use.acquire(blocking=False):
            raise EngineError("the engine is in use", code="engine-in-use")
        if not self._open:
            self._use.release()
            raise EngineError("the engine is closed", code="engine-closed")
        return self._batcher

    def release(self) -> None:
        """Give the engine back; answers that still run are dropped and wiped."""
        for running in self._batcher.running:
            self._batcher.remove(running)
        stacks.wipe()
        self._use.release()

    def generate(self, request: GenerationRequest, *, cancelled: Callable[[], bool] = lambda: False,
                 observe: Callable[[Running], None] = lambda running: None) -> Iterator[Advance]:
        """The advances of one answer. `cancelled` is asked before each token; `observe` gets the timings' owner."""
        generation = self.generation(request)
        batcher = None
        try:
            with interrupts.later():
                batcher = self.acquire()
            running = batcher.add(generation)
            observe(running)
            while not generation.finished:
                if cancelled():
                    yield generation.cancel()
                    break
                for _, advance in batcher.run():
                    if advance.error is not None:
                        raise advance.error
                    yield advance
        finally:
            if batcher is not None:
                self.release()

    def close(self) -> None:
        """Stop the threads and wipe buffers and cache. EngineError while it is in use."""
        if not self._open:
            return
        self.acquire()
        self._open = False
        self._use.release()
        self._pool.close()
        self.wipe()

    def wipe(self) -> None:
        """Wipe buffers and cache, which no thread uses any more."""
        self._forward.release()
        self._cache.release()
        self._scratch.release()
        if self._drafter is not None:
            self._drafter.release()
        stacks.wipe()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
