"""Envelopes of services: the report or quote in each is judged, or the envelope is refused by name with what to do."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from appliance.attestation.case.record import Record
from appliance.attestation.envelopes import registry
from appliance.attestation.judge import examine
from appliance.attestation.judge.material import Material
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from tests.support import envelopes, fake_tpm
from tests.support import provider_envelopes as providers
from tests.support.envelopes import AMD, INTEL, b64
from tests.support.fake_amd import NOW

ROOTS = Roots(amd=AMD.roots, intel=INTEL.pins["root"], intel_der=INTEL.pins["root_der"])
AMD_AT_HAND = Collateral(certificates=AMD.collateral().certificates, documents=INTEL.collateral().documents)
WITHOUT_LEAF = Collateral(certificates=AMD.collateral().certificates[1:], documents=INTEL.collateral().documents)


def _examine(data: bytes | dict[str, Any], known: Collateral = AMD_AT_HAND) -> Record:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return examine.examine(Material(raw, Path("x"), known.copy(), roots=ROOTS), at=NOW)


@pytest.mark.parametrize(("envelope", "kind", "proved", "unjudged"), [
    (providers.chat(), "chat service's report in JSON: Intel", "RTMR 3 (sha384)",
     ["signing_algo", "nvidia_payload", "info"]),
    (providers.chat(intel_quote="0x" + INTEL.quote().hex().upper()), "chat service's report", "enclave is Intel's",
     ["signing_algo", "nvidia_payload", "info"]),
    (providers.chat(intel_quote=b64(INTEL.quote()), event_log="[1]"), "chat service's report", "enclave is Intel's",
     ["signing_algo", "event_log", "nvidia_payload", "info"]),
    (providers.gateway(), "chat service's report in JSON: Intel", "RTMR 3 (sha384)",
     ["signing_algo", "nvidia_payload", "info", "model_attestations"]),
    (providers.tinfoil(), "Tinfoil evidence: AMD", "the VCEK signed the report", []),
    (providers.tinfoil("sev-snp-guest/v1"), "Tinfoil evidence: AMD", "the VCEK signed the report", []),
    (providers.tinfoil("tdx-guest/v2", INTEL.quote()), "Tinfoil evidence: Intel", "enclave is Intel's", []),
    (providers.maa(tdx=True), "MAA request: Intel", "enclave is Intel's", ["runtimeData"]),
    (providers.trust_authority(), "Trust Authority request: Intel", "enclave is Intel's",
     ["verifier_nonce", "runtime_data"]),
    (providers.trust_authority(inner=True), "Trust Authority request: Intel", "enclave is Intel's",
     ["verifier_nonce", "runtime_data"]),
])
def test_a_services_evidence_is_judged(envelope: dict[str, Any], kind: str, proved: str, unjudged: list[str]) -> None:
    """The report or quote is as genuine as if it came alone, and what nobody judges is named."""
    outcome = _examine(envelope)
    assert "genuine" == outcome.verdict, outcome
    assert outcome.kind.startswith(kind)
    assert any(proved in check for check in outcome.proved), outcome.proved
    named = [each.removeprefix("NOT JUDGED: ").split(".")[0] for each in outcome.warnings if "NOT JUDGED" in each]
    assert unjudged == named


@pytest.mark.parametrize("envelope", [providers.maa(), providers.snp_report()])
def test_a_chain_in_pem_travels_along(envelope: dict[str, Any]) -> None:
    """Microsoft's report brings its leaf: with it the report is genuine, without it nothing is told."""
    outcome = _examine(envelope, WITHOUT_LEAF)
    assert ("genuine", True) == (outcome.verdict, outcome.kind.startswith("MAA request: AMD"))
    lacking = {name: value for name, value in providers.snp_report().items() if name != "VcekCertChain"}
    assert "cannot tell" == _examine(lacking, WITHOUT_LEAF).verdict


@pytest.mark.parametrize(("envelope", "code", "says"), [
    ({"attestation_type": "chutes", "all_attestations": [providers.chat()]}, "envelope-platform", "several machines"),
    (providers.chat(intel_quote="04zz"), "envelope-malformed", "intel_quote"),
    (providers.tinfoil("aws-nitro-enclave/v1"), "envelope-version", "aws-nitro-enclave"),
    ({**providers.tinfoil(), "extra": 1}, "envelope-member", "extra"),
    ({**providers.tinfoil(), "body": b64(b"\x1f\x8bnothing")}, "envelope-malformed", "gzip"),
    ({**providers.tinfoil(), "body": b64(gzip.compress(bytes(1 << 24)))}, "envelope-malformed", "unpacks to more"),
    ({**providers.tinfoil(), "body": b64(gzip.compress(AMD.report()) + b"x")}, "envelope-malformed", "followed"),
    ({"report": b64(b"no JSON"), "runtimeData": {}}, "envelope-malformed", "JSON in base64url"),
    ({**providers.snp_report(), "VcekCertChain": b64(b"-----END CERTIFICATE-----" * 9)}, "envelope-malformed",
     "at most 8"),
    ({**providers.trust_authority(), "sgx": 1}, "envelope-member", "sgx"),
    ({"akPub": "AA==", "quotes": [{"quote": b64(fake_tpm.quote())}], "eventLog": ""}, "envelope-platform",
     "go-tpm-tools"),
    (providers.token(), "envelope-platform", "Microsoft Azure Attestation"),
    (providers.token("https://confidentialcomputing.googleapis.com"), "envelope-platform", "Google Cloud Attestation"),
    (providers.token("https://example.com") + b"\n", "envelope-platform", "'https://example.com'"),
])
def test_what_is_not_read_is_refused_by_name(envelope: bytes | dict[str, Any], code: str, says: str) -> None:
    """It says whose envelope it is, what of it is wrong, and what to do."""
    outcome = _examine(envelope)
    assert ("cannot tell", code) == (outcome.verdict, outcome.code), outcome
    assert says in outcome.reason
    assert outcome.hint


def test_what_lies_in_a_refused_envelope_is_cut_out() -> None:
    """A fleet's report, go-tpm-tools' JSON and a token with a quote in its claims: a shell's line takes it out."""
    fleet = {"all_attestations": [providers.chat(), providers.chat()]}
    tools = {"akPub": "AA==", "quotes": [{"quote": b64(fake_tpm.quote())}]}
    for envelope, kind in ((fleet, "Intel TDX quote"), (tools, "TPM 2.0 quote"),
                           (providers.token(quote=INTEL.quote().hex()), "Intel TDX quote")):
        outcome = _examine(envelope)
        assert f"in it lies: {kind}" in outcome.reason, outcome
        assert (outcome.hint or "").startswith("cut it out and examine it: cat x | ")


@pytest.mark.parametrize("data", [b"a.b.c", b"..", b"e30.e30.x", b"e30.eyJpc3MiOjF9.x", b"\xff.\xff.\xff",
                                  b"e30.eyJpc3MiOiIifQ.x", b"a" * (1 << 19) + b".eyJpc3MiOiJ4In0.x"])
def test_what_only_looks_like_a_token(data: bytes) -> None:
    """Three parts with dots, claims without an issuer, other characters, and one that is too long."""
    assert None is registry.recognise(data)


def test_each_envelope_has_its_row() -> None:
    """Every kind that is made here is known by a name, and no two of them share a row that is another's."""
    names = [registry.recognise(json.dumps(each).encode()) for each in providers.every()]
    assert {"chat service's report in JSON", "Tinfoil evidence", "MAA request", "Trust Authority request"} == set(names)
    assert "Trustee evidence, TDX" == registry.recognise(json.dumps({"quote": b64(INTEL.quote())}).encode())
    assert "dstack quote in JSON" == registry.recognise(json.dumps(envelopes.dstack_json()).encode())
