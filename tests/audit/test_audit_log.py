"""The audit log: only what the schema has can be written, whatever it is given."""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.audit import endpoints
from appliance.audit.events import ENVELOPE, Schema, Vocabularies, additions, of_version_3, of_version_4, schema
from appliance.audit.fields import Boolean, CountByWord, Field, Integer, StringForm, Word, WordSet
from appliance.audit.log import AuditLog, new_request_id
from appliance.audit.sink import open_sink
from appliance.errors import AuditError

CANARY = "xyzzy-canary-7741"
DIGEST32, DIGEST48 = "ab" * 32, "ab" * 48
# For each event: fields that the schema accepts.
GOOD: dict[str, dict[str, Any]] = {
    "boot.start": {"version": "0.1.0", "platform": "simulated", "policy_sha384": DIGEST48},
    "boot.step": {"step": "models", "verdict": "passed", "duration_us": 12, "code": "boot-failed"},
    "boot.model": {"model": "demo", "sha256": DIGEST32, "resident_bytes": 1, "duration_us": 2},
    "boot.ready": {"duration_us": 1, "self_test_sha384": DIGEST48, "generation": 1, "models": 1},
    "boot.failed": {"step": "policy", "code": "boot-failed"},
    "generation.new": {"generation": 2, "models": 1, "tls_spki_sha256": DIGEST32},
    "service.listening": {"listener": "api", "kind": "tcp"},
    "service.draining": {"in_flight": 0},
    "service.stopped": {"requests": 3, "refused": 1},
    "request.done": {
        "request": "req-" + "0a" * 16, "endpoint": "/v1/chat/completions", "status": 200, "tenant": "acme",
        "model": "demo", "streamed": True, "prompt_tokens": 5, "completion_tokens": 6, "finish": "stop",
        "duration_us": 7, "first_token_us": 3},
    "stream.started": {
        "request": "req-" + "0a" * 16, "endpoint": "/v1/chat/completions", "tenant": "acme", "model": "demo"},
    "request.refused": {
        "request": "req-" + "0a" * 16, "endpoint": "other", "status": 404, "code": "boot-failed", "tenant": "acme",
        "model": "demo", "duration_us": 2, "param": "messages", "streamed": True, "prompt_tokens": 5,
        "completion_tokens": 6},
    "requests.counted": {
        "seconds": 60, "answered": {"/health": 6}, "refused": {"other": {"boot-failed": 3}},
        "tenants": {"acme": 2}, "connections": {"handshake": 2}, "exceptions": 1},
    "model.failed": {"model": "demo", "code": "boot-failed"},
    "model.abandoned": {"model": "demo"},
    "state.opened": {"epoch": 3, "disk": "0b" * 16, "records": 90},
    "attestation.made": {"request": "req-" + "0a" * 16, "generation": 1, "nonces": 1},
    "runtime.exception": {"type": "ValueError", "place": "appliance.audit.log:12", "where": "main"},
    "runtime.log": {"logger": "uvicorn", "level": "error"},
    "audit.closed": {"records": 1, "dropped": 0, "silenced": 0},
}


def _log(strict: bool = False) -> tuple[AuditLog, io.BytesIO]:
    sink = io.BytesIO()
    log = AuditLog(sink, strict=strict)
    log.words.models.admit(["demo"])
    log.words.tenants.admit(["acme"])
    log.words.listeners.admit(["api"])
    log.admit_codes(["boot-failed"])
    log.words.parameters.admit(["messages"])
    return log, sink


def _records(sink: io.BytesIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in sink.getvalue().splitlines()]


def test_every_event_has_an_example_here() -> None:
    """The examples of this test cover the whole schema, so that a new event cannot be forgotten."""
    assert set(schema(Vocabularies())) == set(GOOD)


@pytest.mark.parametrize("event", sorted(GOOD))
def test_good_records_are_written_whole(event: str) -> None:
    """Each event is written with all of its fields and the envelope, on one canonical line."""
    log, sink = _log(strict=True)
    log.write(event, **GOOD[event])
    (record,) = _records(sink)
    assert {"event": event, **GOOD[event]} == {key: record[key] for key in ["event", *GOOD[event]]}
    assert set(ENVELOPE) | set(GOOD[event]) == set(record)
    assert (1, 0, "host", None) == (record["v"], record["seq"], record["time_source"], record["prev"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", record["time"])
    assert json.dumps(record, sort_keys=True, separators=(",", ":")).encode() + b"\n" == sink.getvalue()


@pytest.mark.parametrize("event", sorted(GOOD))
def test_no_field_takes_foreign_text(event: str) -> None:
    """A canary in place of any field, in any disguise, is dropped and counted: the record goes out without it, or not
    at all where its event must have the field."""
    for name in GOOD[event]:
        for value in (CANARY, CANARY.encode(), [CANARY], {CANARY: CANARY}, f"req-{CANARY}", f"{DIGEST32}{CANARY}"):
            log, sink = _log()
            needed = name in schema(Vocabularies())[event]
            with pytest.raises(AuditError) if needed else nullcontext():
                log.write(event, **{**GOOD[event], name: value})
            assert CANARY.encode() not in sink.getvalue()
            assert 1 <= log.dropped
            assert (0 if needed else 1) == len(_records(sink))


@given(event=st.text().filter(lambda text: text not in GOOD), name=st.text(min_size=1),
       value=st.one_of(st.text(), st.integers(), st.none(), st.booleans()))
def test_unknown_events_and_fields_are_never_written(event: str, name: str, value: Any) -> None:
    """Whatever is not in the schema is dropped, for any text at all."""
    log, sink = _log()
    log.write(event)
    assert b"" == sink.getvalue()
    sink.truncate(0)
    if name not in ("event", "self", *GOOD["request.done"]):
        log.write("service.draining", in_flight=1, **{name: value})
        (record,) = _records(io.BytesIO(sink.getvalue().lstrip(b"\0")))
        assert {*ENVELOPE, "in_flight"} == set(record)


@pytest.mark.parametrize(("event", "fields"), [
    ("no.such.event", {}),
    ("service.draining", {"in_flight": 1, "prompt": "x"}),
    ("service.draining", {"in_flight": -1}),
    ("service.draining", {"in_flight": True}),
    ("service.draining", {"in_flight": 1.0}),
    ("service.draining", {"in_flight": 1 << 53}),
    ("service.draining", {}),
    ("request.done", {**GOOD["request.done"], "model": "zebra"}),
    ("request.done", {**GOOD["request.done"], "streamed": 1}),
    ("runtime.exception", {"type": "ValueError", "place": "appliance.audit.log:12\n", "where": "main"}),
])
def test_strict_mode_raises_instead(event: str, fields: dict[str, Any]) -> None:
    """In tests and development a record that the schema does not have is an error, and the message has no value."""
    log, _ = _log(strict=True)
    with pytest.raises(ValueError, match="not in the audit schema") as caught:
        log.write(event, **fields)
    assert "zebra" not in str(caught.value)


def test_sequence_has_no_gap_under_threads() -> None:
    """Records of many threads are whole lines in the order of their numbers."""
    log, sink = _log(strict=True)

    def work() -> None:
        for _ in range(50):
            log.write("service.draining", in_flight=1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = _records(sink)
    assert list(range(400)) == [record["seq"] for record in records]
    assert sorted(record["mono_us"] for record in records) == [record["mono_us"] for record in records]
    assert 1 == len({record["boot"] for record in records})


def test_vocabularies_close() -> None:
    """After sealing no name can be added; words of odd shape never can."""
    log, _ = _log()
    log.seal()
    with pytest.raises(ValueError, match="sealed"):
        log.words.models.admit(["late"])
    log.words.models.admit(["demo"])
    for word in ("", "a\nb", "a" * 97, "ä"):
        with pytest.raises(ValueError, match="not a word"):
            WordSet("test").admit([word])


def test_closing_counts_what_was_dropped() -> None:
    """The last record says how many records there were and how much was dropped; then the log is shut."""
    log, sink = _log()
    written: list[bytes] = []
    sink.close = lambda: written.append(sink.getvalue())  # type: ignore[method-assign]
    log.write("nothing")
    log.write("service.draining", in_flight=1)
    log.close()
    last = json.loads(written[0].splitlines()[-1])
    assert ("audit.closed", 1, 1) == (last["event"], last["records"], last["dropped"])


def test_a_failing_sink_stops_everything() -> None:
    """When a record cannot be written the caller is told why, then and ever after: nothing goes on unrecorded."""
    with Path("/dev/full").open("wb", buffering=0) as full:
        log = AuditLog(full)
        for _ in range(2):
            with pytest.raises(AuditError, match="No space left on device"):
                log.write("service.draining", in_flight=1)
        with pytest.raises(AuditError, match="No space left on device"):  # which is what a boot or a service ends with
            log.close()


def test_standard_output_that_does_not_block_loses_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts the service may have made the pipe so. A full one takes nothing, and says so without an error."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with os.fdopen(reader, "rb") as read, os.fdopen(writer, "wb", buffering=0) as standard:
        monkeypatch.setattr("sys.stdout", standard)
        filled = 0
        while (taken := standard.write(b"\n" * 4096)) is not None:
            filled += taken
        log = AuditLog(open_sink(None))

        def fill() -> None:
            for _ in range(1000):  # more than a pipe holds
                log.write("service.stopped", requests=3, refused=1)
            log.close()

        thread = threading.Thread(target=fill)
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()  # the pipe is full
        read.read(filled)
        assert list(range(1001)) == [json.loads(read.readline())["seq"] for _ in range(1001)]
        thread.join()


def test_a_sink_that_takes_nothing_stops_everything() -> None:
    """Nothing is answered that is not recorded."""
    class Full(io.BytesIO):
        def write(self, data: Any, /) -> int:
            return None  # type: ignore[return-value]

    log = AuditLog(Full())
    with pytest.raises(AuditError, match="a part of a record"):
        log.write("service.stopped", requests=3, refused=1)


def test_file_sink_is_private_and_appends(tmp_path: Path) -> None:
    """A new log has mode 0600 whatever the umask, and a second boot appends to it."""
    path = tmp_path / "audit.log"
    before = os.umask(0)
    try:
        for _ in range(2):
            log = AuditLog(open_sink(path))
            log.write("service.draining", in_flight=1)
            log.close()
    finally:
        os.umask(before)
    assert 0o600 == path.stat().st_mode & 0o777
    assert 4 == len(path.read_text().splitlines())


def test_a_record_that_was_cut_spoils_no_other(tmp_path: Path) -> None:
    """A full disk may take a part of a line: the next boot's first record begins on a line of its own."""
    path = tmp_path / "audit.log"
    AuditLog(open_sink(path)).write("service.draining", in_flight=1)
    path.write_bytes(path.read_bytes() + b'{"boot":"0')
    log = AuditLog(open_sink(path))
    log.write("service.draining", in_flight=1)
    log.close()
    first, cut, *later = path.read_text().splitlines()
    assert (0, '{"boot":"0', [0, 1]) == (json.loads(first)["seq"], cut, [json.loads(line)["seq"] for line in later])


def test_file_sink_refuses_traps(tmp_path: Path) -> None:
    """A link, a file that others can read, a missing folder, and pipes with and without a reader are refused."""
    (tmp_path / "open.log").write_text("")
    (tmp_path / "open.log").chmod(0o644)
    (tmp_path / "link.log").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "fifo.log")
    os.mkfifo(tmp_path / "read.log")
    reader = os.open(tmp_path / "read.log", os.O_RDONLY | os.O_NONBLOCK)
    for name in ("open.log", "link.log", "missing/audit.log", "fifo.log", "read.log"):
        with pytest.raises(AuditError):
            open_sink(tmp_path / name)
    os.close(reader)
    assert not (tmp_path / "elsewhere").exists()


def test_request_ids_are_ours() -> None:
    """Ids fit the schema and do not repeat."""
    ids = {new_request_id() for _ in range(100)}
    kind = schema(Vocabularies())["request.done"]["request"]
    assert 100 == len(ids)
    assert all(kind.accepts(request_id) for request_id in ids)


def described(kind: Field) -> str:
    """A type of fields in the words of the specification."""
    match kind:
        case Integer(most):
            return f"integer, 0 to {most}"
        case Boolean():
            return "true or false"
        case StringForm(words=words):
            return words
        case Word(words):
            return "one of " + ", ".join(f"`{word}`" for word in sorted(words))
        case WordSet(source):
            return f"a name from {source}"
        case CountByWord(words, of):
            return f"object; each member: {described(words)}, then {described(of)}"
    raise AssertionError(kind)


def test_documentation_shows_the_schema() -> None:
    """The table in the specification has every event and field, with its type, and no other."""
    text = (Path(__file__).parents[2] / "docs" / "formats" / "audit-log.md").read_text()
    shown = {(match[1], match[2]): match[3] for match in re.finditer(
        r"^\| `([a-z.]+)` \| `([a-z0-9_?]+)` \| (.+) \|$", text, re.MULTILINE)}
    wanted = {(event, name): described(kind) for event, fields in schema(Vocabularies()).items()
              for name, kind in fields.items()}
    assert wanted == shown


@pytest.mark.parametrize(("page", "more"), [
    ("audit-log-2.md", additions), ("audit-log-3.md", of_version_3), ("audit-log-4.md", of_version_4)])
def test_documentation_shows_the_additions_of_a_version(page: str, more: Callable[[Vocabularies], Schema]) -> None:
    """The table of a version has the events and fields that the one before lacks, and no other."""
    text = (Path(__file__).parents[2] / "docs" / "formats" / page).read_text()
    shown = {(match[1], match[2]): match[3] for match in re.finditer(
        r"^\| `([a-z.]+)` \| `([a-z0-9_?]+)` \| (.+) \|$", text, re.MULTILINE)}
    assert {(event, name): described(kind) for event, fields in more(Vocabularies()).items()
            for name, kind in fields.items()} == shown


def test_endpoints_are_known_before_boot() -> None:
    """The service's routes are words of the log without any boot."""
    kind = schema(Vocabularies())["request.done"]["endpoint"]
    assert all(kind.accepts(endpoint) for endpoint in endpoints.NAMES)
