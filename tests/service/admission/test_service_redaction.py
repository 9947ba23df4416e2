"""Redaction: streamed pieces add up to the redacted whole, and nothing that may be in a match leaves early."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.service.admission.prompts import AbandonedError, Leaving
from appliance.service.admission.redaction import Redactor, Substitution, redact
from tests.support import pace
from tests.support.extent import examples
from tests.support.server import KEY, Server, write_policy

EXPRESSIONS = [
    r"\d{3}-\d{2}-\d{4}", r"\d{3}(?:-\d{4})?", r"a.{0,5}z|b", r"a.{0,4}?b", r"(?i)ab{1,3}", r"\ba\w{0,3}\b",
    r"b$", r"a|ab|abz", r"(?:ab){2,3}", r"[^ ]{1,9}@[a-z]{1,5}", r"z\Z", r"(?:a|b){1,3}?1", r"^a", r"\$1",
    r"(?m)a$", r"a$|a\nb", r"(?s)1.2", r"\Ba", r"(?m:^)a|b{2}", r"a(?i:b)z?", r"[-a\]^]{1,2}1", r"(?a)\w\s{1,2}@",
    r"b\b", r"(?P<x>a)-1", r"(?:a{1,2}(?:b|z1)?){1,4}2", r"\A1", r"[\s\d]{2}a",
]
TEXT = st.text(alphabet="ab1z2- @$\nA", max_size=40)


def _stream(rules: list[Substitution], pieces: list[str]) -> str:
    redactor = Redactor(rules)
    return "".join([redactor.feed(piece) for piece in pieces] + [redactor.finish()])


@pytest.mark.parametrize("expression", EXPRESSIONS)
@settings(max_examples=examples(30, 80), deadline=None)
@given(text=TEXT, cuts=st.lists(st.integers(0, 40), max_size=8))
def test_any_cutting_gives_the_redacted_whole(expression: str, text: str, cuts: list[int]) -> None:
    """However an answer is cut into pieces, the redacted pieces join to what Python's own `re.sub` makes of it."""
    points = sorted({0, len(text), *[cut for cut in cuts if cut < len(text)]})
    pieces = [text[a:b] for a, b in itertools.pairwise(points)]
    expected = re.sub(expression, "[x]", text)
    assert expected == _stream([Substitution.compile("r", expression, "[x]")], pieces)
    assert expected == _stream([Substitution.compile("r", expression, "[x]")], list(text))


CHAIN = [Substitution.compile("one", r"\d{1,9}", "ab"), Substitution.compile("two", r"ab-ab", "<both>")]


def test_rules_apply_in_order() -> None:
    """A later rule sees what an earlier one put in."""
    assert "x <both> y" == redact(CHAIN, "x 12-34 y")
    assert "x <both> y" == _stream(CHAIN, list("x 12-34 y"))


HELD_BACK = [  # expression, text so far, what may leave
    (r"\d{3}-\d{2}-\d{4}", "my number is 123-4", "my number is "),
    (r"\d{3}-\d{2}-\d{4}", "my number is 12 or", "my number is 12 or"),
    (r"\d{3}(?:-\d{4})?", "call 555-", "call "),
    (r"\d{3}(?:-\d{4})?", "call 555 now", "call [x] now"),
    (r"\w{1,64}@\w{1,64}", "write to ann@b", "write to "),
    (r"\w{1,64}@\w{1,64}", "write to ann, please", "write to ann, "),
    (r"(?i)secret: .{1,100}", "the Secret", "the "),
    (r"(?a:\w)x", "la fée é", "la fée é"),
    ("(?:ab|c){2,40}d", "xx abcab", "xx "),
]


@pytest.mark.parametrize(("expression", "text", "leaves"), HELD_BACK)
def test_holds_back_what_may_still_match(expression: str, text: str, leaves: str) -> None:
    """Text leaves as soon as it is certain, and no sooner."""
    assert leaves == Redactor([Substitution.compile("r", expression, "[x]")]).feed(text)


def test_replacement_is_literal() -> None:
    """A replacement is text, not a template."""
    rules = [Substitution.compile("r", "(a)", r"\1\g<0>")]
    assert r"\1\g<0>" == redact(rules, "a")
    assert r"\1\g<0>" == _stream(rules, ["a"])


def test_what_has_left_is_not_kept() -> None:
    """Of a long text what is settled takes no memory, and its beginning is nowhere else."""
    rules, text, count = [], "a ab cd ", 5000
    rules += [Substitution.compile("a", r"\Aa", "-"), Substitution.compile("b", r"\bcd\b", "*")]
    assert "- ab * " + "a ab * " * (count - 1) == redact(rules, text * count) == _stream(rules, [text] * count)
    redactor = Redactor(rules)
    tracemalloc.start()
    for _ in range(count):
        redactor.feed(text)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < len(text) * count / 4  # what other threads take meanwhile included


def test_long_hostile_text_is_quick() -> None:
    """A text made to be slow, streamed token by token, costs milliseconds a token."""
    rules = [Substitution.compile("mail", r"[\w.]{1,64}@[\w.]{1,64}\.[a-z]{2,8}", "x")]
    redactor, text = Redactor(rules), "aaaa." * 400
    started = time.process_time()
    out = [redactor.feed(text[place:place + 4]) for place in range(0, len(text), 4)]
    assert text == "".join([*out, redactor.finish()])
    assert pace.within(time.process_time() - started, 5)


def test_many_matches_are_replaced_as_re_does() -> None:
    """Matches side by side, in slices, beyond ASCII and with every replacement: what `re.sub` makes."""
    text = "ab\x00a\ud800\U0001d538aab" * 40_000
    for expression, replacement in (("a", ""), ("a{1,2}b?", "<é>"), (".", "\U0001f600x"), ("\x00|\ud800", "\\1")):
        expected = re.sub(expression, lambda _match, new=replacement: new, text)
        assert expected == redact([Substitution.compile("r", expression, replacement)], text)


def test_whoever_leaves_ends_the_redaction() -> None:
    """A redaction for which nobody waits any more ends after the slice that it is in."""
    leaving = Leaving()
    assert "x" == redact([Substitution.compile("r", "a", "-")], "x", leaving)
    leaving.leave()
    with pytest.raises(AbandonedError):
        redact([Substitution.compile("r", "a", "-")], "b" * 10_000_000, leaving)


WORST = "[ab]{1,78}[ab]{1,78}[cd]", "(?:ab|c){1,2047}d", "(?:ab|c){1000,2047}d", "a[ab]{1,4000}c"


def _body(text: str) -> bytes:
    return json.dumps({"model": "tiny", "prompt": text, "max_tokens": 1}).encode()


def test_the_service_goes_on_while_it_redacts(tmp_path: Path, tiny_model: Path) -> None:
    """While prompts of half a MB, made to be slow for patterns that `check` accepts, are redacted, `/health` answers;
    SIGTERM in the middle ends the service."""
    blocks = "".join(f'pattern "p{number:02}" {{ regex = "{WORST[number % len(WORST)]}" }}\n' for number in range(40))
    policy = write_policy(tmp_path, {"tiny": tiny_model}, privacy=f"redaction {{\n{blocks}}}",
                          limits='request_size = "2MiB"', service='drain_timeout = "0s"')
    body = _body("".join(random.Random(1).choices("ab", k=1 << 19)))
    server = Server(policy, [tiny_model]).wait_ready()
    with ThreadPoolExecutor(2) as pool, server.http(KEY) as http, server.http() as other:
        asked = pool.submit(http.post, "/v1/completions", content=body, headers={"content-type": "application/json"})
        answered = 0
        while not asked.done():
            assert other.get("/health").status_code == 200
            answered += not asked.done()
        assert asked.result().status_code == 400  # too long a prompt, but for that as any other
        assert answered > 1
        cut = pool.submit(http.post, "/v1/completions", content=body, headers={"content-type": "application/json"})
        assert ["ready"] * 3 == [other.get("/health").json()["status"] for _ in range(3)]
        assert 0 == server.stop()
        assert cut.exception() is not None or cut.result().status_code in (400, 503)
