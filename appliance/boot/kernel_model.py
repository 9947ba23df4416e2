"""A tiny model for the self-test of the forward pass: fixed weights in one block format, and a fixed way through it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from appliance.boot import kernel_inputs
from appliance.engine import architecture_tensors as names
from appliance.engine.architecture import Architecture, Rope
from appliance.engine.forward import Forward
from appliance.engine.kernels.memory import Memory
from appliance.engine.kernels.table import KernelTable
from appliance.engine.kernels.threads import Pool
from appliance.engine.kvcache import KVCache
from appliance.models import layout, quants
from appliance.models.gguf import TensorInfo
from appliance.models.metadata import Metadata
from appliance.models.tiles import Weight

THREADS = 2
SCALE = 2.0 ** -7  # of the weights
# Two query heads share a key-value head; rows of 256, as the largest blocks need.
SHAPE = Architecture(
    blocks=2, embedding=256, heads=4, kv_heads=2, head_size=64, feed_forward=512, vocabulary=96, context_length=512,
    epsilon=1e-5, rope=Rope(scaling="none", base=10000.0, factor=1.0, original_context=512, magnitude=1.0))
PROMPT = [(7 * i + 3) % SHAPE.vocabulary for i in range(300)]  # more positions than one attention span
OTHER = [5, 90, 17]
WANTED = (0, 63, 64, 255, 256, 299)


class FixedSource:
    """A tile source with weights of one format, and norms near 1, all from `kernel_inputs`."""

    def __init__(self, format_name: str) -> None:
        self.metadata = Metadata({})
        self.sha256 = bytes(32)
        self._format = quants.FORMATS[format_name]
        self._packed: dict[str, Memory] = {}
        self._shapes = dict(names.required(SHAPE))
        self.tensors: Mapping[str, TensorInfo] = {}

    def weight(self, name: str) -> Weight:
        """A matrix in kernel order."""
        rows, columns = self._shapes[name]
        if name not in self._packed:
            data = kernel_inputs.weights(self._format.name, rows, columns, label=name, scale=SCALE)
            self._packed[name] = kernel_inputs.packed(self._format.name, data, rows, columns)
        memory = self._packed[name]
        nbytes = layout.interleaved_nbytes(self._format, rows, columns)
        return Weight(self._format, rows, columns, memory.address, nbytes)

    def vector(self, name: str) -> NDArray[np.float32]:
        """A norm: multiples of 2^-15 around 1."""
        noise = kernel_inputs.stream(name, self._shapes[name][0]).astype(np.float32)
        return np.float32(1) + (noise - np.float32(127)) * np.float32(2.0 ** -10)

    def close(self) -> None:
        """Nothing to give back."""


def logits(table: KernelTable, format_name: str) -> NDArray[np.float32]:
    """Logits (8, vocabulary): six of a prompt that is read in two pieces, then two of a pass over two slots."""
    with Pool(table, THREADS) as pool:
        cache = KVCache(SHAPE, 2, 512)
        plan = names.TensorPlan(output=names.EMBEDDING, rope_factors=False, biases=frozenset())
        forward = Forward(FixedSource(format_name), SHAPE, plan, cache, table, pool)
        rows: list[NDArray[np.float32]] = []
        for first, last in ((0, 192), (192, 300)):
            wanted = [position - first for position in WANTED if first <= position < last]
            rows.append(forward.run(PROMPT[first:last], range(first, last), [0] * (last - first), wanted).copy())
        forward.run(OTHER[:2], [0, 1], [1, 1], [])
        rows.append(forward.run([11, OTHER[2]], [300, 2], [0, 1], [0, 1]).copy())
        cache.release()
        forward.release()
    return np.concatenate(rows)
