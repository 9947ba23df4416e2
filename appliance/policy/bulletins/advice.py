"""Advice on a policy: what it accepts below a bulletin, and what no machine can meet.

`appliance check` gives it. A boot does not: it has neither a table nor anybody to advise.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.platforms import SNP, TDX
from appliance.policy.bind import Path, path_text
from appliance.policy.bulletins import lines, table
from appliance.policy.bulletins.bulletin import Bulletin, bits
from appliance.policy.explaining.checking import CheckResult
from appliance.policy.explaining.report import FullReport
from appliance.policy.hcl.diagnostics import Diagnostic
from appliance.policy.rules import Breach, Breaches
from appliance.policy.schema import Policy
from appliance.policy.schema.platform import ISSUED_AS, LineTcb, MinTcb, SevSnp

SNP_BLOCK: Path = ("tee", "evidence", "sev_snp")
FLOORS: Path = (*SNP_BLOCK, "min_tcb")
MODULE: Path = ("tee", "evidence", "tdx", "min_tee_tcb_svn")
OUTDATED = frozenset({"OutOfDate", "OutOfDateConfigurationNeeded"})


def diagnostics(checked: CheckResult) -> tuple[Diagnostic, ...]:
    """Return the advice on a valid policy, each finding at its place in the file."""
    if checked.policy is None or checked.version is None:
        return ()
    report = FullReport(checked.positions.text)
    for finding in findings(checked.policy):
        report.add(finding.severity_in(checked.version), "bulletin", finding.summary,
                   checked.positions.span(finding.path), detail=finding.detail, fix=finding.fix,
                   path=path_text(finding.path, checked.version))
    return tuple(report.sorted())


def findings(policy: Policy) -> Breaches:
    """Yield the advice on a policy's requirements of hardware."""
    if SNP.name in policy.tee.platforms:
        snp, one = policy.tee.evidence.sev_snp, policy.appliance.schema_version == 1
        yield from _roots(policy)
        yield from _bare(snp)
        judged = _judged(snp)
        for floor in snp.floors:
            where = FLOORS if one else (*FLOORS, floor.product)
            if floor.product not in judged:
                yield from () if one else _idle(floor, where)
                continue
            yield from _out_of_reach(floor, where, one)
            yield from _low(floor, where)
            yield from () if one else _mitigations(floor, where)
        yield from () if one else _flags(snp)
    if TDX.name in policy.tee.platforms:
        yield from _module(policy)


def _judged(snp: SevSnp) -> set[str]:
    """Return the lines whose floors count for a report that may be accepted: each line's own, or
    that of the line whose keys it has."""
    floors = {floor.product for floor in snp.floors}
    accepted = {*snp.products, *(line for line, keys in ISSUED_AS.items() if keys in snp.products)}
    return {line if line in floors else ISSUED_AS.get(line, line) for line in accepted}


def _components(floor: MinTcb) -> dict[str, int]:
    return {name: getattr(floor, name) for name in MinTcb.model_fields}


def _names(rows: list[Bulletin]) -> str:
    return " and ".join(dict.fromkeys(each.name for each in rows))


def _roots(policy: Policy) -> Breaches:
    """Warn of a product line whose root seed is out, which proves nothing against who has it, and
    of one without a pinned root, which is accepted in vain."""
    place = (*SNP_BLOCK, "products")
    for product in lines.accepted_without_root(policy):
        yield Breach(place, f"{product} is accepted, and {lines.ROOT_SEED_OUT[product]}",
                      'leave it out: products = ["genoa", "turin"]', severity="warning")
    for product in policy.tee.evidence.sev_snp.products:
        if product in lines.NO_ROOT:
            yield Breach(place, f"{product} is accepted, but this version pins no root of its keys, so that each of "
                          "its reports is refused", f"leave {product} out", severity="warning")


def _is_bare(floor: LineTcb | None) -> bool:
    return floor is None or floor.snp == floor.microcode == 0


def _bare(snp: SevSnp) -> Breaches:
    """Warn of lines without a floor, with what bulletins ask of them."""
    floors = {floor.product: floor for floor in snp.floors}
    bare = [line for line in snp.products if _is_bare(floors.get(line, floors.get(ISSUED_AS.get(line, ""))))]
    if not bare:
        return
    asked = []
    for line in bare:
        highest = _highest(line)
        asked += [f"{line}: {component} = {value} ({_names(rows)})" for component, (value, rows) in highest.items()]
    yield Breach(FLOORS, f"min_tcb accepts any firmware of {' and '.join(bare)}, however old",
                  "write the security versions that your fleet has reached", detail="; ".join(asked),
                  severity="warning")


def _highest(line: str) -> dict[str, tuple[int, list[Bulletin]]]:
    """Return what bulletins ask of each component of a line at most, and those that ask for it."""
    found: dict[str, tuple[int, list[Bulletin]]] = {}
    for bulletin in table.of(line):
        for component, value in bulletin.floor(line).items():
            most, rows = found.get(component, (0, []))
            if value >= most:
                found[component] = value, [*(rows if value == most else []), bulletin]
    return found


def _idle(floor: LineTcb, where: Path) -> Breaches:
    """Warn of a floor under a line that is not accepted."""
    yield Breach(where, f"products does not accept {floor.product}, so this floor has no effect",
                  f"delete it, or add {floor.product} to products", severity="warning")


def _out_of_reach(floor: LineTcb, where: Path, one: bool) -> Breaches:
    """Warn of a floor above all that is known of a line: it refuses every machine."""
    line = floor.product
    for component, version, highest in lines.beyond(line, _components(floor)):
        yield Breach(where, f"{component} = {version} refuses every known firmware of {line}: the highest is "
                      f"{highest}, as of {lines.KNOWN_UNTIL}", f"write at most {highest}"
                      + (f', by schema = 2 and min_tcb "{line}" {{ ... }}' if one else ""), severity="warning")


def _low(floor: LineTcb, where: Path) -> Breaches:
    """Warn of each component that a floor has lower than bulletins ask for."""
    line = floor.product
    if _is_bare(floor):
        return
    for component, (value, rows) in _highest(line).items():
        if (current := getattr(floor, component)) < value:
            yield Breach((*where, component), f"{component} = {current} accepts machines of {line} without what "
                          f"{_names(rows)} asks for: {value} ({_standing(rows)})", f"write {component} = {value}",
                          severity="warning")


def _standing(rows: list[Bulletin]) -> str:
    """Say how far the numbers of rows can be relied on."""
    read = all(each.checked == "vendor" for each in rows)
    known = "; ".join(dict.fromkeys(table.SOURCES.get(source, source) for each in rows for source in each.sources))
    return f"sources: {known}" if read else f"the maker's own text was not read; sources: {known}"


def _mitigations(floor: LineTcb, where: Path) -> Breaches:
    """Warn of mitigation bits that patched machines show and a line need not; note those that a
    bulletin has and no published report."""
    line = floor.product
    if (known := lines.HIGHEST.get(line)) is None:
        return
    for name in ("launch_mitigations", "current_mitigations"):
        mask = int(getattr(floor, name) or "0", 16)
        if missing := known.mitigations & ~mask:
            told = [f"{bits(each.mitigations)} is for {each.name}" for each in table.of(line)
                    if each.mitigations & missing]
            yield Breach((*where, name), f"{name} of {line} need not show {bits(missing)}, which patched machines "
                          f"show ({'; '.join(told)})", f'write {name} = "{mask | known.mitigations:#x}"',
                          severity="warning")
    asked = int(floor.current_mitigations or "0", 16)
    for row in table.of(line):
        if row.mitigations & ~asked & ~known.mitigations:
            yield Breach((*where, "current_mitigations"), f"{line} need not show {bits(row.mitigations)}, which is "
                          f"for {row.name}; no published report of this line has it, as of {lines.KNOWN_UNTIL} "
                          f"({_standing([row])})",
                          f'write current_mitigations = "{asked | row.mitigations:#x}" once your machines show it',
                          severity="note")


def _flags(snp: SevSnp) -> Breaches:
    """Warn of facts that bulletins ask for and a policy does not."""
    asked: dict[str, list[Bulletin]] = {}
    for line in snp.products:
        for bulletin in table.of(line):
            for flag in bulletin.flags:
                asked.setdefault(flag, []).append(bulletin)
    for flag, rows in asked.items():
        if not getattr(snp, flag):
            yield Breach((*SNP_BLOCK, flag), f"{flag} = false accepts machines without what {_names(rows)} asks for",
                          f"write {flag} = true", severity="warning")


def _module(policy: Policy) -> Iterator[Breach]:
    """Warn where Intel's own judgement is set aside, so that an old TDX module may pass."""
    tdx = policy.tee.evidence.tdx
    outdated = sorted(OUTDATED & set(tdx.tcb_status)) or (["tcb_grace"] if tdx.tcb_grace_ms is not None else [])
    floor = bytes.fromhex(tdx.min_tee_tcb_svn or "00" * 16)
    for row in table.of("tdx"):
        excused = [row.id] if row.id in tdx.accepted_advisories else outdated
        minor, major = row.tee_tcb_svn
        if excused and (floor[1], floor[0]) < (major, minor):
            asked = bytes(row.tee_tcb_svn).ljust(16, b"\0").hex()
            yield Breach(MODULE, f"{' and '.join(excused)} accepts TDX modules without what {row.name} asks for "
                          f"({_standing([row])})", f'write min_tee_tcb_svn = "{asked}"', severity="warning")
