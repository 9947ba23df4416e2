"""The library for AMX, whose instructions are emulated: the known answers and the bits of this CPU, in every format."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.kernels.layouts import shapes
from appliance.kernels.runtime import table, targets
from tests.support import libraries, matrix_registers
from tests.support.kernel_bits import bits

FEATURES = targets.cpu_flags()
VECTORS = targets.by_name("avx512vnni").required
pytestmark = [pytest.mark.guests, pytest.mark.timeout(3600),
              pytest.mark.skipif("amx_int8" in FEATURES, reason="this CPU has AMX: every other test runs on it"),
              pytest.mark.skipif(not VECTORS <= FEATURES, reason="this CPU lacks the vectors of CPUs with AMX")]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What the library did here, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.matrix_registers", libraries.library("amx"), ",".join(shapes.SHAPES)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_every_known_answer_is_given(found: dict[str, Any]) -> None:
    """The boot's self-test: each kernel, a pass in each block format, and each feature of families."""
    assert [] == found["wrong"]


def test_the_bits_are_those_of_this_cpu(found: dict[str, Any]) -> None:
    """Products of every format and all quantisers, the largest sums among them."""
    assert bits(table.load(), list(shapes.SHAPES)) == found["bits"]


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_quantised_formats_use_matrix_registers(name: str, found: dict[str, Any]) -> None:
    """Every block format does, those that look nibbles up among them; floats do not."""
    done = found["done"][name]
    assert (shapes.activation_kind(name) != "f32") == (done.get("tdpbssd", 0) + done.get("tdpbsud", 0) > 0)


def test_registers_are_released(found: dict[str, Any]) -> None:
    """No thread leaves its registers in use, whatever kernel ran."""
    assert [] == found["held"]


WHOLE = bytes([1, *bytes(15), *[64, 0] * 8, *bytes(16), *[16] * 8, *bytes(8)])
SHORT = WHOLE[:48] + bytes([*[16] * 6, 8, 8, *bytes(8)])  # 8 rows of weights for the 64 bytes of a token


def _configured(table_: bytes) -> matrix_registers.Matrices:
    matrices = matrix_registers.Matrices()
    matrices.configure(table_)
    return matrices


@pytest.mark.parametrize(("use", "what"), [
    (lambda: _configured(bytes([2, *bytes(63)])), "palette"),
    (lambda: _configured(WHOLE[:16] + b"A" + WHOLE[17:]), "the shape"),
    (lambda: matrix_registers.Matrices().load(0, 0, 64), "without a shape"),
    (lambda: _configured(WHOLE).product("tdpbssd", 0, 0, 6), "do not fit"),
    (lambda: _configured(SHORT).product("tdpbssd", 0, 4, 6), "do not fit")])
def test_the_emulator_refuses_what_the_cpu_refuses(use: Callable[[], object], what: str) -> None:
    """Else a kernel could pass here that faults there."""
    with pytest.raises(matrix_registers.ForbiddenError, match=what):
        use()
