"""Fixes for values that their kind refused: the nearest choice, the same text without quotes."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from appliance.policy.rules import Breach
from appliance.policy.schema.kinds import Duration, Kind, Mismatch, Order, Pick, Size

# what people write instead of a unit, in lower case
_MISTAKEN_BYTES: Mapping[str, str] = {
    f"{prefix}{tail}": f"{prefix.upper()}iB" for prefix in "kmgt" for tail in ("", "b", "ib")} | {
    "bytes": "B", "byte": "B", "b": "B"}
_MISTAKEN_MS: Mapping[str, str] = {word: unit for unit, words in {
    "ms": "msec msecs millis milliseconds", "s": "sec secs second seconds", "m": "min mins minute minutes",
    "h": "hr hrs hour hours", "d": "day days"}.items() for word in [unit, *words.split()]}
_FORMS = {int: re.compile(r"[0-9]{1,15}"), bool: re.compile("true|false"),
          float: re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")}


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word most like `word`, or None when none is near."""
    matches = difflib.get_close_matches(word[:80].lower(), list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def named(found: Breach) -> str:
    """Return the fix of a breach, with the name that was meant."""
    guess = closest(found.name, found.names) if found.name else None
    return f'did you mean "{guess}"?' if guess else found.fix


def better(refused: Mismatch, kind: Kind, value: Any) -> Mismatch:
    """Return a refusal with the best fix for this value."""
    expected = refused.expected
    fix = _of_kind(kind, value) if expected is None else _of_type(expected, refused.fix or "", value)
    return refused if fix is None else Mismatch(refused.found, fix, secret=refused.secret, expected=expected)


def _of_type(expected: type, fix: str, value: Any) -> str | None:
    """Return what to write for a literal of another type."""
    if expected is str and isinstance(value, int | float) and not isinstance(value, bool):
        return f"put it in quotes, with a unit where it has one, such as {fix.removeprefix('write ')}"
    if isinstance(value, str):
        bare, form = value.strip(), _FORMS.get(expected)
        return f"write {bare} without quotes" if form is not None and form.fullmatch(bare) else None
    if expected is int and isinstance(value, float) and math.isfinite(value):
        return f"write {int(value)}" if value.is_integer() else f"write {math.floor(value)} or {math.ceil(value)}"
    return None


def _of_kind(kind: Kind, value: Any) -> str | None:
    """Return what to write for a text that its kind does not take."""
    if not isinstance(value, str):
        return None
    if isinstance(kind, Pick):
        words = [option for option in kind.options if isinstance(option, str)]
        guess = closest(value, words) or next((w for w in words if w == value.strip().lower()), None)
        bare = value in ("true", "false") and (value == "true") in kind.options
        return f"write {value} without quotes" if bare else f'did you mean "{guess}"?' if guess else None
    if isinstance(kind, Order):
        guess = next((closest(name, kind.names) for name in value.split(";") if name not in kind.names), None)
        return f'did you mean "{guess}"?' if guess else None
    if isinstance(kind, Size | Duration) and (match := re.fullmatch(r"([0-9]{1,15}) ?([A-Za-z]{1,5})", value)):
        mistaken = _MISTAKEN_BYTES if isinstance(kind, Size) else _MISTAKEN_MS
        unit = None if match[2] in kind.units else mistaken.get(match[2].lower())
        return f'did you mean "{match[1]}{unit}"? units are {", ".join(kind.units)}' if unit else None
    return None
