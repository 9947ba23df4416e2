"""The closed schema of the audit log: every event that can be written, and every field of each.

This table is the allow-list. An event that is not in it cannot be written. The formats in
docs/formats show the same tables, and a test compares them: audit-log.md version 1, and
audit-log-2.md to audit-log-4.md what each version has beyond the one before. A `?` after a
field's name means that it may be left out. The tables of versions 1 to 3 were released, and stay.
"""

from __future__ import annotations

from collections.abc import Mapping

from appliance import platforms
from appliance.audit import counted, detail, endpoints
from appliance.audit.fields import Boolean, CountByWord, Field, Integer, StringForm, WordSet, choice, hex_bytes

STEPS = ("policy", "hardening", "self-test", "key-release", "state", "models", "attestation", "service")
LEVELS = ("debug", "info", "warning", "error", "critical")
LOGGERS = ("appliance", "asyncio", "concurrent", "httptools", "h11", "litestar", "numba", "py.warnings", "root",
           "uvicorn", "other")

PLATFORM = choice(*platforms.NAMES)
PLATFORMS_1 = ("sev-snp", "tdx", "tpm", "simulated")  # the words of version 1 to 3
DIGEST32, DIGEST48 = hex_bytes(32), hex_bytes(48)
REQUEST_ID = StringForm(r"req-[0-9a-f]{32}", 36, "request id made by the appliance")
VERSION = StringForm(r"[0-9]+\.[0-9]+\.[0-9]+[a-z0-9.]{0,16}", 32, "version")
TYPE_NAME = StringForm(r"[A-Za-z_][A-Za-z0-9_]*", 64, "name of an exception class")
PLACE = StringForm(r"[a-z0-9_]+(?:\.[a-z0-9_]+)*:[0-9]{1,6}", 128, "module and line of our code")
FINDING = StringForm(r"[a-z][a-z0-9-]*", 40, "name of a finding")
MICROSECONDS = Integer()
STATUS = Integer(999)
DIGEST16, SIGNATURE = hex_bytes(16), hex_bytes(64)
PROVIDERS = ("broker", "environment", "ephemeral", "file", "systemd-credential", "tpm")
OPTIONS = ("listen_address", "listen_port", "log_sink")
SEALED = StringForm(r"(?:[0-9a-f]{512})+[0-9a-f]{32}", 8 << 10, "a multiple of 256 bytes, then 16, in hex")
TOKEN = StringForm(r"(?:[0-9a-f]{2})+", 32 << 10, "at most 16384 bytes in hex")  # the authority's signed bytes alone
# Records that are not written where the rest of a state disk is kept for the log's own.
OF_OTHERS = ("stream.started", "request.done", "request.refused", "request.ended", "requests.counted",
             "attestation.made", "audit.checkpoint", "audit.cosigned", "audit.timestamped", "runtime.exception",
             "runtime.log")
_RETAINED_2 = ("stream.started", "request.done", "request.refused", "attestation.made")
RETAINED = (*_RETAINED_2, "request.ended")  # sealed where they must expire
ENDS = ("request.done", "request.refused", "request.ended")  # records of requests that ended
ASKED = ("model.loaded", "model.unloaded", "model.wiped", "model.refused")  # changes that an admin's request makes

# Fields of the envelope, in every record of version 1. `prev` is null there: its records are not
# chained.
ENVELOPE = ("v", "seq", "boot", "time", "time_source", "mono_us", "prev", "event")
ENVELOPE_2 = ("v", "seq", "boot", "epoch", "time", "time_source", "mono_ms", "prev", "event")  # of later versions
CHAINED = (2, 3, 4)  # versions whose records are chained, and which are read
WRITTEN = (3, 4)  # of these, versions that are written: the lowest that has what a policy needs


class Vocabularies:
    """The closed sets of one log, filled at boot: by the policy (models, tenants, listeners) or by
    our own code."""

    def __init__(self) -> None:
        self.models = WordSet("the policy's models")
        self.tenants = WordSet("the policy's tenants")
        self.listeners = WordSet("the policy's listeners")
        self.codes = WordSet("the appliance's error codes")
        self.endpoints = WordSet("the service's routes", set(endpoints.NAMES))
        self.parameters = WordSet("the API's parameters")
        self.approvers = WordSet("the policy's approvers")
        self.witnesses = WordSet("the policy's witnesses")
        self.resources = WordSet("the broker's keys")

    def all(self) -> tuple[WordSet, ...]:
        """Each vocabulary."""
        return (self.models, self.tenants, self.listeners, self.codes, self.endpoints, self.parameters,
                self.approvers, self.witnesses, self.resources)


Schema = Mapping[str, Mapping[str, Field]]


def schema(words: Vocabularies, version: int = 1) -> Schema:
    """Event name -> field name -> type, over the vocabularies of one log."""
    parts = (_version_1(words), additions(words), of_version_3(words), of_version_4(words))[:version]
    return {event: {name: kind for part in parts for name, kind in part.get(event, {}).items()}
            for part in parts for event in part}


def of_version_3(words: Vocabularies) -> Schema:
    """The events that version 3 adds to version 2, and its further fields of the others. They tell
    the tenant and request of a change."""
    return {**{event: {"request": REQUEST_ID, "tenant?": words.tenants} for event in ASKED},
            "tenants.replaced": {
                "tenants": Integer(), "list_version": Integer(), "revoked": Integer(), "generation": Integer(),
                "tenant": words.tenants, "request": REQUEST_ID}}


def of_version_4(words: Vocabularies) -> Schema:
    """The events that version 4 adds to version 3, and its further fields of the others. They tell
    late passes, ends that are not named, and decisions of a key broker."""
    proved: dict[str, Field] = {"platform": PLATFORM, "policy_sha384": DIGEST48, "nonce": DIGEST32}
    return {"boot.start": {"platform": PLATFORM},
            "requests.counted": {"late_passes?": CountByWord(words.models)},
            "request.ended": {
                "request": REQUEST_ID, "endpoint": words.endpoints, "tenant": words.tenants,
                "duration_us": MICROSECONDS, "request_digest": DIGEST32, "answer_digest": DIGEST32,
                "outcome?": hex_bytes(detail.OUTCOME_NBYTES), "period?": Integer(), "sealed?": SEALED},
            "rules.loaded": {"rules": Integer(), "rules_sha256": DIGEST32},
            "rules.refused": {"code": words.codes},
            "release.granted": {"resource": words.resources, "key_version": Integer(), "release_spki_sha256": DIGEST32,
                                **proved},
            "release.denied": {"resource?": words.resources, "failed?": CountByWord(FINDING), **proved},
            "releases.counted": {"seconds": Integer(), "refused": CountByWord(words.codes)}}


def additions(words: Vocabularies) -> Schema:
    """The events of version 2 that version 1 lacks, and its further fields of the others."""
    found: dict[str, dict[str, Field]] = {
        "log.opened": {
            "log": DIGEST16, "epoch": Integer(), "version": VERSION, "audit_key_ed25519": DIGEST32,
            "repaired_bytes": Integer(), "unchained": Integer()},
        "operator.set": {"option": choice(*OPTIONS)},
        "tenants.loaded": {"tenants": Integer(), "list_version?": Integer()},
        "policy.approved": {"approver": words.approvers},
        "key.released": {"use": choice("model", "state"), "provider": choice(*PROVIDERS), "model?": words.models},
        "request.done": {
            "cached_tokens?": Integer(), "request_digest?": DIGEST32, "answer_digest?": DIGEST32, "receipt?": Boolean(),
            "detail?": hex_bytes(detail.NBYTES)},
        "request.refused": {"request_digest?": DIGEST32, "answer_digest?": DIGEST32},
        "model.loaded": {"model": words.models, "sha256": DIGEST32, "generation": Integer()},
        "model.unloaded": {"model": words.models, "generation": Integer()},
        "model.wiped": {"model": words.models},
        "model.refused": {"model": words.models, "code": words.codes},
        "sessions.opened": {"models": Integer()},
        "sessions.failed": {"models": Integer()},
        "audit.checkpoint": {"size": Integer(), "root": DIGEST32, "signature": SIGNATURE},
        "audit.cosigned": {
            "witness": words.witnesses, "size": Integer(), "cosigned_at": Integer(), "signature": SIGNATURE},
        "audit.timestamped": {"size": Integer(), "token": TOKEN},
        "audit.expired": {"period": Integer()},
    }
    for event in _RETAINED_2:
        found[event] = {**found.get(event, {}), "period?": Integer(), "sealed?": SEALED}
    return found


def _version_1(words: Vocabularies) -> Schema:
    return {
        "boot.start": {"version": VERSION, "platform": choice(*PLATFORMS_1), "policy_sha384": DIGEST48},
        "boot.step": {
            "step": choice(*STEPS), "verdict": choice("passed", "tolerated", "skipped", "failed"),
            "duration_us": MICROSECONDS, "code?": words.codes},
        "boot.model": {
            "model": words.models, "sha256": DIGEST32, "resident_bytes?": Integer(), "duration_us?": MICROSECONDS},
        "boot.ready": {
            "duration_us": MICROSECONDS, "self_test_sha384": DIGEST48, "generation": Integer(), "models": Integer()},
        "boot.failed": {"step": choice(*STEPS), "code": words.codes},
        "state.opened": {"epoch": Integer(), "disk": hex_bytes(16), "records": Integer()},
        "generation.new": {"generation": Integer(), "models": Integer(), "tls_spki_sha256?": DIGEST32},
        "service.listening": {"listener": words.listeners, "kind": choice("tcp", "tls", "ra-tls", "unix", "vsock")},
        "service.draining": {"in_flight": Integer()},
        "service.stopped": {"requests": Integer(), "refused": Integer()},
        "stream.started": {
            "request": REQUEST_ID, "endpoint": words.endpoints, "tenant?": words.tenants, "model?": words.models},
        "request.done": {
            "request": REQUEST_ID, "endpoint": words.endpoints, "status": STATUS, "tenant?": words.tenants,
            "model?": words.models, "streamed?": Boolean(), "prompt_tokens?": Integer(),
            "completion_tokens?": Integer(),
            "finish?": choice("stop", "length", "cancelled", "timeout", "error", "tool_calls"),
            "duration_us?": MICROSECONDS, "first_token_us?": MICROSECONDS},
        "request.refused": {
            "request": REQUEST_ID, "endpoint": words.endpoints, "status": STATUS, "code": words.codes,
            "tenant?": words.tenants, "model?": words.models, "duration_us?": MICROSECONDS,
            "param?": words.parameters, "streamed?": Boolean(), "prompt_tokens?": Integer(),
            "completion_tokens?": Integer()},
        "requests.counted": {
            "seconds": Integer(), "answered?": CountByWord(words.endpoints),
            "refused?": CountByWord(words.endpoints, CountByWord(words.codes)), "tenants?": CountByWord(words.tenants),
            "connections?": CountByWord(choice(*counted.CONNECTIONS)), "exceptions?": Integer()},
        "model.failed": {"model": words.models, "code": words.codes},
        "model.abandoned": {"model": words.models},
        "attestation.made": {"request?": REQUEST_ID, "generation": Integer(), "nonces": Integer()},
        "runtime.exception": {"type": TYPE_NAME, "place?": PLACE,
                              "where": choice("main", "thread", "asyncio", "unraisable", "request")},
        "runtime.log": {"logger": choice(*LOGGERS), "level": choice(*LEVELS)},
        "audit.closed": {"records": Integer(), "dropped": Integer(), "silenced": Integer()},
    }
