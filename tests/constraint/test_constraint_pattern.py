"""Patterns: whatever matches here matches in Python's dialect and as ECMA-262 has it; what has no one meaning is
refused."""

from __future__ import annotations

import random
import re
from datetime import datetime

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.constraint import spec
from appliance.constraint.schema import dialects, formats
from appliance.errors import ConstraintError
from tests.constraint.walks import accepts, compiler, walked

CASES = [  # pattern, texts in which it is found, texts in which it is not
    ("^[a-z]+$", ["abc"], ["", "aB", "abc\n", "1"]), ("b", ["abc", "b"], ["ac", ""]),
    ("^a|b$", ["ax", "xb", "ab"], ["xa", "bx"]), ("(^a$|c)", ["a", "xcx"], ["aa", "b"]),
    ("^(?:ab){2,3}$", ["abab", "ababab"], ["ab", "abababab"]),
    ("^\\d{3}-\\w+?$", ["123-a_9"], ["12-a", "123-", "١٢٣-a"]),
    ("^[^a-c\\s]$", ["d", "é", "日"], ["a", " ", "\u00a0", "\ufeff", "dd"]),
    ("^.$", ["a", "é"], ["", "\n", "\r", "\u2028"]),
    ("^(?<year>[0-9]{4})$", ["2024"], ["24"]),
    ("^\\x41\\u0042\\.\\/$", ["AB./"], ["AB.x"]), ("^$", [""], ["a"]),
    ("", ["", "x"], []), ("^[\\w.-]+@x$", ["a.b-c@x"], ["@x", "é@x"]), ("^\\S+$", ["a日"], ["a b", "\u3000"]),
    ("^[^\"]$", ["a", "\\\\"], ["\\\""]), ("^[^\\\\]+$", ["a\\\""], ["\\\\"]),
    ("^[^x]$", ["\\\"", "\\\\", "\\n"], ["x"]),
    ("^[\\]\\[]$", ["]", "["], ["x"]), ("^a{0}b?$", ["", "b"], ["a"]),
]
REFUSED = ["(?=a)", "(?!a)", "(?<=a)", "(?i)a", "\\bword", "(a)\\1", "a++", "a**", "\\p{L}", "a^b", "a$b", "(^a)+",
           "x(^a)", "[]a]", "[^]", "[z-a]", "[\\w-z]", "[[a]]", "[a&&b]", "(", ")", "a)", "[a", "a{2", "a{,3}",
           "a{3,2}", "{", "*", "\\", "\\ud800", "\\cA", "\\_", "\\é", "\ud800", "a{1001}", "((a{1000}){1000})",
           "(" * 30 + ")" * 30, "a" * 5000, "(?P<>a)", "(?<a", "\\u{41}", "\\0", "[\\d-\\w]"]


@pytest.mark.parametrize(("text", "found", "absent"), CASES)
def test_patterns_match_where_they_are_found(text: str, found: list[str], absent: list[str]) -> None:
    """Somewhere in a text, or where anchors say: through llguidance, as a string's pattern."""
    constraint = compiler().compile(spec.JsonSchema({"type": "string", "pattern": text}))
    for each in found:
        assert accepts(constraint, f'"{each}"'.replace("\n", "\\n")), each
    for each in absent:
        assert not accepts(constraint, f'"{each}"'.replace("\n", "\\n").replace("\r", "\\r")), each


@pytest.mark.parametrize("text", REFUSED)
def test_what_has_no_one_meaning_is_refused(text: str) -> None:
    """Refused, in words that do not have the pattern's own; never an error of another kind."""
    with pytest.raises(ConstraintError) as caught:
        dialects.search(text)
    assert caught.value.hint


_LETTERS = st.sampled_from([*"abc01 _-.é", "\\d", "\\w", "\\s", "\\D", "\\S", "\\W", ".", "[a-c]", "[^ab]", "[\\d_]",
                            "[^\\s.]"])
_PATTERNS = st.recursive(
    _LETTERS, lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join), st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{2,}", "*?"])).map(
            lambda two: f"({two[0]}){two[1]}")),
    max_leaves=8)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(_PATTERNS, st.sampled_from([("", ""), ("^", ""), ("", "$"), ("^", "$")]), st.integers(0, 1 << 30))
def test_random_answers_match_in_pythons_dialect(body: str, anchors: tuple[str, str], seed: int) -> None:
    """Python's `re` as judge, in its two readings of classes: of ASCII and of Unicode."""
    text = f"{anchors[0]}(?:{body}){anchors[1]}"
    try:
        constraint = compiler().compile(spec.RegexText(text) if anchors == ("^", "$") else spec.Lark(
            f"start: /{dialects.search(text).text.replace('/', chr(92) + '/')}/"))
    except ConstraintError:
        return
    rng = random.Random(seed)
    for _ in range(5):
        found = walked(constraint, rng, 60)
        if found is not None:
            assert re.search(text, found), (text, found)
            assert re.search(text, found, re.ASCII), (text, found)


_EXACT = {"uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"}
_GOOD = {"date": ["2024-02-29", "2000-02-29", "1999-12-31"], "time": ["23:59:59Z", "00:00:00.5+01:00"],
         "date-time": ["2024-02-29T12:00:00Z"], "ipv4": ["255.0.1.10"],
         "ipv6": ["::", "::1", "1:2:3:4:5:6:7:8", "fe80::1"],
         "email": ["a.b@x.org"], "hostname": ["a-b.example"], "uri": ["https://example.org/a?b=c#d"],
         "duration": ["P1Y2M3D", "PT5M", "P3W", "P1DT2H3M4S"], "json-pointer": ["", "/a~0b/0"],
         "uuid": ["2eb8aa08-aa98-11ea-b4aa-73b441d16380"]}
_BAD = {"date": ["2023-02-29", "1900-02-29", "2024-13-01", "2024-04-31", "24-01-01", "2024-1-1"],
        "time": ["24:00:00Z", "12:60:00Z", "12:00:60Z", "12:00:00"], "ipv4": ["256.1.1.1", "01.1.1.1", "1.1.1"],
        "ipv6": ["1::2::3", "12345::", ":1", "1:2:3:4:5:6:7"], "email": ["a@", "@b.c", "a b@c.d"],
        "hostname": ["-a.b", "a..b", "a_b"], "duration": ["P", "PT", "P1Y1D", "1D", "P1W2D"],
        "json-pointer": ["a", "/~2"],
        "uri": ["/a", "http://", "a b"], "uuid": ["2eb8aa08aa9811eab4aa73b441d16380"]}


@pytest.mark.parametrize("name", sorted(formats.PATTERNS))
def test_formats_hold(name: str) -> None:
    """Known good and bad texts, and random ones before `jsonschema`'s own judge of the format."""
    constraint = compiler().compile(spec.JsonSchema({"type": "string", "format": name}))
    assert [] == [text for text in _GOOD.get(name, []) if not accepts(constraint, f'"{text}"')]
    assert [] == [text for text in _BAD.get(name, []) if accepts(constraint, f'"{text}"')]
    rng, checker = random.Random(name), jsonschema.Draft202012Validator.FORMAT_CHECKER
    for _ in range(40):
        found = walked(constraint, rng, 200)
        if found is not None:
            checker.check(found.strip('"'), name)
            if name == "date-time":
                assert datetime.fromisoformat(found.strip('"')).tzinfo is not None
            assert re.fullmatch(_EXACT.get(name, "(?s:.*)"), found.strip('"'))
