"""All claims, in the order in which a report shows them."""

from __future__ import annotations

from collections.abc import Mapping

from appliance.auditor.claims import answers, hardware, image, log, policy, released, retention
from appliance.auditor.claims.case import Case
from appliance.auditor.claims.claim import Claimed

GROUPS = (
    ("Policy", policy.CLAIMS), ("Image", image.CLAIMS), ("Releases", released.CLAIMS), ("Hardware", hardware.CLAIMS),
    ("Audit log", log.CLAIMS + retention.CLAIMS), ("Receipts", answers.CLAIMS))
CLAIMS = {each.name: each for _, claims in GROUPS for each in claims}
# Names that mappings of before have, and what the claims are called now.
FORMER = {"policy-retention": "policy-destroyed", "sbom-complete": "sbom-materials"}


def judge(case: Case) -> Mapping[str, Claimed]:
    """Return the outcome of each claim, by its name."""
    return {name: claim.finding(case) for name, claim in CLAIMS.items()}
