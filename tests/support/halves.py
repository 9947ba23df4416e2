"""What the product imports by the names in its tables: tests of imports count it."""

from __future__ import annotations

from appliance.platforms import PLATFORMS
from appliance.policy.schema.sampling import ADJUSTERS, SAMPLERS

_NARROWINGS = "appliance.engine.decode.chain.narrowings"

RESOLVED = {
    **{f"appliance.attestation.{room}.halves": {f"appliance.attestation.{each.folder}.{half}" for each in PLATFORMS}
       for room, half in (("collect", "collecting.collector"), ("judge", "judging.judge"))},
    f"{_NARROWINGS}.table": {f"{_NARROWINGS}.{name}" for name in SAMPLERS if name not in ADJUSTERS},
}
