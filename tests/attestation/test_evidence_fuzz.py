"""A few seconds of the fuzzing of evidence that `make soak` does for minutes."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.fuzz import driver, envelopes_fuzz, examine_fuzz, tails_fuzz


@pytest.mark.parametrize("target", [examine_fuzz, envelopes_fuzz, tails_fuzz], ids=lambda module: module.__name__)
def test_fuzzing_finds_nothing_in_seconds(target: ModuleType) -> None:
    """Every seed goes through, and its first mutations raise nothing but our errors."""
    for seed in target.seeds():
        target.fuzz(seed)
    _, finding = driver.run(target.fuzz, target.seeds(), seconds=2, seed=1)
    assert None is finding
