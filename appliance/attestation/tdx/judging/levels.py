"""The TCB levels of Intel's signed documents: security versions, and what Intel says of a platform
that has them.

Source: Intel, "API for Intel Software Guard Extensions Provisioning Certification Service" version
4 (TCB information version 3, QE identity version 2). Readers raise ValueError, LookupError,
TypeError or AttributeError for another form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from appliance.attestation.tdx.judging.pck import COMPONENTS

UP_TO_DATE, OUT_OF_DATE, REVOKED = "UpToDate", "OutOfDate", "Revoked"
HARDENING, CONFIGURATION, BOTH = "SWHardeningNeeded", "ConfigurationNeeded", "ConfigurationAndSWHardeningNeeded"
OUT_OF_DATE_CONFIGURATION = "OutOfDateConfigurationNeeded"
STATUSES = (UP_TO_DATE, HARDENING, CONFIGURATION, BOTH, OUT_OF_DATE, OUT_OF_DATE_CONFIGURATION, REVOKED)


@dataclass(frozen=True)
class Level:
    """Intel's statement about one level of security versions. `date`: advisories published until
    then are dealt with."""

    status: str
    date: datetime
    advisories: tuple[str, ...]
    components: tuple[int, ...] = ()    # SGX; of the platform's levels only
    pce_svn: int = 0
    tdx: tuple[int, ...] = ()
    svn: int = 0                        # of a module's or enclave's levels only
    types: tuple[str, ...] = ()         # what the SGX components are, then the TDX components


def _number(value: object, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(value)
    return value


def _level(raw: Mapping[str, Any], **fields: Any) -> Level:
    status, advisories = raw["tcbStatus"], raw.get("advisoryIDs", [])
    if status not in STATUSES or not isinstance(advisories, list) or not all(isinstance(a, str) for a in advisories):
        raise ValueError(status)
    date = datetime.fromisoformat(raw["tcbDate"])
    if date.tzinfo is None:
        raise ValueError(raw["tcbDate"])
    return Level(status, date, tuple(advisories), **fields)


def _platform_level(raw: Mapping[str, Any]) -> Level:
    tcb = raw["tcb"]
    sgx, tdx = tcb["sgxtcbcomponents"], tcb["tdxtcbcomponents"]
    if len(sgx) != COMPONENTS or len(tdx) != COMPONENTS:
        raise ValueError(tcb)
    svns = tuple(_number(each["svn"], 255) for each in (*sgx, *tdx))
    types = tuple(str(each.get("type", "")) for each in (*sgx, *tdx))
    return _level(raw, components=svns[:COMPONENTS], tdx=svns[COMPONENTS:], types=types,
                  pce_svn=_number(tcb["pcesvn"], 65535))


def platform_levels(info: Mapping[str, Any]) -> list[Level]:
    """The platform's levels, the newest first, whatever order the document has."""
    return sorted(map(_platform_level, info["tcbLevels"]), reverse=True,
                  key=lambda level: (level.components, level.pce_svn, level.tdx))


def svn_levels(raw: Sequence[Mapping[str, Any]]) -> list[Level]:
    """The levels of a module or enclave, the newest first."""
    if any(each["tcbStatus"] not in (UP_TO_DATE, OUT_OF_DATE, REVOKED) for each in raw):
        raise ValueError(raw)
    return sorted((_level(each, svn=_number(each["tcb"]["isvsvn"], 65535)) for each in raw),
                  key=lambda level: level.svn, reverse=True)
