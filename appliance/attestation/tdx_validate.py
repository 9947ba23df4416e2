"""Policy on TDX claims: whether an authentic quote is one that the deployment policy accepts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from appliance.attestation import tdx_abi
from appliance.attestation.findings import Finding, judged, one_of, same
from appliance.attestation.tdx_verify import TdxClaims
from appliance.policy.schema.platform import Evidence


@dataclass(frozen=True)
class TdxExpected:
    """What a quote must show beyond the policy's `evidence` block. None is not checked.

    Sizes in bytes: `report_data` 64, the rest 48. `rtmrs`: register number to the values that are accepted.
    """

    report_data: bytes | None = None
    mr_config_id: bytes | None = None
    mr_tds: Collection[bytes] | None = None
    rtmrs: Mapping[int, Collection[bytes]] = field(default_factory=dict)
    mr_owner: bytes | None = None
    mr_owner_config: bytes | None = None
    xfam: int | None = None


def _attributes(claims: TdxClaims, policy: Evidence) -> list[Finding]:
    """What the TD was launched with."""
    body = claims.quote.body
    attributes = body.td_attributes
    untrusted = attributes & tdx_abi.DEBUG_GROUP
    known = (tdx_abi.DEBUG_GROUP | tdx_abi.SEPT_VE_DISABLE | tdx_abi.MIGRATABLE | tdx_abi.PKS | tdx_abi.KEY_LOCKER
             | tdx_abi.PERFMON)
    migratable = bool(attributes & tdx_abi.MIGRATABLE)
    return [
        judged("debug", policy.debug or not untrusted,
               f"TUD attributes {untrusted:#04x}: the host may debug or profile the TD" if untrusted else ""),
        judged("sept-ve-disable", bool(attributes & tdx_abi.SEPT_VE_DISABLE),
               "" if attributes & tdx_abi.SEPT_VE_DISABLE else "the host may inject exceptions on memory access"),
        judged("migration", policy.migration or not (migratable or any(body.mr_service_td or b"")),
               "a migration TD may move the TD" if migratable else ""),
        judged("td-attributes", not attributes & ~known, f"bits that are not known: {attributes & ~known:#x}"
               if attributes & ~known else ""),
        judged("seam", not any(body.mr_signer_seam) and body.seam_attributes == 0,
               "the TDX module is not Intel's production module" if any(body.mr_signer_seam) else ""),
    ]


def _standing(claims: TdxClaims, policy: Evidence, at: datetime) -> list[Finding]:
    """What Intel says of the platform, and how old that is."""
    tcb, tdx = claims.tcb, policy.tdx
    open_advisories = [each for each in tcb.advisories if each not in tdx.accepted_advisories]
    smt = (Finding("smt", "not checked", "the PCK does not tell") if tcb.smt is None else
           judged("smt", policy.smt or not tcb.smt, f"SMT is {'on' if tcb.smt else 'off'} on the host"))
    age, limit = at - tcb.oldest, timedelta(milliseconds=policy.max_collateral_age_ms)
    return [
        smt,
        judged("tcb-status", tcb.status in tdx.tcb_status and tcb.status != "Revoked",
               f"{tcb.status}, allowed: {', '.join(tdx.tcb_status)}"),
        judged("advisories", not open_advisories,
               f"{', '.join(open_advisories)} not accepted" if open_advisories else ""),
        judged("evaluation-number", tcb.evaluation_number >= tdx.min_evaluation_number,
               f"{tcb.evaluation_number}, at least {tdx.min_evaluation_number}"),
        judged("collateral-age", age <= limit, f"{age.days} days, at most {limit.days}"),
    ]


def validate(claims: TdxClaims, expected: TdxExpected, policy: Evidence, *, at: datetime) -> tuple[Finding, ...]:
    """Judge every rule of `policy` and every expectation on authentic claims."""
    body = claims.quote.body
    xfam = None if expected.xfam is None else expected.xfam.to_bytes(8, "little")
    return (
        one_of("mrtd", body.mr_td, expected.mr_tds),
        *(one_of(f"rtmr{number}", body.rtmr[number], expected.rtmrs.get(number)) for number in range(4)),
        same("report-data", body.report_data, expected.report_data),
        same("mrconfigid", body.mr_config_id, expected.mr_config_id),
        same("mrowner", body.mr_owner, expected.mr_owner),
        same("mrownerconfig", body.mr_owner_config, expected.mr_owner_config),
        same("xfam", body.xfam.to_bytes(8, "little"), xfam),
        *_attributes(claims, policy), *_standing(claims, policy, at),
    )
