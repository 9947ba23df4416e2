"""Accuracy: the engine, fed llama.cpp's own greedy continuations, makes its choices and strays no further from float32.

The goldens are llama.cpp's answers (`tests/goldens/make_goldens.py`). Where llama.cpp has no weights of a format
(Q8_1), the float32 reference stands in for it, and Q8_0's divergence is what is allowed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.engine.engine import Engine, EngineOptions
from tests.support import synthetic
from tests.support.demo_model import demo_model
from tests.support.golden_files import Golden, load, score
from tests.support.logits import logits_of
from tests.support.plain import open_resident
from tests.support.reference_model import ReferenceModel

Floats = NDArray[np.float32]


class _Opened:
    """A model file in the engine."""

    def __init__(self, path: Path, sha256: bytes, context: int) -> None:
        self.source = open_resident(path, sha256)
        self.engine = Engine.open(self.source, EngineOptions(threads=1, context_length=context, slots=1))

    def logits(self, ids: list[int], last: int) -> Floats:
        """The logits after each of the last `last` tokens."""
        return logits_of(self.engine, ids)[-last:]

    def close(self) -> None:
        """Close engine and source."""
        self.engine.close()
        self.source.close()


def _opened(data: bytes, folder: Path) -> _Opened:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return _Opened(path, hashlib.sha256(data).digest(), synthetic.CONTEXT)


@pytest.fixture(scope="module")
def demo() -> Iterator[_Opened]:
    """The demo model in the engine; the pin is the golden's."""
    opened = _Opened(demo_model(), bytes.fromhex(load("demo", "demo").sha256), 1024)
    yield opened
    opened.close()


@pytest.mark.slow
def test_demo_model_agrees_with_llama_cpp(demo: _Opened) -> None:
    """On the demo model's prompts, choices and divergence from float32 are within what is allowed."""
    golden = load("demo", "demo")
    assert 30 <= len(golden.prompts)
    found = score(golden, demo.logits)
    print(found)
    assert [] == found.failures()


@pytest.mark.parametrize("name", [name for name, variant in synthetic.VARIANTS.items() if variant.format != "Q8_1"])
def test_synthetic_models_agree_with_llama_cpp(name: str, tmp_path: Path) -> None:
    """In each block format, and with each feature of the architecture, the same holds on a synthetic model."""
    golden, data = load("synthetic", name, synthetic.prompts()), synthetic.model(synthetic.VARIANTS[name])
    assert golden.sha256 == hashlib.sha256(data).hexdigest()
    opened, reference = _opened(data, tmp_path), ReferenceModel(data)
    found = score(golden, opened.logits, reference.logits)
    opened.close()
    print(found)
    assert [] == found.failures()


def test_q8_1_agrees_with_the_reference(tmp_path: Path) -> None:
    """Q8_1, which llama.cpp does not run, makes the float32 reference's choices and strays as far as Q8_0 may."""
    data = synthetic.model(synthetic.VARIANTS["Q8_1"])
    opened, reference = _opened(data, tmp_path), ReferenceModel(data)
    peer = load("synthetic", "Q8_0", synthetic.prompts())
    exact = [reference.logits(prompt) for prompt in peer.prompts]
    golden = Golden("", [prompt[:1] for prompt in peer.prompts], [], np.empty((0, 2), np.float32), peer.kl)
    golden.continuations = [[*prompt[1:], int(rows[-1].argmax())] for prompt, rows in
                            zip(peer.prompts, exact, strict=True)]
    golden.top = -np.sort(-np.concatenate(exact), axis=-1)[:, :2]
    choices = [[int(row.argmax()) for row in rows] for rows in exact]
    found = score(golden, opened.logits, reference.logits, choices)
    opened.close()
    print(found)
    assert [] == found.failures()


def test_reference_agrees_with_llama_cpp_on_float_weights() -> None:
    """The reference itself: on float32 weights llama.cpp and it differ by rounding alone, scaled rotations included."""
    peer = load("synthetic", "F32", synthetic.prompts())
    assert peer.kl.mean() < 2e-6
    for name in ("F32", "rope-linear", "rope-yarn", "rope-factors", "tied"):
        golden, data = load("synthetic", name, synthetic.prompts()), synthetic.model(synthetic.VARIANTS[name])
        reference = ReferenceModel(data, round_cache=True)
        found = score(golden, reference.logits, reference.logits)
        assert {1.0: found.agreement[1.0][0]} == {1.0: found.agreement[1.0][1]}
        assert golden.kl.mean() < 3e-3
