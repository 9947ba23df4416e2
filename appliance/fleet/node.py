"""A machine of a fleet as its evidence shows it, and how that is kept: one line of JSON each.

The claims were authentic when they were judged. The file is a memory of one's own, and no evidence:
anybody who can write it can write anything into it.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from appliance.attestation.snp.judging import abi as snp_abi
from appliance.attestation.snp.judging.abi import SnpTcb
from appliance.attestation.snp.judging.verify import SnpClaims
from appliance.attestation.snp.layout import REPORT_BYTES
from appliance.attestation.tdx.judging.verify import TdxTcb
from appliance.attestation.x509.judging.revocation import Revocation
from appliance.errors import MalformedEvidenceError

FORMAT = "appliance/fleet-judged/1"
_HALF = 72  # bytes of r, and of s, in a report


@dataclass(frozen=True)
class TdxStanding:
    """Intel's word on a platform, by the documents of one evaluation number. Without `tcb`,
    `refused` says why there is none."""

    number: int
    tcb: TdxTcb | None
    refused: str = ""


@dataclass(frozen=True)
class TdxNode:
    """A TD: its quote, the end of its certificates, and a standing for each evaluation number at
    hand, rising."""

    quote: bytes
    not_after: datetime
    standings: tuple[TdxStanding, ...]


@dataclass(frozen=True)
class Machine:
    """One file of evidence. `verdict`: genuine, not genuine, cannot tell; of the latter two,
    `code`, `reason` and `hint` say why. `hardware`: authentic claims, if there are any. `key`:
    SHA-256 over the file and its collateral."""

    file: str
    key: str
    kind: str
    verdict: str
    code: str = ""
    reason: str = ""
    hint: str = ""
    hardware: SnpClaims | TdxNode | None = None

    def line(self) -> str:
        """The line of JSON that `read` takes."""
        own: dict[str, Any] = {"file": self.file, "key": self.key, "kind": self.kind, "verdict": self.verdict,
                               "code": self.code, "reason": self.reason, "hint": self.hint}
        if isinstance(self.hardware, SnpClaims):
            own["snp"] = _snp(self.hardware)
        elif self.hardware is not None:
            own["tdx"] = _tdx(self.hardware)
        return json.dumps(own, separators=(",", ":"))


def _snp(claims: SnpClaims) -> dict[str, Any]:
    report, lived = claims.report, claims.revocation
    signature = b"".join(each.to_bytes(_HALF, "little") for each in report.signature)
    return {"report": _text((report.signed + signature).ljust(REPORT_BYTES, b"\0")),
            "product": claims.product, "signing_key": claims.signing_key, "csp_id": claims.csp_id,
            "chain": claims.chain, "not_after": claims.not_after.isoformat(),
            "revocation": None if lived is None else [lived.this_update.isoformat(), lived.next_update.isoformat()]}


def _tdx(node: TdxNode) -> dict[str, Any]:
    return {"quote": _text(node.quote), "not_after": node.not_after.isoformat(), "standings": [
        {"number": each.number, "refused": each.refused, "tcb": None if each.tcb is None else _tcb(each.tcb)}
        for each in node.standings]}


def _tcb(tcb: TdxTcb) -> dict[str, Any]:
    return {"status": tcb.status, "advisories": tcb.advisories, "evaluation_number": tcb.evaluation_number,
            "fmspc": tcb.fmspc, "smt": tcb.smt, "issued": tcb.issued.isoformat(),
            "next_update": tcb.next_update.isoformat(), "oldest": tcb.oldest.isoformat(),
            "since": None if tcb.since is None else tcb.since.isoformat(), "overdue": tcb.overdue,
            "lives": [[each.isoformat() for each in life] for life in tcb.lives], "wanting": tcb.wanting}


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def read(line: str) -> Machine:
    """The node of a line. Raises MalformedEvidenceError for another line."""
    try:
        own = json.loads(line)
        snp, tdx = own.pop("snp", None), own.pop("tdx", None)
        hardware = _snp_of(snp) if snp is not None else _tdx_of(tdx) if tdx is not None else None
        return Machine(**own, hardware=hardware)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, MalformedEvidenceError):
        raise MalformedEvidenceError("fleet: a line of the judged nodes is not in its form", code="fleet-store",
                                     hint="remove the file, and judge again") from None


def _snp_of(own: dict[str, Any]) -> SnpClaims:
    report, product = snp_abi.parse(base64.b64decode(own["report"], validate=True)), own["product"]
    lived = own["revocation"]
    return SnpClaims(
        report, product, own["signing_key"], own["csp_id"], not any(report.chip_id),
        reported_tcb=SnpTcb.decode(report.reported_tcb, product),
        current_tcb=SnpTcb.decode(report.current_tcb, product),
        committed_tcb=SnpTcb.decode(report.committed_tcb, product),
        launch_tcb=SnpTcb.decode(report.launch_tcb, product), chain=tuple(own["chain"]),
        not_after=datetime.fromisoformat(own["not_after"]),
        revocation=None if lived is None else Revocation(*map(datetime.fromisoformat, lived)))


def _tdx_of(own: dict[str, Any]) -> TdxNode:
    return TdxNode(base64.b64decode(own["quote"], validate=True), datetime.fromisoformat(own["not_after"]), tuple(
        TdxStanding(each["number"], None if each["tcb"] is None else _tcb_of(each["tcb"]), each["refused"])
        for each in own["standings"]))


def _tcb_of(own: dict[str, Any]) -> TdxTcb:
    dates = {name: datetime.fromisoformat(own[name]) for name in ("issued", "next_update", "oldest")}
    since = None if own["since"] is None else datetime.fromisoformat(own["since"])
    lives = tuple((datetime.fromisoformat(first), datetime.fromisoformat(last)) for first, last in own["lives"])
    return TdxTcb(own["status"], tuple(own["advisories"]), own["evaluation_number"], own["fmspc"], own["smt"], **dates,
                  since=since, overdue=tuple(own["overdue"]), lives=lives, wanting=tuple(own["wanting"]))
