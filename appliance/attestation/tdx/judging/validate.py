"""Policy on TDX claims: whether an authentic quote is one that the deployment policy accepts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from appliance.attestation.findings import Finding, judged, one_of, same
from appliance.attestation.google import rule
from appliance.attestation.measured.second import TdxRow
from appliance.attestation.tdx import abi
from appliance.attestation.tdx.abi import TdReport
from appliance.attestation.tdx.judging.levels import CONFIGURATION, OUT_OF_DATE, OUT_OF_DATE_CONFIGURATION, UP_TO_DATE
from appliance.attestation.tdx.judging.verify import TdxClaims, TdxTcb
from appliance.policy.bulletins.shown import module_lacking
from appliance.policy.schema.platform import Requirements, Tdx

_MEANWHILE = {OUT_OF_DATE: UP_TO_DATE, OUT_OF_DATE_CONFIGURATION: CONFIGURATION}  # in the time of grace


@dataclass(frozen=True)
class TdxExpectations:
    """The expectations of a quote beyond the policy's `evidence` block. None is not checked.

    Sizes in bytes: `report_data` 64, the rest 48. `rtmrs`: register number to the values that are
    accepted. `rows`, if any, stand for `rtmrs`: the quote must show one of them whole.
    """

    report_data: bytes | None = None
    mr_config_id: bytes | None = None
    mr_tds: Collection[bytes] | None = None
    rtmrs: Mapping[int, Collection[bytes]] = field(default_factory=dict)
    rows: tuple[TdxRow, ...] | None = None
    mr_owner: bytes | None = None
    mr_owner_config: bytes | None = None
    xfam: int | None = None


def _registers(body: TdReport, expected: TdxExpectations) -> list[Finding]:
    """Judge the RTMRs. With rows, only those count that cover the image and have the quote's MRTD,
    and of these one must have all registers."""
    if expected.rows is None:
        return [one_of(f"rtmr{number}", body.rtmr[number], expected.rtmrs.get(number)) for number in range(4)]
    left = [row for row in expected.rows if row.image and row.mrtd == body.mr_td.hex()]
    found = []
    for number, value in enumerate(body.rtmr):
        wanted = {row.rtmr[number] for row in left}
        known = None if not left or None in wanted else [bytes.fromhex(each or "") for each in wanted]
        found.append(one_of(f"rtmr{number}", value, known))
        left = [row for row in left if row.rtmr[number] in (None, value.hex())] or left
    return found


def _attributes(claims: TdxClaims, policy: Requirements) -> list[Finding]:
    """Judge how the TD was launched."""
    body = claims.quote.body
    attributes = body.td_attributes
    untrusted = attributes & abi.DEBUG_GROUP
    known = (abi.DEBUG_GROUP | abi.SEPT_VE_DISABLE | abi.MIGRATABLE | abi.PKS | abi.KEY_LOCKER
             | abi.PERFMON)
    migratable = bool(attributes & abi.MIGRATABLE)
    return [
        judged("debug", policy.debug or not untrusted,
               f"TUD attributes {untrusted:#04x}: the host may debug or profile the TD" if untrusted else ""),
        judged("sept-ve-disable", bool(attributes & abi.SEPT_VE_DISABLE),
               "" if attributes & abi.SEPT_VE_DISABLE else "the host may inject exceptions on memory access"),
        judged("migration", policy.migration or not migratable,
               "a migration TD may move the TD" if migratable else ""),
        judged("td-attributes", not attributes & ~known, f"bits that are not known: {attributes & ~known:#x}"
               if attributes & ~known else ""),
        _service_td(body, policy.tdx),
        judged("seam", not any(body.mr_signer_seam) and body.seam_attributes == 0,
               "the TDX module is not Intel's production module" if any(body.mr_signer_seam) else ""),
    ]


def _service_td(body: TdReport, tdx: Tdx) -> Finding:
    """The service TD that a TD is bound to: it may see or move the TD, so that a policy has to name
    it."""
    bound = body.mr_service_td or b""
    if not any(bound):
        return Finding("service-td", "holds")
    return judged("service-td", bound.hex() in tdx.service_tds,
                  f"bound to the service TD {bound.hex()}, accepted: {', '.join(tdx.service_tds) or 'none'}")


def _module(body: TdReport, tdx: Tdx) -> list[Finding]:
    """The TDX module, by its measurement and by security versions, of which a TD 1.5 report has
    those of now too."""
    floor = bytes.fromhex(tdx.min_tee_tcb_svn or "")
    low = [f"{name} component {number} is {found}, at least {least}"
           for name, svn in (("TEE_TCB_SVN", body.tee_tcb_svn), ("TEE_TCB_SVN2", body.tee_tcb_svn2))
           for number, (found, least) in enumerate(zip(svn or b"", floor, strict=False), start=1) if found < least]
    return [
        one_of("mrseam", body.mr_seam, [bytes.fromhex(each) for each in tdx.mr_seam] or None),
        judged("tee-tcb-svn", not low, "; ".join(low)) if floor else Finding("tee-tcb-svn", "not checked"),
    ]


def _bulletins(body: TdReport) -> Finding:
    """Bulletins that ask for another TDX module. It never fails, since the policy decides."""
    told = tuple(module_lacking(body.tee_tcb_svn))
    return Finding("bulletins", "not checked" if told else "holds", "; ".join(told))


def _xfam(body: TdReport, tdx: Tdx, expected: int | None) -> Finding:
    """The one value that is expected, and the bits that the policy allows."""
    if tdx.xfam is not None and (more := body.xfam & ~int(tdx.xfam, 16)):
        return Finding("xfam", "fails", f"features that the policy does not allow: {more:#018x}")
    if tdx.xfam is not None and expected is None:
        return Finding("xfam", "holds")
    return same("xfam", body.xfam.to_bytes(8, "little"), None if expected is None else expected.to_bytes(8, "little"))


def _in_grace(tcb: TdxTcb, tdx: Tdx, at: datetime) -> bool:
    """Whether what is out of date was not so long ago, by the date of its level: what was published
    since is open."""
    return (tdx.tcb_grace_ms is not None and tcb.since is not None and tcb.status in _MEANWHILE
            and at - tcb.since <= timedelta(milliseconds=tdx.tcb_grace_ms))


def _tcb_status(tcb: TdxTcb, tdx: Tdx, grace: bool) -> list[Finding]:
    """Status and advisories; in the time of grace, those of a platform that is not out of date yet.
    """
    status = _MEANWHILE[tcb.status] if grace else tcb.status
    excused = (*tdx.accepted_advisories, *(tcb.overdue if grace else ()))
    open_advisories = [each for each in tcb.advisories if each not in excused]
    said = f", within tcb_grace: out of date since {tcb.since:%Y-%m-%d}" if grace else ""
    return [
        judged("tcb-status", status in tdx.tcb_status or tcb.status in tdx.tcb_status,
               f"{tcb.status}{said}, allowed: {', '.join(tdx.tcb_status)}"),
        judged("advisories", not open_advisories,
               f"{', '.join(open_advisories)} not accepted" if open_advisories else ""),
    ]


def _standing(claims: TdxClaims, policy: Requirements, at: datetime) -> list[Finding]:
    """Judge what Intel says of the platform, and how old that is."""
    tcb, tdx = claims.tcb, policy.tdx
    smt = (Finding("smt", "not checked", "the PCK does not tell") if tcb.smt is None else
           judged("smt", policy.smt or not tcb.smt, f"SMT is {'on' if tcb.smt else 'off'} on the host"))
    age, limit = at - tcb.oldest, timedelta(milliseconds=policy.max_collateral_age_ms)
    return [
        smt,
        *_tcb_status(tcb, tdx, _in_grace(tcb, tdx, at)),
        judged("evaluation-number", tcb.evaluation_number >= tdx.min_evaluation_number,
               f"{tcb.evaluation_number}, at least {tdx.min_evaluation_number}"),
        judged("collateral-age", age <= limit, f"{age.days} days, at most {limit.days}"),
    ]


def validate(claims: TdxClaims, expected: TdxExpectations, policy: Requirements, *,
             at: datetime) -> tuple[Finding, ...]:
    """Judge every rule of `policy` and every expectation on authentic claims."""
    body = claims.quote.body
    return (
        one_of("mrtd", body.mr_td, expected.mr_tds),
        *_registers(body, expected),
        rule.judge([row for row in expected.rows or () if row.mrtd == body.mr_td.hex()], policy.gce),
        same("report-data", body.report_data, expected.report_data),
        same("mrconfigid", body.mr_config_id, expected.mr_config_id),
        same("mrowner", body.mr_owner, expected.mr_owner),
        same("mrownerconfig", body.mr_owner_config, expected.mr_owner_config),
        _xfam(body, policy.tdx, expected.xfam), *_module(body, policy.tdx),
        *_attributes(claims, policy), *_standing(claims, policy, at), _bulletins(body),
    )
