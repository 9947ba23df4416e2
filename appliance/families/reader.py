"""Typed, range-checked reads of a family's keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from appliance.errors import FormatError, UnsupportedError


class HeaderReader:
    """Typed, range-checked reads of a family's keys; remembers what was read."""

    def __init__(self, family: str, metadata: Mapping[str, Any]) -> None:
        self.family, self._values = family, metadata
        self.seen: set[str] = set()

    def _raw(self, key: str, default: Any) -> Any:
        self.seen.add(key)
        value = self._values.get(f"{self.family}.{key}")
        return default if value is None else value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """An integer in low..high; FormatError when absent without a default, or out of range."""
        value = self._raw(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise FormatError(f"{self.family}.{key} is {show(value)}; allowed: an integer in {low}..{high}")
        return value

    def real(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number in low..high; FormatError when absent without a default, or out of range.
        """
        value = self._raw(key, default)
        least = low * (1 - 2**-24)  # what a file has of `low` in 32 bits may lie below
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= float(value) <= high:
            raise FormatError(f"{self.family}.{key} is {show(value)}; allowed: a number in {low:g}..{high:g}")
        return float(value)

    def text(self, key: str, default: str) -> str:
        """A string; FormatError for any other type."""
        value = self._raw(key, default)
        if not isinstance(value, str):
            raise FormatError(f"{self.family}.{key} is {show(value)}; allowed: a string")
        return value

    def integers(self, key: str, low: int, high: int, count: int, default: Sequence[int] | None = None, *,
                 several: bool = False, more: int = 0) -> list[int]:
        """An integer for each of `count` layers: one number for all, or an array. An array also has
        one for each of `more` layers behind those. Without `several` the numbers of an array must
        be equal: UnsupportedError. FormatError as `integer`.
        """
        value = self._raw(key, None)
        if _is_array(value):
            values = _plain(value)
            if len(values) != count + more or not all(type(each) is int and low <= each <= high for each in values):
                raise FormatError(f"{self.family}.{key} is an array that does not fit; allowed: {count + more} "
                                  f"integers in {low}..{high}")
            values = values[:count]
            if not several and len(set(values)) > 1:
                raise UnsupportedError(f"{self.family}.{key} differs between layers; allowed: the same number for all "
                                       f"layers of a {self.family} model")
            return values
        if value is None and default is not None:
            return list(default)
        return [self.integer(key, low, high)] * count

    def pattern(self, key: str, layers: int) -> list[bool] | None:
        """Whether each layer has a window: from an array of that, or from a period, whose last
        layer has none. None where the file has neither; FormatError for anything else."""
        value = self._raw(key, None)
        if value is None:
            return None
        if _is_array(value):
            if len(value) != layers:
                raise FormatError(f"{self.family}.{key} has {len(value)} entries; allowed: one for each of "
                                  f"{layers} layers")
            return [bool(each) for each in value]
        period = self.integer(key, 1, 1024)
        return [index % period < period - 1 for index in range(layers)]

    def sections(self, key: str) -> bool:
        """Whether the turned elements of a head belong to several kinds of position (in time,
        height and width), which are equal in a text. UnsupportedError for a fourth kind, whose
        position in a text is another one; FormatError for anything but an array of integers."""
        value = self._raw(key, None)
        if value is None:
            return False
        values: list[Any] = _plain(value) if _is_array(value) else [None]
        if len(values) > 4 or not all(type(each) is int and 0 <= each <= 65_536 for each in values):
            raise FormatError(f"{self.family}.{key} is {show(value)}; allowed: up to 4 integers")
        if any(values[3:]):
            raise UnsupportedError(f"{self.family}.{key} has {values[3]} as its fourth number; allowed: 0")
        return len(values) > 1 and values[0] > 0 and values[1] > 0

    def flag(self, key: str, default: bool) -> bool:
        """True or false; FormatError for anything else."""
        value = self._raw(key, default)
        if not isinstance(value, bool):
            raise FormatError(f"{self.family}.{key} is {show(value)}; allowed: true or false")
        return value


def show(value: Any) -> str:
    """A short description of a value from an untrusted file, for a message."""
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    return "a text" if isinstance(value, (str, bytes)) else "an array" if _is_array(value) else "of another kind"


def _plain(values: Iterable[Any]) -> list[Any]:
    """The entries of an array, none of them numpy's."""
    return [each.item() if isinstance(each, np.generic) else each for each in values]


def _is_array(value: Any) -> bool:
    """Whether a value of a file is an array."""
    return isinstance(value, np.ndarray) or (isinstance(value, Sequence) and not isinstance(value, (str, bytes)))


