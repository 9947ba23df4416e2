"""A few seconds of the fuzzing that `make soak` does for minutes: tokenizers, chat templates, answers."""

from __future__ import annotations

import pytest

from tests.fuzz import calls_fuzz, driver, template_fuzz, tokenizer_fuzz
from tests.support.environment import untraced


@untraced()
@pytest.mark.parametrize("target", [tokenizer_fuzz, template_fuzz, calls_fuzz], ids=["tokenizer", "template", "calls"])
def test_survives_mutations(target: object) -> None:
    """All seeds, and a few seconds of mutations of them, give tokens or errors of the appliance's own."""
    for seed in target.seeds():
        target.fuzz(seed)
    count, finding = driver.run(target.fuzz, target.seeds()[::5], seconds=3, seed=1, least=21)
    assert None is finding
    assert 20 < count
