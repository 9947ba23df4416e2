"""A real server and clients of raw bytes: nothing after a framing error is answered, and a client that ends its side
after its request is."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.test_service_tls import _own_certificate
from tests.support import raw, server
from tests.support.raw import Client, body_of, chunked, head, post, statuses
from tests.support.server import KEY, Server

KINDS = ("tcp", "unix", "tls")
LISTENERS = """
  listen "a" {
    kind = "tcp"
    port = 8080
  }
  listen "b" {
    kind = "unix"
    path = "%s/api.sock"
  }
  listen "c" {
    kind        = "tls"
    port        = 8444
    certificate = "%s"
    private_key = "%s"
  }
"""
CHAT = "/v1/chat/completions"
SECOND = head("GET", "/v1/models", key=KEY)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A server that listens in three ways."""
    folder = tmp_path_factory.mktemp("http")
    certificate, key, _ = _own_certificate(folder)
    policy = server.write_policy(folder, {"tiny": tiny_model}, listeners=LISTENERS % (folder, certificate, key),
                                 limits='generation_tokens = 480\n  request_size = "1MiB"')
    process = Server(policy, [tiny_model]).wait_ready()
    yield process
    process.stop()


def _client(running: Server, kind: str) -> Client:
    return Client(dict(zip(KINDS, running.ready["listening"], strict=True))[kind])


def _body(**more: Any) -> bytes:
    asked = {"model": "tiny", "prompt": "abc", "max_tokens": 3, "logit_bias": {str(token): -100 for token in range(3)}}
    return json.dumps(asked | more).encode()


SMUGGLED = {  # each followed by another request
    "two framings": head("POST", "/v1/completions", "Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "two framings and a key": head("POST", "/v1/completions", "Transfer-Encoding: chunked", "Content-Length: 5",
                                   key=KEY) + b"0\r\n\r\n",
    "two lengths": head("POST", "/v1/completions", "Content-Length: 5", "Content-Length: 0") + b"12345",
    "a signed length": head("POST", "/health", "Content-Length: +5") + b"12345",
    "an unknown coding": head("POST", "/v1/completions", "Transfer-Encoding: xchunked", key=KEY) + b"0\r\n\r\n",
    "a space before a colon": head("POST", "/v1/completions", "Transfer-Encoding : chunked", key=KEY) + b"0\r\n\r\n",
    "a folded line": head("POST", "/health", "X: y", " Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "a bare line feed": head("GET", "/health", "X: y\nZ: z"),
    "a NUL": head("GET", "/health", "X: \0"),
    "HTTP/1.0 with chunks": head("GET", "/health", "Transfer-Encoding: chunked").replace(b"1.1", b"1.0") + b"0\r\n\r\n",
    "a bad chunk": head("POST", "/v1/completions", "Transfer-Encoding: chunked", key=KEY) + b"zz\r\n",
    "a long chunk": head("POST", "/v1/completions", "Transfer-Encoding: chunked", key=KEY) + b"1\r\nab\r\n0\r\n\r\n",
    "a bad trailer": head("POST", "/v1/completions", "Transfer-Encoding: chunked", key=KEY) + b"0\r\nX : y\r\n\r\n",
    "a bad chunk for whom no body is": head("GET", "/health", "Transfer-Encoding: chunked") + b"zz\r\n",
    "two hosts": head("GET", "/health", "Host: y"),
    "two keys": head("GET", "/v1/models", "Authorization: Bearer x", key=KEY),
}


@pytest.mark.parametrize("kind", ["tcp", "tls"])
@pytest.mark.parametrize("name", SMUGGLED)
def test_nothing_after_a_framing_error_is_answered(running: Server, kind: str, name: str) -> None:
    """One answer, 400, in OpenAI's shape, and the end of the connection; the same in parts and at once."""
    for parts in ([SMUGGLED[name] + SECOND], [SMUGGLED[name], SECOND])[:2 if kind == "tcp" else 1]:
        with _client(running, kind) as client:
            for part in parts:
                client.send(part)
            answer = client.rest()
        assert [400] == statuses(answer)
        assert b"connection: close" in answer.lower()
        assert "malformed_request" == json.loads(body_of(answer))["error"]["code"]


def test_a_framing_error_in_a_body_is_recorded_once(running: Server) -> None:
    """As its request's refusal."""
    with _client(running, "tcp") as client:
        client.send(head("POST", CHAT, "Transfer-Encoding: chunked", key=KEY) + b"1\r\n{\r\n")
        client.send(b"zz\r\n")
        answer = client.rest()
    request = next(line for line in answer.split(b"\r\n") if line.startswith(b"x-request-id")).split()[1].decode()
    record = running.audited(request)
    assert ("malformed_request", 400, CHAT) == tuple(record[name] for name in ("code", "status", "endpoint"))


@pytest.mark.parametrize("kind", KINDS)
def test_requests_sent_ahead_are_answered_in_order(running: Server, kind: str) -> None:
    """Also those with bodies, in chunks or not."""
    ask = head("POST", "/v1/completions", "Transfer-Encoding: chunked", key=KEY) + chunked(_body(), 7)
    with _client(running, kind) as client:
        client.send(head("GET", "/health") + post(_body(), key=KEY) + ask + head("GET", "/none", "Connection: close")
                    + SECOND)
        assert [200, 200, 200, 404] == statuses(client.rest())


@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_who_waits_for_a_go_ahead_gets_it(running: Server, kind: str) -> None:
    """With a key: 100, then the answer. Without: the refusal and the end, as the body may never come; what comes in its
    place afterwards is not answered."""
    body = _body()
    with _client(running, kind) as client:
        client.send(head("POST", "/v1/completions", "Expect: 100-continue", f"Content-Length: {len(body)}", key=KEY))
        assert [100] == statuses(client.until(b"\r\n\r\n"))
        client.send(body + head("GET", "/health", "Connection: close"))
        assert [200, 200] == statuses(client.rest())
    with _client(running, kind) as client:
        client.send(head("POST", "/v1/completions", "Expect: 100-continue", f"Content-Length: {len(body)}"))
        refused = client.until(b'"}}')
        client.send(SECOND)
        assert [401] == statuses(refused + client.rest())


@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_other_protocols_are_not_taken_up(running: Server, kind: str) -> None:
    """HTTP/2 and WebSocket in the clear: the request is answered as it is, and the next one, too."""
    for offer in ("h2c", "websocket"):
        with _client(running, kind) as client:
            client.send(head("GET", "/health", f"Upgrade: {offer}", "Connection: Upgrade, HTTP2-Settings",
                             "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"))
            client.send(head("GET", "/none", "Connection: close"))
            assert [200, 404] == statuses(client.rest())
    with _client(running, kind) as client:
        client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SECOND)
        assert [400] == statuses(client.rest())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True])
def test_who_ends_its_side_is_answered(running: Server, kind: str, stream: bool) -> None:
    """A whole answer and a stream come to their ends, and are recorded as answered."""
    with _client(running, kind) as client:
        client.send(post(_body(max_tokens=480, stream=stream), key=KEY))
        client.end()
        answer = client.rest()
    assert [200] == statuses(answer)
    body = body_of(answer)
    assert body.endswith(b"data: [DONE]\n\n") if stream else "length" == json.loads(body)["choices"][0]["finish_reason"]
    request = next(line for line in answer.split(b"\r\n") if line.startswith(b"x-request-id")).split()[1].decode()
    assert ("request.done", 200, "length", 480) == tuple(
        running.audited(request)[name] for name in ("event", "status", "finish", "completion_tokens"))


@pytest.mark.parametrize("kind", KINDS)
def test_who_ends_its_side_after_several_requests_is_answered(running: Server, kind: str) -> None:
    """All of them, those that are refused included; then the connection ends."""
    with _client(running, kind) as client:
        client.send(post(_body(), key=KEY) + post(_body(), path="/none") + post(_body()) + post(_body(), key=KEY))
        client.end()
        assert [200, 404, 401, 200] == statuses(client.rest())


@pytest.mark.parametrize("kind", KINDS)
def test_who_ends_its_side_at_rest_is_left(running: Server, kind: str) -> None:
    """Before a request, within one, and after its answer there is nothing to wait for."""
    for begun in (b"", b"GET / HT", post(_body(), key=KEY)[:-1]):
        with _client(running, kind) as client:
            client.send(begun)
            client.end()
            assert b"" == client.rest()
    with _client(running, kind) as client:
        client.send(head("GET", "/health"))
        client.until(b"}]}")
        client.end()
        client.rest()


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_refused_with_much_unsent_gets_the_refusal(running: Server, kind: str) -> None:
    """A long body without a key is not read, and the refusal still comes whole; the next request does not."""
    for framed in (post(b" " * 700_000), head("POST", "/v1/completions", "Transfer-Encoding: chunked")
                   + chunked(b" " * 100_000, 1)):
        with _client(running, kind) as client:
            client.send(framed + SECOND)
            answer = client.rest()
        assert [401] == statuses(answer)
        assert "invalid_api_key" == json.loads(body_of(answer))["error"]["code"]


@pytest.mark.parametrize("size", [1, 10, 1000, 100_000])
def test_bodies_come_in_chunks_of_any_size(running: Server, size: int) -> None:
    """Ten thousand of them are an answer, and more where they are not tiny."""
    body = _body(prompt="x", metadata={"a": "y" * (9_000 if size == 1 else 60_000)})
    with _client(running, "tcp") as client:
        client.send(head("POST", "/v1/completions", "Transfer-Encoding: chunked", "Connection: close", key=KEY)
                    + chunked(body, size))
        assert [200] == statuses(client.rest())


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_in_small_chunks_whose_client_ends_its_side(running: Server, kind: str) -> None:
    """All of it is read before the end is, and answered."""
    with _client(running, kind) as client:
        client.send(head("POST", "/v1/completions", "Transfer-Encoding: chunked", key=KEY)
                    + chunked(_body(prompt="x", metadata={"a": "y" * 4000}), 1))
        client.end()
        assert [200] == statuses(client.rest())


@pytest.mark.parametrize("chunk", [b"1\r\n \r\n" * 1_000_000 + b"0\r\n\r\n", b"1;a=b\r\n \r\n" * 20_000],
                         ids=["many", "with extensions"])
def test_bodies_in_too_many_pieces_are_refused(running: Server, chunk: bytes) -> None:
    """With 413, and the connection ends."""
    with _client(running, "tcp") as client:
        client.send(head("POST", "/v1/completions", "Transfer-Encoding: chunked", key=KEY) + chunk + SECOND)
        answer = client.rest()
    assert ([413], "body_too_large") == (statuses(answer), json.loads(body_of(answer))["error"]["code"])


@pytest.mark.parametrize(("path", "more"), [
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 29_000}]}),
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "metadata": [[]] * 200_000}),
    ("/v1/completions", {"prompt": "x", "stop": [""] * 100_000})])
def test_bodies_of_too_many_values_are_refused(running: Server, path: str, more: dict[str, Any]) -> None:
    """With 400, and what is allowed."""
    with running.http() as http:
        answer = http.post(path, json={"model": "tiny", **more})
    assert (400, "invalid_value") == (answer.status_code, answer.json()["error"]["code"])
    assert "the body has too many values" in answer.json()["error"]["message"]


def test_a_half_open_unix_client_is_told_from_one_that_is_gone(running: Server) -> None:
    """The kernel knows: nothing is sent early to find out."""
    with _client(running, "unix") as client:
        client.send(post(_body(max_tokens=480), key=KEY))
        client.socket.shutdown(socket.SHUT_WR)
        assert client.receive().startswith(b"HTTP/1.1 200")


def test_raw_clients_speak_http() -> None:
    """What the clients here send is what others send."""
    assert b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" == raw.post(b"{}").split(b"Content-Type")[0]


def test_a_refused_stream_of_chunks_costs_little(running: Server) -> None:
    """What comes without a key after a refusal is thrown away, not taken apart: the server is done with it long before
    it would have read half a million chunks."""
    with _client(running, "tcp") as client:
        client.send(head("POST", "/v1/completions", "Transfer-Encoding: chunked"))
        assert [401] == statuses(client.until(b'"}}'))
        sent = 0
        try:
            while sent < 100 << 20:
                client.push(b"1\r\n \r\n" * 10_000)
                sent += 60_000
        except OSError:
            pass
    assert sent < 20 << 20  # the bound and what the kernel holds
