"""A few seconds of the fuzzing that `make soak` does for minutes."""

from __future__ import annotations

from tests.fuzz import driver, gguf_fuzz, shards_fuzz


def test_gguf_parser_survives_mutations() -> None:
    """Two seconds of mutated files raise nothing but the model tree's own errors."""
    count, finding = driver.run(gguf_fuzz.fuzz, gguf_fuzz.seeds(), seconds=2, seed=1, least=101)
    assert None is finding
    assert 100 < count


def test_hostile_shards_end_in_our_errors() -> None:
    """Two seconds of mutated shards: an error of ours, or one model whose tensors lie apart."""
    count, finding = driver.run(shards_fuzz.fuzz, shards_fuzz.seeds(), seconds=2, seed=1, least=60)
    assert finding is None, finding
    assert count >= 60
