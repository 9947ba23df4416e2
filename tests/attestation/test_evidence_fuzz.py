"""A little of the fuzzing of evidence that `make soak` does for minutes."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.fuzz import driver, dstack_fuzz, envelopes_fuzz, examine_fuzz, tails_fuzz


@pytest.mark.parametrize(("target", "inputs"), [(examine_fuzz, 2500), (envelopes_fuzz, 5000), (dstack_fuzz, 5000),
                                                (tails_fuzz, 2500)], ids=["examine", "envelopes", "dstack", "tails"])
def test_fuzzing_finds_nothing(target: ModuleType, inputs: int) -> None:
    """Every seed goes through, and its first mutations raise nothing but our errors."""
    _, finding = driver.run(target.fuzz, target.seeds(), seconds=0, seed=1, least=inputs)
    assert None is finding
