"""TDX quotes: a real one verifies, altered ones do not, and each rule has a case that breaks it."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from appliance.attestation.judge import collateral_folder
from appliance.attestation.tdx import abi as tdx_abi
from appliance.attestation.tdx import signatures
from appliance.attestation.tdx.judging import verify as tdx_verify
from appliance.attestation.tdx.judging.validate import TdxExpectations, validate
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.errors import (
    AttestationError,
    ForgedEvidenceError,
    MalformedEvidenceError,
    RejectedEvidenceError,
    UncheckedEvidenceError,
    UnsupportedEvidenceError,
)
from appliance.policy.schema.platform import Requirements
from tests.fuzz import driver, tdx_fuzz
from tests.support.fake_intel import NOW, FakeIntel, key, raw_signature
from tests.support.vectors import need

AT = datetime(2025, 6, 20, 10, 16, 3, tzinfo=UTC)  # a day after the vector's collateral was issued


def _verify(fake: FakeIntel, quote: bytes, **changes: Any) -> tdx_verify.TdxClaims:
    facts: dict[str, Any] = {"at": NOW, **fake.pins, **changes}
    return tdx_verify.verify(quote, facts.pop("collateral", fake.collateral()), **facts)


def _real() -> tuple[bytes, Collateral]:
    folder = need("tdx")
    return (folder / "quote_v4.bin").read_bytes(), collateral_folder.load(folder)


def test_a_real_quote_verifies_against_the_pinned_root() -> None:
    """A quote of a real platform is up to date a day after its collateral was issued."""
    quote, known = _real()
    claims = tdx_verify.verify(quote, known, at=AT)
    assert ("UpToDate", (), 17, "b0c06f000000") == (
        claims.tcb.status, claims.tcb.advisories, claims.tcb.evaluation_number, claims.tcb.fmspc)
    assert (signatures.ROOT, 4, 1 << 28) == (
        claims.chain[-1], claims.quote.version, claims.quote.body.td_attributes)


@pytest.mark.parametrize("year", [1, 1600, 1969, 2300, 9999])
def test_a_clock_that_is_far_off_is_told(year: int) -> None:
    """No certificate is valid then, and nothing else looks at such a time."""
    quote, known = _real()
    with pytest.raises(AttestationError, match="valid"):
        tdx_verify.verify(quote, known, at=datetime(year, 1, 2, tzinfo=UTC))


@pytest.mark.parametrize("at", [AT - timedelta(days=30), AT + timedelta(days=60)])
def test_collateral_of_another_time_leaves_it_open(at: datetime) -> None:
    """What Intel said at one time tells nothing of another."""
    quote, known = _real()
    with pytest.raises(UncheckedEvidenceError) as caught:
        tdx_verify.verify(quote, known, at=at)
    assert "tdx-collateral-time" == caught.value.code


def test_flipped_bytes_of_a_real_quote_are_refused() -> None:
    """Every 3rd byte flipped in turn is malformed, forged, or named as not known; none is left open."""
    quote, known = _real()
    outcomes: dict[str, list[int]] = {}
    for place in [*range(64), *range(64, len(quote), 3)]:
        flipped = bytearray(quote)
        flipped[place] ^= 1 << place % 8
        try:
            tdx_verify.verify(bytes(flipped), known, at=AT)
        except AttestationError as error:
            outcomes.setdefault(type(error).__name__, []).append(place)
        else:
            outcomes.setdefault("accepted", []).append(place)
    assert {"ForgedEvidenceError", "MalformedEvidenceError", "UnsupportedEvidenceError"} == set(outcomes)
    assert all(place < 8 or place > 632 for place in outcomes["UnsupportedEvidenceError"])


def test_flipped_bytes_of_real_collateral_are_refused() -> None:
    """Altered TCB information, identity, chains or lists never give a verdict, but where they say the same."""
    quote, known = _real()
    document = known.documents[0]
    original = tdx_verify.verify(quote, known, at=AT)
    wrong = []
    for name, value in document.items():
        text = str(value)
        for place in range(3, len(text), max(1, len(text) // 12)):
            altered = text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1:]
            try:
                claims = tdx_verify.verify(quote, Collateral(documents=[{**document, name: altered}]), at=AT)
            except AttestationError:
                continue
            if claims != original:
                wrong.append((name, place))
    assert [] == wrong


@pytest.mark.parametrize(("version", "fields", "kind"), [
    (4, {}, tdx_abi.TD10), (5, {}, tdx_abi.TD10), (5, {"td15": True}, tdx_abi.TD15)])
def test_each_format_verifies(version: int, fields: dict[str, Any], kind: int) -> None:
    """Quotes of versions 4 and 5, with TD 1.0 and 1.5 reports, signed under our own root."""
    fake = FakeIntel()
    claims = _verify(fake, fake.quote(version, report_data=b"d" * 64, rtmr2=b"r" * 48, **fields))
    body = claims.quote.body
    assert (kind, b"d" * 64, b"r" * 48) == (body.kind, body.report_data, body.rtmr[2])


@pytest.mark.parametrize("options", [
    {"pck": {"end": NOW - timedelta(days=1)}}, {"platform": {"start": NOW + timedelta(days=1)}}])
def test_a_chain_out_of_its_time_is_left_open(options: dict[str, Any]) -> None:
    """Its time says nothing against what a certificate says."""
    fake = FakeIntel(options)
    with pytest.raises(UncheckedEvidenceError, match="valid from") as caught:
        _verify(fake, fake.quote())
    assert "certificate-expired" == caught.value.code


@pytest.mark.parametrize("signing", [{"end": NOW - timedelta(days=1)}, {"start": NOW + timedelta(days=1)}])
def test_a_tcb_signing_chain_out_of_its_time_is_left_open(signing: dict[str, Any]) -> None:
    """It says nothing against the quote; what is out of its time is named."""
    fake = FakeIntel({"signing": signing})
    with pytest.raises(UncheckedEvidenceError,
                       match="tcb_info_issuer_chain: certificate Intel SGX TCB Signing: valid from") as caught:
        _verify(fake, fake.quote())
    assert "tdx-collateral-time" == caught.value.code


@pytest.mark.parametrize("field", range(1, 6))
def test_a_pck_without_a_field_is_named(field: int) -> None:
    """PPID, TCB, PCE id, FMSPC or SGX type: without one the platform is not known, which is no forgery."""
    fake = FakeIntel({"pck_lacks": field})
    with pytest.raises(UnsupportedEvidenceError, match="its PCK names no platform") as caught:
        _verify(fake, fake.quote())
    assert "tdx-pck" == caught.value.code


@pytest.mark.parametrize(("options", "code"), [
    ({"signer": "stranger"}, "tdx-signature"),
    ({"qe_signer": "stranger"}, "tdx-qe-signature"),
    ({"bound": bytes(64)}, "tdx-qe-binding"),
    ({"pck_signer": "stranger"}, "chain-signature"),
    ({"platform_signer": "stranger"}, "chain-signature"),
    ({"root_signer": "stranger"}, "chain-signature"),
    ({"platform_ca": None}, "chain-authority"),
    ({"root_ca": 0}, "chain-authority"),
    ({"qe_mrsigner": bytes(32)}, "tdx-collateral-invalid"),
    ({"tcb_signer": "stranger"}, "tdx-collateral-invalid"),
    ({"pck_revokes": 3}, "certificate-revoked"),
    ({"root_revokes": 2}, "certificate-revoked"),
    ({"root_revokes": 4}, "certificate-revoked"),
    ({"status": "Revoked"}, "certificate-revoked"),
])
def test_a_broken_quote_is_forged_and_its_rule_named(options: dict[str, Any], code: str) -> None:
    """One thing wrong in an otherwise good hierarchy is refused by the rule for it."""
    fake = FakeIntel(options)
    with pytest.raises(ForgedEvidenceError) as caught:
        _verify(fake, fake.quote())
    assert code == caught.value.code


def test_another_root_of_the_same_name_is_forged() -> None:
    """Our hierarchy is shaped like Intel's in everything but the pinned root."""
    with pytest.raises(ForgedEvidenceError) as caught:
        tdx_verify.verify(FakeIntel().quote(), FakeIntel().collateral(), at=NOW)
    assert "chain-root" == caught.value.code


def test_the_root_pin_holds_for_collateral_too() -> None:
    """A quote under our root with collateral under another is refused."""
    fake = FakeIntel()
    document = {**fake.document()}
    known = _real()[1]
    document["tcb_info_issuer_chain"] = str(known.documents[0]["tcb_info_issuer_chain"])
    with pytest.raises(AttestationError):
        _verify(fake, fake.quote(), collateral=Collateral(documents=[dict(document)]))


@pytest.mark.parametrize("options", [
    {f"{whose}_{when}": day} for whose in ("platform", "root")
    for when, day in (("listed", NOW + timedelta(seconds=1)), ("list_ends", NOW))])
def test_revocation_lists_of_another_time_leave_it_open(options: dict[str, datetime]) -> None:
    """A list of the future, or one that has ended, tells nothing of now; the PCK's as well as the root's."""
    fake = FakeIntel(options)
    with pytest.raises(UncheckedEvidenceError) as caught:
        _verify(fake, fake.quote())
    assert "tdx-collateral-time" == caught.value.code


def test_revocation_lists_hold_from_their_first_second_to_their_last() -> None:
    """A list counts in the second in which it was issued, and up to the one in which the next one is due."""
    due = NOW + timedelta(seconds=1)
    for options in ({"platform_listed": NOW, "root_listed": NOW}, {"platform_list_ends": due, "root_list_ends": due}):
        fake = FakeIntel(options)
        assert "UpToDate" == _verify(fake, fake.quote()).tcb.status


@pytest.mark.parametrize("fields", [
    {"attributes": 1 << 28 | 1}, {"attributes": 0}, {"attributes": 1 << 28 | 1 << 29},
    *({"attributes": 1 << 28 | 1 << bit} for bit in (4, 5, 6)),
    {"version": 5, "td15": True, "service": b"\x05" * 48}])
def test_a_td_that_its_host_may_read_is_authentic_and_refused_by_policy(fields: dict[str, Any]) -> None:
    """Debug, profiling, no SEPT_VE_DISABLE, migratable, or a service TD: whether to accept it is for the policy."""
    fake = FakeIntel()
    claims = _verify(fake, fake.quote(**fields))
    assert "UpToDate" == claims.tcb.status
    found = validate(claims, TdxExpectations(), Requirements(), at=NOW)
    failed = [each.rule for each in found if each.outcome == "fails"]
    assert failed in (["debug"], ["sept-ve-disable"], ["migration"], ["service-td"])


@pytest.mark.parametrize(("options", "fields"), [
    ({}, {"tee_tcb_svn": bytes(16)}), ({}, {"tee_tcb_svn": b"\x03\x02" + bytes(14)}), ({"module_svn": 4}, {}),
    ({"qe_svn": 7}, {}), ({}, {"version": 5, "td15": True, "tee_tcb_svn2": bytes(16)})])
def test_a_platform_at_no_listed_level_is_rejected(options: dict[str, Any], fields: dict[str, Any]) -> None:
    """Authentic, but older than anything that Intel still judges: platform, TDX module at launch or now, QE."""
    fake = FakeIntel(options)
    with pytest.raises(RejectedEvidenceError) as caught:
        _verify(fake, fake.quote(**fields))
    assert "tdx-tcb-level" == caught.value.code


@pytest.mark.parametrize("known", [
    Collateral(), FakeIntel({"fmspc": "00" * 6}).collateral(), FakeIntel({"pce_id": "0100"}).collateral(),
    Collateral(documents=[{"tcb_info": 1}]),
    Collateral(documents=[{**FakeIntel().document(), "tcb_info": "["}])])
def test_without_collateral_for_the_platform_it_is_left_open(known: Collateral) -> None:
    """The signatures alone do not show that the quoting enclave is Intel's."""
    fake = FakeIntel()
    with pytest.raises(UncheckedEvidenceError) as caught:
        _verify(fake, fake.quote(), collateral=known)
    assert "tdx-collateral" == caught.value.code


def test_quotes_are_judged_without_another_package() -> None:
    """A client needs nothing beyond its own dependencies: dcap-qvl judges in tests only."""
    code = ("import sys; sys.modules['dcap_qvl'] = None\n"
            "from appliance.attestation.tdx.judging import verify as tdx_verify\n"
            "from tests.support.fake_intel import NOW, FakeIntel\n"
            "fake = FakeIntel()\n"
            "print(tdx_verify.verify(fake.quote(), fake.collateral(), at=NOW, **fake.pins).tcb.status)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          cwd=Path(__file__).parents[2])
    assert "UpToDate\n" == done.stdout


def test_zeros_may_follow_a_quote_and_nothing_else() -> None:
    """Kernels give quotes in buffers of fixed size."""
    fake = FakeIntel()
    quote = fake.quote()
    assert None is not _verify(fake, quote + bytes(100))
    with pytest.raises(MalformedEvidenceError):
        tdx_abi.parse(quote + b"\x00\x01")


@pytest.mark.parametrize(("place", "value"), [
    (slice(0, 2), b"\x03\x00"), (slice(0, 2), b"\x06\x00"), (slice(2, 4), b"\x03\x00"), (slice(4, 8), bytes(4))])
def test_unknown_formats_are_named(place: slice, value: bytes) -> None:
    """Versions, key types and TEE types that are not known are unsupported."""
    quote = bytearray(FakeIntel().quote())
    quote[place] = value
    with pytest.raises(UnsupportedEvidenceError):
        tdx_abi.parse(bytes(quote))


def test_every_cut_of_a_quote_is_malformed() -> None:
    """A quote that ends early is refused, wherever it ends."""
    quote = FakeIntel().quote(5, td15=True)
    for end in range(0, len(quote), 13):
        with pytest.raises(MalformedEvidenceError):
            tdx_abi.parse(quote[:end])


def test_a_chain_in_another_form_is_malformed() -> None:
    """The chain's PEM is checked to the byte, so that nothing in a quote is free to change."""
    fake = FakeIntel()
    fake.chain = fake.chain.replace(b"\n", b"\r\n", 1)
    with pytest.raises(MalformedEvidenceError, match="usual form"):
        _verify(fake, fake.quote())


def test_an_attestation_key_off_the_curve_is_forged() -> None:
    """Bytes that are no point are no key, even when the QE report binds them."""
    fake = FakeIntel({"bound": b"\x01" * 64})
    quote = bytearray(fake.quote())
    parsed = tdx_abi.parse(bytes(quote))
    place = quote.find(parsed.attestation_key)
    quote[place:place + 64] = b"\x01" * 64
    with pytest.raises(ForgedEvidenceError) as caught:
        _verify(fake, bytes(quote))
    assert "tdx-key" == caught.value.code
    assert key("attestation").curve.name == "secp256r1"


def test_collateral_files_are_recognised_by_content(tmp_path: Path) -> None:
    """A JSON file with TCB information is found under any name."""
    (tmp_path / "something").write_text(json.dumps(FakeIntel().document()))
    (tmp_path / "else.json").write_text("{}")
    assert 1 == len(collateral_folder.load(tmp_path).documents)


def test_quotes_and_collateral_survive_mutations() -> None:
    """A thousand mutations of quotes and collateral raise nothing else, and nothing false verifies."""
    for seed in tdx_fuzz.seeds():
        tdx_fuzz.fuzz(seed)
    _, finding = driver.run(tdx_fuzz.fuzz, tdx_fuzz.seeds(), seconds=0, seed=1, least=1000)
    assert None is finding


@pytest.mark.parametrize("change", [
    {"pck_crl": "root_ca_crl"}, {"root_ca_crl": "pck_crl"}, {"root_ca_crl": "pck_crl", "pck_crl": "root_ca_crl"}])
def test_another_authoritys_list_leaves_it_open(change: dict[str, str]) -> None:
    """A list of somebody else says nothing of these certificates, so that one of them may be revoked."""
    fake = FakeIntel()
    document = fake.document()
    known = Collateral(documents=[{**document, **{name: document[other] for name, other in change.items()}}])
    with pytest.raises(UncheckedEvidenceError, match="is not the whole list of Intel SGX") as caught:
        _verify(fake, fake.quote(), collateral=known)
    assert "tdx-collateral" == caught.value.code


def test_documents_by_another_of_intels_keys_are_forged() -> None:
    """The authority of PCKs stands below the same root, and does not judge platforms."""
    fake = FakeIntel()
    document = fake.document()
    document |= {"tcb_info_issuer_chain": document["pck_crl_issuer_chain"],
                 "tcb_info_signature": raw_signature("platform", document["tcb_info"].encode()).hex()}
    with pytest.raises(ForgedEvidenceError, match="tcb_info is not signed by Intel's TCB signing key"):
        _verify(fake, fake.quote(), collateral=Collateral(documents=[dict(document)]))
