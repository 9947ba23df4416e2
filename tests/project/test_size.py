"""What ships has a budget. Who raises a bound says why in CHANGELOG."""

from __future__ import annotations

import pytest

from tests.support import size

MOST = {
    "modules": 600, "code": 46_730, "its share": 0.13, "class names in several modules": 0, "renamed imports": 5,
    "classes over 250 lines": 0, "policy fields of schema 2 alone": 82, "circles": 0,
}


@pytest.fixture(scope="module")
def counted():
    """The house, measured."""
    return size.measure()


@pytest.mark.parametrize("what", MOST)
def test_what_ships_keeps_its_budget(counted, what):
    """No number is above its bound."""
    assert size.counts(counted)[what] <= MOST[what], counted[what]


def test_every_number_has_a_bound(counted):
    """But for the lines with their comments, and the name of a room."""
    assert {"lines", "biggest room"} == set(counted) - set(MOST)
