"""The audit log of version 2, by a server: chained over boots, without content, and verified offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.auditor.examine import examine
from appliance.auditor.held import read
from appliance.auditor.outcome import Report
from appliance.auditor.statedisk import examine as examine_disk
from appliance.cli.main import main
from appliance.keys.providers import FileKey
from appliance.state.frames import AUDIT
from tests.support.engines import synthetic_model
from tests.support.server import KEY, OTHER_KEY, Server, sha256, write_policy

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
    assert report.records - 1 == report.signed
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


STATE = """
state {{
  device = "{device}"
  key {{
    provider = "file"
    path     = "{key}"
  }}
}}
"""


@pytest.fixture
def disk() -> Iterator[Path]:
    """A disk in memory: the policy names devices below /dev."""
    path = Path(f"/dev/shm/appliance-chained-{os.getpid()}")  # noqa: S108
    path.write_bytes(b"")
    os.truncate(path, 4 << 20)
    yield path
    path.unlink()


def test_a_log_on_the_state_disk_outlives_kills(
        tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One log and one key over all boots; what a kill left is whole, and receipts of each boot hold against the end.
    Requests' records are sealed, and their periods' keys outlive kills, too."""
    key, model = tmp_path / "state.key", tmp_path / "tiny.gguf"
    key.write_text("1f" * 32)
    key.chmod(0o600)
    model.write_bytes(synthetic_model("Q8_0"))
    policy = write_policy(tmp_path, {"tiny": model}, schema=2, audit='sink = "state"\n receipts = true',
                          privacy='retention { audit = "30d" }')
    policy.write_text(policy.read_text() + STATE.format(device=disk, key=key))
    kept = []
    for boot in range(3):
        server = Server(policy, [model]).wait_ready()
        with server.http() as client:
            body = {"model": "tiny", "prompt": "x", "max_tokens": 2}
            answer = client.post("/v1/completions", json=body, headers={"appliance-receipt": "1"})
            kept.append(tmp_path / f"receipt {boot}")
            kept[-1].write_bytes(answer.content)
        if boot < 2:
            server.process.kill()
            server.process.wait()
        else:
            server.stop()
    with FileKey(key).key() as secret:
        lines = [frame.payload for frame in examine_disk(disk, secret)[2] if frame.kind == AUDIT]
    report = examine(lines, anchors=[read(path) for path in kept])
    assert (None, [], 1) == (report.bad, report.notes, len({boot.audit_key for boot in report.boots}))
    assert [1, 2, 3] == [boot.epoch for boot in report.boots]
    assert report.records - 1 == report.proved
    assert not any(b"tenant" in line for line in lines if b'"request.done"' in line)
    keys, log = tmp_path / "keys.json", tmp_path / "audit.jsonl"
    assert 0 == main(["state", str(disk), "--key", str(key), "--period-keys", str(keys)])
    log.write_text(capsys.readouterr().out)
    assert 0 == main(["audit", "open", str(log), "--period-keys", str(keys)])
    done = [said for said in map(json.loads, capsys.readouterr().out.splitlines()) if said["event"] == "request.done"]
    assert [("user", "tiny", True)] * 3 == [(each["tenant"], each["model"], each["receipt"]) for each in done
                                            if "model" in each]
    older = lines[:report.boots[2].first]  # the disk as it was before the last boot
    assert len(older) == getattr(examine(older, anchors=[read(kept[2])]).bad, "position", None)


def test_the_auditor_alone_reads_detail(tmp_path: Path) -> None:
    """Exact counts where the log has rounded ones, and which key asked; another key opens nothing."""
    private = tmp_path / "auditor.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "x25519", "-out", private], check=True)
    raw = subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-outform", "DER"], check=True,
                         capture_output=True).stdout[-32:]
    model = tmp_path / "tiny.gguf"
    model.write_bytes(synthetic_model("Q8_0"))
    policy = write_policy(tmp_path, {"tiny": model}, schema=2, privacy=f"""token_count_rounding = 64
        auditor_key = "x25519:{raw.hex()}" """)
    server = Server(policy, [model]).wait_ready()
    try:
        with server.http() as client:
            body = {"model": "tiny", "prompt": "twelve bytes", "max_tokens": 3}
            assert 64 == client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"]
    finally:
        server.stop()
    command = [sys.executable, "-m", "appliance", "audit", "detail", tmp_path / "audit.jsonl", "--auditor-key"]
    told = json.loads(subprocess.run([*command, private], check=True, capture_output=True).stdout)
    (done,) = server.audit("request.done")
    assert (done["request"], 3, sha256(KEY)) == (told["request"], told["completion_tokens"], told["key_sha256"])
    assert (64, 64) == (done["prompt_tokens"], done["completion_tokens"])
    assert 12 <= told["prompt_tokens"] < 64
    other = tmp_path / "other.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "x25519", "-out", other], check=True)
    assert 2 == subprocess.run([*command, other], check=False, capture_output=True).returncode
