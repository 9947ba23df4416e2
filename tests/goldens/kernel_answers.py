"""Makes appliance/boot/selftest/known_answers.json: `python -m tests.goldens.kernel_answers` (needs all kernels;
build them).

No kernel takes part in an answer: quantisers, row decoders and the bytes of caches are plain numpy's, products,
attention and whole passes the plain engine's, which follows docs/formats/arithmetic.md. The kernels only say which
tests there are, and must give these bits before they are written down.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.boot.selftest import attention as kernel_attention
from appliance.boot.selftest import features
from appliance.boot.selftest import fetch as kernel_fetch
from appliance.boot.selftest import inputs as kernel_inputs
from appliance.boot.selftest import kernels as kernel_answers
from appliance.boot.selftest import search as kernel_search
from appliance.boot.selftest import sums as kernel_weights
from appliance.boot.selftest import tiny_model as kernel_model
from appliance.families.tensors import is_vector
from appliance.kernels.layouts import shapes
from appliance.kernels.runtime import table
from appliance.models.file import quants
from appliance.models.sealed import order as kernel_order
from examples import plain_engine, plain_gguf
from tests.support import caches, decoders, ggufs
from tests.support.open_ended import undecided

TABLE = Path(kernel_answers.__file__).with_name("known_answers.json")
F32 = np.float32
_BLANKS = " \t\n\v\f\r\x1c\x1d\x1e\x1f"
_ROW_NBYTES = kernel_fetch.FORMAT.row_nbytes(kernel_fetch.COLUMNS)


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


def exact(test: str) -> bytes:
    """What a test's kernel must write; LookupError for a test without fixed inputs."""
    if test.startswith("step/feature/"):
        return feature(test.removeprefix("step/feature/"))
    if test.startswith("step/"):
        return passes(test.removeprefix("step/"))
    verb, _, rest = test.partition("_")
    return _ANSWERS[verb](rest)


def _quantise(kind: str) -> bytes:
    return b"".join(quantised(kind, kernel_inputs.floats(f"quantise {tokens}", tokens, kernel_inputs.COLUMNS))
                    for tokens in kernel_inputs.TOKENS)


def _pack(_rows: str) -> bytes:
    rows, columns = kernel_inputs.ROWS - 3, kernel_inputs.COLUMNS
    return b"".join(kernel_order.interleave(quants.FORMATS[name], kernel_inputs.weights(name, rows, columns), rows,
                                            columns) for name in sorted(shapes.SHAPES))


def _gather(suffix: str) -> bytes:
    name = suffix.upper()
    data, rows, columns = kernel_inputs.weights(name), kernel_inputs.ROWS, kernel_inputs.COLUMNS
    return decoders.dequantise(quants.FORMATS[name], data, rows, columns)[[0, 21, rows - 1]].tobytes()


def _remember(kind: str) -> bytes:
    return b"".join(caches.blocks(each, kernel_attention.cached(part), keys=part == "keys").tobytes()
                    for part, each in zip(("keys", "values"), plain_engine.CACHES[kind], strict=True))


def matrix(name: str, data: bytes, rows: int, columns: int) -> plain_engine.Matrix:
    """Rows of a GGUF file as the plain engine takes them."""
    layout = next(fields for found, fields in plain_gguf.LAYOUTS.values() if found == name)
    return plain_engine.matrix(name, (rows, columns), np.frombuffer(data, np.dtype(layout)))


def _product(suffix: str) -> bytes:
    """Products that are written, then added to."""
    name, rows, found = suffix.upper(), kernel_inputs.ROWS, []
    for tokens, columns in kernel_inputs.products(name):
        weights = matrix(name, kernel_inputs.weights(name, rows, columns), rows, columns)
        x = kernel_inputs.floats(f"product {tokens}", tokens, columns)
        once = plain_engine.multiply(weights, x, np.zeros((tokens, rows), F32))
        found.append(plain_engine.multiply(weights, x, once).tobytes())
    return b"".join(found)


def _attend(kind: str) -> bytes:
    """States of query rows: largest score, last position, sums of weights, weighted values."""
    size, found = kernel_attention.HEAD_SIZE, []
    (keys, key_scales), (values, value_scales) = (
        plain_engine.kept(kernel_attention.cached(part)[:, None], each)
        for part, each in zip(("keys", "values"), plain_engine.CACHES[kind], strict=True))
    for rows in kernel_attention.TILES:
        scores = plain_engine.scores_of(kernel_attention.queries(rows)[:, None], keys, key_scales, kind)
        last = np.array(kernel_attention.positions(rows))
        seen = np.arange(kernel_attention.POSITIONS) <= last[:, None]
        largest, sums, mixed = plain_engine.span(scores, values, value_scales, seen)
        states = np.zeros((rows, 32 + size), F32)
        states[:, 0], states[:, 1], states[:, 16:32], states[:, 32:] = (
            largest[0], last.astype(np.int32).view(F32), sums[0], mixed[0, :, :size])
        found.append(states.tobytes())
    return b"".join(found)


def _found() -> bytes:
    """Python's own matches, and where a path through the pattern runs into the end of the text."""
    text, found = kernel_search.text(), list[int]()
    for pattern in kernel_search.PATTERNS:
        found += [place for match in re.finditer(pattern, text) for place in match.span()]
        judge = undecided(pattern)
        found += [place for place in range(len(text) - kernel_search.HELD, len(text)) if judge.match(text, place)]
    return np.array(found, np.int64).tobytes()


def _weigh(_rest: str) -> bytes:
    found = []
    for count in kernel_weights.COUNTS:
        x = kernel_weights.logits(count).astype(np.float64)
        for temperature in kernel_weights.TEMPERATURES:
            found.append(plain_engine.exp(np.maximum((x - x.max()) / temperature, -1000.0)).tobytes())
    return b"".join(found)


def _running(_rest: str) -> bytes:
    return b"".join(plain_engine.sums(kernel_weights.values(count)).tobytes() for count in kernel_weights.COUNTS)


def _marked(_rest: str) -> bytes:
    found = []
    for count in kernel_weights.COUNTS:
        order = np.argsort(-kernel_weights.coarse(count), kind="stable")
        for most in kernel_weights.HIGHEST:
            marks = np.zeros(count, np.int32)
            marks[order[:min(most, count - 1)]] = 1
            found.append(marks.tobytes())
    return b"".join(found)


def _forward(_rest: str) -> bytes:
    found = []
    for count in kernel_weights.ROWS:
        values, names, marks = (kernel_weights.numbers(f"forward {count} {part}", count) for part in range(3))
        stay = [(value, name) for value, name, mark in zip(values, names, marks, strict=True) if mark & 1]
        rows = np.array(stay + [(kernel_weights.HOLE, 0)] * (count - len(stay)), np.int32)
        found.append(rows.T.tobytes() + len(stay).to_bytes(8, "little"))
    return b"".join(found)


def _sorted(_rest: str) -> bytes:
    found = []
    for count in kernel_weights.ROWS:
        rows = [kernel_weights.numbers(f"sort {count} {part}", count).tolist() for part in range(2)]
        found.append(np.array(sorted(zip(*rows, strict=True)), np.int64).T.tobytes())
    return b"".join(found)


def _added(_rest: str) -> bytes:
    found = []
    for count in kernel_weights.ROWS:
        places, values = kernel_weights.places(count), kernel_weights.numbers(f"sums {count}", count)
        for combine in (np.add, np.maximum):
            row = np.zeros(1024 * kernel_weights.PAGES, np.int32)
            combine.at(row, places, values)
            found.append(row.tobytes())
    return b"".join(found)


def _places(_rest: str) -> bytes:
    """A draw's place: its chunk by the sums of whole chunks, then one weight after the other."""
    found = []
    for count in kernel_weights.COUNTS:
        weights = np.abs(kernel_weights.values(count))
        sums = plain_engine.sums(weights)
        for uniform in kernel_weights.UNIFORM:
            target = uniform * sums[-1]
            chunk = int((sums <= target).sum())
            rest, place = target - (sums[chunk - 1] if chunk else 0.0), kernel_weights.CHUNK * chunk
            total = weights[place]
            while total <= rest:
                place += 1
                total = total + weights[place]
            found.append(place)
    return np.array(found, np.int64).tobytes()


def _encoded(_rest: str) -> bytes:
    """The plain tokenizer's."""
    return np.array([token for pre in kernel_search.CUTS for text in kernel_search.TEXTS for token in
                     kernel_search.vocabulary(pre).encode(text, parse_special=True, untrusted=[(0, len(text) // 2)])],
                    np.int32).tobytes()


def _pieces(_rest: str) -> bytes:
    tokenizer = kernel_search.vocabulary("gpt-2")
    return b"".join(map(tokenizer.piece, range(tokenizer.vocab_size)))


def _stopped() -> bytes:
    """By Python's own search in all that came: what passes cannot become a stop string with what comes."""
    whole, found = kernel_search.text() + "c" * 90, list[str]()
    for at in kernel_search.stopped(len(whole)):
        passed, number, came = [""], None, ""
        for start in range(at, at + 120, 3):
            came = whole[at:start + 3] if number is None else came
            ends = sorted((came.find(stop) + len(stop), came.find(stop), place)
                          for place, stop in enumerate(kernel_search.STOPS) if stop in came)
            held = max((size for stop in kernel_search.STOPS for size in range(1, len(stop))
                        if came.endswith(stop[:size])), default=0)
            until = ends[0][1] if ends else len(came) - held
            number = ends[0][2] if ends else None
            passed.append(came[len("".join(passed)):until])
        rest = "" if number is not None else came[len("".join(passed)):]
        found.append("|".join([*passed[1:], rest, str(number)]))
    return "".join(found).encode()


def _read() -> bytes:
    """By Python's own JSON. The strings that are texts stand in a body in the order of what it means."""
    found = list[bytes]()
    for body in kernel_search.bodies():
        try:
            document = json.loads(body)
            turns = document["messages"]
            texts = [turns[0]["content"], turns[1]["content"][0]["text"], *document["prompt"]]
            told = [text.strip(_BLANKS).encode() for text in texts]
        except ValueError:
            texts = [" "]
        if any(text.strip(_BLANKS) != text.strip() or text.isspace() for text in texts):
            found.append(b"X")
            continue
        parts, at, number = list[str](), 0, 0
        for string in re.finditer(r'"(?:[^"\\]|\\.)*"', body):
            if number < len(texts) and json.loads(string[0]) == texts[number]:
                text, core = texts[number], texts[number].strip()
                before, after = (json.dumps(each)[1:-1] for each in text.split(core, 1))
                parts += [body[at:string.start() + 1], before, chr(0xE000 + number), after]
                at, number = string.end() - 1, number + 1
        found += [("".join(parts) + body[at:]).encode(), *told]
    return b"|".join(found)


def _written(answer: bytes) -> bytes:
    """By Python's decoder and its own JSON."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return b"|".join(json.dumps(decoder.decode(bytes((each,))), ensure_ascii=False)[1:-1].encode()
                     for each in answer)


def _picked() -> bytes:
    pieces = kernel_inputs.stream("pieces", 3 * kernel_answers.PIECE).tobytes() + bytes(kernel_answers.PLACE)
    size = kernel_answers.PLACE
    places = kernel_inputs.stream("places", 3 * size).tobytes()
    return pieces[:size] + pieces[2 * kernel_answers.PIECE:][:size] + places[2 * size:]


def _fetch(rest: str) -> bytes:
    """The right answer of the kernels that fetch tiles: both of them, and what is found of damage."""
    kind, _, run = rest.partition("/")
    if kind == "plain":
        tiles = [[kernel_order.interleave(kernel_fetch.FORMAT, each, len(each) // _ROW_NBYTES, kernel_fetch.COLUMNS)
                  for each in kernel_fetch.plain_rows(name)] for name in kernel_fetch.RUNS]
        return _fetched_run(tiles, 1) if run else _fetched(*tiles[0], 1, ("tag", "tag"))
    cut = kernel_fetch.TILES[0]
    tiles = [[whole[:cut], whole[cut:]] for whole in map(kernel_fetch.plaintext, kernel_fetch.RUNS)]
    return _fetched_run(tiles, 2) if run else _fetched(
        *tiles[0], 2, tuple(fault for _, fault in kernel_fetch.DAMAGE))


def _fetched_run(runs: list[list[bytes]], times: int) -> bytes:
    nbytes, number = kernel_fetch.TILES[0], kernel_fetch.FIRST
    tiles = [tile.ljust(nbytes, b"\xff") + b"none 0" for run in runs for tile in run]
    found = [tile for tile in tiles for _ in range(times)]
    found += [b"\xff" * nbytes + b"none 0", tiles[3], bytes(nbytes) + f"end {number + 3}".encode()]
    return b"".join([*found, bytes(nbytes) + f"range {number + 4}".encode()])


def _fetched(first: bytes, second: bytes, times: int, damage: tuple[str, ...]) -> bytes:
    nbytes, number = kernel_fetch.TILES[0], kernel_fetch.FIRST
    found = [*[first + b"none 0"] * times, *[second.ljust(nbytes, b"\xff") + b"none 0"] * times]
    found += [bytes(nbytes) + f"{fault} {number}".encode() for fault in damage]
    found += [bytes(nbytes) + f"end {number + 1}".encode(), bytes(nbytes) + f"range {number + 2}".encode()]
    return b"".join(found)


_ANSWERS: dict[str, Callable[[str], bytes]] = {
    "quantise": _quantise, "pack": _pack, "gather": _gather, "remember": _remember, "product": _product,
    "attend": _attend,
    "query": lambda _rest: caches.query_bytes(kernel_attention.queries(kernel_attention.TILES[0])),
    "fetch": _fetch,
    "find": lambda rest: _found() if rest == "spans" else _stopped(),
    "pick": lambda _rest: _picked(),
    "weigh": _weigh, "running": _running, "mark": _marked, "bring": _forward,
    "sort": _sorted, "add": _added, "place": _places, "encode": _encoded, "token": _pieces,
    "quote": lambda _rest: _read(), "read": lambda _rest: _read(),
    "complete": lambda _rest: _written(kernel_search.characters()),
    "write": lambda _rest: _written(kernel_search.quoted()),
    "lockstep": lambda _rest: b"all threads kept step",
}


def passes(name: str) -> bytes:
    """Logits of the self-test's tiny model: those wanted of a prompt and of the token after it, of another slot, and,
    where there is one, of a prompt that is read with matrices in tiles."""
    model = _gguf(name)
    prompt = [*kernel_model.prompt(name), 11]
    found = [plain_engine.Model(model).logits(prompt)[[*kernel_model.logit_rows(name), len(prompt) - 1]],
             plain_engine.Model(model).logits(kernel_model.OTHER, last=1)]
    if kernel_model.tiled_prompt(name):
        found.append(plain_engine.Model(model).logits([*kernel_model.tiled_prompt(name), 11], last=2))
    return np.concatenate(found).tobytes()


def feature(name: str) -> bytes:
    """Logits of a feature's model: of the last positions of two pieces of a prompt, and of two more tokens."""
    header, prompt = features.metadata(name), features.prompt(name)
    keys = [_key(key, value) for key, value in header.items()]
    model = plain_engine.Model(ggufs.build(keys, _tensors(features.FORMAT, features.tensors(name))), "f16",
                               header[f"{header['general.architecture']}.context_length"])
    found = model.logits([*prompt, 7, 3])
    return found[[44, len(prompt) - 1, -2, -1]].tobytes()


def _key(key: str, value: object) -> bytes:
    if isinstance(value, list):
        return ggufs.kv_array(key, ggufs.U32, value)
    return ggufs.kv(key, {int: ggufs.U32, float: ggufs.F32, str: ggufs.STRING}[type(value)], value)


def _tensors(name: str, shapes: Mapping[str, tuple[int, ...]]) -> list[ggufs.Tensor]:
    """The self-test's weights as tensors of a GGUF file."""
    block_format = quants.FORMATS[name]
    source = kernel_model.FixedSource(name, shapes)
    tensors = []
    for tensor, dims in shapes.items():
        if is_vector(tensor, dims):
            tensors.append(ggufs.Tensor(tensor, 0, dims[::-1], source.vector(tensor).tobytes()))
        else:
            data = kernel_model.weights(name, tensor, math.prod(dims[:-1]), dims[-1])
            tensors.append(ggufs.Tensor(tensor, block_format.ggml_id, dims[::-1], data))
    return tensors


def _gguf(name: str) -> bytes:
    """The self-test's tiny model as a GGUF file."""
    shape = kernel_model.SHAPE
    keys = [ggufs.kv("general.architecture", ggufs.STRING, "llama")]
    for key, value in {"block_count": shape.layers, "attention.head_count": shape.heads,
                       "attention.head_count_kv": shape.kv_heads, "embedding_length": shape.embedding}.items():
        keys.append(ggufs.kv(f"llama.{key}", ggufs.U32, value))
    keys.append(ggufs.kv("llama.attention.layer_norm_rms_epsilon", ggufs.F32, shape.epsilon))
    return ggufs.build(keys, _tensors(name, kernel_model.tensors()))


def main() -> None:
    """Write the table; refuses where a kernel gives other bits. Argument: a kernel library."""
    kernels = table.load(library=Path(sys.argv[1]) if len(sys.argv) > 1 else None)
    answers = {}
    for test in kernel_answers.selection(kernels, None):
        found = kernel_answers.output(kernels, test)
        if found is None:
            raise SystemExit(f"{test} has no fixed inputs: add a case to appliance/boot/selftest/kernels.py")
        expected = exact(test)
        if expected != found:
            raise SystemExit(f"{test}: the kernel does not give the plain computation's bits")
        answers[test] = hashlib.sha256(expected).hexdigest()
        print(test, answers[test])
    TABLE.write_text(json.dumps(answers, indent=1, sort_keys=True) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
