"""The audit log of version 2, by a server: chained over boots, without content, and verified offline."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from appliance.auditor.examine import Report, examine
from tests.support.engines import synthetic_model
from tests.support.server import OTHER_KEY, Server, write_policy

CANARY = "xyzzy-canary-7741"


def _report(folder: Path) -> Report:
    return examine((folder / "audit.jsonl").read_bytes().splitlines(keepends=True))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a server that was booted twice and asked the same by two tenants, streamed and whole."""
    folder = tmp_path_factory.mktemp("chained")
    model = folder / "tiny.gguf"
    model.write_bytes(synthetic_model("Q8_0"))
    policy = write_policy(folder, {"tiny": model}, schema=2, audit='checkpoint_interval = "1s"')
    for boot in range(2):
        server = Server(policy, [model]).wait_ready()
        try:
            for key in ("sk-test-user", OTHER_KEY):
                for stream in (False, True):
                    body = {"model": "tiny", "prompt": f"{CANARY} {boot}", "max_tokens": 4, "stream": stream}
                    with server.http(key) as client:
                        assert 200 == client.post("/v1/completions", json=body).status_code
                        assert 400 == client.post("/v1/completions", json={**body, "temperature": -1}).status_code
            time.sleep(1.2)
        finally:
            server.stop()
    return folder


def test_two_boots_are_one_log(served: Path) -> None:
    """The second boot goes on where the first ended: epoch, sequence and previous head stand in its first record."""
    report = _report(served)
    assert report.bad is None
    assert [1, 2] == [boot.epoch for boot in report.boots]
    assert report.records - 1 == report.proved
    assert 4 <= report.checkpoints  # one by the interval and one at the end, of each boot


def test_no_record_has_content_or_a_common_value(served: Path) -> None:
    """Equal requests and answers of two tenants, and of one, have digests without a value in common."""
    text = (served / "audit.jsonl").read_text()
    assert CANARY not in text
    done = [record for record in map(json.loads, text.splitlines()) if record["event"] == "request.done"]
    digests = [record[name] for record in done for name in ("request_digest", "answer_digest")]
    assert (8, 16, 16) == (len(done), len(digests), len(set(digests)))
    refused = [record for record in map(json.loads, text.splitlines()) if record["event"] == "request.refused"]
    assert {"temperature"} == {record["param"] for record in refused}
