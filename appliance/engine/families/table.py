"""The families that run, one row each: a new one is a module beside `llama` and a row here."""

from __future__ import annotations

from types import MappingProxyType

from appliance.engine.families import llama

FAMILIES = MappingProxyType({family.name: family for family in (
    llama.FAMILY,
)})
