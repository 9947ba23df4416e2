"""Grammars of forced calls: whatever they allow is read as calls, with arguments that fit the schema."""

from __future__ import annotations

import json
import random

import jsonschema
import pytest

from appliance.errors import ConstraintError
from appliance.text.calls.readers import grammar_of
from appliance.text.calls.reading.format import CallFormat
from appliance.text.calls.reading.grammar import GrammarWriter
from appliance.text.calls.reading.pieces import Arguments, Call, Said, ToolSpec
from appliance.text.calls.table import FORMATS, GENERIC
from tests.support.answers import TOOLS, arguments_of, in_pieces, template_of
from tests.support.grammars import BYTES, Vocabulary

DEEP = {"type": "object", "required": ["city", "kind"], "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "kind": {"type": "string", "enum": ["C", "F"]},
    "deep": {"type": "object", "properties": {
        "x": {"type": "array", "items": {"type": "string"}}, "y": {"$ref": "#/$defs/d"}}},
    "flag": {"type": "boolean"}, "any": {}},
    "$defs": {"d": {"type": "object", "properties": {"z": {"$ref": "#/$defs/d"}, "n": {"type": ["integer", "null"]}}}}}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
OFFERED = (ToolSpec("look_up", None, DEEP), TOOLS[1], ToolSpec("now", None, NOTHING))
SCHEMAS = {tool.name: {"type": "object", **tool.parameters} for tool in OFFERED}
ALL = {each.name: each for each in (*FORMATS, GENERIC)}


def _read(form: CallFormat, text: str) -> None:
    """Every piece belongs to a call, and every call to a tool's schema."""
    pieces = in_pieces(form.reader(OFFERED), [text])
    calls = [piece for piece in pieces if isinstance(piece, Call)]
    assert calls
    assert not [piece for piece in pieces if isinstance(piece, Said)], (text, pieces)
    for call in calls:
        jsonschema.validate(json.loads(arguments_of(pieces, call.index)), SCHEMAS[call.name])


@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_forced_calls_parse(name: str, control: bool) -> None:
    """Marks may be text, or control tokens of the vocabulary."""
    form = ALL[name]
    words = Vocabulary(form.markers if control else ())
    grammar = form.grammar(OFFERED, required=True, parallel=True, control=words.ids)
    texts = [words.drawn(grammar, random.Random(seed)) for seed in range(8)]
    for text in filter(None, texts):
        _read(form, text)
    assert any(texts)


@pytest.mark.parametrize("name", ALL)
def test_one_call_alone(name: str) -> None:
    """Where calls in parallel are not allowed."""
    form = ALL[name]
    grammar = form.grammar(OFFERED[2:], required=True, parallel=False)
    text = next(filter(None, (Vocabulary(()).drawn(grammar, random.Random(seed)) for seed in range(9))))
    call, arguments = in_pieces(form.reader(OFFERED), [text])
    assert Call(0, "now") == call
    assert isinstance(arguments, Arguments)
    assert {} == json.loads(arguments.text)


_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
_MARKS = ("<tool_call>", "</tool_call>")
_THOUGHT = ("<think>", "</think>")


@pytest.mark.parametrize("control", [(), _MARKS, _MARKS + _THOUGHT])
@pytest.mark.parametrize(("text", "required", "opened", "allowed"), [
    (_CALL, True, False, True),
    (f"{_CALL}\n{_CALL}", True, False, True),
    (f"<think>\nhm\n</think>\n\n{_CALL}", True, False, True),
    (f"hm\n</think>\n\n{_CALL}", True, True, True),
    ("Hello", True, False, False),
    ("", True, False, False),
    ("Hello", False, False, True),
    (f"Hello {_CALL}", False, False, True),
    (f"<think>a</think>Hello {_CALL}", False, False, True),
    ('Hello <tool_call>\n{"name": "other"', False, False, False),
    (_CALL.replace("1", '"1"'), False, False, False),
])
def test_thoughts_and_text(text: str, required: bool, opened: bool, allowed: bool, control: tuple[str, ...]) -> None:
    """A thought may stand before a forced call, and text before one that is not forced."""
    words = Vocabulary(control)
    grammar = grammar_of(template_of("Qwen-Qwen3-0.6B"), TOOLS, required=required, parallel=True, opened=opened,
                         control=words.ids)
    assert allowed == words.allows(grammar, text)


@pytest.mark.parametrize(("text", "allowed"), [
    ('{"name": "add", "parameters": {"a": 1}}', True), ("Hi {", True), ("", True), ('{"a"', False)])
def test_bare_calls(text: str, allowed: bool) -> None:
    """Text that begins like a bare call must be one."""
    grammar = grammar_of(template_of("meta-llama-Llama-3.2-3B-Instruct"), TOOLS, required=False, parallel=False,
                         opened=False)
    assert allowed == Vocabulary(()).allows(grammar, text)


@pytest.mark.parametrize("name", ["openai-gpt-oss-120b", "Qwen-Qwen3-0.6B"])
def test_a_call_or_a_structure(name: str) -> None:
    """A structured answer beside calls, where the model thinks in its own way."""
    template = template_of(name)
    grammar = grammar_of(template, TOOLS, required=False, parallel=True, opened=False,
                         text=lambda grammar: grammar.json({"type": "object", "required": ["x"]}))
    words = Vocabulary(())
    harmony = "gpt-oss" in name
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant" if harmony else "<think>hm</think>\n"
    before = "<|channel|>final<|message|>" if harmony else ""
    call = ("<|channel|>commentary to=functions.add <|constrain|>json<|message|>" + '{"a": 1}') if harmony else _CALL
    for text in (before + '{"x": 1}', thought + before + '{"x": 1}', call, thought + call):
        assert words.allows(grammar, text)
    assert not words.allows(grammar, before + '{"y": 1}')
    assert not words.allows(grammar, "hello")


def test_a_strict_tool_is_kept_to_the_letter_or_refused() -> None:
    """Limits of a string are kept as JSON where strings are bare; else they are refused by name."""
    limited = {"type": "object", "required": ["x"], "properties": {"x": {"type": "string", "maxLength": 2}}}
    strict = [ToolSpec("f", None, limited, strict=True)]
    coder = ALL["qwen3-coder"]
    grammar = coder.grammar(strict, required=True, parallel=False)
    head, tail = "<tool_call>\n<function=f>\n<parameter=x>\n", "\n</parameter>\n</function>\n</tool_call>"
    assert Vocabulary(()).allows(grammar, f'{head}"ab"{tail}')
    assert not Vocabulary(()).allows(grammar, f'{head}"abc"{tail}')
    assert [Call(0, "f"), Arguments(0, '{"x": "ab"}')] == in_pieces(coder.reader(strict), [f'{head}"ab"{tail}'])
    with pytest.raises(ConstraintError, match="'maxLength' is not enforced"):
        ALL["gemma-4"].grammar(strict, required=True, parallel=False)


@pytest.mark.parametrize("name", ["gemma-4", "lfm2", "qwen3-coder", "harmony"])
def test_texts_of_a_request_name_no_control_tokens(name: str) -> None:
    """Names, keys and choices are text, also where they look like marks."""
    form = ALL[name]
    marks = Vocabulary(form.markers)
    mark = form.markers[0]
    tool = ToolSpec(mark, None, {"type": "object", "properties": {mark: {"type": "string", "enum": [mark]}}})
    grammar = form.grammar([tool], required=True, parallel=False, control=marks.ids)
    given = {"type": "object", "properties": {"k": {"type": "string", "enum": ["e"]}}}
    plain = form.grammar([ToolSpec("f", None, given)],
                         required=True, parallel=False, control=marks.ids)
    assert plain.count(f"<[{BYTES}]>") == grammar.count(f"<[{BYTES}]>")


def test_ids_of_control_tokens_are_what_a_grammar_names() -> None:
    """A name with brackets has no other spelling."""
    grammar = GrammarWriter({"[TOOL_CALLS]": BYTES})
    assert f'<[{BYTES}]> "add"' == grammar.text("[TOOL_CALLS]add")


LIMITED = ToolSpec("limited", None, {
    "type": "object", "additionalProperties": False, "minProperties": 1, "properties": {
        "text": {"type": "string", "minLength": 3, "description": "d"},
        "list": {"type": "array", "minItems": 2, "items": {"type": "integer", "minimum": 4}},
        "one": {"type": "string", "enum": ["a"]}}})


@pytest.mark.parametrize(("name", "paths"), [
    ("hermes", None), ("qwen3-coder", ["minProperties", "properties.text.minLength"]),
    ("glm-4.7", ["minProperties", "properties.text.minLength"]),
    ("lfm2", ["minProperties", "properties.list.minItems", "properties.text.minLength"]),
    ("gemma-4", ["minProperties", "properties.list.minItems", "properties.text.minLength"])])
def test_formats_say_what_they_do_not_keep(name: str, paths: list[str] | None) -> None:
    """The limits of bare text, and what a notation has no expression for; calls as JSON keep all."""
    unkept = next(each for each in FORMATS if each.name == name).unkept
    assert paths == (None if unkept is None else sorted(".".join(path) for path in unkept(LIMITED)))
