"""What every shape of an answer owes to the policy: padded sizes, paced events, rounded counts, redacted texts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.api.adapter import AnswerFacts
from appliance.api.answers import AnswerPart, CallPart, CompletionUsage
from appliance.api.anthropic import shape as anthropic
from appliance.api.anthropic.shape import MessageShape
from appliance.api.responses import shape as responses
from appliance.api.responses.shape import ResponseShape
from tests.service.test_service_responses import _post, model
from tests.service.test_service_tools import PRIVACY, SCHEMAS
from tests.support.server import Server, write_policy

__all__ = ["model"]
SIZE = 512
TOLD = AnswerFacts("req-1", "tiny", "fp", channels=True, padding=SIZE)
# 20 characters in each channel; and none
PARTS = {"content": AnswerPart(0, "x" * 20), "thoughts": AnswerPart(0, "", None, "x" * 20),
         "call": AnswerPart(0, "", calls=(CallPart(0, "call_1", "f", "x" * 19),)), "nothing": AnswerPart(0, "")}
SHAPES = [(ResponseShape, responses.FRAME, responses.WHOLE_FRAME),
          (MessageShape, anthropic.FRAME, anthropic.WHOLE_FRAME)]


def _bytes(part: AnswerPart) -> int:
    texts = (part.text, part.thoughts, *(each for call in part.calls for each in (call.name or "", call.arguments)))
    return sum(map(len, texts))


@pytest.mark.parametrize(("shape", "frame", "whole"), SHAPES, ids=["responses", "anthropic"])
def test_sizes_do_not_depend_on_the_channel(shape: type[ResponseShape | MessageShape], frame: int, whole: int) -> None:
    """Around the text, events, bodies and last events have as many bytes whatever the channel is."""
    events, bodies, lasts = set(), set(), set()
    for part in PARTS.values():
        made = shape(TOLD)
        made.opened(1)
        events.add(len(made.more([part])) - _bytes(part))
        lasts.add(len(made.ended({0: "length"}, CompletionUsage.of(3, 8))) % SIZE)
        body = b"".join(shape(TOLD).whole([part], {0: "stop"}, CompletionUsage.of(3, 8)))
        json.loads(body)
        members = len(PARTS["call"].calls[0].arguments) if part.calls and shape is MessageShape else 0  # no object: cut
        bodies.add(len(body) - _bytes(part) + members)
    assert (1, 1, 1) == (len(events), len(bodies), len(lasts))
    assert ({0}, {0}) == ({size % frame for size in events}, {size % whole for size in bodies})


@pytest.mark.parametrize("text", ["", "x", "x" * 20, "x" * 500])
def test_last_events_tell_no_finer_length(text: str) -> None:
    """The last events say a text four times over: its length is told in multiples all the same, by any channel."""
    sizes = set()
    for part in (AnswerPart(0, text), AnswerPart(0, "", None, text),
                 AnswerPart(0, "", calls=(CallPart(0, "c", "", text),)),
                 AnswerPart(0, text[:len(text) // 2], None, text[len(text) // 2:])):
        made = ResponseShape(TOLD)
        made.opened(1)
        made.more([part])
        sizes.add(len(made.ended({0: "stop"}, CompletionUsage.of(3, 8))))
    rounded = -(-len(text) // SIZE) * SIZE
    assert {0} == {(size - 4 * rounded) % responses.LAST_FRAME for size in sizes}
    assert 1 == len(sizes)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    """A server that pads, rounds and redacts."""
    policy = write_policy(tmp_path_factory.mktemp("strict"), {"tiny": model}, privacy=PRIVACY, schema=2,
                          limits="tokens_per_minute = 1000000")
    running = Server(policy, [model]).wait_ready()
    yield running
    running.stop()


TOOL: dict[str, Any] = {"name": "get_weather", "description": "x"}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/responses": {
        "input": "weather?", "max_output_tokens": 200, "tool_choice": "required", "parallel_tool_calls": False,
        "tools": [{**TOOL, "type": "function", "parameters": SCHEMAS["get_weather"]}]},
    "/v1/messages": {
        "messages": [{"role": "user", "content": "weather?"}], "max_tokens": 200,
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "tools": [{**TOOL, "input_schema": SCHEMAS["get_weather"]}]}}


@pytest.mark.parametrize("path", ASKED)
def test_arguments_are_redacted_and_counted(strict: Server, path: str) -> None:
    """Each match in a call's arguments is gone, counts are rounded, and a whole answer's size is padded."""
    answer = _post(strict, path, {"model": "tiny", **ASKED[path]})
    assert 0 == len(answer.content) % SIZE
    body = answer.json()
    call = (body.get("output") or body["content"])[-1]
    arguments = json.loads(call["arguments"]) if "arguments" in call else call["input"]
    assert ("*", 0) == (arguments["city"], body["usage"]["output_tokens"] % 16)
    assert 0 < body["usage"]["output_tokens"]


@pytest.mark.parametrize("path", ASKED)
def test_streams_leave_on_the_grid_in_padded_sizes(strict: Server, path: str) -> None:
    """One write at each multiple, of a multiple of 512 bytes."""
    times, sizes = [], []
    with strict.http() as http:
        http.get("/health")
        begun = time.monotonic()
        with http.stream("POST", path, json={"model": "tiny", **ASKED[path], "stream": True}) as answer:
            for data in answer.iter_raw():
                times.append(time.monotonic() - begun)
                sizes.append(len(data))
    assert [0] * len(sizes) == [size % SIZE for size in sizes]
    assert all(moment > 0.05 * place - 0.002 for place, moment in enumerate(times, 1))


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens"])
def test_counts_are_rounded(strict: Server, path: str) -> None:
    """A prompt's count is told as a usage's is, in an answer of a padded size."""
    body = {name: ASKED["/v1/messages"][name] for name in ("messages", "tools")}
    answer = _post(strict, path, {"model": "tiny", **body})
    assert (0, 0) == (answer.json()["input_tokens"] % 16, len(answer.content) % SIZE)
