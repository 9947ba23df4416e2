"""A pack of a service that ran: its own log, report, evidence, checkpoint and receipts, as an operator takes them."""

from __future__ import annotations

import contextlib
import json
import threading
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from appliance.auditor.archive import manifest
from appliance.auditor.claims import table
from appliance.auditor.claims.case import Case, Given
from appliance.auditor.pack import gather, judge
from appliance.auditor.pack.gather import Files
from appliance.auditor.pack.judge import Outcome
from tests.support import synthetic, waiting
from tests.support.server import Server, write_policy

CANARY = "xyzzy-canary-8852"
NONCE = bytes(range(32))


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Outcome]:
    """A pack, and its judgement."""
    folder = tmp_path_factory.mktemp("packed")
    model = folder / "tiny.gguf"
    model.write_bytes(synthetic.model(synthetic.VARIANTS["Q8_0"], 4096))
    path = write_policy(folder, {"tiny": model}, schema=2, audit="receipts = true")
    server = Server(path, [model]).wait_ready()
    try:
        with server.http() as client:
            for number in range(3):
                answer = client.post("/v1/completions", headers={"appliance-receipt": "1"}, json={
                    "model": "tiny", "prompt": f"{CANARY} once", "max_tokens": 4, "stream": number == 1})
                (folder / f"answer-{number}.json").write_bytes(answer.content)
            client.post("/v1/completions", json={"model": "tiny", "prompt": CANARY, "temperature": 99})
            (folder / "health.json").write_bytes(client.get("/health").content)
            (folder / "evidence.json").write_bytes(client.get(f"/v1/attestation?nonce={NONCE.hex()}").content)
    finally:
        server.stop()
    given = Given(datetime.now(UTC).replace(microsecond=0), nonces=(NONCE,))
    data, _ = judge.written(gather.members(Files(
        policy=path, log=folder / "audit.jsonl", health=folder / "health.json", evidence=(folder / "evidence.json",),
        receipts=[folder / f"answer-{number}.json" for number in range(3)])), given)
    return data, judge.judge(data, given)


def test_nothing_speaks_against_it(packed: tuple[bytes, Outcome]) -> None:
    """What simulated evidence cannot show is not shown; the rest holds."""
    found = packed[1].findings
    assert [] == packed[1].failed
    for name in ("evidence-verified", "evidence-policy", "evidence-models", "evidence-fresh"):
        assert "not checked" == found[name].outcome
        assert "simulated" in found[name].detail
    for name in ("policy-valid", "boot-report", "log-policy", "log-lossless", "log-requests", "log-tenants",
                 "log-refusals", "log-changes", "receipts-logged"):
        assert "holds" == found[name].outcome, found[name]
    for name in ("log-whole", "log-attested", "log-held", "receipts-hold"):
        assert "not checked" == found[name].outcome, found[name]
    assert "by the log's own word alone" in found["log-policy"].detail


def test_neither_prompts_nor_answers_are_in_it(packed: tuple[bytes, Outcome]) -> None:
    """In no member, and no answer's text either."""
    for name, content in manifest.unpack(packed[0])[1].items():
        assert CANARY.encode() not in content, name


def test_its_report_counts_what_was_asked(packed: tuple[bytes, Outcome]) -> None:
    """Three answers and a refusal, by the log."""
    page = manifest.unpack(packed[0])[1]["report.html"].decode()
    assert "<b>0</b>" in page
    assert "invalid" in page
    assert 3 == json.dumps(packed[1].as_json()).count("receipts/answer-")


@pytest.mark.slow
def test_two_streams_that_a_kill_cut_are_an_exception(tmp_path: Path, tiny_model: Path) -> None:
    """The case as it was tried: a service that is killed under two streams, and booted again. Its log keeps the word
    on requests, but for these, by their epoch, for the rest of its life."""
    policy = write_policy(tmp_path, {"tiny": tiny_model}, schema=2, privacy='timing_padding { total = "600s" }')
    server, log, asked = Server(policy, [tiny_model]).wait_ready(), tmp_path / "audit.jsonl", []
    body = {"model": "tiny", "prompt": "x", "max_tokens": 4, "stream": True}
    for _ in range(2):
        asked.append(threading.Thread(target=_ask, args=(server, body), daemon=True))
        asked[-1].start()
    waiting.until(lambda: 2 == log.read_bytes().count(b'"event":"stream.started"'), "two streams that began",
                  lambda: waiting.processor_time(server.process.pid))
    server.process.kill()
    server.process.wait()
    for each in asked:
        each.join()
    policy.write_text(policy.read_text().replace('total = "600s"', 'total = "0s"'))
    again = Server(policy, [tiny_model]).wait_ready()
    try:
        _ask(again, body)
    finally:
        again.stop()
    found = table.judge(Case(gather.members(Files(policy=policy, log=log)), Given(datetime.now(UTC))))["log-requests"]
    assert "holds" == found.outcome, found
    assert "but for 2 streams that ended with the boot" in found.detail
    assert found.detail.endswith(": 2 in epoch 1")


def _ask(server: Server, body: dict[str, object]) -> None:
    """Ask, and read what comes until it ends or breaks."""
    with contextlib.suppress(httpx.HTTPError), server.http() as client:
        client.post("/v1/completions", json=body)
