"""A few seconds of the fuzzing that `make soak` does for minutes."""

from __future__ import annotations

from tests.fuzz import driver, gguf_fuzz


def test_gguf_parser_survives_mutations() -> None:
    """Two seconds of mutated files raise nothing but the model tree's own errors."""
    count, finding = driver.run(gguf_fuzz.fuzz, gguf_fuzz.seeds(), seconds=2, seed=1, least=101)
    assert None is finding
    assert 100 < count
