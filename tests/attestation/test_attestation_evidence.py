"""Evidence end to end on the simulated platform: made, sent, parsed, verified, validated; altered, refused."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from appliance import platforms
from appliance.attestation import binding
from appliance.attestation.case.reading import parse
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.evidence import Evidence
from appliance.attestation.judge.validate import Expectations, validate
from appliance.attestation.judge.verify import verify
from appliance.attestation.simulated import abi as simulated_abi
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.codec.canonical import canonical
from appliance.errors import (
    AttestationError,
    ForgedEvidenceError,
    MalformedEvidenceError,
    RejectedEvidenceError,
)
from appliance.policy.digest import host_data
from tests.fuzz import driver, evidence_fuzz

POLICY = hashlib.sha384(b"policy").digest()
SELF_TEST = hashlib.sha384(b"self-test").digest()
MODEL = hashlib.sha256(b"demo").digest()
SPKI = hashlib.sha256(b"spki").digest()
NONCE = bytes(range(32))


def _attestor(policy: bytes = POLICY) -> Attestor:
    provider = SimulatedProvider(host_data(policy))
    attestor = Attestor(provider, BoundFacts(policy, SELF_TEST, binding.Build(version="0.1.0"), tls_spki_sha256=SPKI))
    attestor.new_generation([binding.LoadedModel(name="demo", sha256=MODEL.hex())])
    return attestor


def _expected(**changes: Any) -> Expectations:
    facts: dict[str, Any] = {
        "platforms": frozenset({"simulated"}), "nonce": NONCE, "policy_sha384": POLICY, "models": {"demo": MODEL},
        "tls_spki_sha256": SPKI, "self_test_sha384": SELF_TEST}
    return Expectations(**{**facts, **changes})


def test_evidence_passes_every_rule_and_still_proves_nothing() -> None:
    """Evidence that went through JSON meets all expectations, and a simulated platform is never called genuine."""
    evidence = parse(_attestor().attest(NONCE).to_json())
    verdict = validate(verify(evidence), _expected())
    assert {"holds"} == {finding.outcome for finding in verdict.findings}
    assert verdict.met
    assert not verdict.genuine
    assert platforms.SIMULATED.notice == evidence.notice
    assert evidence.report_bytes().startswith(b"SIMULATED - PROVES NOTHING")


def test_specification_example_verifies() -> None:
    """The example at the top of the specification is real evidence about the first vector."""
    text = (Path(__file__).parents[2] / "docs" / "formats" / "report-data.md").read_text()
    claims = verify(parse(text.split("```json\n")[1].split("```")[0].encode()))
    assert NONCE == claims.nonce
    assert validate(claims, _expected(tls_spki_sha256=None)).met


def test_what_is_not_expected_is_reported_as_not_checked() -> None:
    """A rule without an expectation is neither passed nor failed."""
    verdict = validate(verify(_attestor().attest(NONCE)),
                       _expected(models=None, tls_spki_sha256=None, self_test_sha384=None))
    outcomes = {finding.rule: finding.outcome for finding in verdict.findings}
    assert {"models", "tls-key", "self-test"} == {rule for rule, result in outcomes.items() if result == "not checked"}
    assert verdict.met


OTHER32, OTHER48 = b"\x01" * 32, b"\x01" * 48


@pytest.mark.parametrize(("changes", "rules"), [
    ({"nonce": OTHER32}, ["nonce"]),
    ({"policy_sha384": OTHER48}, ["policy", "launch-policy"]),
    ({"platforms": frozenset({"sev-snp", "tdx"})}, ["platform"]),
    ({"platforms": frozenset()}, ["platform"]),
    ({"self_test_sha384": OTHER48}, ["self-test"]),
    ({"tls_spki_sha256": OTHER32}, ["tls-key"]),
    ({"models": {"demo": OTHER32}}, ["models"]),
    ({"models": {}}, ["models"]),
    ({"models": {"demo": MODEL, "more": MODEL}}, ["models"]),
    ({"nonce": OTHER32, "models": {}}, ["nonce", "models"]),
])
def test_every_failed_expectation_is_named(changes: dict[str, Any], rules: list[str]) -> None:
    """Authentic evidence that is not what was asked for is rejected, with each failed rule and the first as code."""
    verdict = validate(verify(_attestor().attest(NONCE)), _expected(**changes))
    assert rules == [finding.rule for finding in verdict.findings if finding.outcome == "fails"]
    with pytest.raises(RejectedEvidenceError) as caught:
        verdict.require()
    assert f"evidence-{rules[0]}" == caught.value.code


def test_launch_under_another_policy_is_rejected() -> None:
    """A statement may name a policy that the platform was not launched with: the launch field tells."""
    attestor = _attestor()
    spliced = Attestor(SimulatedProvider(host_data(OTHER48)), attestor.state)
    verdict = validate(verify(spliced.attest(NONCE)), _expected())
    assert ["launch-policy"] == [finding.rule for finding in verdict.findings if finding.outcome == "fails"]


@pytest.mark.parametrize("session", [None, bytes(range(32))], ids=["key", "session"])
@pytest.mark.parametrize("collateral", [(), (b"one",), (b"one", b"two" * 3000)])
def test_parts_are_the_canonical_whole(collateral: tuple[bytes, ...], session: bytes | None) -> None:
    """Whatever its texts hold, evidence as it is sent is its canonical JSON; a batch has one text of its report. Of
    a session it is version 2, and has one key more."""
    attestor = _attestor()
    attestor.bind_tls_key(bytes(32))
    made = attestor.attest_all([NONCE, b"other nonce, 16+"], None, [session] * 2)
    notice = '"statement":{}, "report":"", \\"statement": \u00e9'
    for each in made:
        found = each.model_copy(update={"notice": notice, "collateral": tuple(
            base64.b64encode(item).decode() for item in collateral)})
        absent = {"session"} if session is None else set()
        assert canonical(found.model_dump(mode="json", exclude=absent)) == found.to_json()
        assert found == parse(found.to_json())
        assert each.report is made[0].report


def test_key_release_evidence_is_no_serve_evidence() -> None:
    """Evidence made for a broker cannot be shown to a client."""
    statement = binding.KeyReleaseStatement(
        nonces=binding.Nonces.over([NONCE]), policy_sha384=POLICY.hex(), self_test_sha384=SELF_TEST.hex(),
        release_spki_sha256=SPKI.hex(), build=binding.Build(version="0.1.0"))
    provider = SimulatedProvider(host_data(POLICY))
    report = provider.report(binding.report_data(statement))
    evidence = Evidence(
        platform="simulated", notice=None, report=base64.b64encode(report).decode(),
        statement=statement.model_dump(mode="json"), proof={"nonce": NONCE.hex(), "index": 0, "path": ()})
    verdict = validate(verify(evidence), _expected())
    assert ["statement"] == [finding.rule for finding in verdict.findings if finding.outcome == "fails"]


def test_every_flipped_bit_of_a_report_is_refused() -> None:
    """Flipping any one bit of a report is malformed or forged, and nothing else is ever raised."""
    evidence = _attestor().attest(NONCE)
    report = evidence.report_bytes()
    accepted, codes = [], set()
    for bit in range(8 * len(report)):
        flipped = bytearray(report)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            verify(evidence.model_copy(update={"report": base64.b64encode(flipped).decode()}))
        except MalformedEvidenceError:
            assert bit < 8 * simulated_abi.REPORT_DATA_AT[0]
        except ForgedEvidenceError as error:
            codes.add(error.code)
        else:
            accepted.append(bit)
    assert [] == accepted
    assert {"report-signature"} == codes


def test_every_altered_byte_of_evidence_is_refused_or_changes_nothing() -> None:
    """Overwriting any byte of the JSON raises one of our errors, unless what it says stays the same."""
    attestor = _attestor()
    sent = attestor.attest_all([NONCE, b"other nonce, 16+"])[0].to_json()
    original = verify(parse(sent))
    accepted = []
    for at in range(len(sent)):
        for byte in (sent[at] ^ 1, ord(" "), ord("0")):
            altered = sent[:at] + bytes([byte]) + sent[at + 1:]
            try:
                claims = verify(parse(altered))
            except AttestationError:
                continue
            if claims != original:
                accepted.append(altered)
    assert [] == accepted


@pytest.mark.parametrize("data", [
    b"", b"null", b"[]", b"{}", b'{"format":"appliance/evidence/v2"}', b"\xff", b"[" * 100_000, b"9" * 5000,
    b'{"format":"appliance/evidence/v1","format":"appliance/evidence/v1"}', b'{"format":1.5}', b'{"format":NaN}',
    b'{"format":"appliance/evidence/v1","platform":"simulated"}', b" " * ((1 << 20) + 1),
])
def test_malformed_evidence_is_refused(data: bytes) -> None:
    """Bytes that are not evidence raise the error for that, whatever they are."""
    with pytest.raises(MalformedEvidenceError):
        parse(data)


def test_batch_gives_each_client_its_own_proof() -> None:
    """Clients that share a report each verify with their own nonce and not with a neighbour's."""
    nonces = [bytes([number]) * (16 + number) for number in range(5)]
    batch = _attestor().attest_all(nonces)
    assert 1 == len({evidence.report for evidence in batch})
    for nonce, evidence in zip(nonces, batch, strict=True):
        assert nonce == verify(evidence).nonce
    swapped = batch[0].model_copy(update={"proof": batch[1].proof.model_copy(update={"nonce": nonces[0].hex()})})
    with pytest.raises(ForgedEvidenceError) as caught:
        verify(swapped)
    assert "nonce-proof" == caught.value.code


def test_replayed_report_under_another_statement_is_forged() -> None:
    """A report does not carry over to a statement with another generation."""
    attestor = _attestor()
    old = attestor.attest(NONCE)
    assert 2 == attestor.new_generation([])
    new = attestor.attest(NONCE)
    with pytest.raises(ForgedEvidenceError) as caught:
        verify(new.model_copy(update={"report": old.report}))
    assert "report-data-mismatch" == caught.value.code


def test_generations_count_models_and_tls_keys() -> None:
    """Swapping models or the TLS key starts a new generation; models are put in order."""
    attestor = _attestor()
    models = [binding.LoadedModel(name=name, sha256=MODEL.hex()) for name in ("b", "a")]
    assert 2 == attestor.new_generation(models)
    assert 3 == attestor.bind_tls_key(None)
    statement = attestor.statement(binding.Nonces.over([NONCE]))
    assert (3, ("a", "b"), None) == (
        statement.generation, tuple(model.name for model in statement.models), statement.tls_spki_sha256)


@pytest.mark.parametrize("platform", ["tpm", "sev-snp", "tdx"])
def test_a_simulated_report_under_another_platform_is_malformed(platform: str) -> None:
    """What evidence calls itself decides how its report is read, and no report can be read in two ways."""
    evidence = _attestor().attest(NONCE).model_copy(update={"platform": platform})
    with pytest.raises(AttestationError):
        verify(evidence, at=datetime(2026, 6, 1, tzinfo=UTC))


@pytest.mark.parametrize("report", ["", "!", "QQ", "QR==", "QQ==\n"])
def test_report_is_strict_base64(report: str) -> None:
    """A report that is not in the one base64 form of its bytes is malformed."""
    value = json.loads(_attestor().attest(NONCE).to_json())
    with pytest.raises(MalformedEvidenceError):
        verify(parse(json.dumps({**value, "report": report}).encode()))


def test_provider_signs_64_bytes_only() -> None:
    """Report data of another length is a mistake of ours and not padded."""
    with pytest.raises(ValueError, match="64, 32 and 32"):
        SimulatedProvider(bytes(32)).report(bytes(63))


def test_evidence_survives_mutations() -> None:
    """Five thousand mutations of evidence raise nothing but attestation errors, and nothing false verifies."""
    _, finding = driver.run(evidence_fuzz.fuzz, evidence_fuzz.seeds(), seconds=0, seed=1, least=5000)
    assert None is finding
