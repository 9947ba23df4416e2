"""What templates of many models write for a turn with calls is read as these calls; no template loses one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from appliance.errors import TemplateError
from appliance.text.calls.history import fit
from appliance.text.calls.readers import format_of, native_of, opened, thinking_of
from appliance.text.calls.reading.pieces import Call, Thought
from appliance.text.jinja.marks import spans_of
from appliance.text.template import ChatTemplate, Message
from tests.support.answers import TOOLS, arguments_of, read, template_of

NOW = datetime(2024, 7, 26)
NAMES = json.loads((Path(__file__).parents[2] / "goldens/template/renderings.json").read_text())["templates"]
ARGUMENTS = [{"city": 'Paris "x"\n', "days": 3}, {"a": 1.5, "b": -2}]
# The format of each template with tools; the others get the generic one.
FORMATS = {
    "hermes": ["Bielik-11B-v3.0-Instruct", "MiMo-VL", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "Qwen-QwQ-32B",
               "NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B",
               "Reka-Edge", "ibm-granite-granite-4.0", "ibm-granite-granite-4.1"],
    "llama-3": ["meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct",
                "meta-llama-Llama-3.3-70B-Instruct"],
    "mistral": ["mistralai-Mistral-Nemo-Instruct-2407"],
    "mistral-args": ["Mistral-Small-3.2-24B-Instruct-2506", "mistralai-Ministral-3-14B-Reasoning-2512",
                     "unsloth-mistral-Devstral-Small-2507"],
    "deepseek-r1": ["llama-cpp-deepseek-r1", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
                    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"],
    "deepseek-v3.1": ["deepseek-ai-DeepSeek-V3.1"], "deepseek-v3.2": ["deepseek-ai-DeepSeek-V3.2"],
    "deepseek-v4": ["deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731"],
    "kimi-k2": ["Kimi-K2-Instruct", "Kimi-K2-Thinking", "moonshotai-Kimi-K2"],
    "harmony": ["openai-gpt-oss-120b"], "gemma-4": ["google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"],
    "lfm2": ["LFM2-8B-A1B", "LFM2.5-8B-A1B", "LFM2.5-Instruct"],
    "command-r7b": ["Cohere2MoE", "CohereForAI-c4ai-command-r7b-12-2024-tool_use"],
    "command-r": ["CohereForAI-c4ai-command-r-plus-tool_use"],
    "granite-3": ["ibm-granite-granite-3.3-2B-Instruct"],
    "qwen3-coder": ["NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Qwen3-Coder", "Qwen3.5-4B", "StepFun3.5-Flash"],
    "seed-oss": ["ByteDance-Seed-OSS"], "minimax-m2": ["MiniMax-M2"], "minimax-m1": ["MiniMax-M1"],
    "glm-4.5": ["GLM-4.6", "inclusionai-ling-3.0-flash", "poolside-Laguna-XS-2.1", "poolside-Laguna-XS.2"],
    "glm-4.7": ["GLM-4.7-Flash", "Spark2.5", "poolside-Laguna-S-2.1"],
    "minicpm-5": ["openbmb-MiniCPM5-1B"], "functionary-3.1": ["meetkai-functionary-medium-v3.1"],
    "nemotron-nano-2": ["NVIDIA-Nemotron-Nano-v2"], "firefunction-2": ["fireworks-ai-llama-3-firefunction-v2"],
    "apriel": ["Apriel-1.6-15b-Thinker-fixed", "unsloth-Apriel-1.5"],
    "solar-open": ["upstage-Solar-Open-100B"],
    "gigachat-3": ["GigaChat3-10B-A1.8B"], "gigachat-3.1": ["GigaChat3.1-10B-A1.8B"],
}
NATIVE = {template: name for name, templates in FORMATS.items() for template in templates}
# Kimi's change a list while they run, which Hugging Face's sandbox does not allow either. Command-R's takes no object
# within an object.
UNRENDERED = {  # a template, and what it is refused for
    "Kimi-K2-Instruct": "would change a list", "Kimi-K2-Thinking": "would change a list",
    "CohereForAI-c4ai-command-r-plus-tool_use": "undefined, has no attribute 'type'"}
OFFERED = [{"type": "function", "function": {
    "name": tool.name, "description": "d", "parameters": dict(tool.parameters)}} for tool in TOOLS]


def _called(index: int) -> dict[str, Any]:
    return {"id": f"call0000{index}", "type": "function", "function": {
        "name": TOOLS[index].name, "arguments": json.dumps(ARGUMENTS[index])}}


def chat(count: int) -> list[dict[str, Any]]:
    """A chat whose last turns are calls and their results."""
    return [{"role": "user", "content": "UUU"},
            {"role": "assistant", "content": None, "reasoning_content": "RRR", "tool_calls": [
                _called(index) for index in range(count)]},
            *[{"role": "tool", "tool_call_id": f"call0000{index}", "name": TOOLS[index].name,
               "content": f"RESULT{index}"} for index in range(count)]]


def written(template: ChatTemplate, turn: Sequence[Message], variables: Mapping[str, Any] | None = None
            ) -> tuple[str, str]:
    """The prompt for the last turn of these, and what the template writes for that turn."""
    whole = template.render(turn, tools=OFFERED, now=NOW, add_generation_prompt=False, variables=variables)
    prompt = template.render(turn[:-1], tools=OFFERED, now=NOW, variables=variables)
    same = (place for place, (first, second) in enumerate(zip(prompt, whole, strict=False)) if first != second)
    begun = whole[:next(same, len(prompt))]
    if begun.rfind("<") > begun.rfind(">"):  # both go on with a mark, not with the same one
        begun = begun[:begun.rfind("<")]
    return begun, whole[len(begun):]


@pytest.mark.parametrize("name", [name.removesuffix(".jinja") for name in NAMES])
def test_each_template_has_its_format(name: str) -> None:
    """Recognised by its text; where a template shows no tools, the model is asked in the generic format."""
    template = template_of(name)
    native = native_of(template)
    assert NATIVE.get(name) == (native.name if native else None)
    assert format_of(template).name == (native.name if native and template.shows_tools else "generic")


@pytest.mark.parametrize("name", [name for name in NATIVE if name not in UNRENDERED])
def test_read_what_a_template_writes(name: str) -> None:
    """The turn's calls, by the reader of the model; its thought, where the template writes it."""
    template = template_of(name)
    count = 2 if template.shows_several_calls or not template.shows_calls else 1
    turn = fit(template, chat(count)[:2])
    begun, text = written(template, turn)
    pieces = read(template, text, opened=opened(template, begun))
    calls = [piece for piece in pieces if isinstance(piece, Call)]
    assert [TOOLS[index].name for index in range(count)] == [call.name for call in calls]
    for call in calls:
        assert ARGUMENTS[call.index] == json.loads(arguments_of(pieces, call.index))
    thoughts = [piece.text for piece in pieces if isinstance(piece, Thought)]
    shown = thinking_of(template) is not None and "RRR" in text and name not in _NO_THOUGHT
    assert (["RRR"] if shown else []) == thoughts


# Their templates write thoughts of earlier turns without marks, or as text.
_NO_THOUGHT = {"Apriel-1.6-15b-Thinker-fixed"}


@pytest.mark.parametrize("name", [name for name in NATIVE if name not in UNRENDERED])
def test_no_call_is_lost(name: str) -> None:
    """All calls and results of a turn are in the prompt, also of templates that take one call at a time. Their text
    is marked as from outside."""
    template = template_of(name)
    text = template.render(fit(template, chat(2)), tools=OFFERED, now=NOW)
    places = [text.index(word) for word in ("RESULT0", "RESULT1")]
    assert "1.5" in text
    places.append(text.rindex("Paris"))
    assert all(any(start <= place < end for start, end in spans_of(text)) for place in places)


@pytest.mark.parametrize("name", ["ibm-granite-granite-3.3-2B-Instruct", "LFM2-8B-A1B"])
def test_calls_that_are_spelled_out_forge_nothing(name: str) -> None:
    """The marks around the calls are the template's own; what is in the calls is not."""
    template = template_of(name)
    mark = native_of(template).opens[0]  # type: ignore[union-attr]
    turns = chat(1)
    turns[1]["tool_calls"][0]["function"] = {"name": mark, "arguments": json.dumps({"x": mark})}
    text = template.render(fit(template, turns), tools=OFFERED, now=NOW)
    outside = [text[start:end] for start, end in spans_of(text)]
    after = text.index("UUU")
    assert text.count(mark, after) == 3
    assert 2 == sum(part.count(mark) for part in outside)


def test_a_prompt_that_ends_in_a_thought_by_a_user_s_words() -> None:
    """A user's mark opens nothing."""
    template = ChatTemplate("{{ messages[0].content }}{# <think> </think> #}", {})
    assert not opened(template, template.render([{"role": "user", "content": "<think>"}]))
    assert opened(template_of("deepseek-ai-DeepSeek-R1-Distill-Llama-8B"), template_of(
        "deepseek-ai-DeepSeek-R1-Distill-Llama-8B").render([{"role": "user", "content": "x"}], now=NOW))


def test_some_templates_cannot_write_calls() -> None:
    """They say which line is at fault."""
    for name, words in UNRENDERED.items():
        with pytest.raises(TemplateError, match=words):
            template_of(name).render(chat(1), tools=OFFERED, now=NOW)
