"""Rule on judged machines by requirements and a time: which fail, why, and what mends them; and
when the others will.

No signature is checked again. The rules are those of `verify`, without what an image, a nonce or a
key has to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from appliance.attestation.findings import Finding
from appliance.attestation.snp.judging import bulletins
from appliance.attestation.snp.judging import validate as snp_rules
from appliance.attestation.snp.judging.validate import SnpExpectations
from appliance.attestation.snp.judging.verify import SnpClaims
from appliance.attestation.tdx import abi
from appliance.attestation.tdx.judging import validate as tdx_rules
from appliance.attestation.tdx.judging.pck import Pck
from appliance.attestation.tdx.judging.validate import TdxExpectations
from appliance.attestation.tdx.judging.verify import TdxClaims, TdxTcb
from appliance.fleet.node import Machine, TdxNode, TdxStanding
from appliance.fleet.whatif import Update
from appliance.policy.bulletins.shown import module_lacking
from appliance.policy.schema.platform import Requirements

FETCHED = ("revocation", "collateral-age", "collateral")  # rules that a new list or document meets
_BELOW = re.compile(r"\b([a-z]++) ([0-9]++) is below ([0-9]+)")
_NO_PCK = Pck(b"", b"", (), 0, None, b"", None)  # the rules read the quote and Intel's judgement


@dataclass(frozen=True)
class Fault:
    """A rule that a node fails. `cure`: what would mend it, as far as evidence tells."""

    rule: str
    detail: str
    cure: str = ""


@dataclass(frozen=True)
class Ruling:
    """A node's faults, none if it passes. `ends`: when it will fail if nothing is done, by cause,
    the first first."""

    node: Machine
    faults: tuple[Fault, ...]
    ends: tuple[tuple[datetime, str], ...] = ()


def rule(nodes: Iterable[Machine], wanted: Requirements, *, at: datetime, update: Update = "standard",
         renewed: bool = False) -> list[Ruling]:
    """Rule on each node `at` a time. `update`: by Intel's documents of the lowest evaluation number
    that is in force, or of the highest. `renewed`: as if lists and documents were fetched anew."""
    return [_rule(each, wanted, at, update, renewed) for each in nodes]


def _rule(node: Machine, wanted: Requirements, at: datetime, update: Update, renewed: bool) -> Ruling:
    hardware = node.hardware
    if isinstance(hardware, SnpClaims):
        faults, ends = _snp(hardware, wanted, at), list(_snp_ends(hardware))
    elif hardware is not None and hardware.standings:
        faults, ends = _tdx(hardware, wanted, at, update)
    else:
        unruled = Fault("platform", f"{node.kind}: rules are for SEV-SNP and TDX")
        return Ruling(node, (Fault(node.code, node.reason, node.hint) if node.code else unruled,))
    kept = tuple(each for each in faults if not (renewed and each.rule in FETCHED))
    return Ruling(node, kept, tuple(sorted(each for each in ends if each[0] > at)))


def _ended(what: str, until: datetime, at: datetime) -> Iterator[Fault]:
    if at > until:
        yield Fault("certificates", f"{what} ended on {until:%Y-%m-%d}", "fetch the certificate of the chip's present "
                    "TCB again: appliance collateral fetch")


def _due(told: Iterable[str]) -> list[Fault]:
    """Faults by the bulletins that a feed enforces by then."""
    return [Fault("bulletin", each, "newer firmware from the machine's maker, as the bulletin has it") for each in told]


def _snp(claims: SnpClaims, wanted: Requirements, at: datetime) -> list[Fault]:
    findings = snp_rules.validate(claims, SnpExpectations(), wanted, at=at)
    return [*_ended("a certificate of its chain", claims.not_after, at), *_due(bulletins.lacking(claims, at.date())),
            *(Fault(each.rule, each.detail, _snp_cure(each, claims)) for each in findings if each.outcome == "fails")]


def _snp_cure(finding: Finding, claims: SnpClaims) -> str:
    """The cure of a failed rule on SEV-SNP; empty where evidence does not tell."""
    if finding.rule.startswith("tcb-"):
        parts = ", ".join(f"{name} {least} or later" for name, _, least in _BELOW.findall(finding.detail))
        then = {"tcb-launch": "; then start the guest again", "tcb-committed": "; then commit it"}
        return f"firmware for {claims.product} with {parts}{then.get(finding.rule, '')}" if parts else ""
    return {"revocation": "fetch AMD's list again: appliance collateral fetch",
            "launch-mitigations": "newer firmware, and then start the guest again",
            "current-mitigations": "newer firmware, or the host's part of the mitigation",
            "product": "a machine of another product line", "committed-is-current": "commit the firmware that runs",
            "alias-check": "a restart of the machine with firmware that checks memory for aliases",
            "smt": "SMT off in the machine's setup, or a guest policy that forbids it"}.get(finding.rule, "")


def _snp_ends(claims: SnpClaims) -> Iterator[tuple[datetime, str]]:
    yield claims.not_after, "a certificate of its chain ends"
    if claims.revocation is not None:
        yield claims.revocation.next_update, "AMD's list of revoked certificates ends"


def _chosen(standings: Sequence[TdxStanding], at: datetime, update: Update) -> TdxStanding:
    """The standing that counts: of those in force, by the lowest or highest number; where none is,
    the last."""
    live = [each for each in standings if each.tcb is None or _in_force(each.tcb, at)] or standings[-1:]
    return live[0] if update == "standard" else live[-1]


def _in_force(tcb: TdxTcb, at: datetime) -> bool:
    return tcb.issued <= at <= tcb.next_update


def _tdx(node: TdxNode, wanted: Requirements, at: datetime,
         update: Update) -> tuple[list[Fault], list[tuple[datetime, str]]]:
    found = _chosen(node.standings, at, update)
    ends = [(node.not_after, "a certificate of its chain ends")]
    faults = list(_ended("the PCK's chain", node.not_after, at))
    tcb = found.tcb
    if tcb is None:
        return [*faults, Fault("tcb-level", f"evaluation number {found.number}: {found.refused}",
                               "newer firmware from the machine's maker")], ends
    if not _in_force(tcb, at):
        faults.append(Fault("collateral", f"Intel's documents are valid until {tcb.next_update:%Y-%m-%d}",
                            "fetch them again: appliance collateral fetch"))
    claims = TdxClaims(abi.parse(node.quote), tcb, (), _NO_PCK)
    findings = tdx_rules.validate(claims, TdxExpectations(), wanted, at=at)
    faults += [Fault(each.rule, f"evaluation number {tcb.evaluation_number}: {each.detail}"
                     if each.rule in ("tcb-status", "advisories") else each.detail, _tdx_cure(each, tcb))
               for each in findings if each.outcome == "fails"]
    faults += _due(module_lacking(claims.quote.body.tee_tcb_svn, at.date()))
    ends += [(tcb.next_update, "Intel's documents end")]
    if wanted.tdx.tcb_grace_ms is not None and tcb.since is not None:
        ends += [(tcb.since + timedelta(milliseconds=wanted.tdx.tcb_grace_ms), "tcb_grace ends")]
    return faults, ends


def _tdx_cure(finding: Finding, tcb: TdxTcb) -> str:
    if finding.rule in ("tcb-status", "advisories"):
        return f"newer firmware from the machine's maker: {'; '.join(tcb.wanting)}" if tcb.wanting else ""
    return {"smt": "SMT off in the machine's setup", "collateral-age": "fetch Intel's documents again: appliance "
            "collateral fetch", "evaluation-number": "fetch Intel's documents of a later number"}.get(finding.rule, "")
