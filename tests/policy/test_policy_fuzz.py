"""A little of the fuzzing that `make soak` does for minutes."""

from __future__ import annotations

from tests.fuzz import driver, policy_fuzz


def test_policy_parser_survives_mutations() -> None:
    """Mutated policies give findings or policies, and nothing else."""
    _, finding = driver.run(policy_fuzz.fuzz, policy_fuzz.seeds(), seconds=0, seed=1, least=150)
    assert None is finding
