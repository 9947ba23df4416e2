"""The boundary refuses, with an EngineError, what a kernel could not take, and lets the rest through to a result."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import EngineError
from appliance.kernels.runtime.boundary import BatchLimits, Boundary, check_tiles, check_vector, check_weight
from tests.support.engines import running

LIMITS = BatchLimits(rows=8, wanted=4, vocabulary=512, context=64, slots=3)
ODD = st.one_of(st.integers(-2, 70), st.sampled_from([-2**63, 2**63 - 1, 511, 512, 2**31]))


@pytest.fixture(scope="module")
def engine():
    """An engine with LIMITS."""
    with running("tied", slots=LIMITS.slots, context=LIMITS.context) as opened:
        yield opened


def allowed(boundary, tokens, positions, slots, wanted):
    """The rules, said once more and plainly."""
    count, limits = len(tokens), boundary.limits
    if not (1 <= count <= limits.rows and len(positions) == len(slots) == count and len(wanted) <= limits.wanted):
        return False
    if not (all(0 <= t < limits.vocabulary for t in tokens) and all(0 <= p < limits.context for p in positions)
            and all(0 <= s < limits.slots for s in slots) and all(0 <= w < count for w in wanted)):
        return False
    seen: dict[int, int] = {}
    for row, (position, slot) in enumerate(zip(positions, slots, strict=True)):
        if slot in seen and (slots[row - 1] != slot or position != seen[slot] + 1):
            return False
        if slot not in seen and position > boundary.filled(slot):
            return False
        seen[slot] = position
    return True


@settings(max_examples=300, deadline=None)
@given(st.lists(ODD, max_size=10), st.lists(ODD, max_size=10), st.lists(ODD, max_size=10), st.lists(ODD, max_size=5))
def test_any_batch_is_refused_or_run(engine, tokens, positions, slots, wanted):
    """Arbitrary integers and lengths: an EngineError or finite logits, never a crash."""
    forward = fresh(engine)
    expected = allowed(forward.boundary, tokens, positions, slots, wanted)
    try:
        logits = forward.run(tokens, positions, slots, wanted)
    except EngineError:
        assert not expected
    else:
        assert expected
        assert (len(wanted), LIMITS.vocabulary) == logits.shape
        assert np.isfinite(logits).all()


def fresh(engine, filled=0):
    """The forward pass, with slot 0 filled and the others empty."""
    forward = engine._forward
    forward.boundary.limits = LIMITS
    for slot in range(LIMITS.slots):
        forward.boundary.forget(slot)
    for first in range(0, filled, LIMITS.rows):
        count = min(LIMITS.rows, filled - first)
        forward.run([5] * count, range(first, first + count), [0] * count, [])
    return forward


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_allowed_batch_is_run(engine, data):
    """Batches made by the rules are run."""
    forward = fresh(engine, filled=20)
    slots = data.draw(st.lists(st.integers(0, 2), unique=True, min_size=1, max_size=3))
    tokens, positions, owners = [], [], []
    for slot in slots:
        first = data.draw(st.integers(0, 20)) if slot == 0 else 0
        count = data.draw(st.integers(1, 2))
        tokens += data.draw(st.lists(st.integers(0, 511), min_size=count, max_size=count))
        positions += range(first, first + count)
        owners += [slot] * count
    wanted = data.draw(st.lists(st.integers(0, len(tokens) - 1), max_size=4))
    assert np.isfinite(forward.run(tokens, positions, owners, wanted)).all()


@pytest.mark.parametrize("bad", [
    [1.5], ["a"], [None], [[1]], [2**70], np.array([1.0]), np.array([[1]]), np.array([1], np.uint64), [True],
])
def test_only_rows_of_integers_are_taken(bad):
    """Other kinds of values are refused before they are converted."""
    boundary = Boundary(LIMITS)
    for place in range(4):
        arguments = [[1], [0], [0], [0]]
        arguments[place] = bad
        with pytest.raises(EngineError):
            boundary.check(*arguments)


def test_forgotten_positions_cannot_be_skipped():
    """After a slot forgets, a sequence can only go on where it was cut, or before."""
    boundary = Boundary(LIMITS)
    boundary.done(boundary.check([1] * 8, range(8), [1] * 8, []))
    assert 8 == boundary.filled(1)
    boundary.forget(1, 3)
    with pytest.raises(EngineError):
        boundary.check([1], [4], [1], [])
    assert 3 == boundary.check([1], [3], [1], []).runs[0].position
    for slot, keep in ((1, 4), (1, -1), (3, 0), (-1, 0)):
        with pytest.raises(EngineError):
            boundary.forget(slot, keep)


WEIGHT = {"name": "w", "format_name": "Q4_K", "rows": 40, "columns": 512, "address": 4096, "nbytes": 48 * 288,
          "shape": (1, 40, 512)}


@pytest.mark.parametrize("change", [
    {"format_name": "IQ1_S"}, {"rows": 0}, {"rows": 33, "nbytes": 33 * 288}, {"rows": 64}, {"columns": 500},
    {"columns": 0}, {"columns": -512}, {"address": 0}, {"address": 4097}, {"address": 32}, {"nbytes": 40 * 288},
    {"rows": -40}, {"address": -64}, {"tile_groups": 1}, {"tile_groups": -1, "address": 0},
    {"shape": (1, 56, 512)}, {"shape": (1, 24, 512)}, {"shape": (1, 40, 256)}, {"shape": (1, 40, 768)},
    {"shape": (2, 40, 512)}, {"runs": 2},
])
def test_weights_that_do_not_fit_are_refused(change):
    """A matrix of the wrong format, shape, place or size is refused; the right one passes."""
    check_weight(**WEIGHT)
    check_weight(**(WEIGHT | {"address": 0, "tile_groups": 2}))
    with pytest.raises(EngineError):
        check_weight(**(WEIGHT | change))


def test_a_matrix_of_another_shape_than_the_model_says_is_refused():
    """Whole and aligned, and of as many bytes as its own shape takes: the buffers are made for another one."""
    with pytest.raises(EngineError, match="w is 40 × 512; the model's numbers say 32 × 512"):
        check_weight(**(WEIGHT | {"shape": (1, 32, 512)}))


TILES = {"name": "w", "groups": 7, "tile_groups": 3, "group_nbytes": 100, "most": 300}


@pytest.mark.parametrize(("sizes", "change"), [
    ([300, 300, 100], {"groups": 8}), ([300, 300], {}), ([300, 300, 100, 100], {}), ([300, 300, 200], {}),
    ([300, 100, 300], {}), ([300, 300, 100], {"most": 299}), ([300, 300, 100], {"group_nbytes": 99}), ([], {}),
    ([], {"groups": 0}), ([700], {"most": 1000}),
])
def test_tiles_that_do_not_fit_their_matrix_are_refused(sizes, change):
    """Compiled code asks for tiles by number, and takes each to be as long as it should be."""
    check_tiles(sizes=[300, 300, 100], **TILES)
    check_tiles(sizes=[300, 300], **(TILES | {"groups": 6}))
    with pytest.raises(EngineError, match="w has"):
        check_tiles(sizes=sizes, **(TILES | change))


@pytest.mark.parametrize("vector", [
    np.zeros(4, np.float64), np.zeros((2, 2), np.float32), np.zeros(5, np.float32),
    np.array([0, 1, np.nan, 2], np.float32), np.array([0, 1, np.inf, 2], np.float32),
])
def test_vectors_that_do_not_fit_are_refused(vector):
    """A vector of the wrong type, shape or length, or with values that are not numbers."""
    with pytest.raises(EngineError):
        check_vector("v", vector, 4)
