"""The narrowings by the names that an order of samplers has for them, which are those of their
files."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from appliance.engine.decode.chain.candidates import Narrowing
from appliance.policy.schema.sampling import ADJUSTERS, SAMPLERS

NARROWINGS: Mapping[str, Narrowing] = MappingProxyType({
    name: import_module(f"appliance.engine.decode.chain.narrowings.{name}").STAGE
    for name in SAMPLERS if name not in ADJUSTERS})
