"""Where a machine's report shows less than bulletins on its line ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date

from appliance.policy.bulletins.bulletin import Bulletin, bits, model_of
from appliance.policy.bulletins.table import of


@dataclass(frozen=True)
class MachineState:
    """A machine by its report.

    For each component it has the lowest security version. CPUID and mitigation bits are None where
    the report has no place for them. Facts bear the names of policy fields.
    """

    versions: Mapping[str, int]
    cpuid: tuple[int, int, int] | None
    mitigations: int | None
    facts: Mapping[str, bool]


def lacking(line: str, shown: MachineState, by: date | None = None) -> Iterator[str]:
    """Yield a sentence for each bulletin that asks more of a line than a machine shows; with `by`,
    of those alone that are enforced by then."""
    for bulletin in of(line):
        if by is not None and (bulletin.enforced_from is None or bulletin.enforced_from > by):
            continue
        if told := "; ".join(_lack(bulletin, shown)):
            yield f"{bulletin.name}: {told}"


def _lack(bulletin: Bulletin, shown: MachineState) -> Iterator[str]:
    asked = dict(bulletin.lowest)
    if (model := model_of(shown.cpuid)) in bulletin.microcode:
        asked["microcode"] = bulletin.microcode[model or ""]
    elif shown.cpuid is None and bulletin.microcode:
        asked["microcode"] = min(bulletin.microcode.values())
    for component, lowest in asked.items():
        if shown.versions[component] < lowest:
            yield f"{component} is {shown.versions[component]}, at least {lowest}"
    if bulletin.mitigations and shown.mitigations is None:
        yield f"a report of this version cannot show mitigation {bits(bulletin.mitigations)}"
    elif missing := bulletin.mitigations & ~(shown.mitigations or 0):
        yield f"mitigation {bits(missing)} is not set"
    yield from (f"{name} is not so" for name in bulletin.flags if not shown.facts[name])


def unseen(line: str) -> tuple[str, ...]:
    """Name the bulletins on a line of which no report can show that they were followed."""
    return tuple(bulletin.name for bulletin in of(line) if not bulletin.shows)


def module_lacking(tee_tcb_svn: bytes, by: date | None = None) -> Iterator[str]:
    """Yield a sentence for each bulletin that asks more of a TDX module than its security versions
    show; modules of another major version count for themselves. `by`: as of `lacking`."""
    for bulletin in of("tdx"):
        if by is not None and (bulletin.enforced_from is None or bulletin.enforced_from > by):
            continue
        minor, major = bulletin.tee_tcb_svn
        if tee_tcb_svn[1] == major and tee_tcb_svn[0] < minor:
            yield f"{bulletin.name}: component 1 of TEE_TCB_SVN is {tee_tcb_svn[0]}, at least {minor}"
