"""Vector operations: exact results, and the same bits on every target of this CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

from appliance.kernels.runtime import targets
from tests.support import vector_bits


@pytest.fixture(scope="module")
def given() -> dict[str, np.ndarray]:
    """The inputs."""
    return vector_bits.inputs()


@pytest.fixture(scope="module")
def found() -> dict[str, np.ndarray]:
    """What this CPU's best target computes."""
    targets.compiling()
    return vector_bits.outputs()


def test_every_half_widens_exactly(given: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    """All 65536 binary16, as numpy widens them; NaN stays NaN."""
    np.testing.assert_array_equal(given["half"].view(np.float16).astype(np.float32), found["widened"])


def test_halves_are_rounded_to_even(given: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    """float32 to binary16 as numpy rounds it, subnormals and overflow included."""
    with np.errstate(over="ignore"):
        expected = given["z"].astype(np.float16)
    np.testing.assert_array_equal(expected, found["halves"].view(np.float16))


def test_fma_is_rounded_once(given: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    """x y + z in exact arithmetic, rounded to float32, where x y and z nearly cancel."""
    for i in range(4096):
        x, y, z = (float(given[name][i]) for name in "xyz")
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        assert _nearest(exact) == found["fma"][i], (x, y, z)


def _nearest(exact: Fraction) -> np.float32:
    """The float32 nearest to an exact number, ties to even, by comparing the two neighbours."""
    with np.errstate(over="ignore"):
        start = np.float32(float(exact))
    if not np.isfinite(start):
        return start
    candidates = [np.nextafter(start, np.float32(-np.inf)), start, np.nextafter(start, np.float32(np.inf))]
    finite = [value for value in candidates if np.isfinite(value)]
    return min(finite, key=lambda value: (abs(Fraction(float(value)) - exact), int(value.view(np.uint32)) & 1))


def test_dot_is_exact(given: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    """Four products of bytes and a start, extremes included."""
    unsigned = given["u"].view(np.uint8).reshape(-1, 4).astype(np.int32)
    signed = given["s"].view(np.int8).reshape(-1, 4).astype(np.int32)
    np.testing.assert_array_equal(7 + (unsigned * signed).sum(axis=1), found["dot"])


def test_nearest_is_ties_to_even(given: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    """Where float32 is below 2**22, numpy's rint."""
    small = np.abs(given["z"]) < 1 << 22
    np.testing.assert_array_equal(np.rint(given["z"][small]).astype(np.int32), found["nearest"][small])


def test_horizontal_order_is_halves(given: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
    """Lanes 8..15 are added to 0..7, then 4..7 to 0..3, then 2..3, then 1; the largest lane; a scalar's rounding."""
    lanes = given["z"].reshape(-1, 16)
    total = lanes
    with np.errstate(over="ignore", invalid="ignore"):
        while total.shape[1] > 1:
            half = total.shape[1] // 2
            total = total[:, :half] + total[:, half:]
        rounded = lanes[:, 0].astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(total[:, 0], found["scalars"][:, 0])
    np.testing.assert_array_equal(lanes.max(axis=1), found["scalars"][:, 1])
    np.testing.assert_array_equal(rounded, found["scalars"][:, 2])


@pytest.mark.parametrize("name", [target.name for target in targets.supported()[1:]])
def test_other_targets_give_the_same_bits(name: str, found: dict[str, np.ndarray]) -> None:
    """The same operations compiled for another target in a process of its own."""
    command = [sys.executable, "-m", "tests.support.vector_bits", name]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout
    assert vector_bits.digests(found) == json.loads(output)
