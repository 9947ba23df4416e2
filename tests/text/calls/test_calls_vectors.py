"""Answers as public documentation shows them, with what it says they mean, transcribed by hand.

Sources: the model cards and prompt formats of Hermes 2 Pro, Llama 3.1, mistral-common, DeepSeek V3.1, Phi-4-mini,
Granite 3, OpenAI's harmony, FunctionGemma, Command R7B, Qwen3-Coder, GLM 4.5, Kimi K2, LFM2.
"""

from __future__ import annotations

import time

import pytest

from appliance.text.calls.reading.format import CallFormat
from appliance.text.calls.reading.pieces import Arguments, Call, Piece, Said, Thought, ToolSpec
from appliance.text.calls.table import FORMATS
from tests.support.answers import in_pieces, read, template_of
from tests.support.environment import untraced

ALL = {each.name: each for each in FORMATS}


def _called(name: str, text: str, index: int = 0) -> list[Piece]:
    return [Call(index, name), Arguments(index, text)]


VECTORS: list[tuple[str, str, list[Piece]]] = [
    ("hermes", '<tool_call>\n{"arguments": {"symbol": "TSLA"}, "name": "get_stock_fundamentals"}\n</tool_call>',
     _called("get_stock_fundamentals", '{"symbol": "TSLA"}')),
    ("llama-3", '<|python_tag|>{"type": "function", "name": "trending_songs", "parameters": {"n": "10", '
     '"genre": "all"}}',
     _called("trending_songs", '{"n": "10", "genre": "all"}')),
    ("mistral", '[TOOL_CALLS][{"name": "get_current_weather", "arguments": {"location": "Paris, France"}, '
     '"id": "VvvODy9mT"}]', _called("get_current_weather", '{"location": "Paris, France"}')),
    ("mistral-args", '[TOOL_CALLS]get_weather[CALL_ID]VvvODy9mT[ARGS]{"location": "Paris"}',
     _called("get_weather", '{"location": "Paris"}')),
    ("deepseek-r1", 'a<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n'
     '{"location": "Tokyo"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
     [Said("a"), *_called("get_weather", '{"location": "Tokyo"}')]),
    ("deepseek-v3.1", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search<｜tool▁sep｜>{"q": "x"}<｜tool▁call▁end｜>'
     '<｜tool▁call▁begin｜>search<｜tool▁sep｜>{"q": "y"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
     [*_called("search", '{"q": "x"}'), *_called("search", '{"q": "y"}', 1)]),
    ("phi-4-mini", '<|tool_call|>[{"type": "function", "function": {"name": "get_flight", "arguments": {"to": "LA"}}}]'
     "<|/tool_call|>", _called("get_flight", '{"to": "LA"}')),
    ("phi-4-mini", 'functools[{"name": "get_flight", "arguments": {"to": "LA"}}]',
     _called("get_flight", '{"to": "LA"}')),
    ("granite-3", '<|tool_call|>[{"name": "get_stock_price", "arguments": {"ticker": "IBM"}}]',
     _called("get_stock_price", '{"ticker": "IBM"}')),
    ("harmony", "<|channel|>analysis<|message|>Need to use function get_weather.<|end|><|start|>assistant<|channel|>"
     'commentary to=functions.get_weather <|constrain|>json<|message|>{"location":"San Francisco"}<|call|>',
     [Thought("Need to use function get_weather."), *_called("get_weather", '{"location":"San Francisco"}')]),
    ("harmony", "<|channel|>analysis<|message|>User asks 2 + 2.<|end|><|start|>assistant<|channel|>final<|message|>"
     "2 + 2 = 4.<|return|>", [Thought("User asks 2 + 2."), Said("2 + 2 = 4.")]),
    ("harmony", "<|channel|>commentary<|message|>**Action plan**: first this.<|end|><|start|>assistant "
     'to=functions.generate_file<|channel|>commentary <|constrain|>json<|message|>{"a": 1}<|call|>',
     [Said("**Action plan**: first this."), *_called("generate_file", '{"a": 1}')]),
    ("harmony", "plain <|channel|>final<|message|>a<|end|>", [Said("plain a")]),
    ("harmony", "<|channel|>final<|message|>a<|start|>assist", [Said("a")]),
    ("function-gemma", "<start_function_call>call:get_current_temperature{location:<escape>London<escape>}"
     "<end_function_call>", _called("get_current_temperature", '{"location": "London"}')),
    ("gemma-4", '<|tool_call>call:f{a:[1,<|"|>x, y<|"|>,{b:true}],c:null}<tool_call|>',
     _called("f", '{"a": [1, "x, y", {"b": true}], "c": null}')),
    ("command-r7b", '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "internet_search", "parameters": '
     '{"query": "essence"}}\n]<|END_ACTION|>', _called("internet_search", '{"query": "essence"}')),
    ("command-r", 'Action: ```json\n[\n    {\n        "tool_name": "internet_search",\n        "parameters": {\n'
     '            "query": "penguin"\n        }\n    }\n]```',
     _called("internet_search", '{\n            "query": "penguin"\n        }')),
    ("command-r", 'A plan.\nAction:\n```json\n[\n    {"tool_name": "f", "parameters": {"a": 1}}\n]```',
     [Said("A plan."), *_called("f", '{"a": 1}')]),
    ("qwen3-coder", "Yes.\n\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=text>\nif x:\n"
     "    y\n\n</parameter>\n<parameter=list>\n[1, {}]\n</parameter>\n</function>\n</tool_call>",
     [Said("Yes."), *_called("add", '{"a": 1, "text": "if x:\\n    y\\n", "list": [1, {}]}')]),
    ("qwen3-coder", "<function=add>\n<parameter=text>\n1\n</parameter>\n</function>\n</tool_call>",
     _called("add", '{"text": "1"}')),
    ("qwen3-coder", "<tool_call>\n<function=add>\n<parameter=text>\n</parameter> is a tag\n</parameter>\n</function>",
     _called("add", '{"text": "</parameter> is a tag"}')),
    ("qwen3-coder", "<tool_call>\n<function=add>\n<parameter=text>\nhal", _called("add", '{"text": "hal')),
    ("qwen3-coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>", _called("now", "{}")),
    ("glm-4.5", "<tool_call>add\n<arg_key>text</arg_key>\n<arg_value>北京</arg_value>\n<arg_key>a</arg_key>\n"
     "<arg_value>2</arg_value>\n</tool_call>", _called("add", '{"text": "北京", "a": 2}')),
    ("kimi-k2", '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>'
     '{"city": "Beijing"}<|tool_call_end|><|tool_calls_section_end|>', _called("get_weather", '{"city": "Beijing"}')),
    ("solar-open", '<|tool_calls|><|tool_call:begin|>aBc123<|tool_call:name|>get_weather<|tool_call:args|>'
     '{"city": "Seoul"}<|tool_call:end|><|calls|>', _called("get_weather", '{"city": "Seoul"}')),
    ("lfm2", '<|tool_call_start|>[get_candidate_status(candidate_id="12345", ok=True, of=[1, \'it\\\'s\'])]'
     "<|tool_call_end|>Checking.",
     [*_called("get_candidate_status", '{"candidate_id": "12345", "ok": true, "of": [1, "it\'s"]}'),
      Said("Checking.")]),
    ("minimax-m2", '<minimax:tool_call>\n<invoke name="search_web">\n<parameter name="query_tag">["a", "b"]</parameter>'
     "\n</invoke>\n</minimax:tool_call>", _called("search_web", '{"query_tag": ["a", "b"]}')),
    ("deepseek-v3.2", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="x" string="true">5'
     '</｜DSML｜parameter>\n<｜DSML｜parameter name="y" string="false">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
     "</｜DSML｜function_calls>", _called("f", '{"x": "5", "y": 5}')),
]
TOOLS = [ToolSpec("add", None, {
    "type": "object", "properties": {"text": {"type": "string"}, "a": {"type": "integer"}}})]
CUTS = 40


@pytest.mark.parametrize("place", range(len(VECTORS)))
def test_documented_answers(place: int) -> None:
    """However they are cut."""
    name, text, wanted = VECTORS[place]
    for size in range(1, CUTS):
        parts = [text[at:at + size] for at in range(0, len(text), size)]
        assert wanted == in_pieces(ALL[name].reader(TOOLS), parts)


@pytest.mark.parametrize("place", range(len(VECTORS)))
def test_an_answer_that_is_cut_loses_nothing(place: int) -> None:
    """All calls of the beginning of an answer begin the answer's calls, and their arguments too."""
    name, text, wanted = VECTORS[place]
    whole = {piece.index: piece.name for piece in wanted if isinstance(piece, Call)}
    for size in range(len(text)):
        for piece in in_pieces(ALL[name].reader(TOOLS), [text[:size]]):
            if isinstance(piece, Call):
                assert whole[piece.index] == piece.name or not text[:size].rstrip().endswith((">", "]", "{"))


def test_harmony_without_tools() -> None:
    """A call that nobody offered is thought."""
    text = '<|channel|>analysis<|message|>a<|end|><|start|>assistant to=functions.f<|channel|>commentary' \
           '<|message|>{"b": 1}'
    assert [Thought('a{"b": 1}')] == read(template_of("openai-gpt-oss-120b"), text, tools=None)


@pytest.mark.parametrize("name", ALL)
@untraced()
def test_time_grows_with_the_text_alone(name: str) -> None:
    """Eight times the text takes no more than about eight times as long, whatever is repeated in it."""
    form = ALL[name]
    begun = [mark + '{"name": "add", "arguments": [' for mark in form.opens]
    units = ["<", "{", '"', "\n", *form.opens, *form.markers, *begun]
    for unit in units:
        short = max(_seconds(form, (unit * 3_000)[:3_000]), 0.005)
        assert any(_seconds(form, (unit * 24_000)[:24_000]) < 24 * short for _ in range(2)), unit


def _seconds(form: CallFormat, text: str) -> float:
    parts = [text[at:at + 4] for at in range(0, len(text), 4)]
    start = time.process_time()
    in_pieces(form.reader(TOOLS), parts)
    return time.process_time() - start


def test_frames_and_thoughts() -> None:
    """Marks around an answer proper are no text of it."""
    command, granite = "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "ibm-granite-granite-3.3-2B-Instruct"
    said = "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>"
    assert [Thought("a"), Said("b")] == read(template_of(command), said)
    assert [Thought("a"), Said("b")] == read(template_of(granite), "<think>\na\n</think>\n<response> b </response>")
    solar = "<|think|>a<|end|><|begin|>assistant<|content|>b<|end|>"
    assert [Thought("a"), Said("b")] == read(template_of("upstage-Solar-Open-100B"), solar)
    assert [Said("<response>")] == read(template_of("Qwen-Qwen3-0.6B"), "<response>")


def test_a_generic_call_of_a_model_with_a_format_of_its_own() -> None:
    """Where the template shows no tools, the model is asked for one form and may use another."""
    template = template_of("deepseek-ai-DeepSeek-V3.1")
    own = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    for text in ('{"tool_call": {"name": "add", "arguments": {"a": 1}}}', own):
        assert _called("add", '{"a": 1}') == read(template, text, tools=TOOLS)
