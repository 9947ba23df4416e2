"""What waits for a client: packed on its way from the engine, and written as JSON piece by piece."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.engine.decode.generation import Step
from appliance.errors import EngineError
from appliance.service.answering.events import Collected, Piece
from appliance.service.answering.inbox import Arrived, Inbox, Logged, pack
from appliance.service.api.answers import ChatShape, Shape, TextShape, Usage

WORDS = [b"a", b'"', b"\n", b"\xf0\x9f", b"\x98\x80", "\u00e9".encode(), b"<|end|>", b" " * 40]


class Words:
    """A vocabulary of which one token is a control token."""

    def piece(self, token: int) -> bytes:
        """Its bytes."""
        return WORDS[token]

    def is_special(self, token: int) -> bool:
        """Whether it has no text."""
        return token == 6


def _step(token: int | None, text: str = "", *, top: int = 2, **more: Any) -> Step:
    if token is None:
        return Step(None, text, **more)
    return Step(token, text, logprob=-token / 3, top=tuple((each, -each / 7) for each in range(top)), **more)


async def _all(inbox: Inbox) -> list[Arrived]:
    found = [await inbox.get()]
    while found[-1].finish is None:
        found.append(await inbox.get())
    return found


def test_steps_arrive_in_order() -> None:
    """Each with its text, its finish reason, and whether it is a token of the answer; an error comes after all of them,
    also for who waits already."""
    steps = [_step(0, "a"), _step(3), _step(4, "\U0001f600"), _step(6, "", ended=True, finish_reason="stop")]

    async def scenario() -> list[Arrived]:
        inbox = Inbox()
        waiting = asyncio.ensure_future(_all(inbox))
        await asyncio.sleep(0)
        for step in steps[:2]:
            inbox.put(pack(step))
        await asyncio.sleep(0)
        for step in steps[2:]:
            inbox.put(pack(step))
        found = await waiting
        inbox.put(pack(_step(1, '"')))
        inbox.fail(EngineError("broken"))
        assert '"' == (await inbox.get()).text
        with pytest.raises(EngineError, match="broken"):
            await inbox.get()
        return found

    found = asyncio.run(scenario())
    assert [(step.text, step.finish_reason) for step in steps] == [(each.text, each.finish) for each in found]
    assert [True, True, True, False] == [each.counted for each in found]
    logged = [each.logged(Words()) for each in found]
    assert logged[3] is None
    assert [[(b"\xf0\x9f", -1.0, [-0.0, -1 / 7])]] == [
        [(bytes(entry.bytes), entry.logprob, [top.logprob for top in entry.top_logprobs]) for entry in each]
        for each in logged[1:2] if each is not None]


def test_what_waits_is_small() -> None:
    """Twenty alternatives of a token take 12 bytes each while they wait, and its text what it is long."""
    inbox, steps = Inbox(), 2000
    packed = pack(_step(1, "abc", top=7))
    tracemalloc.start()
    for _ in range(steps):
        inbox.put(bytes(packed))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 1.25 * steps * (12 * 8 + 3 + 16)


def _came() -> Iterator[Piece]:
    for token in (0, 1, 2, 3, 4, 5, 6, 7):
        packed = pack(_step(token, top=3))
        step = Logged(Words(), packed[-48:], 48)
        yield Piece("" if token in (3, 6) else "\U0001f600" if token == 4 else WORDS[token].decode(), step)


TEXT = 'a"\n\U0001f600\u00e9' + " " * 40 + '"content":[],"content":"","text":"" \u2028\x00' * 300


@pytest.mark.parametrize(("shape", "logged"), [(ChatShape, False), (ChatShape, True), (TextShape, False),
                                               (TextShape, True)])
def test_whole_bodies(shape: type[ChatShape | TextShape], logged: bool) -> None:
    """Part by part, and as often as it is asked for, a body says what it should, whatever its text is."""
    made, came = shape("req-1", "tiny", "fp", with_usage=False, created=5), Collected()
    for piece in _came():
        came.add(piece)
    came.add(Piece(TEXT[45:], None, "stop", Usage.of(3, 8)))
    text = came.take_text()
    assert TEXT == text
    bodies = [b"".join(made.whole(text, "stop", Usage.of(3, 8), came.logprobs if logged else None)) for _ in range(2)]
    assert bodies[0] == bodies[1]
    body = json.loads(bodies[0])
    assert {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11} == body["usage"]
    choice, chat = body["choices"][0], shape is ChatShape
    assert (TEXT, "stop") == (choice["message"]["content"] if chat else choice["text"], choice["finish_reason"])
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


@pytest.mark.parametrize("shape", [ChatShape, TextShape])
def test_large_events_are_cut(shape: type[Shape]) -> None:
    """However many log-probabilities wait for the next multiple of the grid, an event has some, never more than its
    part, and each once."""
    came = Collected()
    for _ in range(400):
        for piece in _came():
            came.add(piece)
    taken, sizes = [], []
    while not came.empty:
        piece = came.take()
        event = shape("req-1", "tiny", "fp", False).piece("", piece.logprobs)  # type: ignore[call-arg]
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
    packed = pack(Step(token, "", logprob=-1.2345678901234567e-05))[-12:] * 8000
    event = ChatShape("req-1", "tiny", "fp", False).piece("", Logged(Words(), packed, 12).take(256 << 10))
    assert len(json.loads(event)["choices"][0]["logprobs"]["content"]) > 400
    assert len(event) <= (256 << 10) + 512
