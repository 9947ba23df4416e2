"""`appliance evidence`: what it says of each kind of file, and its exit codes."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.binding import Build
from appliance.attestation.case import event_log as tpm_log
from appliance.attestation.case.record import Record
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.judge import examine
from appliance.attestation.judge.material import Material
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.attestation.tpm.judging import azure as azure_abi
from appliance.attestation.tpm.judging import files as tpm_files
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging import dice as x509dice
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.cli.main import main
from appliance.codec import cborreader, der
from appliance.errors import AttestationError, MalformedEvidenceError
from tests.support import fake_tpm
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.fake_intel import FakeIntel, dice_certificate, dice_certificate_spki
from tests.support.vectors import need

TIME = ["--at", "2026-07-01"]
AMD, INTEL = FakeAmd(), FakeIntel()


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["evidence", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)[0]


@pytest.mark.parametrize(("file", "words", "code", "verdict", "says"), [
    ("snp/milan_report.bin", TIME, 0, "genuine", "AMD hardware"),
    ("snp/genoa_report.bin", TIME, 0, "genuine", "AMD hardware"),
    ("snp/debug_policy_report.bin", TIME, 0, "genuine", "AMD hardware"),
    ("snp/milan_report.bin", [*TIME, "--nonce", "00" * 32], 2, "cannot tell", "a nonce was given"),
    ("tdx/quote_v4.bin", [*TIME, "--nonce", "00" * 32], 2, "cannot tell", "a nonce was given"),
    ("snp/milan_report.bin", ["--at", "2034-01-01"], 2, "cannot tell", "valid from"),
    ("snp/genoa_report_with_pem_table.bin", TIME, 0, "genuine", "AMD hardware"),
    ("azure/hcl-report.bin", TIME, 0, "genuine", "the keys of the virtual TPM"),
    ("azure/tpm-quote.msg", TIME, 2, "cannot tell", "neither the public key nor a certificate"),
    ("tpm/gce2021/quote.msg", TIME, 2, "cannot tell", "who issued"),
    ("tpm/gce2021/quote_sha1.msg", TIME, 2, "cannot tell", "who issued"),
    ("tdx/quote_v4_trailing_bytes.bin", TIME, 2, "cannot tell", "are absent"),
    ("snp/milan_report.bin", [*TIME, "--collateral", "tpm"], 2, "cannot tell", "the VCEK certificate"),
    ("tdx/quote_v4.bin", ["--at", "2025-06-20T10:16:03Z"], 0, "genuine", "TCB UpToDate"),
    ("tdx/quote_v4.bin", TIME, 2, "cannot tell", "at 2026-07-01"),
    ("tdx/quote_v4.bin", [*TIME, "--collateral", "snp"], 2, "cannot tell", "are absent"),
    ("tpm", ["--at", "2026-09-01"], 2, "cannot tell", "no certificate says that a TPM holds this key"),
    ("tpm/quote.msg", ["--ak", "tpm/ak.pub"], 0, "genuine", "measured boot, host trusted"),
    ("tpm/quote.msg", ["--ak", "tpm/akcert_0x01C101D0.der"], 1, "not genuine", "not by this AK"),
    ("tpm/quote.msg", ["--ak", "tpm/ak.pub", "--nonce", "00" * 32], 1, "not genuine", "another nonce"),
    ("ra-tls/gramine-cert.pem", TIME, 2, "cannot tell", "SGX"),
    ("ra-tls/intel-sgxsdk-cert.pem", TIME, 2, "cannot tell", "SGX"),
    ("ra-tls/rats-tls-cert.pem", TIME, 2, "cannot tell", "SGX"),
    ("snp/milan_ark.pem", TIME, 2, "cannot tell", "no evidence in it"),
    ("README.md", TIME, 2, "cannot tell", "not recognised"),
])
def test_public_evidence(capsys: pytest.CaptureFixture[str], file: str, words: list[str], code: int, verdict: str,
                         says: str) -> None:
    """Each vector gets the verdict that its source says it deserves."""
    words = [str(need(word)) if word.split("/")[0] in ("tpm", "snp") else word for word in words]
    found, outcome = _run(capsys, str(need(file)), *words)
    assert (code, verdict) == (found, outcome["verdict"])
    assert says in outcome["reason"]


def test_a_debug_report_is_genuine_and_loudly_flagged(capsys: pytest.CaptureFixture[str]) -> None:
    """A person sees that the host can decrypt the guest, before the verdict."""
    assert 0 == main(["evidence", str(need("snp/debug_policy_report.bin")), *TIME])
    out = capsys.readouterr().out
    assert "WARNING: DEBUG: the guest policy lets the host decrypt this guest" in out
    assert out.index("WARNING: DEBUG") < out.index("verdict: GENUINE")


def test_a_foreign_ak_certificate_is_named_as_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The certificate beside the real quote is for another key, and so does not certify this one."""
    _, outcome = _run(capsys, str(need("tpm")), "--at", "2026-09-01")
    assert any("AK CERTIFICATE REFUSED" in warning for warning in outcome["warnings"])
    assert {"the key in ak.pub signed the quote", "the quote answers the nonce",
            "the values of PCR 0, 1, 2, 3, 4, 5, 6, 7 (sha256) are the quoted ones"} == set(outcome["proved"])


def test_every_claim_of_a_report_is_printed_in_amds_terms(capsys: pytest.CaptureFixture[str]) -> None:
    """Each field of ATTESTATION_REPORT has its line, and TCBs are decoded."""
    _, outcome = _run(capsys, str(need("snp/genoa_report.bin")), *TIME)
    claims = outcome["claims"]["claims"]
    names = {"VERSION", "GUEST_SVN", "POLICY", "POLICY.DEBUG", "FAMILY_ID", "IMAGE_ID", "VMPL", "SIGNATURE_ALGO",
             "CURRENT_TCB", "PLATFORM_INFO", "AUTHOR_KEY_EN", "MASK_CHIP_KEY", "SIGNING_KEY", "REPORT_DATA",
             "MEASUREMENT", "HOST_DATA", "ID_KEY_DIGEST", "AUTHOR_KEY_DIGEST", "REPORT_ID", "REPORT_ID_MA",
             "REPORTED_TCB", "CPUID_FAM_ID", "CPUID_MOD_ID", "CPUID_STEP", "CHIP_ID", "COMMITTED_TCB",
             "CURRENT_VERSION", "COMMITTED_VERSION", "LAUNCH_TCB"}
    assert set() == names - set(claims)
    assert ("bootloader 10, tee 0, snp 23, microcode 84", "Genoa") == (claims["REPORTED_TCB"], claims["product line"])


def _simulated() -> bytes:
    attestor = Attestor(SimulatedProvider(bytes(32)), BoundFacts(bytes(48), bytes(48), Build(version="0.1.0")))
    return attestor.attest(bytes(32)).to_json()


@pytest.mark.parametrize(("data", "code", "says"), [
    (_simulated(), "evidence-simulated", "no hardware made this"),
    (_simulated().replace(b'"size":1', b'"size":2'), "report-data-mismatch", "report_data"),
    (dice_certificate(), "evidence-malformed", "TDX quote"),
    (dice_certificate(quote=FakeIntel().quote()), "chain-root", "not the pinned root"),
    (dice_certificate(quote=bytes(300)), "evidence-unsupported", "unknown"),
    (dice_certificate(tag=60001), "evidence-unsupported", "TDREPORT"),
    (dice_certificate(tag=700), "evidence-unsupported", "CBOR tag 700"),
    (b"\x04\x00\x02\x00\x81\x00\x00\x00", "evidence-malformed", "TDX quote"),
    (b"HCLA", "evidence-malformed", "Azure report"),
    (b"\xff\x54\x43\x47", "evidence-unchecked", "no signature"),
    (b"\x09" + bytes(1183), "snp-version", "version 9"),
    (b"", "evidence-unknown", "not recognised"),
    (b"{}", "evidence-unknown", "not recognised"),
])
def test_other_files(tmp_path: Path, data: bytes, code: str, says: str) -> None:
    """Whatever a file holds, there is a verdict with a reason, and never a traceback."""
    path = tmp_path / "file"
    path.write_bytes(data)
    outcome = examine.examine(Material(data, path), at=NOW)
    assert code == outcome.code
    assert says in outcome.reason
    assert "genuine" != outcome.verdict
    assert outcome.reason in str(outcome)


def test_a_statement_is_shown_as_the_json_that_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not as Python writes it: for machines its values, for people the same words."""
    (tmp_path / "file").write_bytes(_simulated())
    assert 1 == main(["evidence", str(tmp_path / "file"), "--json"])
    outcome, = json.loads(capsys.readouterr().out)
    assert json.loads(_simulated())["statement"] == outcome["claims"]["statement"]
    assert 1 == main(["evidence", str(tmp_path / "file")])
    assert 'build              {"' in capsys.readouterr().out


RUNTIME = json.dumps({"keys": [{"kid": "HCLAkPub", "kty": "RSA", "n": "AQAB", "e": "AQAB"}]}).encode()


def _azure(runtime: bytes = RUNTIME, *, bound: bytes = RUNTIME, kind: int = 2, tail: bytes = bytes(16)) -> bytes:
    report = AMD.report(report_data=hashlib.sha256(bound).digest() + bytes(32))
    return (b"HCLA" + bytes(28) + report + bytes(8) + kind.to_bytes(4, "little") + (1).to_bytes(4, "little")
            + len(runtime).to_bytes(4, "little") + runtime + tail)


def _with_our_roots(data: bytes) -> Record:
    roots = Roots(amd=AMD.roots, intel=INTEL.pins["root"], intel_der=INTEL.pins["root_der"])
    known = Collateral(certificates=AMD.collateral().certificates, documents=INTEL.collateral().documents)
    return examine.examine(Material(data, Path("x"), known, roots=roots), at=NOW)


@pytest.mark.parametrize(("data", "code"), [
    (_azure(), ""), (_azure(bound=b"{}"), "azure-runtime-data"), (_azure(kind=4), "azure-td-quote"),
    (_azure(kind=3), "evidence-unsupported"), (_azure(tail=b"\1" * 20), ""),
    (_azure(b"[]", bound=b"[]"), "evidence-malformed"), (_azure(b'{"keys":[1]}'), "evidence-malformed")])
def test_an_azure_report_binds_its_runtime_data(data: bytes, code: str) -> None:
    """The keys that the runtime data names count only as far as the hardware report binds them."""
    outcome = _with_our_roots(data)
    assert (code, "genuine" if not code else outcome.verdict) == (outcome.code, outcome.verdict)


@pytest.mark.parametrize("tailed", [
    AMD.report() + b"what follows", AMD.report() + bytes(500) + b"\1", _azure(tail=b"\0\1" * 10),
    INTEL.quote() + b"\1", INTEL.quote() + b"{}" * 40], ids=["words", "padded", "azure", "quote", "json"])
def test_what_follows_evidence_is_named_and_not_judged(tailed: bytes) -> None:
    """Whoever wrote the file put it there: the hardware's word is as genuine as without it."""
    outcome = _with_our_roots(tailed)
    assert "genuine" == outcome.verdict, outcome
    assert any(warning.startswith("TAIL: ") for warning in outcome.warnings)


def _quote_folder(folder: Path, pcrs: dict[int, bytes], given: dict[int, bytes], log: bytes) -> Path:
    message = fake_tpm.quote(pcrs)
    for name, data in (("quote.msg", message), ("quote.sig", fake_tpm.sign(message)), ("ak.pub", fake_tpm.public()),
                       ("quote.pcrs", fake_tpm.pcr_file(given)), ("eventlog", log)):
        (folder / name).write_bytes(data)
    return folder / "quote.msg"


def test_a_quote_of_one_register_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Sixteen values and a whole log beside it are not called quoted."""
    every = {number: hashlib.sha256(bytes(32) + hashlib.sha256(b"x").digest()).digest() for number in range(8)}
    log = fake_tpm.event_log([(number, 1, b"x") for number in range(8)])
    path = _quote_folder(tmp_path, {7: every[7]}, every, log)
    code, outcome = _run(capsys, str(path), "--ak", str(tmp_path / "ak.pub"))
    assert (0, "genuine") == (code, outcome["verdict"])
    assert {"sha256 PCR 7": every[7].hex()} == outcome["claims"]["PCR values"]
    assert "the values of PCR 7 (sha256) are the quoted ones" in outcome["proved"]
    assert "the event log (8 events) gives the quoted values of PCR 7 (sha256)" in outcome["proved"]
    assert any(warning.startswith("PCR 0, 1, 2, 3, 4, 5, 6 (sha256): NOT QUOTED") for warning in outcome["warnings"])


def test_a_quote_of_no_register_proves_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its signature holds, and it is not called genuine."""
    path = _quote_folder(tmp_path, {}, fake_tpm.PCRS, fake_tpm.event_log([(0, 1, b"x")]))
    code, outcome = _run(capsys, str(path), "--ak", str(tmp_path / "ak.pub"))
    assert (2, "cannot tell", "tpm-quote-empty") == (code, outcome["verdict"], outcome["code"])
    assert [] == [said for said in outcome["proved"] if "PCR" in said or "log" in said]


def test_a_quote_followed_by_other_bytes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What the TPM signed is judged, and the rest is named."""
    path = _quote_folder(tmp_path, fake_tpm.PCRS, fake_tpm.PCRS, fake_tpm.event_log([]))
    path.write_bytes(path.read_bytes() + b"tail")
    code, outcome = _run(capsys, str(path), "--ak", str(tmp_path / "ak.pub"))
    assert (0, "genuine") == (code, outcome["verdict"])
    assert any(warning.startswith("TAIL: 4 bytes") for warning in outcome["warnings"])


def test_a_googles_quote_of_2021_is_explained_up_to_what_user_space_extended(
        capsys: pytest.CaptureFixture[str]) -> None:
    """Its log ends before IMA's PCR 10; the quote's own values and nonce are the ones used."""
    _, outcome = _run(capsys, str(need("tpm/gce2021/quote.msg")), *TIME)
    assert "the event log (44 events) gives the quoted values of PCR 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 (sha256)" in (
        outcome["proved"])
    assert any("has no event of PCR 10 (sha256)" in warning for warning in outcome["warnings"])
    _, weak = _run(capsys, str(need("tpm/gce2021/quote_sha1.msg")), *TIME)
    assert any(warning.startswith("SHA-1 BANK") for warning in weak["warnings"])


def test_googles_ccel_replays_to_the_rtmrs_of_its_quote(capsys: pytest.CaptureFixture[str]) -> None:
    """A log in gzip, named beside the quote; RTMR 3 was never extended."""
    log = need("eventlog/gce_ccel.bin.gz")
    _, outcome = _run(capsys, str(need("tdx/gce_quote.bin")), "--event-log", str(log), *TIME)
    assert "the event log (43 events) gives the quoted values of RTMR 0, 1, 2 (sha384)" in outcome["proved"]
    assert [] == [warning for warning in outcome["warnings"] if warning.startswith("EVENT LOG")]
    _, other = _run(capsys, str(need("tdx/quote_v4.bin")), "--event-log", str(log), *TIME)
    assert any("does not lead to RTMR 0, 1" in warning for warning in other["warnings"])


def test_a_log_that_ends_in_a_short_mark_is_read() -> None:
    """Eight bytes of ones behind the last event are no event."""
    assert 87 == len(tpm_log.parse(need("eventlog/ccel_short_end_mark.bin").read_bytes()))


@pytest.mark.parametrize("log", [b"\x1f\x8bnot gzip", gzip.compress(b"no log"), gzip.compress(bytes(1 << 25))],
                         ids=["none", "other", "long"])
def test_a_log_that_is_none_explains_nothing(log: bytes) -> None:
    """Nor does one that is too long once it is unpacked."""
    try:
        unpacked = tpm_files.unpack(log)
    except MalformedEvidenceError:
        return
    assert len(unpacked) <= tpm_log.MAX_LOG_BYTES + 1
    _, explanation = tpm_log.explained(unpacked, {"sha256": {0: b"\1" * 32}})
    assert ({"sha256": (0,)}, True) == (explanation.unexplained, bool(explanation.problem))


def test_a_quote_beside_an_azure_report_is_joined(tmp_path: Path) -> None:
    """The key that the hardware report binds signed the quote: then the host is not who vouches for it."""
    numbers = fake_tpm.rsa_key("ak").public_key().public_numbers()
    key = {"kid": "HCLAkPub", "kty": "RSA", "n": _base64url(numbers.n), "e": _base64url(numbers.e)}
    runtime = json.dumps({"keys": [key]}).encode()
    path = _quote_folder(tmp_path, fake_tpm.PCRS, fake_tpm.PCRS, fake_tpm.event_log([]))
    (tmp_path / "hcl.bin").write_bytes(_azure(runtime, bound=runtime, tail=b"\1" * 20))
    known = Collateral(certificates=AMD.collateral().certificates)
    outcome = examine.examine(Material(path.read_bytes(), path, known, roots=Roots(amd=AMD.roots)), at=NOW)
    assert ("genuine", True) == (outcome.verdict, "that an SEV-SNP report of Milan" in outcome.reason), outcome
    assert [] == [warning for warning in outcome.warnings if "HOST TRUSTED" in warning]
    for nonce, code in ((fake_tpm.NONCE, ""), (bytes(32), "tpm-nonce")):
        asked = Material(path.read_bytes(), path, known, nonce=nonce, roots=Roots(amd=AMD.roots))
        assert code == examine.examine(asked, at=NOW).code
    (tmp_path / "hcl.bin").write_bytes(_azure())  # names a key that is none
    other = examine.examine(Material(path.read_bytes(), path, known, roots=Roots(amd=AMD.roots)), at=NOW)
    assert "cannot tell" == other.verdict
    assert any(warning.startswith("AZURE REPORT PASSED OVER") for warning in other.warnings)


def _base64url(number: int) -> str:
    data = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize(("key", "found"), [
    ({"kid": "HCLAkPub", "kty": "RSA", "n": "AQAB", "e": "AQAB"}, (65537, 65537)),
    ({"kid": "HCLEkPub", "kty": "RSA", "n": "AQAB", "e": "AQAB"}, None)])
def test_an_azure_report_names_the_attestation_key(key: dict[str, str], found: tuple[int, int] | None) -> None:
    """Only the key of that name is the one that quotes."""
    assert found == azure_abi.parse(_azure(json.dumps({"keys": [key]}).encode())).attestation_key()


@pytest.mark.parametrize("number", [1, "\u00fc", "A"])
def test_an_azure_key_in_another_form_is_malformed(number: Any) -> None:
    """The key's numbers are base64url."""
    keys = json.dumps({"keys": [{"kid": "HCLAkPub", "kty": "RSA", "n": number, "e": "AQAB"}]}).encode()
    with pytest.raises(MalformedEvidenceError):
        azure_abi.parse(_azure(keys)).attestation_key()


def test_evidence_of_a_td_inside_a_certificate() -> None:
    """A quote that binds the claims, and claims that bind the certificate's key."""
    spki = dice_certificate_spki()
    claims = b"\xa1\x6bpubkey-hash\x58\x24\x82\x01\x58\x20" + hashlib.sha256(spki).digest()
    good = INTEL.quote(report_data=hashlib.sha256(claims).digest() + bytes(32))
    outcome = _with_our_roots(dice_certificate(good, claims=claims))
    assert ("genuine", "the quote binds the certificate's key") == (outcome.verdict, outcome.proved[-1])
    outcome = _with_our_roots(dice_certificate(INTEL.quote(), claims=claims))
    assert ("not genuine", "dice-claims") == (outcome.verdict, outcome.code)


@pytest.mark.parametrize(("fields", "flag"), [
    ({"attributes": 1 << 28 | 1}, "DEBUG"), ({"attributes": 1 << 28 | 1 << 29}, "MIGRATION"),
    ({"attributes": 0}, "SEPT_VE_DISABLE"), ({"version": 5, "td15": True, "service": b"\x05" * 48}, "SERVICE TD")])
def test_a_td_that_may_be_read_is_genuine_and_flagged(fields: dict[str, Any], flag: str) -> None:
    """Who may read the TD besides itself is told with the verdict; whether that will do is for a policy to say."""
    outcome = _with_our_roots(INTEL.quote(**fields))
    assert ("genuine", [flag]) == (outcome.verdict, [each.partition(":")[0] for each in outcome.warnings])


@pytest.mark.parametrize(("file", "named"), [
    ("quote_v5_outdated", "TDX quote: SGX component 8 (SEAMLDR ACM) is 3, at least 5: at no level that Intel lists"),
    ("quote_service_td", "SGX component 8 (SEAMLDR ACM) is 3, at least 5")])
def test_a_real_platform_below_every_level_names_what_is_too_old(
        file: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its signatures hold and Intel judges nothing that old: exit 2, with each component that is too old."""
    shutil.copy(need("tdx/quote_v5_outdated_collateral.json"), tmp_path)
    code, outcome = _run(capsys, str(need(f"tdx/{file}.bin")), "--collateral", str(tmp_path), "--at", "2026-02-20")
    assert (2, "cannot tell", "tdx-tcb-level", 3) == (
        code, outcome["verdict"], outcome["code"], len(outcome["proved"]))
    assert named in outcome["reason"]
    assert (file == "quote_service_td") == any(each.startswith("SERVICE TD") for each in outcome["warnings"])


def test_an_outdated_platform_is_genuine_and_flagged() -> None:
    """What Intel says of the TCB is told with the verdict."""
    old = FakeIntel({"status": "OutOfDate"})
    known = old.collateral()
    roots = Roots(intel=old.pins["root"], intel_der=old.pins["root_der"])
    outcome = examine.examine(Material(old.quote(), Path("x"), known, roots=roots), at=NOW)
    assert ("genuine", ["TCB: Intel says OutOfDate of this platform."]) == (outcome.verdict, outcome.warnings)


@pytest.mark.parametrize(("fields", "flag"), [
    ({"vmpl": 0xFFFFFFFF}, "HOST"), ({"policy": 1 << 17 | 1 << 18}, "MIGRATION"), ({"policy": 1 << 40}, "POLICY"),
    ({"chip_id": bytes(64)}, "CHIP_ID"), ({}, "REVOCATION")])
def test_what_must_not_be_overlooked_is_flagged(fields: dict[str, Any], flag: str) -> None:
    """Authentic reports with something dangerous in them say so."""
    outcome = _with_our_roots(AMD.report(**fields))
    assert "genuine" == outcome.verdict
    assert flag in {warning.partition(":")[0] for warning in outcome.warnings}


@pytest.mark.parametrize("data", [
    b"", b"\x18\x17", b"\x19\x00\xff", b"\x1c", b"\x5f", b"\x82\x01", b"\x9a\xff\xff\xff\xff", b"\xa1\x01",
    b"\xa2\x01\x01\x01\x01", b"\xa1\x41\x00\x01", b"\x61\xff", b"\xf9\x00\x00", b"\xf6", b"\x01\x01",
    b"\x81" * 9 + b"\x01"])
def test_cbor_in_another_form_is_malformed(data: bytes) -> None:
    """Cut off, not shortest, indefinite, doubled keys, floats, something after the end, too deep."""
    with pytest.raises(MalformedEvidenceError):
        cborreader.decode(data)


@pytest.mark.parametrize(("data", "value"), [
    (b"\x17", 23), (b"\x18\x18", 24), (b"\x19\x01\x00", 256), (b"\x20", -1), (b"\x41\x00", b"\0"), (b"\x61a", "a"),
    (b"\x82\x01\x02", [1, 2]), (b"\xa1\x61a\x01", {"a": 1}), (b"\xc1\x01", cborreader.TaggedItem(1, 1))])
def test_cbor_is_read(data: bytes, value: Any) -> None:
    """Examples of RFC 8949, appendix A, and the like."""
    assert value == cborreader.decode(data)


@pytest.mark.parametrize("data", [
    b"\x30", b"\x30\x81\x01\x00", b"\x30\x80", b"\x1f\x01\x00", b"\x30\x05\x00", b"\x30\x00", b"\x02\x00",
    b"\x30\x82\x00\x01\x00", dice_certificate()[:-1]])
def test_der_in_another_form_is_malformed(data: bytes) -> None:
    """Cut off, not shortest, indefinite, tags of several bytes, no certificate."""
    with pytest.raises(MalformedEvidenceError):
        der.certificate(data)


@pytest.mark.parametrize(("content", "dotted"), [
    (bytes.fromhex("678105050409"), "2.23.133.5.4.9"), (bytes.fromhex("2a8648"), "1.2.840"), (b"\x00", "0.0")])
def test_object_identifiers_are_read(content: bytes, dotted: str) -> None:
    """The first number holds two."""
    assert dotted == der.object_identifier(content)
    with pytest.raises(MalformedEvidenceError):
        der.object_identifier(content + b"\x80")


def test_certificates_behind_a_report_are_used(tmp_path: Path) -> None:
    """A report with its certificate table needs no folder of certificates."""
    fake = FakeAmd()
    names = {"63da758de6644564adc5f4b93be8accd": fake.leaf, "4ab7b379bbac4fe4a02f05aef327c782": fake.ask,
             "c0b406a4a803495297433fb6014cd0ae": fake.ark}
    blobs = [(bytes.fromhex(guid), certificate.public_bytes(Encoding.DER)) for guid, certificate in names.items()]
    table, body, offset = b"", b"", 24 * 4
    for guid, blob in blobs:
        table += guid + offset.to_bytes(4, "little") + len(blob).to_bytes(4, "little")
        body, offset = body + blob, offset + len(blob)
    data = fake.report() + table + bytes(24) + body
    outcome = examine.examine(Material(data, tmp_path / "x", Collateral()), at=NOW)
    assert "chain-root" == outcome.code  # all certificates were found; only the root is not AMD's


def test_a_tpm_quote_by_a_certified_key(tmp_path: Path) -> None:
    """Without a key file the certificate whose key signed is found; its root is not pinned, so it is left open."""
    message = fake_tpm.quote()
    (tmp_path / "q.msg").write_bytes(message)
    (tmp_path / "q.sig").write_bytes(fake_tpm.sign(message))
    known = Collateral(certificates=[fake_tpm.certificate(
        fake_tpm.rsa_key("ak"), "AK", "Root", fake_tpm.rsa_key("root"))])
    outcome = examine.examine(Material(message, tmp_path / "q.msg", known), at=NOW)
    assert ("cannot tell", ["the key in a certificate signed the quote"]) == (outcome.verdict, outcome.proved)
    assert "Root" in outcome.reason
    other = Material(message, tmp_path / "q.msg", known, nonce=bytes(32))
    assert "tpm-nonce" == examine.examine(other, at=NOW).code
    outcome = examine.examine(Material(message, tmp_path / "q.msg"), at=NOW)
    assert "neither the public key nor a certificate" in outcome.reason


def test_of_several_files_the_worst_verdict_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not genuine outweighs cannot tell, which outweighs genuine."""
    (tmp_path / "simulated").write_bytes(_simulated())
    (tmp_path / "text").write_bytes(b"text")
    assert 1 == main(["evidence", str(tmp_path / "text"), str(tmp_path / "simulated")])
    assert 2 == main(["evidence", str(tmp_path / "text")])
    assert 2 == main(["evidence", str(tmp_path / "absent")])
    assert "cannot be read" in capsys.readouterr().err
    assert 1 == main(["evidence", str(tmp_path / "absent"), str(tmp_path / "simulated"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [("cannot tell", "file-unreadable"), ("not genuine", "evidence-simulated")] == [
        (each["verdict"], each["code"]) for each in found]
    assert 2 == main(["evidence", str(tmp_path / "text"), "--collateral", str(tmp_path / "absent"), "--json"])
    assert "cannot tell" == json.loads(capsys.readouterr().out)[0]["verdict"]


@pytest.mark.parametrize("words", [["--at", "yesterday"], ["--at", "9999-12-31T23:59:59-23:59"],
                                   ["--at", "0001-01-01T00:00:00+23:59"], ["--nonce", "xyz"], []])
def test_bad_usage(words: list[str]) -> None:
    """A time or nonce that is none, or no file, is refused before anything is read."""
    with pytest.raises(SystemExit) as caught:
        main(["evidence", *words, *(["file"] if words else [])])
    assert 2 == caught.value.code


def test_a_fake_quote_is_not_genuine(tmp_path: Path) -> None:
    """A TDX quote of our hierarchy is shaped like Intel's in everything but the root."""
    path = tmp_path / "quote"
    path.write_bytes(FakeIntel().quote())
    outcome = examine.examine(Material(path.read_bytes(), path, FakeIntel().collateral()), at=NOW)
    assert ("not genuine", "chain-root") == (outcome.verdict, outcome.code)


def test_a_certificate_that_strict_parsers_refuse_is_still_read() -> None:
    """The evidence in a certificate with a small fault is taken out, to be named."""
    carried = x509dice.parse(need("ra-tls/gramine-cert.pem").read_bytes())
    assert b"\x03\x00\x02\x00" == carried.quote[:4]
    assert b"pubkey-hash" in carried.claims_buffer


@pytest.mark.parametrize(("spki", "claims", "data", "code"), [
    (b"key", None, None, None), (b"other", None, None, "dice-key"), (b"key", b"\xa0", None, "evidence-malformed"),
    (b"key", None, bytes(64), "dice-claims"),
    (b"key", b"\xa1\x6bpubkey-hash\x44\x82\x02\x41\x00", None, "evidence-unsupported")])
def test_a_certificate_is_bound_by_its_quote(spki: bytes, claims: bytes | None, data: bytes | None,
                                             code: str | None) -> None:
    """The quote's report data name the claims, and the claims the certificate's key."""
    digest = b"\x82\x01\x58\x20" + hashlib.sha256(b"key").digest()
    claims = b"\xa1\x6bpubkey-hash\x58\x24" + digest if claims is None else claims
    data = hashlib.sha256(claims).digest() + bytes(32) if data is None else data
    found = None
    try:
        x509dice.check_binding(x509dice.DiceEvidence(spki, b"", claims), data)
    except AttestationError as error:
        found = error.code
    assert code == found


def test_the_verifier_imports_no_engine() -> None:
    """Looking at evidence pulls in neither numpy, numba nor the service."""
    code = ("import sys, appliance.attestation.judge.examine, appliance.attestation.judge.validate; "
            "import appliance.cli.evidence;"
            "print(sorted({'numpy', 'numba', 'litestar', 'structlog', 'uvicorn', 'dcap_qvl'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]" == done.stdout.strip()
