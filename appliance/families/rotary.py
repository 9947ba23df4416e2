"""How heads are turned, from a family's card and a file's metadata. The scaling of positions: YaRN
paper (arXiv 2309.00071)."""

from __future__ import annotations

import math

from appliance.errors import FormatError, UnsupportedError
from appliance.families.architecture import LEAST_FACTOR, Rope
from appliance.families.card import Attend, Family, Rotary
from appliance.families.reader import HeaderReader

_LOG, _MAGNITUDE = "rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_attn_factor"
_SWA = "rope.freq_base_swa"
_BASE = 10_000.0  # where a file has none


def ropes(reader: HeaderReader, family: Family, kind: Attend, head_size: int, context: int) -> Rope | None:
    """The rotation of a kind of layer; None where its heads are not turned. UnsupportedError names
    what we do not run; FormatError what is out of range."""
    scaling, factor, magnitude = _scaling(reader, family)
    fast = reader.real("rope.scaling.yarn_beta_fast", 1e-3, 1e4, 32.0)
    slow = reader.real("rope.scaling.yarn_beta_slow", 1e-3, 1e4, 1.0)
    turned = _turned_elements(reader, family, kind, head_size)
    on = family.switch is None or reader.flag(family.switch, True)
    original = reader.integer("rope.scaling.original_context_length", 1, 1 << 24, context)
    if kind.rotary is None or not on:
        reader.real("rope.freq_base", 1.0 + 1e-3, 1e12, _BASE)  # says nothing then
        return None
    base = _base(reader, family, kind.rotary)
    if not kind.rotary.scaled:
        scaling, factor, magnitude = "none", 1.0, 1.0
    return Rope(scaling, base, factor, original, magnitude, fast, slow, turned, kind.rotary.pairs == "halves",
                kind.rotary.scaled, family.yarn_whole)


def _base(reader: HeaderReader, family: Family, rotary: Rotary) -> float:
    """The base of frequencies. The base of layers with a window may stand in a file of any family;
    UnsupportedError where it differs and the family has no such layers."""
    own = base = reader.real("rope.freq_base", 1.0 + 1e-3, 1e12, _BASE)
    for key in reversed(rotary.base):
        base = reader.real(key, 1.0 + 1e-3, 1e12, _BASE if key == rotary.base[-1] else base)
    windowed = reader.real(_SWA, 1.0 + 1e-3, 1e12, own)
    if windowed != own and not any(each.rotary is not None and _SWA in each.rotary.base for each in family.layers):
        raise UnsupportedError(f"{reader.family}.{_SWA} is {windowed}; allowed: rope.freq_base, {own}")
    return base


def _turned_elements(reader: HeaderReader, family: Family, kind: Attend, head_size: int) -> int | None:
    """Elements of a head that are turned; None for all."""
    key = f"rope.dimension_count{kind.sizes}"
    turned = reader.integer(key, 1, 65_536, head_size)
    if turned == head_size or kind.rotary is None:
        return None
    halves = kind.rotary is not None and kind.rotary.pairs == "halves"
    if family.partial and turned < head_size and turned % 16 == 0 and (turned >= 32 or not halves):
        return turned
    allowed = f"the head size, {head_size}" + (f", or a multiple of 16 in 32..{head_size}" if family.partial else "")
    raise UnsupportedError(f"{reader.family}.{key} is {turned}; allowed: {allowed}")


def _scaling(reader: HeaderReader, family: Family) -> tuple[str, float, float]:
    """The scaling's name, its factor, and the factor on cosine and sine."""
    name = reader.family
    names = ("none", "linear", "yarn", *(("longrope",) if family.long_factors else ()))
    scaling = reader.text("rope.scaling.type", "linear")
    if scaling not in names:
        raise UnsupportedError(
            f"{name}.rope.scaling.type asks for an unknown scaling; allowed: {', '.join(names)}")
    old = reader.real("rope.scale_linear", 0.0, 1e4, 0.0)
    factor = reader.real("rope.scaling.factor", 0.0, 1e4, old) or 1.0  # zero means absent
    if factor < LEAST_FACTOR:
        raise FormatError(f"{name}.rope.scaling.factor is {factor}; allowed: 0, or a number in {LEAST_FACTOR}..10000")
    magnitude = own = reader.real("rope.scaling.attn_factor", 1e-3, 1e3, 1.0)
    if scaling == "yarn":
        magnitude *= max(1.0, 1.0 + 0.1 * math.log(factor))
        if _LOG not in family.neutral:
            magnitude /= max(1.0, 1.0 + 0.1 * reader.real(_LOG, 0.0, 100.0, 0.0) * math.log(factor))
    _check_magnitude(reader, magnitude / own)
    return ("none", 1.0, magnitude) if scaling in ("none", "longrope") else (scaling, factor, magnitude)


def _check_magnitude(reader: HeaderReader, usual: float) -> None:
    """Refuse a magnitude of YaRN that is another than the usual one of its factor. One publisher's
    number is the magnitude, another's multiplies the usual one, and converters write both under one
    name: so 1 and the usual one are the same."""
    magnitude = reader.real(_MAGNITUDE, 1e-3, 1e3, 1.0)
    if magnitude != 1.0 and not math.isclose(magnitude, usual, rel_tol=1e-5):
        raise UnsupportedError(f"{reader.family}.{_MAGNITUDE} is {magnitude}; allowed: 1, or {usual:.6g}, which is "
                               "what the scaling makes of its factor")
