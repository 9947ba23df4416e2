"""The halves of platforms, which the product imports by the names in its table: tests of imports count them."""

from __future__ import annotations

from appliance.platforms import PLATFORMS

RESOLVED = {
    "appliance.attestation.collect.halves": {f"appliance.attestation.{each.collect}" for each in PLATFORMS},
    "appliance.attestation.judge.halves": {f"appliance.attestation.{each.judge}" for each in PLATFORMS},
}
