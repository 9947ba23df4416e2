"""The plain engine of `examples/`: exact operations, and the same bits as the kernels for all that they compute."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from appliance.cli.main import main as infer
from appliance.engine.engine import Engine, EngineOptions
from appliance.kernels.layouts import shapes
from appliance.models.file.quants import FORMATS
from examples import plain_engine, plain_gguf
from tests.goldens import make_arithmetic_vectors as vectors
from tests.goldens.kernel_answers import matrix
from tests.support import synthetic
from tests.support.demo_model import demo_model
from tests.support.engines import kernels, opened, running, synthetic_model
from tests.support.kernel_cases import Product, largest_weights, random_weights
from tests.support.logits import logits_of

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples/plain_engine.py"
SPEC = (ROOT / "docs/formats/arithmetic.md").read_text()
IDS = [1, *np.random.default_rng(3).integers(3, synthetic.VOCAB, 299).tolist()]
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def _bits(values: Any) -> Any:
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def _rounded(exact: Fraction) -> np.float32:
    """A number rounded to float32 once, ties to even, by integers alone."""
    size = abs(exact)
    exponent = -149
    if size:
        exponent = max(math.floor(math.log2(size)) - 24, -149)  # perhaps one too small: then the quotient is too long
        while round(size / Fraction(2) ** exponent) > 1 << 24:
            exponent += 1
    whole = round(size / Fraction(2) ** exponent)
    found = float(whole) * 2.0**exponent
    with np.errstate(over="ignore"):
        return np.float32(math.copysign(found, exact) if whole else 0.0)


@settings(max_examples=400, deadline=None)
@given(FINITE, FINITE, FINITE)
@example(1.0, 2.0**-24, 1.0)  # halfway: to even
@example(1.0 + 2.0**-23, 2.0**-24, 1.0)  # a little above the middle, which float64 alone cannot see with the next
@example(1.0 + 2.0**-12, 2.0**-36 * (1 + 2.0**-12), 1.0 + 2.0**-23)
@example(1.0 + 2.0**-23, 1.0 + 2.0**-23, 2.0**-80)
@example(1.0 - 2.0**-24, 1.0 + 2.0**-23, 2.0**-100)
@example(2.0**-75, 2.0**-75, 2.0**-126)  # beside subnormal numbers
@example(2.0**-75 * 3, 2.0**-75, 0.0)
def test_fma_rounds_once(x: float, y: float, z: float) -> None:
    """As the exact sum of Python's fractions, rounded by integers."""
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    with np.errstate(over="ignore"):
        found = plain_engine.fma(*(np.array([part], np.float32) for part in (x, y, z)))[0]
    if abs(exact) < Fraction(2) ** 127:
        assert _rounded(exact) == found


def test_powers_of_two() -> None:
    """Within 1.5 units of the last place of Python's, exact at whole numbers, and clamped."""
    x = np.linspace(-126, 127, 100_003).astype(np.float32)
    expected = 2.0 ** x.astype(np.float64)
    assert 1.5 * 2.0**-23 > (np.abs(plain_engine.exp2(x) - expected) / expected).max()
    whole = np.arange(-126, 128).astype(np.float32)
    assert np.array_equal(np.ldexp(1.0, whole.astype(int)), plain_engine.exp2(whole))
    assert [2.0**-126, 2.0**127] == plain_engine.exp2(np.array([-1e20, 1e20], np.float32)).tolist()


@pytest.mark.parametrize("make", [random_weights, largest_weights])
@pytest.mark.parametrize("name", list(shapes.SHAPES))
def test_products_are_the_kernels(name: str, make: Any) -> None:
    """The same bits for weights of any and of the largest bits, in tiles of one token and of several, from a start."""
    rows, columns, tokens = 33, 1280, 15
    data = make(name, rows, columns)
    x = np.random.default_rng([rows, columns]).standard_normal((tokens, columns)).astype(np.float32)
    x[3, 256:512], x[4] = 0, -x[4]
    product, weights = Product(kernels(), name, data, rows, columns), matrix(name, data.tobytes(), rows, columns)
    once = product(x)
    assert np.array_equal(_bits(plain_engine.multiply(weights, x, np.zeros((tokens, rows), np.float32))),
                          _bits(once[:, :rows]))
    assert np.array_equal(_bits(plain_engine.multiply(weights, x[5:6], once[5:6, :rows])),
                          _bits(product(x[5:6], start=once[5:6])[:, :rows]))


@pytest.mark.parametrize("name", list(synthetic.VARIANTS))
def test_models_have_the_engines_bits(name: str) -> None:
    """Logits of every position, in every block format and with every feature of the architecture."""
    ids = IDS[:70]  # two blocks of positions
    with running(name, threads=2) as engine:
        found = logits_of(engine, ids, chunk=13)
    assert np.array_equal(_bits(plain_engine.Model(synthetic_model(name)).logits(ids)), _bits(found))


@pytest.mark.parametrize(("name", "cache"), [("mixed", "f16"), ("mixed", "q8"), ("mixed", "q4"),
                                            ("rope-yarn", "q4"), ("mixed", "q8q4")])
def test_long_contexts_and_caches(name: str, cache: str) -> None:
    """More positions than a span, cut at other places; keys and values of 16, 8 and 4 bits."""
    model = plain_engine.Model(synthetic_model(name), cache)
    expected = [model.logits(IDS[first:last]) for first, last in ((0, 130), (130, 131), (131, len(IDS)))]
    with running(name, threads=2, kv_cache=cache) as engine:
        found = logits_of(engine, IDS)
    assert np.array_equal(_bits(np.concatenate(expected)), _bits(found))


def test_one_bit_of_a_weight_is_seen() -> None:
    """The comparison can fail: a flipped bit of one quant changes logits."""
    data = synthetic_model("Q8_0")
    with opened(data) as source:
        info = source.gguf.tensors["blk.1.ffn_down.weight"]
    altered = bytearray(data)
    altered[info.offset + 7] ^= 0x10
    plain, other = (plain_engine.Model(bytes(file)).logits(IDS[:5]) for file in (data, altered))
    assert not np.array_equal(_bits(plain), _bits(other))


# --- the specification ------------------------------------------------------------------------------------------------
def test_vectors() -> None:
    """The vectors are what the plain engine makes of them today, and products are the kernels' too."""
    kept = json.loads(vectors.VECTORS.read_text())
    assert vectors.vectors() == kept
    for case in kept["products"]:
        rows = np.frombuffer(bytes.fromhex(case["rows"]), np.uint8)
        before = np.zeros((vectors.TOKENS, 16), np.float32)
        before[:, :vectors.ROWS] = vectors.start()
        found = Product(kernels(), case["format"], rows, vectors.ROWS, case["columns"])(
            vectors.activations(case["format"]), start=before)
        assert case["y"] == vectors.bits(found[:, :vectors.ROWS])


def test_the_specifications_example() -> None:
    """The digest at the top of the specification is the plain engine's and the engine's."""
    (expected,) = re.findall(r"^[0-9a-f]{64}$", SPEC, re.MULTILINE)
    ids = [504, 2988, 288, 451]
    data = demo_model().read_bytes()
    plain = plain_engine.Model(data).logits(ids, last=1)
    assert expected == hashlib.sha256(plain.astype("<f4").tobytes()).hexdigest()
    with opened(data) as source, Engine.open(source, EngineOptions(threads=2, slots=1), kernels=kernels()) as engine:
        assert np.array_equal(_bits(plain), _bits(logits_of(engine, ids, last=1)))


def test_formats_are_all_there() -> None:
    """Every block format of the product, by its number and size."""
    assert {(kind.ggml_id, kind.name, kind.nbytes) for kind in FORMATS.values()} == {
        (number, name, np.dtype(fields).itemsize) for number, (name, fields) in plain_gguf.LAYOUTS.items()}


# --- the command ------------------------------------------------------------------------------------------------------
def _said(main: Callable[[list[str]], int], *words: object) -> tuple[int, str, str]:
    """A command's exit code, and what it writes to standard output and error."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module", params=["0", "1.2"])
def answered(request: pytest.FixtureRequest,
             tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, Any]]:
    """A model, a file with an answer of `appliance infer --json`, and what is in it."""
    from tests.cli.test_engine_infer import KEY, POLICY
    folder = tmp_path_factory.mktemp("plain")
    data = synthetic_model("mixed")
    (folder / "tiny.gguf").write_bytes(data)
    (folder / "policy.hcl").write_text(POLICY.format(sha256=hashlib.sha256(data).hexdigest(), key=KEY))
    code, text, _ = _said(infer, "infer", folder / "policy.hcl", "--prompt", "aa bb", "--raw", "--temperature",
                          request.param, "--max-tokens", "6", "--json", "--models", folder)
    assert 0 == code
    (folder / "answer.json").write_text(text)
    return folder / "tiny.gguf", folder / "answer.json", json.loads(text)


def test_an_answer_is_found_right(answered: tuple[Path, Path, dict[str, Any]]) -> None:
    """Exit code 0 for the engine's own answer, greedy or drawn; the program needs nothing but numpy (isolated)."""
    model, answer, content = answered
    done = subprocess.run([sys.executable, "-I", PROGRAM, model, answer], capture_output=True, text=True, check=False)
    assert (0, f"all {len(content['tokens'])} tokens are what the model says\n") == (done.returncode, done.stdout)


@pytest.fixture(scope="module")
def constrained(answered: tuple[Path, Path, dict[str, Any]]) -> list[dict[str, Any]]:
    """Ten answers with a schema, by the command's own function; other ones for each of the two answers."""
    folder = answered[0].parent
    (folder / "schema.json").write_text(json.dumps({
        "type": "object", "properties": {"n": {"type": "integer", "maximum": 10**6}, "s": {"enum": ["aa", "bb"]}},
        "required": ["n", "s"], "additionalProperties": False}))
    found = []
    first = 10 if answered[2]["sampling"]["temperature"] else 0
    for seed in range(first, first + 10):
        code, text, _ = _said(infer, "infer", folder / "policy.hcl", "--prompt", "aa", "--raw", "--temperature",
                              seed % 2 * 1.4, "--seed", seed, "--schema", folder / "schema.json", "--json", "--models",
                              folder)
        assert 0 == code
        found.append(json.loads(text))
    return found


@pytest.mark.slow
def test_constrained_answers_are_replayed_with_their_masks(answered: tuple[Path, Path, dict[str, Any]],
                                                           constrained: list[dict[str, Any]], tmp_path: Path) -> None:
    """Ten of them, by their masks; without masks the model says another token of most."""
    other = 0
    for answer in constrained:
        assert len(answer["tokens"]) == len(answer["masks"])
        (tmp_path / "a.json").write_text(json.dumps(answer))
        assert (0, f"all {len(answer['tokens'])} tokens are what the model says\n", "") == _said(
            plain_engine.main, answered[0], tmp_path / "a.json")
        (tmp_path / "b.json").write_text(json.dumps({name: part for name, part in answer.items() if name != "masks"}))
        other += _said(plain_engine.main, answered[0], tmp_path / "b.json")[0]
    assert other >= 7
    complete = [json.loads(answer["text"]) for answer in constrained if answer["finish_reason"] == "stop"]
    assert complete or not answered[2]["sampling"]["temperature"]  # some seeds end none in time
    assert all(each["s"] in ("aa", "bb") and each["n"] <= 10**6 for each in complete)


def test_another_token_is_found(answered: tuple[Path, Path, dict[str, Any]], tmp_path: Path) -> None:
    """Exit code 1, and which token it is."""
    model, _, content = answered
    other = content | {"tokens": [*content["tokens"][:2], content["tokens"][2] + 1, *content["tokens"][3:]]}
    (tmp_path / "other.json").write_text(json.dumps(other))
    code, text, _ = _said(plain_engine.main, model, tmp_path / "other.json")
    assert (1, True) == (code, text.startswith("token 3 of "))


@pytest.mark.parametrize(("model", "answer"), [
    ("absent.gguf", "{}"), ("tiny.gguf", "no JSON"), ("tiny.gguf", "{}"), ("tiny.gguf", "[]"),
    ("tiny.gguf", '{"prompt_tokens": [1], "tokens": [99999, 3]}'),
    ("answer.json", '{"prompt_tokens": [1], "tokens": [3]}')])
def test_what_cannot_be_told(answered: tuple[Path, Path, dict[str, Any]], tmp_path: Path, model: str,
                             answer: str) -> None:
    """Exit code 2 and one line for files that are not there or not what they should be."""
    (tmp_path / "a.json").write_text(answer)
    code, text, error = _said(plain_engine.main, answered[0].parent / model, tmp_path / "a.json")
    assert (2, "", 1) == (code, text, len(error.splitlines()))
    assert error.startswith("error: ")
