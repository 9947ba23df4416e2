"""Answers of one length class over TLS, by the records on the wire: which kind of answer it was does not show.

The server's privacy is that of a strict policy with small grids. A busy machine can be late for a head, and then one
parcel fewer leaves: times are tested by a clock of their own in `delivery/test_service_parcels`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from appliance.auditor import receipts
from appliance.auditor.receipts import ReceiptDemands
from appliance.http.windows import Windows
from appliance.policy import load
from tests.support import talking_models, tap
from tests.support.server import KEY, Server, write_policy
from tests.support.tap import Seen

CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
TEMPLATE = ("{% for message in messages %}[{{ message.role }}]{{ message.content or '' }}{% endfor %}{% if tools %}"
            "{{ tools | tojson }}{% endif %}[assistant]{# <think> </think> <tool_call> </tool_call> #}")
SAYS = {"plain": "It is as you say.", "thinker": "<think>So?</think>Yes."}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}, "required": ["city"],
          "additionalProperties": False}
PARCEL, HEAD, BEATS, END = 4096, 2048, 10, 5
LISTENER = ('listen "api" {\n kind = "ra-tls"\n port = 8443\n names = ["localhost"]\n}\n'
            'listen "plain" {\n kind = "tcp"\n port = 8080\n}')
PRIVACY = ('timing_padding {\n first_token = "300ms"\n total = "3s"\n cadence = "150ms"\n}\nsize_padding = "4KiB"\n')
LIMITS = "requests_per_minute = 1000\ntokens_per_minute = 1000000\nconcurrent_requests = 4\nprompt_tokens = 256"
ATTEMPTS = 12  # one of which must find the machine not busy


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose models say one text each."""
    folder = tmp_path_factory.mktemp("classes")
    files = {name: folder / f"{name}.gguf" for name in SAYS}
    for name, text in SAYS.items():
        files[name].write_bytes(talking_models.model(text, TEMPLATE))
    policy = write_policy(folder, files, schema=2, listeners=LISTENER, privacy=PRIVACY,
                          limits=LIMITS, audit="receipts = true", model="context_length = 512")
    running = Server(policy, list(files.values())).wait_ready()
    yield running
    running.stop()


def _body(path: str, model: str, **more: Any) -> dict[str, Any]:
    if path == TEXT:
        return {"model": model, "prompt": "so?", "max_tokens": 10, "temperature": 0, **more}
    if path == RESPONSES:
        return {"model": model, "input": "so?", "max_output_tokens": 10, "temperature": 0, **more}
    return {"model": model, "messages": [{"role": "user", "content": "so?"}], "max_tokens": 10, "temperature": 0,
            **more}


def _tools(path: str) -> dict[str, Any]:
    """A call that the request forces."""
    if path == CHAT:
        return {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
                "tool_choice": "required"}
    if path == RESPONSES:
        return {"tools": [{"type": "function", "name": "f", "parameters": SCHEMA}], "tool_choice": "required"}
    return {"tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}}


def _structure(path: str) -> dict[str, Any]:
    named = {"name": "s", "schema": SCHEMA, "strict": True}
    if path == CHAT:
        return {"response_format": {"type": "json_schema", "json_schema": named}}
    return {"text": {"format": {"type": "json_schema", **named}}}


def _kinds(path: str) -> dict[str, tuple[int, dict[str, Any]]]:
    """Requests of each kind, with the status of their answer."""
    most = "max_output_tokens" if path == RESPONSES else "max_tokens"
    asked = {TEXT: "prompt", RESPONSES: "input"}.get(path)
    much = {"messages": [{"role": "user", "content": "so? " * 999}]} if asked is None else {asked: "so? " * 999}
    kinds = {"short": (200, _body(path, "plain", **{most: 2})), "long": (200, _body(path, "plain")),
             "no such model": (404, _body(path, "none")), "not valid": (400, _body(path, "plain", temperature=-1)),
             "too long": (400, _body(path, "plain", **much))}
    if path != TEXT:
        kinds |= {"thoughts": (200, _body(path, "thinker")), "call": (200, _body(path, "plain", **_tools(path)))}
    if path in (CHAT, RESPONSES):
        kinds |= {"structure": (200, _body(path, "plain", **_structure(path)))}
    return kinds


def _ask(server: Server, path: str, body: Any, key: str = KEY, **headers: str) -> Seen:
    return tap.post(server.url, path, body, authorization=f"Bearer {key}", **headers)


def _stream(server: Server, path: str, body: Any, **headers: str) -> Seen:
    """A stream of one class, whatever it is of: whether it came to its head in time is up to the machine."""
    for _ in range(ATTEMPTS):
        seen = _ask(server, path, body, **headers)
        head, *middle, end = seen.records
        assert (HEAD, {PARCEL + len(b"1000\r\n\r\n")}, END) == (head, set(middle), end)
        if len(middle) == BEATS:
            return seen
    pytest.fail("never at the first multiple")


@pytest.mark.parametrize("path", [CHAT, TEXT, RESPONSES, MESSAGES])
def test_streams_of_one_class_are_the_same_records(server: Server, path: str) -> None:
    """Short or long, text, thoughts or a call, free or structured, answered or refused: one head, and as many records
    of one size; each client reads its own answer."""
    kinds = _kinds(path)
    with ThreadPoolExecutor(4) as pool:
        streams = [pool.submit(_stream, server, path, {**body, "stream": True}) for _, body in kinds.values()]
    for (name, (status, _)), stream in zip(kinds.items(), streams, strict=True):
        seen = stream.result()
        assert status == seen.status, name
        if status == 200:
            events = [line[6:] for line in seen.body.decode().split("\n") if line.startswith("data: {")]
            said = "".join(map(_text_of, map(json.loads, events)))
            assert (said == SAYS["plain"]) == (name == "long"), name
        else:
            assert "error" in json.loads(seen.body), name


def _text_of(event: dict[str, Any]) -> str:
    """The content of an event, in each of the four dialects."""
    if event.get("type") == "response.output_text.delta":
        return str(event["delta"])
    if event.get("type") == "content_block_delta":
        return str(event["delta"].get("text", ""))
    choice = (event.get("choices") or [{}])[0]
    return str(choice.get("text") or choice.get("delta", {}).get("content") or "")


@pytest.mark.parametrize("path", [CHAT, TEXT, RESPONSES, MESSAGES])
def test_whole_answers_of_one_class_are_the_same_records(server: Server, path: str) -> None:
    """The same for answers that are not streamed, and for refusals that come before a body is read."""
    kinds = {name: kind for name, kind in _kinds(path).items() if name in ("short", "call", "structure", "not valid")}
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(_ask, server, path, body) for _, body in kinds.values()]
    for (name, (status, _)), answer in zip(kinds.items(), answers, strict=True):
        assert (status, (HEAD, PARCEL)) == (answer.result().status, answer.result().records), name
    assert (401, (HEAD, PARCEL)) == (lambda seen: (seen.status, seen.records))(
        _ask(server, path, {**_body(path, "plain"), "stream": True}, key="sk-no-such-key"))


@pytest.mark.parametrize("body", [
    b'{"model": "plain", "stream" : true, "messages": [}', b'{"stream":true}', b'{"stream":true, "no\xff": 1}'])
def test_a_body_that_cannot_be_read_may_still_ask_for_a_stream(server: Server, body: bytes) -> None:
    """Its refusal looks like a stream; that of another body like a whole answer."""
    assert 400 == _stream(server, CHAT, body).status
    seen = _ask(server, CHAT, body.replace(b"true", b"null"))
    assert (400, (HEAD, PARCEL)) == (seen.status, seen.records)


def _since(seen: Seen) -> float:
    """Nanoseconds between the opening of a window and a record, in the median."""
    windows = Windows.of(0.15, 0.3)
    return statistics.median(at - windows.opening(windows.next(at - windows.ahead_ns) - 1) for at in seen.times)


@pytest.mark.slow
def test_parcels_leave_in_windows_beside_whom_ever(server: Server) -> None:
    """Alone or beside three busy neighbours, answered or refused, streamed or whole: each after an opening, before the
    next multiple. The relay's threads may note it late, so the bound is wide, and there are some attempts. The narrow
    bound is tested in `tests/http/test_departures`, whose reader is a process of its own."""
    width = Windows.of(0.15, 0.3).interval_ns * 3 / 16
    streamed = {**_body(CHAT, "plain"), "stream": True}
    neighbour = {**streamed, "messages": [{"role": "user", "content": "so? " * 20}]}
    asked = (streamed, {**streamed, "model": "none"}, _body(CHAT, "plain"))
    with ThreadPoolExecutor(6) as pool:
        for _ in range(ATTEMPTS):
            alone = _since(_ask(server, CHAT, streamed))
            busy = [pool.submit(_ask, server, CHAT, neighbour) for _ in range(3)]
            beside = [pool.submit(_ask, server, CHAT, body) for body in asked]
            since = [alone, *(_since(each.result()) for each in beside)]
            assert {200} == {each.result().status for each in busy}
            if max(since) < width:
                return
    pytest.fail("never in windows")


def test_heads_do_not_show_what_they_say(server: Server) -> None:
    """Counts of limits, names of parameters without effect, and the content's length, in each head."""
    plain = _ask(server, CHAT, _body(CHAT, "plain"))
    noted = _ask(server, CHAT, _body(CHAT, "plain", **{f"unknown_{number}": 1 for number in range(30)}))
    assert len(noted.headers["appliance-ignored"]) > 300
    assert {(HEAD, PARCEL)} == {plain.records, noted.records}


def test_a_stream_with_a_receipt_ends_at_a_later_multiple(server: Server) -> None:
    """The receipt is made at the end's multiple, is longer than a parcel, and holds."""
    body = json.dumps({**_body(CHAT, "plain"), "stream": True}).encode()
    for _ in range(ATTEMPTS):
        seen = _ask(server, CHAT, body, **{"appliance-receipt": "1"})
        assert {PARCEL + 8} == set(seen.records[1:-1])
        loaded = load(server.policy)
        key = bytes.fromhex(server.audit()[0]["audit_key_ed25519"])
        _, checked = receipts.verify(receipts.take(seen.body), ReceiptDemands(key, loaded.digest.hex(), loaded.policy),
                                     request=body)
        assert {"signature", "answer", "request"} <= set(checked)
        if len(seen.records) == 2 * BEATS + 2:
            return
    pytest.fail("never at the first multiple")


def test_official_clients_read_parcels(server: Server) -> None:
    """Events that go on in the next parcel, cover before and after them, and a refusal as a stream."""
    import anthropic  # takes a second, which each worker would spend to collect this

    url = next(url for url in server.ready["listening"] if url.startswith("http:"))
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client:
        chunks = client.chat.completions.create(**_body(CHAT, "plain"), stream=True)
        assert SAYS["plain"] == "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        with client.responses.stream(**_body(RESPONSES, "plain")) as events:
            assert SAYS["plain"] == events.get_final_response().output_text
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.chat.completions.create(**_body(CHAT, "none"), stream=True)
    body = _body(MESSAGES, "plain")
    chosen = {"temperature": body.pop("temperature")}
    with (anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as messages,
          messages.messages.stream(**body, extra_body=chosen) as stream):
        assert SAYS["plain"] == stream.get_final_text()


def test_a_stream_has_its_record_when_it_ends(server: Server) -> None:
    """Answered or refused: one before its head, one before its end. So both write to the disk alike."""
    seen = _stream(server, CHAT, {**_body(CHAT, "plain"), "stream": True})
    request = seen.headers["x-request-id"]
    assert {"stream.started", "request.done"} == {
        record["event"] for record in server.audit() if record.get("request") == request}
    assert 3_000_000 == server.audited(request)["duration_us"]
    refused = _stream(server, CHAT, {**_body(CHAT, "none"), "stream": True})
    request = refused.headers["x-request-id"]
    records = [record for record in server.audit() if record.get("request") == request]
    assert ["stream.started", "request.refused"] == [record["event"] for record in records]
    assert ("model_not_found", 3_000_000) == (records[1]["code"], records[1]["duration_us"])
