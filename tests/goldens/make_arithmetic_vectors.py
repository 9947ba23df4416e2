"""Makes docs/formats/arithmetic-vectors.json: `python -m tests.goldens.make_arithmetic_vectors`. By the plain engine
alone; `test_plain_engine` compares that with the kernels."""

from __future__ import annotations

import functools
import hashlib
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
HEAD_SIZE, PAIRS, SEEN, KINDS = 48, 8, 300, ("f16", "q8", "q4")
Floats = NDArray[np.float32]

SCALINGS: tuple[dict[str, Any], ...] = (
    {}, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope.freq_base": 500000.0, "factors": True},
    {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 64,
     "rope.scaling.attn_factor": 0.9})
POSITIONS = (0, 1, 77, 511)
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "repeat_last_n": 64,
         "frequency_penalty": 0.0, "presence_penalty": 0.0, "logit_bias": {}}
CHOICES: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0}, {}, {"temperature": 0.7, "top_k": 5}, {"temperature": 1.3, "top_p": 0.8}, {"min_p": 0.2},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.01}, {"temperature": 0.0, "repeat_penalty": 1.4},
    {"repeat_last_n": 0, "repeat_penalty": 1.4}, {"frequency_penalty": 0.7, "presence_penalty": 0.4},
    {"logit_bias": {"3": 5.0, "9": -100.0}})


def bits(values: Any) -> str:
    """Numbers as the hexadecimal bits of float32."""
    return " ".join(f"{word:08x}" for word in np.asarray(values, "<f4").reshape(-1).view("<u4").tolist())


def labelled(label: str, *shape: int) -> Floats:
    """The numbers that a label stands for."""
    data = hashlib.shake_128(label.encode()).digest(4 * int(np.prod(shape)))
    words = np.frombuffer(data, "<u4").astype(np.float32)
    return np.asarray((words * np.float32(2.0**-31) - np.float32(1)).reshape(shape), np.float32)


def activations(name: str) -> Floats:
    """What a row of a format is multiplied with: (1, columns), with a part that is zeros."""
    each = quants.FORMATS[name].elements
    x = labelled(f"product {name}", 1, {1: 272, 32: 96, 256: 768}[each])
    start, end = (256, 512) if each == 256 else (32, 64)
    x[:, start:end] = 0
    return x


def row(name: str, columns: int, what: str) -> bytes:
    """A row of weights."""
    return kernel_inputs.weights(name, 1, columns, label=what, scale=0.25)


@functools.cache
def product(name: str) -> dict[str, Any]:
    """One row of a format times one token."""
    x = activations(name)
    data = row(name, x.shape[1], "product")
    y = plain_engine.multiply(matrix(name, data, 1, x.shape[1]), x, np.zeros((1, 1), np.float32))
    return {"format": name, "label": f"product {name}", "columns": x.shape[1], "row": data.hex(), "y": bits(y)}


def embedding(name: str) -> dict[str, Any]:
    """One block of a format, decoded."""
    columns = max(quants.FORMATS[name].elements, 16)
    data = row(name, columns, "embedding")
    return {"format": name, "row": data.hex(), "y": bits(plain_engine.decoded(matrix(name, data, 1, columns), [0]))}


def rotation(scaling: dict[str, Any]) -> dict[str, Any]:
    """Cosines and sines of a few positions."""
    meta = {key: value for key, value in scaling.items() if key != "factors"}
    factors = np.arange(1, PAIRS + 1, dtype=np.float32) if "factors" in scaling else None
    found = plain_engine.turns(lambda key, default=None: meta.get(key, default), max(POSITIONS) + 1, 2 * PAIRS, factors)
    return {"metadata": meta, "pairs": PAIRS, "rope_freqs": None if factors is None else bits(factors),
            "positions": list(POSITIONS), "cosine": bits(found[list(POSITIONS), :, 0]),
            "sine": bits(found[list(POSITIONS), :, 1])}


def cache(kind: str) -> dict[str, Any]:
    """What a cache keeps of a head."""
    numbers, scales = plain_engine.kept(labelled("cache", 1, HEAD_SIZE), kind)
    return {"cache": kind, "label": "cache", "numbers": bits(numbers + np.float32(0)), "scales": bits(scales)}


def attention(kind: str) -> dict[str, Any]:
    """Outputs of the last two of many positions: the last one is of another span and block than the first."""
    keys, values = (plain_engine.kept(labelled(f"attention {part}", SEEN, 1, HEAD_SIZE), kind)
                    for part in ("keys", "values"))
    query = labelled("attention queries", 2, 1, HEAD_SIZE) * np.float32(4)
    return {"cache": kind, "keys": "attention keys", "values": "attention values", "queries": "attention queries",
            "y": bits(plain_engine.attend(query, keys, values, kind))}


def choice(index: int) -> dict[str, Any]:
    """A token, for settings of which most are neutral."""
    settings, prompt = {**PLAIN, **CHOICES[index]}, [7, 1, 7, 30]
    answer = [3, 12, 3, 39][:index % 5]
    logits, seed = labelled("choice", 40) * np.float32(8), (1 << 64) - 1 - index
    return {"settings": settings, "seed": seed, "prompt": prompt, "answer": answer, "label": "choice",
            "token": plain_engine.choose(logits, settings, seed, prompt, answer)}


def vectors() -> dict[str, Any]:
    """All of them."""
    x, w, epsilon = labelled("norm x", 1, 96), labelled("norm w", 96), np.float32(1e-5)
    powers = labelled("exp2", 200) * np.float32(130)
    names = [name for name, _ in plain_engine.LAYOUTS.values()]
    return {
        "exp2": {"label": "exp2", "x": bits(powers), "y": bits(plain_engine.exp2(powers))},
        "embeddings": [embedding(name) for name in names],
        "products": [product(name) for name in names],
        "norm": {"x": "norm x", "w": "norm w", "epsilon": bits(epsilon), "y": bits(plain_engine.norm(x, w, epsilon))},
        "rotations": [rotation(scaling) for scaling in SCALINGS],
        "caches": [cache(kind) for kind in KINDS],
        "attention": [attention(kind) for kind in KINDS],
        "choices": [choice(index) for index in range(len(CHOICES))]}


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1) + "\n", encoding="ascii")
