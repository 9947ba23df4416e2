"""TPM quotes: a real one verifies, altered ones do not, and each rule has a case that breaks it."""

from __future__ import annotations

import hashlib
import struct
import subprocess
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.attestation.case import event_log as tpm_log
from appliance.attestation.tpm import abi as tpm_abi
from appliance.attestation.tpm.judging import verify as tpm_verify
from appliance.attestation.tpm.judging.files import parse_pcrs
from appliance.attestation.tpm.judging.signature import parse_signature
from appliance.attestation.tpm.judging.validate import TpmExpectations, validate
from appliance.attestation.x509 import walks
from appliance.errors import (
    AttestationError,
    ForgedEvidenceError,
    MalformedEvidenceError,
    UncheckedEvidenceError,
    UnsupportedEvidenceError,
)
from appliance.policy.schema.platform import TpmRegisters
from tests.fuzz import driver, tpm_fuzz
from tests.support import fake_tpm, swtpm
from tests.support.fake_tpm import NONCE, NOW, PCRS
from tests.support.vectors import need

AT = datetime(2026, 9, 1, tzinfo=UTC)


def _real() -> dict[str, bytes]:
    folder = need("tpm")
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _verify_real(files: dict[str, bytes]) -> tpm_verify.TpmClaims:
    return tpm_verify.verify(
        files["quote.msg"], files["quote.sig"], tpm_verify.load_key(files["ak.pub"]),
        nonce=bytes.fromhex(files["nonce.hex"].decode()), pcrs=parse_pcrs(files["pcrs.bin"]))


def test_a_real_quote_verifies() -> None:
    """A quote of a cloud's virtual TPM: signature, nonce and PCR values hold under its key."""
    claims = _verify_real(_real())
    assert (tuple(range(8)), 3, 8) == (
        claims.quote.selections[0].pcrs, claims.quote.reset_count, len(claims.pcrs["sha256"]))


def test_a_certificate_for_another_key_is_refused() -> None:
    """The certificate beside the real quote belongs to another AK."""
    files = _real()
    claims = _verify_real(files)
    certificate = walks.load(files["akcert_0x01C101D0.der"], "AK")[0]
    with pytest.raises(ForgedEvidenceError) as caught:
        tpm_verify.certify(claims.key, certificate, [certificate], at=AT)
    assert "tpm-ak-certificate" == caught.value.code
    key = tpm_verify.load_key(files["akcert_0x01C101D0.der"])
    with pytest.raises(ForgedEvidenceError, match="not by this AK"):
        tpm_verify.verify(files["quote.msg"], files["quote.sig"], key)


@pytest.mark.parametrize("name", ["quote.msg", "quote.sig", "pcrs.bin", "nonce.hex"])
def test_every_flipped_byte_of_a_real_quote_is_refused(name: str) -> None:
    """A flipped byte of message, signature, values or nonce is refused, but in room that holds nothing."""
    files = _real()
    accepted = []
    for place in range(len(files[name].rstrip(b"\n"))):
        flipped = bytearray(files[name])
        flipped[place] ^= 1
        try:
            _verify_real({**files, name: bytes(flipped)})
        except (AttestationError, ValueError):
            continue
        accepted.append(place)
    # tpm2-tools writes whole C structures: room for further selections, and the rest of each digest's room
    room = {6, *range(10, 132)} | {138 + 66 * index + offset for index in range(8) for offset in range(34, 68)}
    assert set() == set(accepted) - (room if name == "pcrs.bin" else set())


SCHEMES = [("rsassa", fake_tpm.public), ("plain", fake_tpm.pem), ("rsapss", fake_tpm.pem),
           ("ecdsa", lambda: fake_tpm.public("ecc"))]


@pytest.mark.parametrize(("scheme", "key"), SCHEMES)
def test_each_signature_scheme_verifies(scheme: str, key: Any) -> None:
    """RSASSA, RSAPSS and ECDSA, with the key as TPM2B_PUBLIC or PEM."""
    message = fake_tpm.quote()
    ak = tpm_verify.load_key(key())
    claims = tpm_verify.verify(message, fake_tpm.sign(message, scheme), ak, nonce=NONCE,
                               pcrs=parse_pcrs(fake_tpm.pcr_file()))
    assert PCRS == claims.pcrs["sha256"]


def _quote(**changes: Any) -> tpm_verify.TpmClaims:
    message = changes.pop("message", fake_tpm.quote())
    facts: dict[str, Any] = {
        "signature": fake_tpm.sign(message), "key": tpm_verify.load_key(fake_tpm.public()), "nonce": NONCE,
        "pcrs": parse_pcrs(fake_tpm.pcr_file()), **changes}
    return tpm_verify.verify(message, facts.pop("signature"), facts.pop("key"), **facts)


def _twice() -> bytes:
    """A quote that selects one bank in two parts."""
    message = fake_tpm.quote()
    at = message.index(struct.pack(">IHB", 1, fake_tpm.SHA256, 3))
    part = struct.pack(">HB", fake_tpm.SHA256, 3)
    return message[:at] + struct.pack(">I", 2) + part + b"\x01\0\0" + part + b"\x02\0\0" + message[at + 10:]


@pytest.mark.parametrize(("changes", "error", "code"), [
    ({"nonce": bytes(32)}, ForgedEvidenceError, "tpm-nonce"),
    ({"pcrs": {"sha256": {**PCRS, 7: bytes(32)}}}, ForgedEvidenceError, "tpm-pcr-digest"),
    ({"pcrs": {"sha256": {0: PCRS[0]}}}, UncheckedEvidenceError, "evidence-unchecked"),
    ({"pcrs": {"sha1": {}}}, UncheckedEvidenceError, "evidence-unchecked"),
    ({"message": fake_tpm.quote(digest=bytes(32))}, ForgedEvidenceError, "tpm-pcr-digest"),
    ({"message": fake_tpm.quote(magic=b"\xff\x54\x43\x48")}, MalformedEvidenceError, "evidence-malformed"),
    ({"message": fake_tpm.quote(kind=0x8017)}, UnsupportedEvidenceError, "tpm-type"),
    ({"message": fake_tpm.quote(bank=0x12)}, UnsupportedEvidenceError, "tpm-algorithm"),
    ({"message": fake_tpm.quote() + b"\0"}, MalformedEvidenceError, "evidence-malformed"),
    ({"message": _twice()}, MalformedEvidenceError, "evidence-malformed"),
    ({"signature": fake_tpm.sign(fake_tpm.quote(), which="stranger")}, ForgedEvidenceError, "tpm-signature"),
    ({"signature": fake_tpm.sign(fake_tpm.quote(), "ecdsa")}, ForgedEvidenceError, "tpm-signature"),
    ({"signature": struct.pack(">HHH", 0x14, 4, 0)}, UnsupportedEvidenceError, "tpm-algorithm"),
    ({"signature": struct.pack(">HH", 0x1A, 0xB)}, UnsupportedEvidenceError, "tpm-algorithm"),
    ({"key": tpm_verify.load_key(fake_tpm.public(attributes=1 << 18))}, ForgedEvidenceError, "tpm-ak-attributes"),
    ({"key": tpm_verify.load_key(fake_tpm.public(attributes=fake_tpm.AK_ATTRIBUTES | 1 << 17))}, ForgedEvidenceError,
     "tpm-ak-attributes"),
])
def test_a_broken_quote_is_refused_and_its_rule_named(
        changes: dict[str, Any], error: type[AttestationError], code: str) -> None:
    """One thing wrong in an otherwise good quote."""
    with pytest.raises(error) as caught:
        _quote(**changes)
    assert code == caught.value.code


LOG = [(0, 8, b"firmware"), (0, 1, b"code"), (4, 13, b"loader"), (7, 0x80000001, b"secure boot")]


def _extended(register: int, start: bytes = bytes(32)) -> bytes:
    value = start
    for number, _, data in LOG:
        if number == register:
            value = hashlib.sha256(value + hashlib.sha256(data).digest()).digest()
    return value


@pytest.mark.parametrize("locality", [None, 3])
def test_an_event_log_explains_the_quoted_values(locality: int | None) -> None:
    """The replay gives the quoted values; PCR 0 begins at the locality that the log names."""
    start = bytes(31) + bytes((locality or 0,))
    pcrs = {0: _extended(0, start), 4: _extended(4), 7: _extended(7)}
    claims = _quote(message=fake_tpm.quote(pcrs), pcrs={"sha256": pcrs},
                    log=fake_tpm.event_log(LOG, locality=locality) + bytes(64))
    assert claims.log is not None
    assert (True, len(LOG) + (locality is not None)) == (claims.log.whole, len(claims.events))


def _explained(pcrs: dict[int, bytes], log: bytes) -> tpm_log.Explanation:
    explanation = _quote(message=fake_tpm.quote(pcrs), pcrs={"sha256": pcrs}, log=log).log
    assert explanation is not None
    return explanation


def test_an_event_log_explains_some_registers_and_names_the_others() -> None:
    """A register that was extended beyond the log, or whose events the log has not, is not explained; the quote is
    as genuine as before."""
    beyond = hashlib.sha256(_extended(4) + hashlib.sha256(b"by user space").digest()).digest()
    found = _explained({0: _extended(0), 4: beyond, 7: _extended(7), 11: beyond, 12: bytes(32), 17: b"\xff" * 32},
                       fake_tpm.event_log(LOG))
    assert ({"sha256": {0: 0, 7: 0}}, {"sha256": (4, 11)}, False) == (
        found.explained, found.unexplained, found.whole)
    assert ["this log does not lead to PCR 4 (sha256)",
            "it has no event of PCR 11 (sha256), which something extended beyond the log"] == tpm_log.told(found)
    assert {"sha256": (12, 17)} == found.untouched


@pytest.mark.parametrize("reset", [bytes(32), b"\xff" * 32], ids=["zeros", "ones"])
def test_a_register_at_reset_is_not_what_a_log_with_events_of_it_leads_to(reset: bytes) -> None:
    """The log says that something was measured into PCR 4, and the quote that nothing was."""
    found = _explained({0: _extended(0), 4: reset, 5: reset}, fake_tpm.event_log(LOG))
    assert ({"sha256": (4,)}, {"sha256": ()}, {"sha256": (5,)}) == (found.unexplained, found.beyond, found.untouched)
    assert ["this log does not lead to PCR 4 (sha256)"] == tpm_log.told(found)


def test_a_log_that_goes_on_after_the_quote_explains_up_to_it() -> None:
    """Events that were logged later are said to be outside of the quote."""
    found = _explained({0: _extended(0), 4: _extended(4)},
                       fake_tpm.event_log([*LOG, (4, 13, b"later"), (4, 13, b"later still")]))
    assert ({"sha256": {0: 0, 4: 2}}, {"sha256": ()}, False) == (found.explained, found.unexplained, found.whole)
    assert ["its last events of PCR 4 (sha256) are not in the quote"] == tpm_log.told(found)


def test_an_event_log_does_not_start_pcr_0_twice() -> None:
    """Events before a second start would stand in a log that gives the quoted values, and in no register: such a log
    explains nothing."""
    pcrs = {0: _extended(0, bytes(31) + b"\x03"), 4: _extended(4)}
    found = _explained(pcrs, fake_tpm.event_log([(0, 8, b"never measured"), (0, 3, b"StartupLocality\0\x03"), *LOG]))
    assert ({}, {"sha256": (0, 4)}) == (found.explained, found.unexplained)
    assert "starts again" in tpm_log.told(found)[0]


@pytest.mark.parametrize("log", [b"", b"no log", fake_tpm.event_log(LOG)[:-5]])
def test_a_log_that_cannot_be_read_refutes_no_quote(log: bytes) -> None:
    """The log is no part of what the TPM signed."""
    found = _explained({0: _extended(0)}, log)
    assert ({"sha256": (0,)}, True) == (found.unexplained, bool(found.problem))


def test_only_quoted_registers_are_claims() -> None:
    """Values that came with a quote of PCR 7 alone are not the quote's, and the log says nothing by them."""
    claims = _quote(message=fake_tpm.quote({7: _extended(7)}), log=fake_tpm.event_log(LOG),
                    pcrs={"sha256": {0: _extended(0), 4: _extended(4), 7: _extended(7)}, "sha1": {0: bytes(20)}})
    assert {"sha256": {7: _extended(7)}} == claims.pcrs
    assert (("sha256", 0), ("sha256", 4), ("sha1", 0)) == claims.uncovered
    assert claims.log is not None
    assert {"sha256": {7: 0}} == claims.log.explained


@pytest.mark.parametrize("digest", [hashlib.sha256(b"").digest(), b"", bytes(32)])
def test_a_quote_over_no_register_claims_none(digest: bytes) -> None:
    """Whatever values and log come with it (the kind of CVE-2022-0317)."""
    claims = _quote(message=fake_tpm.quote({}, digest=digest), log=fake_tpm.event_log(LOG),
                    signature=fake_tpm.sign(fake_tpm.quote({}, digest=digest)))
    assert ({}, None, False) == (claims.pcrs, claims.log, claims.quote.covers)
    assert {("sha256", number) for number in PCRS} == set(claims.uncovered)
    findings = {finding.rule: finding.outcome for finding in validate(
        claims, TpmExpectations(), TpmRegisters.model_construct(pcrs=(7,)))}
    assert "fails" == findings["pcrs-covered"]


@pytest.mark.parametrize("cut", range(1, 61, 7))
def test_a_cut_event_log_is_malformed(cut: int) -> None:
    """A log that ends inside of an event is refused."""
    with pytest.raises(AttestationError):
        tpm_log.parse(fake_tpm.event_log(LOG)[:-cut])


def test_a_log_of_sha1_alone_is_named() -> None:
    """Logs from before TPM 2.0 do not begin with a Spec ID event."""
    with pytest.raises(UnsupportedEvidenceError, match="SHA-1"):
        tpm_log.parse(struct.pack("<II", 0, 8) + bytes(20) + struct.pack("<I", 2) + b"v1")


def _authorities() -> tuple[Any, Any, dict[str, str]]:
    root = fake_tpm.certificate(fake_tpm.rsa_key("root"), "Root", "Root", fake_tpm.rsa_key("root"), ca=True)
    middle = fake_tpm.certificate(fake_tpm.ec_key("middle"), "Middle", "Root", fake_tpm.rsa_key("root"), ca=True)
    return root, middle, {walks.fingerprint(root): "Test Root"}


def _ak(**changes: Any) -> Any:
    facts: dict[str, Any] = {"key": fake_tpm.rsa_key("ak"), "signer": fake_tpm.ec_key("middle"), **changes}
    return fake_tpm.certificate(facts.pop("key"), "AK", "Middle", facts.pop("signer"), **facts)


@pytest.mark.parametrize("changes", [
    {}, {"usage": ("digital_signature",)},
    {"usage": ("digital_signature",), "purpose": "2.23.133.8.1"}])  # Google's, until 2022
def test_an_ak_certificate_leads_to_a_pinned_root(changes: dict[str, Any]) -> None:
    """The certificate is for the very key that signed, and its chain ends at a pin. Azure's name the use 2.23.133.8.3,
    Google's none, or that of a TPM's key: their keys may sign and do nothing else."""
    root, middle, pins = _authorities()
    assert "Test Root" == tpm_verify.certify(_quote().key, _ak(**changes), [middle, root], at=NOW, roots=pins)


@pytest.mark.parametrize(("changes", "code"), [
    ({"key": fake_tpm.rsa_key("stranger")}, "tpm-ak-certificate"),
    ({"ak": False}, "tpm-ak-certificate"),
    ({"usage": ("key_encipherment",)}, "tpm-ak-certificate"),  # an endorsement key's
    ({"usage": ("key_encipherment",), "purpose": "2.23.133.8.1"}, "tpm-ak-certificate"),  # the same
    ({"usage": ("digital_signature",), "purpose": "1.3.6.1.5.5.7.3.1"}, "tpm-ak-certificate"),  # a web server's
    ({"usage": ("digital_signature", "key_encipherment")}, "tpm-ak-certificate"),
    ({"critical": True}, "chain-extension"),
    ({"signer": fake_tpm.ec_key("stranger")}, "chain-signature"),
])
def test_a_broken_ak_certificate_is_refused(changes: dict[str, Any], code: str) -> None:
    """Another key, another use or another signer."""
    root, middle, pins = _authorities()
    with pytest.raises(ForgedEvidenceError) as caught:
        tpm_verify.certify(_quote().key, _ak(**changes), [middle, root], at=NOW, roots=pins)
    assert code == caught.value.code


@pytest.mark.parametrize(("changes", "code"), [
    ({"ca": False}, "chain-authority"), ({"critical": True}, "chain-extension")])
def test_a_broken_authority_above_an_ak_is_refused(changes: dict[str, Any], code: str) -> None:
    """An issuer that may not issue."""
    root, _, pins = _authorities()
    middle = fake_tpm.certificate(
        fake_tpm.ec_key("middle"), "Middle", "Root", fake_tpm.rsa_key("root"), **{"ca": True, **changes})
    with pytest.raises(ForgedEvidenceError) as caught:
        tpm_verify.certify(_quote().key, _ak(), [middle, root], at=NOW, roots=pins)
    assert code == caught.value.code


@pytest.mark.parametrize("expired", ["ak", "middle"])
def test_a_chain_out_of_its_time_is_left_open(expired: str) -> None:
    """Its time says nothing against what a certificate says."""
    root, middle, pins = _authorities()
    over = {"end": datetime(2026, 1, 1, tzinfo=UTC)}
    if expired == "middle":
        middle = fake_tpm.certificate(fake_tpm.ec_key("middle"), "Middle", "Root", fake_tpm.rsa_key("root"), ca=True,
                                      **over)
    with pytest.raises(UncheckedEvidenceError, match="valid from 2025-01-01 to 2026-01-01") as caught:
        tpm_verify.certify(_quote().key, _ak(**over if expired == "ak" else {}), [middle, root], at=NOW, roots=pins)
    assert "certificate-expired" == caught.value.code


def test_an_ak_without_a_known_root_is_left_open() -> None:
    """A root that is not pinned, or an issuer that is absent, proves nothing."""
    root, middle, pins = _authorities()
    for others, roots in (([middle, root], {}), ([middle], pins), ([], pins)):
        with pytest.raises(UncheckedEvidenceError):
            tpm_verify.certify(_quote().key, _ak(), others, at=NOW, roots=roots)


@pytest.mark.parametrize("data", [b"", b"-----BEGIN PUBLIC KEY-----\n", b"\x30\x00", b"\x00\x05abcde",
                                  fake_tpm.public()[:-1], fake_tpm.public() + b"\0", b"\x00\x02\x00\x08"])
def test_malformed_keys_are_refused(data: bytes) -> None:
    """Bytes that are no public key raise our errors."""
    with pytest.raises(AttestationError):
        tpm_verify.load_key(data)


def test_keys_come_in_several_forms() -> None:
    """PEM, DER, TPM2B_PUBLIC and a certificate give the same key."""
    forms = [fake_tpm.pem(), fake_tpm.public(), _ak().public_bytes(Encoding.DER), _ak().public_bytes(Encoding.PEM),
             tpm_verify.load_key(fake_tpm.pem()).spki()]
    assert 1 == len({tpm_verify.load_key(form).spki() for form in forms})


@pytest.mark.parametrize(("expected", "policy", "rules"), [
    ({}, {"pcrs": (0, 7)}, []),
    ({"nonce": NONCE}, {"pcrs": (0, 7)}, []),
    ({"nonce": bytes(32)}, {"pcrs": (0, 7)}, ["nonce"]),
    ({}, {"pcrs": (0, 11)}, ["pcrs-covered"]),
    ({"pcrs": {4: [PCRS[4]]}}, {"pcrs": (0,)}, []),
    ({"pcrs": {4: [PCRS[5]], 12: [bytes(32)]}}, {"pcrs": (0,)}, ["pcr4", "pcr12"]),
    ({"bound_key": b"another"}, {"pcrs": (0,)}, ["ak-bound-in-hardware"]),
    ({"bank": "sha1"}, {"pcrs": (0,)}, ["pcrs-covered"]),
])
def test_each_rule_of_the_policy(expected: dict[str, Any], policy: dict[str, Any], rules: list[str]) -> None:
    """Exactly the rules that a quote breaks fail; without a bound key the host remains trusted."""
    findings = validate(_quote(), TpmExpectations(**expected), TpmRegisters.model_construct(**policy))
    assert rules == [finding.rule for finding in findings if finding.outcome == "fails"]
    bound = {finding.rule: finding.outcome for finding in findings}["ak-bound-in-hardware"]
    assert ("fails" if "bound_key" in expected else "not checked") == bound


def test_a_key_bound_in_hardware_holds() -> None:
    """The AK that an SEV-SNP or TDX report names is the one that signed."""
    claims = _quote()
    findings = validate(claims, TpmExpectations(bound_key=claims.key.spki()), TpmRegisters.model_construct(pcrs=(0,)))
    assert "holds" == {finding.rule: finding.outcome for finding in findings}["ak-bound-in-hardware"]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_raise_only_our_errors(data: bytes) -> None:
    """Random bytes behind each plausible beginning parse or are refused."""
    readers: list[tuple[Any, bytes]] = [
        (tpm_abi.parse_quote, b"\xff\x54\x43\x47\x80\x18"), (parse_signature, b"\x00\x14"),
        (tpm_abi.parse_public, struct.pack(">HH", len(data) + 2, 1)), (parse_pcrs, b"\x01\0\0\0"),
        (tpm_log.parse, fake_tpm.event_log([]))]
    for read, head in readers:
        try:
            read(head + data)
        except AttestationError:
            continue


def test_quotes_and_logs_survive_mutations() -> None:
    """Three thousand mutations of quotes, keys, values and logs raise nothing else, and nothing false verifies."""
    _, finding = driver.run(tpm_fuzz.fuzz, tpm_fuzz.seeds(), seconds=0, seed=1, least=3000)
    assert None is finding


TOOLS = [("rsa", "sha256", "rsassa", "sha256:0,4,7", "tss"), ("rsa", "sha384", "rsapss", "sha384:0,23", "plain"),
         ("ecc", "sha256", "ecdsa", "sha1:0,1+sha256:0,1,2,3,4,5,6,7,8,9+sha384:4", "tss"),
         ("ecc384", "sha384", "ecdsa", "sha256:16", "plain"), ("rsa", "sha1", "rsassa", "sha256:0", "tss"),
         ("rsa", "sha1", "rsassa", "sha256:0", "plain")]


def test_what_tpm2_quote_writes(tmp_path: Path) -> None:
    """Schemes, hashes, banks and both forms of a signature, made by tpm2-tools on a software TPM; SHA-1 is named."""
    swtpm.tpm2_tools("tpm2_createek", "tpm2_createak", "tpm2_flushcontext", "tpm2_quote")
    with swtpm.running() as socket:
        def tool(*words: str) -> None:
            subprocess.run([*words, "-T", f"swtpm:path={socket}"], cwd=tmp_path, check=True, capture_output=True,
                           timeout=600)

        tool("tpm2_createek", "-G", "ecc", "-c", "ek")
        for kind, name, scheme, banks, form in TOOLS:
            tool("tpm2_createak", "-C", "ek", "-c", "ak", "-G", kind, "-g", name, "-s", scheme, "-u", "ak.pub")
            tool("tpm2_flushcontext", "-t")
            tool("tpm2_quote", "-c", "ak", "-l", banks, "-q", NONCE.hex(), "-g", name, "-m", "msg", "-s", "sig", "-o",
                 "pcrs", "-f", form, *(["--scheme", scheme] if scheme == "rsapss" else []))
            tool("tpm2_flushcontext", "-t")
            message, signature, key, pcrs = (
                (tmp_path / each).read_bytes() for each in ("msg", "sig", "ak.pub", "pcrs"))
            with pytest.raises(UnsupportedEvidenceError, match="sha1 is too weak") if name == "sha1" else nullcontext():
                claims = tpm_verify.verify(message, signature, tpm_verify.load_key(key), nonce=NONCE,
                                           pcrs=parse_pcrs(pcrs))
                assert banks.count(":") == len(claims.pcrs)
