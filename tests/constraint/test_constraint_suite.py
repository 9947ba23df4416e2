"""The public JSON Schema Test Suite: what is accepted is enforced to the letter, the rest is refused by its keyword."""

from __future__ import annotations

import re

import pytest

from tests.support import schema_suite
from tests.support.schema_suite import VALIDATORS, judge

GUIDE = schema_suite.TARGET.parents[2] / "docs/guides/structured-output.md"


@pytest.mark.slow
@pytest.mark.parametrize("draft", VALIDATORS)
def test_no_invalid_instance_gets_through(draft: str) -> None:
    """No wrong answer, and the share that the guide states."""
    result = judge(draft, walks=8)
    assert [] == result.wrong
    stated = re.search(rf"\| {re.escape(draft)} \| (\d+) \| (\d+) \|", GUIDE.read_text())
    assert stated is not None
    assert (int(stated[1]), int(stated[2])) == (result.schemas, result.accepted)
