"""How much a model thinks: which variable of its template says it, one row each.

The API's words are OpenAI's `reasoning_effort`: none, minimal, low, medium, high, xhigh. A budget
is the tokens of a thought.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.text.template import ChatTemplate

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")

Value = str | int | bool


@dataclass(frozen=True, slots=True)
class Effort:
    """A variable of templates, and its value for each effort. `words`: a template must have them,
    where others use the variable in another way. `budget`: its value is a number of tokens."""

    variable: str
    values: Mapping[str, Value]
    words: tuple[str, ...] = ()
    budget: bool = False
    source: str = field(default="", compare=False)


_SWITCH: Mapping[str, Value] = {effort: effort != "none" for effort in EFFORTS}

TABLE = (
    Effort("reasoning_effort", {"none": "no_think", "minimal": "low", "low": "low", "medium": "high", "high": "high",
                                "xhigh": "high"}, words=("no_think",), source="Hunyuan 3"),
    Effort("reasoning_effort", {"high": "high", "xhigh": "max"}, words=("reasoning_effort == 'max'",),
           source="DeepSeek V4, which thinks by `thinking`"),
    Effort("reasoning_effort", {"none": "low", "minimal": "low", "low": "low", "medium": "medium", "high": "high",
                                "xhigh": "high"}, words=("Reasoning: ",), source="gpt-oss, which always thinks"),
    Effort("reasoning_effort", {effort: effort for effort in EFFORTS}, source="Solar Open, Cohere 2"),
    Effort("thinking_effort", {"low": "low", "medium": "high", "high": "high", "xhigh": "max"}, source="Kimi K3"),
    Effort("thinking_budget", {"none": 0, "minimal": 512, "low": 1024, "medium": 4096, "high": 16384, "xhigh": -1},
           budget=True, source="Seed-OSS"),
    Effort("enable_thinking", _SWITCH, source="Qwen 3, GLM, Nemotron 3, Gemma 4, SmolLM 3 and many others"),
    Effort("thinking", _SWITCH, source="Granite 3.3, DeepSeek V3.1 to V4, Kimi K3"),
    Effort("reasoning", _SWITCH, words=("reasoning is not undefined",), source="Cohere 2"),
)
"""Rows whose variable a template reads; several may be a template's, each variable counts once."""


def variables_of(template: ChatTemplate, effort: str, budget: int | None = None) -> dict[str, Value]:
    """The variables of a template for an effort, and for a budget of tokens; empty where it has no
    such variable."""
    found: dict[str, Value] = {}
    for row in TABLE:
        if row.variable in found or not template.takes(row.variable) or not all(
                word in template.source for word in row.words):
            continue
        if row.budget and budget is not None:
            found[row.variable] = budget
        elif effort in row.values:
            found[row.variable] = row.values[effort]
    return found
