"""A tiny model for the self-test of the forward pass: fixed weights in one block format, and a
fixed way through it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from appliance.boot.selftest import inputs
from appliance.engine.forward.forward import Forward
from appliance.engine.forward.kvcache import KVCache
from appliance.families import names
from appliance.families.architecture import Architecture, Rope
from appliance.families.tensors import TensorPlan, optional_shapes, required_shapes
from appliance.kernels.runtime.memory import Memory
from appliance.kernels.runtime.table import KernelTable
from appliance.kernels.runtime.threads import Pool
from appliance.models.file import layout, quants
from appliance.models.file.gguf import TensorInfo
from appliance.models.file.metadata import Metadata
from appliance.models.sources.source import InMemory, KernelMatrix

THREADS = 2
# Exponent of two of a format's scales, so that weights of any quants are about 1/16, as in a
# trained model.
EXPONENTS = {"F32": -9, "F16": -9, "BF16": -9, "Q4_0": -6, "Q4_1": -7, "Q5_0": -7, "Q5_1": -8, "Q8_0": -10, "Q8_1": -10,
             "Q2_K": -8, "Q3_K": -9, "Q4_K": -12, "Q5_K": -13, "Q6_K": -14,
             "IQ4_NL": -10, "IQ4_XS": -14, "MXFP4": -6}
# Two query heads share a key-value head; rows of 256, as the largest blocks need.
SHAPE = Architecture(
    family="llama", layers=2, embedding=256, heads=4, kv_heads=2, head_size=64, feed_forward=512, vocabulary=96,
    context_length=512, epsilon=1e-5,
    rope=Rope(scaling="none", base=10000.0, factor=1.0, original_context=512, magnitude=1.0))
PROMPT = [(7 * i + 3) % SHAPE.vocabulary for i in range(70)]  # more positions than a page
OTHER = [5, 90, 17]
_WANTED = (0, 63, 64)
_LONG, _SHORT = ("Q8_0", "Q4_K"), 20
_FLOATS, _SHORTEST = ("F32", "F16", "BF16"), 5
BIASES = frozenset(names.in_layer(index, part, "bias") for index in range(SHAPE.layers)
                   for part in (names.QUERY, names.KEY, names.VALUE))
_TILE_GROUPS = 3  # the last tile of each matrix has fewer
_WHOLE = (names.KEY, names.UP)  # matrices in memory, beside others in tiles
_FETCH = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def prompt(format_name: str) -> list[int]:
    """Tokens of the prompt: PROMPT for one format of each kind of quantised activations, else its
    beginning. (What follows is attention, the same kernels in every format; the feature `spans`
    has more of it. Products of floats have more rows in a test of their own. Emulated CPUs take
    minutes for more.)"""
    return PROMPT if format_name in _LONG else PROMPT[:_SHORTEST if format_name in _FLOATS else _SHORT]


def tiled_prompt(format_name: str) -> list[int]:
    """Tokens of the prompt that is read with matrices in tiles, by the formats with the long
    prompt: threads share its tiles."""
    return PROMPT[:_SHORT] if format_name in _LONG else []


def tensors() -> dict[str, tuple[int, ...]]:
    """Shapes of the model's tensors."""
    return dict(required_shapes(SHAPE)) | {name: shape for name, shape in optional_shapes(SHAPE) if name in BIASES}


def logit_rows(format_name: str) -> list[int]:
    """Positions of the prompt whose logits are looked at; the last is one of them."""
    last = len(prompt(format_name)) - 1
    return [*(position for position in _WANTED if position < last), last]


def weights(format_name: str, tensor: str, rows: int, columns: int) -> bytes:
    """A matrix of the model, as rows of a GGUF file."""
    scale = 2.0 ** EXPONENTS[format_name]
    return inputs.weights(format_name, rows, columns, label=tensor, scale=scale)


class FixedSource(InMemory):
    """A tile source with weights of one format, norms near 1, and biases near 0, all from
    `kernel_inputs`; with `tiled` most matrices of blocks are handed out in tiles, from memory."""

    def __init__(self, format_name: str, shapes: Mapping[str, tuple[int, ...]] | None = None, *,
                 tiled: bool = False) -> None:
        """`shapes` of another model's tensors than this one's."""
        self.metadata: Metadata = {}
        self.sha256 = bytes(32)
        self._format = quants.FORMATS[format_name]
        self._packed: dict[str, Memory] = {}
        self._shapes, self._tiled = tensors() if shapes is None else shapes, tiled
        self._fetch = _FETCH(lambda first, tile, _thread: first + tile * self._tile_nbytes[first])
        self._tile_nbytes: dict[int, int] = {}  # by address of the first tile
        self.tensors: Mapping[str, TensorInfo] = {}

    def weight(self, name: str) -> KernelMatrix:
        """A matrix in kernel order."""
        *several, rows, columns = self._shapes[name]
        runs = several[0] if several else 1
        if name not in self._packed:
            data = weights(self._format.name, name, runs * rows, columns)
            self._packed[name] = inputs.packed(self._format.name, data, runs * rows, columns)
        memory = self._packed[name]
        nbytes = layout.interleaved_nbytes(self._format, rows, columns)
        if self._tiled and name != names.EMBEDDING and not any(part in name for part in _WHOLE):
            self._tile_nbytes[memory.address] = nbytes // layout.groups(rows) * _TILE_GROUPS
            fetch = ctypes.cast(self._fetch, ctypes.c_void_p).value or 0
            return KernelMatrix(self._format, rows, columns, 0, nbytes, fetch,
                                memory.address, _TILE_GROUPS)
        return KernelMatrix(self._format, rows, columns, memory.address, nbytes, runs=runs)

    def vector(self, name: str) -> NDArray[np.float32]:
        """A norm, a bias or decays: multiples of 2^-10 around 1, 0 or -1."""
        noise = inputs.stream(name, math.prod(self._shapes[name])).astype(np.float32)
        middle = 0 if name.endswith(".bias") else -1 if name.endswith(names.DECAY) else 1
        return np.float32(middle) + (noise - np.float32(127)) * np.float32(2.0 ** -10)

    def close(self) -> None:
        """Nothing to give back."""


def logits(table: KernelTable, format_name: str) -> NDArray[np.float32]:
    """Compute logits (positions, vocabulary): `logit_rows` of a prompt that is read in two pieces,
    then two of a pass over two slots. With matrices in tiles, the last of `tiled_prompt` follows,
    then one of a single row."""
    rows: list[NDArray[np.float32]] = []
    with Pool(table, THREADS) as pool:
        cache = KVCache(SHAPE, 2, 512)
        plan = TensorPlan(output=names.EMBEDDING, biases=BIASES)
        forward = Forward(FixedSource(format_name), SHAPE, plan, cache, table, pool)
        tokens, asked = prompt(format_name), logit_rows(format_name)
        end, cut = len(tokens), len(tokens) * 16 // 25
        for first, last in ((0, cut), (cut, end)):
            if first:  # so that the prompt's pages are not neighbours
                forward.run(OTHER[:2], [0, 1], [1, 1], [])
            here = [position - first for position in asked if first <= position < last]
            rows.append(forward.run(tokens[first:last], range(first, last), [0] * (last - first), here).copy())
        rows.append(forward.run([11, OTHER[2]], [end, 2], [0, 1], [0, 1]).copy())
        forward.release()
        tokens = tiled_prompt(format_name)
        if tokens:
            forward = Forward(FixedSource(format_name, tiled=True), SHAPE, plan, cache, table, pool)
            end = len(tokens)
            rows.append(forward.run(tokens, range(end), [0] * end, [end - 1]).copy())
            rows.append(forward.run([11], [end], [0], [0]).copy())
            forward.release()
        cache.release()
    return np.concatenate(rows)
