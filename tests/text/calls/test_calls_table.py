"""The table of formats: each row is named once, stands in the reference, and is reached by some template."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.text.calls.readers import control_of, markers_of, thinking_of
from appliance.text.calls.table import FORMATS, GENERIC
from appliance.text.tokenizer import load
from tests.support.answers import template_of
from tests.support.vocabularies import byte_level, tokenizer_of

PAGE = (Path(__file__).parents[3] / "docs/reference/tool-formats.md").read_text()


def test_the_reference_has_each_format_in_its_order() -> None:
    """The first section's rows."""
    section = PAGE.split("\n## ")[1]
    assert [*(each.name for each in FORMATS), GENERIC.name] == re.findall(r"^\| `([\w.\-]+)` \|", section, re.MULTILINE)


def test_names_are_apart() -> None:
    """They stand in tests and in documents."""
    assert len({each.name for each in FORMATS}) == len(FORMATS)


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "mistralai-Mistral-Nemo-Instruct-2407", "llama-cpp-deepseek-r1"])
def test_markers_that_are_control_tokens(name: str) -> None:
    """Those that the vocabulary has, with their ids; text that only looks like one is none."""
    markers = markers_of(template_of(name), tools=True)
    tokenizer = load(byte_level(special=("<|im_end|>", *markers[:1])))
    assert {markers[0]: 257} == control_of(tokenizer, markers)
    assert {} == control_of(tokenizer_of("gpt-2"), markers)


def test_without_tools_only_thoughts_have_marks() -> None:
    """Harmony's are those of thoughts, too."""
    assert ("<think>", "</think>") == markers_of(template_of("Qwen-Qwen3-0.6B"), tools=False)
    assert "<|channel|>" in markers_of(template_of("openai-gpt-oss-120b"), tools=False)
    assert None is thinking_of(template_of("Qwen-Qwen2.5-7B-Instruct"))
