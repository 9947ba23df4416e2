"""Typed access to metadata."""

from __future__ import annotations

import re

import numpy as np
import pytest

from appliance.errors import FormatError
from appliance.models.file.metadata import Strings, optional_int


def _strings(*items: str) -> Strings:
    data = [item.encode() for item in items]
    ends = np.cumsum([len(item) for item in data], dtype=np.int64)
    return Strings(b"".join(data), ends - [len(item) for item in data], ends)


META = {"int": 7, "float": 0.5, "nan": float("nan"), "bool": True, "text": "x", "long": "y" * 99,
        "numbers": np.arange(3, dtype=np.int32), "strings": _strings("a", "", "ü")}

def test_a_mapping_with_integers() -> None:
    """A model's metadata is a mapping; an integer is returned, the default where the key is missing."""
    assert (8, 0.5, ["a", "", "ü"]) == (len(META), META["float"], list(META["strings"]))
    assert (5, 7) == (optional_int(META, "none", 5), optional_int(META, "int", 5))


BAD = [("bool", "true"), ("float", "0.5"), ("text", "'x'"), ("long", "a string of 99 characters"),
       ("numbers", "an array of 3 integers"), ("strings", "an array of 3 strings")]


@pytest.mark.parametrize(("key", "shown"), BAD)
def test_what_is_no_integer_is_named(key: str, shown: str) -> None:
    """A value of another kind is refused with its key and in a few words, never with its content."""
    with pytest.raises(FormatError, match=re.escape(f"'{key}' is {shown}; allowed: an integer")):
        optional_int(META, key, 1)


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
