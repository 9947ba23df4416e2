"""The table of makers' bulletins: what `check` advises from it, what a verifier is told, and that its numbers hang
together with published reports and with the document."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from appliance.attestation.snp.judging import describe
from appliance.attestation.snp.judging import verify as snp_verify
from appliance.attestation.snp.judging.validate import SnpExpectations
from appliance.attestation.snp.judging.validate import validate as validate_snp
from appliance.attestation.tdx.judging import verify as tdx_verify
from appliance.attestation.tdx.judging.validate import TdxExpectations
from appliance.attestation.tdx.judging.validate import validate as validate_tdx
from appliance.cli.main import main
from appliance.policy.bulletins import advice, lines
from appliance.policy.bulletins.bulletin import MODELS, Bulletin
from appliance.policy.bulletins.table import SOURCES, TABLE
from appliance.policy.explaining.checking import check
from appliance.policy.schema.platform import MinTcb, Requirements, SevSnp
from tests.support import fake_amd
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.fake_intel import FakeIntel
from tests.support.policies import hardware, in_schema, with_lines

ROOT = Path(__file__).parents[2]
PATCHED = """
 alias_check = true
 min_tcb "genoa" {
  bootloader = 10
  snp = 27
  microcode = 81
  launch_mitigations = "0xf"
  current_mitigations = "0xf"
 }
 min_tcb "turin" {
  snp = 4
  microcode = 81
  launch_mitigations = "0x3f"
  current_mitigations = "0x3f"
 }
"""


def _advice(text: str, version: int = 2, severity: str = "warning") -> list[tuple[str, str, str]]:
    """The advice on requirements of SEV-SNP: field, summary, fix."""
    base = with_lines("tee", f"evidence {{\n sev_snp {{\n {text}\n }}\n }}", hardware())
    checked = check(in_schema(version, base))
    assert checked.policy is not None, checked.diagnostics
    return [(d.path.removeprefix("tee.evidence.sev_snp."), d.summary, d.fix) for d in advice.diagnostics(checked)
            if d.severity == severity]


@pytest.mark.parametrize(("text", "version", "place", "words"), [
    ('min_tcb "turin" { snp = 22 }', 2, 'min_tcb "turin"', "snp = 22 refuses every known firmware of turin"),
    ('min_tcb "genoa" { fmc = 1 }', 2, 'min_tcb "genoa"', "fmc = 1 refuses every known firmware of genoa"),
    ('min_tcb "milan" { snp = 24 }', 2, 'min_tcb "milan"', "products does not accept milan"),
    ('min_tcb "genoa" { snp = 23 }', 2, "min_tcb", "min_tcb accepts any firmware of turin"),
    ('min_tcb "siena" { microcode = 84 }', 2, 'min_tcb "siena"', "84 refuses every known firmware of siena"),
    ('products = ["turin"]\n min_tcb "siena" { snp = 27 }', 2, 'min_tcb "siena"', "products does not accept siena"),
    ('products = ["siena"]', 2, "min_tcb", "min_tcb accepts any firmware of siena"),
    ('products = ["venice"]', 2, "products", "venice is accepted, but this version pins no root of its keys"),
    ("min_tcb {\n bootloader = 9\n snp = 22\n }", 1, "min_tcb", "bootloader = 9 refuses every known firmware of milan"),
    ("min_tcb {\n bootloader = 9\n snp = 22\n }", 1, "min_tcb", "snp = 22 refuses every known firmware of turin"),
    ('products = ["milan"]', 2, "products", "milan is accepted"), ("", 1, "products", "milan is accepted")])
def test_floors_that_no_firmware_meets_are_warned_of(text: str, version: int, place: str, words: str) -> None:
    """From what is known of each product line, whichever schema the file has."""
    assert [place] == [path for path, summary, _ in _advice(text, version) if words in summary]


@pytest.mark.parametrize(("old", "new", "place", "words", "fix"), [
    ("snp = 27", "snp = 22", 'min_tcb "genoa".snp', "AMD-SB-3020 (RMPocalypse)", "write snp = 27"),
    ("snp = 27", "snp = 26", 'min_tcb "genoa".snp', "snp = 26 accepts machines of genoa", "write snp = 27"),
    ("microcode = 81\n  launch_mitigations = \"0xf", "microcode = 80\n  launch_mitigations = \"0xf",
     'min_tcb "genoa".microcode', "AMD-SB-3027 (StackWarp)", "write microcode = 81"),
    ("snp = 4", "snp = 3", 'min_tcb "turin".snp', "AMD-SB-3020 (RMPocalypse) asks for: 4", "write snp = 4"),
    ('launch_mitigations = "0xf"', 'launch_mitigations = "0x5"', 'min_tcb "genoa".launch_mitigations',
     "need not show bits 1 and 3, which patched machines show", 'write launch_mitigations = "0xf"'),
    (' current_mitigations = "0x3f"', "", 'min_tcb "turin".current_mitigations', "which patched machines show",
     'write current_mitigations = "0x3f"'),
    ("alias_check = true", "alias_check = false", "alias_check", "AMD-SB-3015 (BadRAM)", "write alias_check = true"),
])
def test_a_policy_below_a_bulletin_is_warned(old: str, new: str, place: str, words: str, fix: str) -> None:
    """By the bulletin, the field and the value; one that asks for all gets no word."""
    assert [] == _advice(PATCHED)
    assert old in PATCHED
    [(path, summary, advised)] = _advice(PATCHED.replace(old, new, 1))
    assert (place, fix) == (path, advised)
    assert words in summary


def test_a_bit_that_no_published_report_shows_is_a_note() -> None:
    """Advice never leads to a policy that no known machine meets."""
    lower = PATCHED.replace('"0xf"', '"0xb"')
    assert [] == _advice(lower)
    [(place, summary, fix)] = _advice(lower, severity="note")
    assert 'min_tcb "genoa".current_mitigations' == place
    assert "bit 2, which is for AMD-SB-3016" in summary
    assert 'write current_mitigations = "0xf" once your machines show it' == fix


def test_lines_without_a_floor_are_told_what_bulletins_ask() -> None:
    """One warning for all of them, with each bulletin and value."""
    checked = check(in_schema(2, with_lines("tee", "evidence {\n sev_snp {\n alias_check = true\n }\n }",
                                            hardware())))
    [found] = [d for d in advice.diagnostics(checked) if d.severity == "warning"]
    assert "min_tcb accepts any firmware of genoa and turin, however old" == found.summary
    assert "genoa: snp = 27 (AMD-SB-3020 (RMPocalypse)" in found.detail
    assert "turin: snp = 4 (AMD-SB-3020 (RMPocalypse))" in found.detail


@pytest.mark.parametrize(("text", "warned"), [
    ("", False), ('tcb_status = ["UpToDate", "OutOfDate"]', True), ('tcb_grace = "30d"', True),
    ('accepted_advisories = ["INTEL-SA-01397"]', True), ('accepted_advisories = ["INTEL-SA-00615"]', False),
    ('tcb_grace = "30d"\n min_tee_tcb_svn = "0d010000000000000000000000000000"', False),
    ('tcb_grace = "30d"\n min_tee_tcb_svn = "0c010000000000000000000000000000"', True)])
def test_an_old_module_is_warned_of_where_intels_judgement_is_set_aside(text: str, warned: bool) -> None:
    """Intel's own judgement asks for what its advisories do; a policy that sets it aside needs a floor."""
    checked = check(in_schema(2, with_lines("tee", f"evidence {{\n tdx {{\n {text}\n }}\n }}", hardware("tdx"))))
    assert checked.policy is not None, checked.diagnostics
    assert warned == any("INTEL-SA-01397" in d.summary for d in advice.diagnostics(checked))


def test_the_command_tells_it_and_a_boot_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`appliance check` is a desk tool; its exit code stays, and what a boot loads has no advice."""
    policy = tmp_path / "p.hcl"
    policy.write_text(with_lines("tee", "evidence {\n sev_snp {\n min_tcb { snp = 9 }\n }\n }", hardware()))
    code = main(["check", str(policy)])
    told = capsys.readouterr().out
    assert (0, True) == (code, "warning[bulletin]: snp = 9 accepts machines of genoa" in told)
    assert not any(d.code == "bulletin" for d in check(policy.read_text()).diagnostics)


def _snp(fake: FakeAmd, **fields: Any) -> tuple[str, str, list[str]]:
    """What the rule `bulletins` says of a report, and the warnings of `appliance evidence`."""
    claims = snp_verify.verify(fake.report(version=fields.pop("version", 5), **fields), fake.collateral(), at=NOW,
                               roots=fake.roots)
    policy = Requirements(sev_snp=SevSnp.model_construct(**{**SevSnp().__dict__, "products": tuple(lines.HIGHEST)}))
    found = {each.rule: each for each in validate_snp(claims, SnpExpectations(), policy, at=NOW)}["bulletins"]
    return found.outcome, found.detail, describe.warnings(claims.report, claims, NOW)


GOOD = {"bootloader": 10, "tee": 0, "snp": 27, "microcode": 86}
ALIASES = 1 << 5


@pytest.mark.parametrize(("tcb", "fields", "told"), [
    ({"snp": 22}, {}, "AMD-SB-3019 (EntrySign): snp is 22, at least 23"),
    ({"microcode": 83}, {}, "AMD-SB-3019 (EntrySign): microcode is 83, at least 84"),
    ({"microcode": 85}, {}, "AMD-SB-3027 (StackWarp): microcode is 85, at least 86"),
    ({"microcode": 80}, {"cpuid": (0x19, 0x11, 2)}, "AMD-SB-3027 (StackWarp): microcode is 80, at least 81"),
    ({"microcode": 24}, {"cpuid": fake_amd.SIENA}, "AMD-SB-3019 (EntrySign): microcode is 24, at least 25"),
    ({}, {"mitigations": (0xF, 0xB)}, "AMD-SB-3016 (CVE-2023-20585, IOMMU writes): mitigation bit 2 is not set"),
    ({}, {"version": 4, "mitigations": (0, 0)}, "a report of this version cannot show mitigation bit 2"),
    ({}, {"platform": 0}, "AMD-SB-3015 (BadRAM): alias_check is not so"),
    ({}, {"launch": fake_amd.tcb_bytes("Genoa", {**GOOD, "snp": 26})}, "AMD-SB-3020 (RMPocalypse): snp is 26"),
])
def test_a_report_below_a_bulletin_is_told_of_it(tcb: dict[str, int], fields: dict[str, Any], told: str) -> None:
    """The rule never fails, whatever the policy; `appliance evidence` warns in the same words."""
    fake = FakeAmd("Genoa", tcb={**GOOD, **tcb})
    outcome, detail, warnings = _snp(fake, **{"mitigations": (0xF, 0xF), "platform": ALIASES, **fields})
    assert "not checked" == outcome
    assert told in detail
    assert told in " ".join(each for each in warnings if each.startswith("BULLETINS"))


def test_what_no_report_can_show_is_told() -> None:
    """A machine that shows all there is to show is warned of nothing, and its verdict names what no report shows."""
    outcome, detail, warnings = _snp(FakeAmd("Genoa", tcb=GOOD), mitigations=(0xF, 0xF), platform=ALIASES)
    assert ("not checked", []) == (outcome, [each for each in warnings if each.startswith("BULLETINS")])
    assert {"AMD-SB-3030", "AMD-SB-3034", "AMD-SB-3039"} == set(re.findall(r"AMD-SB-\d+", detail))
    assert "AMD-SB-3039 (Staleus): no report can show that it is mended" in detail


@pytest.mark.parametrize(("svn", "outcome"), [("0c01", "not checked"), ("0d01", "holds")])
def test_an_old_tdx_module_is_told(svn: str, outcome: str) -> None:
    """By the versions of its own major version."""
    fake = FakeIntel()
    quote = fake.quote(tee_tcb_svn=bytes.fromhex(svn).ljust(16, b"\0"))
    claims = tdx_verify.verify(quote, fake.collateral(), at=NOW, **fake.pins)
    found = {each.rule: each for each in validate_tdx(claims, TdxExpectations(), Requirements(), at=NOW)}["bulletins"]
    assert outcome == found.outcome
    assert ("INTEL-SA-01397" in found.detail) == (outcome == "not checked")


def test_the_table_hangs_together() -> None:
    """Rows name components, models, flags and sources that exist; no row asks for more than is known to be met."""
    for row in TABLE:
        assert set(row.lowest) <= set(MinTcb.model_fields), row
        assert set(row.microcode) <= set(MODELS), row
        assert set(row.flags) <= set(SevSnp.model_fields), row
        assert row.sources, row
        assert set(row.sources) <= set(SOURCES), row
        assert row.checked == "secondary" or row.shows, row
        assert row.shows or row.remark, row
        for line in {"genoa": ("genoa", "siena")}.get(row.line, (row.line,)) if row.line in lines.HIGHEST else ():
            assert [] == list(lines.beyond(line, row.floor(line))), row
    assert set(SOURCES) == {source for row in TABLE for source in row.sources}


def row_of(row: Bulletin) -> str:
    """A row of the table in docs/attacks.md."""
    asks = [f"{name} {value}" for name, value in row.lowest.items()]
    asks += [f"microcode {value} on {model}" for model, value in row.microcode.items()]
    asks += [f"mitigations {row.mitigations:#x}"] if row.mitigations else []
    asks += [f"`{flag}`" for flag in row.flags]
    asks += [f"TEE_TCB_SVN from {bytes(row.tee_tcb_svn).hex()} on"] if row.tee_tcb_svn else []
    told = "; ".join([", ".join(asks) or "nothing that a report shows", *([row.remark] if row.remark else [])])
    return (f"| {row.id} | {row.attack} | {row.line} | {row.first_seen} | {told} | {row.checked}: "
            f"{', '.join(row.sources)} |")


def test_the_document_has_the_table() -> None:
    """Each row and each source, in the table's order."""
    text = (ROOT / "docs/attacks.md").read_text().partition("\n## Bulletins\n")[2]
    rows = [line for line in text.splitlines() if line.startswith(("| AMD-SB", "| INTEL-SA"))]
    assert [row_of(row) for row in TABLE] == rows
    assert [f"- `{name}`: {said}." for name, said in SOURCES.items()] == [
        line for line in text.replace("\n  ", " ").splitlines() if line.startswith("- `")]
