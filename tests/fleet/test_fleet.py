"""A fleet of faked machines: judged once, ruled again under what is not so yet, and told what mends each."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.judge.examine import examine
from appliance.attestation.judge.material import Material
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509 import walks
from appliance.cli.main import main
from appliance.errors import MalformedEvidenceError, PolicyError, UncheckedEvidenceError
from appliance.fleet import judging, node, ruling, whatif
from appliance.fleet.node import Machine
from appliance.policy import load
from appliance.policy.digest import host_data
from appliance.policy.schema.platform import Requirements
from tests.support import fake_appliance, fake_intel
from tests.support.fake_amd import NOW as AMD_NOW
from tests.support.fake_amd import FakeAmd
from tests.support.fake_intel import NOW, FakeIntel

Judged = tuple[Path, list[Machine], Roots]
ANNOUNCED = NOW - timedelta(days=2)
STEP = {"tcb": {"sgxtcbcomponents": [{"svn": 6}, *[{"svn": 5}] * 15], "pcesvn": 11,
                "tdxtcbcomponents": [{"svn": 3}, *[{"svn": 0}] * 15]},
        "tcbDate": "2026-08-12T00:00:00Z", "tcbStatus": "UpToDate", "advisoryIDs": []}
BEFORE = {"tcb": {"sgxtcbcomponents": [{"svn": 5}] * 16, "pcesvn": 11,
                  "tdxtcbcomponents": [{"svn": 3}, *[{"svn": 0}] * 15]},
          "tcbDate": "2025-01-01T00:00:00Z", "tcbStatus": "OutOfDate", "advisoryIDs": ["INTEL-SA-09999"]}


def _snp(amd: FakeAmd, folder: Path, name: str, **fields: Any) -> None:
    """A machine's report with its certificates in a folder of its own."""
    where = folder / name
    where.mkdir(parents=True)
    (where / "report.bin").write_bytes(amd.report(**fields))
    for number, each in enumerate((amd.leaf, amd.ask, amd.ark)):
        (where / f"{number}.der").write_bytes(each.public_bytes(Encoding.DER))
    (where / "list.crl").write_bytes(amd.crl(serial=99).public_bytes(Encoding.DER))


def _rulings(nodes: list[Machine], *words: str, **more: Any) -> dict[str, list[str]]:
    found = ruling.rule(nodes, whatif.changed(Requirements(), words), **more)
    return {each.node.file: [fault.rule for fault in each.faults] for each in found}


@pytest.fixture(scope="module")
def amds(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """A Genoa below a floor, one above it, and a Milan; judged."""
    folder = tmp_path_factory.mktemp("fleet")
    lines: dict[str, FakeAmd] = {}
    for name, product, snp in (("old", "Genoa", 22), ("new", "Genoa", 29), ("milan", "Milan", 29)):
        amd = FakeAmd(product, tcb={"snp": snp, "bootloader": 9, "tee": 0, "microcode": 80})
        amd.__dict__.update({each: getattr(lines.setdefault(product, amd), each) for each in ("ark", "ask")})
        _snp(amd, folder, name)
    roots = Roots(amd={key: pin for line in lines.values() for key, pin in line.roots.items()})
    return folder, judging.judge(folder, None, folder / judging.STORE, at=AMD_NOW, roots=roots), roots


def test_products_and_floors(amds: Judged) -> None:
    """A line that is out, and a floor that one machine of a line does not reach."""
    _, nodes, _ = amds
    assert {"milan/report.bin": ["product"], "new/report.bin": [], "old/report.bin": []} == _rulings(nodes, at=AMD_NOW)
    assert not any(_rulings(nodes, "milan=in", at=AMD_NOW).values())
    found = _rulings(nodes, "milan=in", "floor.genoa.snp=25", at=AMD_NOW)
    assert {"milan/report.bin", "new/report.bin"} == {name for name, faults in found.items() if not faults}
    assert {"tcb-reported", "tcb-current", "tcb-committed", "tcb-launch"} == set(found["old/report.bin"])


def test_what_mends_a_floor(amds: Judged) -> None:
    """The firmware that a machine lacks is named by component and version."""
    found = ruling.rule(amds[1], whatif.changed(Requirements(), ["floor.genoa.snp=25"]), at=AMD_NOW)
    cures = {fault.rule: fault.cure for each in found if each.node.file.startswith("old") for fault in each.faults}
    assert cures["tcb-current"] == "firmware for Genoa with snp 25 or later"
    assert cures["tcb-launch"].endswith("; then start the guest again")


def test_lists_end(amds: Judged) -> None:
    """AMD's list ends thirty days later; a fleet that fetches it again passes."""
    later = AMD_NOW + timedelta(days=31)
    assert {"revocation"} == set(_rulings(amds[1], "milan=in", at=later)["new/report.bin"])
    assert not any(_rulings(amds[1], "milan=in", at=later, renewed=True).values())
    ends = ruling.rule(amds[1], Requirements(), at=AMD_NOW)[1].ends
    assert next(cause for _, cause in ends) == "AMD's list of revoked certificates ends"


def test_a_second_time_nothing_is_judged(amds: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept gives the same nodes; a file that changed, or its collateral, is judged again."""
    folder, nodes, roots = amds
    examined: list[str] = []

    def seen(material: Material, **more: Any) -> Any:
        examined.append(material.path.parent.name)
        return examine(material, **more)

    monkeypatch.setattr(judging, "examine", seen)
    again = judging.judge(folder, None, folder / judging.STORE, at=AMD_NOW, roots=roots)
    assert ([], nodes) == (examined, again)
    (folder / "new" / "more.crl").write_bytes((folder / "new" / "list.crl").read_bytes())
    judging.judge(folder, None, folder / judging.STORE, at=AMD_NOW, roots=roots)
    assert examined == ["new"]


def _intel(folder: Path, root: Path) -> list[Machine]:
    """Three TDs, of which one has firmware of before the step, with the documents in force and the announced ones."""
    for each in ("standard", "early"):
        (folder.parent / each).mkdir()
    standing, early = FakeIntel({"levels": [{**BEFORE, "tcbStatus": "UpToDate", "advisoryIDs": []}]}), FakeIntel(
        {"levels": [STEP, BEFORE], "info_number": 18, "qe_number": 18, "issued": ANNOUNCED})
    early.__dict__.update(root=standing.root, chain=standing.chain)
    for name, intel in (("standard", standing), ("early", early)):
        (folder.parent / name / "intel.json").write_text(json.dumps(intel.document()))
    root.write_bytes(standing.root.public_bytes(Encoding.PEM))
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.quote").write_bytes(standing.quote(mr_td=name.encode() * 48))
    roots = Roots(intel=walks.fingerprint(standing.root))
    return judging.judge(folder, folder.parent / "standard", folder / judging.STORE, at=NOW, roots=roots,
                         announced=folder.parent / "early")


def test_a_step_of_intels_is_seen_before_its_day(tmp_path: Path) -> None:
    """Machines that pass by the documents in force, and fail by the announced ones, which name what has to rise."""
    nodes = _intel(tmp_path / "fleet", tmp_path / "root.pem")
    assert {"a.quote": [], "b.quote": []} == _rulings(nodes, at=NOW)
    found = ruling.rule(nodes, Requirements(), at=NOW, update="early")
    assert [["tcb-status", "advisories"]] * 2 == [[fault.rule for fault in each.faults] for each in found]
    fault = found[0].faults[0]
    assert "evaluation number 18" in fault.detail
    assert "SGX component 1 is 5, at least 6" in fault.cure


def test_a_day_of_grace(tmp_path: Path) -> None:
    """With a grace that covers the step's date, they pass, and the end of the grace is told."""
    nodes = _intel(tmp_path / "fleet", tmp_path / "root.pem")
    wanted = Requirements()
    day = timedelta(days=(NOW - datetime(2025, 1, 1, tzinfo=UTC)).days + 3)
    wanted = wanted.model_copy(update={"tdx": wanted.tdx.model_copy(
        update={"tcb_grace_ms": int(day.total_seconds() * 1000)})})
    found = ruling.rule(nodes, wanted, at=NOW, update="early")
    assert not any(each.faults for each in found)
    assert "tcb_grace ends" in {cause for _, cause in found[0].ends}


def test_ten_thousand(amds: Judged, tmp_path: Path) -> None:
    """Ten thousand stored nodes are read and ruled on in seconds: ten on two cores are promised."""
    nodes = [*amds[1], *_intel(tmp_path / "fleet", tmp_path / "root.pem")]
    lines = [each.line() for each in nodes] * 2000
    begun = time.process_time()
    found = ruling.rule(map(node.read, lines), whatif.changed(Requirements(), ["floor.genoa.snp=25"]), at=NOW)
    assert time.process_time() - begun < 20
    assert len(lines) == len(found)


@pytest.mark.parametrize("word", ["milan", "milan=off", "floor.genoa=3", "floor.genoa.snp=256", "floor.rome.snp=1",
                                  "floor.genoa.snp=", "evaluation=-1", "smt=", "=", "advisory.x=no"])
def test_words_that_are_not_known(word: str) -> None:
    """Each is refused, with what is known or the range."""
    with pytest.raises(PolicyError) as caught:
        whatif.changed(Requirements(), [word])
    assert (caught.value.code, word in caught.value.summary) == ("what-if", True)


@pytest.mark.parametrize("line", ["", "{", "[]", '{"file":"x"}', '{"file":"x","key":"","kind":"","verdict":"",'
                                  '"snp":{"report":"!"}}', "[" * 100_000])
def test_damaged_stores(line: str) -> None:
    """A line that is not ours is an error with a way on."""
    with pytest.raises(MalformedEvidenceError) as caught:
        node.read(line)
    assert caught.value.code == "fleet-store"


def test_a_folder_without_evidence(tmp_path: Path) -> None:
    """It is said, and nothing is written."""
    (tmp_path / "notes.txt").write_text("no evidence")
    with pytest.raises(UncheckedEvidenceError):
        judging.judge(tmp_path, None, tmp_path / judging.STORE, at=NOW)
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_documents_of_other_platforms_say_nothing(tmp_path: Path) -> None:
    """A number that is at hand for another platform only neither fails a machine nor hides its own number."""
    nodes = _intel(tmp_path / "fleet", tmp_path / "root.pem")
    other = FakeIntel({"fmspc": "00906ED50000", "info_number": 3, "qe_number": 3})
    bad = {"tcb_info": '{"tcbEvaluationDataNumber": 1e999, "issueDate": 7}', "qe_identity": "{}"}
    for name, document in (("other", other.document()), ("bad", bad), ("text", {**bad, "tcb_info": "[" * 9000})):
        (tmp_path / "standard" / f"{name}.json").write_text(json.dumps(document))
    roots = Roots(intel=walks.fingerprint(x509.load_pem_x509_certificate((tmp_path / "root.pem").read_bytes())))
    found = judging.judge(tmp_path / "fleet", tmp_path / "standard", tmp_path / "other.jsonl", at=NOW, roots=roots)
    assert _rulings(nodes, at=NOW) == _rulings([each for each in found if each.file.endswith(".quote")], at=NOW)


def test_what_is_not_genuine_does_not_pass(tmp_path: Path) -> None:
    """Evidence whose report is authentic, and whose statement is another's, fails by its own code."""
    amd = FakeAmd("Genoa", tcb={"snp": 27})
    policy = load(Path(__file__).parents[2] / "policies" / "sev-snp-production.hcl")
    source = fake_appliance.SnpSource(amd, host_data(policy.digest), {})
    evidence = json.loads(fake_appliance.attestor(source, policy, models={}).attest(bytes(32)).to_json())
    (tmp_path / "one.json").write_text(json.dumps(evidence))
    evidence["statement"]["policy_sha384"] = "00" * 48
    (tmp_path / "two.json").write_text(json.dumps(evidence))
    nodes = judging.judge(tmp_path, None, tmp_path / judging.STORE, at=AMD_NOW, roots=Roots(amd=amd.roots))
    faults = _rulings(nodes, at=AMD_NOW)
    assert [] == faults["one.json"]
    assert ["report-data-mismatch"] == faults["two.json"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Text and JSON, exit codes, and a what-if."""
    root = tmp_path / "root.pem"
    _intel(tmp_path / "fleet", root)
    when, own = f"{NOW:%Y-%m-%dT%H:%M:%SZ}", [
        "--collateral", str(tmp_path / "standard"), "--announced", str(tmp_path / "early"), "--unsafe-root", str(root)]
    words = ["fleet", "judge", str(tmp_path / "fleet"), *own, "--at", when, "--judged-at", when]
    assert main(words) == 0
    assert "0 of 2 fail" in capsys.readouterr().out
    assert main([*words, "--update", "early", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert (2, 2, ["tcb-status", "advisories"]) == (
        said["machines"], said["failing"], [each["rule"] for each in said["nodes"][0]["faults"]])
    assert main([*words, "--if", "rome=out"]) == 2
    assert fake_intel.NOW == NOW
