"""The last line: what no handler foresaw still becomes an answer, a record and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from http import HTTPStatus
from pathlib import Path
from typing import Any

import h11
import pytest

from appliance.attestation.binding import Build
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.audit import endpoints
from appliance.audit.log import AuditLog
from appliance.boot.booted import Booted
from appliance.boot.checks import Operator
from appliance.boot.planning.budget import Division
from appliance.boot.report import BootReport
from appliance.boot.selftest.run import SelfTest
from appliance.boot.stdlib import Silence
from appliance.policy import load
from appliance.sandbox.box import Sandbox
from appliance.sandbox.calls import Needs
from appliance.service.answering.guard import HEAD_PADDING, Guard, padded_head
from appliance.service.parts.exchange import Exchange, path_of
from appliance.service.parts.wiring import Wiring, assemble
from appliance.signed.tenants import TenantList
from tests.support.server import write_policy

CANARY = "Zq7canaryWORDx9"


class Sink(io.BytesIO):
    """A sink that can be filled up, and read after it was closed."""

    full = False

    def write(self, data: Any) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(data)


@pytest.fixture
def service(tmp_path: Path) -> Wiring:
    """A service over a policy without any model loaded."""
    model = tmp_path / "model.gguf"
    model.write_bytes(b"none")
    loaded = load(write_policy(tmp_path, {"tiny": model}))
    audit = AuditLog(Sink(), strict=True)
    attestor = Attestor(SimulatedProvider(bytes(32)), BoundFacts(bytes(48), bytes(48), Build(version="1")))
    tested = SelfTest((), "portable", "none", None, "none")
    booted = Booted(loaded.policy, Division({}, (), None), loaded.digest, Operator(),
                    TenantList(loaded.policy.tenants.tenants), {}, attestor, audit, Silence(audit), tested,
                    Sandbox(Needs(), tolerant=True), None, BootReport())
    return assemble(booted, contextlib.ExitStack())


def _ask(service: Wiring, app: Any, look: Any = None) -> list[Any]:
    """The messages that a request gets from an application behind the guard, or what `look` finds at each."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message if look is None else look())

    scope: Any = {"type": "http", "scheme": "http", "path": f"/{CANARY}", "raw_path": f"/{CANARY}".encode(),
                  "query_string": CANARY.encode(), "method": "GET", "headers": [(b"x", CANARY.encode())]}
    asyncio.run(Guard(app, service)(scope, receive, send))
    return sent


def _records(service: Wiring) -> list[dict[str, Any]]:
    sink: Any = service.audit._out._sink
    return [json.loads(line) for line in sink.getvalue().splitlines()]


CHAT = "/v1/chat/completions"
TARGETS = [  # target, over TLS, path
    (b"/health", False, "/health"), (b"/", False, "/"), (b"//v1///models//", True, "/v1/models"),
    (b"/v1/%6dodels", False, "/v1/models"), (b"/v1%2fmodels", False, "/v1%2fmodels"),
    (b"/v1/models/a%2F..%2Fb", False, "/v1/models/a%2F..%2Fb"), (b"/v1/%2e%2e/health", False, "/v1/../health"),
    (b"/%252fhealth", False, "/%2fhealth"), (b"/health%3Fa", False, "/health?a"),
    (b"/http://x/health", False, "/http:/x/health"),
    (b"http://x/v1/chat/completions", False, CHAT), (b"HTTP://X:80//v1/chat/completions/", False, CHAT),
    (b"https://[::1]:443/v1/chat/completions", True, CHAT), (b"http://x", False, "/"), (b"http://x/", False, "/"),
    (b"https://x/health", False, None), (b"http://x/health", True, None), (b"ftp://x/health", False, None),
    (b"http://a@x/health", False, None), (b"http:///health", False, None), (b"http:/health", False, None),
    (b"http://", False, None), (b"health", False, None), (b"", False, None), (b"*", False, None), (b"x:1", False, None),
]


@pytest.mark.parametrize(("target", "tls", "path"), TARGETS)
def test_paths_of_targets(target: bytes, tls: bool, path: str | None) -> None:
    """A path or a URL of this connection names a path; an encoded slash is none."""
    assert path == path_of(target, "https" if tls else "http")
    if path is None or "%" in path or ".." in path:
        assert endpoints.name_of(path or "") in ("other", "/v1/models/{model}")


async def _raises(scope: Any, _receive: Any, _send: Any) -> None:
    raise ValueError(f"{CANARY} in {scope}")


async def _answers(scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"all", "more_body": False})


async def _breaks_off(scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"a part", "more_body": True})
    raise KeyError(CANARY)


def test_an_unforeseen_exception_says_nothing(service: Wiring, capfd: pytest.CaptureFixture[str]) -> None:
    """It becomes a 500 in OpenAI's shape, one refusal in the log, and its class; its words are nowhere."""
    sent = _ask(service, _raises)
    assert 500 == sent[0]["status"]
    assert "internal_error" == json.loads(sent[1]["body"])["error"]["code"]
    records = _records(service)
    assert ["runtime.exception", "request.refused"] == [record["event"] for record in records]
    assert ("ValueError", "request") == (records[0]["type"], records[0]["where"])
    assert ("internal_error", 500, "other") == tuple(records[1][name] for name in ("code", "status", "endpoint"))
    output = capfd.readouterr()
    for text in (repr(sent), repr(records), output.out, output.err, service.books.metrics.text().decode()):
        assert CANARY not in text


def test_an_answer_that_breaks_off_is_just_ended(service: Wiring) -> None:
    """After the first byte there is nothing left to say; the record says that it failed."""
    assert ["http.response.start", "http.response.body"] == [message["type"] for message in _ask(service, _breaks_off)]
    assert (200, "internal_error") == tuple(_records(service)[-1][name] for name in ("status", "code"))


@pytest.mark.parametrize(("parts", "spaces"), [
    ([17_000, 17_000, 6_960], 0), ([16] * 2_560, 0), ([40_960], 0), ([17_000, 17_000, 6_000], 960), ([100], 40_860)])
def test_pieces_of_padded_answers(parts: list[int], spaces: int, service: Wiring) -> None:
    """Of answers that are padded to the same size all pieces, which are records over TLS, have the same sizes: in
    whatever parts they are made, and also where no space is needed."""
    async def padded(scope: Any, _receive: Any, send: Any) -> None:
        Exchange.of(scope).departure.spaces = spaces
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for number, size in enumerate(parts, 1):
            await send({"type": "http.response.body", "body": bytes(size), "more_body": number < len(parts)})

    assert [16_384, 16_384, 8_192] == [len(message["body"]) for message in _ask(service, padded)[1:]]


def test_unrecorded_requests_are_refused(service: Wiring) -> None:
    """An answer or a refusal that the log cannot take does not leave, and the next request is refused at once."""
    sink: Any = service.audit._out._sink
    for app in (_raises, _answers, _breaks_off):
        service.readiness.unaudited, sink.full = False, True
        for _ in range(2):
            sent = _ask(service, app)
            assert (503, "audit_unavailable") == (sent[0]["status"], json.loads(sent[1]["body"])["error"]["code"])
            assert service.readiness.unaudited


def test_the_record_is_there_before_the_first_byte(service: Wiring) -> None:
    """Of an answer and of a refusal: whoever sees any of it can read its record."""
    for app, event in ((_answers, "request.done"), (_raises, "request.refused")):
        seen = _ask(service, app, lambda: [record["event"] for record in _records(service)])
        assert [event, event] == [events[-1] for events in seen]


@pytest.mark.parametrize("status", [200, 401, 429, 503])
@pytest.mark.parametrize("asked", [
    "HTTP/1.1\r\n", "HTTP/1.1\r\nConnection: close\r\n", "HTTP/1.0\r\n", "HTTP/1.1\r\nConnection: x, Close\r\n"])
@pytest.mark.parametrize("more", [{}, {"content-length": "5"}, {"content-length": "4096", "connection": "close"},
                                  {"appliance-ignored": "a, b" * 99}], ids=["chunked", "counted", "closed", "noted"])
def test_heads_have_one_size(status: int, asked: str, more: dict[str, str]) -> None:
    """With what the server adds to them, as it writes them, whatever was asked and is answered."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(f"POST {CHAT} {asked}Host: x\r\n\r\n".encode())
    request = connection.next_event()
    assert isinstance(request, h11.Request)
    scope: Any = {"http_version": request.http_version.decode(), "headers": [*request.headers]}
    told = [(name.encode(), value.encode()) for name, value in {"content-type": "text/plain", **more}.items()]
    reason = HTTPStatus(status).phrase.encode()
    written = connection.send(h11.Response(status_code=status, headers=padded_head(status, told, scope), reason=reason))
    assert written.startswith(b"HTTP/1.1 %d %b\r\n" % (status, reason))
    assert HEAD_PADDING == len(written)
