"""Typed, range-checked reads of a family's keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from appliance.errors import FormatError


class Reader:
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
                 several: bool = False) -> list[int]:
        """An integer for each of `count` layers: the same for all, or with `several` an array of
        them. FormatError as `integer`."""
        value = self._raw(key, None)
        if several and isinstance(value, (np.ndarray, list, tuple)):
            found = [each.item() if isinstance(each, np.generic) else each for each in value]
            if len(found) != count or not all(type(each) is int and low <= each <= high for each in found):
                raise FormatError(f"{self.family}.{key} is an array that does not fit; allowed: {count} integers in "
                                  f"{low}..{high}")
            return found
        if value is None and default is not None:
            return list(default)
        return [self.integer(key, low, high)] * count

    def pattern(self, key: str, layers: int) -> list[bool] | None:
        """Whether each layer has a window: from an array of that, or from a period, whose last
        layer has none. None where the file has neither; FormatError for anything else."""
        value = self._raw(key, None)
        if value is None:
            return None
        if isinstance(value, (np.ndarray, list, tuple)):
            if len(value) != layers:
                raise FormatError(f"{self.family}.{key} has {len(value)} entries; allowed: one for each of "
                                  f"{layers} layers")
            return [bool(each) for each in value]
        period = self.integer(key, 1, 1024)
        return [index % period < period - 1 for index in range(layers)]

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
    return repr(value) if isinstance(value, (bool, int, float)) else f"of type {type(value).__name__}"


