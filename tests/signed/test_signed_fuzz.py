"""Documents that strangers sign, fuzzed; `make soak` goes on for minutes."""

from __future__ import annotations

from tests.fuzz import driver, signed_fuzz


def test_nothing_is_accepted_that_nobody_signed() -> None:
    """Timestamps, bundles and release logs: each genuine one is, and no altered one."""
    for seed in signed_fuzz.seeds():
        signed_fuzz.fuzz(seed)
    _, finding = driver.run(signed_fuzz.fuzz, signed_fuzz.seeds(), seconds=0, seed=1, least=4000)
    assert finding is None, finding
