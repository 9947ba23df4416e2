"""How a platform's TCB stands: dcap-qvl, which others wrote, is the judge of our judge."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from typing import Any

import pytest

from appliance.attestation.tdx.judging import verify as tdx_verify
from appliance.attestation.tdx.judging.validate import TdxExpectations, validate
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.errors import AttestationError, ForgedEvidenceError, MalformedEvidenceError, RejectedEvidenceError
from appliance.policy.schema.platform import Requirements, Tdx
from tests.support import extent
from tests.support.fake_intel import NOW, FakeIntel
from tests.support.vectors import need

dcap_qvl = pytest.importorskip("dcap_qvl")
PLATFORM = ("UpToDate", "SWHardeningNeeded", "ConfigurationNeeded", "ConfigurationAndSWHardeningNeeded", "OutOfDate",
            "OutOfDateConfigurationNeeded", "Revoked")
Answer = tuple[str, tuple[str, ...]]


def _theirs(quote: bytes, document: dict[str, Any], at: datetime, root: bytes | None) -> Answer | None:
    """dcap-qvl's status and advisories; None where it refuses."""
    seconds = int(at.timestamp())
    try:
        found = dcap_qvl.QuoteVerifier(root).verify_with_policy(
            quote, dcap_qvl.QuoteCollateralV3.from_json(json.dumps(document)), seconds,
            dcap_qvl.QuotePolicy.claims_only(seconds))
    except ValueError:
        return None
    tcb = json.loads(found.to_json())["tcb"]
    return tcb["status"], tuple(sorted(tcb["advisory_ids"]))


def _ours(quote: bytes, document: dict[str, Any], at: datetime, pins: dict[str, Any]) -> Answer | None:
    try:
        tcb = tdx_verify.verify(quote, Collateral(documents=[dict(document)]), at=at, **pins).tcb
    except AttestationError:
        return None
    return tcb.status, tcb.advisories


def _level(chance: random.Random, statuses: tuple[str, ...], tcb: dict[str, Any]) -> dict[str, Any]:
    names = [f"INTEL-SA-0000{number}" for number in range(10) if chance.random() < .15]
    return {"tcb": tcb, "tcbDate": "2024-01-01T00:00:00Z", "tcbStatus": chance.choice(statuses), "advisoryIDs": names}


def _components(*some: int) -> list[dict[str, int]]:
    return [{"svn": svn} for svn in (*some, *bytes(16 - len(some)))]


def _levels(chance: random.Random) -> dict[str, Any]:
    """Documents around what the fake's platform has: SGX components of 5, PCE 11, QE 6."""
    statuses = PLATFORM[:6] if chance.random() < .9 else PLATFORM
    platform = [_level(chance, statuses, {
        "sgxtcbcomponents": _components(*(chance.choice((3, 5, 5, 5, 5, 5, 6)) for _ in range(3))),
        "pcesvn": chance.choice((5, 11, 11, 12)),
        "tdxtcbcomponents": _components(*(chance.choice((0, 0, 1, 2)) for _ in range(3)))}) for _ in range(4)]
    svns = sorted(chance.sample(range(1, 9), 3), reverse=True)
    return {"levels": platform,
            "module_levels": [_level(chance, ("UpToDate", "OutOfDate"), {"isvsvn": svn}) for svn in svns],
            "qe_levels": [_level(chance, ("UpToDate", "UpToDate", "OutOfDate"), {"isvsvn": svn}) for svn in (8, 6, 2)]}


def _svn(chance: random.Random) -> bytes:
    return bytes((chance.randrange(2, 9), chance.choice((0, 1, 1, 1, 1, 2)), chance.choice((0, 1, 2, 3)))) + bytes(13)


def test_any_platform_stands_as_dcap_qvl_says() -> None:
    """Status, advisories and refusals are those of dcap-qvl for levels, modules, QEs and TD reports by chance."""
    chance, answers, differ = random.Random(1), set(), []
    for _ in range(extent.examples(200, 600)):
        options = _levels(chance)
        fake, svn, svn2 = FakeIntel(options), _svn(chance), _svn(chance)
        quote = fake.quote(5, td15=chance.random() < .6, tee_tcb_svn=svn, tee_tcb_svn2=svn2)
        document = fake.document()
        theirs = _theirs(quote, document, NOW, fake.pins["root_der"])
        answers.add(theirs and theirs[0])
        if theirs != (ours := _ours(quote, document, NOW, fake.pins)):
            differ.append((theirs, ours, svn.hex(), svn2.hex(), options))
    assert [] == differ
    assert {None, *PLATFORM[:6], "TDRelaunchAdvised", "TDRelaunchAdvisedConfigurationNeeded"} == answers


@pytest.mark.parametrize("name", ["quote_v4", "quote_v5_outdated"])
@pytest.mark.parametrize("days", [-1, 0, 1, 29, 31])
def test_real_quotes_stand_as_dcap_qvl_says(name: str, days: int) -> None:
    """Real platforms, before, at and after the time of Intel's documents."""
    quote = need(f"tdx/{name}.bin").read_bytes()
    document = json.loads(need(f"tdx/{name}_collateral.json").read_text())
    at = datetime.fromisoformat(json.loads(document["tcb_info"])["issueDate"]) + timedelta(days=days)
    assert _theirs(quote, document, at, None) == _ours(quote, document, at, {})


def _refused(options: dict[str, Any], **fields: Any) -> AttestationError:
    fake = FakeIntel(options)
    with pytest.raises(AttestationError) as caught:
        tdx_verify.verify(fake.quote(**fields), fake.collateral(), at=NOW, **fake.pins)
    return caught.value


def _one(**change: Any) -> dict[str, Any]:
    tcb = {"sgxtcbcomponents": _components(5), "pcesvn": 11, "tdxtcbcomponents": _components(), **change.pop("tcb", {})}
    return {"levels": [{"tcb": tcb, "tcbDate": "2025-01-01T00:00:00Z", "tcbStatus": "UpToDate", **change}]}


@pytest.mark.parametrize("options", [
    _one(tcb={"sgxtcbcomponents": _components(5)[:15]}), _one(tcb={"tdxtcbcomponents": [*_components(), {"svn": 0}]}),
    _one(tcb={"pcesvn": "11"}), _one(tcb={"pcesvn": True}), _one(tcb={"sgxtcbcomponents": [{"svn": -1}] * 16}),
    _one(tcbStatus="Good"), _one(tcbDate="then"), _one(tcbDate="2025-01-01T00:00:00"), _one(advisoryIDs="INTEL"),
    _one(tcb={"sgxtcbcomponents": None}), {"levels": {}}, {"levels": [7]}, {"qe_levels": [{}]},
    {"qe_levels": [{"tcb": {"isvsvn": 1}, "tcbDate": "2025-01-01T00:00:00Z", "tcbStatus": "ConfigurationNeeded"}]}])
def test_documents_in_another_form_are_malformed_or_leave_nothing(options: dict[str, Any]) -> None:
    """What Intel signed and this program does not understand gives no verdict, and no other error."""
    assert isinstance(_refused(options), MalformedEvidenceError | RejectedEvidenceError)


def test_what_is_too_old_is_named() -> None:
    """Each security version below the level that the platform comes closest to: SGX, PCE, TDX, by Intel's numbers."""
    components: list[dict[str, Any]] = [{"svn": 5}, {"svn": 6, "type": "TXT SINIT"}, *_components()[2:]]
    options = _one(tcb={"sgxtcbcomponents": components, "pcesvn": 12, "tdxtcbcomponents": _components(0, 0, 9)})
    assert ("TDX quote: SGX component 2 (TXT SINIT) is 5, at least 6; PCE is 11, at least 12; TDX component 3 is 0, "
            "at least 9: at no level that Intel lists") == _refused(options).summary
    assert "ISVSVN of the TDX module TDX_01 is 1, at least 2" in _refused({}, tee_tcb_svn=b"\1\1" + bytes(14)).summary
    assert "ISVSVN of the quoting enclave is 6, at least 7" in _refused({"qe_svn": 7}).summary
    assert "TDX module TDX_02" in _refused({}, tee_tcb_svn=b"\1\2" + bytes(14)).summary


@pytest.mark.parametrize(("options", "fields", "kind", "code"), [
    ({"qe_mrsigner": bytes(32)}, {}, ForgedEvidenceError, "tdx-collateral-invalid"),
    ({}, {"mr_signer_seam": b"\1" * 48}, RejectedEvidenceError, "tdx-module"),
    ({"status": "Revoked"}, {}, ForgedEvidenceError, "certificate-revoked")])
def test_another_enclave_or_module_and_a_revoked_platform(
        options: dict[str, Any], fields: dict[str, Any], kind: type[AttestationError], code: str) -> None:
    """A stranger's enclave could say anything; another TDX module is authentic, and not Intel's production one."""
    error = _refused(options, **fields)
    assert (kind, code) == (type(error), error.code)


@pytest.mark.parametrize("qe_status", ["UpToDate", "OutOfDate"])
def test_a_module_of_now_that_is_revoked_revokes_the_platform(qe_status: str) -> None:
    """A TD 1.5 report names the TCB of now: one that Intel revoked counts, however the QE stands."""
    old = {"tcb": {"sgxtcbcomponents": _components(5), "pcesvn": 11, "tdxtcbcomponents": _components()},
           "tcbDate": "2025-01-01T00:00:00Z", "tcbStatus": "Revoked"}
    new = {**old, "tcb": {**old["tcb"], "tdxtcbcomponents": _components(0, 0, 2)}, "tcbStatus": "UpToDate"}
    enclave = {"tcb": {"isvsvn": 1}, "tcbDate": "2025-01-01T00:00:00Z", "tcbStatus": qe_status}
    error = _refused({"levels": [new, old], "qe_levels": [enclave]}, version=5, td15=True,
                     tee_tcb_svn=b"\3\1\2" + bytes(13), tee_tcb_svn2=b"\3\1\0" + bytes(13))
    assert (ForgedEvidenceError, "certificate-revoked") == (type(error), error.code)


@pytest.mark.parametrize(("days", "accepted"), [(30, False), (31, True)])
def test_the_time_of_grace_ends_when_dcap_qvl_ends_it(days: int, accepted: bool) -> None:
    """A level of 31 days ago: both accept it from a grace period of 31 days on."""
    level = {"tcb": {"isvsvn": 1}, "tcbDate": f"{NOW - timedelta(days=31):%Y-%m-%dT%H:%M:%SZ}", "tcbStatus": "UpToDate"}
    fake = FakeIntel({**_one(tcbStatus="OutOfDate", tcbDate=level["tcbDate"]), "module_levels": [level]})
    seconds, quote, document = int(NOW.timestamp()), fake.quote(), fake.document()
    policy = dcap_qvl.QuotePolicy.strict(seconds).allow_status("OutOfDate").platform_grace_period(
        days * 86_400).allow_smt(True).allow_dynamic_platform(True).allow_cached_keys(True)
    try:
        dcap_qvl.QuoteVerifier(fake.pins["root_der"]).verify_with_policy(
            quote, dcap_qvl.QuoteCollateralV3.from_json(json.dumps(document)), seconds, policy)
    except ValueError:
        theirs = False
    else:
        theirs = True
    claims = tdx_verify.verify(quote, Collateral(documents=[dict(document)]), at=NOW, **fake.pins)
    ours = validate(claims, TdxExpectations(), Requirements(
        tdx=Tdx.model_construct(**{**Tdx().__dict__, "tcb_grace_ms": days * 86_400_000})), at=NOW)
    assert (accepted, accepted) == (theirs, all(each.outcome != "fails" for each in ours))
