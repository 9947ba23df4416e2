"""A record that lost a field which it must have is not written: the log would be bad for ever."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.audit.chain import Chain
from appliance.audit.events import RETAINED, Vocabularies, schema
from appliance.audit.log import AuditLog
from appliance.audit.sink import open_chained
from appliance.auditor.examine import examine
from appliance.auditor.records import Reader, WrongRecordError
from appliance.boot.stdlib import class_name
from appliance.errors import AuditError
from tests.audit.test_audit_chain import EXAMPLES, SEALED

NEEDED = [(event, name) for event, fields in schema(Vocabularies(), 4).items() for name in fields
          if not name.endswith("?")]
VALUES = (None, -1, 1 << 53, 1 << 64, 1.0, True, False, "", "xyzzy", "AB" * 32, b"x", ["x"], {"x": 1})


def _log(version: int = 4) -> tuple[AuditLog, io.BytesIO]:
    """A log as the service has it, which does not raise for what it drops."""
    out = io.BytesIO()
    out.close = lambda: None  # type: ignore[method-assign]
    log = AuditLog(out, version=version)
    for words, word in ((log.words.models, "demo"), (log.words.tenants, "acme"), (log.words.listeners, "api"),
                        (log.words.parameters, "messages"), (log.words.approvers, "security"),
                        (log.words.witnesses, "w1"), (log.words.resources, "default/key/demo"),
                        (log.words.codes, "boot-failed")):
        words.admit([word])
    if version == 4:
        log.begin(Chain(), Ed25519PrivateKey.generate())
    return log, out


@pytest.mark.parametrize(("event", "name"), NEEDED, ids=[f"{event}-{name}" for event, name in NEEDED])
def test_a_record_without_a_field_that_it_must_have_is_refused(event: str, name: str) -> None:
    """Absent or of another type, in both versions: an error, nothing written, and the log goes on."""
    fields = {field: value for field, value in EXAMPLES[event].items() if event not in RETAINED or field not in SEALED}
    accepted = schema(Vocabularies(), 4)[event][name].accepts
    for version in (1, 4):
        if event not in schema(Vocabularies(), version) or name not in schema(Vocabularies(), version)[event]:
            continue
        for value in (each for each in VALUES if each is None or not accepted(each)):
            log, out = _log(version)
            before = out.getvalue()
            with pytest.raises(AuditError) as caught:
                log.write(event, **{**fields, name: value})
            assert ("audit-record", before) == (caught.value.code, out.getvalue())
            assert "xyzzy" not in str(caught.value)
            log.write("service.draining", in_flight=1)
            log.close()
            assert b"service.draining" in out.getvalue()
            if version == 4:
                assert examine(out.getvalue().splitlines(keepends=True)).bad is None


def test_a_time_that_no_number_holds_is_refused() -> None:
    """The case as it was tried: a cosignature's time above 2^53 - 1 is in the log as it is, or not at all."""
    log, out = _log()
    signed = log.checkpoint()
    assert signed is not None
    for when in (1 << 53, (1 << 64) - 1, -1):
        with pytest.raises(AuditError):
            log.write("audit.cosigned", witness="w1", size=signed.checkpoint.size, cosigned_at=when,
                      signature="ab" * 64)
    log.close()
    assert b"audit.cosigned" not in out.getvalue()
    assert examine(out.getvalue().splitlines(keepends=True)).bad is None


def test_a_record_that_waits_is_judged_when_it_is_written() -> None:
    """Before the log begins, too: what waits is whole."""
    log = AuditLog(io.BytesIO(), version=3)
    with pytest.raises(AuditError):
        log.write("service.draining")
    with pytest.raises(AuditError):
        log.write("service.draining", in_flight="1")


def test_an_epoch_that_no_number_holds_is_refused() -> None:
    """A file whose operator wrote the last epoch that there is: the next boot writes nothing behind it."""
    log, out = _log()
    log.close()
    chain, after = Chain(), io.BytesIO()
    for line in out.getvalue().splitlines():
        chain.follow(line)
    with pytest.raises(AuditError):
        AuditLog(after, version=3).begin(chain, Ed25519PrivateKey.generate(), epoch=1 << 53)
    assert b"" == after.getvalue()


def test_an_exceptions_long_name_is_still_recorded() -> None:
    """A name that the schema does not take is told as unknown, and the record is written."""
    long = type("E" * 65, (Exception,), {"__module__": __name__})
    strange = type("Ärger", (Exception,), {"__module__": __name__})
    for kind in (long, strange):
        globals()[kind.__name__] = kind
        assert "Unknown" == class_name(kind)
    log, out = _log()
    log.write("runtime.exception", type=class_name(long), where="main")
    assert "Unknown" == json.loads(out.getvalue().splitlines()[-1])["type"]


def _line(out: io.BytesIO, **fields: Any) -> bytes:
    """A further record of a log, in its place, by whoever has the file."""
    lines = out.getvalue().splitlines()
    last = json.loads(lines[-1])
    record = {**{name: last[name] for name in ("boot", "epoch", "mono_ms", "time", "time_source", "v")},
              "seq": last["seq"] + 1, "prev": hashlib.sha256(b"\0" + lines[-1]).hexdigest(), **fields}
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


@pytest.mark.parametrize("fields", [
    {"event": "audit.cosigned"}, {"event": "audit.cosigned", "witness": "w1"}, {"event": "audit.timestamped"},
    {"event": "audit.cosigned", "witness": ["w1"], "size": 1},
    {"event": "audit.cosigned", "witness": "w1", "size": "1"},
    {"event": "audit.cosigned", "witness": "w1", "size": 1 << 70}, {"event": "audit.timestamped", "size": None},
    {"event": "audit.checkpoint", "size": 3}, {"event": "audit.checkpoint", "size": 3, "signature": "zz"},
    {"event": "audit.checkpoint", "size": 3, "signature": 3}, {"event": ["audit.checkpoint"]}, {"event": None},
    {"event": "service.draining", "epoch": {}}, {"event": "service.draining", "epoch": None}])
def test_a_hostile_file_stops_the_boot_by_an_error(fields: dict[str, Any], tmp_path: Path) -> None:
    """Records that no appliance wrote, each in its place of the chain: told, never a traceback."""
    log, out = _log()
    log.write("service.draining", in_flight=1)
    log.checkpoint()
    path = tmp_path / "audit.log"
    path.touch(0o600)
    path.write_bytes(out.getvalue() + _line(out, **fields))
    with pytest.raises(AuditError) as caught:
        open_chained(path, Chain())
    assert "audit-altered" == caught.value.code


@pytest.mark.parametrize("fields", [
    {"time": "2026-02-31T00:00:00Z"}, {"time": "٢٠٢٦-01-01T00:00:00Z"}, {"time": "2026-01-01T25:00:00Z"},
    {"event": "boot.failed", "step?": "policy"}, {"event": "request.done", "model?": "demo"}])
def test_a_reader_takes_no_such_record(fields: dict[str, Any]) -> None:
    """Days that there are not, digits of other scripts, and fields under the schema's own notation."""
    _, out = _log()
    line = _line(out, **{"event": "service.draining", **fields})
    with pytest.raises(WrongRecordError):
        Reader().read(line[:-1])
