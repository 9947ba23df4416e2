"""The rule of a policy that demands Google's endorsement of the firmware."""

from __future__ import annotations

from collections.abc import Iterable

from appliance.attestation.findings import Finding, judged
from appliance.attestation.measured.second import SourcedRow
from appliance.policy.schema.platform import Gce

RULE = "gce-svn"


def judge(rows: Iterable[SourcedRow], wanted: Gce | None) -> Finding:
    """Judge `rows`, those that have the launch value of the evidence. Each must be of an endorsement
    of the lowest security version, or a newer one."""
    if wanted is None:
        return Finding(RULE, "not checked")
    versions = [row.svn for row in rows]
    known = [version for version in versions if version is not None]
    if not versions or len(known) != len(versions):
        return judged(RULE, False, "no row of the measurements has this launch value by Google's endorsement")
    return judged(RULE, min(known) >= wanted.min_svn, f"{min(known)}, at least {wanted.min_svn}")
