"""Digests of what the kernels of one target compute: `python -m tests.support.kernel_bits TARGET FORMAT,...
[LIBRARY]` prints JSON.

A process compiles kernels for one target only, so tests of another target run this as a process of its own.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np

from appliance.engine.forward.packing import Packing
from appliance.kernels.layouts import shapes
from appliance.kernels.runtime import table
from appliance.kernels.runtime.table import KernelTable
from appliance.models.file import layout, quants
from tests.support.kernel_cases import Product, fields, largest_weights, quantised, random_weights

ROWS, COLUMNS = 41, 768
TOKENS = (1, 15, 35)  # tiles of 1, of 6, 2 and 1, and of 16; two groups at a time


def _digest(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def bits(kernels: KernelTable, names: list[str]) -> dict[str, str]:
    """Digest of every product (by format and tokens), packed matrix (by format) and quantiser (by kind)."""
    x = np.random.default_rng(5).standard_normal((max(TOKENS), COLUMNS)).astype(np.float32)
    x[3, 256:512] = 0.0
    found, packing = {}, Packing(kernels)
    for name in names:
        data = random_weights(name, ROWS, COLUMNS)
        order = np.empty(layout.interleaved_nbytes(quants.FORMATS[name], ROWS, COLUMNS), np.uint8)
        packing(quants.FORMATS[name], data, ROWS, COLUMNS, order)
        found[f"{name} packed"] = _digest(order)
        product = Product(kernels, name, data, ROWS, COLUMNS)
        for tokens in TOKENS:
            found[f"{name} {tokens}"] = _digest(product(x[:tokens]))
        largest = Product(kernels, name, largest_weights(name, ROWS, COLUMNS), ROWS, COLUMNS)
        found[f"{name} largest"] = _digest(largest(1 - np.abs(x) / 100))
    for kind in sorted({shapes.activation_kind(name) for name in names}):
        found[kind] = _digest(fields(kind, quantised(kernels, kind, x), COLUMNS, len(x)))
    return found


if __name__ == "__main__":
    print(json.dumps(bits(table.load(sys.argv[1], *map(Path, sys.argv[3:])), sys.argv[2].split(","))))
