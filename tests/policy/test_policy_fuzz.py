"""A few seconds of the fuzzing that `make soak` does for minutes."""

from __future__ import annotations

from tests.fuzz import driver, policy_fuzz


def test_policy_parser_survives_mutations() -> None:
    """Three seconds of mutated policies give findings or policies, and nothing else."""
    for seed in policy_fuzz.seeds():
        policy_fuzz.fuzz(seed)
    count, finding = driver.run(policy_fuzz.fuzz, policy_fuzz.seeds(), seconds=3, seed=1, least=101)
    assert None is finding
    assert 100 < count
