"""One judge: explaining evidence checks each signature once, and as often as a strict verdict on it does."""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from appliance.attestation.binding import Build
from appliance.attestation.case.record import Record
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.evidence import Provider, ReportWithCollateral
from appliance.attestation.judge import collateral_folder, examine, verify
from appliance.attestation.judge.material import Material
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.attestation.snp.judging import verify as snp_verify
from appliance.attestation.tdx.judging import verify as tdx_verify
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.errors import ForgedEvidenceError
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.fake_intel import FakeIntel
from tests.support.vectors import need

CHECKS = {"verify", "verify_directly_issued_by", "is_signature_valid"}  # of `cryptography`, which checks them all
NONCE = bytes(range(32))
AMD, INTEL = FakeAmd(), FakeIntel()
ROOTS = Roots(amd=AMD.roots, intel=INTEL.pins["root"], intel_der=INTEL.pins["root_der"])


def _checks(work: Callable[[], object]) -> Counter[str]:
    """How many signatures are checked while something runs, by the kind of what checks them."""
    found: Counter[str] = Counter()

    def note(_frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ in CHECKS:
            found[type(called.__self__).__name__] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return found


def _explained(path: Path, collateral: Path, at: datetime) -> tuple[Record, Counter[str]]:
    """The record of a file, without files beside it but collateral; and what was checked for it."""
    records: list[Record] = []
    material = Material(path.read_bytes(), Path("nowhere"), collateral_folder.load(collateral))
    found = _checks(lambda: records.append(examine.examine(material, at=at)))
    return records[0], found


def test_explaining_a_real_snp_report_checks_each_signature_once() -> None:
    """The report by its VCEK; the VCEK, the ASK and the revocation list by their issuers, and the ARK by itself."""
    path, at = need("snp/milan_report.bin"), datetime(2026, 7, 1, tzinfo=UTC)
    record, found = _explained(path, path.parent, at)
    assert "genuine" == record.verdict
    assert Counter({"ECPublicKey": 1, "RSAPublicKey": 3, "Certificate": 1}) == found
    known = collateral_folder.load(path.parent)
    assert found == _checks(lambda: snp_verify.verify(path.read_bytes(), known, at=at))


def test_explaining_a_real_tdx_quote_checks_each_signature_once() -> None:
    """The quote, the enclave's report and two documents by their keys; three certificates of the quote's chain and one
    each above the documents and the PCK's list; and two lists. The folder has more lists and answers: which of each is
    the newest authentic one, and whether one revokes, takes three, one and six more."""
    path, at = need("tdx/quote_v4.bin"), datetime(2025, 6, 20, 10, 16, 3, tzinfo=UTC)
    record, found = _explained(path, path.parent, at)
    assert "genuine" == record.verdict
    assert Counter({"ECPublicKey": 7, "Certificate": 6, "CertificateRevocationList": 8}) == found
    known = collateral_folder.load(path.parent)
    assert found == _checks(lambda: tdx_verify.verify(path.read_bytes(), known, at=at))


def test_explaining_a_real_tpm_quote_checks_each_signature_once() -> None:
    """The quote by its key; no certificate says whose that is."""
    path = need("tpm/quote.msg")
    found = _checks(lambda: examine.examine(Material(path.read_bytes(), path), at=datetime(2026, 9, 1, tzinfo=UTC)))
    assert 1 == found.total()


class _Made(Provider):
    """Hardware that is made up: reports with the collateral that verifies them."""

    def __init__(self, platform: str, report: Callable[[bytes], bytes]) -> None:
        self._platform, self._report = platform, report

    @property
    def platform(self) -> str:
        """As policies spell it."""
        return self._platform

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """A report over these data."""
        return ReportWithCollateral(self._report(report_data))


@pytest.mark.parametrize(("provider", "known"), [
    (_Made("sev-snp", lambda data: AMD.report(report_data=data)), AMD.collateral()),
    (_Made("tdx", lambda data: INTEL.quote(report_data=data)), INTEL.collateral()),
    (SimulatedProvider(bytes(32)), Collateral()),
], ids=["snp", "tdx", "simulated"])
def test_explaining_our_evidence_is_one_verification(provider: Provider, known: Collateral) -> None:
    """The record of the explanation is the one that the strict verdict comes from: as many checks, the same outcome."""
    made = Attestor(provider, BoundFacts(bytes(48), bytes(48), Build(version="0.1.0"))).attest(NONCE)
    records: list[Record] = []
    material = Material(made.to_json(), Path("nowhere"), known, roots=ROOTS, nonce=NONCE)
    explained = _checks(lambda: records.append(examine.examine(material, at=NOW)))
    strict = _checks(lambda: verify.verify(made, collateral=known, at=NOW, roots=ROOTS))
    assert strict == explained
    assert strict.total() > 0
    assert "the report binds the statement" in records[0].proved
    assert f"it answers the nonce {NONCE.hex()}" in records[0].proved


def test_a_record_keeps_the_steps_before_the_one_that_failed() -> None:
    """What held is told, then what did not and its code; the strict verdict raises the very same."""
    made = Attestor(_Made("tdx", lambda _: INTEL.quote(report_data=hashlib.sha512(b"other").digest())),
                    BoundFacts(bytes(48), bytes(48), Build(version="0.1.0"))).attest(NONCE)
    record = examine.examine(Material(made.to_json(), Path("nowhere"), INTEL.collateral(), roots=ROOTS), at=NOW)
    with pytest.raises(ForgedEvidenceError) as refused:
        verify.verify(made, collateral=INTEL.collateral(), at=NOW, roots=ROOTS)
    assert ("not genuine", refused.value.code, refused.value.summary) == (record.verdict, record.code, record.reason)
    outcomes = [(step.rule, step.outcome) for step in record.steps]
    assert [("signature", "holds"), ("attestation-key", "holds"), ("chain", "holds"), ("quoting-enclave", "holds"),
            ("tcb-information", "holds"), ("report-data-mismatch", "fails")] == outcomes
