"""What a client sees over HTTP of methods, models, metrics, bodies and times to wait."""

from __future__ import annotations

import http.client
import json
import re
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.api.problems import PROBLEMS, RequestError, refusal
from appliance.models.file import gguf
from tests.support.server import AUDITOR_KEY, KEY, OTHER_KEY, Server, write_policy

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
JSON = {"content-type": "application/json"}
READ = ["/health", "/v1/models", "/v1/models/tiny", "/metrics", "/v1/attestation?nonce=" + "00" * 32,
        "/v1/attestation/activation?challenge=AAAA", "/v1/models/none", "/v1/attestation", "/nowhere"]


@pytest.mark.parametrize("path", READ)
def test_head_is_get_without_its_body(service: Server, path: str) -> None:
    """Status and headers of HEAD are those of GET (RFC 9110 §9.3.2), and the connection goes on."""
    with service.http(OTHER_KEY) as client:
        head, whole = client.head(path), client.get(path)
    assert (whole.status_code, b"") == (head.status_code, head.content)
    assert whole.headers["content-type"] == head.headers["content-type"]
    assert set(whole.headers) == set(head.headers)
    if not path.startswith(("/metrics", "/v1/attestation?")):
        assert str(len(whole.content)) == whole.headers["content-length"] == head.headers["content-length"]


def test_head_leaves_no_byte_of_a_body(service: Server) -> None:
    """Two requests on one connection: the answer to HEAD ends with its headers."""
    connection = http.client.HTTPConnection(service.url.partition("//")[2], timeout=30)
    for method, length in (("HEAD", 0), ("GET", None), ("HEAD", 0)):
        connection.request(method, "/v1/models", headers={"authorization": f"Bearer {KEY}"})
        answer = connection.getresponse()
        body = answer.read()
        assert (200, True) == (answer.status, len(body) == (int(answer.headers["content-length"])
                                                            if length is None else length))
    connection.close()


def test_head_needs_the_same_key(service: Server) -> None:
    """Without a key, HEAD tells no more than GET."""
    with service.http(None) as client:
        assert [200, 401, 401, 401] == [client.head(path).status_code for path in READ[:4]]


ALLOWED = [("/health", "GET, HEAD"), ("/v1/models", "GET, HEAD"), ("/v1/models/tiny", "GET, HEAD"),
           ("/metrics", "GET, HEAD"), ("/v1/attestation", "GET, HEAD"), ("/v1/attestation/activation", "GET, HEAD"),
           ("/v1/chat/completions", "POST"), ("/v1/completions", "POST")]


@pytest.mark.parametrize(("path", "allowed"), ALLOWED)
def test_every_other_method_is_told_those_that_work(service: Server, path: str, allowed: str) -> None:
    """A method that an endpoint does not take gets 405 and `Allow` with all that it does (RFC 9110
    §15.5.6)."""
    with service.http(OTHER_KEY) as client:
        for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - set(allowed.split(", ")):
            answer = client.request(method, path, headers=JSON, content=b"")
            assert (405, allowed) == (answer.status_code, answer.headers.get("allow")), method


def test_a_model_s_card(service: Server, tiny_model: Path) -> None:
    """A model's context, limits, quantisation and digests stand under the names that clients look
    for."""
    file = gguf.parse(tiny_model.read_bytes())
    client = service.client()
    found = client.models.retrieve("tiny").model_dump()
    assert [found] == [model.model_dump() for model in client.models.list()]
    with service.http(None) as plain:
        (known,) = plain.get("/health").json()["models"]
    assert (known["sha256"], None) == (found["sha256"], found["sealed_header_sha256"])
    trained = file.metadata["llama.context_length"]
    assert (trained, trained) == (found["max_model_len"], found["context_length"])
    assert ("Q8_0", trained) == (found["quantization"], found["meta"]["n_ctx_train"])
    assert len(file.metadata["tokenizer.ggml.tokens"]) == found["meta"]["n_vocab"]
    assert sum(info.nbytes for info in file.tensors.values()) == found["meta"]["size"]
    assert found["meta"]["n_params"] > 10_000


def test_a_card_s_limits_are_those_that_hold(service: Server) -> None:
    """As many tokens as the card allows for an answer are accepted, and one more is refused."""
    client = service.client()
    most = client.models.retrieve("tiny").model_dump()["max_completion_tokens"]
    answer = client.completions.create(model="tiny", prompt="a", max_tokens=most, stop=["e", "a", "t", " ", "\n"])
    assert answer.usage is not None
    with pytest.raises(openai.BadRequestError, match="at most"):
        client.completions.create(model="tiny", prompt="a", max_tokens=513)


# Prometheus' text format 0.0.4: a line is a comment, a sample, or empty.
SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)*\})? '
                    r"([-+]?[0-9.eE+-]+|[-+]?Inf|NaN)(?: -?\d+)?")


def test_metrics_are_in_prometheus_text_format(service: Server) -> None:
    """The media type is the format's, with one charset; every line is of its grammar, and its own
    parser reads it."""
    with service.http(AUDITOR_KEY) as client:
        answer = client.get("/metrics")
    assert ["text/plain; version=0.0.4; charset=utf-8"] == answer.headers.get_list("content-type")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert {"appliance_requests", "appliance_tokens", "appliance_request_seconds", "appliance_ready"} <= set(families)
    assert 1.0 == families["appliance_ready"].samples[0].value
    assert answer.text.endswith("\n")
    typed: list[str] = []
    for line in answer.text.splitlines():
        if line.startswith("# TYPE "):
            typed.append(line.split()[2])
        elif not line.startswith("# HELP "):
            sample = SAMPLE.fullmatch(line)
            assert sample is not None, line
            assert typed, line
            assert sample[1].startswith(typed[-1])  # the samples of a family follow its type
    assert len(set(typed)) == len(typed)


TEXTS = [
    (b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud83d"}]}', "lone surrogate"),
    (b"\xef\xbb\xbf" + json.dumps(CHAT).encode(), "byte order mark"), (b"", "is empty"),
    (json.dumps(CHAT).encode()[:-1], "cut off"), (json.dumps(CHAT).encode("utf-16"), "UTF-16")]


@pytest.mark.parametrize(("body", "words"), TEXTS)
def test_a_body_that_is_no_json_is_told_why(service: Server, body: bytes, words: str) -> None:
    """The words are about this body, not the same for each."""
    with service.http() as client:
        answer = client.post("/v1/chat/completions", headers=JSON, content=body)
    assert (400, "malformed_json") == (answer.status_code, answer.json()["error"]["code"])
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize(("headers", "words"), [
    ({}, "Content-Type: allowed: application/json; found: none"),
    ({"content-type": "application/x-www-form-urlencoded"}, "found: application/x-www-form-urlencoded"),
    ({"content-type": "text/plain; charset=utf-8"}, "found: text/plain"),
    ({"content-type": "secret/secret"}, "found: another"),
    ({**JSON, "content-encoding": "gzip"}, "Content-Encoding: allowed: none (the body is not compressed); found: gzip"),
    ({**JSON, "content-encoding": "secret"}, "found: another")])
def test_a_body_of_another_kind_is_told_which(service: Server, headers: dict[str, str], words: str) -> None:
    """What the headers call a body is told where it is one of the usual kinds, and never quoted."""
    with service.http() as client:
        answer = client.post("/v1/chat/completions", headers=headers, content=json.dumps(CHAT).encode())
    assert 415 == answer.status_code
    assert words in answer.json()["error"]["message"]
    assert "secret" not in answer.text


def test_a_conversation_of_other_servers_goes_on(service: Server) -> None:
    """Parameters and messages that other servers' clients send get the answer that plain ones
    get."""
    plain = {**CHAT, "max_tokens": 8, "seed": 3, "temperature": 1.0, "repeat_penalty": 1.1}
    plain["messages"] = [*CHAT["messages"], {"role": "assistant", "content": "hello"}, *CHAT["messages"]]
    answer = {"role": "assistant", "content": [{"type": "output_text", "text": "hello", "annotations": []}],
              "id": "msg_1", "refusal": None, "tool_calls": [], "reasoning_content": "so"}
    other = {**CHAT, "n_predict": 8.0, "seed": 3.0, "temperature": 1, "repetition_penalty": 1.1, "ignore_eos": False,
             "min_tokens": 0, "stop": "", "top_logprobs": 0, "cache_prompt": True, "keep_alive": "5m",
             "messages": [*CHAT["messages"], answer, {**CHAT["messages"][0], "cache_control": {"type": "ephemeral"}}]}
    with service.http() as client:
        texts = [client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
                 for body in (plain, other)]
    assert texts[0] == texts[1]


def test_what_may_pass_later_tells_when() -> None:
    """Each 429 and 503 has a `Retry-After`, whoever refuses; what can never pass has none."""
    for code, problem in PROBLEMS.items():
        waits = problem.status in {429, 503}
        assert waits == ("retry-after" in RequestError(code).headers), code
        assert waits == ("retry-after" in refusal(RequestError(code)).headers), code
    assert "retry-after" not in RequestError("insufficient_quota", retry_after=float("inf")).headers


def test_a_first_token_that_is_late_tells_when_to_come_back(tmp_path: Path, tiny_model: Path) -> None:
    """`first_token_timeout` is a 503 that clients try again, and they are told when. Time counts
    from the head: here it is over before the body has come."""
    policy = write_policy(tmp_path, {"tiny": tiny_model}, limits='first_token_timeout = "100ms"')
    server = Server(policy, [tiny_model]).wait_ready()
    body = json.dumps({"model": "tiny", "prompt": "a", "max_tokens": 1}).encode()
    try:
        connection = http.client.HTTPConnection(server.url.partition("//")[2], timeout=600)
        connection.putrequest("POST", "/v1/completions")
        for name, value in {**JSON, "authorization": f"Bearer {KEY}", "content-length": str(len(body))}.items():
            connection.putheader(name, value)
        connection.endheaders()
        time.sleep(0.5)
        connection.send(body)
        answer = connection.getresponse()
        code = json.loads(answer.read())["error"]["code"]
    finally:
        server.stop()
    assert (503, "first_token_timeout", "5") == (answer.status, code, answer.headers["retry-after"])
