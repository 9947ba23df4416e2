"""A canary word sent through every door, in every costume: it must not be in anything that the server writes."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import struct
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import synthetic
from tests.support.server import AUDITOR_KEY, Server, write_policy

CANARY = "Zq7canaryWORDx9"
SPELLINGS = [CANARY, CANARY.lower(), CANARY.upper(), CANARY[::-1], CANARY.encode().hex(),
             base64.b64encode(CANARY.encode()).decode().rstrip("=")]
# Whatever a library or a person may set to make Python and its libraries talk.
LOUD = {"PYTHONDEVMODE": "1", "PYTHONASYNCIODEBUG": "1", "PYTHONWARNINGS": "always", "PYTHONFAULTHANDLER": "1",
        "LITESTAR_DEBUG": "1", "LITESTAR_PDB": "1", "UVICORN_LOG_LEVEL": "trace", "LOG_LEVEL": "DEBUG", "DEBUG": "1",
        "OPENAI_LOG": "debug"}
TEMPLATE = "{% for m in messages %}{% if 'boom' in m.content %}{{ raise_exception(m.content) }}{% endif %}" \
           "{{ m.content }} {% endfor %}{% if explode %}{{ raise_exception(explode) }}{% endif %}"


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A server under an environment that asks for every kind of output."""
    broken = tmp_path_factory.mktemp("broken") / "broken.gguf"
    norm, weights = synthetic._norm("output_norm.weight").tobytes(), tiny_model.read_bytes()
    assert 1 == weights.count(norm)
    broken.write_bytes(weights.replace(norm, struct.pack("<f", 3e38) * (len(norm) // 4)))  # logits overflow
    models = {"tiny": tiny_model, "broken": broken}
    policy = write_policy(tmp_path_factory.mktemp("loud"), models, limits='request_size = "64KiB"',
                          model=f"chat_template = {json.dumps(TEMPLATE)}")
    server = Server(policy, list(models.values()), environment=LOUD).wait_ready()
    yield server
    server.stop()


def _bodies() -> list[bytes]:
    turn = {"role": "user", "content": f"say {CANARY}"}
    chat: dict[str, Any] = {"model": "tiny", "messages": [turn], "max_tokens": 2}
    function = {"type": "function", "function": {"name": CANARY, "arguments": json.dumps({"x": CANARY})}}
    documents: list[Any] = [
        chat, {**chat, "stream": True}, {**chat, "stop": CANARY}, {**chat, "user": CANARY},
        {**chat, "metadata": {CANARY: CANARY}}, {**chat, "safety_identifier": CANARY}, {**chat, "model": CANARY},
        {**chat, "tools": [function]}, {**chat, "tool_choice": CANARY}, {**chat, CANARY: 1}, {**chat, "n": CANARY},
        {**chat, "temperature": CANARY}, {**chat, "logit_bias": {CANARY: 1}}, {**chat, "response_format": {CANARY: 1}},
        {**chat, "messages": [{**turn, "role": CANARY}]}, {**chat, "messages": [{**turn, "name": CANARY}]},
        {**chat, "messages": [{"role": "assistant", "content": "x", "tool_calls": [function]}]},
        {**chat, "messages": [{"role": "tool", "content": CANARY, "tool_call_id": CANARY}]},
        {**chat, "messages": [{"role": "user", "content": [{"type": CANARY}]}]},
        {**chat, "messages": [{"role": "user", "content": f"boom {CANARY}"}]},
        {**chat, "messages": [{"role": "user", "content": CANARY * 3000}]},
        {**chat, "chat_template_kwargs": {CANARY: CANARY}}, {**chat, "chat_template_kwargs": {"x": CANARY}},
        {**chat, "chat_template_kwargs": {"explode": f"boom {CANARY}"}},
        {**chat, "messages": CANARY}, {**chat, "model": "broken"}, {**chat, "model": "broken", "stream": True},
        {"model": "tiny", "prompt": CANARY, "max_tokens": 2},
        {"prompt": [CANARY, CANARY]},
        {"model": "tiny", "prompt": f"{CANARY}\x00\ud800"}, [CANARY], CANARY,
    ]
    raw = [CANARY.encode(), f'{{"model": "{CANARY}'.encode(), f'{{"{CANARY}":1,"{CANARY}":2}}'.encode(),
           f'{{"model":"tiny","x":{"[" * 5000}"{CANARY}"'.encode(), CANARY.encode() * 6000,
           f'{{"seed": {"9" * 5000}, "model": "{CANARY}"}}'.encode(), b"\xff" + CANARY.encode()]
    return [json.dumps(document).encode() for document in documents] + raw


PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/models", f"/v1/models/{CANARY}",
         f"/v1/attestation?nonce={CANARY}", f"/health?{CANARY}={CANARY}", f"/metrics?x={CANARY}", f"/{CANARY}",
         f"/{urllib.parse.quote(CANARY * 2000)}", f"/v1/models/%00{CANARY}", f"/v1/../{CANARY}"]
HEADERS: list[dict[str, str]] = [
    {"x-canary": CANARY}, {CANARY: "1"}, {"authorization": f"Bearer {CANARY}"}, {"authorization": CANARY},
    {"content-type": CANARY}, {"content-type": "application/json; charset=" + CANARY}, {"content-encoding": CANARY},
    {"host": CANARY}, {"host": f"[{CANARY}"}, {"cookie": f"{CANARY}={CANARY}"}, {"x-request-id": CANARY},
    {"accept": CANARY}, {"traceparent": CANARY}, {"content-length": CANARY}, {"transfer-encoding": CANARY},
    {"upgrade": CANARY, "connection": "upgrade"}, {"upgrade": "websocket", "connection": "upgrade"},
    {"expect": CANARY}, {"x-forwarded-for": CANARY}, {"x-long": CANARY * 2000},
]


def _send_all(server: Server) -> int:
    """Every body to both endpoints, every header and path with every method; the number of answers."""
    answers = 0
    with server.http() as http:
        json_type = {"content-type": "application/json"}
        for path in PATHS[:2]:
            for body in _bodies():
                answers += http.post(path, content=body, headers=json_type).status_code > 0
        for path in PATHS:
            for method in ("GET", "POST", "PUT", "OPTIONS", CANARY):
                with contextlib.suppress(httpx.HTTPError):
                    answers += http.request(method, path, headers=json_type).status_code > 0
        for headers in HEADERS:
            with contextlib.suppress(httpx.HTTPError):
                answers += http.post(PATHS[0], content=_bodies()[0], headers={**json_type, **headers}).status_code > 0
    for raw in (CANARY.encode() + b"\r\n\r\n", f"GET /{CANARY} HTTP/9.9\r\n\r\n".encode(),
                f"POST /v1/models HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nZZ{CANARY}\r\n".encode(),
                f"GET / HTTP/1.1\r\n{CANARY}\r\n\r\n".encode(), CANARY.encode() * 5000):
        answers += len(_raw(server, raw)) > 0
    return answers


def _raw(server: Server, data: bytes) -> bytes:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(OSError):
            while part := connection.recv(65536):
                received += part
    return received


def test_canary_is_nowhere(loud: Server) -> None:
    """Through every endpoint, error path and costume, the word is in no log, metric, trace or other output."""
    assert _send_all(loud) > 100
    with loud.http(AUDITOR_KEY) as http:
        metrics = http.get("/metrics").text
        health = http.get("/health").text
    codes = {record["code"] for record in loud.audit("request.refused")}
    assert {"engine_error", "template_refused", "malformed_json", "model_not_found", "unsupported_parameter",
            "invalid_value", "body_too_large", "malformed_request", "invalid_api_key"} <= codes
    assert 0 == loud.stop()
    written = {"metrics": metrics, "health": health, **{n: loud.text(n) for n in ("stdout", "stderr", "audit.jsonl")}}
    for name, text in written.items():
        for spelling in SPELLINGS:
            assert spelling not in text, name
    assert "Traceback" not in written["stderr"] + written["stdout"]
    assert 0 == loud.audit("audit.closed")[0]["dropped"]


def test_answer_is_nowhere(loud_answer: tuple[Server, str]) -> None:
    """The text of an answer, made to repeat one word, is in nothing that the server writes."""
    server, word = loud_answer
    assert 0 == server.stop()
    for name in ("stdout", "stderr", "audit.jsonl"):
        assert word * 2 not in server.text(name)
        assert word.strip() * 3 not in server.text(name)


@pytest.fixture
def loud_answer(tmp_path: Path, tiny_model: Path) -> Iterator[tuple[Server, str]]:
    """A server that has given an answer of one repeated word, and that word."""
    server = Server(write_policy(tmp_path, {"tiny": tiny_model}), [tiny_model], environment=LOUD).wait_ready()
    forced: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 8,
                              "logit_bias": {"300": 100}, "temperature": 0}
    text = server.client().chat.completions.create(**forced).choices[0].message.content or ""
    for event in server.client().chat.completions.create(**forced, stream=True):
        event.model_dump()
    yield server, text[:len(text) // 8]
    server.stop()


def test_broken_audit_log_stops_the_service(tmp_path: Path, tiny_model: Path) -> None:
    """When a request can no longer be recorded, no further one is served, and the failure itself says nothing."""
    policy = write_policy(tmp_path, {"tiny": tiny_model})
    server = Server(policy, [tiny_model], environment=LOUD, audit_bytes=8192).wait_ready()
    statuses = []
    with server.http() as http:
        for _ in range(40):
            answer = http.post("/v1/chat/completions", json={"model": CANARY, "messages": []})
            statuses.append(answer.status_code)
        health = http.get("/health")
    assert 503 == statuses[-1] == health.status_code
    assert "audit_unavailable" == answer.json()["error"]["code"]
    server.stop()
    for name in ("stdout", "stderr", "audit.jsonl"):
        assert CANARY not in server.text(name)

