"""Each claim turns when its evidence is broken, and each control with the claims that it rests on."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.case import measurements
from appliance.audit.log import new_request_id
from appliance.auditor import receipts
from appliance.auditor.claims import case, controls, table
from appliance.auditor.claims.case import Case, Given, stripped
from appliance.auditor.claims.claim import Claimed
from appliance.auditor.claims.controls import Control, Framework
from appliance.auditor.pack import gather
from appliance.errors import AuditError
from appliance.imaging.papers import provenance, releases
from appliance.platforms import PLATFORMS
from appliance.receipts import envelopes
from appliance.signed import desk, timestamps
from tests.support import folders, machine_lists, packs, policies
from tests.support.fake_amd import CHIP
from tests.support.timestamping import Authority

Members = dict[str, bytes]
POLICY, LOG, SBOM, PROVENANCE = ("policy/deployment.hcl", "log/audit.jsonl", "image/sbom.cdx.json",
                                 "image/provenance.intoto.jsonl")
BUNDLE, RELEASES = "publishers/demo.sigstore", "image/releases/"
EVIDENCE, HEALTH, HELD = "evidence/evidence.json", "self-test/health.json", "log/held/held.txt"


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """Most breaks leave the policy as it is: each text of it is checked once for all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(case, "check_bytes", functools.cache(case.check_bytes))
        yield


@functools.cache
def _papers() -> packs.Papers:
    return packs.deployment(folders.lasting("claims"), requests=24)


@functools.cache
def _genuine() -> tuple[Members, Given]:
    return gather.members(_papers().files), _papers().given


def _without(*names: str) -> Callable[[Members], Members]:
    def change(found: Members) -> Members:
        return {name: content for name, content in found.items() if not name.startswith(names)}
    return change


def _put(name: str, edit: Callable[[bytes], bytes]) -> Callable[[Members], Members]:
    def change(found: Members) -> Members:
        return found | {name: edit(found[name])}
    return change


def _policy(old: str, new: str) -> Callable[[Members], Members]:
    """Another policy, which nobody approved and no evidence binds."""
    def edit(data: bytes) -> bytes:
        assert old.encode() in data
        return data.replace(old.encode(), new.encode())
    return _put(POLICY, edit)


def _replaced(name: str, pattern: bytes, new: bytes) -> Callable[[Members], Members]:
    """A member in which one place is another."""
    def edit(data: bytes) -> bytes:
        made, count = re.subn(pattern, new, data)
        assert count == 1
        return made
    return _put(name, edit)


def _json(name: str, edit: Callable[[Any], None]) -> Callable[[Members], Members]:
    def change(data: bytes) -> bytes:
        value = json.loads(data)
        edit(value)
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return _put(name, change)


def _line(event: str, old: bytes, new: bytes, *, last: bool = False) -> Callable[[Members], Members]:
    """A record says something else."""
    def edit(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        places = [place for place, line in enumerate(lines) if event.encode() in line]
        place = places[-1 if last else 0]
        assert old in lines[place]
        lines[place] = lines[place].replace(old, new)
        return b"".join(lines)
    return _put(LOG, edit)


def _bare(event: str) -> Callable[[Members], Members]:
    """A log of a boot alone, whole and unsigned: none of its records is of this event."""
    def edit(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        return b"".join(lines[:next(place for place, line in enumerate(lines) if event.encode() in line)])

    def change(found: Members) -> Members:
        return _without("log/held", "log/extracts", "receipts")(_put(LOG, edit)(found))
    return change


def _resigned(edit: Callable[[Any], None], builder: Any = packs.BUILDER) -> Callable[[Members], Members]:
    """Another provenance statement, signed."""
    def change(data: bytes) -> bytes:
        statement = json.loads(base64.b64decode(json.loads(data)["payload"]))
        edit(statement)
        return provenance.envelope(json.dumps(statement).encode(), builder)
    return _put(PROVENANCE, change)


def _other_measurements(**changed: Any) -> Callable[[Members], Members]:
    """Other measurements, signed by the builder."""
    def change(found: Members) -> Members:
        known = measurements.parse(found["image/measurements.json"])
        data = measurements.Measurements.model_validate(known.model_dump() | changed).to_json()
        return found | {"image/measurements.json": data,
                        "image/measurements.json.sig": measurements.sign(data, packs.BUILDER)}
    return change


def _own_log(edit: Callable[[Members], None]) -> Callable[[Members], Members]:
    """The log of another appliance, which our evidence does not bind."""
    def change(found: Members) -> Members:
        made = dict(found)
        edit(made)
        return made
    return change


def _stranger(found: Members) -> None:
    folder = folders.lasting("claims")
    audit, packs.AUDIT = packs.AUDIT, packs.key(9)
    try:
        papers = packs.Papers(folder, _papers().policy, _papers().measured)
        packs._log(papers, 12, 1)
    finally:
        packs.AUDIT = audit
    for name in [name for name in found if name.startswith(("receipts/", "log/"))]:
        del found[name]
    found |= {LOG: (folder / "audit.jsonl").read_bytes(), HELD: (folder / "held.txt").read_bytes(),
              "log/extracts/extract.json": (folder / "extract.json").read_bytes()}


def _of_another_log(found: Members) -> Members:
    """An extract of a log by the same key, which is not the one in the pack."""
    folder = folders.lasting("claims")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "LOG_ID", bytes(16))
        packs._log(packs.Papers(folder, _papers().policy, _papers().measured), 8, 0)
    return found | {"log/extracts/extract.json": (folder / "extract.json").read_bytes()}


def _given(**changed: Any) -> Callable[[Given], Given]:
    return lambda given: replace(given, **changed)


def _set(key: str, value: Any) -> Callable[[Any], None]:
    return lambda found: found.__setitem__(key, value)


def _revoking(what: str) -> Callable[[Members], Members]:
    """The builder revokes what the pack is of."""
    def change(found: Members) -> Members:
        folder = folders.lasting("claims")
        for name in ("log.jsonl", "checkpoint"):
            (folder / name).write_bytes(found[RELEASES + name])
        digest = (_papers().policy.digest.hex() if what == "policy"
                  else hashlib.sha384(found["image/measurements.json"]).hexdigest())
        releases.append(folder, [("release.revoked", {"what": what, "sha384": digest})], packs.BUILDER)
        return found | {RELEASES + name: (folder / name).read_bytes() for name in ("log.jsonl", "checkpoint")}
    return change


def _relogged(count: int = 0, **parts: Any) -> Callable[[Members], Members]:
    """A log, whole and signed, and its receipts, by an appliance of which some parts are others."""
    def change(found: Members) -> Members:
        folder, before = folders.lasting("claims"), {name: getattr(packs, name) for name in parts}
        papers = packs.Papers(folder, _papers().policy, _papers().measured)
        try:
            for name, other in parts.items():
                setattr(packs, name, other)
            packs._log(papers, 8, count)
        finally:
            for name, part in before.items():
                setattr(packs, name, part)
        return _without("receipts", "log/extracts")(found) | {
            LOG: (folder / "audit.jsonl").read_bytes(), HELD: (folder / "held.txt").read_bytes(),
            **{f"receipts/{each.name}": stripped(each.read_bytes()) for each in papers.receipts}}
    return change


def _tenantless(log: Any, _number: int, _papers: Any) -> None:
    """A defect: an answer without a tenant."""
    log.write("request.done", request="req-" + "0a" * 16, endpoint="/v1/completions", status=200, model="demo")


def _endless(log: Any, number: int, papers: Any, request: Callable[..., None] = packs._request) -> None:
    """A defect: two streams of the second boot have no record of their end."""
    request(log, number, papers)
    if number < 2 and log.chain.epoch == 2:
        log.write("stream.started", request=new_request_id(), endpoint="/v1/chat/completions", tenant="ward",
                  model="demo")


def _keeping(sessions: bool) -> Callable[[Members], Members]:
    """A policy that keeps prefixes, in memory or on the disk as well."""
    more = 'prefix_cache { size = "8MiB" }' + ("\n  session_persistence = true" if sessions else "")
    kept = _policy('file                 = "demo.sealed"', f'file = "demo.sealed"\n  {more}')
    aged = _policy('audit = "365d"', 'audit = "365d"\n  sessions = "8h"')
    return (lambda found: aged(kept(found))) if sessions else kept


def _dropping(log: Any, policy: Any, boot: Callable[..., None] = packs._boot) -> None:
    """It drops an event, and says so at its end."""
    boot(log, policy)
    log.dropped += 1


def _hasty(log: Any, policy: Any, boot: Callable[..., None] = packs._boot) -> None:
    """It destroys a key that is not due."""
    boot(log, policy)
    log.write("audit.expired", period=int(packs.BOOTS[1]) - 86_400)


def _nameless(log: Any, policy: Any, boot: Callable[..., None] = packs._boot) -> None:
    """A defect: a model comes, and nobody asked."""
    boot(log, policy)
    log.write("model.loaded", model="demo", sha256=packs.MODEL, generation=2, request="req-" + "0a" * 16)


def _forged(text: str, token: Callable[[str], str] = packs._token) -> str:
    """A token that the policy's authority did not sign."""
    return (good := token(text))[:-2] + f"{int(good[-2:], 16) ^ 1:02x}"


def _strange(text: str) -> str:
    """A token by another authority."""
    other = Authority(folders.lasting("claims"))
    digest = hashlib.sha256(text.encode()).digest()
    token = timestamps.token_of(other.answer(timestamps.request(digest)))
    return timestamps.verify(token, digest, other.fingerprint()).token.hex()


def _image(**changed: Any) -> Any:
    """The image of receipts, which is another one."""
    return packs.IMAGE.model_copy(update=changed)


def _another_record(found: Members) -> Members:
    """The record of a receipt has a byte more."""
    said = envelopes.statement(envelopes.parts(receipts.take(found["receipts/answer-0.json"]).envelope)[0])
    lines = found[LOG].splitlines(keepends=True)
    lines[said.record.seq] = lines[said.record.seq].replace(b'"sealed":"', b'"sealed":"00')
    return found | {LOG: b"".join(lines)}


def _one_bit(found: Any) -> None:
    """The report's guest policy has one bit more."""
    report = bytearray(base64.b64decode(found["report"]))
    report[10] ^= 8
    found["report"] = base64.b64encode(report).decode()


def _same(value: Any) -> Any:
    return value


Change = tuple[str, str, Callable[[Members], Members], Callable[[Given], Given]]
FAILS, OPEN = "fails", "not checked"
# claim, what becomes of it, what happens to the pack, and to what the judge knows
BREAKS: list[Change] = [
    ("policy-valid", FAILS, _policy("schema = 2", "schema = 99"), _same),
    ("policy-valid", OPEN, _without("policy/"), _same),
    ("policy-expected", FAILS, _policy('"hospital"', '"elsewhere"'), _same),
    ("policy-expected", OPEN, _same, _given(policy_sha384=None)),
    ("policy-approved", FAILS, _policy('"hospital"', '"elsewhere"'), _same),
    ("policy-approved", OPEN, _without("policy/deployment.hcl.approvals"), _same),
    ("policy-approved", FAILS, _put(POLICY + ".approvals", lambda data: data.replace(b"security", b"somebody")), _same),
    ("policy-transport", OPEN, _put(POLICY, lambda _: policies.BASE.encode()), _same),
    ("policy-tenants", OPEN, _without("policy/"), _same),
    ("policy-limits", OPEN, _policy("limits { requests_per_minute = 600 }", ""), _same),
    ("policy-sealed", OPEN, _put(POLICY, lambda _: policies.BASE.encode()), _same),
    ("policy-redaction", OPEN, _policy('redaction { detectors = ["email"] }', ""), _same),
    ("policy-padding", OPEN, _same, _same),
    ("policy-memory", OPEN, _keeping(sessions=True), _same),
    ("policy-memory", OPEN, _without("policy/"), _same),
    ("policy-forgotten", OPEN, _keeping(sessions=False), _same),
    ("policy-forgotten", OPEN, _without("policy/"), _same),
    ("policy-kept", OPEN, _put(POLICY, lambda _: policies.BASE.encode()), _same),
    ("policy-kept", OPEN, _without("policy/"), _same),
    ("policy-destroyed", OPEN, _policy('retention { audit = "365d" }', ""), _same),
    ("policy-receipts", OPEN, _policy("receipts            = true", ""), _same),
    ("policy-checkpoints", OPEN, _policy('checkpoint_interval = "5m"', ""), _same),
    ("policy-witnesses", OPEN, _without("policy/"), _same),
    ("measurements-signed", FAILS, _put("image/measurements.json", lambda data: data.replace(b"page", b"pages")),
     _same),
    ("measurements-signed", FAILS, _same, _given(builder_key=packs.AUDIT.public_key().public_bytes_raw())),
    ("measurements-signed", OPEN, _without("image/measurements.json"), _same),
    ("measurements-signed", OPEN, _same, _given(builder_key=None)),
    ("measurements-policy", FAILS, _other_measurements(policy_sha384="ab" * 48), _same),
    ("measurements-policy", OPEN, _other_measurements(policy_sha384=None), _same),
    ("sbom-materials", FAILS, _json(SBOM, lambda found: found["components"].pop()), _same),
    ("sbom-materials", FAILS, _put(SBOM, lambda data: b"[]"), _same),
    ("sbom-materials", OPEN, _without(SBOM), _same),
    ("sbom-minimum", FAILS, _put(SBOM, lambda data: b"[]"), _same),
    ("sbom-minimum", OPEN, _json(SBOM, lambda found: found["components"][0].pop("supplier")), _same),
    ("sbom-minimum", OPEN, _json(SBOM, lambda found: found["components"][-1].update(supplier={"name": "unknown"})),
     _same),
    ("sbom-minimum", OPEN, _json(SBOM, lambda found: found["components"][-1].pop("purl")), _same),
    ("sbom-minimum", OPEN, _json(SBOM, lambda found: found["components"][-1].update(components=[{"name": "inside"}])),
     _same),
    ("sbom-minimum", OPEN, _json(SBOM, _set("dependencies", [])), _same),
    ("sbom-minimum", OPEN, _json(SBOM, lambda found: found["components"][0].update({"bom-ref": ["a list"]})), _same),
    ("sbom-minimum", OPEN, _json(SBOM, lambda found: found["metadata"].pop("authors")), _same),
    ("sbom-minimum", OPEN, _json(SBOM, _set("metadata", ["strange"])), _same),
    ("sbom-minimum", OPEN, _without(SBOM), _same),
    ("sbom-models", FAILS, _put(SBOM, lambda data: data.replace(packs.MODEL.encode(), b"ab" * 32)), _same),
    ("sbom-models", OPEN, _without(SBOM), _same),
    ("publisher-signed", FAILS, _policy(packs.MODEL, "ab" * 32), _same),
    ("publisher-signed", FAILS, _policy("models@publisher.example", "others@publisher.example"), _same),
    ("publisher-signed", FAILS, _put(BUNDLE, lambda _: packs.BUNDLES.joinpath("p256.sigstore").read_bytes()), _same),
    ("publisher-signed", FAILS, _replaced(POLICY, rb'bundle .*\n.*\n.*', b'signature = "ed25519:' + b"00" * 64 + b'"'),
     _same),
    ("publisher-signed", OPEN, _replaced(POLICY, rb"publisher \{[^}]*\}", b""), _same),
    ("publisher-signed", OPEN, _without(BUNDLE), _same),
    ("provenance-signed", FAILS, _resigned(lambda found: None, packs.AUDIT), _same),
    ("provenance-signed", OPEN, _without(PROVENANCE), _same),
    ("provenance-image", FAILS, _resigned(lambda found: found["subject"].clear()), _same),
    ("provenance-image", OPEN, _without(PROVENANCE), _same),
    ("boot-report", FAILS, _json(HEALTH, _set("self_test_sha384", "00" * 48)), _same),
    ("boot-report", FAILS, _json(HEALTH, lambda found: found["boot"][0].update(verdict="failed")), _same),
    ("boot-report", OPEN, _without(HEALTH), _same),
    ("release-logged", FAILS, _other_measurements(policy_sha384=None), _same),
    ("release-logged", FAILS, _put(RELEASES + "log.jsonl", lambda data: data[:data[:-1].rindex(b"\n") + 1]), _same),
    ("release-logged", FAILS, _same, _given(builder_key=packs.AUDIT.public_key().public_bytes_raw())),
    ("release-logged", OPEN, _without(RELEASES), _same),
    ("release-logged", OPEN, _same, _given(builder_key=None)),
    ("release-logged", OPEN, _without("image/measurements.json"), _same),
    ("release-standing", FAILS, _revoking("measurements"), _same),
    ("release-standing", FAILS, _revoking("policy"), _same),
    ("release-standing", OPEN, _without(RELEASES), _same),
    ("release-standing", OPEN, _without("image/measurements.json"), _same),
    ("release-recent", FAILS, _same, lambda given: replace(given, at=given.at + timedelta(days=31))),
    ("release-recent", FAILS, _same, lambda given: replace(given, held_release=_revoking("policy")(
        dict(_genuine()[0]))[RELEASES + "checkpoint"])),
    ("release-recent", OPEN, _same, _given(max_release_age=None)),
    ("release-recent", OPEN, _without(RELEASES), _same),
    ("evidence-verified", FAILS, _json(EVIDENCE, lambda found: found["statement"].update(generation=9)), _same),
    ("evidence-verified", OPEN, _without("collateral/"), _same),
    ("evidence-verified", FAILS, _same, lambda given: replace(given, at=given.at + timedelta(days=365))),
    ("evidence-verified", OPEN, _without("evidence/"), _same),
    ("evidence-policy", FAILS, _policy('"hospital"', '"elsewhere"'), _same),
    ("evidence-policy", OPEN, _without("evidence/"), _same),
    ("evidence-measurement", FAILS, _other_measurements(sev_snp=[{
        **packs.fake.measured().sev_snp[0].model_dump(), "launch_digest": "ab" * 48}]), _same),
    ("evidence-measurement", OPEN, _without("image/measurements.json"), _same),
    ("evidence-models", FAILS, _policy(packs.MODEL, "ab" * 32), _same),
    ("evidence-models", OPEN, _without("evidence/"), _same),
    ("evidence-debug", FAILS, _json(EVIDENCE, _one_bit), _same),
    ("evidence-debug", OPEN, _without("evidence/"), _same),
    ("evidence-self-test", FAILS, _same, _given(self_tests=frozenset({bytes(48)}))),
    ("evidence-self-test", OPEN, _same, _given(self_tests=frozenset())),
    ("evidence-fresh", FAILS, _same, _given(nonces=(bytes(32),))),
    ("evidence-fresh", OPEN, _same, _given(nonces=())),
    ("log-whole", FAILS, _line("request.done", b'"sealed":"', b'"sealed":"00'), _same),
    ("log-whole", OPEN, _bare("stream.started"), _same),
    ("log-whole", OPEN, _without("log/"), _same),
    ("log-attested", FAILS, _own_log(_stranger), _same),
    ("log-attested", OPEN, _without("evidence/"), _same),
    ("log-held", FAILS, _put(LOG, lambda data: b"".join(data.splitlines(keepends=True)[:-1])), _same),
    ("log-held", FAILS, _put(HELD, lambda data: data[1:]), _same),
    ("log-held", OPEN, _bare("audit.cosigned"), _same),
    ("log-witnessed", FAILS, _line("audit.cosigned", b'"signature":"', b'"signature":"00', last=True), _same),
    ("log-witnessed", OPEN, _bare("audit.cosigned"), _same),
    ("log-dated", FAILS, _relogged(_token=_forged), _same),
    ("log-dated", FAILS, _relogged(_token=_strange), _same),
    ("log-dated", OPEN, _policy('"hospital"', '"elsewhere"'), _same),
    ("log-dated", OPEN, _replaced(POLICY, rb"timestamp_authority \{[^}]*\}", b""), _same),
    ("log-dated", OPEN, _bare("audit.timestamped"), _same),
    ("log-policy", FAILS, _policy('"hospital"', '"elsewhere"'), _same),
    ("log-policy", OPEN, _bare("boot.start"), _same),
    ("log-self-test", OPEN, _bare("boot.ready"), _same),
    ("log-self-test", OPEN, _without("evidence/"), _same),
    ("log-lossless", FAILS, _relogged(_boot=_dropping), _same),
    ("log-lossless", OPEN, _bare("audit.closed"), _same),
    ("log-requests", FAILS, _relogged(_request=_endless), _same),
    ("log-requests", OPEN, _bare("stream.started"), _same),
    ("log-requests", OPEN, _same, _given(period_keys={})),
    ("log-requests", OPEN, _same, lambda given: replace(given, period_keys=dict.fromkeys(
        given.period_keys, bytes(32)))),
    ("log-tenants", FAILS, _relogged(_request=_tenantless), _same),
    ("log-tenants", OPEN, _bare("stream.started"), _same),
    ("log-tenants", OPEN, _same, _given(period_keys={})),
    ("log-refusals", OPEN, _bare("request.refused"), _same),
    ("log-refusals", OPEN, _same, _given(period_keys={})),
    ("log-kept", FAILS, _relogged(_boot=_hasty), _same),
    ("log-kept", FAILS, _line("request.done", b'"sealed":"', b'"sealed":"00'), _same),
    ("log-kept", OPEN, _put(POLICY, lambda _: policies.BASE.encode()), _same),
    ("log-kept", OPEN, _without("log/"), _same),
    ("log-expired", FAILS, _relogged(_retain=lambda log, papers: None), _same),
    ("log-expired", FAILS, _relogged(_boot=_hasty), _same),
    ("log-expired", OPEN, _replaced(POLICY, rb"retention .*", b""), _same),
    ("log-expired", OPEN, _bare("audit.expired"), _same),
    ("log-expired", OPEN, _without("log/"), _same),
    ("log-changes", FAILS, _relogged(_boot=_nameless), _same),
    ("log-changes", OPEN, _bare("boot.start"), _same),
    ("log-changes", OPEN, _without("log/"), _same),
    ("log-extracts", FAILS, _put("log/extracts/extract.json", lambda data: data.replace(b'"index": 5', b'"index": 6')),
     _same),
    ("log-extracts", FAILS, _of_another_log, _same),
    ("log-extracts", OPEN, _without("log/extracts"), _same),
    ("receipts-hold", FAILS, _put("receipts/answer-0.json", lambda data: data.replace(b'"sig":"', b'"sig":"AAAA')),
     _same),
    ("receipts-hold", OPEN, _without("receipts"), _same),
    ("receipts-hold", OPEN, _policy('"hospital"', '"elsewhere"'), _same),
    ("receipts-image", FAILS, _relogged(1, IMAGE=_image(self_test_sha384="ab" * 48)), _same),
    ("receipts-image", FAILS, _relogged(1, IMAGE=_image(measurement="ab" * 48), BOOTS=packs.BOOTS[1:]), _same),
    ("receipts-image", FAILS, _relogged(1, IMAGE=_image(platform="tdx"), BOOTS=packs.BOOTS[1:]), _same),
    ("receipts-image", OPEN, _relogged(1, IMAGE=_image(measurement="ab" * 48)), _same),
    ("receipts-image", OPEN, _without("evidence/"), _same),
    ("receipts-image", OPEN, _own_log(_stranger), _same),
    ("receipts-image", OPEN, _without("receipts"), _same),
    ("receipts-logged", FAILS, _another_record, _same),
    ("receipts-logged", OPEN, _without("receipts"), _same),
    ("receipts-logged", OPEN, _without("log/audit"), _same),
]
IDS = [f"{name}-{outcome}-{number}" for number, (name, outcome, *_) in enumerate(BREAKS)]


@functools.cache
def _whole() -> dict[str, Claimed]:
    """The findings of the genuine pack."""
    return dict(table.judge(Case(*_genuine())))


@functools.cache
def _broken(number: int) -> dict[str, Claimed]:
    """The findings after a break."""
    _, _, change, know = BREAKS[number]
    members, given = _genuine()
    return dict(table.judge(Case(change(dict(members)), know(given))))


def test_all_of_a_genuine_pack_holds() -> None:
    """But for what its policy does not ask for."""
    found = _whole()
    assert {"policy-padding": OPEN} == {name: each.outcome for name, each in found.items() if each.outcome != "holds"}


@pytest.mark.parametrize("number", range(len(BREAKS)), ids=IDS)
def test_a_claim_turns_when_its_evidence_breaks(number: int) -> None:
    """Into "fails" where evidence speaks against it, into "not checked" where it is gone."""
    name, expected, *_ = BREAKS[number]
    found = _broken(number)[name]
    assert expected == found.outcome, found
    assert found.detail


def test_machines_are_of_the_judges_list() -> None:
    """A pack carries none: without the judge's own the rule is not checked, and so the evidence not verified."""
    members, given = _genuine()
    demand = _policy("evidence {", f"evidence {{\n {machine_lists.DEMAND}")
    entries = {name: machine_lists.entry("chip-id", chip) for name, chip in (("holds", CHIP), ("fails", CHIP[::-1]))}

    def outcome(listed: bytes | None) -> str:
        verdicts = Case(demand(dict(members)), replace(given, machines=listed)).verdicts
        [found] = [each for verdict in verdicts.values() for each in verdict.findings if each.rule == "machine"]
        return found.outcome

    assert OPEN == outcome(None)
    for expected, entry in entries.items():
        assert expected == outcome(machine_lists.signed(entry, name="hospital"))


def test_publishers_sign_in_two_forms() -> None:
    """A raw signature in the policy needs no member; of two models, each needs a bundle that holds."""
    members, given = _genuine()
    public, signature = desk.sign_model(bytes(range(32)), bytes.fromhex(packs.MODEL), bytes.fromhex(packs.HEADER))
    raw = f'publisher {{\n public_key = "ed25519:{public.hex()}"\n signature = "ed25519:{signature.hex()}"\n}}'
    made = _replaced(POLICY, rb"publisher \{[^}]*\}", raw.encode())(_without(BUNDLE)(members))
    found = table.judge(Case(made, given))["publisher-signed"]
    assert ("holds", f"demo: ed25519:{public.hex()}") == (found.outcome, found.detail)
    block = re.search(rb'model "demo" \{(?:.*\n)*?\}\n', members[POLICY])
    assert block is not None
    other = block[0].replace(b'"demo"', b'"other"').replace(packs.MODEL.encode(), b"ab" * 32)
    two = members | {POLICY: members[POLICY] + other}
    found = table.judge(Case(two, given))["publisher-signed"]
    assert (OPEN, "the pack has no bundle of other") == (found.outcome, found.detail)
    two["publishers/stray.json"] = packs.BUNDLES.joinpath("p384.sigstore").read_bytes()
    found = table.judge(Case(two, given))["publisher-signed"]
    assert (FAILS, True) == (found.outcome, found.detail.startswith("other: publishers/"))


def test_every_claim_is_broken_in_some_way() -> None:
    """None holds whatever is in the pack."""
    assert set(table.CLAIMS) == {name for name, *_ in BREAKS}


CONTROLS = [(framework, control) for framework in controls.own() for control in framework.controls]


@pytest.mark.parametrize(("framework", "control"), CONTROLS, ids=[f"{each[1].id}" for each in CONTROLS])
def test_a_control_turns_with_each_claim_that_it_rests_on(framework: Framework, control: Control) -> None:
    """Covered by a genuine pack; after each break of each claim, failed or not covered. Nothing is said without one."""
    genuine = _whole()
    if not control.claims:
        assert ("not covered", True) == (control.status(genuine), bool(control.remains))
        return
    assert ("covered in part" if control.part else "covered") == control.status(genuine)
    for number, (name, outcome, *_) in enumerate(BREAKS):
        if name in control.rests_on:
            others = {_broken(number)[each].outcome for each in control.rests_on}
            assert control.status(_broken(number)) == ("failed" if FAILS in others else "not covered"), (name, outcome)


def test_frameworks_are_those_that_were_asked_for() -> None:
    """Eight, each with its source. Of test_clauses is what they quote."""
    found = {path.stem: controls.parse(path.read_bytes(), path.name)
             for path in Path(controls.__file__).parents[1].joinpath("controls").glob("*.toml")}
    assert {"hipaa", "hipaa-administrative", "soc2", "iso-42001", "nist-800-53", "eu-ai-act-12", "eu-ai-act-records",
            "gdpr"} == set(found)
    clauses = {control.id: control.clause for each in found.values() for control in each.controls}
    assert ("High-risk AI systems shall technically allow for the automatic recording of events (logs) over the "
            "lifetime of the system.") == clauses["12(1)"]
    assert all(control.clause is None for control in found["iso-42001"].controls)  # its text is not public
    assert "does not ask for tamper evidence" in str(found["eu-ai-act-12"].note)


@pytest.mark.parametrize(("edit", "says"), [
    (("evidence-verified", "evidence-imagined"), "there is no claim evidence-imagined"),
    (('id    = "X.1"', 'id    = "X.1"\nclaim = 1'), "claim"),
    (("part   = true", "part   = 1"), "part"),
    (('remains = "the rest"', ""), "remains"),
    (('shows  = "it ran"', ""), "shows"),
    (("appliance/controls/v1", "appliance/controls/v2"), "format"),
    (("[[control]]", "[[controls]]"), "control"),
    (("format", "for mat"), "not a mapping of controls"),
])
def test_a_mapping_of_ones_own_is_read_strictly(edit: tuple[str, str], says: str) -> None:
    """What is not understood is named, never passed over."""
    text = ('format    = "appliance/controls/v1"\nframework = "ours"\nsource    = "a book"\n[[control]]\n'
            'id    = "X.1"\ntitle = "t"\nclaims = ["evidence-verified"]\nshows  = "it ran"\npart   = true\n'
            'remains = "the rest"\n')
    assert "X.1" == controls.parse(text.encode(), "own.toml").controls[0].id
    with pytest.raises(AuditError, match=says):
        controls.parse(text.replace(*edit, 1).encode(), "own.toml")


def test_a_mapping_of_before_is_still_read() -> None:
    """It names a claim as it was called: the name said more than the claim."""
    text = ('format = "appliance/controls/v1"\nframework = "ours"\nsource = "a book"\n[[control]]\nid = "X.1"\n'
            'title = "t"\nclaims = ["sbom-complete"]\nshows = "archives are named"\n')
    assert ("sbom-materials",) == controls.parse(text.encode(), "own.toml").controls[0].claims


def test_the_makers_of_evidence_are_known() -> None:
    """The vendor of these tests signs as the real one does; nothing here depends on a platform's name."""
    assert {"sev-snp"} <= {each.name for each in PLATFORMS}
    assert hashlib.sha256(packs.AMD.ark.public_bytes(Encoding.DER)).hexdigest() in packs.AMD.roots.values()


def test_the_reference_lists_every_claim() -> None:
    """In its own words."""
    page = (Path(__file__).parents[2] / "docs/reference/controls.md").read_text("utf-8")
    assert [] == [each.name for each in table.CLAIMS.values() if f"| `{each.name}` | {each.says} |" not in page]
