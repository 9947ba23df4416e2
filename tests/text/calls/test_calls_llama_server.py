"""The same answers, as llama.cpp's server reads them: tests/goldens/make_call_goldens.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.text.calls.readers import reader_of
from appliance.text.calls.reading.pieces import Call, Said, Thought, ToolSpec
from tests.support.answers import arguments_of, in_pieces, template_of

GOLDENS = json.loads((Path(__file__).parents[2] / "goldens/calls/llama_server.json").read_text())

# Where the two read an answer in other ways, and why: a beginning of the template's name, cases.
DIFFERENT = {
    # The server counts the prompt's own words to the thought.
    ("Apriel-1.6", ""),
    # The server writes a line break within a JSON string.
    ("LFM2.5-8B", "of the template"),
    # The server's grammar made the model say a second [ARGS], which no model was trained on.
    ("Mistral-Small-3.2", "of the template"), ("Mistral-Small-3.2", "vector"),
    # The first mark is left out, as this family does at times: the server reads no call.
    ("NVIDIA-Nemotron-3", "vector 19"), ("Qwen3.5", "vector 19"), ("StepFun", "vector 19"),
    # A value has its own end mark in it: the server leaves the JSON open.
    ("NVIDIA-Nemotron-3", "vector 20"), ("Qwen3.5", "vector 20"), ("StepFun", "vector 20"),
    # Templates that show no tools, or no calls of earlier turns: the server reads no call at all.
    ("deepseek-ai-DeepSeek-R1-Distill-Llama", "of the template"), ("ibm-granite-granite-3.3", "of the template"),
    ("deepseek-ai-DeepSeek-R1-Distill-Llama", "vector"), ("ibm-granite-granite-3.3", "vector"),
    # The server leaves the mark of the call in the text.
    ("meta-llama", "vector 1"),
}


def _differs(golden: dict[str, Any]) -> bool:
    return any(golden["template"].startswith(name) and case in golden["case"] for name, case in DIFFERENT)


def _values(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.mark.parametrize("place", range(len(GOLDENS)))
def test_as_llama_server(place: int) -> None:
    """Text, thoughts and calls are equal, but for white space at their ends."""
    golden = GOLDENS[place]
    tools = [ToolSpec(each["function"]["name"], None, each["function"]["parameters"]) for each in golden["tools"]]
    pieces = in_pieces(reader_of(template_of(golden["template"]), tools, golden["opened"]), [golden["text"]])
    calls = [[piece.name, _values(arguments_of(pieces, piece.index))] for piece in pieces if isinstance(piece, Call)]
    found = (*("".join(piece.text for piece in pieces if isinstance(piece, kind)).strip() for kind in (Said, Thought)),
             calls)
    wanted = (golden["content"].strip(), golden["thought"].strip(),
              [[name, _values(text)] for name, text in golden["calls"]])
    assert (wanted == found) != _differs(golden)


def test_most_answers_are_read_alike() -> None:
    """The list of differences is short."""
    assert 0.88 * len(GOLDENS) < sum(not _differs(golden) for golden in GOLDENS)
