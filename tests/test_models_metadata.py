"""Typed access to metadata."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from appliance.errors import FormatError
from appliance.models.metadata import Metadata, Strings


def _strings(*items: str) -> Strings:
    data = [item.encode() for item in items]
    ends = np.cumsum([len(item) for item in data], dtype=np.int64)
    return Strings(b"".join(data), ends - [len(item) for item in data], ends)


META = Metadata({"int": 7, "float": 0.5, "nan": float("nan"), "bool": True, "text": "x", "long": "y" * 99,
                 "numbers": np.arange(3, dtype=np.int32), "strings": _strings("a", "", "ü")})

GOOD: list[tuple[Callable[[], object], object]] = [
    (lambda: META.require_int("int", 0, 7), 7), (lambda: META.require_float("float"), 0.5),
    (lambda: META.require_float("int"), 7.0), (lambda: META.require_bool("bool"), True),
    (lambda: META.require_text("text"), "x"), (lambda: list(META.require_strings("strings")), ["a", "", "ü"]),
    (lambda: META.require_numbers("numbers", 3).tolist(), [0, 1, 2]), (lambda: META.optional_int("none", 5), 5),
    (lambda: META.optional_int("int", 5), 7), (lambda: META.optional_float("none", 1.5), 1.5),
    (lambda: META.optional_bool("none", False), False), (lambda: META.optional_bool("bool", False), True),
    (lambda: META.optional_text("none"), None), (lambda: META.optional_text("text"), "x"),
    (lambda: META.optional_float("float", 9.0), 0.5), (lambda: len(META), 8),
]


@pytest.mark.parametrize("number", range(len(GOOD)))
def test_values_of_the_right_kind(number: int) -> None:
    """A value of the right kind and range is returned, a default where the key is missing."""
    get, expected = GOOD[number]
    assert expected == get()


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: META.require_int("none", 1, 9), "'none' is missing; needed: an integer from 1 to 9"),
    (lambda: META.require_int("int", 8, 9), "'int' is 7; allowed: an integer from 8 to 9"),
    (lambda: META.require_int("int", 0, 6), "'int' is 7; allowed: an integer from 0 to 6"),
    (lambda: META.require_int("bool"), "'bool' is True"), (lambda: META.require_int("float"), "'float' is 0.5"),
    (lambda: META.require_float("nan"), "'nan' is nan; allowed: a finite number"),
    (lambda: META.require_float("bool"), "'bool' is True"), (lambda: META.require_float("text"), "'text' is 'x'"),
    (lambda: META.require_float("float", 0.6), "'float' is 0.5"), (lambda: META.require_bool("int"), "'int' is 7"),
    (lambda: META.require_text("int"), "'int' is 7; allowed: a string"),
    (lambda: META.require_int("long"), "'long' is a string of 99 characters"),
    (lambda: META.require_strings("numbers"), "'numbers' is an array of 3 int32; allowed: an array of strings"),
    (lambda: META.require_numbers("strings"), "'strings' is an array of 3 strings"),
    (lambda: META.require_numbers("numbers", 4), "'numbers' is an array of 3 int32; allowed: 4 numbers"),
    (lambda: META.optional_int("text", 1), "'text' is 'x'"), (lambda: META.optional_bool("int", True), "'int' is 7"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_values_of_the_wrong_kind_are_named(number: int) -> None:
    """A value that is missing, of another kind or out of range is refused with key, value and what is allowed."""
    get, message = BAD[number]
    with pytest.raises(FormatError, match=re.escape(message)):
        get()


def test_strings_behave_as_a_sequence() -> None:
    """Compact strings index, slice, iterate and compare as a list of the same strings does."""
    plain = ["a", "", "ü", "日本"]
    compact = _strings(*plain)
    assert (plain, plain[1:3], plain[::-1], plain[-1]) == (list(compact), compact[1:3], compact[::-1], compact[-1])
    assert "ü".encode() == compact.raw(2)
    assert compact == plain
    assert compact != [*plain, "x"]
    assert compact != "a"
    assert compact != 4
    assert 2 == compact.index("ü")
    with pytest.raises(IndexError):
        compact[4]
    with pytest.raises(TypeError):
        hash(compact)
