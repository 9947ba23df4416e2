"""A stray file beside good collateral is never worse than none, and never a way around what is newer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.case.record import Record
from appliance.attestation.judge import collateral_folder
from appliance.attestation.judge.examine import examine
from appliance.attestation.judge.material import Material
from appliance.attestation.snp.judging import verify as snp_verify
from appliance.attestation.tdx.judging import verify as tdx_verify
from appliance.attestation.trust.roots import VENDORS
from appliance.attestation.x509 import walks
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.errors import AttestationError, ForgedEvidenceError, UncheckedEvidenceError, UnsupportedEvidenceError
from tests.support import fake_amd, fake_intel, fake_services, fake_tpm
from tests.support.fake_amd import FakeAmd
from tests.support.fake_intel import FakeIntel, raw_signature

AT = fake_amd.NOW
PAST = {"start": datetime(2020, 1, 1, tzinfo=UTC), "end": datetime(2021, 1, 1, tzinfo=UTC)}
AMD, INTEL = FakeAmd(), FakeIntel()


@pytest.mark.parametrize("first", [True, False], ids=["stray-first", "stray-last"])
@pytest.mark.parametrize("options", [
    {"leaf": PAST}, {"ask": PAST}, {"ark": PAST}, {"leaf": PAST, "ask": PAST, "ark": PAST},
    {"ark": {"signer": "stranger"}, "ask": {"signer": "stranger"}}, {"ask": {"ca": False}},
    {"leaf": {"signer": "stranger"}}], ids=str)
def test_amds_chain_beside_a_stray_one(options: dict[str, Any], first: bool) -> None:
    """Of the same keys and names: expired, by a stranger's root, or no authority. In either order of the files."""
    stray = FakeAmd(options=options)
    certificates = [*AMD.collateral().certificates]
    more = fake_amd.reread([stray.leaf, stray.ask, stray.ark])
    known = Collateral(certificates=[*more, *certificates] if first else [*certificates, *more])
    found = snp_verify.verify(AMD.report(), known, at=AT, roots=AMD.roots)
    assert (walks.fingerprint(AMD.ark), True) == (found.chain[2], found.not_after > AT)


def test_amds_chain_alone_is_told_as_it_is() -> None:
    """Where only the expired certificates are at hand, the verdict is theirs."""
    stray = FakeAmd(options={"leaf": PAST})
    with pytest.raises(UncheckedEvidenceError) as caught:
        snp_verify.verify(stray.report(), stray.collateral(), at=AT, roots=stray.roots)
    assert "certificate-expired" == caught.value.code


def _intel(*documents: dict[str, str], **more: Any) -> Collateral:
    return Collateral(documents=[dict(each) for each in documents], **more)


def _fake(**options: Any) -> FakeIntel:
    """A service under the same root."""
    fake = FakeIntel(options)
    fake.__dict__["root"] = INTEL.root
    return fake


def _document(**options: Any) -> dict[str, str]:
    return _fake(**options).document()


LATER = {"issued": fake_intel.NOW - timedelta(hours=1)}
STRAYS: dict[str, Callable[[], dict[str, str]]] = {
    "expired signer": lambda: _document(**LATER, signing=PAST),
    "another signer": lambda: _document(**LATER, tcb_signer="stranger"),
    "altered": lambda: {**_document(**LATER), "qe_identity": "{}"},
    "of the future": lambda: _document(issued=fake_intel.NOW + timedelta(days=2)),
    "expired lists": lambda: _document(**LATER, platform_list_ends=fake_intel.NOW - timedelta(hours=1)),
    "no chain": lambda: {**_document(**LATER), "tcb_info_issuer_chain": "x"},
}


@pytest.mark.parametrize("stray", STRAYS)
def test_intels_documents_beside_stray_ones(stray: str) -> None:
    """A document that says it is newer, and does not hold: the one that does is taken, in either order."""
    good, bad = _document(), STRAYS[stray]()
    for documents in ((good, bad), (bad, good)):
        found = tdx_verify.verify(INTEL.quote(), _intel(*documents), at=fake_intel.NOW, **INTEL.pins)
        assert "UpToDate" == found.tcb.status
    with pytest.raises(AttestationError):
        tdx_verify.verify(INTEL.quote(), _intel(bad), at=fake_intel.NOW, **INTEL.pins)


@pytest.mark.parametrize(("newer", "code"), [
    ({"status": "Revoked"}, "certificate-revoked"), ({"pck_revokes": 3}, "certificate-revoked"),
    ({"root_revokes": 2}, "certificate-revoked"), ({"levels": []}, "tdx-tcb-level")])
def test_an_older_document_is_no_way_around_a_newer_one(newer: dict[str, Any], code: str) -> None:
    """What Intel's newest authentic word refuses stays refused, whatever lies beside it."""
    documents = _document(**LATER, **newer), _document()
    for given in (documents, documents[::-1]):
        with pytest.raises(AttestationError) as caught:
            tdx_verify.verify(INTEL.quote(), _intel(*given), at=fake_intel.NOW, **INTEL.pins)
        assert code == caught.value.code


def _raw(document: dict[str, str]) -> list[bytes]:
    """The parts of a document as Intel's service gives them."""
    answers = [f'{{"{kind}":{document[part]},"signature":"{document[f"{part}_signature"]}"}}'.encode()
               for kind, part in (("tcbInfo", "tcb_info"), ("enclaveIdentity", "qe_identity"))]
    return [*answers, document["tcb_info_issuer_chain"].encode(),
            *(bytes.fromhex(document[name]) for name in ("pck_crl", "root_ca_crl"))]


OLD = {"platform_listed": fake_intel.NOW - timedelta(days=20), "platform_list_ends": fake_intel.NOW + timedelta(days=9)}


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "whole"])
@pytest.mark.parametrize("first", [True, False], ids=["hosts-first", "hosts-last"])
@pytest.mark.parametrize("host", [OLD, {**OLD, "info_issued": fake_intel.NOW - timedelta(hours=2)}, {
    **OLD, "issued": fake_intel.NOW - timedelta(days=20), "info_issued": fake_intel.NOW - timedelta(hours=2)}], ids=[
        "old list", "newer information", "newer information, old identity"])
def test_a_host_hides_no_revocation(host: dict[str, Any], raw: bool, first: bool) -> None:
    """Its document is in force, and of today for the most part; its list is from before the revocation, which a list of
    the client's tells."""
    fresh = _document(pck_revokes=3)
    own = _raw(fresh) if raw else [json.dumps(fresh).encode()]
    theirs = [json.dumps(_document(**host)).encode()]
    at_hand = Collateral().with_items(theirs + own if first else own + theirs, "evidence")
    with pytest.raises(ForgedEvidenceError) as caught:
        tdx_verify.verify(INTEL.quote(), at_hand, at=fake_intel.NOW, **INTEL.pins)
    assert "certificate-revoked" == caught.value.code


def test_the_newest_of_each_part_is_taken() -> None:
    """A host's newer TCB information does not bring its older identity along."""
    own = _document(qe_number=18, qe_issued=fake_intel.NOW - timedelta(hours=3))
    theirs = _document(info_number=18, info_issued=fake_intel.NOW - timedelta(hours=1), qe_number=16,
                       qe_issued=fake_intel.NOW - timedelta(days=20))
    for documents in ((own, theirs), (theirs, own)):
        found = tdx_verify.verify(INTEL.quote(), _intel(*documents), at=fake_intel.NOW, **INTEL.pins)
        assert 18 == found.tcb.evaluation_number


def _answers(folder: Path, fake: FakeIntel, prefix: str) -> None:
    for number, (answer,) in enumerate(fake_services.intel(fake).values()):
        (folder / f"{prefix}{number}").write_bytes(answer.body)
        for value in answer.headers.values():
            (folder / f"{prefix}{number}.headers").write_text(value)


@pytest.mark.parametrize("stray", [
    {"tcb_signer": "stranger"}, {"qe_issued": fake_intel.NOW + timedelta(days=2)},
    {"signing": {"end": datetime(2049, 1, 1, tzinfo=UTC)}, "tcb_signer": "stranger"},
    {"platform_list_ends": fake_intel.NOW - timedelta(minutes=1),
     "platform_listed": fake_intel.NOW - timedelta(hours=2)}],
    ids=str)
def test_raw_answers_beside_stray_ones(tmp_path: Path, stray: dict[str, Any]) -> None:
    """Newer answers by another key, of the future, or ended, beside good ones; signers and lists as well."""
    _answers(tmp_path, INTEL, "good")
    _answers(tmp_path, _fake(**{**LATER, **stray}), "stray")
    found = tdx_verify.verify(INTEL.quote(), collateral_folder.load(tmp_path), at=fake_intel.NOW, **INTEL.pins)
    assert "UpToDate" == found.tcb.status


ROOT, CA, AK = fake_tpm.rsa_key("root"), fake_tpm.rsa_key("ca"), fake_tpm.rsa_key("ak")
TOP = fake_tpm.certificate(ROOT, "Root", "Root", ROOT, ca=True)
MIDDLE = fake_tpm.certificate(CA, "CA", "Root", ROOT, ca=True)
LEAF = fake_tpm.certificate(AK, "AK", "CA", CA)
ENDED = {"end": datetime(2025, 2, 1, tzinfo=UTC)}
STRAY_TPM = {
    "leaf": [fake_tpm.certificate(AK, "AK", "CA", CA, **ENDED)],
    "middle": [fake_tpm.certificate(CA, "CA", "Root", ROOT, ca=True, **ENDED)],
    "chain": [fake_tpm.certificate(AK, "AK", "CA", CA, **ENDED), fake_tpm.certificate(
        CA, "CA", "Root", ROOT, ca=True, **ENDED), fake_tpm.certificate(ROOT, "Root", "Root", ROOT, ca=True, **ENDED)],
    "another root": [fake_tpm.certificate(CA, "CA", "Other", fake_tpm.rsa_key("other"), ca=True),
                     fake_tpm.certificate(fake_tpm.rsa_key("other"), "Other", "Other", fake_tpm.rsa_key("other"),
                                          ca=True)],
    "no authority": [fake_tpm.certificate(CA, "CA", "Root", ROOT)],
    "itself": [fake_tpm.certificate(CA, "CA", "CA", CA, ca=True)],
}


def _quote(folder: Path, *certificates: x509.Certificate) -> Record:
    (folder / "q.msg").write_bytes(fake_tpm.quote())
    (folder / "q.sig").write_bytes(fake_tpm.sign(fake_tpm.quote()))
    roots = replace(VENDORS, tpm={walks.fingerprint(TOP): "ours"})
    return examine(Material(fake_tpm.quote(), folder / "q.msg", Collateral(certificates=list(certificates)),
                            roots=roots), at=AT)


@pytest.mark.parametrize("stray", STRAY_TPM)
def test_a_tpms_chain_beside_a_stray_one(tmp_path: Path, stray: str) -> None:
    """Expired, under a root that is not pinned, no authority, or in a circle: the way to the pinned root is found."""
    good = [LEAF, MIDDLE, TOP]
    for known in ([*STRAY_TPM[stray], *good], [*good, *STRAY_TPM[stray]]):
        assert "genuine" == _quote(tmp_path, *known).verdict
    assert "genuine" != _quote(tmp_path, LEAF, *STRAY_TPM[stray]).verdict


def test_many_namesakes_end_soon(tmp_path: Path) -> None:
    """Authorities that certify each other are not walked for ever; without a pinned root nothing is told."""
    keys = [fake_tpm.rsa_key(name) for name in ("ca", "root", "other")]
    circle = [fake_tpm.certificate(key, "CA", "CA", signer, ca=True) for key in keys for signer in keys] * 4
    assert "cannot tell" == _quote(tmp_path, LEAF, *circle).verdict


def test_a_stray_key_beside_a_quote(tmp_path: Path) -> None:
    """Another machine's ak.pub: the certificate's key signed. Without any certificate it is not genuine; attributes
    of the key that signed are never passed over."""
    (tmp_path / "ak.pub").write_bytes(fake_tpm.pem("other"))
    found = _quote(tmp_path, LEAF, MIDDLE, TOP)
    assert ("genuine", 1) == (found.verdict, sum("KEY PASSED OVER: ak.pub" in each for each in found.warnings))
    assert ("not genuine", "tpm-signature") == ((found := _quote(tmp_path)).verdict, found.code)
    (tmp_path / "ak.pub").write_bytes(fake_tpm.public(attributes=1 << 18))
    found = _quote(tmp_path, LEAF, MIDDLE, TOP)
    assert ("not genuine", "tpm-ak-attributes") == (found.verdict, found.code)


@pytest.mark.parametrize(("info", "identity", "lower"), [(19, 17, 17), (17, 19, 17), (18, 18, 18)])
def test_the_evaluation_number_is_the_lower_of_both(info: int, identity: int, lower: int) -> None:
    """An old QE identity beside new TCB information is as old as it is, and the other way round."""
    fake = FakeIntel({"info_number": info, "qe_number": identity})
    assert lower == tdx_verify.verify(fake.quote(), fake.collateral(), at=fake_intel.NOW, **fake.pins
                                      ).tcb.evaluation_number


def test_what_ends_first_ends_both() -> None:
    """The documents are valid until the earlier of their ends, which their own text states."""
    fake = FakeIntel({"qe_issued": fake_intel.NOW - timedelta(days=9)})
    stated = json.loads(fake.document()["qe_identity"])["nextUpdate"]
    found = tdx_verify.verify(fake.quote(), fake.collateral(), at=fake_intel.NOW, **fake.pins).tcb.next_update
    assert stated == found.strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize("version", [1, 3, 4, None])
def test_a_qe_identity_of_another_version_is_refused_by_name(version: int | None) -> None:
    """Intel's service of version 4 gives version 2; of another nothing is known, so nothing is told."""
    fake = FakeIntel({"qe_version": version})
    with pytest.raises(UnsupportedEvidenceError, match=f"QE identity of version {version}, and only 2") as caught:
        tdx_verify.verify(fake.quote(), fake.collateral(), at=fake_intel.NOW, **fake.pins)
    assert "tdx-collateral-version" == caught.value.code


def test_the_documents_are_still_signed() -> None:
    """A version that is altered after the signature is no version but a forgery."""
    document = INTEL.document()
    document["qe_identity"] = document["qe_identity"].replace('"version":2', '"version":3')
    with pytest.raises(ForgedEvidenceError):
        tdx_verify.verify(INTEL.quote(), _intel(document), at=fake_intel.NOW, **INTEL.pins)
    document["qe_identity_signature"] = raw_signature("signing", document["qe_identity"].encode()).hex()
    with pytest.raises(UnsupportedEvidenceError):
        tdx_verify.verify(INTEL.quote(), _intel(document), at=fake_intel.NOW, **INTEL.pins)


def test_stray_der_is_named_only(tmp_path: Path) -> None:
    """A cut certificate in the folder changes no verdict."""
    for number, each in enumerate(AMD.collateral().certificates):
        (tmp_path / f"{number}.der").write_bytes(each.public_bytes(Encoding.DER))
    (tmp_path / "cut.der").write_bytes(AMD.leaf.public_bytes(Encoding.DER)[:-9])
    roots = replace(VENDORS, amd=AMD.roots)
    known = collateral_folder.load(tmp_path)
    assert "genuine" == examine(Material(AMD.report(), tmp_path / "0.der", known, roots=roots), at=AT).verdict
