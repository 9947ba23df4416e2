"""The narrowings by the names that an order of samplers has for them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from appliance.engine.decode.chain.candidates import Narrowing
from appliance.engine.decode.chain.narrowings import (
    epsilon_cutoff,
    eta_cutoff,
    min_p,
    tail_free,
    top_k,
    top_n_sigma,
    top_p,
    typical,
    xtc,
)

NARROWINGS: Mapping[str, Narrowing] = MappingProxyType({
    "top_n_sigma": top_n_sigma.STAGE,
    "top_k": top_k.STAGE,
    "tfs_z": tail_free.STAGE,
    "typ_p": typical.STAGE,
    "top_p": top_p.STAGE,
    "min_p": min_p.STAGE,
    "epsilon_cutoff": epsilon_cutoff.STAGE,
    "eta_cutoff": eta_cutoff.STAGE,
    "xtc": xtc.STAGE,
})
