"""`reasoning_effort` for the templates that have it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from appliance.text.calls.efforts import EFFORTS, TABLE, variables_of
from tests.support.answers import template_of

NOW = datetime(2024, 7, 26)
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("openai-gpt-oss-120b", "high", {"reasoning_effort": "high"}),
    ("openai-gpt-oss-120b", "none", {"reasoning_effort": "low"}),
    ("Qwen-Qwen3-0.6B", "none", {"enable_thinking": False}),
    ("GLM-4.6", "low", {"enable_thinking": True}),
    ("ibm-granite-granite-3.3-2B-Instruct", "medium", {"thinking": True}),
    ("deepseek-ai-DeepSeek-V3.1", "none", {"enable_thinking": False, "thinking": False}),
    ("deepseek-ai-DeepSeek-V4", "xhigh", {"reasoning_effort": "max", "enable_thinking": True, "thinking": True}),
    ("ByteDance-Seed-OSS", "low", {"thinking_budget": 1024}),
    ("tencent-Hy3", "none", {"reasoning_effort": "no_think"}),
    ("Qwen-Qwen2.5-7B-Instruct", "high", {}),
]


@pytest.mark.parametrize(("name", "effort", "wanted"), CASES)
def test_variables(name: str, effort: str, wanted: dict[str, Any]) -> None:
    """An effort in a template's own words."""
    assert wanted == variables_of(template_of(name), effort)


@pytest.mark.parametrize(("name", "effort", "wanted"), [case for case in CASES if case[2]])
def test_templates_take_them(name: str, effort: str, wanted: dict[str, Any]) -> None:
    """Each effort renders, and not all give one prompt."""
    template = template_of(name)
    prompts = {template.render([{"role": "user", "content": "x"}], variables=variables_of(template, each), now=NOW)
               for each in EFFORTS}
    assert len(prompts) > 1


def test_a_budget() -> None:
    """Tokens, where the template counts them."""
    assert {"thinking_budget": 700} == variables_of(template_of("ByteDance-Seed-OSS"), "low", 700)
    assert {"enable_thinking": True} == variables_of(template_of("Qwen-Qwen3-0.6B"), "low", 700)


def test_rows_know_no_other_efforts() -> None:
    """Than the API's."""
    assert all(set(row.values) <= set(EFFORTS) for row in TABLE)
