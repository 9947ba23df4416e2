"""Makes docs/formats/arithmetic-vectors.json: `python -m tests.goldens.make_arithmetic_vectors`. By the plain engine
alone; `test_plain_engine` compares that with the kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.boot import kernel_inputs
from appliance.models import quants
from examples import plain_engine
from tests.goldens.kernel_answers import matrix

VECTORS = Path(__file__).parents[2] / "docs/formats/arithmetic-vectors.json"
COLUMNS = {1: 272, 32: 64, 256: 256}  # by weights of a block: more than a segment, two blocks, one
HEAD_SIZE, EPSILON = 48, np.float32(1e-5)
POWERS = (0.0, 0.5, -0.5, 1.5, 2.5, -1.0, 0.1, 10.3, -99.99, 126.9, 127.0, 128.0, -126.0, -127.0, -1e20)


def bits(values: Any) -> list[str]:
    """Numbers as the hexadecimal bits of float32."""
    return [f"{word:08x}" for word in np.asarray(values, "<f4").reshape(-1).view("<u4").tolist()]


def floats(words: list[str]) -> NDArray[np.float32]:
    """The numbers again."""
    return np.array([int(word, 16) for word in words], "<u4").view("<f4")


def product(name: str) -> dict[str, Any]:
    """One row of a format times one token."""
    columns = COLUMNS[quants.FORMATS[name].elements]
    row = kernel_inputs.weights(name, 1, columns, label="vector", scale=0.25)
    x = kernel_inputs.floats(f"vector {name}", 1, columns)
    y = plain_engine.multiply(matrix(name, row, 1, columns), x, np.zeros((1, 1), np.float32))
    return {"format": name, "row": row.hex(), "x": bits(x), "y": bits(y)}


def cache(kind: str) -> dict[str, Any]:
    """What a cache keeps of a head."""
    x = kernel_inputs.floats("vector cache", 1, HEAD_SIZE)
    numbers, scales = plain_engine.kept(x, kind)
    return {"cache": kind, "x": bits(x), "numbers": bits(numbers), "scales": bits(scales)}


def vectors() -> dict[str, Any]:
    """All of them."""
    powers = np.array(POWERS, np.float32)
    x, weight = kernel_inputs.floats("vector norm", 1, 96), kernel_inputs.floats("vector weight", 1, 96)[0]
    return {
        "power_of_two": {"x": bits(powers), "y": bits(plain_engine.power_of_two(powers))},
        "norm": {"x": bits(x), "weight": bits(weight), "epsilon": bits(EPSILON),
                 "y": bits(plain_engine.norm(x, weight, EPSILON))},
        "caches": [cache(kind) for kind in ("f16", "q8", "q4")],
        "products": [product(name) for name, _ in plain_engine.LAYOUTS.values()]}


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1) + "\n", encoding="ascii")
