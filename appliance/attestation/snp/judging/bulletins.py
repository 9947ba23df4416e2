"""Where a genuine SEV-SNP report shows less than AMD's bulletins ask for."""

from __future__ import annotations

from datetime import date

from appliance.attestation.snp.judging.verify import SnpClaims
from appliance.policy.bulletins import shown
from appliance.policy.bulletins.shown import MachineState


def lacking(claims: SnpClaims, by: date | None = None) -> tuple[str, ...]:
    """Return a sentence for each bulletin that asks for more than the lowest that is shown; with
    `by`, of those alone that a feed enforces by then."""
    report = claims.report
    tcbs = [each.components() for each in (
        claims.reported_tcb, claims.current_tcb, claims.committed_tcb, claims.launch_tcb)]
    masks = [each for each in (report.launch_mit_vector, report.current_mit_vector) if each is not None]
    return tuple(shown.lacking(claims.product.lower(), MachineState(
        {name: min(each[name] for each in tcbs) for name in tcbs[0]}, report.cpuid,
        masks[0] & masks[1] if masks else None, {"alias_check": report.platform_info.alias_check_complete}), by))


def unseen(claims: SnpClaims) -> tuple[str, ...]:
    """Name the bulletins of which no report shows that they were followed."""
    return shown.unseen(claims.product.lower())
