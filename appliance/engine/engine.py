"""The engine: one model, ready to answer. Opens a tile source, checks it, and makes the forward
pass and its cache.

Two ways to use it: `generate` (one answer, in the caller's thread), and a `scheduler` on top (many
answers). One of them at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from appliance.constraint.compiler import Compiler
from appliance.engine.batch.batcher import Batcher
from appliance.engine.batch.draft import Drafter
from appliance.engine.batch.fixed_pass import DUMMY_TOKEN, FixedPass
from appliance.engine.batch.guesses import Helper
from appliance.engine.batch.head import HeadHelper
from appliance.engine.batch.plan import SPECULATING, Plan
from appliance.engine.batch.sequence import Sequence
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.generation import Advance, Generation, GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.forward.forward import ROWS, Forward
from appliance.engine.forward.kvcache import KVCache, page_nbytes, pages_of
from appliance.engine.forward.persistence import ARITHMETIC, Shelf, ShelfPages
from appliance.engine.forward.prefixes import Prefixes
from appliance.engine.forward.seats import Seats, dummy_seats
from appliance.engine.forward.states import division, state_nbytes
from appliance.errors import EngineError
from appliance.families.architecture import Architecture
from appliance.families.extension import Extension, extended_metadata
from appliance.families.header import architecture_of
from appliance.families.tensors import check_tensors
from appliance.kernels.layouts.attention import PAGE
from appliance.kernels.runtime import table
from appliance.kernels.runtime.threads import Pool
from appliance.models.sources.source import TileSource
from appliance.oblivious import Sweeps
from appliance.secure import interrupts, stacks
from appliance.text import tokenizer
from appliance.text.stops import MAX_LENGTH, MAX_STOPS
from appliance.text.tokenizer import Tokenizer

STATEFUL = "layers of the model keep a state in place of keys and values: {}"
_STOPS = MAX_STOPS * (MAX_LENGTH * "\U0001f600",)
_TIMES = 5  # a pass that is timed runs: the quickest counts, since others may have the processors meanwhile


def _drawn(scratch: Scratch) -> GenerationRequest:
    """An answer of which a pass that is timed draws tokens."""
    return GenerationRequest((DUMMY_TOKEN,), 1 + _TIMES, Sampling(temperature=1.0), ignore_end=True,
                             stop=() if scratch.sweep is None else _STOPS)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a model is to run. Only `kv_cache` and `rope` change a bit of an answer."""

    context_length: int | None = None  # most positions of a slot; None: the default cap
    slots: int = 4  # sequences that the cache has room for
    kv_cache: str = "f16"  # the format of keys and values
    rope: Extension | None = None  # positions beyond those of the file
    threads: int | None = None  # None: as many as the CPUs that the process may use
    speculate: bool = True  # guess tokens from the text before them, and from a draft model
    heads: bool = False  # and by the model's own layer that guesses, which its file must have
    rows: int = ROWS  # most rows of a pass, in proportion to which buffers are made
    prefix_nbytes: int = 0  # of keys and values of earlier texts, beside those of the slots
    steady: bool = False  # passes may have one size: dummy rows have seats
    sweeps: bool = False  # texts and tokens are read by whole sweeps, see `oblivious`


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The parts of an engine, which it closes."""

    architecture: Architecture
    forward: Forward
    cache: KVCache
    pool: Pool
    tokenizer: Tokenizer
    scratch: Scratch
    helper: Helper | None = None
    prefix_pages: int = 0  # of the cache, for earlier texts
    dummies: tuple[int, ...] = ()  # positions of each seat of dummy rows


@dataclass(frozen=True, slots=True)
class PageKind:
    """The pages of keys and values of an engine."""

    halves: tuple[int, int]  # bytes of the keys of a page, and of its values
    arithmetic: str  # all that their bits depend on, beside the model's file: one line each
    kept: int  # most that are kept in memory of earlier texts
    context: int  # those of a whole context
    state_nbytes: int = 0  # of a state, where layers have one
    states: int = 0  # most that are kept in memory


class Engine:
    """Made by `Engine.open`; close it before its source."""

    def __init__(self, source: TileSource, parts: EngineParts, *, speculate: bool = True) -> None:
        self.architecture, self.tokenizer = parts.architecture, parts.tokenizer
        self.constraints = Compiler(parts.tokenizer)
        self.rope: Extension | None = None
        """Positions beyond those of the file, with the number that these were."""
        self._source, self._forward, self._cache, self._pool = source, parts.forward, parts.cache, parts.pool
        self._scratch, self._helper = parts.scratch, parts.helper
        self._seats = Seats(parts.cache, parts.forward.boundary, parts.dummies)
        self._batcher = Batcher(parts.forward, self._seats, speculate=speculate, helper=parts.helper)
        self.pass_rows: int | None = None
        """Rows of each pass, where all have as many: see `fix`."""
        self.keeps_prefixes = parts.prefix_pages > 0
        """Whether there is room for pages of earlier texts."""
        self._prefix_pages, self._dummy_pages = parts.prefix_pages, sum(map(pages_of, parts.dummies))
        self._use = threading.Lock()
        self._open = True

    @classmethod
    def open(cls, source: TileSource, options: EngineOptions | None = None, *,
             kernels: table.KernelTable | None = None, draft: TileSource | None = None) -> Engine:
        """Check the model and make it ready. A small model `draft` helps to guess tokens where
        `options.speculate`; its source is closed after the engine.

        UnsupportedError and FormatError for the model, EngineError for kernels and memory.
        """
        options = options or EngineOptions()
        shape = architecture_of(extended_metadata(source.metadata, options.rope, source.tensors), source.tensors)
        plan = check_tensors(shape, source.tensors)
        words = tokenizer.load(source.metadata)
        if words.vocab_size > shape.vocabulary:
            raise EngineError(f"the tokenizer has {words.vocab_size} tokens, the model {shape.vocabulary} rows")
        kernels = table.load() if kernels is None else kernels
        pool, forward = Pool(kernels, options.threads, stacks.wipe), None
        try:
            context = shape.context(options.context_length)
            dummies = dummy_seats(options.rows, context) if options.steady else ()
            prefix_pages, states = division(options.prefix_nbytes, page_nbytes(shape, options.kv_cache),
                                            state_nbytes(shape), options.slots + len(dummies))
            cache = KVCache(shape, options.slots + len(dummies), context, options.kv_cache,
                            options.slots * pages_of(context) + prefix_pages + sum(map(pages_of, dummies)), states,
                            min(options.slots, SPECULATING) if options.speculate and not options.steady else 0)
            if options.sweeps:
                words.sweeping = Sweeps(words, kernels)
            scratch = Scratch(words.vocab_size, kernels, sweeps=options.sweeps)
            forward = Forward(source, shape, plan, cache, kernels, pool, rows=options.rows)
            helper: Helper | None = None
            if options.heads and options.speculate:
                helper = HeadHelper.open(source, forward, shape, context=context, slots=options.slots,
                                         kind=options.kv_cache, kernels=kernels, pool=pool)
            elif draft is not None and options.speculate:
                helper = Drafter.open(source, draft, context=context, slots=options.slots, kind=options.kv_cache,
                                      kernels=kernels, pool=pool, rows=options.rows)
        except BaseException:
            pool.close()
            if forward is not None:
                forward.release()
            stacks.wipe()
            raise
        engine = cls(source, EngineParts(shape, forward, cache, pool, words, scratch, helper, prefix_pages, dummies),
                     speculate=options.speculate)
        if options.rope is not None and shape.rope is not None:
            engine.rope = Extension(shape.rope.factor, shape.rope.original_context)
        return engine

    @property
    def context(self) -> int:
        """Positions of a slot: prompt and answer together."""
        return self._cache.context

    @property
    def slots(self) -> int:
        """Texts that the cache has room for."""
        return self._cache.slots - len(self._seats.dummies)

    @property
    def pages(self) -> int:
        """Pages of keys and values for answers in progress."""
        return self._cache.pages - self._prefix_pages - self._dummy_pages

    @property
    def prefix_pages(self) -> int:
        """Pages for earlier texts, beside them."""
        return self._prefix_pages

    @property
    def concurrent(self) -> int:
        """Answers that can run at the same time: each has a slot, and a row with logits in every
        pass. Where passes have one size, a row stays for prompts."""
        limits, prompts = self._forward.boundary.limits, 1 if self._seats.dummies else 0
        return min(self.slots, limits.wanted, limits.rows - prompts)

    @property
    def row_bounds(self) -> tuple[int, int]:
        """Fewest and most rows of passes of one size: one for each answer and one for a prompt, at
        least."""
        return self.concurrent + 1, self._forward.boundary.limits.rows

    def fix(self, rows: int) -> None:
        """Have so many rows in each pass from now on, dummy rows among them, also where no answer
        is in progress. EngineError where the engine was not opened for that."""
        least, most = self.row_bounds
        if not self._seats.dummies or not least <= rows <= most:
            raise EngineError(f"passes of {rows} rows each; allowed: {least}..{most}, of a steady engine")
        self.pass_rows = rows
        self._batcher.fix(self._fixed(rows))

    def _fixed(self, rows: int) -> FixedPass:
        return FixedPass(rows, self.concurrent, self._seats.dummies, self.context)

    def pass_seconds(self, rows: int) -> float:
        """Time a pass of so many rows at its dearest: those of answers, and of their prompts, are
        at the end of full contexts, and a token is drawn for each answer. With sweeps each has the
        longest stop strings. The engine must be idle; nothing of it stays."""
        answers, plan = self.concurrent, Plan()
        self.acquire()
        try:
            drawn = [self.generation(_drawn(self._scratch)) for _ in range(answers)]
            with self._seats.claim([self.context] * answers) as slots:
                starts = list[tuple[int, int]]()
                for index, slot in enumerate(slots):
                    count = min(rows // answers + (index < rows % answers), self.context)
                    starts.append((slot, self.context - count))
                    plan.add_rows(slot, self.context - count, [DUMMY_TOKEN] * count, 1)
                self._fixed(rows).fill(plan)
                self._time(plan, drawn, starts)  # touches memory for the first time
                seconds = min(self._time(plan, drawn, starts) for _ in range(_TIMES))
            for slot in slots:
                self._seats.give_back(slot)
            return seconds
        finally:
            self._use.release()

    def _time(self, plan: Plan, drawn: list[Generation], starts: Collection[tuple[int, int]]) -> float:
        """Time a pass whose slots begin at such positions."""
        for slot, positions in starts:
            self._seats.pretend(slot, positions)
        seconds, begin = self._batcher.time(plan, drawn), time.monotonic()
        for slot, _ in starts:  # at the end of a page a state is noted, and perhaps kept
            for _ in range(2):
                self._cache.states.mark(slot, PAGE)
        return seconds + time.monotonic() - begin

    @property
    def threads(self) -> int:
        """Threads of the forward pass."""
        return self._pool.threads

    def generation(self, request: GenerationRequest) -> Generation:
        """The state of a new answer; EngineError and CapacityError for a request that cannot be
        run."""
        generation = Generation(request, self.tokenizer, self.tokenizer.vocab_size, self.context, self._scratch)
        generation.require(self.concurrent)
        return generation

    def acquire(self) -> Batcher:
        """Take the engine for one user; EngineError when another has it or it is closed."""
        if not self._use.acquire(blocking=False):
            raise EngineError("the engine is in use", code="engine-in-use")
        if not self._open:
            self._use.release()
            raise EngineError("the engine is closed", code="engine-closed")
        return self._batcher

    def keep_prefixes(self, tenants: Collection[str], lifetime: float, shelf: Shelf | None = None,
                      weights: Mapping[str, int] | None = None) -> None:
        """From now on until `release`, keep pages of texts for texts of the same tenant that begin
        like them, each for `lifetime` seconds after its last use. `tenants` share the room that the
        engine was opened with, by their `weights`. On `shelf`, which this engine's `page` fits,
        they outlive the engine. Only whoever acquired the engine may ask."""
        prefixes = Prefixes(self._cache, tenants, self._prefix_pages, lifetime, weights=weights)
        persisted = None if shelf is None else ShelfPages(self._cache, tenants, shelf, prefixes.tokens,
                                                          kept=prefixes.snapshots, weights=weights)
        self._batcher.texts.open(prefixes, persisted)

    @property
    def page(self) -> PageKind:
        """The pages that this engine writes; EngineError for llama.cpp, which keeps them its own
        way."""
        cache = self._cache
        if not isinstance(cache, KVCache):
            raise EngineError("llama.cpp runs this model: its keys and values cannot be kept",
                              hint="leave --cache out")
        rope = "" if self.rope is None else f"rope yarn {self.rope.factor!r} {self.rope.original}\n"
        return PageKind(cache.halves, f"kv_cache {cache.kind}\npage {PAGE}\ncontext {cache.context}\n"
                        f"arithmetic {ARITHMETIC}\n{rope}", self._prefix_pages, pages_of(cache.context),
                        cache.states.stride, len(cache.states.rooms))

    def release(self) -> None:
        """Give the engine back; answers that still run are dropped and wiped, and so is what was
        kept of texts."""
        for each in list(self._batcher.running):
            self._batcher.remove(each)
        self._batcher.texts.close()
        stacks.wipe()
        self._use.release()

    def generate(self, request: GenerationRequest, *, cancelled: Callable[[], bool] = lambda: False,
                 observe: Callable[[Sequence], None] = lambda sequence: None,
                 shelf: Shelf | None = None) -> Iterator[Advance]:
        """The advances of one answer. `cancelled` is asked before each token; `observe` gets the
        timings' owner. Pages of the text are taken from `shelf`, and put there."""
        generation = self.generation(request)
        batcher = None
        try:
            with interrupts.later():
                batcher = self.acquire()
            if shelf is not None:
                batcher.texts.open(None, ShelfPages(self._cache, ("",), shelf))
            observe(batcher.add(generation))
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
        self._batcher.close()
        self._pool.close()
        self.wipe()

    def wipe(self) -> None:
        """Wipe buffers and cache, which no thread uses any more."""
        self._forward.release()
        self._cache.release()
        self._scratch.release()
        if self._helper is not None:
            self._helper.release()
        stacks.wipe()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
