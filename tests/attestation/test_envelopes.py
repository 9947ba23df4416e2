"""Envelopes of other projects: the evidence in each is judged, and what travels with it is used or named."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from appliance.attestation.case.record import Record
from appliance.attestation.envelopes import registry
from appliance.attestation.envelopes.parts import messagepack, scale
from appliance.attestation.judge import examine
from appliance.attestation.judge.material import Material
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.cli.main import main
from appliance.codec.cursor import Cursor
from appliance.errors import MalformedEvidenceError
from tests.support import envelopes, fake_tpm
from tests.support.envelopes import AMD, INTEL, b64
from tests.support.expected import ROOT
from tests.support.fake_amd import NOW
from tests.support.vectors import need

ROOTS = Roots(amd=AMD.roots, intel=INTEL.pins["root"], intel_der=INTEL.pins["root_der"])
LOG, REGISTERS = envelopes.ccel([(0, b"firmware"), (1, b"kernel"), (2, b"initrd")])


def _examine(data: bytes | dict[str, Any], **options: Any) -> Record:
    """Judge with Intel's collateral and AMD's issuers at hand; AMD's leaf must come with the envelope."""
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    known = Collateral(certificates=AMD.collateral().certificates[1:], documents=INTEL.collateral().documents)
    return examine.examine(Material(raw, Path("x"), known, roots=ROOTS, **options), at=NOW)


def _rs(platform: str, inner: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"platform": platform, "evidence": inner, **more}


RS_SNP = {"attestation_report": b64(AMD.report()),
          "cert_chain": {name.lower(): b64(data) for name, data in envelopes.der().items()}}
TDX = {"quote": b64(INTEL.quote(**REGISTERS)), "cc_eventlog": b64(LOG)}
UNPADDED = {name: value.rstrip("=") if isinstance(value, str) else value
            for name, value in envelopes.azure_snp().items()}


@pytest.mark.parametrize(("envelope", "kind", "proved"), [
    (envelopes.trustee_snp(), "Trustee evidence, SEV-SNP: AMD", "the VCEK signed the report"),
    ({**TDX}, "Trustee evidence, TDX: Intel", "gives the quoted values of RTMR 0, 1, 2 (sha384)"),
    ({"quote": TDX["quote"], "ccel": TDX["cc_eventlog"]}, "Trustee evidence, TDX: Intel", "RTMR 0, 1, 2"),
    ({"quote": TDX["quote"], "cc_eventlog": None}, "Trustee evidence, TDX: Intel", "the quoting enclave is Intel's"),
    *((envelopes.azure_snp(version), "Trustee evidence, Azure confidential VM: Azure",
       "bind the key that signed the TPM quote") for version in (0, 1, 2)),
    (UNPADDED, "Trustee evidence, Azure confidential VM: Azure", "bind the key that signed the TPM quote"),
    *((envelopes.azure_tdx(version), "Trustee evidence, Azure confidential VM: Intel",
       "bind the key that signed the TPM quote") for version in (0, 1, 2)),
    ({"primary_evidence": TDX, "additional_evidence": ""}, "Trustee attestation: Intel", "RTMR 0, 1, 2"),
    ({"runtime-data": {"nonce": "x"}, "tee-evidence": {"primary_evidence": envelopes.azure_snp(2)}},
     "Trustee attestation: Azure", "bind the key that signed the TPM quote"),
    (envelopes.tsm(), "TSM report in JSON: AMD", "the VCEK signed the report"),
    ({"Provider": "sev_guest\n", "OutBlob": envelopes.tsm()["outblob"], "AuxBlob": envelopes.tsm()["auxblob"]},
     "TSM report in JSON: AMD", "the VCEK signed the report"),
    (envelopes.tsm("tdx_guest"), "TSM report in JSON: Intel", "the quoting enclave is Intel's"),
    (_rs("snp", RS_SNP), "attestation-rs evidence: AMD", "the VCEK signed the report"),
    (_rs("gcp-snp", RS_SNP), "attestation-rs evidence: AMD", "the VCEK signed the report"),
    (_rs("tdx", TDX), "attestation-rs evidence: Intel", "gives the quoted values of RTMR 0, 1, 2 (sha384)"),
    (_rs("az-snp", UNPADDED), "attestation-rs evidence: Azure", "bind the key that signed the TPM quote"),
    (_rs("az-tdx", envelopes.azure_tdx()), "attestation-rs evidence: Intel", "bind the key that signed"),
    (_rs("dstack", envelopes.dstack_json(b64)), "attestation-rs evidence: Intel", "RTMR 3 (sha384)"),
    (envelopes.dstack(), "dstack attestation: Intel", "the event log (2 events) gives the quoted values of RTMR 3"),
    (envelopes.dstack(tdx=False), "dstack attestation: AMD", "the VCEK signed the report"),
    ({"attestation": envelopes.dstack().hex()}, "dstack attestation in JSON: Intel", "RTMR 3 (sha384)"),
    (envelopes.dstack_json(), "dstack quote in JSON: Intel", "RTMR 3 (sha384)"),
    *((envelopes.message(envelopes.dstack_map(kind, log=log)), "dstack attestation: Intel",
       "the event log (2 events) gives the quoted values of RTMR 3") for kind in ("tdx", "gcp-tdx") for log in (1, 2)),
    (envelopes.message(envelopes.dstack_map("sev-snp")), "dstack attestation: AMD", "the VCEK signed the report"),
    ({"attestation": envelopes.message(envelopes.dstack_map(report_data_payload="{}")).hex()},
     "dstack attestation in JSON: Intel", "RTMR 3 (sha384)"),
])
def test_the_evidence_in_an_envelope_is_judged(envelope: bytes | dict[str, Any], kind: str, proved: str) -> None:
    """Each envelope gives its evidence, and what travels with it proves what it can."""
    outcome = _examine(envelope)
    assert "genuine" == outcome.verdict, outcome
    assert outcome.kind.startswith(kind)
    assert any(proved in check for check in outcome.proved), outcome.proved


def test_a_bare_tpm_is_known_by_whoever_vouches_for_its_key(tmp_path: Path) -> None:
    """No certificate travels with it, so only --ak makes it genuine, and only that very key."""
    assert ("cannot tell", "tpm-ak-origin") == (_examine(envelopes.tpm()).verdict, _examine(envelopes.tpm()).code)
    for which, verdict in (("ak", "genuine"), ("other", "not genuine")):
        (tmp_path / which).write_bytes(fake_tpm.pem(which))
        assert verdict == _examine(envelopes.tpm(), key=tmp_path / which).verdict
        assert verdict == _examine(envelopes.azure_snp(), key=tmp_path / which).verdict


def test_a_quote_without_its_key_is_joined_with_the_azure_report_beside_it(tmp_path: Path) -> None:
    """Alone nothing is told of it; beside another machine's report, that this is another's."""
    path = tmp_path / "quote.json"
    path.write_text(json.dumps(envelopes.pieces()))
    known = Collateral(certificates=AMD.collateral().certificates)

    def judged() -> Record:
        return examine.examine(Material(path.read_bytes(), path, known, roots=ROOTS), at=NOW)

    assert ("cannot tell", "evidence-unchecked") == (judged().verdict, judged().code)
    (tmp_path / "hcl.bin").write_bytes(envelopes.azure())
    assert ("genuine", True) == (judged().verdict, "that an SEV-SNP report of Milan" in judged().reason)
    (tmp_path / "hcl.bin").write_bytes(envelopes.azure(which="other"))
    assert "cannot tell" == judged().verdict
    assert any(warning.startswith("AZURE REPORT PASSED OVER") for warning in judged().warnings)


@pytest.mark.parametrize("envelope", [envelopes.tpm(), envelopes.azure_snp(), envelopes.azure_tdx()])
def test_a_nonce_is_what_the_tpm_quote_answers(envelope: dict[str, Any]) -> None:
    """Another one is refused, and of a report alone it is not known what to compare with."""
    assert "the quote answers the nonce" in _examine(envelope, nonce=fake_tpm.NONCE).proved
    assert ("not genuine", "tpm-nonce") == (
        (outcome := _examine(envelope, nonce=bytes(32))).verdict, outcome.code)
    assert "nonce-unchecked" == _examine(envelopes.trustee_snp(), nonce=bytes(32)).code


def _altered(envelope: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {**envelope, **members}


SEV = envelopes.trustee_snp()


@pytest.mark.parametrize(("envelope", "code"), [
    (_altered(SEV, attestation_report={**SEV["attestation_report"], "guest_svn": 7}), "report-signature"),
    (_altered(SEV, attestation_report={**SEV["attestation_report"], "measurement": [1] * 48}), "report-signature"),
    (_altered(envelopes.azure_snp(), tpm_quote=envelopes.pieces(signature="00" * 256)), "tpm-signature"),
    (_altered(envelopes.azure_snp(), tpm_quote=envelopes.pieces(pcrs=["00" * 32] * 24)), "tpm-pcr-digest"),
    (envelopes.azure_tdx(which="other"), "tpm-signature"),
    (_altered(envelopes.azure_tdx(), td_quote=envelopes.b64url(INTEL.quote())), "azure-runtime-data"),
    (envelopes.tpm(pcrs=["00" * 32] * 24), "tpm-pcr-digest"),
])
def test_what_is_signed_cannot_be_altered(envelope: dict[str, Any], code: str) -> None:
    """Fields of a report, a signature, a register, and pieces of two machines put together."""
    outcome = _examine(envelope)
    assert ("not genuine", code) == (outcome.verdict, outcome.code), outcome


@pytest.mark.parametrize(("envelope", "code", "says"), [
    (_altered(SEV, attestation_report={**SEV["attestation_report"], "_reserved": 0}), "envelope-member", "_reserved"),
    (_altered(SEV, extra=1), "envelope-member", "extra"),
    (_altered(SEV, attestation_report={**SEV["attestation_report"], "vmpl": True}), "envelope-malformed", "vmpl"),
    (_altered(SEV, attestation_report={**SEV["attestation_report"], "policy": -1}), "envelope-malformed", "policy"),
    (_altered(SEV, attestation_report={**SEV["attestation_report"], "chip_id": [256]}), "envelope-malformed", "chip"),
    (_altered(SEV, cert_chain=[[]] * 17), "envelope-malformed", "at most 16"),
    (_altered(TDX, quote=" " + TDX["quote"]), "envelope-malformed", "base64"),
    (_altered(TDX, quote="Q"), "envelope-malformed", "base64"),
    (_altered(TDX, quote="QR=="), "envelope-malformed", "one spelling"),
    (_altered(TDX, quote=b64(b"\x03\x00\x02\x00" + bytes(500))), "evidence-unsupported", "not verified here"),
    (_altered(envelopes.azure_snp(), version=3), "envelope-version", "version 3"),
    (_altered(envelopes.azure_snp(), tpm_quote=envelopes.pieces(message="FF54")), "envelope-malformed", "lower case"),
    (_altered(envelopes.azure_snp(), tpm_quote=envelopes.pieces(pcrs=[])), "envelope-malformed", "24"),
    (_altered(envelopes.tsm(), provider="arm_cca_guest"), "envelope-platform", "arm_cca_guest"),
    (_rs("nitro", {}), "envelope-platform", "nitro"),
    (_rs("tdx", RS_SNP), "envelope-malformed", "tdx"),
    (b"\x83\xa7version\x02\xa8platform\x80\xa5stack\x80", "envelope-version", "version 2"),
    *((envelopes.message(changed), code, says) for changed, code, says in (
        (envelopes.dstack_map("nitro-enclave"), "envelope-platform", "nitro-enclave"),
        (envelopes.dstack_map(runtime_events=[{"event": "x", "payload": b"", "version": 3}]), "envelope-version",
         "1 and 2"),
        (envelopes.dstack_map(report_data=[256] * 64), "envelope-malformed", "report_data"),
        (envelopes.dstack_map(report_data=b"short"), "envelope-malformed", "expected 64"),
        (envelopes.dstack_map(extra=1), "envelope-member", "extra"),
        ({**envelopes.dstack_map(), "stack": {"kind": "pod", "data": {}}}, "envelope-version", "'pod'"),
        ({**envelopes.dstack_map(), "stack": []}, "envelope-malformed", "stack"))),
    (b"\x00\x02" + envelopes.sized(b"\x84\x44\xa1\x01" + bytes(8)), "envelope-platform", "Nitro"),
    (envelopes.dstack()[:-1], "envelope-malformed", "config"),
    ({"primary_evidence": {"sample": 1}}, "envelope-platform", "no platform"),
    ({"attestation": "00ff"}, "envelope-malformed", "dstack"),
    ({"attestation_report": {"data": []}, "cert_chain": {}, "serial_number": []}, "envelope-platform", "Hygon"),
    ({"token": [1]}, "envelope-platform", "Arm CCA"),
    ({"eat_profile": "tag:x"}, "envelope-platform", "Entity Attestation Token"),
])
def test_what_is_not_read_is_refused_by_name(envelope: bytes | dict[str, Any], code: str, says: str) -> None:
    """Nothing signs an envelope, so one in another form is no forgery: nothing can be told of it."""
    outcome = _examine(envelope)
    assert ("cannot tell", code) == (outcome.verdict, outcome.code), outcome
    assert says in outcome.reason
    assert outcome.hint


@pytest.mark.parametrize("data", [
    b'{"quote":"QQ==","quote":"QQ=="}', b'{"quote":"QQ==","a":1.5}', b'{"quote":' + b"[" * 5000, b'{"quote":"\xff"}',
    b"[]", b"\x00\x00\x03", b"\x00\x09\x04\x00", b""])
def test_what_is_no_envelope_is_not_taken_for_one(data: bytes) -> None:
    """Doubled members, fractions, depth, other encodings, and bytes that only begin alike."""
    assert None is registry.recognise(data)


@pytest.mark.parametrize("tail", [b"junk", b"{}", b"\xff\x00\x01"])
@pytest.mark.parametrize("envelope", [json.dumps(TDX).encode(), envelopes.dstack(), envelopes.message(
    envelopes.dstack_map())], ids=["json", "scale", "messagepack"])
def test_bytes_behind_an_envelope_are_named(envelope: bytes, tail: bytes) -> None:
    """They are judged by nobody, and the evidence stays as genuine as it is."""
    outcome = _examine(envelope + tail)
    assert ("genuine", 1) == (outcome.verdict, sum(each.startswith(f"TAIL: {len(tail)} bytes")
                                                   for each in outcome.warnings)), outcome
    assert [] == [each for each in _examine(envelope + b"\n"[:envelope[0] == 0x7B]).warnings if "TAIL" in each]


def test_what_the_envelope_says_beside_is_not_proved() -> None:
    """Report data that differ from the evidence's, members that nobody judges, certificates that cannot be read."""
    other = _examine(envelopes.dstack(report_data=bytes(64)))
    assert ("genuine", True) == (other.verdict, any(each.startswith("REPORT DATA") for each in other.warnings))
    assert [] == [each for each in _examine(envelopes.dstack()).warnings if each.startswith("REPORT DATA")]
    devices = _examine({"primary_evidence": TDX, "additional_evidence": '{"nvidia":[]}'})
    assert any(each.startswith("NOT JUDGED: additional_evidence") for each in devices.warnings)
    gpu = _examine(_rs("tdx", TDX, nvidia_gpu={"devices": []}))
    assert any(each.startswith("NOT JUDGED: nvidia_gpu") for each in gpu.warnings)
    broken = _altered(SEV, cert_chain=[{"cert_type": "VCEK", "data": [48, 1]}])
    assert ("cannot tell", True) == ((outcome := _examine(broken)).verdict, any(
        each.startswith("CERTIFICATE 1") for each in outcome.warnings))


def test_a_log_in_an_envelope_explains_only_what_it_gives() -> None:
    """A log of other events leaves the quote genuine, and the register unexplained."""
    outcome = _examine(_altered(TDX, cc_eventlog=b64(envelopes.ccel([(0, b"other")])[0])))
    assert ("genuine", True) == (outcome.verdict, any("does not lead to RTMR 0, 1, 2" in each
                                                      for each in outcome.warnings)), outcome


def test_a_named_log_comes_before_the_envelopes() -> None:
    """What the caller names with --event-log is what is replayed."""
    outcome = _examine(envelopes.dstack(), log=LOG)
    assert any("does not lead to RTMR 0, 1, 2, 3" in each for each in outcome.warnings)


def test_dstack_s_report_data_are_compared_in_either_version() -> None:
    """Other report data beside the quote than in it are named; a Nitro document has none to compare."""
    for changed in ({}, {"report_data": bytes(64)}):
        warned = [each for each in _examine(envelopes.message(envelopes.dstack_map(**changed))).warnings
                  if each.startswith("REPORT DATA")]
        assert len(changed) == len(warned)
    google = _examine(envelopes.message(envelopes.dstack_map("gcp-tdx")))
    assert any(each.startswith("NOT JUDGED: tpm_quote") for each in google.warnings)


@pytest.mark.parametrize(("name", "size", "told"), [
    ("tdx", 512, ("runtime events", "config", "report_data_payload")), ("sev-snp", 1184, ("mr_config", "config"))])
def test_dstack_s_own_library_writes_what_is_read(name: str, size: int, told: tuple[str, ...]) -> None:
    """Attestations that rmp-serde wrote of dstack's structures; this test's own writer gives the same bytes."""
    data = base64.b64decode((ROOT / f"tests/goldens/dstack/{name}.b64").read_bytes())
    carried, tail = registry.read(data)
    assert (size, b"", bytes(range(64))) == (len(carried.evidence), tail, carried.report_data)
    assert told == tuple(each for each, _ in carried.told)
    assert envelopes.message(messagepack.read(data)[0]) == data
    if name == "tdx":
        events = carried.events or ()
        assert [(1, b"\xab" * 48), (4, hashlib.sha384(envelopes.canonical_event(b"app-id", b"\1\2")).digest())] == [
            (each.register, each.digests["sha384"]) for each in events]


@pytest.mark.parametrize("value", [
    0, 127, 128, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 64) - 1, "", "x" * 31, "é" * 16, "x" * 256,
    "x" * 65536, b"", bytes(255), bytes(256), bytes(65536), [], [1] * 15, [200] * 16, [1] * 65536, None, True, False,
    {}, {str(number): number for number in range(16)}, [[[[[[[1]]]]]]]])
def test_message_pack_is_read(value: Any) -> None:
    """The bounds of each form, and what stands behind the value."""
    assert (value, b"tail") == messagepack.read(envelopes.message(value) + b"tail")


@pytest.mark.parametrize("data", [
    b"", b"\xcc\x7f", b"\xcd\x00\xff", b"\xce\x00\x00\xff\xff", b"\xcf" + bytes(4) + b"\xff" * 4,
    b"\xd9\x1f" + b"x" * 31, b"\xda\x00\xff" + b"x" * 255, b"\xc5\x00\x01x", b"\xdc\x00\x0f" + bytes(15),
    b"\xdd\x00\x00\x00\x10" + bytes(16), b"\xde\x00\x00", b"\xff", b"\xd0\x80", b"\xca" + bytes(4),
    b"\xcb" + bytes(8), b"\xc1", b"\xc7\x00\x00", b"\xd4\x00\x00", b"\x81\x01\x01", b"\x82\xa1a\x01\xa1a\x02",
    b"\xa1\xff", b"\xa2a", b"\x92\x01", b"\xdd\xff\xff\xff\xff", b"\x91" * 8 + b"\x01",
    b"\xdd\x00\x02\x00\x00" + bytes(1 << 17)])
def test_message_pack_has_one_spelling(data: bytes) -> None:
    """Longer forms, negative numbers, fractions, extensions, keys that are not text or stand twice, cuts, depth, and
    more values than are counted."""
    with pytest.raises(MalformedEvidenceError):
        messagepack.read(data)


@pytest.mark.parametrize("data", [b"\x01\x00", b"\x02\x00\x00\x00", b"\x03\x00", b"\x01", b""])
def test_scale_has_one_spelling(data: bytes) -> None:
    """Longer forms of small numbers, numbers of 2^30 or more, and what is cut are malformed."""
    with pytest.raises(MalformedEvidenceError):
        scale.compact(Cursor(data, "x", "little"), "number")


@pytest.mark.parametrize("number", [0, 63, 64, (1 << 14) - 1, 1 << 14, (1 << 30) - 1])
def test_scale_is_read(number: int) -> None:
    """The bounds of each width."""
    assert number == scale.compact(Cursor(envelopes.compact(number), "x", "little"), "number")


def test_trustees_own_tpm_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    """Its key signed the quote, and nothing says whose the key is."""
    path = need("tpm/trustee_tpm_evidence.json")
    assert 2 == main(["evidence", str(path), "--at", "2026-07-01", "--json"])
    outcome, = json.loads(capsys.readouterr().out)
    assert ("cannot tell", "tpm-ak-origin") == (outcome["verdict"], outcome["code"])
    assert "the key in the envelope signed the quote" in outcome["proved"]


def test_a_real_quote_and_its_real_log_in_trustees_envelope(capsys: pytest.CaptureFixture[str],
                                                            tmp_path: Path) -> None:
    """Google's CCEL replays to Google's RTMRs, also when both come in one file."""
    import gzip

    log = gzip.decompress(need("eventlog/gce_ccel.bin.gz").read_bytes())
    quote = need("tdx/gce_quote.bin").read_bytes()
    (tmp_path / "evidence.json").write_text(json.dumps(
        {"quote": base64.b64encode(quote).decode(), "cc_eventlog": base64.b64encode(log).decode()}))
    main(["evidence", str(tmp_path / "evidence.json"), "--at", "2026-07-01", "--json"])
    outcome, = json.loads(capsys.readouterr().out)
    assert "the event log (43 events) gives the quoted values of RTMR 0, 1, 2 (sha384)" in outcome["proved"]
