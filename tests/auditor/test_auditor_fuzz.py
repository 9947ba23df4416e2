"""What auditors read from strangers, fuzzed; `make soak` goes on for minutes."""

from __future__ import annotations

from tests.fuzz import driver, receipts_fuzz


def test_nothing_is_accepted_that_nobody_signed() -> None:
    """Logs, checkpoints, receipts, tokens and bundles: each genuine one is, and no altered one."""
    for seed in receipts_fuzz.seeds():
        receipts_fuzz.fuzz(seed)
    _, finding = driver.run(receipts_fuzz.fuzz, receipts_fuzz.seeds(), seconds=0, seed=1, least=2500)
    assert finding is None, finding
