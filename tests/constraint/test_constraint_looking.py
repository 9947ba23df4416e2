"""Patterns that look ahead: the same texts as before, by Python's `re`, and by llguidance."""

from __future__ import annotations

import contextlib
import json
import random
import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.constraint import spec
from appliance.constraint.schema import check_schema, looking
from appliance.constraint.schema.dialects import Portable
from appliance.constraint.schema.languages import Languages, TooLargeError, Work
from appliance.errors import ConstraintError
from tests.constraint.walks import accepts, compiler, walked
from tests.support import pace
from tests.support.extent import examples

# As libraries write them: pydantic 2.12's for Decimal, with digits, places, both; zod's of several versions.
MAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
KNOWN = {
    "decimal": (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", ["1", "-0.5", ".5", "+12.", "00"], ["", "+", "-.", "1e5", "a"]),
    "decimal with both": (r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,8}|(?=[\d.]{1,11}0*$)\d{0,8}\.\d{0,2}0*$)",
                          ["12.34"], ["", "+."]),
    "decimal with digits": (r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,5}|(?=[\d.]{1,6}0*$)\d*\.\d*0*$)", ["12345"], ["."]),
    "decimal with places": (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d{0,3}0*$", ["1.125", "0.5000"], ["1.1255", "-"]),
    "mail": (MAIL, ["a.b@x.org", "o'neil+1@a-b.example.com"],
             [".a@x.org", "a..b@x.org", "a@x", "a b@x.org", "a.@x.org"]),
    "duration": (r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$",
                 ["P1W", "P1Y2M3D", "PT5M", "P1DT2H3.5S"], ["P", "PT", "P1YT", "P1Y1W"]),
    "host": (r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
             r"(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$", ["a-b.example", "x."], ["-a", "a..b"]),
    "account": (r"^[A-Z]{2}(?!00|01|99)\d{2}[A-Z0-9]{3,5}$", ["DE02ABC"], ["DE01ABC", "DE99ABC"]),
    "password": (r"^(?=.*[A-Z])(?=.*\d)(?=.*[!@#]).{8,}$", ["Abcdef1!"], ["abcdef1!", "Abcdefg!", "Ab1!"]),
}
SMALL = {"not begun": r"(?!a)b|c(?=d)", "not followed": r"^a(?!b)", "within": r"^x(?:(?=a)[ab]|b(?!c))*?$",
         "not at the end": r"^P(?!$)\d*", "twice not": r"^(?!(?!a)b)[abc]$", "a word": r"foo(?!bar)",
         "never": r"^a(?=b)c|d$", "few times": r"^(?:(?!ab)[abc]){1,3}$"}


def _python(text: str) -> re.Pattern[str]:
    """A pattern in Rust's syntax for Python."""
    return re.compile(re.sub(r"\\x\{([0-9A-F]+)\}", lambda match: f"\\U{int(match[1], 16):08x}", text))


def _matches(found: list[Portable], text: str) -> bool:
    return all(_python(each.text).fullmatch(text) for each in found)


@pytest.mark.parametrize("name", KNOWN)
def test_known_patterns_hold(name: str) -> None:
    """Through llguidance: texts that match, others, and random answers before Python's `re`."""
    pattern, good, bad = KNOWN[name]
    constraint = compiler().compile(spec.JsonSchema({"type": "string", "pattern": pattern, "maxLength": 300}))
    assert ([], []) == ([text for text in good if not accepts(constraint, f'"{text}"')],
                        [text for text in bad if accepts(constraint, f'"{text}"')])
    rng = random.Random(name)
    for _ in range(examples(10, 100)):
        text = walked(constraint, rng, 200)
        assert text is None or re.search(pattern, json.loads(text), re.ASCII), text


@pytest.mark.parametrize("name", [*KNOWN, *(name for name in SMALL if name != "within")])
def test_the_texts_are_the_same(name: str) -> None:
    """Drawn from the pattern's own letters; Python's `re` is the judge of what it says."""
    pattern = SMALL.get(name) or KNOWN[name][0]
    found, seen = looking.search(pattern, Work()), {True: 0, False: 0}
    letters = sorted({*re.sub(r"\\.|[\[\](){}?*+^$|,]", "", pattern), *"aB0.-+@ T1PYMDW!bc"})
    rng = random.Random(name)
    texts = ["".join(rng.choice(letters) for _ in range(rng.randrange(9))) for _ in range(examples(1500, 20_000))]
    texts += [each for _, good, bad in KNOWN.values() for each in good + bad]
    texts += [text[:at] + rng.choice(letters) + text[at:] for text in texts[-60:] for at in range(len(text) + 1)]
    for text in texts:
        expected = re.search(pattern, text, re.ASCII) is not None
        assert expected == _matches(found, text), text
        seen[expected] += 1
    assert min(seen.values()) > 0


_PIECES = st.recursive(
    st.sampled_from(["a", "b", "[ab]", "[^a]", "c"]), lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join), st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        inner.map(lambda one: f"(?:{one})*"), inner.map(lambda one: f"(?:{one})?")), max_leaves=5)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(["", "?=", "?!"]), _PIECES), min_size=1, max_size=4), st.booleans(),
       st.booleans(), st.lists(st.text("abc", max_size=6), min_size=20, max_size=20))
def test_random_patterns_that_look_ahead(parts: list[tuple[str, str]], begins: bool, ends: bool, texts: list[str]
                                         ) -> None:
    """Conditions anywhere in a row: found in the same texts; as a whole, the same too."""
    pattern = "^" * begins + "".join(f"({look}{inner})" for look, inner in parts) + "$" * ends
    for read, judge in ((lambda each: looking.search(each, Work()), re.search),
                        (lambda each: [looking.whole(each, Work())], re.fullmatch)):
        try:
            found = read(pattern)
        except TooLargeError:
            continue
        except ConstraintError:  # no text matches
            found = [Portable("(?!)", ())]
        for text in texts:
            assert (judge(pattern, text) is not None) == _matches(found, text), (pattern, text)


@pytest.mark.parametrize(("pattern", "words"), [
    (r"^(?<=a)b", "looks behind"), (r"^(?<!a)b", "looks behind"), (r"(?=a)*b", "a group that repeats"),
    (r"^(?:a(?=b)|b)+$", "a group that repeats"), (r"^(?!a)b(?=", "without its )"), (r"^(?=a)\bb", "a border"),
    (r"^a(?=" + ".{3}" * 40 + r"b).*c.{20}$", "looks ahead for more"), (r"^(?=a)(?!a).*$", "no document")])
def test_others_are_refused_with_what_to_write(pattern: str, words: str) -> None:
    """By the path of the pattern, in the words of what it has."""
    with pytest.raises(ConstraintError) as caught:
        compiler().compile(spec.JsonSchema({"type": "string", "pattern": pattern}))
    assert words in str(caught.value)
    assert caught.value.hint


def test_a_look_costs_little() -> None:
    """Patterns that are made to cost end at their bounds, and a schema has few of them."""
    deep = "(?!" * 12 + ".*a.{9}" + ")" * 12
    for pattern in ("^(?!.*a.{40})", f"^x{deep}.*", "^x(?=" + "(a|b)*" * 200 + ")", "^x(?=(?:[^\\s\\S]{900}){900}.*)",
                    "^x(?=(((a{900}){900}){900}))", "^x(?=" + "(?:(?:[^\\s\\S]" * 9 + "){900}){900}" * 9 + ")",
                    "^x" + "".join(f"(?=.*{chr(0x4e00 + each)})" for each in range(200))):
        begun = time.process_time()
        with contextlib.suppress(ConstraintError):
            looking.search(pattern, Work())
        assert pace.within(time.process_time() - begun, 1.5)
    many = {"properties": {f"p{number}": {"pattern": f"^x(?:a|b)(?!.*{number}.*c.{{5}}$)"} for number in range(900)}}
    begun = time.process_time()
    with pytest.raises(ConstraintError, match="looks ahead for more"):
        check_schema(many)
    assert pace.within(time.process_time() - begun, 3)


def test_the_table_knows_equal_languages() -> None:
    """Laws of languages hold by number."""
    table = Languages(Work())
    a, b = table.of(((97, 97),)), table.of(((98, 98),))
    assert table.either(a, b) == table.either(b, a, a)
    assert table.inverse(table.both(table.inverse(a), b)) != table.both(a, b)
    assert table.then(a, table.then(b, 1)) == table.then(a, b)
