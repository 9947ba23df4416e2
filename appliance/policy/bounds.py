"""The numbers of a request's sampling, within the bounds of a policy: a value outside is refused,
not clamped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from appliance.policy.schema.sampling import ABSENT_SAMPLERS, ADJUSTERS, BY_NAME, OTHER_NAMES, SAMPLERS, SamplingBounds

# Where requests may give no order, these are taken, and change nothing: llama.cpp's default order,
# now and before, and that of its own web page.
_FORMER_ORDERS = (
    ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"),
    ("dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"),
    ("top_k", "typ_p", "top_p", "min_p", "temperature"))


class OutsideError(ValueError):
    """A parameter by its name, and what is allowed. `fixed`: no value but one is."""

    def __init__(self, name: str, allowed: str, *, fixed: bool = False) -> None:
        super().__init__(f"{name}: {allowed}")
        self.name, self.fixed = name, fixed


def numbers(bounds: SamplingBounds, asked: Mapping[str, Any], order: Sequence[str] | None, *,
            free: bool = True) -> dict[str, Any]:
    """Return each parameter's value, and the `samplers`; the policy's defaults where nothing is
    asked.

    `asked` has None for what is not. A parameter that adjusts another one counts only if that one
    is on. OutsideError names the first that the policy does not allow. `free`: the answer goes on
    with a text, and has no structure.
    """
    found: dict[str, Any] = {}
    for row in BY_NAME.values():
        rule, value = bounds.bound(row.name), asked.get(row.name)
        if row.free and not free:
            if value is not None and value != row.off:
                raise OutsideError(row.name, row.why_free, fixed=True)
            value = row.off
        elif value is None or (row.of and found[row.of] == BY_NAME[row.of].off):
            value = rule.default
        elif value != rule.default and (rule.min == rule.max or (row.since > 1 and not bounds.extended)):
            raise OutsideError(row.name, f"the policy allows no value but {rule.default:.15g} or null", fixed=True)
        elif not rule.min <= value <= rule.max:
            raise OutsideError(row.name, f"allowed are {rule.min:.15g} to {rule.max:.15g}; found: {value:.15g}")
        found[row.name] = value
    return found | {"samplers": _samplers(bounds, found, asked, order)}


def length_penalty(bounds: SamplingBounds, asked: float | None) -> float:
    """The length penalty of a beam search. OutsideError for one that the policy does not allow."""
    rule = bounds.bound("length_penalty")
    value = rule.default if asked is None else asked
    if not rule.min <= value <= rule.max:
        raise OutsideError("length_penalty", f"allowed are {rule.min:.15g} to {rule.max:.15g}; found: {value:.15g}")
    return value


def _samplers(bounds: SamplingBounds, found: Mapping[str, Any], asked: Mapping[str, Any],
              order: Sequence[str] | None) -> tuple[str, ...]:
    own = tuple(bounds.samplers.split(";"))
    if not bounds.extended:
        if order is not None and tuple(order) not in _FORMER_ORDERS:
            raise OutsideError("samplers", "the policy allows no order but llama.cpp's default", fixed=True)
        return own
    names = own if order is None else _known(order)
    if order is not None or asked.get("mirostat"):
        _check_absent(bounds, names, mirostat=bool(found["mirostat"]))
    return names


def _known(order: Sequence[str]) -> tuple[str, ...]:
    """An order by the names of this service, without samplers that are not here and so are off."""
    names = dict.fromkeys(OTHER_NAMES.get(name, name) for name in order if name not in ABSENT_SAMPLERS)
    for name in names:
        if name not in SAMPLERS:
            raise OutsideError("samplers", f"allowed are the names {', '.join(SAMPLERS)}, in any order")
    return tuple(names)


def _check_absent(bounds: SamplingBounds, names: Sequence[str], *, mirostat: bool) -> None:
    """Refuse an order that turns something off which the policy wants on."""
    for row in BY_NAME.values():
        if row.sampler and (row.sampler not in names or (mirostat and row.sampler not in ADJUSTERS)):
            rule = bounds.bound(row.name)
            if not rule.min <= row.off <= rule.max:
                name, why = ("samplers", "leaves out") if row.sampler not in names else ("mirostat", "turns off")
                raise OutsideError(name, f"{why} {row.sampler}, but the policy allows {row.name} only from "
                                   f"{rule.min:.15g} to {rule.max:.15g}")
