"""The production policies: real reports against them, rule by rule, and a service that boots by what they demand."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.attestation.findings import Finding
from appliance.attestation.judge import collateral_folder
from appliance.attestation.snp import table as snp_table
from appliance.attestation.snp.judging import verify as snp_verify
from appliance.attestation.snp.judging.validate import SnpExpectations, validate
from appliance.cli.main import main
from appliance.policy import load, unenforced
from tests.attestation.test_snp_verify import AT
from tests.support.vectors import need

POLICIES = Path(__file__).parents[2] / "policies"
MACHINE = {"tcb-reported", "tcb-current", "tcb-committed", "tcb-launch", "launch-mitigations", "current-mitigations",
           "committed-is-current", "report-version", "ecc", "alias-check", "api", "product", "signing-key", "debug",
           "migration", "cxl", "vmpl", "guest-policy"}
IMAGE = {"id-key", "guest-svn"}  # with the launch digest, which is compared where measurements are given
SITE = {"single-socket", "smt", "ciphertext-hiding", "guest-ciphertext-hiding", "rapl", "guest-rapl"}
OLD_TCB = {"tcb-reported", "tcb-current", "tcb-committed", "tcb-launch"}
OLD_REPORT = {"launch-mitigations", "current-mitigations", "report-version"}
# report: what fails beside what belongs to an image or a site
REAL = {
    "genoa_v5_mit0b_report.bin": set(),
    "turin_attestation_report.bin": set(),
    "genoa_v5_mit01_report.bin": {"launch-mitigations", "current-mitigations", *OLD_TCB},
    "genoa_report.bin": OLD_TCB | OLD_REPORT,
    "genoa_report_with_pem_table.bin": OLD_TCB | OLD_REPORT,
    "milan_report.bin": {"product", "report-version"},
}


def _judged(name: str) -> dict[str, Finding]:
    folder = need("snp")
    report, table, _ = snp_table.split((folder / name).read_bytes())
    known = collateral_folder.load(folder).with_items(table.values(), "table")
    claims = snp_verify.verify(report, known, at=AT)
    evidence = load(POLICIES / "sev-snp-production.hcl").policy.tee.evidence
    return {each.rule: each for each in validate(claims, SnpExpectations(), evidence, at=AT)}


@pytest.mark.parametrize("name", REAL)
def test_real_reports_against_the_production_policy(name: str) -> None:
    """A patched machine holds every rule that is the machine's; what a site or an image decides fails by name."""
    found = _judged(name)
    assert {*MACHINE, *IMAGE, *SITE} <= set(found)
    failed = {rule for rule, each in found.items() if each.outcome == "fails"} - {"revocation"}
    assert REAL[name] == failed - IMAGE - SITE
    asked = MACHINE - ({"launch-mitigations", "current-mitigations"} if "product" in REAL[name] else set())
    assert asked - REAL[name] == {rule for rule in MACHINE if found[rule].outcome == "holds"}
    assert {"id-key", "guest-svn", *SITE} == failed - REAL[name]


@pytest.mark.parametrize("path", sorted(POLICIES.glob("*.hcl")), ids=lambda path: path.name)
def test_every_policy_boots_and_is_warned_of_nothing(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing in it is unenforced, and no bulletin asks for more of machines that are known."""
    assert [] == unenforced(load(path).policy)
    assert 0 == main(["check", str(path)])
    told = capsys.readouterr().out
    assert "unenforced" not in told
    assert "warning" not in told
