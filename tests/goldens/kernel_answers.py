"""Makes appliance/boot/known_answers.json: `python -m tests.goldens.kernel_answers` (needs all kernels; build them).

Where plain numpy gives a kernel's bits (quantisers, row decoders), the answer is numpy's and no kernel takes part.
Products and whole passes have an order of float operations that only they define: there the answer is the kernel's
own output, after it came near enough to a plain computation in float64 or float32. Every target gives the same bits,
which the kernel tests show, so it does not matter which one ran.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.boot import kernel_answers, kernel_attention, kernel_fetch, kernel_inputs, kernel_model, kernel_order
from appliance.engine.kernels import shapes, table
from appliance.models import quants
from tests.support import caches, decoders, ggufs
from tests.support.reference_model import ReferenceModel

TABLE = Path(kernel_answers.__file__).with_name("known_answers.json")
F32 = np.float32


def quantised_32(x: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Fields (tokens, blocks, 16) of q8_32: 8 words of quants, -8, -16 and -128 times their sum, scale, scaled sum; 3
    that nobody writes."""
    blocks = x.reshape(len(x), -1, 32)
    amax = np.abs(blocks).max(axis=-1)
    with np.errstate(divide="ignore"):
        inverse = np.where(amax > 0, F32(127) / amax, F32(0))
    quants8 = np.rint(blocks * inverse[..., None]).clip(-127, 127).astype(np.int8)
    sums = quants8.sum(axis=-1, dtype=np.int32)
    scale = amax / F32(127)
    fields = [quants8.view("<u4")]
    fields += [(np.int32(factor) * sums)[..., None].view("<u4") for factor in (-8, -16, -128)]
    for value in (scale, scale * sums.astype(F32)):
        fields.append(value.astype(np.float16).astype(F32)[..., None].view("<u4"))
    return _filled(fields, 16)


def _filled(fields: list[NDArray[np.uint32]], count: int) -> NDArray[np.uint32]:
    """Fields beside each other, up to `count` with zeros."""
    found = np.concatenate(fields, axis=-1)
    return np.pad(found, ((0, 0), (0, 0), (0, count - found.shape[-1])))


def _packed(sums: NDArray[np.int32]) -> list[NDArray[np.uint32]]:
    """Sums s = 128 high + low as bytes: the words of the high parts, then those of the low ones."""
    return [part.astype(np.uint8).view("<u4") for part in ((sums >> 7) & 255, sums & 127)]


def quantised_256(x: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Fields (tokens, blocks, 96) of q8_256, in the order of `shapes`; nobody writes the last 3."""
    blocks = x.reshape(len(x), -1, 256)
    most = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1)[..., None], -1)
    with np.errstate(divide="ignore"):
        inverse = np.where(most != 0, F32(-127) / most, F32(0))
        scale = np.where(most != 0, F32(1) / inverse, F32(0))
    quants8 = np.rint(blocks * inverse).clip(-127, 127).astype(np.int8)
    sums = quants8.reshape(*quants8.shape[:2], 16, 16).sum(axis=-1, dtype=np.int32)
    wide = sums.reshape(*sums.shape[:2], 8, 2).sum(axis=-1, dtype=np.int32)
    multiples = (np.int32(-32) * sums).view("<u4")
    return _filled([quants8.view("<u4"), multiples, *_packed(wide), *_packed(sums), scale.view("<u4")], 96)


def quantised(kind: str, x: NDArray[np.float32]) -> bytes:
    """Activations of all tokens: by blocks, tokens, fields; of the kind f32 as they are."""
    if kind == "f32":
        return x.tobytes()
    return {"q8_32": quantised_32, "q8_256": quantised_256}[kind](x).swapaxes(0, 1).tobytes()


def exact(test: str) -> bytes | None:
    """The output that plain numpy gives, for tests where it gives the bits."""
    verb, _, rest = test.partition("_")
    if verb == "fetch":
        return kernel_fetch.expected_plain() if rest == "plain" else kernel_fetch.expected_sealed()
    if verb == "pack":
        rows, columns = kernel_inputs.ROWS - 3, kernel_inputs.COLUMNS
        return b"".join(kernel_order.interleave(quants.FORMATS[name], kernel_inputs.weights(name, rows, columns), rows,
                                          columns) for name in sorted(shapes.SHAPES))
    if verb == "quantise":
        return b"".join(quantised(rest, kernel_inputs.floats(f"quantise {tokens}", tokens, kernel_inputs.COLUMNS))
                        for tokens in kernel_inputs.TOKENS)
    if verb == "gather":
        return _matrix(rest.upper())[[0, 21, kernel_inputs.ROWS - 1]].tobytes()
    if verb == "remember":
        return b"".join(caches.blocks(rest, kernel_attention.cached(part), keys=part == "keys").tobytes()
                        for part in ("keys", "values"))
    if verb == "query":
        return caches.query_bytes(kernel_attention.queries(kernel_attention.TILES[0]))
    if verb == "lockstep":
        return b"all threads kept step"
    return None


def _matrix(name: str, columns: int = kernel_inputs.COLUMNS) -> NDArray[np.float32]:
    data = kernel_inputs.weights(name, columns=columns)
    return decoders.dequantise(quants.FORMATS[name], data, kernel_inputs.ROWS, columns)


def product_error(name: str, found: bytes) -> float:
    """Largest error of the products, relative to the sum of magnitudes, against float64 on the same activations."""
    at, worst = 0, 0.0
    for tokens, columns in kernel_inputs.products(name):
        weights = _matrix(name, columns).astype(np.float64)
        x = kernel_inputs.floats(f"product {tokens}", tokens, columns)
        acts = _rounded(shapes.activation_kind(name), x)
        expected = 2 * acts @ weights.T
        scale = 2 * np.abs(acts) @ np.abs(weights).T
        got = np.frombuffer(found, "<f4", count=expected.size, offset=at).reshape(expected.shape)
        at += got.nbytes
        worst = max(worst, float((np.abs(got - expected) / scale).max()))
    return worst


def _rounded(kind: str, x: NDArray[np.float32]) -> NDArray[np.float64]:
    """What the quantised activations stand for."""
    if kind == "f32":
        return x.astype(np.float64)
    fields = quantised_32(x) if kind == "q8_32" else quantised_256(x)
    count, place = (8, shapes.Q32_SCALE) if kind == "q8_32" else (64, shapes.Q256_SCALE)
    integers = np.ascontiguousarray(fields[..., :count]).view(np.int8).astype(np.float64)
    scales = np.ascontiguousarray(fields[..., place]).view("<f4").astype(np.float64)
    return (integers * scales[..., None]).reshape(x.shape)


def step_error(name: str, found: bytes) -> float:
    """Root mean square error of the passes' logits, relative to their spread, against a float32 numpy model."""
    reference = ReferenceModel(_gguf(name), round_cache=True)
    prompt = [*kernel_model.prompt(name), 11]
    expected = np.concatenate([reference.logits(prompt)[[*kernel_model.wanted(name), len(prompt) - 1]],
                               reference.logits(kernel_model.OTHER)[2:]])
    if kernel_model.tiled_prompt(name):
        expected = np.concatenate([expected, reference.logits([*kernel_model.tiled_prompt(name), 11])[-2:]])
    got = np.frombuffer(found, "<f4").reshape(expected.shape)
    return float(np.sqrt(((got - expected) ** 2).mean()) / expected.std())


def _gguf(name: str) -> bytes:
    """The self-test's tiny model as a GGUF file."""
    shape, block_format = kernel_model.SHAPE, quants.FORMATS[name]
    source = kernel_model.FixedSource(name)
    tensors = []
    for tensor, dims in kernel_model.tensors().items():
        if len(dims) == 1:
            tensors.append(ggufs.Tensor(tensor, 0, dims, source.vector(tensor).tobytes()))
        else:
            data = kernel_model.weights(name, tensor, *dims)
            tensors.append(ggufs.Tensor(tensor, block_format.ggml_id, dims[::-1], data))
    keys = [ggufs.kv("general.architecture", ggufs.STRING, "llama")]
    for key, value in {"block_count": shape.blocks, "attention.head_count": shape.heads,
                       "attention.head_count_kv": shape.kv_heads, "embedding_length": shape.embedding}.items():
        keys.append(ggufs.kv(f"llama.{key}", ggufs.U32, value))
    keys.append(ggufs.kv("llama.attention.layer_norm_rms_epsilon", ggufs.F32, shape.epsilon))
    return ggufs.build(keys, tensors)


def attention_error(kind: str, found: bytes) -> float:
    """Largest error of the attended values, relative to the largest value, against float64 on the same cache."""
    size, at, worst = kernel_attention.HEAD_SIZE, 0, 0.0
    keys, values = (caches.decoded(kind, kernel_attention.cached(part)).astype(np.float64)
                    for part in ("keys", "values"))
    for rows in kernel_attention.TILES:
        states = np.frombuffer(found, "<f4", count=rows * (size + 32), offset=at).reshape(rows, -1).astype(np.float64)
        at += 4 * states.size
        asked = caches.query(kind, kernel_attention.queries(rows))
        for row, last in enumerate(kernel_attention.positions(rows)):
            scores = keys[:last + 1] @ asked[row]
            weights = 2.0 ** (scores - scores.max())
            expected = weights @ values[:last + 1] / weights.sum()
            got = states[row, 32:] / states[row, 16:32].sum()
            worst = max(worst, float(np.abs(got - expected).max() / np.abs(values).max()))
    return worst


def error(test: str, found: bytes) -> float:
    """How far an output is from the plain computation, in units of what is allowed."""
    if test.startswith("product_"):
        name = test.removeprefix("product_").upper()
        # Q4_1 and Q5_1 multiply minima with sums that were rounded to binary16.
        return product_error(name, found) / (1e-4 if name in ("Q4_1", "Q5_1") else 1e-6)
    if test.startswith("attend_"):
        return attention_error(test.removeprefix("attend_"), found) / 1e-6
    if test.startswith("step/"):
        return step_error(test.removeprefix("step/"), found) / 0.05  # activations have 8 bits
    return 0.0


def main() -> None:
    """Write the table; refuses to pin an output that is not near the plain computation. Argument: a kernel library."""
    kernels = table.load(library=Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    answers = {}
    for test in kernel_answers.selected(kernels, None):
        found = kernel_answers.output(kernels, test)
        if found is None:
            raise SystemExit(f"{test} has no fixed inputs: add a case to appliance/boot/kernel_answers.py")
        expected = exact(test)
        if expected is not None and expected != found:
            raise SystemExit(f"{test}: the kernel does not give numpy's bits")
        if error(test, found) > 1:
            raise SystemExit(f"{test}: too far from the plain computation")
        answers[test] = hashlib.sha256(found).hexdigest()
        print(test, answers[test])
    TABLE.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
