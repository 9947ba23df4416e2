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

from appliance.boot.selftest import inputs as kernel_inputs
from appliance.models.file import quants
from examples import plain_engine, plain_gguf
from tests.goldens.kernel_answers import matrix

VECTORS = Path(__file__).parents[2] / "docs/formats/arithmetic-vectors.json"
HEAD_SIZE, PAIRS, SEEN, KINDS = 48, 8, 300, ("f16", "q8", "q4")
Floats = NDArray[np.float32]

SCALINGS: tuple[dict[str, Any], ...] = (
    {}, {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"rope.freq_base": 500000.0, "factors": True},
    {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 64,
     "rope.scaling.attn_factor": 0.875}, {"rope.scaling.type": "none", "rope.scaling.factor": 4.0},
    {"rope.scale_linear": 2.0})
POSITIONS = (0, 1, 77, 511)
PLAIN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "repeat_last_n": 64,
         "frequency_penalty": 0.0, "presence_penalty": 0.0, "logit_bias": {}}
CHOICES: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0}, {}, {"temperature": 1.5, "top_k": 5}, {"temperature": 1.3, "top_p": 0.8}, {"min_p": 0.2},
    {"temperature": 2.0, "top_k": 20, "top_p": 0.9, "min_p": 0.01}, {"temperature": 2.0, "top_p": 0.0},
    {"temperature": 0.0, "repeat_penalty": 1.1, "repeat_last_n": 6}, {"repeat_last_n": 0, "repeat_penalty": 1.4},
    {"temperature": 0.0, "frequency_penalty": 0.3, "presence_penalty": 0.1},
    {"frequency_penalty": -0.2, "presence_penalty": 0.7}, {"temperature": 3.0, "logit_bias": {"3": 5.0, "9": -100.0}})
CHAINS: tuple[dict[str, Any], ...] = (
    {"top_n_sigma": 1.0}, {"tfs_z": 0.8}, {"typical_p": 0.6}, {"epsilon_cutoff": 200.0}, {"eta_cutoff": 900.0},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05}, {"dynatemp_range": 0.8, "dynatemp_exponent": 0.7},
    {"mirostat": 1, "mirostat_tau": 2.0}, {"mirostat": 2, "mirostat_tau": 2.0, "mirostat_eta": 0.3},
    {"dry_multiplier": 1.5, "dry_base": 2.0, "dry_allowed_length": 1, "dry_breakers": [[20], [11, 32]]},
    {"temperature": 2.0, "top_p": 0.8, "presence_penalty": 1.0, "samplers": ["temperature", "penalties", "top_p"]},
    {"temperature": 0.0, "xtc_probability": 0.5, "xtc_threshold": 0.05})
GUIDED: tuple[dict[str, Any], ...] = (
    {"guidance_scale": 1.5}, {"guidance_scale": 0.0}, {"guidance_scale": 4.0, "temperature": 0.0},
    {"guidance_scale": 3.0, "top_p": 0.9, "repeat_penalty": 1.2, "logit_bias": {"3": 2.0}})
TOKENS, ROWS, DRAWN = 3, 4, 24  # of a product; of an answer
# Of one head: the largest magnitude with both signs, a group of zeros, numbers beyond binary16, halves between quants.
EDGES = [*(-1.0, 1.0, 0.5, 0.0625), *[0.0] * 60, *(1e6, -1e6, 7e4, 257.0, 0.5), *[0.0] * 27, *(2.0, 1.0, 0.25)]


def wide(values: Any) -> str:
    """Numbers as the hexadecimal bits of binary64."""
    return " ".join(f"{word:016x}" for word in np.asarray(values, "<f8").reshape(-1).view("<u8").tolist())


def bits(values: Any) -> str:
    """Numbers as the hexadecimal bits of float32."""
    return " ".join(f"{word:08x}" for word in np.asarray(values, "<f4").reshape(-1).view("<u4").tolist())


def labelled(label: str, *shape: int) -> Floats:
    """The numbers that a label stands for."""
    data = hashlib.shake_128(label.encode()).digest(4 * int(np.prod(shape)))
    words = np.frombuffer(data, "<u4").astype(np.float32)
    return np.asarray((words * np.float32(2.0**-31) - np.float32(1)).reshape(shape), np.float32)


def activations(name: str) -> Floats:
    """What rows of a format are multiplied with: (TOKENS, columns), with a part that is zeros."""
    each = quants.FORMATS[name].elements
    x = labelled(f"product {name}", TOKENS, {1: 272, 32: 96, 256: 768}[each])
    start, end = (256, 512) if each == 256 else (32, 64)
    x[:, start:end] = 0
    return x


def start() -> Floats:
    """What the results of a product start from."""
    return labelled("product start", TOKENS, ROWS)


@functools.cache
def product(name: str) -> dict[str, Any]:
    """Rows of a format times tokens."""
    x = activations(name)
    data = kernel_inputs.weights(name, ROWS, x.shape[1], label="product", scale=0.25)
    y = plain_engine.multiply(matrix(name, data, ROWS, x.shape[1]), x, start())
    return {"format": name, "label": f"product {name}", "columns": x.shape[1], "rows": data.hex(), "y": bits(y)}


def embedding(name: str) -> dict[str, Any]:
    """One block of a format, decoded."""
    columns = max(quants.FORMATS[name].elements, 16)
    data = kernel_inputs.weights(name, 1, columns, label="embedding", scale=0.25)
    return {"format": name, "row": data.hex(), "y": bits(plain_engine.decoded(matrix(name, data, 1, columns), [0]))}


def rotation(scaling: dict[str, Any]) -> dict[str, Any]:
    """Cosines and sines of a few positions."""
    meta = {key: value for key, value in scaling.items() if key != "factors"}
    factors = np.arange(1, PAIRS + 1, dtype=np.float32) if "factors" in scaling else None
    found = plain_engine.turns(lambda key, default=None: meta.get(key, default), max(POSITIONS) + 1, 2 * PAIRS, factors)
    return {"metadata": meta, "pairs": PAIRS, "rope_freqs": None if factors is None else bits(factors),
            "positions": list(POSITIONS), "cosine": bits(found[list(POSITIONS), :, 0]),
            "sine": bits(found[list(POSITIONS), :, 1])}


def rotated() -> dict[str, Any]:
    """One head, turned as without scaling."""
    angles = plain_engine.turns(lambda key, default=None: default, POSITIONS[-1] + 1, 2 * PAIRS, None)
    x = labelled("rotated", 1, 1, 2 * PAIRS)
    return {"label": "rotated", "position": POSITIONS[-1], "y": bits(plain_engine.rotate(x, angles[POSITIONS[-1]:]))}


def hidden() -> dict[str, Any]:
    """The gate of the feed-forward network."""
    gate, up = labelled("hidden g", 64) * np.float32(12), labelled("hidden u", 64)
    return {"g": "hidden g", "u": "hidden u", "y": bits(plain_engine.gated(gate, up))}


def caches(kind: str) -> list[dict[str, Any]]:
    """What a cache keeps of a few heads."""
    found = []
    for x in (labelled("cache", 1, HEAD_SIZE), np.array([EDGES], np.float32)):
        numbers, scales = plain_engine.kept(x, kind)
        found.append({"cache": kind, "x": bits(x), "numbers": bits(numbers + np.float32(0)), "scales": bits(scales)})
    return found


def attention(kind: str) -> dict[str, Any]:
    """Outputs of the last two of many positions: the last one is of another span and block than the first."""
    keys, values = (plain_engine.kept(labelled(f"attention {part}", SEEN, 1, HEAD_SIZE), kind)
                    for part in ("keys", "values"))
    query = labelled("attention queries", 2, 1, HEAD_SIZE) * np.float32(4)
    return {"cache": kind, "keys": "attention keys", "values": "attention values", "queries": "attention queries",
            "y": bits(plain_engine.attend(query, keys, values, kind))}


def softplus() -> dict[str, Any]:
    """Of numbers on either side of 0."""
    x = labelled("softplus", 100) * np.float32(30)
    return {"x": bits(x), "y": bits(plain_engine.softplus(x))}


def delta() -> dict[str, Any]:
    """Outputs of two heads of a gated delta rule, of five rows from position 0 on."""
    query, key, value = (labelled(f"delta {part}", 5, 2, 32) for part in ("queries", "keys", "values"))
    keep, rate = ((labelled(f"delta {part}", 5, 2) + np.float32(1)) / np.float32(2) for part in ("keep", "rate"))
    y = plain_engine.delta_rule(plain_engine.unit(query) * np.float32(32**-0.5), plain_engine.unit(key), value, keep,
                                rate, np.zeros((2, 32, 32), np.float32))
    return {"queries": "delta queries", "keys": "delta keys", "values": "delta values", "keep": "delta keep",
            "rate": "delta rate", "y": bits(y)}


def scan() -> dict[str, Any]:
    """Outputs of two heads of Mamba-2, of five rows from position 0 on."""
    x, key, query = (labelled(f"scan {part}", 5, 2, size) for part, size in (("x", 16), ("keys", 32), ("queries", 32)))
    pace, keep = ((labelled(f"scan {part}", 5, 2) + np.float32(1)) / np.float32(2) for part in ("pace", "keep"))
    y = plain_engine.scan(x, key, query, pace, keep, np.zeros((2, 32, 16), np.float32))
    return {"x": "scan x", "keys": "scan keys", "queries": "scan queries", "pace": "scan pace", "keep": "scan keep",
            "y": bits(y)}


def functions() -> dict[str, Any]:
    """Exponentials, their sum, and logarithms, of binary64 numbers."""
    x = labelled("exp", 600).astype(np.float64) * 30
    powers = plain_engine.exp(x)
    return {"x": wide(x), "exp": wide(powers), "sum": wide(plain_engine.total(powers)),
            "ln": wide([plain_engine.ln(abs(each)) for each in x.tolist()])}


def choice(index: int, given: dict[str, Any]) -> dict[str, Any]:
    """An answer whose logits are always the same, for settings of which most are neutral."""
    logits, seed = labelled("choice", 40) * np.float32(4), (1 << 64) - 1 - index
    negative = labelled("negative", 40) * np.float32(4) if "guidance_scale" in given else None
    best = np.argsort(-logits)
    settings, prompt, answer = {**PLAIN, **given}, best[[0, 2, 2, 30, 1]].tolist(), list[int]()
    state: dict[str, float] = {}
    while len(answer) < DRAWN:
        answer.append(plain_engine.choose(logits, settings, seed, prompt, answer, state, negative=negative))
    return {"settings": settings, "seed": seed, "prompt": prompt, "label": "choice", "answer": answer}


def vectors() -> dict[str, Any]:
    """All of them."""
    x, w, epsilon = labelled("norm x", 1, 96), labelled("norm w", 96), np.float32(1e-5)
    powers = labelled("exp2", 200) * np.float32(130)
    names = [name for name, _ in plain_gguf.LAYOUTS.values()]
    return {
        "exp2": {"x": bits(powers), "y": bits(plain_engine.exp2(powers))},
        "embeddings": [embedding(name) for name in names],
        "products": [product(name) for name in names],
        "norm": {"x": "norm x", "w": "norm w", "epsilon": bits(epsilon), "y": bits(plain_engine.norm(x, w, epsilon))},
        "rotations": [rotation(scaling) for scaling in SCALINGS],
        "rotated": rotated(),
        "caches": [found for kind in KINDS for found in caches(kind)],
        "attention": [attention(kind) for kind in KINDS],
        "hidden": hidden(),
        "functions": functions(),
        "choices": [choice(index, given) for index, given in enumerate(CHOICES)],
        "chains": [choice(index, given) for index, given in enumerate(CHAINS)],
        "guided": [choice(index, given) for index, given in enumerate(GUIDED)],
        "softplus": softplus(),
        "delta": delta(),
        "scan": scan()}


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1) + "\n", encoding="ascii")
