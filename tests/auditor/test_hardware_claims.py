"""Claims on evidence say what was judged on each platform, also where a policy accepts less than they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.trust.roots import Roots
from appliance.auditor.claims import table
from appliance.auditor.claims.case import Case, Given
from appliance.auditor.claims.claim import Claimed
from appliance.policy import load
from appliance.policy.digest import host_data
from tests.support import fake_appliance as fake
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.fake_intel import FakeIntel

NONCE = bytes(range(32))
GUEST, DEBUG, MIGRATION = 1 << 17, 1 << 19, 1 << 18
SNP = "sev_snp {\n min_tcb { snp = 10 }\n }"
AMD, INTEL = FakeAmd(), FakeIntel({})


def _judged(folder: Path, platform: str, evidence: str, fields: dict[str, Any],
            known: Any = None) -> dict[str, Claimed]:
    """The claims of a pack with this evidence, under a policy with this block of evidence."""
    path = fake.write_policy(folder, platform, evidence=evidence)
    policy = load(path)
    source = (fake.SnpSource(AMD, host_data(policy.digest), fields) if platform == "sev-snp"
              else fake.TdxSource(INTEL, policy.digest, fields))
    made = fake.attestor(source, policy, spki_sha256=bytes(32)).attest(NONCE).to_json()
    members = {"policy/deployment.hcl": path.read_bytes(), "evidence/evidence.json": made,
               "image/measurements.json": (known or fake.measured()).to_json()}
    members |= ({"collateral/list.crl": AMD.crl().public_bytes(Encoding.DER)} if platform == "sev-snp"
                else {"collateral/intel.json": json.dumps(INTEL.document()).encode()})
    roots = Roots(amd=AMD.roots, intel=INTEL.pins["root"], intel_der=INTEL.pins["root_der"])
    return dict(table.judge(Case(members, Given(NOW, unsigned=True, nonces=(NONCE,), roots=roots))))


@pytest.mark.parametrize(("policy", "bit", "claims"), [
    ("debug = true", DEBUG, ("evidence-verified", "evidence-debug")),
    ("migration = true", MIGRATION, ("evidence-debug",)),
], ids=["debug", "migration"])
def test_what_a_policy_accepts_is_no_closed_machine(policy: str, bit: int, claims: tuple[str, ...],
                                                    tmp_path: Path) -> None:
    """A host that may read the guest, or move it, is told, though the policy takes it."""
    found = _judged(tmp_path, "sev-snp", f"{policy}\n {SNP}", {"policy": GUEST})
    assert ["holds"] * 2 == [found[name].outcome for name in ("evidence-verified", "evidence-debug")]
    found = _judged(tmp_path, "sev-snp", f"{policy}\n {SNP}", {"policy": GUEST | bit})
    assert {"fails"} == {found[name].outcome for name in claims}, found["evidence-debug"]
    assert "and the policy accepts it" in found["evidence-debug"].detail


def test_a_launch_on_tdx_is_measured(tmp_path: Path) -> None:
    """By MRTD and two registers: each that is not the predicted one speaks against the claim."""
    found = _judged(tmp_path, "tdx", "", {})
    assert ["holds"] * 3 == [found[name].outcome for name in (
        "evidence-verified", "evidence-measurement", "evidence-debug")], found["evidence-measurement"]
    for fields in ({"mr_td": b"\x23" * 48}, {"rtmr1": bytes(48)}, {"rtmr2": bytes(48)}):
        assert "fails" == _judged(tmp_path, "tdx", "", fields)["evidence-measurement"].outcome, fields


def test_without_measurements_no_launch_is_the_predicted_one(tmp_path: Path) -> None:
    """Measurements of no such platform leave it open."""
    known = fake.measured().model_copy(update={"tdx": ()})
    assert "holds" != _judged(tmp_path, "tdx", "", {}, known)["evidence-measurement"].outcome
