"""Self-test of the kernels: each is run on fixed inputs, and the bits of its output must be the
known ones.

Results are the same bits on every CPU, so that one table serves all targets. `known_answers.json`
holds it: SHA-256 of the output by test; tests/goldens/kernel_answers.py makes it in plain numpy,
without a kernel. A kernel without a known answer fails the test: none can be added and forgotten.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable

import numpy as np

from appliance import packaged
from appliance.boot.selftest import attention, features, fetch, inputs, search, sums, tiny_model
from appliance.engine.forward.packing import Packing
from appliance.errors import EngineError, shortage
from appliance.kernels.layouts.attention import CACHE_FORMATS
from appliance.kernels.layouts.shapes import ACTIVATIONS, SHAPES, activation_kind, activation_nbytes
from appliance.kernels.runtime.memory import Memory
from appliance.kernels.runtime.table import KernelTable
from appliance.kernels.runtime.threads import Pool
from appliance.models.file import layout, quants
from appliance.secure import libcrypto

_SUFFIXES = {shape.suffix: name for name, shape in SHAPES.items()}
PIECE, PLACE = 80, 128
"""Bytes of a piece, and of the whole vectors that it is copied in."""
MASKS = ((-1, 0, 0), (0, 0, -1), (0, 0, 0))
"""Of each of three places and pieces."""
_IN_STEP = b"all threads kept step"


def quantise(table: KernelTable, kind: str, tokens: int, label: str, columns: int = inputs.COLUMNS) -> bytes:
    """Activations of `tokens` rows of fixed floats, as the kernel lays them out."""
    values = inputs.placed(inputs.floats(label, tokens, columns))
    out = Memory(activation_nbytes(kind, columns, tokens))
    table.function(f"quantise_{kind}")(values.address, 4 * columns, columns, out.address, 0, tokens, tokens)
    return out.view(np.uint8).tobytes()


def products(table: KernelTable, name: str) -> bytes:
    """float32 (tokens, ROWS) of each size: twice the product, for it is first written and then
    added to."""
    rows, kind, found, packed = inputs.ROWS, activation_kind(name), [], dict[int, Memory]()
    call = table.function(f"product_{SHAPES[name].suffix}")
    for tokens, columns in inputs.products(name):
        if columns not in packed:
            packed[columns] = inputs.packed(name, inputs.weights(name, rows, columns), rows, columns)
        activations = inputs.placed(np.frombuffer(
            quantise(table, kind, tokens, f"product {tokens}", columns), np.uint8))
        out = Memory(4 * rows * tokens)
        for accumulate in (0, 1):
            call(packed[columns].address, columns, activations.address, tokens, out.address, 4 * rows, accumulate, 0,
                 rows // 16)
        found.append(out.view(np.uint8).tobytes())
    return b"".join(found)


def gather(table: KernelTable, name: str) -> bytes:
    """float32 (3, COLUMNS): the first, a middle and the last row, decoded."""
    rows, columns = inputs.ROWS, inputs.COLUMNS
    weights = inputs.packed(name, inputs.weights(name), rows, columns)
    out = Memory(4 * columns * 3)
    for index, row in enumerate((0, 21, rows - 1)):
        table.function(f"gather_{SHAPES[name].suffix}")(
            weights.address, columns, row, out.address + 4 * columns * index)
    return out.view(np.uint8).tobytes()


def pick(table: KernelTable) -> bytes:
    """Three places: with the first piece, with the last one, and as it was."""
    pieces, to = inputs.placed(inputs.stream("pieces", 3 * PIECE)), inputs.placed(inputs.stream("places", 3 * PLACE))
    masks = inputs.placed(np.array(MASKS, np.int32))
    table.function("pick_pieces")(pieces.address, PIECE, 3, masks.address, 3, to.address, PLACE)
    return to.view(np.uint8).tobytes()


def pack(table: KernelTable, _name: str) -> bytes:
    """Rows of every format in kernel order; the last group is not full."""
    rows, columns, found, packing = inputs.ROWS - 3, inputs.COLUMNS, [], Packing(table)
    for name in sorted(SHAPES):
        block_format = quants.FORMATS[name]
        out = Memory(layout.interleaved_nbytes(block_format, rows, columns))
        packing(block_format, inputs.weights(name, rows, columns), rows, columns, out.view(np.uint8))
        found.append(out.view(np.uint8).tobytes())
    return b"".join(found)


def _quantise_answer(table: KernelTable, kind: str) -> bytes:
    return b"".join(quantise(table, kind, tokens, f"quantise {tokens}") for tokens in inputs.TOKENS)


def _lockstep_answer(table: KernelTable, _name: str) -> bytes:
    """Every kernel of the pool takes part in starting, running and stopping one."""
    with Pool(table, 2) as pool:
        pool.check()
    return _IN_STEP


Case = Callable[[KernelTable, str], bytes]
_CASES: tuple[tuple[re.Pattern[str], Case], ...] = (
    (re.compile(rf"quantise_({'|'.join(ACTIVATIONS)})"), _quantise_answer),
    (re.compile(rf"product_({'|'.join(_SUFFIXES)})"), lambda table, suffix: products(table, _SUFFIXES[suffix])),
    (re.compile(rf"gather_({'|'.join(_SUFFIXES)})"), lambda table, suffix: gather(table, _SUFFIXES[suffix])),
    (re.compile(r"lockstep_(run|work|stop|spin|probe)"), _lockstep_answer),
    (re.compile(rf"remember_({'|'.join(CACHE_FORMATS)})"), attention.remember),
    (re.compile(r"(query_q8)"), lambda table, _name: attention.query(table)),
    (re.compile(rf"attend_({'|'.join(CACHE_FORMATS)})"), attention.attend),
    (re.compile(r"(pick_pieces)"), lambda table, _name: pick(table)),
    (re.compile(r"(pack_rows)"), pack),
    (re.compile(r"(fetch_sealed)"), lambda table, _name: fetch.fetch_sealed(table)),
    (re.compile(r"(fetch_plain)"), lambda table, _name: fetch.fetch_plain(table)),
    (re.compile(r"(fetch_sealed)/run"), lambda table, _name: fetch.fetch_sealed_run(table)),
    (re.compile(r"(fetch_plain)/run"), lambda table, _name: fetch.fetch_plain_run(table)),
    (re.compile(r"(weigh_logits|running_sums|mark_highest|bring_forward|sort_pairs|add_up|place_of_draw)"),
     lambda table, name: getattr(sums, name)(table)),
    (re.compile(r"(find_spans|find_stops|encode_text|token_row|complete_text|write_string)"),
     lambda table, name: getattr(search, name)(table)),
    (re.compile(r"(quote_places|read_string)"), lambda table, _name: search.read_string(table)),
    (re.compile(rf"step/({'|'.join(SHAPES)})"), lambda table, name: tiny_model.logits(table, name).tobytes()),
    (re.compile(rf"step/feature/({'|'.join(features.FEATURES)})"),
     lambda table, name: features.logits(table, name).tobytes()),
)


def _needed(name: str, formats: frozenset[str]) -> bool:
    """Whether models in these block formats use a kernel; kernels that belong to no format always
    count."""
    verb, _, rest = name.partition("_")
    if verb in ("product", "gather") and rest in _SUFFIXES:
        return _SUFFIXES[rest] in formats
    if verb == "quantise" and rest in ACTIVATIONS:
        return rest in {activation_kind(name) for name in formats if name in SHAPES}
    return True


def _unused() -> frozenset[str]:
    """Kernels without a test: `step` has one for each format, and without libcrypto nobody calls
    those that fetch tiles."""
    return frozenset({"step"} if libcrypto.load() is not None else {"step", "fetch_sealed", "fetch_plain"})


def selection(table: KernelTable, formats: frozenset[str] | None) -> list[str]:
    """Tests to run: one a kernel, of all or of those that models in these block formats use; `step`
    once a format, and once a feature of families."""
    tests = [name for name in table.names if name not in _unused() and (formats is None or _needed(name, formats))]
    tests += [f"{name}/run" for name in tests if name.startswith("fetch_")]
    if "step" in table.names:
        matrices = formats_of(table) if formats is None else formats & formats_of(table)
        tests += [f"step/{name}" for name in sorted(matrices)] or ["step"]
        tests += [f"step/feature/{name}" for name in features.FEATURES if features.FORMAT in matrices]
    return tests


@functools.cache
def known() -> dict[str, str]:
    """SHA-256 (hex) of each test's right output. DamagedError where the file of them is."""
    place = "boot/selftest/known_answers.json"
    return dict(packaged.document(place, "SHA-256 of each kernel's answers", packaged.digests))


def output(table: KernelTable, name: str) -> bytes | None:
    """The answer of a test's kernel to its fixed inputs; None if there are none for it."""
    for pattern, case in _CASES:
        match = pattern.fullmatch(name)
        if match is not None:
            return case(table, match[1])
    return None


def answer(table: KernelTable, name: str) -> tuple[str, str]:
    """SHA-256 (hex) of a test's output: expected and found, or words where there is none.
    EngineError where no thread could be started."""
    try:
        made = output(table, name)
    except EngineError as error:
        if shortage(error.__cause__ or error) is not None:  # which is no answer
            raise
        return known().get(name, "a known answer"), f"error {error.code}"
    found = "no known answer" if made is None else hashlib.sha256(made).hexdigest()
    return known().get(name, "a known answer"), found


def formats_of(table: KernelTable) -> frozenset[str]:
    """The block formats that a table has products for."""
    return frozenset(name for name in quants.FORMATS if f"product_{SHAPES[name].suffix}" in table.names)
