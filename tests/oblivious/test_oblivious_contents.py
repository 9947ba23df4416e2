"""Texts of a request that are never texts of Python's, against Python's own JSON, the same templates with texts, and
the plain tokenizer."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.api import wire
from appliance.api.problems import RequestError
from appliance.errors import ApplianceError
from appliance.oblivious.contents import BodyReader, Contents, texts_of
from appliance.service.admission import prompts
from appliance.text.jinja.standins import FIRST, holds
from appliance.text.template import ChatTemplate
from tests.fuzz import bodies_fuzz, driver, standins_fuzz
from tests.fuzz.bodies_fuzz import put_back
from tests.fuzz.standins_fuzz import SOURCES
from tests.support import oblivious
from tests.support.chats import SPECIAL
from tests.support.extent import examples
from tests.support.step_traces import StepTracer
from tests.support.vocabularies import byte_level, sentencepiece, template_source

READER = BodyReader(oblivious.kernels())
GOLDENS = json.loads((Path(__file__).parents[1] / "goldens/template/renderings.json").read_text())["templates"]
TEXTS = ["a", "é", "中", "😀", 'say "x"', "back\\slash/", "tab\there", "  lead", "trail \n", "\x1fa\x1c",
         "line\nline\r\n", "\x7f\x80\x9f", "<|im_end|>", "\ufffd", "a" * 300, "\\u0041", "\\", '"', "e\u0301", "𝟙",
         "a\u2028b", " ", "\n\t", ""]
WORDS = ["so", "the", "a", "<think>", "</think>", "\n\n", "user", "[INST]", "<|im_end|>", "é😀", "{", '"x"', "\\n", " ",
         "assistant"]


def body_of(*texts: str, ascii_only: bool = False, **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text} for text in texts], **more},
                      ensure_ascii=ascii_only).encode()


def lifted(read: tuple[bytes, Contents] | None) -> Any:
    """A body's object, put together again."""
    assert read is not None
    return put_back(json.loads(read[0]), read[1])


@pytest.mark.parametrize("ascii_only", [False, True])
def test_texts_are_those_of_json(ascii_only: bool) -> None:
    """Escapes, characters of all lengths and white space come as Python reads them, and no text stays in the body."""
    drawn = [f"x{text}x" for nbytes in (1, 5, 40, 300) for text in oblivious.drawn_texts(60, nbytes, seed=nbytes)]
    for text in [*TEXTS, *drawn]:
        body = body_of(text, "other", ascii_only=ascii_only)
        read = READER.read(body)
        assert lifted(read) == json.loads(body)
        assert read is not None
        assert len(read[1]) == 1 + bool(text.strip())
        assert all(bytes(read[1].bytes_of(number)).decode().strip() for number in range(len(read[1])))
        assert text not in json.loads(read[0])["messages"][0]["content"] or not text.strip()


@given(st.binary(max_size=40).map(lambda data: data.replace(b'"', b"'")) | st.text(
    alphabet=st.sampled_from('\\\\\\uuudD89cCeEfF0aéz/ntb'), max_size=24).map(lambda text: text.encode()))
def test_faulty_strings(inner: bytes) -> None:
    """A string that Python does not take is not taken, and any other one is the same."""
    body = b'{"prompt": "' + inner + b'"}'
    try:
        wanted = json.loads(body.decode())
        wanted["prompt"].encode()
    except (ValueError, KeyError):
        wanted = None
    read = READER.read(body)
    if read is not None:
        assert wanted is not None
        assert lifted(read) == wanted
    elif wanted is not None:
        blank = not wanted["prompt"].strip()
        assert blank or wanted["prompt"].strip() != wanted["prompt"].strip(" \t\n\v\f\r\x1c\x1d\x1e\x1f") or holds(
            wanted["prompt"])


def test_what_are_texts() -> None:
    """Texts are those of messages, prompts and instructions. Names, tools, schemas and arguments are not."""
    document = {
        "model": "content", "messages": [
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": "three", "reasoning_content": "four", "tool_calls": [
                {"id": "i", "function": {"name": "content", "arguments": '{"text": "no"}'}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i", "content": "five"},
                                         {"type": "tool_use", "input": {"content": "no"}}]}],
        "tools": [{"function": {"name": "text", "parameters": {"default": {"content": "no"}}}}],
        "response_format": {"json_schema": {"schema": {"messages": {"content": "no"}}}},
        "system": [{"type": "text", "text": "six"}], "prompt": ["seven", "eight"], "stop": ["no"],
        "instructions": "nine", "input": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "ten"}]},
            {"type": "function_call", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "i", "output": "eleven"}]}
    read = READER.read(json.dumps(document).encode())
    assert lifted(read) == document
    assert read is not None
    assert [str(read[1].bytes_of(number), "utf-8") for number in range(len(read[1]))] == [
        "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]


@pytest.mark.parametrize("body", [
    b"", b"{", b'{"prompt": 3}', b'["prompt", "a"]', b'"prompt"', b'{"prompt": "a', b']]}"',
    b'{"prompt": "a", "user": "\xee\x80\x80"}',
    b'{"prompt": "a", "user": "\\uE001"}', b'{"prompt": "\\u3000a"}', '{"prompt": "a\u00a0"}'.encode()])
def test_bodies_that_python_reads(body: bytes) -> None:
    """Bodies without texts, or with characters that are stand-ins, are left to Python."""
    assert READER.read(body) is None


def asked(body: bytes, template: ChatTemplate | None, stand_ins: Contents | None, kind: Any = wire.ChatRequest) -> Any:
    """The tokens of a request, or its refusal; whether texts were needed."""
    request = wire.parse(body, kind)
    taken = prompts.take_turns(request)
    try:
        made = prompts.encode(request, taken, template, oblivious.both()[1 if stand_ins else 0], (), 4000, exact=True,
                              stand_ins=stand_ins)
    except (RequestError, ApplianceError) as error:
        return type(error), str(error)
    return [(each.tokens, each.opened) for each in made]


def chats(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Chats of words that templates look for, among others."""
    found = []
    for _ in range(count):
        turns = [{"role": "system", "content": said(rng)}] * rng.randrange(2)
        for number in range(rng.randrange(1, 5)):
            turns.append({"role": ("user", "assistant")[number % 2], "content": said(rng)})
        if turns[-1]["role"] == "assistant" and rng.random() < 0.5:
            turns.append({"role": "user", "content": said(rng)})
        going_on = {"continue_final_message": True} if turns[-1]["role"] == "assistant" else {}
        found.append({"model": "m", "messages": turns, **going_on})
    return found


def said(rng: random.Random) -> str:
    return "".join(rng.choice(WORDS) for _ in range(rng.randrange(7)))


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDENS)
def test_prompts_are_the_same(name: str) -> None:
    """Templates of many models make the prompts that they make of the texts themselves."""
    template = ChatTemplate(template_source(name), SPECIAL)
    for document in chats(random.Random(name), examples(12, 40)):
        body = json.dumps(document).encode()
        wanted, read = asked(body, template, None), READER.read(body)
        if read is not None:
            assert asked(read[0], template, read[1]) == wanted, document


@pytest.mark.parametrize("source", SOURCES)
def test_what_reads_a_text(source: str) -> None:
    """Whatever a template asks about a text, the prompt is that of the text."""
    try:
        template = ChatTemplate(source + "{{ messages[0].content }}", SPECIAL)
    except ApplianceError:
        return
    for text in ("abc", "a", "x{0}y", "12", "d e", " abc\n", "Abc abc", "y"):
        body = body_of(text)
        read = READER.read(body)
        assert read is not None
        assert asked(read[0], template, read[1]) == asked(body, template, None), text


def test_usual_templates_read_no_text() -> None:
    """For chats in usual words, two templates at most need a text."""
    rng, needed = random.Random(5), 0
    for name in GOLDENS:
        template = ChatTemplate(template_source(name), SPECIAL)
        text = [" ".join(rng.choice(("so", "the", "house", "Is", "red?")) for _ in range(9)) for _ in range(3)]
        body = json.dumps({"model": "m", "messages": [
            {"role": role, "content": each} for role, each in zip(("user", "assistant", "user"), text, strict=True)]})
        read = READER.read(body.encode())
        assert read is not None
        read[1].lift = lambda text: pytest.fail("a text was needed") if holds(text) else text  # type: ignore[method-assign]
        try:
            asked(read[0], template, read[1])
        except BaseException:  # noqa: BLE001 - of pytest
            needed += 1
    assert needed <= 2


@pytest.mark.slow
def test_strings_of_one_length_have_the_same_steps(tmp_path: Path) -> None:
    """No jump of the compiled code depends on what a string says, and no line of memory that it names."""
    raws = [b"x" * 36, b" \\n\\u00e9" * 3 + b'\\"\\\\\\/xxx', "é中😀 ".encode() * 2 + b"\\ud83d\\ude00xxxx",
            b"a\\" + b"\xff" * 34]
    begin = b'{"prompt": "'
    for kernel, start, count in (("quote_places", 0, 63), ("read_string", len(begin), 36)):
        tracer, traces = StepTracer(oblivious.kernels().address(kernel), tmp_path), set()
        run = oblivious.kernels().function(kernel)
        for raw in raws:
            body = begin + raw + b'", "stop": "x"}'
            READER.read(body)
            (room,) = (each for size, each in READER._rooms.items() if size == 512)
            room.text.view[:len(body)] = body
            room.set(TEXT=room.text.address + start, COUNT=count, LENGTH=64)
            run(room.call.address)
            with tracer.tracing():
                run(room.call.address)
            traces.add(tracer.trace)
            room.wipe()
        assert len(traces) == 1, kernel


SCORES = {"\u2581": -1.0, "t": -9.0, "h": -8.0, "e": -7.0, "th": -3.0, "the": -2.0, "\u2581the": -1.5, "é": -6.0}


@pytest.mark.parametrize("kinds", [byte_level(oblivious.small_merges()), sentencepiece(SCORES)], ids=("bytes", "marks"))
def test_tokens_of_filled_texts(kinds: Any) -> None:
    """Whatever stands around them, texts become the tokens that they have in their places."""
    plain, swept = oblivious.forms(kinds)
    texts = ["the", "t", "éé the é", "<|im_end|>", "h" * 70]
    read = READER.read(body_of(*texts))
    assert read is not None
    rng, marks = random.Random(4), [chr(FIRST + number) for number in range(len(texts))]
    for _ in range(200):
        parts = [rng.choice(("the", " ", "é", "<|im_end|>", *marks)) for _ in range(rng.randrange(1, 9))]
        places = [(len("".join(parts[:number])), len("".join(parts[:number + 1]))) for number in range(len(parts))]
        spans = [place for place, part in zip(places, parts, strict=True) if part in marks or rng.random() < 0.2]
        whole, own = [read[1].lift(part) for part in parts], []
        for place, part in zip(places, parts, strict=True):
            start = len(read[1].lift("".join(parts)[:place[0]]))
            own += [(start, start + len(read[1].lift(part)))] if place in spans else []
        wanted = plain.encode("".join(whole), parse_special=True, untrusted=own)
        assert wanted == swept.encode("".join(parts), parse_special=True, untrusted=spans, stand_ins=read[1])


def test_deep_bodies_take_linear_time() -> None:
    """Strings in many lists are found in the time that strings in one list take."""
    flat, deep = (b'{"messages": ' + b"[" * depth + b'"a",' * 20_000 for depth in (1, 20_000))
    seconds = []
    for body in (flat, deep):
        begun = time.process_time()
        list(texts_of(body, [place for place, byte in enumerate(body) if byte == 34]))
        seconds.append(time.process_time() - begun)
    assert seconds[1] < 4 * seconds[0] + 0.5


@pytest.mark.parametrize("target", [bodies_fuzz, standins_fuzz])
def test_by_fuzzing(target: Any) -> None:
    """Changed bodies mean the same both ways, and changed templates write the same."""
    count, finding = driver.run(target.fuzz, target.seeds(), seconds=2, seed=1, least=101)
    assert finding is None, (count, finding)


def test_a_list_that_holds_lists_many_times_over() -> None:
    """Whether it has a stand-in is found in the time that its lists take once."""
    value: list[Any] = ["a"]
    for _ in range(5000):
        value = [value, value]
    assert not holds(value)
    assert holds([value, chr(FIRST)])
