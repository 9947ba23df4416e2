"""The platforms' collecting halves, by the platform's name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from appliance.attestation.collector import Collector
from appliance.platforms import PLATFORMS

COLLECTORS: Mapping[str, Collector] = {
    each.name: import_module(f"appliance.attestation.{each.folder}.collecting.collector").COLLECTOR
    for each in PLATFORMS}
