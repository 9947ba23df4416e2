"""Timestamps of checkpoints: what the authority is asked, which answers are records, and what they prove."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance import hostclock
from appliance.api.problems import RequestError
from appliance.audit.chain import Chain
from appliance.audit.log import AuditLog
from appliance.auditor.examine import Trust, examine
from appliance.auditor.outcome import Report
from appliance.cli.main import main
from appliance.codec.canonical import canonical
from appliance.policy.schema import TimestampAuthority
from appliance.service.attesting.timestamps import Timestamps
from appliance.signed import timestamps
from tests.support.timestamping import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tsa") / "a")


class Log:
    """A log in memory, with an authority."""

    def __init__(self, root_sha256: str) -> None:
        self.out = io.BytesIO()
        self.audit = AuditLog(self.out, strict=True, version=3)
        self.audit.begin(Chain(), Ed25519PrivateKey.generate())
        self.stamps = Timestamps(self.audit, TimestampAuthority(url="https://tsa.example", root_sha256=root_sha256))
        self.root_sha256 = root_sha256

    @property
    def lines(self) -> list[bytes]:
        return self.out.getvalue().splitlines(keepends=True)

    def report(self) -> Report:
        return examine(self.lines, trust=Trust(authority_sha256=self.root_sha256))

    def asked(self) -> bytes:
        return base64.b64decode(self.stamps.request()["request"])


@pytest.fixture
def log(authority: Authority) -> Log:
    return Log(authority.fingerprint())


def test_a_round(log: Log, authority: Authority, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing before the first checkpoint; then a token, once; and the auditor is told what it proves."""
    assert {"url": "https://tsa.example", "request": None} == log.stamps.request()
    log.audit.checkpoint()
    response = authority.answer(log.asked())
    assert 1 == log.stamps.take(response)["size"]
    assert log.stamps.request()["request"] is None
    before = log.out.getvalue()
    assert 1 == log.stamps.take(response)["size"]  # it may be relayed again, and is a record once
    assert before == log.out.getvalue()
    log.audit.checkpoint()
    report = log.report()
    (stamp,) = report.stamps
    assert (None, 1, "Example tsa") == (report.bad, stamp.size, stamp.authority)
    assert timedelta(minutes=1) > abs(datetime.now(UTC) - stamp.time)
    assert "timestamps were not checked: the authority's certificate was not named" in examine(log.lines).notes
    path = tmp_path / "audit.jsonl"
    path.write_bytes(log.out.getvalue())
    assert 0 == main(["audit", "verify", str(path), "--authority", log.root_sha256])
    assert "1 valid timestamp; record 0 and all before it existed at 2" in capsys.readouterr().out
    assert 0 == main(["audit", "verify", str(path), "--authority", log.root_sha256, "--json"])
    assert [1] == [each["size"] for each in json.loads(capsys.readouterr().out)["timestamps"]]


def test_an_older_checkpoint_may_be_dated(log: Log, authority: Authority) -> None:
    """A relay that is late is heard for the newest few; a token for something else, or by another, is not."""
    log.audit.checkpoint()
    first = authority.answer(log.asked())
    log.audit.write("service.draining", in_flight=1)
    log.audit.checkpoint()
    assert 1 == log.stamps.take(first)["size"]
    for wrong in (authority.answer(timestamps.request(bytes(32))), b"", b"x" * 100, first[:-1]):
        with pytest.raises(RequestError, match=r"not a token|TimeStampResp"):
            log.stamps.take(wrong)
    other = Log("ab" * 32)
    other.audit.checkpoint()
    with pytest.raises(RequestError, match="not pinned"):
        other.stamps.take(authority.answer(other.asked()))


def test_without_an_authority_there_is_nothing(log: Log) -> None:
    """Neither request nor answer."""
    none = Timestamps(log.audit, None)
    for call in (none.request, lambda: none.take(b"")):
        with pytest.raises(RequestError):
            call()


def test_a_false_record_is_named(log: Log, authority: Authority) -> None:
    """A token in the log that is another checkpoint's, or has another byte, is the first bad record."""
    log.audit.checkpoint()
    log.stamps.take(authority.answer(log.asked()))
    record = json.loads(log.lines[2])
    assert "audit.timestamped" == record["event"]
    token = bytes.fromhex(record["token"])
    for odd in (token[:-1] + bytes((token[-1] ^ 1,)), token + b"\0", token.replace(b"Example root", b"Example toor")):
        altered = [*log.lines[:2], canonical({**record, "token": odd.hex()}) + b"\n"]
        bad = examine(altered, trust=Trust(authority_sha256=log.root_sha256)).bad
        assert bad is not None
        assert (2, "a timestamp") == (bad.position, bad.what[:11])


def test_another_policy_may_have_named_another_authority(log: Log, authority: Authority) -> None:
    """Tokens are judged by the root that the policy of their own boot pins, and others are told."""
    log.audit.write("boot.start", version="0.1.0", platform="simulated", policy_sha384="ab" * 48)
    log.audit.checkpoint()
    log.stamps.take(authority.answer(log.asked()))
    for under, root, counted in (("ab", log.root_sha256, 1), ("cd", log.root_sha256, 0), ("cd", "00" * 32, 0)):
        report = examine(log.lines, trust=Trust(authority_sha256=root, authority_policy=under * 48))
        assert (None, counted) == (report.bad, len(report.stamps))
        assert counted != any("under another policy" in each for each in report.notes)
    bad = examine(log.lines, trust=Trust(authority_sha256="00" * 32, authority_policy="ab" * 48)).bad
    assert bad is not None


def test_a_clock_that_is_ahead_is_named(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that say a later time than the one by which they existed."""
    real = hostclock.seconds
    monkeypatch.setattr(hostclock, "seconds", lambda: real() + 86_400)
    log = Log(authority.fingerprint())
    log.audit.checkpoint()
    log.stamps.take(authority.answer(log.asked()))
    assert any("the host's clock was ahead" in note for note in log.report().notes)


def test_the_imprint_is_of_the_notes_text(log: Log) -> None:
    """What a stranger computes: SHA-256 over the three lines of the checkpoint."""
    made = log.audit.checkpoint()
    assert made is not None
    assert hashlib.sha256(made.checkpoint.text.encode()).digest() in log.asked()
