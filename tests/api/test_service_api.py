"""The API as the official client and plain HTTP see it, against a server that was really booted."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import re
import socket
from pathlib import Path
from typing import Any

import openai
import pytest

from appliance.api.answers import AnswerFacts, AnswerPart, TokenLogprob, TopLogprob
from appliance.api.shapes import TextShape
from appliance.audit.events import STEPS
from tests.support import waiting
from tests.support.server import AUDITOR_KEY, KEY, OTHER_KEY, Server, write_policy
from tests.support.vocabularies import template_source

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
FIXED: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": 24}


def _chat(server: Server, **more: Any) -> Any:
    return server.client().chat.completions.create(**{**CHAT, **more})


def _streamed(server: Server, **more: Any) -> tuple[str, list[Any]]:
    """The text of a streamed chat, and its events."""
    events = list(_chat(server, stream=True, **more))
    return "".join(event.choices[0].delta.content or "" for event in events if event.choices), events


def test_chats(service: Server) -> None:
    """The official client gets an answer with its role, finish reason and counts."""
    answer = _chat(service, **FIXED)
    assert ("assistant", "length") == (answer.choices[0].message.role, answer.choices[0].finish_reason)
    assert answer.choices[0].message.content
    assert 24 == answer.usage.completion_tokens
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24
    assert ("tiny", "chat.completion") == (answer.model, answer.object)


def test_goes_on_with_a_conversation(service: Server) -> None:
    """The message of an answer can be appended to the conversation as it came."""
    first = _chat(service, **FIXED)
    turns = [*CHAT["messages"], first.choices[0].message, {"role": "user", "content": "go on"}]
    assert _chat(service, **FIXED, messages=turns).usage.prompt_tokens > first.usage.prompt_tokens


def test_streams_the_same_text(service: Server) -> None:
    """A stream opens with the role, carries the text of the unstreamed answer, and says why it ended."""
    text, events = _streamed(service, **FIXED)
    assert _chat(service, **FIXED).choices[0].message.content == text
    assert ("assistant", "length") == (events[0].choices[0].delta.role, events[-1].choices[0].finish_reason)
    assert [None] * len(events) == [event.usage for event in events]
    assert len(events) > 8


def test_streams_usage_when_asked(service: Server) -> None:
    """With include_usage the last event has the counts and no choice."""
    _text, events = _streamed(service, **FIXED, stream_options={"include_usage": True})
    assert ([], 24) == (events[-1].choices, events[-1].usage.completion_tokens)
    assert [None] * (len(events) - 1) == [event.usage for event in events[:-1]]


def test_completes_text(service: Server) -> None:
    """A text completion, whole and streamed, from text and from the same text's tokens."""
    client = service.client()
    whole = client.completions.create(model="tiny", prompt="abc", **FIXED)
    stream = client.completions.create(model="tiny", prompt=["abc"], stream=True, **FIXED)
    assert whole.choices[0].text == "".join(event.choices[0].text for event in stream)
    assert "length" == whole.choices[0].finish_reason
    ids = client.completions.create(model="tiny", prompt=[1, 5, 9], max_tokens=2)
    assert 3 == ids.usage.prompt_tokens


TARGETS = [  # target, status without and with a key, endpoint
    ("http://some.host/v1/models?a=http://b", 401, 200, "/v1/models"), ("HTTP://x//v1/models/", 401, 200, "/v1/models"),
    ("//v1/models", 401, 200, "/v1/models"), ("/v1/%6dodels", 401, 200, "/v1/models"),
    ("http://x/v1/models/tiny", 401, 200, "/v1/models/{model}"), ("/v1%2fmodels", 404, 404, "other"),
    ("/v1/models/tiny%2f", 401, 404, "/v1/models/{model}"),
    ("/v1/models/..%2f..%2fhealth", 401, 404, "/v1/models/{model}"),
    ("/health/../v1/models", 404, 404, "other"), ("http://x/health/%2e%2e/v1/models", 404, 404, "other"),
    ("http://x/nowhere", 404, 404, "other"), ("https://x/v1/models", 400, 400, "other"),
    ("http:///v1/models", 400, 400, "other"),
    ("http://user@x/v1/models", 400, 400, "other"), ("v1/models", 400, 400, "other"), ("*", 400, 400, "other"),
]


@pytest.mark.parametrize(("target", "without", "with_key", "endpoint"), TARGETS)
def test_targets_of_requests(service: Server, target: str, without: int, with_key: int, endpoint: str) -> None:
    """A URL names what its path does (RFC 9112 §3.2.2), no spelling goes around the key, and the audit log says what
    was asked for."""
    for headers, status in (({}, without), ({"Authorization": f"Bearer {KEY}"}, with_key)):
        connection = http.client.HTTPConnection(service.url.partition("//")[2], timeout=30)
        connection.request("GET", target, headers=headers)
        answer = connection.getresponse()
        body = json.loads(answer.read())
        connection.close()
        assert (status, status != 200) == (answer.status, "error" in body)
        assert endpoint == service.audited(str(answer.headers["x-request-id"]))["endpoint"]


def test_seed_decides(service: Server) -> None:
    """The same seed gives the same answer, another seed another."""
    texts = [_chat(service, **{**FIXED, "seed": seed}).choices[0].message.content for seed in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]


def test_logit_bias_and_stop(service: Server) -> None:
    """A forced token is all there is to read, and a stop sequence ends the answer before it."""
    forced = {"logit_bias": {"300": 100}, "temperature": 0, "max_tokens": 4}
    word = _chat(service, **forced).choices[0].message.content
    assert word.strip()
    assert word == word[:len(word) // 4] * 4
    stopped = _chat(service, **forced, stop=[word.strip()[-1]])
    assert ("stop", 1) == (stopped.choices[0].finish_reason, stopped.usage.completion_tokens)
    assert word.strip()[-1] not in stopped.choices[0].message.content


def test_logprobs(service: Server) -> None:
    """Log-probabilities come for each token, best first, where the policy allows them."""
    answer = _chat(service, **FIXED, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert 24 == len(content)
    for entry in content:
        tops = [top.logprob for top in entry.top_logprobs]
        assert sorted(tops, reverse=True) == tops
        assert entry.logprob <= tops[0] + 1e-9 <= 1e-9
    text = service.client().completions.create(model="tiny", prompt="abc", logprobs=2, **FIXED)
    assert 24 == len(text.choices[0].logprobs.tokens) == len(text.choices[0].logprobs.top_logprobs)


def test_text_logprobs_of_parts_of_characters() -> None:
    """In the older form every token, part of a character or control token, stands where its text begins, and no
    alternative takes another's place."""
    pieces = [b"a", b"\xf0\x9f", b"\x98\x80", b"b", b"\xc3", b"\xa9", b"c"]
    tops = [TopLogprob(token="\ufffd", logprob=-1.0, bytes=[byte]) for byte in b"\xf0\xe2\xc3"]
    entries = [TokenLogprob(token=piece.decode("utf-8", "replace"), logprob=-1.0, bytes=list(piece), top_logprobs=tops)
               for piece in pieces]
    entries.insert(1, TokenLogprob(token="<|control|>", logprob=-1.0, bytes=[], top_logprobs=tops))
    shape, found = TextShape(AnswerFacts("req-1", "tiny", "fp"), with_usage=False), []
    for part in (entries[:3], entries[3:]):
        found.append(json.loads(shape.part(AnswerPart(0, "", part)))["choices"][0]["logprobs"])
    offsets, tokens, alternatives = (
        found[0][name] + found[1][name] for name in ("text_offset", "tokens", "top_logprobs"))
    assert [0, 1, 1, 1, 2, 3, 3, 4] == offsets
    assert ["a", "<|control|>", r"bytes:\xf0\x9f", r"bytes:\x98\x80", "b", r"bytes:\xc3", r"bytes:\xa9", "c"] == tokens
    assert [3] * 8 == [len(each) for each in alternatives]


def test_lists_models(service: Server) -> None:
    """The caller sees the models that it may ask."""
    client = service.client()
    assert ["tiny"] == [model.id for model in client.models.list()]
    assert "tiny" == client.models.retrieve("tiny").id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_one_tenant_leaves_places_to_others(service: Server) -> None:
    """A tenant whose requests, or bodies on their way, have all places that it may have is refused; another is not."""
    host, port = service.url.removeprefix("http://").split(":")
    head = (f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
            "content-type: application/json\r\ncontent-length: 100\r\n\r\n{")
    slow = [socket.create_connection((host, int(port))) for _ in range(40)]
    try:
        for connection in slow:
            connection.sendall(head.encode())
        assert "too_many_requests" == waiting.until(lambda: _refused(service), "refusal, once all have come")
        other = service.client(OTHER_KEY).completions.create(model="tiny", prompt="abc", max_tokens=1)
        assert 1 == other.usage.completion_tokens
    finally:
        for connection in slow:
            connection.close()
    waiting.until(lambda: not _refused(service), "free place")


def _refused(service: Server) -> str:
    """The code of a request that finds no place; empty for one that is answered."""
    try:
        _chat(service, **FIXED)
    except openai.RateLimitError as error:
        return str(error.code)
    return ""


OPENAI_ERRORS: list[tuple[dict[str, Any], type[openai.APIStatusError], str, str | None]] = [
    ({"model": "none"}, openai.NotFoundError, "model_not_found", "model"),
    ({"n": 2}, openai.BadRequestError, "invalid_value", "n"),
    ({"tool_choice": "required"}, openai.BadRequestError, "invalid_value", "tool_choice"),
    ({"response_format": {"type": "xml"}}, openai.BadRequestError, "invalid_value", "response_format.type"),
    ({"temperature": 3}, openai.BadRequestError, "invalid_value", "temperature"),
    ({"max_tokens": 513}, openai.BadRequestError, "generation_length_exceeded", "max_tokens"),
    ({"max_completion_tokens": 513}, openai.BadRequestError, "generation_length_exceeded", "max_completion_tokens"),
    ({"max_completion_tokens": 5, "max_tokens": 6}, openai.BadRequestError, "invalid_value", "max_tokens"),
    ({"top_logprobs": 1}, openai.BadRequestError, "invalid_value", "top_logprobs"),
    ({"messages": [{"role": "user", "content": "a " * 3000}]}, openai.BadRequestError, "context_length_exceeded", None),
    ({"logprobs": True, "top_logprobs": 6}, openai.BadRequestError, "unsupported_parameter", "logprobs"),
    ({"logit_bias": {"512": 1}}, openai.BadRequestError, "invalid_value", "logit_bias"),
    ({"stop": "x" * 257}, openai.BadRequestError, "invalid_value", "stop"),
    ({"messages": [{"role": "user", "content": "a" * 70_000}]}, openai.APIStatusError, "body_too_large", None),
]


@pytest.mark.parametrize(("more", "kind", "code", "param"), OPENAI_ERRORS)
def test_official_client_raises_its_own_errors(
        service: Server, more: dict[str, Any], kind: type[openai.APIStatusError], code: str, param: str | None) -> None:
    """A refusal becomes the client's exception of the fitting class, with code and parameter."""
    with pytest.raises(kind) as caught:
        _chat(service, **more)
    assert (code, param) == (caught.value.code, caught.value.param)


@pytest.mark.parametrize("path", ["/embeddings", "/v1/embeddings", "/chat/completions"])
def test_an_endpoint_that_is_none_is_told_those_that_are(service: Server, path: str) -> None:
    """As is a client whose base URL lacks /v1."""
    with service.http() as http:
        told = re.findall(r"/v1/\S*\w", http.post(path, json={}).json()["error"]["message"])
        assert 5 == len(told)
        assert all(http.post(path, json={}).status_code in {400, 405} for path in told)


def test_a_long_prompt_is_refused_in_words_that_libraries_know(service: Server) -> None:
    """LiteLLM tells a prompt that is too long, for which it may ask another model, by these words, not by the code."""
    with pytest.raises(openai.BadRequestError, match=r"prompt is too long: \d+ tokens( or more)? > \d+ maximum"):
        _chat(service, messages=[{"role": "user", "content": "a " * 3000}])


def test_variables_of_the_chat_template(tmp_path: Path, tiny_model: Path) -> None:
    """Qwen3's template gets `enable_thinking` from the client's extra body; what it does not read is named."""
    source = template_source("Qwen-Qwen3-0.6B.jinja")
    server = Server(write_policy(tmp_path, {"tiny": tiny_model}, model=f"chat_template = {json.dumps(source)}"),
                    [tiny_model]).wait_ready()
    try:
        counts = [_chat(server, **FIXED, extra_body={"chat_template_kwargs": given}).usage.prompt_tokens
                  for given in (None, {}, {"enable_thinking": True}, {"enable_thinking": False})]
        raw = server.client().chat.completions.with_raw_response.create(
            model="tiny", messages=CHAT["messages"], max_tokens=1,
            extra_body={"chat_template_kwargs": {"enable_thinking": False, "thinkng": 1}})
    finally:
        server.stop()
    assert [0, 0, 0, len("<think>\n\n</think>\n\n")] == [count - counts[0] for count in counts]
    assert "chat_template_kwargs.thinkng" == raw.headers["appliance-ignored"]


def test_refusals_name_bounds_to_the_last_digit(service: Server) -> None:
    """A bound of the policy stands in the refusal as the policy has it, however large it is."""
    with pytest.raises(openai.BadRequestError, match=r"top_k: allowed are 0 to 1000000; found: 1000001$"):
        _chat(service, extra_body={"top_k": 1_000_001})


@pytest.mark.parametrize("key", ["", "sk-wrong", KEY + " "[:0] + "x", AUDITOR_KEY.upper()])
def test_wrong_keys(service: Server, key: str) -> None:
    """A key that the policy does not know is refused."""
    with pytest.raises(openai.AuthenticationError):
        service.client(key or "-").models.list()


JSON = {"content-type": "application/json"}
BODY = json.dumps({**CHAT, "max_tokens": 1}).encode()
# method, path, headers, body, status, code
RAW: list[tuple[str, str, dict[str, str], bytes | None, int, str]] = [
    ("GET", "/nowhere", {}, None, 404, "not_found"),
    ("GET", "/v1/nothing", {}, None, 404, "not_found"),
    ("GET", "/v1/chat/completions", {}, None, 405, "method_not_allowed"),
    ("DELETE", "/v1/models", {}, None, 405, "method_not_allowed"),
    ("DELETE", "/v1/nothing", {}, None, 404, "not_found"),
    ("POST", "/health", {}, b"", 405, "method_not_allowed"),
    ("POST", "/v1/chat/completions", JSON, b"", 400, "malformed_json"),
    ("POST", "/v1/chat/completions", JSON, b"{", 400, "malformed_json"),
    ("POST", "/v1/chat/completions", {"content-type": "text/plain"}, BODY, 415, "unsupported_media_type"),
    ("POST", "/v1/chat/completions", {}, BODY, 415, "unsupported_media_type"),
    ("POST", "/v1/chat/completions", {**JSON, "content-encoding": "gzip"}, BODY, 415, "unsupported_media_type"),
    ("POST", "/v1/chat/completions", JSON, b" " * 70_000, 413, "body_too_large"),
    ("POST", "/v1/completions", JSON, b'{"model":"tiny"}', 400, "missing_required_parameter"),
    ("POST", "/v1/completions", JSON, b'{"model":"tiny","prompt":[512]}', 400, "invalid_value"),
    ("POST", "/v1/completions", JSON, b'{"model":"tiny","prompt":["a","b"]}', 400, "invalid_value"),
    ("POST", "/v1/embeddings", JSON, b"{}", 404, "not_found"),
    ("GET", "/v1/attestation", {}, None, 400, "missing_required_parameter"),
    ("GET", "/v1/attestation?nonce=zz", {}, None, 400, "invalid_value"),
    ("GET", "/v1/attestation?nonce=00", {}, None, 400, "invalid_value"),
    ("GET", "/v1/attestation/activation?challenge=AAAA", {}, None, 404, "not_found"),  # there is no TPM
    ("POST", "/v1/attestation/activation", JSON, b"{}", 405, "method_not_allowed"),
    ("GET", "/metrics", {}, None, 403, "permission_denied"),
    ("GET", "/v1/models/none", {}, None, 404, "model_not_found"),
    ("GET", "/health", {"x-large": "x" * 20_000}, None, 431, "headers_too_large"),
]


@pytest.mark.parametrize(("method", "path", "headers", "body", "status", "code"), RAW)
def test_every_refusal_has_openai_s_shape(service: Server, method: str, path: str, headers: dict[str, str],
                                          body: bytes | None, status: int, code: str) -> None:
    """Whatever is wrong, the answer is JSON with OpenAI's four fields and the fitting status."""
    with service.http() as http:
        answer = http.request(method, path, headers=headers, content=body)
    assert (status, code) == (answer.status_code, answer.json()["error"]["code"])
    assert {"message", "type", "param", "code"} == set(answer.json()["error"])


@pytest.mark.parametrize("method", ["OPTIONS", "HEAD", "PUT", "PATCH", "TRACE"])
def test_other_methods_do_nothing(service: Server, method: str) -> None:
    """Methods of no use here are refused, and no origin is allowed anything."""
    with service.http() as http:
        answer = http.request(method, "/v1/chat/completions", headers={"origin": "https://evil.example"})
    assert (405, "POST") == (answer.status_code, answer.headers["allow"])
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/tiny",
                                  "/metrics"])
def test_needs_a_key(service: Server, path: str) -> None:
    """Everything but health and evidence needs a key, before anything of the request is looked at."""
    with service.http(None) as http:
        answer = http.request("POST" if path.endswith("completions") else "GET", path)
    assert (401, "invalid_api_key") == (answer.status_code, answer.json()["error"]["code"])


def test_roles(service: Server) -> None:
    """An auditor reads metrics and asks nothing; an admin does both."""
    with pytest.raises(openai.PermissionDeniedError):
        service.client(AUDITOR_KEY).models.list()
    for key in (AUDITOR_KEY, OTHER_KEY):
        with service.http(key) as http:
            assert 200 == http.get("/metrics").status_code
    assert ["tiny"] == [model.id for model in service.client(OTHER_KEY).models.list()]


def test_every_answer_is_guarded(service: Server) -> None:
    """Each answer has a request id of ours and headers that keep browsers and caches out."""
    with service.http() as http:
        first, second = http.get("/health"), http.get("/nowhere", headers={"x-request-id": "mine"})
    assert first.headers["x-request-id"] != second.headers["x-request-id"] != "mine"
    for answer in (first, second):
        assert "nosniff" == answer.headers["x-content-type-options"]
        assert "no-store" == answer.headers["cache-control"]
        assert "appliance" == answer.headers["server"]


def test_health(service: Server) -> None:
    """Health shows the state, the policy's digest and the boot's steps, to everyone."""
    with service.http(None) as http:
        answer = http.get("/health")
    health = answer.json()
    assert (200, "ready", "simulated") == (answer.status_code, health["status"], health["platform"])
    assert list(STEPS) == [step["step"] for step in health["boot"]]
    assert service.ready["policy_sha384"] == health["policy_sha384"]


def test_metrics_count(service: Server) -> None:
    """Requests and tokens are counted under names of the policy and of our tables only."""
    with service.http(AUDITOR_KEY) as http:
        before = _metrics(http.get("/metrics").text)
        answer = _chat(service, max_tokens=5)
        with pytest.raises(openai.NotFoundError):
            _chat(service, model="unheard-of")
        after = _metrics(http.get("/metrics").text)
    grown = {name for name in after if after[name] != before.get(name, 0)}
    name = 'appliance_tokens_total{kind="completion",model="tiny"}'
    assert answer.usage.completion_tokens == after[name] - before.get(name, 0)
    assert 'appliance_refusals_total{code="model_not_found"}' in grown
    assert 'appliance_tenant_requests_total{tenant="user"}' in grown
    assert "unheard-of" not in "".join(after)


def _metrics(text: str) -> dict[str, float]:
    pairs = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in pairs}


def test_audit_has_one_line_for_each_request(service: Server) -> None:
    """A request and a refusal are recorded with their facts, by the id that the answer carries."""
    with service.http() as http:
        answer = http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 3})
        refused = http.post("/v1/chat/completions", json={**CHAT, "modalities": ["audio"]})
    done = service.audited(answer.headers["x-request-id"])
    assert ("request.done", 200, "user", "tiny", 3, "length", False) == tuple(
        done[name] for name in ("event", "status", "tenant", "model", "completion_tokens", "finish", "streamed"))
    record = service.audited(refused.headers["x-request-id"])
    assert ("request.refused", 400, "unsupported_parameter", "user") == tuple(
        record[name] for name in ("event", "status", "code", "tenant"))


def _canonical(value: Any) -> bytes:
    """RFC 8785 for values without floats and with ASCII keys, as the specification's example has them."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def test_attestation_binds_nonce_policy_and_model(service: Server, tiny_model: Any) -> None:
    """Report data, computed here from the specification alone, is in the report; its parts are those of this server."""
    nonce = os.urandom(32)
    with service.http(None) as http:
        evidence = http.get("/v1/attestation", params={"nonce": nonce.hex()}).json()
    statement = evidence["statement"]
    expected = hashlib.sha512(b"appliance/serve/v1\n" + _canonical(statement)).digest()
    assert expected in base64.b64decode(evidence["report"])
    assert hashlib.sha256(b"\x00" + nonce).hexdigest() == statement["nonces"]["root"]
    assert (nonce.hex(), 1) == (evidence["proof"]["nonce"], statement["nonces"]["size"])
    assert service.ready["policy_sha384"] == statement["policy_sha384"]
    assert [hashlib.sha256(tiny_model.read_bytes()).hexdigest()] == [model["sha256"] for model in statement["models"]]


def test_disconnect_cancels(service: Server) -> None:
    """A client that leaves in the middle of a stream ends the generation there. On a busy machine an answer may have
    ended by then, but not each time."""
    body, finished = {**CHAT, "stream": True, "max_tokens": 400}, []
    while len(finished) < 8 and "cancelled" not in finished:
        with service.http() as http, http.stream("POST", "/v1/chat/completions", json=body) as answer:
            next(answer.iter_bytes())
        record = service.audited(answer.headers["x-request-id"])
        finished.append(record["finish"])
    assert "cancelled" == finished[-1]
    assert record["completion_tokens"] < 400


@pytest.mark.parametrize("doubled", [
    [("Authorization", "Bearer one"), ("Authorization", "Bearer two")],
    [("Content-Type", "application/json"), ("content-type", "text/plain")],
    [("Content-Encoding", "identity"), ("Content-Encoding", "gzip")],
    [("Transfer-Encoding", "chunked"), ("Content-Length", "2")],
])
def test_heads_that_mean_two_things_are_refused(service: Server, doubled: list[tuple[str, str]]) -> None:
    """Two API keys, media types or codings, or two ways to tell a length, are refused before anyone picks one."""
    connection = http.client.HTTPConnection(service.url.removeprefix("http://"), timeout=10)
    connection.putrequest("POST", "/v1/completions")
    for name, value in doubled:
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    assert (400, "malformed_request") == (answer.status, json.loads(answer.read())["error"]["code"])
    connection.close()
