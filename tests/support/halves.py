"""The halves of platforms, which the product imports by the names in its table: tests of imports count them."""

from __future__ import annotations

from appliance.platforms import PLATFORMS

RESOLVED = {
    f"appliance.attestation.{room}.halves": {f"appliance.attestation.{each.folder}.{half}" for each in PLATFORMS}
    for room, half in (("collect", "collecting.collector"), ("judge", "judging.judge"))
}
