"""Calls as JSON objects: what is a call, what is text, what is left of a call that is cut."""

from __future__ import annotations

import pytest

from appliance.text.calls.reading.pieces import Arguments, Call, Piece, Said, Thought
from appliance.text.template import ChatTemplate
from tests.support.answers import read, template_of

QWEN, LLAMA, MISTRAL = "Qwen-Qwen3-0.6B", "meta-llama-Llama-3.2-3B-Instruct", "mistralai-Mistral-Nemo-Instruct-2407"


def _call(index: int, name: str, text: str) -> list[Piece]:
    return [Call(index, name), Arguments(index, text)]


CASES: dict[str, tuple[str, str, list[Piece]]] = {
    "thought, text, two calls": (
        QWEN, '<think>\nab c\n</think>\n\nHello.  \n<tool_call>\n{"name": "get_weather", "arguments": {"city": "P"}}\n'
        '</tool_call>\n<tool_call>{"name": "add", "arguments": {"a":1}}</tool_call>\n',
        [Thought("ab c"), Said("Hello."), *_call(0, "get_weather", '{"city": "P"}'), *_call(1, "add", '{"a":1}')]),
    "marks within a string": (
        QWEN, '<tool_call>{"name": "add", "arguments": {"a": "</tool_call>\\"<tool_call>{"}}</tool_call>',
        _call(0, "add", '{"a": "</tool_call>\\"<tool_call>{"}')),
    "keys in another order": (
        QWEN, '<tool_call>{"arguments": {"a": [{}, "]"]}, "id": {"x": "}"}, "name": "add"}</tool_call>',
        _call(0, "add", '{"a": [{}, "]"]}')),
    "arguments as text": (
        QWEN, r'<tool_call>{"name": "add", "arguments": "{\"a\": \"\u00e4\"}"}</tool_call>',
        _call(0, "add", '{"a": "ä"}')),
    "no arguments": (QWEN, '<tool_call>{"name": "add"}</tool_call>', _call(0, "add", "{}")),
    "null": (QWEN, '<tool_call>{"name": "add", "arguments": null}</tool_call>', _call(0, "add", "{}")),
    "text between and after": (
        QWEN, 'a\n\n<tool_call>{"name": "add", "arguments": {}}</tool_call>\n b\n',
        [Said("a"), *_call(0, "add", "{}"), Said("\n\n\n b\n")]),
    "cut in the arguments": (
        QWEN, '<tool_call>{"name": "add", "arguments": {"a": [1, "x', _call(0, "add", '{"a": [1, "x')),
    "cut before the name": (QWEN, 'x <tool_call>{"name": "ad', [Said('x <tool_call>{"name": "ad')]),
    "cut in a mark": (QWEN, "x <tool_ca", [Said("x <tool_ca")]),
    "no object": (QWEN, "<tool_call>x</tool_call> y", [Said("<tool_call>x</tool_call> y")]),
    "no name": (QWEN, '<tool_call>{"n": [1, {}]}</tool_call>', [Said('<tool_call>{"n": [1, {}]}</tool_call>')]),
    "a name that is no text": (
        QWEN, '<tool_call>{"name": 3}</tool_call>', [Said('<tool_call>{"name": 3}</tool_call>')]),
    "no end of a thought": (QWEN, "<think> hm <tool_call>", [Thought("hm <tool_call>")]),
    "an empty thought": (QWEN, "<think>\n\n</think>\n\nHi", [Said("Hi")]),
    "a thought in the midst is text": (QWEN, "a <think>b</think>", [Said("a <think>b</think>")]),
    "bare": (LLAMA, '{"name": "add", "parameters": {"a": 1}}', _call(0, "add", '{"a": 1}')),
    "bare, several": (LLAMA, '{"name": "add", "parameters": {}}; {"name": "add", "parameters": {"b": 2}}',
                      [*_call(0, "add", "{}"), *_call(1, "add", '{"b": 2}')]),
    "bare, of no tool": (LLAMA, '{"name": "Bob", "parameters": {}}', [Said('{"name": "Bob", "parameters": {}}')]),
    "bare, no arguments": (LLAMA, '{"name": "add"}', [Said('{"name": "add"}')]),
    "bare, other JSON": (LLAMA, '{"a": {"name": "add"}}\n', [Said('{"a": {"name": "add"}}\n')]),
    "bare, not at the beginning": (
        LLAMA, 'x {"name": "add", "parameters": {}}', [Said('x {"name": "add", "parameters": {}}')]),
    "after its mark, of no tool": (
        LLAMA, '<|python_tag|>{"name": "Bob", "parameters": {"a": 1}}', _call(0, "Bob", '{"a": 1}')),
    "code": (LLAMA, "<|python_tag|>print(1)", [Said("<|python_tag|>print(1)")]),
    "a list": (MISTRAL, 'Yes.[TOOL_CALLS] [{"name": "add", "arguments": {}, "id": "123456789"}, '
               '{"name": "add", "arguments": {"b": 2}}]',
               [Said("Yes."), *_call(0, "add", "{}"), *_call(1, "add", '{"b": 2}')]),
    "a list that is cut": (
        MISTRAL, '[TOOL_CALLS][{"name": "add", "arguments": {}}, {"na', [*_call(0, "add", "{}"), Said('{"na')]),
    "white space alone": (MISTRAL, " \n", [Said(" \n")]),
    "white space around text": (MISTRAL, " \n a ", [Said(" \n a ")]),
}


@pytest.mark.parametrize("name", CASES)
def test_pieces(name: str) -> None:
    """However the answer is cut."""
    template, text, wanted = CASES[name]
    assert wanted == read(template_of(template), text)


@pytest.mark.parametrize(("text", "wanted"), [
    ('{"tool_call": {"name": "add", "arguments": {"a": 2}}}\n{"tool_call": {"name": "add", "arguments": {}}}',
     [*_call(0, "add", '{"a": 2}'), *_call(1, "add", "{}")]),
    ('{"tool_calls": [{"name": "add", "arguments": {}}, {"name": "add", "arguments": {"z": "}"}}]} bye',
     [*_call(0, "add", "{}"), *_call(1, "add", '{"z": "}"}'), Said("bye")]),
    ('{"tool_call": 3}', [Said('{"tool_call": 3}')]), ('{"foo"', [Said('{"foo"')]), ("plain", [Said("plain")]),
])
def test_templates_without_tools(text: str, wanted: list[Piece]) -> None:
    """The generic format."""
    assert wanted == read(ChatTemplate("{{ messages[0].content }}", {}), text)


def test_no_tools() -> None:
    """Without tools no text is a call; thoughts are."""
    text = '<tool_call>{"name": "add"}</tool_call>'
    assert [Thought("a"), Said(text)] == read(template_of(QWEN), f"<think>a</think>{text}", tools=None)


def test_a_prompt_that_ends_in_a_thought() -> None:
    """The thought goes on; the model may write its mark once more."""
    for text in ("a\n</think>\nb", "<think>a</think>b"):
        assert [Thought("a"), Said("b")] == read(template_of(QWEN), text, opened=True)
