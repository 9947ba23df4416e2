"""A report's sentences are made of what was judged: after each break it says nothing that its claims do not."""

from __future__ import annotations

import ast
import functools
import html
import re
from pathlib import Path

import pytest

from appliance.attestation import binding
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.audit.chain import origin
from appliance.auditor import held
from appliance.auditor.claims import controls, table
from appliance.auditor.claims.case import Case, Given
from appliance.auditor.claims.claim import Claimed
from appliance.auditor.claims.controls import Framework
from appliance.auditor.held import Anchor
from appliance.auditor.pack import gather
from appliance.auditor.pack.gather import Files
from appliance.auditor.report import page
from appliance.policy import Loaded, load
from appliance.policy.digest import host_data
from appliance.signed import desk
from appliance.signed.approvals import Approvals
from appliance.transparency import note, proofs
from appliance.transparency.checkpoint import Checkpoint
from appliance.transparency.note import Note
from appliance.transparency.tree import leaf_hash
from tests.auditor import test_claims as claims
from tests.auditor.test_claims import BREAKS, IDS
from tests.support import packs
from tests.support.fake_amd import NOW
from tests.support.server import sha256, write_policy

OWN = controls.own()
MODEL = b"GGUF of nothing"
RA_TLS = 'listen "api" {\n    kind = "ra-tls"\n    port = 8443\n  }'
# words of a mapping, and the claims of which one must bear them
SAID = {
    r"approv(?:ed|ers)": ("policy-approved",),
    r"hardware|processor|attested|measured (?:software|machine|launch)|memory is encrypted": ("evidence-verified",),
    r"at rest|on a disk|memory alone": ("policy-memory",),
    r"sealed by": ("policy-sealed",), r"destroyed": ("log-expired", "log-kept"), r"none was dropped": ("log-lossless",),
    r"tenant": ("log-tenants", "policy-tenants"), r"timestamp authority": ("log-dated",),
    r"[Rr]eceipts?\b": ("receipts-hold",), r"self-test|known answers": ("log-self-test", "evidence-self-test"),
    r"revoked": ("release-standing",), r"[Bb]ill of materials": ("sbom-materials",), r"limited": ("policy-limits",),
    r"held outside": ("log-held",), r"debug": ("evidence-debug",), r"\bTLS\b": ("policy-transport",),
    r"publisher": ("publisher-signed",)}


def _report(case: Case, findings: dict[str, Claimed]) -> str:
    return page.page(case, findings, [(each, controls.judge(each, findings)) for each in OWN]).decode()


def _controls(report: str) -> dict[tuple[str, str], str]:
    """What a report says of each control, by framework and control."""
    found = {}
    for framework in OWN:
        part = html.unescape(report.split(f"<h2>{html.escape(framework.framework)}</h2>")[1].split("<h2>")[0])
        for item in part.split("<li>")[1:]:
            [name] = re.findall(r"<b>([^<]*)</b>", item.split("</p>")[0])
            found[framework.framework, name] = item
    return found


def _says_no_more(report: str, findings: dict[str, Claimed]) -> None:
    """Of each control the sentences of claims that hold and of no others; its words where all hold without exception.
    """
    told = _controls(report)
    for framework in OWN:
        for control in framework.controls:
            said = told[framework.framework, control.id]
            for name in control.rests_on:
                sentence = table.CLAIMS[name].says.removesuffix(".")
                assert (f"<p>{sentence}" in said or f". {sentence}" in said) == (findings[name].outcome == "holds"), (
                    control.id, name)
            whole = all(findings[name].outcome == "holds" and not findings[name].but for name in control.rests_on)
            assert (str(control.shows) in said) == bool(control.claims and whole), control.id
            assert ("covered" in said.split("</span>")[0]) == (
                "○" in said.split("</span>")[0] or control.status(findings).startswith("covered")), control.id


@pytest.mark.parametrize("number", range(len(BREAKS)), ids=IDS)
def test_a_report_says_what_was_judged(number: int) -> None:
    """After each break of each claim's evidence."""
    _, _, change, know = BREAKS[number]
    members, given = claims._genuine()
    findings = claims._broken(number)
    _says_no_more(_report(Case(change(dict(members)), know(given)), findings), findings)


def test_a_genuine_report_has_the_words_of_its_mappings() -> None:
    """Each claim but the one that the policy does not ask for, and what was judged beside it."""
    case = Case(*claims._genuine())
    report = _report(case, claims._whole())
    _says_no_more(report, claims._whole())
    assert "As many approvers signed the policy as it requires (2 of 2 needed: privacy, security)." in report


@pytest.mark.parametrize("framework", OWN, ids=[each.framework for each in OWN])
def test_a_mapping_says_no_more_than_its_claims(framework: Framework) -> None:
    """Each word that tells of a fact has its claim, and no number of people is told that nobody counts."""
    for control in framework.controls:
        for pattern, names in SAID.items():
            if control.shows and re.search(pattern, control.shows):
                assert {*names} & {*control.rests_on}, (control.id, pattern)
        assert not re.search(r"[Ss]everal people|named people|persons", control.shows or ""), control.id


@functools.cache
def _simulated(folder: Path) -> tuple[dict[str, bytes], Given]:
    """The pack of a simulated appliance with everything else in order: one approval, a log that the judge holds."""
    path = write_policy(folder, {}, schema=2, listeners=RA_TLS, audit="receipts = true")
    model = f'model "demo" {{\n file = "demo.gguf"\n sha256 = "{sha256(MODEL)}"\n}}\n'
    approver = f'approvals {{\n required = 1\n approver "ops" {{ public_key = "{packs.public(packs.SECURITY)}" }}\n}}\n'
    path.write_text(path.read_text().replace("models         = []", 'models         = ["demo"]') + model + approver)
    policy = load(path)
    signed = desk.approve(packs.SECURITY, "ops", policy.digest)
    path.with_name(path.name + ".approvals").write_bytes(
        Approvals(policy_sha384=policy.digest.hex(), approvals=(signed,)).to_json())
    (folder / "evidence.json").write_bytes(_evidence(policy))
    packs._log(packs.Papers(folder, policy, claims._papers().measured), 12, 0)
    found = gather.members(Files(policy=path, evidence=(folder / "evidence.json",), log=folder / "audit.jsonl"))
    return found, Given(NOW, nonces=(packs.NONCE,), anchors=(held.read(folder / "held.txt"),),
                        policy_sha384=policy.digest)


def _evidence(policy: Loaded) -> bytes:
    made = Attestor(SimulatedProvider(host_data(policy.digest)), BoundFacts(
        policy.digest, packs.SELF_TEST, binding.Build(version="0.1.0"),
        audit_key_ed25519=packs.AUDIT.public_key().public_bytes_raw()))
    made.new_generation([binding.LoadedModel(name="demo", sha256=sha256(MODEL), sealed_header_sha256=None)])
    made.bind_tls_key(bytes(32))
    return made.attest(packs.NONCE).to_json()


def test_simulated_evidence_covers_nothing_of_the_hardware(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The case as it was tried: a policy that one person approved, and evidence that anybody can write. No control of
    the hardware is covered, in part or whole, and no sentence tells of it, or of several people."""
    case = Case(*_simulated(tmp_path_factory.mktemp("simulated")))
    findings = dict(table.judge(case))
    assert "not checked" == findings["evidence-verified"].outcome
    assert ("holds", "1 of 1 needed: ops") == (findings["policy-approved"].outcome, findings["policy-approved"].detail)
    told = _controls(_report(case, findings))
    count = 0
    for framework in OWN:
        for control in framework.controls:
            if any(name.startswith("evidence-") for name in control.claims):
                count += 1
                assert control.status(findings) in ("not covered", "failed"), control.id
            said = re.sub(r'<p class="soft">(?:Not shown here|Rests on).*?</p>|<blockquote>.*?</blockquote>', "",
                          told[framework.framework, control.id])
            assert not re.search(r"several people|hardware's|Genuine hardware", said), control.id
    assert count > 20
    _says_no_more(_report(case, findings), findings)


def test_streams_that_a_kill_cut_are_an_exception() -> None:
    """Two of the second boot of three: named by epoch. The controls stand, but for them, and each says so."""
    members, given = claims._genuine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "CUT", frozenset({1}))
        cut = claims._relogged(_request=claims._endless, BOOTS=(*packs.BOOTS, packs.BOOTS[1] + 60))(dict(members))
    case = Case(cut, given)
    findings = dict(table.judge(case))
    found, lossless = findings["log-requests"], findings["log-lossless"]
    assert ("holds", "holds") == (found.outcome, lossless.outcome)
    assert "but for 2 streams that ended with the boot, or ran when the log was copied: 2 in epoch 2" in found.detail
    assert "2 of 3 boots ended in order; but for epoch 2" in lossless.detail
    report, before = _report(case, findings), claims._whole()
    resting = [each for framework in OWN for each in framework.controls if "log-requests" in each.claims]
    assert len(resting) > 6
    for control in resting:
        if all(findings[name].outcome == "holds" for name in control.rests_on):
            assert "covered in part" == control.status(findings), control.id
            assert control.status(before).startswith("covered")
    _says_no_more(report, findings)
    assert len(resting) <= report.count("2 in epoch 2")


def _head(lines: list[bytes]) -> Anchor:
    """A checkpoint of a log's first records, which the judge held."""
    here = Checkpoint(origin(packs.LOG_ID), len(lines), proofs.root([leaf_hash(line[:-1]) for line in lines]))
    return held.anchor(Note(here.text, (note.sign(here.text, here.origin, packs.AUDIT),)).encode(), "mine")


def test_a_held_checkpoint_says_up_to_which_record(tmp_path: Path) -> None:
    """One of a few records covers these, and none of no record covers anything."""
    members, given = claims._genuine()
    case = Case(dict(members), given)
    found = claims._whole()["log-held"]
    assert re.match(rf"the first \d+ of {case.log.records} records: 0 checkpoints of the judge's own, 2 cosignatures",
                    found.detail), found.detail
    assert re.match(r"the first \d+ of \d+ records, by 2 cosignatures", claims._whole()["log-witnessed"].detail)
    lines = members[claims.LOG].splitlines(keepends=True)
    small = _head(lines[:7])
    own = Given(**{**vars(given), "anchors": (small,)})
    without = {name: content for name, content in members.items() if not name.startswith(("policy/", "log/held"))}
    detail = table.judge(Case(without, own))["log-held"].detail
    assert detail.startswith(f"the first 7 of {len(lines)} records: 1 checkpoint of the judge's own, 0 cosignatures")
    none = table.judge(Case(without, Given(**{**vars(given), "anchors": (_head([]),)})))["log-held"]
    assert ("not checked", True) == (none.outcome, none.detail.startswith("none of them covers a record"))


PLURAL = re.compile(r"(?<![\d.,:-])\b1 (?!of\b)[a-z]+s\b")


@pytest.mark.slow
def test_one_is_no_plural() -> None:
    """In no detail of a claim after any break, nor in the report."""
    words = {"is", "its", "was", "has", "alias"}
    for number in range(len(BREAKS)):
        for name, found in claims._broken(number).items():
            wrong = [each for each in PLURAL.findall(found.detail) if each.split()[1] not in words]
            assert [] == wrong, (name, found.detail)


def _counted(path: Path) -> list[str]:
    """The places in a module where a count, which is no constant, stands before a plural in a text."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        for value, text in zip(node.values, node.values[1:], strict=False) if isinstance(node, ast.JoinedStr) else ():
            if isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant) and not value.format_spec and (
                    word := re.match(r" (?:more )?([a-z]+s)\b(?!/)", str(text.value))) and not (
                        word[1] in SINGULAR or re.search(r"MAX_|nbytes|^_[A-Z]", ast.unparse(value))):
                found.append(f"{path.name}:{node.lineno}: {ast.unparse(value)}{word[0]}")
    return found


SINGULAR = {  # words behind a text, not a count
    "as", "is", "was", "has", "does", "knows", "runs", "says", "gives", "takes", "needs", "lacks", "bytes", "names",
    "signs", "allows", "begins", "ends", "holds", "its", "comes", "stands", "asks", "answers", "keeps", "fails",
    "shows"}


@pytest.mark.parametrize("room", ["auditor", "cli"])
def test_a_count_has_its_noun(room: str) -> None:
    """`quantity` writes both: no text of these rooms says how many with a plural that may be wrong."""
    modules = sorted((Path(controls.__file__).parents[2] / room).rglob("*.py"))
    assert [] == [place for path in modules for place in _counted(path)]
