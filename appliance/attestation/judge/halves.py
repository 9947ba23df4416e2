"""The platforms' judging halves, by the platform's name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from appliance.attestation.case.judge import Judge
from appliance.attestation.case.measurements import Measurements
from appliance.platforms import PLATFORMS

JUDGES: Mapping[str, Judge] = {
    each.name: import_module(f"appliance.attestation.{each.folder}.judging.judge").JUDGE for each in PLATFORMS}


def expectations(measurements: Measurements | None) -> Mapping[str, Any]:
    """Each platform's expectations of an image; none without measurements."""
    if measurements is None:
        return {}
    found = {name: half.expect(measurements) for name, half in JUDGES.items()}
    return {name: own for name, own in found.items() if own is not None}
