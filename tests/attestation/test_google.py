"""Google's launch endorsements, by keys of the test's own; the policy's demand for one; and fetching them."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.google import endorsement, requests, rule
from appliance.attestation.google.wire import Message
from appliance.attestation.measured.second import SnpRow, TdxRow
from appliance.attestation.x509 import walks
from appliance.cli.main import main
from appliance.errors import AttestationError, ForgedEvidenceError, MalformedEvidenceError, UncheckedEvidenceError
from appliance.policy.schema.platform import Gce
from tests.fuzz import driver, endorsement_fuzz
from tests.support import fake_google as google
from tests.support import rows
from tests.support.fake_google import FIRMWARE, LAUNCH, MRTD, NOW, OTHER, FakeGoogle, content, number
from tests.support.fake_intel import FakeIntel

GOOGLE = FakeGoogle()
STRANGER = google.certificate("GCE-cc-tcb-root", "GCE-cc-tcb-root", by="stranger", own="stranger", authority=True)


def _read(data: bytes, **options: Any) -> endorsement.Endorsement:
    return endorsement.read(data, **{"at": NOW, "root": GOOGLE.pin, **options})


def test_a_signed_endorsement_says_what_it_says() -> None:
    """Digest of the firmware, MRTD by shape, launch digests by number of save areas, and both versions."""
    found = _read(GOOGLE.endorsement())
    assert (FIRMWARE, 3, 9, LAUNCH) == (found.firmware_sha384, found.tdx_svn, found.snp_svn, found.snp)
    assert [(MRTD, None, False), (OTHER, 16, True)] == [(each.mrtd, each.ram_gib, each.early_accept)
                                                        for each in found.tdx]
    assert 1_790_000_000 == int(found.issued.timestamp())


def test_the_root_may_be_beside() -> None:
    """Google's bundle may be empty: then the file that it publishes is needed, and another one is no root."""
    bare = GOOGLE.endorsement(field6=b"")
    assert _read(GOOGLE.endorsement()) == _read(bare, certificates=[GOOGLE.root])
    for others in ((), (STRANGER,)):
        with pytest.raises(UncheckedEvidenceError) as caught:
            _read(bare, certificates=others)
        assert "gce-root-absent" == caught.value.code
    with pytest.raises(UncheckedEvidenceError):
        endorsement.read(GOOGLE.endorsement(), at=NOW)  # the pinned root is Google's, and not ours


@pytest.mark.parametrize(("data", "error"), [
    (GOOGLE.endorsement(by="stranger"), ForgedEvidenceError), (GOOGLE.endorsement(salt=20), ForgedEvidenceError),
    (content(1, GOOGLE.golden(snp={})) + GOOGLE.endorsement()[len(content(1, GOOGLE.golden())):], ForgedEvidenceError),
    (GOOGLE.endorsement(field4=content(4, google.certificate(
        "GCE-uefi-signer", "GCE-cc-tcb-root", by="stranger", own="gce-signer").public_bytes(Encoding.DER))),
     ForgedEvidenceError),
    (GOOGLE.endorsement(field4=content(4, google.certificate(
        "GCE-uefi-signer", "GCE-cc-tcb-root", by="gce-root", own="gce-signer",
        end=NOW - timedelta(days=1)).public_bytes(Encoding.DER))), UncheckedEvidenceError),
    (GOOGLE.endorsement(field5=content(5, b"short")), MalformedEvidenceError),
    (GOOGLE.endorsement(field5=content(5, FIRMWARE) * 2), MalformedEvidenceError),
    (GOOGLE.endorsement(tdx=[(MRTD[:47], 0, 0)]), MalformedEvidenceError),
    (GOOGLE.endorsement(tdx=[], snp={}), MalformedEvidenceError),
    (GOOGLE.endorsement(snp={0: MRTD}), MalformedEvidenceError),
    (GOOGLE.endorsement(field8=number(8, 1)), MalformedEvidenceError),
    (GOOGLE.endorsement(field1=content(1, b"") * 2), MalformedEvidenceError),
    (b"", MalformedEvidenceError), (b"\x00", MalformedEvidenceError), (b"\x0b\x0c", MalformedEvidenceError),
    (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", MalformedEvidenceError),
    (b"\x0a" + b"\x80" * 11, MalformedEvidenceError), (number(1, 1), MalformedEvidenceError),
    (bytes(endorsement.MAX_BYTES + 1), MalformedEvidenceError), (b"\x08\x00" * 2000, MalformedEvidenceError),
    (GOOGLE.endorsement()[:-1], MalformedEvidenceError)])
def test_what_google_did_not_sign_is_refused(data: bytes, error: type[AttestationError]) -> None:
    """Another key, salt, content, issuer or time; and every form that is none."""
    with pytest.raises(error):
        _read(data)


def test_fields_that_are_not_known_are_passed_over() -> None:
    """Google adds fields: a message with one more is read as before."""
    more = GOOGLE.endorsement(field99=content(99, b"new") + varint_64())
    assert _read(GOOGLE.endorsement()) == _read(more)
    assert (1 << 64) - 1 == Message(google.varint(1 << 3) + google.varint((1 << 64) - 1), "x").number(1, (1 << 64) - 1)


def varint_64() -> bytes:
    """A field of eight bytes and one of four."""
    return google.varint(100 << 3 | 1) + bytes(8) + google.varint(101 << 3 | 5) + bytes(4)


def test_damaged_endorsements_end_in_an_error() -> None:
    """The fuzz target, for a moment."""
    _, finding = driver.run(endorsement_fuzz.fuzz, endorsement_fuzz.seeds(), seconds=0, seed=1, least=1500)
    assert finding is None, finding


@pytest.mark.parametrize(("svns", "least", "outcome"), [
    ([3], 3, "holds"), ([4], 3, "holds"), ([2], 3, "fails"), ([3, 2], 3, "fails"), ([None], 0, "fails"),
    ([3, None], 0, "fails"), ([], 0, "fails"), ([0], 0, "holds")])
def test_a_policy_may_demand_an_endorsement(svns: list[int | None], least: int, outcome: str) -> None:
    """Each row of the launch value must be Google's word, of a version that is high enough."""
    found = [TdxRow.model_validate(rows.endorsed(MRTD, svn=svn) if svn is not None else rows.tdx(MRTD)) for svn in svns]
    assert outcome == rule.judge(found, Gce(min_svn=least)).outcome
    assert "not checked" == rule.judge(found, None).outcome


def test_rows_of_sev_snp_are_judged_alike() -> None:
    """An endorsement of a launch digest has a version as well."""
    row = SnpRow.model_validate(rows.snp(LAUNCH[4], vmm="gce", source="gce-endorsement", svn=9))
    assert ["holds", "fails"] == [rule.judge([row], Gce(min_svn=least)).outcome for least in (9, 10)]


def _mirror(folder: Path, quote: bytes, body: bytes) -> Path:
    launch = requests.of_tdx(MRTD)
    for request, data in zip(launch, (body, GOOGLE.root.public_bytes(Encoding.DER)), strict=True):
        place = folder / request.url.removeprefix("https://")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    (folder / "root.pem").write_bytes(GOOGLE.root.public_bytes(Encoding.PEM))
    (folder / "quote").write_bytes(quote)
    return folder / "quote"


@pytest.mark.parametrize(("body", "said"), [
    (GOOGLE.endorsement(field6=b""), "endorsed by Google, security version 3"),
    (GOOGLE.endorsement(field6=b"", by="stranger"), "not endorsed: launch endorsement: the signature does not verify"),
    (GOOGLE.endorsement(field6=b"", tdx=[(OTHER, 0, 0)]), "not endorsed: the endorsement is of other launch values"),
    (b"<html>", "not endorsed")])
def test_fetch_gets_and_verifies_an_endorsement(tmp_path: Path, body: bytes, said: str,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    """Both addresses of Google's, from a mirror by URL path; Intel's documents are not there, which is said."""
    quote = _mirror(tmp_path, FakeIntel().quote(mr_td=MRTD), body)
    code = main(["collateral", "fetch", str(quote), "-o", str(tmp_path / "out"), "--from", str(tmp_path), "--gce",
                 "--unsafe-root", str(tmp_path / "root.pem"), "--at", f"{NOW:%Y-%m-%dT%H:%M:%SZ}", "--json"])
    out = json.loads(capsys.readouterr().out)
    assert out["gce"]["said"].startswith(said)
    assert code != 0
    assert (tmp_path / "out" / endorsement.ROOT_FILE).exists()
    assert walks.load((tmp_path / "out" / endorsement.ROOT_FILE).read_bytes(), "root") == [GOOGLE.root]


def test_both_addresses_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--print` names them for a machine without a network, and no other kind of evidence has any."""
    quote = tmp_path / "quote"
    quote.write_bytes(FakeIntel().quote(mr_td=MRTD))
    assert 0 == main(["collateral", "fetch", str(quote), "--print", "--gce"])
    text = capsys.readouterr().out
    assert f"https://storage.googleapis.com/gce_tcb_integrity/ovmf_x64_csm/tdx/{MRTD.hex()}.binarypb" in text
    assert "https://pki.goog/cloud_integrity/GCE-cc-tcb-root_1.crt" in text
    assert 0 == main(["collateral", "fetch", str(quote), "--print"])
    assert "pki.goog" not in capsys.readouterr().out
