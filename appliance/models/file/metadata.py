"""Typed access to a model's metadata, with errors that name the key, what was found and what is
allowed.

Arrays stay compact: numbers as read-only numpy arrays, strings as one run of bytes with their
offsets.
"""

from __future__ import annotations

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
        """Return the UTF-8 bytes of one string."""
        return self._data[self._starts[index]:self._ends[index]]

    def longest(self) -> int:
        """Characters of the longest string; 0 where there is none."""
        if not len(self):
            return 0
        sizes = self._ends - self._starts  # in bytes; a character is one at least
        found = len(self[int(sizes.argmax())])
        return max([found, *(len(self[index]) for index in np.flatnonzero(sizes > found).tolist())])

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


_OF = {"i": "integers", "u": "integers", "b": "booleans"}  # by the letter of numpy's types
Numbers = NDArray[Any]
Value = bool | int | float | str | Numbers | Strings
Metadata = Mapping[str, Value]
"""The key-value pairs of a model file, in file order."""


def optional_int(metadata: Metadata, key: str, default: int) -> int:
    """Return the integer at `key`, `default` where the key is missing. Raises FormatError for
    anything else."""
    value = metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise FormatError(f"metadata key {key!r} is {describe(value)}; allowed: an integer")
    return value


def describe(value: Value) -> str:
    """Return a value in a few words, safe to print: no content of long strings or arrays."""
    if isinstance(value, Strings):
        return f"an array of {len(value)} strings"
    if isinstance(value, np.ndarray):
        return f"an array of {len(value)} {_OF.get(value.dtype.kind, 'numbers')}"
    if isinstance(value, str):
        return repr(value) if len(value) <= 40 else f"a string of {len(value)} characters"
    return str(value).lower() if isinstance(value, bool) else f"{value!r}"
