"""What waits for a client: packed on its way from the engine, and written as JSON piece by piece."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from appliance.api.answers import AnswerFacts, AnswerPart, CompletionUsage
from appliance.api.shapes import DONE, ChatShape, TextShape
from appliance.engine.decode.events import End, Event, Logprobs, PromptLogprobs, Text
from appliance.errors import EngineError
from appliance.service.admission.privacy import Pacer, Timing
from appliance.service.delivery.inbox import Batch, Inbox, pack
from appliance.service.delivery.outbox import Outbox, PackedLogprobs
from appliance.service.delivery.stream import AnswerStream

WORDS = [b"a", b'"', b"\n", b"\xf0\x9f", b"\x98\x80", "\u00e9".encode(), b"<|end|>", b" " * 40]

FACTS = AnswerFacts("req-1", "tiny", "fp")


class Words:
    """A vocabulary of which one token is a control token."""

    def piece(self, token: int) -> bytes:
        """Its bytes."""
        return WORDS[token]

    def is_special(self, token: int) -> bool:
        """Whether it has no text."""
        return token == 6


def _batch(token: int, text: str = "", *, top: int = 2, choice: int = 0) -> Batch:
    entries = [(token, -token / 3), *((each, -each / 7) for each in range(top))]
    return Text(choice, text, 1), Logprobs.of(choice, entries)


async def _all(inbox: Inbox) -> list[Event]:
    found = list(await inbox.get())
    while not isinstance(found[-1], End):
        found += await inbox.get()
    return found


def test_events_arrive_in_order() -> None:
    """As they were packed, each with its choice; an error comes after all of them, also for who waits already."""
    batches: list[Batch] = [_batch(0, "a"), _batch(3, choice=1), (Text(127, "\U0001f600", 1),),
                            (PromptLogprobs.of(2, [(7, -1.5), (8, -2.0)]),),
                            (Text(0, "", 0), End(0, "cancelled"))]

    async def scenario() -> list[Event]:
        inbox = Inbox()
        waiting = asyncio.ensure_future(_all(inbox))
        await asyncio.sleep(0)
        for batch in batches[:2]:
            inbox.put(pack(batch))
        await asyncio.sleep(0)
        for batch in batches[2:]:
            inbox.put(pack(batch))
        found = await waiting
        inbox.put(pack(_batch(1, '"')))
        inbox.fail(EngineError("broken"))
        assert _batch(1, '"') == await inbox.get()
        with pytest.raises(EngineError, match="broken"):
            await inbox.get()
        return found

    assert [event for batch in batches for event in batch] == asyncio.run(scenario())


def test_what_waits_is_small() -> None:
    """Twenty alternatives of a token take 12 bytes each while they wait, and its text what it is long."""
    inbox, tokens = Inbox(), 2000
    packed = pack(_batch(1, "abc", top=7))
    tracemalloc.start()
    for _ in range(tokens):
        inbox.put(bytes(packed))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 1.25 * tokens * (12 * 8 + 3 + 16)


def _answer(choice: int = 0) -> Iterator[Batch]:
    for token in range(8):
        yield _batch(token, "" if token in (3, 6) else "\U0001f600" if token == 4 else WORDS[token].decode(), top=3,
                     choice=choice)


TEXT = 'a"\n\U0001f600\u00e9' + " " * 40 + '"content":[],"content":"","text":"" \u2028\x00' * 300


def _check(choice: dict[str, Any], text: str, finish: str, chat: bool, logged: bool) -> None:
    assert (text, finish) == (choice["message"]["content"] if chat else choice["text"], choice["finish_reason"])
    if not logged:
        assert choice["logprobs"] is None
    elif chat:
        entries = choice["logprobs"]["content"]
        assert [list(b"" if token == 6 else WORDS[token]) for token in range(8)] == [each["bytes"] for each in entries]
        assert [-token / 3 for token in range(8)] == [each["logprob"] for each in entries]
        assert [["a", '"', "\n"]] * 8 == [[top["token"] for top in each["top_logprobs"]] for each in entries]
    else:
        found = choice["logprobs"]
        assert ["a", '"', "\n", r"bytes:\xf0\x9f", r"bytes:\x98\x80", "\u00e9", "<|end|>", " " * 40] == found["tokens"]
        assert [0, 1, 2, 3, 3, 4, 5, 5] == found["text_offset"]
        assert [-token / 3 for token in range(8)] == found["token_logprobs"]
        assert [{"a": 0.0, '"': -1 / 7, "\n": -2 / 7}] * 8 == found["top_logprobs"]


@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize(("shape", "logged"), [(ChatShape, False), (ChatShape, True), (TextShape, False),
                                               (TextShape, True)])
def test_whole_bodies(shape: type[ChatShape | TextShape], logged: bool, choices: int) -> None:
    """Part by part, and as often as it is asked for, a body says what it should of each choice, whatever its text."""
    made, outbox = shape(FACTS, with_usage=False, created=5), Outbox(Words(), choices)
    for batches in zip(*map(_answer, range(choices)), strict=True):
        for batch in batches:
            outbox.add(event for event in batch if logged or not isinstance(event, Logprobs))
    for choice in reversed(range(choices)):
        outbox.add((Text(choice, TEXT[45:], 0), End(choice, "length" if choice == 1 else "cancelled")))
    parts = outbox.take()
    assert outbox.empty
    assert [TEXT] * choices == [part.text for part in parts]
    bodies = [b"".join(made.whole(parts, outbox.ends, CompletionUsage.of(3, 8))) for _ in range(2)]
    assert bodies[0] == bodies[1]
    body = json.loads(bodies[0])
    assert {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11} == body["usage"]
    assert list(range(choices)) == [choice["index"] for choice in body["choices"]]
    for choice in body["choices"]:
        _check(choice, TEXT, "length" if choice["index"] == 1 else "stop", shape is ChatShape, logged)


@pytest.mark.parametrize("timing", [Timing(), Timing(first_token=0.01, total=0.03)])
@pytest.mark.parametrize("shape", [ChatShape, TextShape])
def test_streams_of_several_choices(shape: type[ChatShape | TextShape], timing: Timing) -> None:
    """Each choice's events have its index, its text in order and one reason for its end; the usage is told once."""
    async def batches() -> AsyncIterator[Batch]:
        for both in zip(_answer(0), _answer(1), strict=True):
            for batch in both:
                yield batch
        yield (End(1, "length"),)
        await asyncio.sleep(0.02)
        yield (Text(0, "!", 1), End(0, "stop"))

    async def events() -> list[bytes]:
        made, pacer = shape(FACTS, with_usage=True), Pacer(timing, asyncio.get_running_loop().time())
        return [data async for data in AnswerStream(
            made, batches(), Outbox(Words(), 2), pacer, lambda: CompletionUsage.of(3, 17)).events()]

    written = b"".join(asyncio.run(events()))
    assert written.endswith(DONE)
    told = [json.loads(line[6:]) for line in written.decode().split("\n") if line.startswith("data: {")]
    assert [17] == [each["usage"]["completion_tokens"] for each in told if each["usage"]]
    choices = [choice for each in told for choice in each["choices"]]
    for index, more, finish in ((0, "!", "stop"), (1, "", "length")):
        own = [choice for choice in choices if choice["index"] == index]
        text = "".join(each["delta"].get("content", "") if shape is ChatShape else each["text"] for each in own)
        assert TEXT[:45] + more == text
        assert [finish] == [each["finish_reason"] for each in own if each["finish_reason"]]
        entries = [each["logprobs"] for each in own if each["logprobs"]]
        assert 8 == sum(len(each["content"] if shape is ChatShape else each["tokens"]) for each in entries)
        if shape is TextShape:
            assert [0, 1, 2, 3, 3, 4, 5, 5] == [at for each in entries for at in each["text_offset"]]


@pytest.mark.parametrize("shape", [ChatShape, TextShape])
def test_large_events_are_cut(shape: type[ChatShape | TextShape]) -> None:
    """However many log-probabilities wait for the next multiple of the grid, an event has some, never more than its
    part, and each once."""
    outbox = Outbox(Words())
    for _ in range(400):
        for batch in _answer():
            outbox.add(batch)
    taken, sizes = [], []
    while not outbox.empty:
        [part] = outbox.take(256 << 10)
        event = shape(FACTS, with_usage=False).part(AnswerPart(0, "", part.logprobs))
        sizes.append(len(event))
        logprobs = json.loads(event)["choices"][0]["logprobs"]
        taken += [each["token"] for each in logprobs["content"]] if shape is ChatShape else logprobs["tokens"]
    assert 3200 == len(taken)
    assert taken[:8] * 400 == taken
    assert len(sizes) > 1
    assert max(sizes) <= (256 << 10) + 4096


@pytest.mark.parametrize("token", range(len(WORDS)))
def test_events_of_tokens_without_alternatives(token: int) -> None:
    """What a token takes beside its alternatives counts, and that a log-probability may have 23 characters."""
    packed = Logprobs.of(0, [(token, -1.2345678901234567e-05)]).packed * 8000
    part = AnswerPart(0, "", PackedLogprobs(Words(), packed, 12).take(256 << 10))
    event = ChatShape(FACTS, with_usage=False).part(part)
    assert len(json.loads(event)["choices"][0]["logprobs"]["content"]) > 400
    assert len(event) <= (256 << 10) + 512
