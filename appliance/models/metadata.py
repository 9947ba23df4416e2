"""Typed access to a model's metadata, with errors that name the key, what was found and what is allowed.

Arrays stay compact: numbers as read-only numpy arrays, strings as one run of bytes with their offsets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from appliance.errors import FormatError


class Strings(Sequence[str]):
    """An array of strings, known to be UTF-8, kept as one run of bytes."""

    __slots__ = ("_data", "_ends", "_starts")

    def __init__(self, data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self._data, self._starts, self._ends = data, starts, ends

    def __len__(self) -> int:
        return len(self._starts)

    def raw(self, index: int) -> bytes:
        """The UTF-8 bytes of one string."""
        return self._data[self._starts[index]:self._ends[index]]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self.raw(i).decode() for i in range(*index.indices(len(self)))]
        return self.raw(index).decode()

    def __iter__(self) -> Iterator[str]:
        data = self._data
        for start, end in zip(self._starts.tolist(), self._ends.tolist(), strict=True):
            yield data[start:end].decode()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str) or len(self) != len(other):
            return False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Strings({len(self)})"


Numbers = NDArray[Any]
Value = bool | int | float | str | Numbers | Strings

_INT64 = 2**63


class Metadata(Mapping[str, Value]):
    """The key-value pairs of a model file, in file order; a plain mapping with checked accessors."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Value:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metadata({len(self)} keys)"

    def _require(self, key: str, allowed: str) -> Value:
        if key not in self._values:
            raise FormatError(f"metadata key {key!r} is missing; needed: {allowed}")
        return self._values[key]

    def require_int(self, key: str, low: int = -_INT64, high: int = 2 * _INT64 - 1) -> int:
        """The integer at `key`, `low` to `high` inclusive; FormatError otherwise."""
        value = self._require(key, allowed := f"an integer from {low} to {high}")
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _wrong(key, value, allowed)
        return value

    def require_float(self, key: str, low: float = -math.inf, high: float = math.inf) -> float:
        """The finite number at `key`, `low` to `high` inclusive; FormatError otherwise."""
        value = self._require(key, allowed := f"a finite number from {low} to {high}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _wrong(key, value, allowed)
        if not math.isfinite(value) or not low <= value <= high:
            raise _wrong(key, value, allowed)
        return float(value)

    def require_bool(self, key: str) -> bool:
        """The boolean at `key`; FormatError otherwise."""
        value = self._require(key, "a boolean")
        if not isinstance(value, bool):
            raise _wrong(key, value, "a boolean")
        return value

    def require_text(self, key: str) -> str:
        """The string at `key`; FormatError otherwise."""
        value = self._require(key, "a string")
        if not isinstance(value, str):
            raise _wrong(key, value, "a string")
        return value

    def require_strings(self, key: str) -> Strings:
        """The array of strings at `key`; FormatError otherwise."""
        value = self._require(key, "an array of strings")
        if not isinstance(value, Strings):
            raise _wrong(key, value, "an array of strings")
        return value

    def require_numbers(self, key: str, length: int | None = None) -> Numbers:
        """The array of numbers at `key`, of `length` items if given; FormatError otherwise."""
        value = self._require(key, allowed := "an array of numbers" if length is None else f"{length} numbers")
        if not isinstance(value, np.ndarray) or (length is not None and len(value) != length):
            raise _wrong(key, value, allowed)
        return value

    def optional_int(self, key: str, default: int, low: int = -_INT64, high: int = 2 * _INT64 - 1) -> int:
        """As `require_int`, but `default` where the key is missing."""
        return self.require_int(key, low, high) if key in self._values else default

    def optional_float(self, key: str, default: float, low: float = -math.inf, high: float = math.inf) -> float:
        """As `require_float`, but `default` where the key is missing."""
        return self.require_float(key, low, high) if key in self._values else default

    def optional_bool(self, key: str, default: bool) -> bool:
        """As `require_bool`, but `default` where the key is missing."""
        return self.require_bool(key) if key in self._values else default

    def optional_text(self, key: str, default: str | None = None) -> str | None:
        """As `require_text`, but `default` where the key is missing."""
        return self.require_text(key) if key in self._values else default


def describe(value: Value) -> str:
    """A value in a few words, safe to print: no content of long strings or arrays."""
    if isinstance(value, Strings):
        return f"an array of {len(value)} strings"
    if isinstance(value, np.ndarray):
        return f"an array of {len(value)} {value.dtype.name}"
    if isinstance(value, str):
        return repr(value) if len(value) <= 40 else f"a string of {len(value)} characters"
    return f"{value!r}"


def _wrong(key: str, value: Value, allowed: str) -> FormatError:
    return FormatError(f"metadata key {key!r} is {describe(value)}; allowed: {allowed}")
