"""Documents that strangers sign, fuzzed."""

from __future__ import annotations

from tests.fuzz import driver, signed_fuzz


def test_nothing_is_accepted_that_nobody_signed() -> None:
    """Timestamps, bundles and release logs: each genuine one is, and no altered one."""
    for seed in signed_fuzz.seeds():
        signed_fuzz.fuzz(seed)
    count, finding = driver.run(signed_fuzz.fuzz, signed_fuzz.seeds(), seconds=5, seed=1, least=200)
    assert finding is None, finding
    assert count >= 200
