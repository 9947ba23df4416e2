"""Fuzz target: any bytes as the body of a request. A refusal tells a place inside of the body, or a
request comes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from appliance.api.adapters.table import ADAPTERS
from appliance.api.problems import RequestError
from appliance.api.wire import ChatRequest, CompletionRequest, parse
from appliance.api.wishes.ignored import Ignored
from appliance.service.admission.prompts import take_turns

CLIENTS = Path(__file__).parents[1] / "clients"
HISTORIES = json.loads((CLIENTS / "histories.json").read_text())
RECORDED = [body for path in sorted((CLIENTS / "recorded").glob("*.json"))
            for body in json.loads(path.read_text())["bodies"]]
HEADER = re.compile(r"[!-~]++(?: [!-~]++)*+")
PLACE = re.compile(r"at line (\d+), column (\d+) \(byte (\d+)\)$")
DROP = ("user", "messages.name", "messages.reasoning_content", "repeat_penalty", "metadata.id")

TURN = {"role": "user", "content": "hi"}
BODIES: list[dict[str, Any]] = [
    {"messages": [TURN, answer, TURN], "n_predict": 7, "stop": "", "top_k": -1} for answer in HISTORIES.values()]
BODIES += [
    {"messages": [TURN], "repetition_penalty": 1.1, "logit_bias": {"5": 1.5}, "seed": 1.0, "logprobs": True},
    {"prompt": [[1, 2, 3]], "logprobs": 2, "max_tokens": -1, "samplers": ["top_k"], "mirostat_tau": 5.0},
    {"prompt": "a\ud7ff\U0001f600\n", "stream": True, "stream_options": {"include_usage": True}, "echo": False}]
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"enum": [1, None]}}}}
TOOL = {"type": "function", "function": FUNCTION}
CALLED = [{"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {
    "name": "f", "arguments": '{"a":1}'}}]}, {"role": "tool", "tool_call_id": "c", "content": "r"}]
BODIES += [
    {"messages": [TURN, *CALLED], "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False},
    {"messages": [TURN], "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    {"messages": [TURN, {"role": "function", "name": "f", "content": "r"}], "functions": [FUNCTION],
     "function_call": {"name": "f"}, "reasoning_effort": "low", "reasoning_budget": -1},
    {"messages": [TURN], "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}},
    {"prompt": "x", "structured_outputs": {"choice": ["a", "b"]}}, {"prompt": "x", "guided_json": '{"a": 1}'}]
FRAGMENTS = [
    b'{"a":"\\ud83d\\ude00\\\\ud800"}', b'{"a":"\\ud800"}', b'{"a":NaN,"b":-Infinity}', b'{"a":1,"a":2}', b'{"a":[1,]}',
    b'{"a":' + b"9" * 5000 + b"}", b"[" * 3000, b"\xef\xbb\xbf{}", b'{"a":"\xed\xa0\x80"}', b"{'a':None}",
    b'{"a":1e999}']


def seeds() -> list[bytes]:
    """Return requests of many clients, in two spellings, and pieces of JSON."""
    texts = [json.dumps({"model": "m", **body}, ensure_ascii=plain)
             for body in (*BODIES, *RECORDED) for plain in (True, False)]
    return [text.encode() for text in texts] + FRAGMENTS


def fuzz(data: bytes) -> None:
    """Read one body as both kinds of request, and as each API's; what has no effect there makes one line of a header.
    """
    for row in ADAPTERS:
        ignored = Ignored()
        try:
            row.read(data, DROP, ignored)
        except RequestError as error:
            _check(data, error)
        for text in ignored.headers().values():
            if len(text) > 2100 or HEADER.fullmatch(text) is None:
                raise AssertionError("not a header")
    for kind in (ChatRequest, CompletionRequest):
        try:
            request = parse(data, kind, drop=DROP)
        except RequestError as error:
            _check(data, error)
            continue
        json.loads(take_turns(request) or b"[]")
        _ = request.structure
        if request.repeat_penalty is not None:
            raise AssertionError("a field that is dropped came through")


def _check(data: bytes, error: RequestError) -> None:
    body = json.loads(error.body())["error"]
    if error.status != 400 or len(body["message"]) > 1000:
        raise AssertionError(f"a refusal of another kind: {body}")
    place = PLACE.search(error.summary)
    if place is None:
        return
    line, column, byte = map(int, place.groups())
    if not (1 <= line <= data.count(b"\n") + 1 and column >= 1 and byte <= len(data)):
        raise AssertionError(f"a place outside of the body: {error.summary}")
    before = data[:byte].decode("utf-8")
    if (line, column) != (before.count("\n") + 1, len(before) - before.rfind("\n")):
        raise AssertionError(f"line and column are not those of the byte: {error.summary}")
