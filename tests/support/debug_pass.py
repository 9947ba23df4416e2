"""A debug build of the kernels in a process of its own: `python -m tests.support.debug_pass CACHE` prints JSON.

Says the digest of a whole pass's logits, and for each word that was spoiled the fault that was found before a kernel
followed it, or by the kernel.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from typing import Any

import numpy as np

from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.forward import Forward
from appliance.engine.forward.packing import Packing
from appliance.errors import EngineError
from appliance.kernels.compiler.registry import Kernel
from appliance.kernels.layouts.pack import Move, Pack
from appliance.kernels.layouts.step import (
    CALL,
    Attention,
    Bundle,
    ConvolutionLayer,
    DeltaLayer,
    ExpertLayer,
    MambaLayer,
    Norm,
    Op,
    SlotRows,
    Step,
    Unit,
    Weight,
)
from appliance.kernels.runtime import table, targets
from appliance.kernels.runtime.memory import Memory
from appliance.kernels.runtime.signature import CSignature
from appliance.kernels.runtime.table import KernelTable
from appliance.models.file import quants
from tests.support import family_models, step_tables, synthetic
from tests.support.engines import opened, synthetic_model
from tests.support.logits import logits_of

MODEL, MIXTURE = "tied", "bailingmoe2"
IDS = [1, *np.random.default_rng(3).integers(3, synthetic.VOCAB, 299).tolist()]
CONTEXT, THREADS = 320, 2
FAR = 1 << 40
GUARDS: dict[Forward, step_tables.Guard] = {}

_LAST = synthetic.LAYERS - 1
_PARTS = ("QUERY", "KEY", "VALUE", "OUTPUT", "GATE", "UP", "DOWN")
_OPS = 5  # of a layer: project, attend, back, expand, back


def _weight(part: str, word: str) -> int:
    return Weight.nbytes * (_LAST * len(_PARTS) + _PARTS.index(part)) + Weight.offsets[word]


def _op(number: int, word: str) -> int:
    return Op.nbytes * (_LAST * _OPS + number) + Op.offsets[word]


def _experts(word: str) -> int:
    return ExpertLayer.nbytes * 3 + ExpertLayer.offsets[word]


def _convolution(word: str) -> int:
    return ConvolutionLayer.nbytes + ConvolutionLayer.offsets[word]


def _delta(word: str) -> int:
    return DeltaLayer.offsets[word]


def _mamba(word: str) -> int:
    return MambaLayer.offsets[word]


def _attention(word: str) -> int:
    return Attention.nbytes * _LAST + Attention.offsets[word]


# One spoiled word: its table, its offset, the number added to it, and the fault that must be found.
SPOILED: dict[str, tuple[str, int, int, str]] = {
    "a token": ("TOKENS", 0, synthetic.VOCAB, "batch"), "a position": ("POSITIONS", 0, -FAR, "batch"),
    "a slot": ("SLOTS", 0, 9, "batch"), "a wanted row": ("LOGIT_ROWS", 0, 5, "batch"),
    "a bundle's slot": ("BUNDLES", Bundle.offsets["SLOT"], -1, "bundle"),
    "a bundle's rows": ("BUNDLES", Bundle.offsets["COUNT"], 1, "bundle"),
    "a bundle's position": ("BUNDLES", Bundle.offsets["POSITION"], CONTEXT, "bundle"),
    "a bundle's states": ("BUNDLES", Bundle.offsets["FIRST_PART"], FAR, "bundle"),
    "a span": ("UNITS", Unit.offsets["SPAN"], 5, "bundle"),
    "weights elsewhere": ("weights", _weight("DOWN", "ADDRESS"), FAR, "weight"),
    "weights of a neighbour": ("weights", _weight("DOWN", "ADDRESS"), 64, "weight"),
    "more rows of weights": ("weights", _weight("QUERY", "GROUPS"), 1, "weight"),
    "wider weights": ("weights", _weight("GATE", "COLUMNS"), 32, "weight"),
    "a product": ("weights", _weight("VALUE", "PRODUCT"), 1, "code"),
    "a quantiser": ("weights", _weight("QUERY", "QUANTISE"), -16, "code"),
    "a fetch": ("weights", _weight("OUTPUT", "FETCH"), FAR, "code"),
    "activations": ("weights", _weight("UP", "ACTIVATIONS"), FAR, "buffer"),
    "own activations": ("weights", _weight("UP", "PRIVATE_ACTIVATIONS"), FAR, "buffer"),
    "a norm": ("ops", _op(3, "NORM") + Norm.offsets["WEIGHT"], -FAR, "vector"),
    "rotations": ("attention", _attention("TURNS"), FAR, "vector"),
    "sinks": ("attention", _attention("SINKS"), FAR, "vector"),
    "heads": ("attention", _attention("HEAD_SIZE"), 16, "buffer"),
    "a place in the cache": ("attention", _attention("PLACE"), FAR, "cache"),
    "a kind": ("ops", _op(1, "KIND"), 40, "buffer"),
    "a result elsewhere": ("ops", _op(2, "Y"), FAR, "buffer"),
    "keys": ("step", Step.offsets["KEYS"], FAR, "cache"),
    "values": ("step", Step.offsets["VALUES"], 64, "cache"),
    "rows of pages": ("step", Step.offsets["PAGES"], FAR, "cache"), "a page": ("pages", 0, 64, "cache"),
    "a page that is not there": ("pages", 0, FAR, "cache"),
    "attention": ("step", Step.offsets["ATTEND"], 2, "code"),
    "logits": ("step", Step.offsets["LOGITS"], FAR, "buffer"),
    "a stride of rows": ("step", Step.offsets["HIDDEN_STRIDE"], -128, "buffer"),
    "rows": ("step", Step.offsets["ROWS"], FAR, "batch"),
}


def _words(forward: Forward, name: str) -> np.ndarray:
    if name == "pages":
        return forward._cache.rows.view(np.int64)
    if name == "step":
        return forward._step.memory.view(np.int64)
    if name in ("ops", "weights", "attention", "experts", "convolutions", "deltas", "mambas"):
        return getattr(forward._program_tables, name).memory.view(np.int64)
    return forward._tables[name]


def _outcome(forward: Forward) -> str:
    """The fault that a pass over the tables as they are comes upon."""
    try:
        forward._launch()
    except step_tables.Refused as refused:
        return str(refused)
    return "none"


def _fault(forward: Forward, where: str, offset: int, change: int) -> str:
    """The fault of a word that is spoiled for one pass."""
    words = _words(forward, where)
    words[offset // 8] += change
    fault = _outcome(forward)
    words[offset // 8] -= change
    return fault


def found(forward: Forward) -> dict[str, str]:
    """The fault of each spoiled word, in a pass of one row at depth that is otherwise right."""
    faults = {}
    forward.run([5], [299], [0], [0])
    for name, (where, offset, change, _) in SPOILED.items():
        faults[name] = _fault(forward, where, offset, change)
    return faults | {"nothing": _outcome(forward)}


def fetched(forward: Forward) -> list[str]:
    """The faults of a pass whose last matrix is fetched: from where it is, and from 64 bytes on."""
    from appliance.kernels.compiler import lower
    from appliance.kernels.compiler.vector import get_i64

    def fetch_whole(context: int, tile: int, thread: int) -> int:
        return int(get_i64(context))
    loader, place = lower.Loader(), Memory(8)
    fetch = loader.load(Kernel("fetch_whole", CSignature.parse("i8(i8,i8,i8)"), fetch_whole))
    GUARDS[forward] = step_tables.Guard(forward, (fetch, 1, CALL))
    words, faults = _words(forward, "weights"), []
    context, home = place.view(np.int64), _weight("DOWN", "ADDRESS") // 8
    words[_weight("DOWN", "FETCH") // 8], words[_weight("DOWN", "FETCH_CONTEXT") // 8] = fetch, place.address
    for shift in (0, 64):
        context[0] = words[home] + shift
        faults.append(_outcome(forward))
    words[_weight("DOWN", "FETCH") // 8] = 0
    return faults


def packed(kernels: KernelTable) -> list[str]:
    """Words of a table of `pack_rows` that, spoiled, are followed all the same; "nothing" is the table as it is."""
    packing, block_format = Packing(kernels), quants.FORMATS["Q5_K"]
    rows, followed = bytes(16 * block_format.row_nbytes(256)), []
    words = (ctypes.c_int64 * 4096).from_address(packing.table(block_format))
    first = Pack.offsets["MOVE"] // 8
    last = first + Move.nbytes // 8 * (words[1] - 2)  # of the words that are sums
    term = (words[last + Move.offsets["TERMS"] // 8] - packing.table(block_format)) // 8
    for name, place, change in [("nothing", 0, 0), ("a source", term, 1 << 20),
                                *((name, first + Move.offsets[name] // 8, change)
                                  for name in ("FROM", "TO", "COUNT") for change in (-FAR, FAR))]:
        words[place] += change
        try:
            packing(block_format, rows, 16, 256, bytearray(len(rows)))
            followed.append(name)
        except EngineError:
            pass
        words[place] -= change
    return followed


def digest(engine: Engine) -> str:
    """SHA-256 of the logits of IDS, and then of only the last of them again."""
    logits = logits_of(engine, IDS, chunk=50)
    engine._forward.run(IDS[:299], range(299), [0] * 299, [])
    again = engine._forward.run(IDS[299:], [299], [0], [0])
    return hashlib.sha256(logits.tobytes() + again.tobytes()).hexdigest()


# One spoiled word of a pass through experts, likewise.
SPOILED_EXPERTS: dict[str, tuple[str, int, int, str]] = {
    "used experts": ("experts", _experts("USED"), 1, "buffer"), "experts": ("experts", _experts("COUNT"), -1, "buffer"),
    "groups": ("experts", _experts("GROUPS"), 1, "buffer"), "a score": ("experts", _experts("SCORE"), 9, "buffer"),
    "a bias of choice": ("experts", _experts("BIAS"), FAR, "vector"),
    "a run of weights": ("weights", Weight.offsets["RUN_NBYTES"], 64, "weight"),
    "choices": ("step", Step.offsets["CHOICES"], FAR, "buffer"),
    "loads": ("step", Step.offsets["LOADS"], FAR, "buffer"),
    "pairs": ("step", Step.offsets["MIXED"], FAR, "buffer"),
}


# One spoiled word of a pass through layers with states, likewise, by model.
SPOILED_STATES: dict[str, dict[str, tuple[str, int, int, str]]] = {"lfm2": {
    "states": ("step", Step.offsets["STATES"], FAR, "cache"),
    "a stride of states": ("step", Step.offsets["STATES_STRIDE"], 1 << 30, "cache"),
    "a run's slot": ("RUNS", SlotRows.offsets["SLOT"], 1, "bundle"),
    "a run's rows": ("RUNS", SlotRows.offsets["COUNT"], 1, "bundle"),
    "a run's position": ("RUNS", SlotRows.offsets["POSITION"], FAR, "bundle"),
    "a run's log": ("RUNS", SlotRows.offsets["LOG"], FAR, "cache"),
    "rows of no log": ("RUNS", SlotRows.offsets["LOGGED"], 1, "bundle"),
    "guesses without a log": ("RUNS", SlotRows.offsets["GUESSES"], 1, "bundle"),
    "a place in the log": ("convolutions", _convolution("LOG"), FAR, "cache"),
    "a place in the state": ("convolutions", _convolution("PLACE"), FAR, "cache"),
    "weights of columns": ("convolutions", _convolution("WEIGHTS"), FAR, "vector"),
    "columns": ("convolutions", _convolution("COLUMNS"), 16, "buffer"),
    "rows that are seen": ("convolutions", _convolution("WIDTH"), 1, "buffer"),
}, "qwen35": {
    "value heads": ("deltas", _delta("HEADS"), 1, "buffer"), "key heads": ("deltas", _delta("KEY_HEADS"), 1, "buffer"),
    "a size": ("deltas", _delta("SIZE"), 32, "buffer"), "rates": ("deltas", _delta("RATE"), FAR, "buffer"),
    "heads together": ("deltas", _delta("TOGETHER"), -1, "buffer"), "gates": ("deltas", _delta("GATE"), FAR, "buffer"),
    "paces": ("deltas", _delta("PACE"), FAR, "buffer"), "decays": ("deltas", _delta("DECAY"), FAR, "vector"),
    "starts of paces": ("deltas", _delta("START"), -FAR, "vector"),
    "a place of matrices": ("deltas", _delta("PLACE"), FAR, "cache"),
    "a place of rows": ("deltas", _delta("LOG"), FAR, "cache"),
    "what is convolved": ("step", Step.offsets["CONVOLVED"], FAR, "buffer"),
    "own rows": ("step", Step.offsets["PRIVATE_DELTA"], FAR, "buffer"),
    "gates of heads": ("attention", Attention.nbytes + Attention.offsets["GATED"], -1, "buffer"),
}, "nemotron_h": {
    "heads": ("mambas", _mamba("HEADS"), 1, "buffer"), "a head's size": ("mambas", _mamba("HEAD_SIZE"), 16, "buffer"),
    "a key's size": ("mambas", _mamba("SIZE"), 16, "buffer"), "shared keys": ("mambas", _mamba("SHARED"), -1, "buffer"),
    "keys": ("mambas", _mamba("KEY"), FAR, "buffer"), "queries": ("mambas", _mamba("QUERY"), FAR, "buffer"),
    "paces": ("mambas", _mamba("PACE"), FAR, "buffer"), "starts": ("mambas", _mamba("START"), FAR, "vector"),
    "decays": ("mambas", _mamba("DECAY"), -FAR, "vector"), "skips": ("mambas", _mamba("SKIP"), FAR, "vector"),
    "a place of matrices": ("mambas", _mamba("PLACE"), FAR, "cache"),
    "a place of rows": ("mambas", _mamba("LOG"), -FAR, "cache"),
    "own numbers": ("step", Step.offsets["PRIVATE_MAMBA"], FAR, "buffer"),
    "parts of a row": ("ops", Op.nbytes * 3 + Op.offsets["PARTS"], 1, "buffer"),
}}


def mixture_digest(engine: Engine) -> str:
    """SHA-256 of a small model's logits, of rows in a batch and of the last one again by itself."""
    forward, ids = engine._forward, [token % family_models.VOCABULARY for token in IDS[:40]]
    logits = logits_of(engine, ids, chunk=33)
    forward.run(ids[:39], range(39), [0] * 39, [])
    return hashlib.sha256(logits.tobytes() + forward.run(ids[39:], [39], [0], [0]).tobytes()).hexdigest()


def state_digest(engine: Engine) -> str:
    """SHA-256 of a small model's logits: with guesses of which a part is right, and then as those of a mixture."""
    forward, seats, ids = engine._forward, engine._seats, [token % family_models.VOCABULARY for token in IDS[:60]]
    found = hashlib.sha256()
    with seats.claim([60]) as [slot]:
        forward.run(ids[:20], range(20), [slot] * 20, [])
        position = 20
        for right in (5, 0, 3):
            seats.expect_guesses(slot, 5)
            found.update(forward.run(ids[position:position + 6], range(position, position + 6), [slot] * 6,
                                     range(6)).tobytes())
            position += 1 + right
            seats.commit(slot, position, right)
        found.update(forward.run(ids[position:], range(position, 60), [slot] * (60 - position), [0]).tobytes())
        seats.give_back(slot)
    found.update(mixture_digest(engine).encode())
    return found.hexdigest()


def states(kernels: KernelTable) -> dict[str, Any]:
    """The digest of logits of each model with states, and the faults of its spoiled words."""
    found = {}
    for model, words in SPOILED_STATES.items():
        with opened(family_models.model(model)) as source, Engine.open(
                source, EngineOptions(context_length=128, slots=1, threads=THREADS), kernels=kernels) as engine:
            digest, forward = state_digest(engine), engine._forward
            found[model] = {"digest": digest, "faults": {name: _fault(forward, where, offset, change)
                                                         for name, (where, offset, change, _) in words.items()}}
    return found


def mixture(kernels: KernelTable) -> dict[str, Any]:
    """The digest of a mixture's logits, and the faults of its spoiled words."""
    with opened(family_models.model(MIXTURE)) as source, Engine.open(
            source, EngineOptions(context_length=128, slots=1, threads=THREADS), kernels=kernels) as engine:
        digest, forward = mixture_digest(engine), engine._forward
        run = [name for op in forward._ops for name in op.weights].index("blk.3.ffn_down_exps.weight")
        faults = {name: _fault(forward, where, offset + (Weight.nbytes * run if where == "weights" else 0), change)
                  for name, (where, offset, change, _) in SPOILED_EXPERTS.items()}
        return {"digest": digest, "faults": faults}


def main() -> None:
    """Compile with checks inside and run. Tables are judged before each pass."""
    launch = Forward._launch

    def judged(forward: Forward) -> None:
        if forward not in GUARDS:
            GUARDS[forward] = step_tables.Guard(forward)
        step_tables.check(forward, GUARDS[forward])
        launch(forward)
        GUARDS[forward].expect_none()
    Forward._launch = judged  # type: ignore[method-assign]
    targets.compile_for(targets.detect().name, debug=True)
    kernels = table.load()
    with opened(synthetic_model(MODEL)) as source, Engine.open(
            source, EngineOptions(context_length=CONTEXT, slots=2, threads=THREADS, kv_cache=sys.argv[1]),
            kernels=kernels) as engine:
        print(json.dumps({"origin": kernels.origin, "debug": targets.debugging(), "digest": digest(engine),
                          "faults": found(engine._forward), "fetched": fetched(engine._forward),
                          "packed": packed(kernels), "mixture": mixture(kernels), "states": states(kernels)}))


if __name__ == "__main__":
    main()
