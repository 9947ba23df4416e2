"""Content, thoughts and calls on their way to the wire: each redacted as one text, written in OpenAI's form."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from appliance.api.answers import AnswerFacts, CompletionUsage
from appliance.api.shapes import FRAME, WHOLE_FRAME, ChatShape
from appliance.engine.decode.events import End, Reason, Text
from appliance.service.admission.privacy import Pacer, Timing, pad_event
from appliance.service.admission.redaction import Substitution, redact
from appliance.service.delivery.channels import Channels, Leaving, Outgoing
from appliance.service.delivery.outbox import Outbox
from appliance.service.delivery.stream import AnswerStream
from appliance.text.calls import readers
from appliance.text.calls.reading.pieces import PieceReader, ToolSpec
from appliance.text.template import ChatTemplate

SOURCE = "{{ messages[0].content }}{# <think> </think> <tool_call> </tool_call> #}"
TEMPLATE = ChatTemplate(SOURCE, {})
TOOLS = [ToolSpec("f", parameters={"type": "object"}), ToolSpec("g", parameters={"type": "object"})]
RULES = (Substitution.compile("ssn", r"\d{3}-\d{2}-\d{4}", "[ssn]"), Substitution.compile("name", r"Alice", "A"))


class Words:
    """A vocabulary that nobody asks."""

    def piece(self, token: int) -> bytes:
        """No bytes."""
        return b""

    def is_special(self, token: int) -> bool:
        """No control token."""
        return False


def _call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


F, G = '{"who": "Alice 123-45-6789", "n": 1}', '{"deep": {"a": ["\\u00e9\\n", "é"]}}'
ANSWER = f"<think>Alice has 123-45-6789.</think>Let me ask Alice: 123-45-6789\n{_call('f', F)}\n{_call('g', G)}"


def _reader() -> PieceReader:
    return readers.reader_of(TEMPLATE, TOOLS, False)


async def _events(parts: Sequence[str], rules: Sequence[Substitution] = (),
                  reason: Reason = "stop") -> AsyncIterator[Leaving]:
    channels = Channels(0, rules, _reader())
    for part in parts:
        yield tuple(await channels.push(part))
    yield (*await channels.finish(), End(0, reason))


def _cut(text: str, seed: int) -> list[str]:
    draw, parts = random.Random(seed), []
    while text:
        count = draw.choice((1, 1, 2, 3, 7, 40))
        parts.append(text[:count])
        text = text[count:]
    return parts


def _collected(parts: Sequence[str], rules: Sequence[Substitution] = (), reason: Reason = "stop") -> Outbox:
    outbox = Outbox(Words())

    async def run() -> None:
        async for batch in _events(parts, rules, reason):
            outbox.add(batch)

    asyncio.run(run())
    return outbox


def _whole(outbox: Outbox, **more: Any) -> dict[str, Any]:
    shape = ChatShape(AnswerFacts("req-1", "tiny", "fp", channels=True, **more), with_usage=False, created=5)
    body: dict[str, Any] = json.loads(b"".join(shape.whole(outbox.take(), outbox.ends, CompletionUsage.of(3, 8))))
    return body


def _added(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the deltas of a choice add up to, as clients add them."""
    message: dict[str, Any] = {"content": None, "reasoning_content": "", "calls": {}, "finish": None}
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            if delta.get("content"):
                message["content"] = (message["content"] or "") + delta["content"]
            message["reasoning_content"] += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", []):
                if call["index"] not in message["calls"]:
                    assert ("function", str) == (call["type"], type(call["function"]["name"]))
                    message["calls"][call["index"]] = {"id": call["id"], **call["function"]}
                else:
                    assert {"index", "function"} == call.keys()
                    assert {"arguments"} == call["function"].keys()
                    message["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
            message["finish"] = choice["finish_reason"] or message["finish"]
    return message


def _streamed(parts: Sequence[str], rules: Sequence[Substitution] = (), timing: Timing | None = None,
              **more: Any) -> list[dict[str, Any]]:
    async def written() -> list[bytes]:
        shape = ChatShape(AnswerFacts("req-1", "tiny", "fp", channels=True, **more), with_usage=False)
        pacer = Pacer(timing or Timing(), asyncio.get_running_loop().time())
        outbox = Outbox(Words(), called="function_call" if more.get("older") else "tool_calls")
        stream = AnswerStream(shape, _events(parts, rules), outbox, pacer)
        return [data async for data in stream.events()]

    text = b"".join(asyncio.run(written())).decode()
    return [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]


@pytest.mark.parametrize("rules", [(), RULES], ids=["plain", "redacted"])
def test_whole_answers_have_calls_and_thoughts(rules: Sequence[Substitution]) -> None:
    """Content, thoughts, names and arguments come out as the model wrote them, or as they are redacted."""
    [choice] = _whole(_collected(_cut(ANSWER, 1), rules))["choices"]
    message = choice["message"]
    assert redact(rules, "Let me ask Alice: 123-45-6789") == message["content"]
    assert redact(rules, "Alice has 123-45-6789.") == message["reasoning_content"]
    assert [("f", redact(rules, F)), ("g", redact(rules, G))] == [
        (call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    assert ["function", "function"] == [call["type"] for call in message["tool_calls"]]
    assert 2 == len({call["id"] for call in message["tool_calls"] if re.fullmatch("call_[0-9a-zA-Z]{24}", call["id"])})
    assert "tool_calls" == choice["finish_reason"]


@pytest.mark.parametrize("rules", [(), RULES], ids=["plain", "redacted"])
@pytest.mark.parametrize("timing", [Timing(), Timing(first_token=0.005, total=0.01)], ids=["unpaced", "paced"])
@pytest.mark.parametrize("seed", range(3))
def test_streams_add_up_to_the_whole(seed: int, timing: Timing, rules: Sequence[Substitution]) -> None:
    """However text is cut, a client that adds deltas has what the whole answer says."""
    [choice] = _whole(_collected([ANSWER], rules))["choices"]
    added = _added(_streamed(_cut(ANSWER, seed), rules, timing))
    assert (choice["message"]["content"], choice["message"]["reasoning_content"], "tool_calls") == (
        added["content"], added["reasoning_content"], added["finish"])
    assert [call["function"] for call in choice["message"]["tool_calls"]] == [
        {"name": call["name"], "arguments": call["arguments"]} for call in added["calls"].values()]
    assert [0, 1] == list(added["calls"])


def test_a_call_begins_before_its_arguments() -> None:
    """Where nothing holds text back, its name leaves first, with no arguments yet, and these as they come."""
    deltas = [choice["delta"] for event in _streamed(list(ANSWER)) for choice in event["choices"]]
    first, *more = [call for delta in deltas for call in delta.get("tool_calls", []) if call["index"] == 0]
    assert {"name": "f", "arguments": ""} == first["function"]
    assert len(more) > len(F) / 2
    assert {"role": "assistant", "content": None} == deltas[0]


def test_an_answer_of_calls_alone_has_no_content() -> None:
    """Its content is null, and an answer without calls ends as it always did."""
    [choice] = _whole(_collected([_call("g", G)]))["choices"]
    assert (None, "tool_calls") == (choice["message"]["content"], choice["finish_reason"])
    assert {"role", "content", "refusal", "tool_calls"} == choice["message"].keys()
    [choice] = _whole(_collected(["hello"]))["choices"]
    assert ("hello", "stop") == (choice["message"]["content"], choice["finish_reason"])
    assert {"role", "content", "refusal"} == choice["message"].keys()
    [choice] = _whole(_collected(["<think>"]))["choices"]
    assert ("", {"role", "content", "refusal"}) == (choice["message"]["content"], choice["message"].keys())


def test_an_answer_that_is_cut_says_so() -> None:
    """A call that `max_tokens` ends is told as far as it came, and the reason is the length."""
    [choice] = _whole(_collected([ANSWER[:-40]], reason="length"))["choices"]
    assert "length" == choice["finish_reason"]
    assert ["f", "g"] == [call["function"]["name"] for call in choice["message"]["tool_calls"]]
    assert G.startswith(choice["message"]["tool_calls"][1]["function"]["arguments"])


def test_the_older_form() -> None:
    """The first call is the message's `function_call`, which has no id; the reason is its own."""
    outbox = Outbox(Words(), called="function_call")

    async def run() -> None:
        async for batch in _events([ANSWER]):
            outbox.add(batch)

    asyncio.run(run())
    [choice] = _whole(outbox, older=True)["choices"]
    assert ({"name": "f", "arguments": F}, "function_call") == (choice["message"]["function_call"],
                                                               choice["finish_reason"])
    assert "tool_calls" not in choice["message"]
    deltas = [choice["delta"].get("function_call", {}) for event in _streamed(_cut(ANSWER, 5), older=True)
              for choice in event["choices"]]
    assert ("f", F) == ("".join(each.get("name", "") for each in deltas),
                        "".join(each.get("arguments", "") for each in deltas))


def test_redaction_never_lets_a_match_pass() -> None:
    """A match that is cut in any way is held back until it is certain, in each channel; the rest of a call leaves
    with the call."""
    events: list[Outgoing] = []

    async def run() -> None:
        async for batch in _events(list(ANSWER), RULES):
            events.extend(batch)
            assert not re.search(r"\d{3}-\d{2}-\d", " ".join(getattr(event, "text", "") for event in batch))

    asyncio.run(run())
    kinds = [type(event).__name__ for event in events if getattr(event, "text", "x")]
    assert kinds.index("CallStart") < kinds.index("ArgumentText")
    last_of_f = max(place for place, event in enumerate(events) if getattr(event, "index", None) == 0)
    assert last_of_f < next(place for place, event in enumerate(events) if getattr(event, "index", None) == 1)


# A text of 20 characters in each channel; and none
CHANNELS = {"content": "x" * 20, "thoughts": f"<think>{'x' * 20}", "nothing": "",
            "arguments": '<tool_call>\n{"name": "f", "arguments": {"x": "' + "x" * 14}


@pytest.mark.parametrize("size", [256, 512, 4096])
def test_sizes_do_not_depend_on_the_channel(size: int) -> None:
    """With padded sizes, an event has as many bytes whatever the channel of its text is, and so has the body."""
    shape = ChatShape(AnswerFacts("req-1", "tiny", "fp", channels=True, padding=size), with_usage=False, created=5)
    events, bodies = set(), set()
    for name, text in CHANNELS.items():
        [part] = _collected([text], reason="length").take()
        assert ("content" == name, "thoughts" == name, "arguments" == name) == (
            bool(part.text), bool(part.thoughts), bool(part.calls))
        event = shape.part(part)
        json.loads(event)
        events.add(len(event) - _text_bytes(part))
        body = b"".join(shape.whole([part], {0: "stop"}, CompletionUsage.of(3, 8)))
        bodies.add(len(body) - _text_bytes(part))
        assert 0 == len(pad_event(event, size)) % size
    assert ([1, 1], True) == ([len(events), len(bodies)], max(events) < 3 * FRAME and max(bodies) < 2 * WHOLE_FRAME)
    assert 1 == len({len(shape.closing(0, reason)) for reason in ("stop", "length", "tool_calls", "function_call")})


def _text_bytes(part: Any) -> int:
    texts = [part.text, part.thoughts, *(each for call in part.calls for each in (call.name or "", call.arguments))]
    return sum(len(json.dumps(text)) - 2 for text in texts)


def test_without_a_reader_all_text_is_content() -> None:
    """A request without tools, for a model without thoughts, gets what the model wrote."""
    async def run() -> list[Outgoing]:
        channels = Channels(0, (), None)
        return [*await channels.push(ANSWER), *await channels.finish()]

    assert [Text(0, ANSWER, 0)] == asyncio.run(run())
