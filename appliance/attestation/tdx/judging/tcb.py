"""How Intel judges the TCB of a platform, of its TDX module and of its quoting enclave.

Source: Intel, "API for Intel Software Guard Extensions Provisioning Certification Service" version
4 (TCB information version 3, QE identity version 2). Section 4.1.2.4.17 of Intel's Quote
Verification Library says which level is matched, and how statuses converge. The documents come with
their signatures checked: this module reads no certificate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from appliance.attestation.tdx.abi import QeReport, TdReport, TdxQuote
from appliance.attestation.tdx.judging.levels import (
    BOTH,
    CONFIGURATION,
    HARDENING,
    OUT_OF_DATE,
    OUT_OF_DATE_CONFIGURATION,
    REVOKED,
    UP_TO_DATE,
    Level,
    platform_levels,
    svn_levels,
)
from appliance.attestation.tdx.judging.pck import COMPONENTS, Pck
from appliance.errors import (
    ForgedEvidenceError,
    MalformedEvidenceError,
    RejectedEvidenceError,
    UnsupportedEvidenceError,
)

INFO_VERSION, QE_VERSION = 3, 2  # of the documents, in version 4 of the API
RELAUNCH, RELAUNCH_CONFIGURATION = "TDRelaunchAdvised", "TDRelaunchAdvisedConfigurationNeeded"
BEHIND = (OUT_OF_DATE, OUT_OF_DATE_CONFIGURATION, REVOKED)


@dataclass(frozen=True)
class Standing:
    """The worst of platform, TDX module and QE. `since` and `overdue`: the oldest date of the
    levels that are out of date, and their advisories. `wanting`: what keeps the platform from the
    lowest level that is not out of date, one security version each."""

    status: str
    advisories: tuple[str, ...]
    since: datetime | None
    overdue: tuple[str, ...]
    wanting: tuple[str, ...] = ()


def _rejected(text: str) -> RejectedEvidenceError:
    return RejectedEvidenceError(f"TDX quote: {text}: at no level that Intel lists", code="tdx-tcb-level",
                                 hint="Intel judges nothing that old: the platform's owner has to update it")


def _first(svn: bytes) -> int:
    """The first TDX component that levels judge: those before it are the module's, which has levels
    of its own where its version is not 0."""
    return 2 if svn[1] else 0


def _behind(pck: Pck, svn: bytes, level: Level) -> list[str]:
    """Each security version that is below a level's, by name; SGX components are numbered from 1,
    as in the PCK."""
    sgx = [(f"SGX component {n + 1}", pck.components[n], level.components[n], level.types[n])
           for n in range(COMPONENTS)]
    tdx = [(f"TDX component {n + 1}", svn[n], level.tdx[n], level.types[COMPONENTS + n])
           for n in range(_first(svn), COMPONENTS)]
    return [f"{name}{f' ({kind})' if kind else ''} is {found}, at least {least}"
            for name, found, least, kind in (*sgx, ("PCE", pck.pce_svn, level.pce_svn, ""), *tdx) if found < least]


def _match(pck: Pck, svn: bytes, levels: Sequence[Level]) -> Level:
    """The newest level that a platform reaches; else what keeps it from the one that it comes
    closest to."""
    closest: list[str] = []
    for level in levels:
        behind = _behind(pck, svn, level)
        if not behind:
            return level
        if not closest or len(behind) < len(closest):
            closest = behind
    raise _rejected("; ".join(closest) or "the platform")


def _reached(what: str, found: int, levels: Sequence[Level]) -> Level:
    for level in levels:
        if found >= level.svn:
            return level
    raise _rejected(f"ISVSVN of the {what} is {found}, at least {levels[-1].svn if levels else 'any'}")


def _module(info: Mapping[str, Any], body: TdReport, svn: bytes) -> Level | None:
    """The level of the TDX module; None for the first ones, of version 0, which the platform's
    levels cover."""
    module, level = info["tdxModule"], None
    if svn[1]:
        name = f"TDX_{svn[1]:02X}"
        known = {str(each["id"]).upper(): each for each in info.get("tdxModuleIdentities", [])}
        if name not in known:
            raise _rejected(f"TDX module {name}")
        module = known[name]
        level = _reached(f"TDX module {name}", svn[0], svn_levels(module["tcbLevels"]))
    mask, wanted = bytes.fromhex(module["attributesMask"]), bytes.fromhex(module["attributes"])
    found = body.seam_attributes.to_bytes(8, "little")
    if body.mr_signer_seam != bytes.fromhex(module["mrsigner"]) or not _masked(found, mask, wanted) or any(
            byte & ~bits & 0xFF for byte, bits in zip(found, mask, strict=True)):
        raise RejectedEvidenceError("TDX quote: its TDX module is not Intel's production module", code="tdx-module")
    return level


def _masked(found: bytes, mask: bytes, wanted: bytes) -> bool:
    """Whether `found` is `wanted` in the bits of a mask; all of one length. Raises ValueError if
    they are not."""
    return all(a & m == w & m for a, m, w in zip(found, mask, wanted, strict=True))


def _converged(status: str, other: str) -> str:
    """A platform's status beside that of its TDX module or QE, which are up to date, out of date or
    revoked."""
    if REVOKED in (status, other):
        return REVOKED
    if other == UP_TO_DATE:
        return status
    return OUT_OF_DATE_CONFIGURATION if status in (CONFIGURATION, BOTH, OUT_OF_DATE_CONFIGURATION) else OUT_OF_DATE


def _relaunched(status: str, pck: Pck, body: TdReport, info: Mapping[str, Any], levels: Sequence[Level]) -> str:
    """The status of a TD that a newer TDX module runs than the one that launched it (TDREPORT 1.5).
    """
    if body.tee_tcb_svn2 is None:
        return status
    level, module = _match(pck, body.tee_tcb_svn2, levels), _module(info, body, body.tee_tcb_svn2)
    now = _converged(level.status, UP_TO_DATE if module is None else module.status)
    if now == REVOKED:
        return REVOKED
    if status not in (OUT_OF_DATE, OUT_OF_DATE_CONFIGURATION) or now in BEHIND:
        return status
    configured = status == OUT_OF_DATE and now in (UP_TO_DATE, HARDENING)
    return RELAUNCH if configured else RELAUNCH_CONFIGURATION


def _quoting_enclave(report: QeReport, identity: Mapping[str, Any]) -> Level:
    """The level of the quoting enclave, after it is shown to be Intel's (SGX REPORT: MISCSELECT at
    16, ATTRIBUTES at 48, of which bit 1 is DEBUG)."""
    miscselect, attributes = report.raw[16:20], report.raw[48:64]
    if report.mr_signer != bytes.fromhex(identity["mrsigner"]) or report.isv_prod_id != identity["isvprodid"]:
        raise ForgedEvidenceError("TDX quote: the quoting enclave is not Intel's", code="tdx-collateral-invalid")
    pairs = (("miscselect", miscselect), ("attributes", attributes))
    if attributes[0] & 2 or not all(
            _masked(found, bytes.fromhex(identity[f"{name}Mask"]), bytes.fromhex(identity[name]))
            for name, found in pairs):
        raise ForgedEvidenceError("TDX quote: the quoting enclave runs in a mode that Intel does not allow",
                                  code="tdx-collateral-invalid")
    return _reached("quoting enclave", report.isv_svn, svn_levels(identity["tcbLevels"]))


def _judge(quote: TdxQuote, pck: Pck, info: Mapping[str, Any], identity: Mapping[str, Any]) -> Standing:
    if (info["id"], identity["id"]) != ("TDX", "TD_QE"):
        raise ValueError(info["id"])
    for what, document, known in (("TCB information", info, INFO_VERSION), ("QE identity", identity, QE_VERSION)):
        if document["version"] != known:
            raise UnsupportedEvidenceError(
                f"TDX collateral: {what} of version {str(document['version'])[:20]}, and only {known} is known",
                code="tdx-collateral-version", hint=f"Intel's service gives version {known} by its API of version 4")
    enclave, levels = _quoting_enclave(quote.qe, identity), platform_levels(info)
    platform, module = _match(pck, quote.body.tee_tcb_svn, levels), _module(info, quote.body, quote.body.tee_tcb_svn)
    status = _converged(platform.status, UP_TO_DATE if module is None else module.status)
    relaunched = _relaunched(status, pck, quote.body, info, levels)
    if enclave.status == UP_TO_DATE or relaunched == REVOKED:
        status = relaunched
    status = _converged(status, enclave.status)
    judged = [each for each in (platform, module, enclave) if each is not None]
    behind = [each for each in judged if each.status in BEHIND]
    return Standing(status, _advisories(judged), min((each.date for each in behind), default=None),
                    _advisories(behind), _wanting(quote, pck, info, identity) if behind else ())


def _wanting(quote: TdxQuote, pck: Pck, info: Mapping[str, Any], identity: Mapping[str, Any]) -> tuple[str, ...]:
    """The parts that have to rise, until a platform is no longer out of date."""
    svn = quote.body.tee_tcb_svn
    good = [each for each in platform_levels(info) if each.status not in BEHIND]
    found = min((_behind(pck, svn, each) for each in good), key=len, default=[])
    modules = {str(each["id"]).upper(): each["tcbLevels"] for each in info.get("tdxModuleIdentities", [])}
    for what, at, levels in ((f"TDX module {svn[1]:02X}", svn[0], modules.get(f"TDX_{svn[1]:02X}", ())),
                             ("quoting enclave", quote.qe.isv_svn, identity["tcbLevels"])):
        least = min((each.svn for each in svn_levels(levels) if each.status not in BEHIND), default=0)
        found += [f"{what} is {at}, at least {least}"] if at < least else []
    return tuple(found)


def _advisories(levels: Sequence[Level]) -> tuple[str, ...]:
    return tuple(sorted({name for each in levels for name in each.advisories}))


def judge(quote: TdxQuote, pck: Pck, info: Mapping[str, Any], identity: Mapping[str, Any]) -> Standing:
    """How the platform of a quote stands by TCB information and QE identity, whose signatures hold.

    Raises RejectedEvidenceError, with what is too old, for a platform below every level;
    ForgedEvidenceError where the quoting enclave is not Intel's; MalformedEvidenceError for a
    document that is not in Intel's form.
    """
    try:
        return _judge(quote, pck, info, identity)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise MalformedEvidenceError("TDX collateral: TCB information or QE identity is not in Intel's form") from None
