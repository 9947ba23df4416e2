"""A few seconds of the fuzzing that `make soak` does for minutes: tokenizers, chat templates, answers."""

from __future__ import annotations

import pytest

from tests.fuzz import calls_fuzz, driver, template_fuzz, tokenizer_fuzz
from tests.support.environment import untraced
from tests.support.extent import examples, some


@untraced()
@pytest.mark.parametrize("target", [tokenizer_fuzz, template_fuzz, calls_fuzz], ids=["tokenizer", "template", "calls"])
def test_survives_mutations(target: object) -> None:
    """All seeds, and a few seconds of mutations of them, give tokens or errors of the appliance's own."""
    seeds = target.seeds()
    for seed in some(seeds, 100):
        target.fuzz(seed)
    count, finding = driver.run(target.fuzz, seeds[::5], seconds=examples(1, 3), seed=1, least=21)
    assert None is finding
    assert 20 < count
