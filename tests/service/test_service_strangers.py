"""Whoever has no key can make the service write little: floods are counted, and a full disk still says what it is."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.audit.chain import Chain
from appliance.auditor.statedisk import examine
from appliance.keys.providers import Secret
from appliance.state import room
from appliance.state.disk import StateDisk
from appliance.state.frames import AUDIT, MIN_DISK_BYTES
from tests.support.server import AUDITOR_KEY, OTHER_KEY, Server, write_policy

SECRET = bytes(range(9, 41))
STATE = """
state {{
  device = "{device}"
  key {{
    provider = "file"
    path     = "{key}"
  }}
}}
"""
BODY = {"model": "tiny", "prompt": "a", "max_tokens": 1}
FULL, RESERVE = room.OWN_BYTES, 300_000  # bytes that are left for the log before a boot
TLS = """listen "api" {
    kind = "ra-tls"
    port = 8443
  }"""


@pytest.fixture
def device() -> Iterator[Path]:
    """A blank state disk, in memory; policies name devices below /dev."""
    path = Path(f"/dev/shm/appliance-test-strangers-{os.getpid()}")  # noqa: S108
    path.write_bytes(b"")
    os.truncate(path, MIN_DISK_BYTES)
    yield path
    path.unlink()


@pytest.fixture
def start(tmp_path: Path, tiny_model: Path, device: Path) -> Iterator[Callable[[], Server]]:
    """Starts the service with the disk; each ends with the test."""
    key = tmp_path / "key"
    key.write_text(SECRET.hex())
    key.chmod(0o600)
    running: list[Server] = []

    def begin(schema: int = 2) -> Server:
        policy = write_policy(tmp_path, {"tiny": tiny_model}, schema=schema, audit='sink = "state"')
        policy.write_text(policy.read_text() + STATE.format(device=device, key=key))
        running.append(Server(policy, [tiny_model], measured=False))
        return running[-1].wait_ready()

    yield begin
    for server in running:
        server.stop()


def _fill(device: Path, left: int) -> None:
    """Fill a disk until `left` bytes are free; the log has lines that are no record of version 2."""
    disk = StateDisk(device, Secret(bytearray(SECRET)))
    line = json.dumps({"v": 1, "filler": "x" * 900}).encode() + b"\n"
    while disk.free > left + 1000:
        disk.append(AUDIT, line)
    disk.close()


def _grow(device: Path, nbytes: int) -> None:
    os.truncate(device, device.stat().st_size + nbytes)


def _records(device: Path) -> list[dict[str, Any]]:
    frames = examine(device, Secret(bytearray(SECRET)))[2]
    found = [json.loads(frame.payload) for frame in frames if frame.kind == AUDIT]
    return [each for each in found if "filler" not in each]


def _counted(records: list[dict[str, Any]]) -> Counter[tuple[str, ...]]:
    """All counts of a log, by kind, endpoint and code."""
    found: Counter[tuple[str, ...]] = Counter()
    for record in records:
        if record["event"] != "requests.counted":
            continue
        for endpoint, count in record.get("answered", {}).items():
            found["answered", endpoint] += count
        for endpoint, codes in record.get("refused", {}).items():
            for code, count in codes.items():
                found["refused", endpoint, code] += count
        for kind in ("connections", "tenants"):
            for word, count in record.get(kind, {}).items():
                found[kind, word] += count
    return found


def _raw(server: Server, data: bytes) -> None:
    host, port = server.url.partition("//")[2].split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            while connection.recv(65536):
                pass


@pytest.mark.parametrize("schema", [1, 2])
def test_a_flood_without_a_key_takes_a_record_a_minute(schema: int, start: Any, device: Path) -> None:
    """1,278 wrong keys, other paths, no HTTP, and what is open to all: a handful of bytes on the disk, and each is
    counted; a tenant's request in between has a record of its own, and so has one of a key that may not ask."""
    server = start(schema)
    with server.http("sk-wrong") as http:
        before = http.get("/health").json()["state"]
        for _ in range(1278):
            assert 401 == http.post("/v1/completions", json=BODY).status_code
        for number in range(100):
            assert 404 == http.get(f"/no/such/path/{number}").status_code
            assert 200 == http.get("/v1/attestation?nonce=" + "00" * 32).status_code
        after = http.get("/health").json()["state"]
    for _ in range(20):
        _raw(server, b"\x16\x03\x01 no HTTP\r\n\r\n")
    assert 200 == server.http().post("/v1/completions", json=BODY).status_code
    assert 403 == server.http(AUDITOR_KEY).post("/v1/completions", json=BODY).status_code
    assert before["free_bytes"] - after["free_bytes"] < 20 * 1024, "the flood filled the disk"
    assert 0 == server.stop()
    records, counts = _records(device), _counted(_records(device))
    assert len(records) < 60
    assert {("refused", "/v1/completions", "invalid_api_key"): 1278, ("refused", "other", "not_found"): 100,
            ("refused", "other", "malformed_request"): 20, ("answered", "/v1/attestation"): 100,
            ("answered", "/health"): 2} == dict(counts)
    own = [(each["event"], each["tenant"]) for each in records if each["event"].startswith("request.")]
    assert [("request.done", "user"), ("request.refused", "auditor")] == own


def test_a_tenant_cannot_fill_the_disk_by_what_costs_it_nothing(start: Any, device: Path) -> None:
    """Refusals and lists of models, in plenty: sixty a minute have records, the others are counted by tenant, endpoint
    and code; each answer of a model, and what another tenant asks, has its own."""
    server = start()
    begun = time.monotonic()
    with server.http() as http:
        for _ in range(300):
            assert 404 == http.post("/v1/completions", json={**BODY, "model": "none"}).status_code
            assert 200 == http.get("/v1/models").status_code
        for _ in range(5):
            assert 200 == http.post("/v1/completions", json=BODY).status_code
    assert 404 == server.http(OTHER_KEY).post("/v1/completions", json={**BODY, "model": "none"}).status_code
    minutes = 2 + int((time.monotonic() - begun) // 60)
    assert 0 == server.stop()
    records = [each for each in _records(device) if "tenant" in each]
    assert 5 == len([each for each in records if each["event"] == "request.done" and "finish" in each])
    own = [each for each in records if each["tenant"] == "user" and "finish" not in each]
    assert 60 <= len(own) <= 60 * minutes
    counts = _counted(_records(device))
    assert 600 - len(own) == counts["tenants", "user"] == counts["answered", "/v1/models"] + counts[
        "refused", "/v1/completions", "model_not_found"]
    assert ["other"] == [each["tenant"] for each in records if each["tenant"] != "user"]


def test_a_full_disk_says_so_and_ends_in_order(start: Any, device: Path) -> None:
    """With nothing left but what the log keeps for itself: requests with a key are refused and told why, /health and
    /metrics tell what is left, strangers write nothing, the log is ended, and a larger disk goes on with all of it."""
    _fill(device, FULL)
    for _ in range(2):
        server = start()
        _refuses_by_name(server)
        assert 0 == server.stop()
    found = _records(device)
    assert "audit.closed" in [each["event"] for each in found[-3:]]
    assert 2 * 5 == _counted(found)["refused", "/v1/completions", "state_full"]
    _grow(device, 4 << 20)
    server = start()
    assert 200 == server.http().post("/v1/completions", json=BODY).status_code
    health = server.http().get("/health")
    assert (200, "ready", "ample") == (
        health.status_code, health.json()["status"], health.json()["state"]["room"])
    assert 0 == server.stop()
    assert found == _records(device)[:len(found)]
    _is_one_chain(device)


def _refuses_by_name(server: Server) -> None:
    with server.http() as http, server.http("sk-wrong") as stranger, server.http(AUDITOR_KEY) as auditor:
        for _ in range(5):
            answer = http.post("/v1/completions", json=BODY)
            assert (503, "state_full") == (answer.status_code, answer.json()["error"]["code"])
            assert "the operator makes it larger" in answer.json()["error"]["message"]
        left = http.get("/health").json()["state"]["free_bytes"]
        for _ in range(300):
            assert 401 == stranger.post("/v1/completions", json=BODY).status_code
        assert 200 == stranger.get("/v1/attestation?nonce=" + "00" * 32).status_code
        health = http.get("/health")
        assert (503, "full", "full", left) == (health.status_code, health.json()["status"],
                                               health.json()["state"]["room"], health.json()["state"]["free_bytes"])
        metrics = auditor.get("/metrics")
        assert 200 == metrics.status_code
        assert f"appliance_state_free_bytes {float(left)}" in metrics.text
        assert 'appliance_state_room{room="full"} 1.0' in metrics.text
    assert "state_full" in [json.loads(line)["event"] for line in server.text("stderr").splitlines()
                            if line.startswith("{")]


def _is_one_chain(device: Path) -> None:
    chain = Chain()
    for frame in examine(device, Secret(bytearray(SECRET)))[2]:
        if frame.kind == AUDIT:
            chain.follow(frame.payload.rstrip(b"\n"))  # AuditError where one does not follow
    assert chain.epoch > 1


def test_the_reserve_is_for_tenants(start: Any, device: Path) -> None:
    """In the last part of the disk a flood writes nothing, a tenant is served, and /health says that it is reached."""
    _fill(device, RESERVE)
    server = start()
    health = server.http().get("/health")
    assert (200, "ready", "reserve") == (health.status_code, health.json()["status"], health.json()["state"]["room"])
    with server.http("sk-wrong") as stranger:
        for _ in range(1000):
            assert 401 == stranger.post("/v1/completions", json=BODY).status_code
    assert health.json()["state"]["free_bytes"] == server.http().get("/health").json()["state"]["free_bytes"]
    assert 200 == server.http().post("/v1/completions", json=BODY).status_code


def test_a_boot_on_a_full_disk_says_how_to_grow_it(start: Any, device: Path) -> None:
    """Without room for a boot's records it stops at its step, writes nothing, and starts once the disk is larger."""
    _fill(device, room.BOOT_BYTES // 2)
    before = device.read_bytes()
    with pytest.raises(AssertionError, match=r"step state: .* are left.*|make the disk larger") as caught:
        start()
    assert "make the disk larger while the appliance is off" in str(caught.value)
    assert before == device.read_bytes()
    _grow(device, 1 << 20)
    assert 200 == start().http().post("/v1/completions", json=BODY).status_code


def test_a_log_that_fails_leaves_health_and_metrics(tmp_path: Path, tiny_model: Path) -> None:
    """A log in a file whose disk is full: each request is refused, and what the operator asks is answered."""
    server = Server(write_policy(tmp_path, {"tiny": tiny_model}), [tiny_model], audit_bytes=8192).wait_ready()
    try:
        with server.http() as http:
            codes = [http.post("/v1/completions", json={}).status_code for _ in range(40)]
            health = http.get("/health")
        assert 503 == codes[-1]
        assert (503, "unaudited") == (health.status_code, health.json()["status"])
        assert 200 == server.http(AUDITOR_KEY).get("/metrics").status_code
        assert 503 == server.http(AUDITOR_KEY).get("/v1/usage").status_code
    finally:
        server.stop()


def test_connections_without_a_request_are_counted(tmp_path: Path, tiny_model: Path) -> None:
    """Handshakes that fail have no record of their own, and stand in the counts."""
    policy = write_policy(tmp_path, {"tiny": tiny_model}, schema=2, listeners=TLS)
    server = Server(policy, [tiny_model]).wait_ready()
    try:
        for _ in range(30):
            _raw(server, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    finally:
        assert 0 == server.stop()
    records = server.audit()
    assert 30 == _counted(records)["connections", "handshake"]
    assert 1 == len([each for each in records if each["event"] == "requests.counted"])
