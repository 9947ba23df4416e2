"""What schema 2 demands of SEV-SNP reports: of each field one that meets it, one that does not, one that shows nothing.
"""

from __future__ import annotations

from typing import Any

import pytest

from appliance.attestation.findings import Finding
from appliance.attestation.judge import collateral_folder
from appliance.attestation.snp.judging import verify as snp_verify
from appliance.attestation.snp.judging.validate import SnpExpectations, validate
from appliance.policy.explaining.checking import check
from appliance.policy.schema.platform import Requirements
from tests.attestation.test_snp_verify import AT
from tests.support import fake_amd
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.policies import in_schema, valid, with_lines
from tests.support.vectors import need

GUEST = 1 << 17  # the bit of a guest policy that must be one
GENOA, TURIN, VENICE = FakeAmd("Genoa"), FakeAmd("Turin"), FakeAmd("Venice", tcb={"fmc": 1, "tee": 2, "snp": 3})
CLOUD = FakeAmd("Genoa", vlek=True)
Fields = dict[str, Any]


def _text(lines: str, around: str = "", version: int = 2) -> str:
    return in_schema(version, with_lines("tee", f"evidence {{\n{around}\nsev_snp {{\n{lines}\n}}\n}}"))


def _evidence(lines: str, around: str = "", version: int = 2) -> Requirements:
    return valid(_text(lines, around, version)).tee.evidence


def _findings(fake: FakeAmd, fields: Fields, evidence: Requirements) -> dict[str, Finding]:
    report = fake.report(**{"version": 5, **fields})
    claims = snp_verify.verify(report, fake.collateral(), at=NOW, roots=fake.roots)
    return {each.rule: each for each in validate(claims, SnpExpectations(), evidence, at=NOW)}


def _failed(fake: FakeAmd, fields: Fields, lines: str, around: str = "", version: int = 2) -> dict[str, str]:
    """The rules that fail, with their details."""
    found = _findings(fake, fields, _evidence(lines, around, version))
    return {rule: each.detail for rule, each in found.items() if each.outcome == "fails"}


# lines of the policy, the rule; of reports: what meets it, what does not, what cannot show it; words of the refusal
DEMANDS: list[tuple[str, str, Fields, Fields, Fields | None, str]] = [
    ('min_tcb "genoa" { launch_mitigations = "0xb" }', "launch-mitigations", {"mitigations": (0x1B, 0)},
     {"mitigations": (0x1, 0xB)}, {"version": 4}, "found 0x1, which lacks 0xa of 0xb"),
    ('min_tcb "genoa" { current_mitigations = "0xb" }', "current-mitigations", {"mitigations": (0, 0xB)},
     {"mitigations": (0xB, 0x3)}, {"version": 3}, "found 0x3, which lacks 0x8 of 0xb"),
    ('min_tcb "genoa" { current_mitigations = "0x8000000000000001" }', "current-mitigations",
     {"mitigations": (0, 2**64 - 1)}, {"mitigations": (0, 2**63)}, {"version": 2}, "lacks 0x1 of 0x8000000000000001"),
    ("page_swap_disabled = true", "page-swap", {"policy": GUEST | 1 << 25}, {}, {"version": 4}, "move and swap pages"),
    ("guest_ciphertext_hiding = true", "guest-ciphertext-hiding", {"policy": GUEST | 1 << 24}, {"platform": 1 << 4},
     None, "does not demand ciphertext hiding"),
    ("guest_rapl_disabled = true", "guest-rapl", {"policy": GUEST | 1 << 23}, {"platform": 1 << 3}, None,
     "does not demand that the power meter is off"),
    ("ciphertext_hiding = true", "ciphertext-hiding", {"platform": 1 << 4}, {"policy": GUEST | 1 << 24}, None,
     "the host can read ciphertext"),
    ("rapl_disabled = true", "rapl", {"platform": 1 << 3}, {"policy": GUEST | 1 << 23}, None, "the power meter is on"),
    ("alias_check = true", "alias-check", {"platform": 1 << 5}, {}, None,
     "memory was not checked for aliases since the last reset"),
    ("tsme = true", "tsme", {"platform": 1 << 1}, {}, None, "memory outside of guests is not encrypted"),
    ("ecc = true", "ecc", {"platform": 1 << 2}, {}, None, "memory has no error correction"),
    ("tio = true", "tio", {"platform": 1 << 7}, {}, {"version": 4}, "SEV-TIO is off on the host"),
    ("tio = false", "tio", {}, {"platform": 1 << 7}, {"version": 3}, "SEV-TIO is on on the host"),
    ("min_report_version = 5", "report-version", {}, {"version": 4}, None, "4, at least 5"),
    ("min_report_version = 3", "report-version", {"version": 3}, {"version": 2}, None, "2, at least 3"),
    ("committed_is_current = true", "committed-is-current", {},
     {"committed": fake_amd.tcb_bytes("Genoa", {"snp": 19})}, None,
     "snp 20/microcode 200 is not the committed bootloader 4/tee 1/snp 19/"),
    ("committed_is_current = true", "committed-is-current", {},
     {"current_version": (49, 55, 1), "committed_version": (43, 55, 1)}, None,
     "firmware 1.55 build 49 is not the committed 1.55 build 43"),
]


@pytest.mark.parametrize(("lines", "rule", "meets", "lacks", "silent", "words"), DEMANDS,
                         ids=[f"{each[0][:44]}-{number}" for number, each in enumerate(DEMANDS)])
def test_each_demand(lines: str, rule: str, meets: Fields, lacks: Fields, silent: Fields | None, words: str) -> None:
    """Exactly this rule fails, with what was found; a report that cannot show it fails in so many words."""
    assert {} == _failed(GENOA, meets, lines)
    failed = _failed(GENOA, lacks, lines)
    assert [rule] == list(failed)
    assert words in failed[rule]
    for fields in (meets, lacks, silent or {}):
        assert {} == _failed(GENOA, fields, "")
    if silent is not None:
        failed = _failed(GENOA, silent, lines)
        assert [rule] == list(failed)
        assert failed[rule].startswith(f"cannot be shown by a report of version {silent['version']}")


def test_masks_count_for_their_own_line() -> None:
    """A bit means another thing on another line: Genoa's mask is not asked of a Turin."""
    lines = 'min_tcb "genoa" { current_mitigations = "0xb" }\nmin_tcb "turin" { current_mitigations = "0x30" }'
    assert {} == _failed(TURIN, {"mitigations": (0, 0x3F)}, lines)
    assert {} == _failed(TURIN, {"mitigations": (0, 0x30)}, lines)
    assert ["current-mitigations"] == list(_failed(GENOA, {"mitigations": (0, 0x30)}, lines))


@pytest.mark.parametrize("mask", ["0x", "0", "b", "0xB", "0x0", "0x0b", "0x1" + "0" * 16, "-0x1", "0xb "])
def test_a_mask_has_one_spelling(mask: str) -> None:
    """Sixty-four bits in lower-case hexadecimal without zeros in front; others are refused with an example."""
    found = [each for each in check(_text(f'min_tcb "genoa" {{ launch_mitigations = "{mask}" }}')).diagnostics
             if each.severity == "error"]
    assert ['write something like "0xb"'] == [each.fix for each in found]


@pytest.mark.parametrize(("guest", "host", "wanted", "failing"), [
    (False, False, False, ()), (True, False, False, (1,)), (False, True, False, (1,)), (True, True, False, (1, 2)),
    (True, True, True, ()), (True, False, True, ())])
def test_smt_is_answered_by_either(guest: bool, host: bool, wanted: bool, failing: tuple[int, ...]) -> None:
    """Firmware launches no guest whose policy forbids SMT where it is on, and a host shows whether it is off now.

    Schema 1 goes on asking for both.
    """
    fields = {"policy": GUEST | guest << 16, "platform": int(host)}
    for version in (1, 2):
        failed = _failed(GENOA, fields, "", f"smt = {str(wanted).lower()}", version)
        assert (["smt"] if version in failing else []) == list(failed)


def test_the_cloud_of_a_vlek() -> None:
    """One of the clouds that are named; a VCEK cannot show any. Without names each cloud will do."""
    lines = 'csp_ids = ["Another Cloud", "A Cloud"]'
    assert {} == _failed(CLOUD, {}, lines)
    assert {"csp": "A Cloud, allowed: Another Cloud"} == _failed(CLOUD, {}, 'csp_ids = ["Another Cloud"]')
    failed = _failed(GENOA, {}, lines)
    assert ["csp"] == list(failed)
    assert failed["csp"].startswith("cannot be shown by a VCEK")
    assert {} == _failed(CLOUD, {}, "") == _failed(GENOA, {}, "")


OWN = 'min_tcb "siena" { microcode = 27 }'
LATER = 'min_tcb "genoa" { microcode = 84 }'


@pytest.mark.parametrize(("lines", "cpuid", "microcode", "failed"), [
    (f"{OWN}\n{LATER}", fake_amd.SIENA, 27, False), (f"{OWN}\n{LATER}", fake_amd.SIENA, 26, True),
    (f"{OWN}\n{LATER}", fake_amd.CPUID["Genoa"], 27, True), (OWN, fake_amd.CPUID["Genoa"], 1, False),
    (LATER, fake_amd.SIENA, 27, True), (LATER, fake_amd.CPUID["Genoa"], 84, False)])
def test_siena_has_a_floor_of_its_own(lines: str, cpuid: tuple[int, int, int], microcode: int, failed: bool) -> None:
    """Where a policy has a block for Siena it counts for Siena's CPUs alone; where it has none, Genoa's does."""
    fake = FakeAmd("Genoa", tcb={"microcode": microcode})
    assert failed == ("tcb-reported" in _failed(fake, {"cpuid": cpuid}, lines))


def test_a_report_that_names_no_cpu_is_of_its_keys_line() -> None:
    """A report of version 2 does not tell Siena from Genoa: Genoa's floor counts, and `siena` does not take it."""
    fake = FakeAmd("Genoa", tcb={"microcode": 27})
    assert "tcb-reported" in _failed(fake, {"version": 2}, f"{OWN}\n{LATER}")
    assert ["product"] == list(_failed(fake, {"version": 2}, 'products = ["siena"]'))


@pytest.mark.parametrize(("products", "cpuid", "words"), [
    ('"genoa"', fake_amd.SIENA, ""), ('"siena"', fake_amd.SIENA, ""), ('"genoa"', fake_amd.CPUID["Genoa"], ""),
    ('"siena"', fake_amd.CPUID["Genoa"], "Genoa, allowed: siena"),
    ('"turin"', fake_amd.SIENA, "Siena with the keys of Genoa, allowed: turin")])
def test_products_take_siena_by_its_name_or_its_keys(products: str, cpuid: tuple[int, int, int], words: str) -> None:
    """`genoa` takes every CPU with Genoa's keys, `siena` its own alone."""
    assert ({"product": words} if words else {}) == _failed(GENOA, {"cpuid": cpuid}, f"products = [{products}]")


def test_venice_has_no_boot_loader_to_judge() -> None:
    """A floor under a component that a line lacks cannot be shown; those that it has are compared."""
    lines = 'products = ["venice"]\nmin_tcb "venice" {\n%s\n}'
    assert {} == _failed(VENICE, {}, lines % "fmc = 1\ntee = 2\nsnp = 3")
    assert "snp 3 is below 4" == _failed(VENICE, {}, lines % "snp = 4")["tcb-current"]
    assert "bootloader cannot be shown by this line, at least 1" == _failed(
        VENICE, {}, lines % "bootloader = 1")["tcb-current"]


REAL = [("genoa_v5_mit01_report.bin", "0x1", 25), ("genoa_v5_mit0b_report.bin", "0xb", 27),
        ("turin_attestation_report.bin", "0x3f", 4), ("genoa_report.bin", None, 23), ("milan_v2_report.bin", None, 8)]


@pytest.mark.parametrize(("name", "shown", "snp"), REAL)
@pytest.mark.parametrize("mask", ["0x1", "0xb", "0x3f"])
def test_real_reports_show_what_is_mended(name: str, shown: str | None, snp: int, mask: str) -> None:
    """Of AMD's own reports each holds the masks that it shows, at launch and now; older versions cannot show any."""
    folder = need("snp")
    claims = snp_verify.verify((folder / name).read_bytes(), collateral_folder.load(folder), at=AT)
    line = claims.product.lower()
    evidence = _evidence(f'products = ["{line}"]\nmin_report_version = 5\ncommitted_is_current = true\n'
                         f'min_tcb "{line}" {{\nsnp = {snp}\nlaunch_mitigations = "{mask}"\n'
                         f'current_mitigations = "{mask}"\n}}', "smt = true")
    found = {each.rule: each for each in validate(claims, SnpExpectations(), evidence, at=AT)}
    holds = shown is not None and int(mask, 16) & ~int(shown, 16) == 0
    for rule in ("launch-mitigations", "current-mitigations"):
        assert ("holds" if holds else "fails") == found[rule].outcome
        assert (shown is None) == found[rule].detail.startswith("cannot be shown")
    assert ("fails" if shown is None else "holds") == found["report-version"].outcome
    assert ["holds"] * 5 == [found[rule].outcome for rule in (
        "committed-is-current", "tcb-reported", "tcb-current", "tcb-committed", "product")]


def test_a_real_host_that_has_not_committed() -> None:
    """The real VLEK report is of a host that runs a newer microcode than it committed, in Amazon's cloud."""
    folder = need("snp")
    claims = snp_verify.verify((folder / "trustee-test-vlek-report.bin").read_bytes(), collateral_folder.load(folder),
                               at=AT.replace(year=2025, month=3))
    evidence = _evidence('products = ["milan"]\ncommitted_is_current = true\n'
                         'csp_ids = ["CN=cc-us-east-2.amazonaws.com"]', "smt = true")
    found = {each.rule: each for each in validate(claims, SnpExpectations(), evidence, at=AT)}
    assert ("holds", "fails") == (found["csp"].outcome, found["committed-is-current"].outcome)
    assert ("TCB bootloader 4/tee 0/snp 24/microcode 220 is not the committed bootloader 4/tee 0/snp 24/microcode 219"
            == found["committed-is-current"].detail)


@pytest.mark.parametrize("lines", [
    'min_tcb "genoa" { launch_mitigations = "0xb" }', "min_report_version = 5", "tio = false", 'products = ["siena"]',
    'csp_ids = ["A Cloud"]', "page_swap_disabled = true", "committed_is_current = true"])
def test_schema_1_has_none_of_them(lines: str) -> None:
    """Schema 1 is frozen: each is refused there, with the version that has it."""
    found = [each for each in check(_text(lines, version=1)).diagnostics if each.severity == "error"]
    assert found
    assert all("schema 2" in each.summary + each.fix or "schema = 2" in each.fix for each in found)


def test_what_is_low_is_named_one_by_one() -> None:
    """Each component with what was wanted."""
    failed = _failed(GENOA, {}, 'min_tcb "genoa" {\n bootloader = 200\n tee = 1\n snp = 201\n microcode = 1\n }')
    assert {"bootloader 4 is below 200; snp 20 is below 201"} == set(failed.values())
