"""Canonical JSON against the RFC's own vectors."""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.codec.canonical import canonical, number

VECTORS = Path(os.environ.get("APPLIANCE_VECTORS", Path(__file__).parents[3] / "shared" / "vectors")) / "jcs"

# RFC 8785, appendix B: the bits of a double, and its text
NUMBERS = [
    ("0000000000000000", "0"), ("8000000000000000", "0"), ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"), ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"), ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"), ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"), ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"), ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"), ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"), ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"), ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"), ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"), ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]


@pytest.mark.parametrize(("bits", "text"), NUMBERS)
def test_numbers_as_in_the_rfc(bits: str, text: str) -> None:
    """Each number of the RFC's table has the RFC's text."""
    assert text == number(struct.unpack(">d", bytes.fromhex(bits))[0])


@pytest.mark.parametrize("name", ["arrays", "french", "structures", "unicode", "values", "weird"])
def test_vectors(name: str) -> None:
    """The published input documents give the published bytes."""
    source = VECTORS / "input" / f"{name}.json"
    if not source.exists():
        pytest.skip("the JCS vectors are not at hand")
    expected = bytes.fromhex((VECTORS / "outhex" / f"{name}.txt").read_text())
    assert expected == canonical(json.loads(source.read_text(encoding="utf-8")))


@pytest.mark.parametrize("value", [
    math.nan, math.inf, -math.inf, 2**53, -(2**53), {1: 2}, "\ud800", {"\udfff": 1}, b"bytes", {1, 2}, object()])
def test_refuses_what_has_no_canonical_form(value: object) -> None:
    """A value outside of I-JSON raises instead of getting some text."""
    with pytest.raises(ValueError):
        canonical(value)


def test_largest_integers() -> None:
    """Integers of 53 bits are written whole."""
    assert b"[9007199254740991,-9007199254740991]" == canonical([2**53 - 1, 1 - 2**53])


def test_keys_sort_by_utf16() -> None:
    """A key beyond the basic plane sorts before U+FB33, as its first surrogate is smaller."""
    assert '{"\U0001f600":1,"\ufb33":2}'.encode() == canonical({"\ufb33": 2, "\U0001f600": 1})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(1 - 2**53, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4))


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])  # another process may have the CPU
@given(VALUES)
def test_json_reads_back_the_same(value: object) -> None:
    """A JSON reader whose numbers are doubles gets the value back, and its canonical text is the same again."""
    text = canonical(value)
    read = json.loads(text, parse_int=float)
    assert value == read
    assert text == canonical(read)


@given(st.integers(1 - 2**53, 2**53 - 1))
def test_integers_and_floats_of_one_value_agree(value: int) -> None:
    """A whole number has one text, whether it came as an integer or as a float."""
    assert canonical(value) == canonical(float(value))
