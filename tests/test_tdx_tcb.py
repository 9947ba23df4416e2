"""How a platform's TCB stands: dcap-qvl, which others wrote, is the judge of our judge."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from typing import Any

import pytest

from appliance.attestation import tdx_verify
from appliance.attestation.collateral import Collateral
from appliance.errors import AttestationError, ForgedEvidenceError, MalformedEvidenceError, RejectedEvidenceError
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


def _levels(chance: random.Random) -> dict[str, Any]:
    """Documents around what the fake's platform has: SGX components of 5, PCE 11, QE 6."""
    def components(*some: int) -> list[dict[str, int]]:
        return [{"svn": svn} for svn in (*some, *bytes(16 - len(some)))]
    platform = [_level(chance, PLATFORM[:6] if chance.random() < .9 else PLATFORM, {
        "sgxtcbcomponents": components(*(chance.choice((3, 4, 5, 5, 5, 6)) for _ in range(3))),
        "pcesvn": chance.choice((5, 11, 11, 12)),
        "tdxtcbcomponents": components(*(chance.choice((0, 1, 2, 3)) for _ in range(3)))}) for _ in range(4)]
    svns = sorted(chance.sample(range(1, 9), 3), reverse=True)
    return {"levels": platform,
            "module_levels": [_level(chance, ("UpToDate", "OutOfDate"), {"isvsvn": svn}) for svn in svns],
            "qe_levels": [_level(chance, ("UpToDate", "UpToDate", "OutOfDate"), {"isvsvn": svn}) for svn in (8, 6, 2)]}


@pytest.mark.parametrize("seed", range(10))
def test_any_platform_stands_as_dcap_qvl_says(seed: int) -> None:
    """Status, advisories and refusals are those of dcap-qvl for levels, modules, QEs and TD reports by chance."""
    chance, answers, differ = random.Random(seed), set(), []
    for _ in range(30):
        options = _levels(chance)
        fake = FakeIntel(options)
        svns = [bytes((chance.randrange(9), chance.choice((0, 1, 1, 1, 2)), chance.choice((0, 1, 2, 3)))) + bytes(13)
                for _ in range(2)]
        quote = fake.quote(5, td15=chance.random() < .6, tee_tcb_svn=svns[0], tee_tcb_svn2=svns[1])
        document = fake.document()
        theirs = _theirs(quote, document, NOW, fake.pins["root_der"])
        ours = _ours(quote, document, NOW, fake.pins)
        answers.add(theirs and theirs[0])
        if theirs != ours:
            differ.append((theirs, ours, svns, options))
    assert [] == differ
    assert 3 < len(answers)
