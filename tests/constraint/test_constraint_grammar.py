"""Grammars: llama.cpp's notation and Lark, with schemas and control tokens in them; choices and patterns."""

from __future__ import annotations

import itertools
import json
import random
import re

import pytest
from lark import Lark
from lark.exceptions import UnexpectedInput

from appliance.constraint import common, gbnf, spec
from appliance.constraint.lark import prepare
from appliance.errors import ConstraintError
from tests.constraint.walks import accepts, allowed, compiler, walked, words

# A grammar, the letters of texts to try, and Python's own pattern for the same language.
LANGUAGES = [
    ('root ::= "a"* b\nb ::= "a" | "b"', "ab", "a*(a|b)"),
    ('root ::= ("x" | "xy") "y"?', "xy", "(x|xy)y?"),
    ('root ::= [a-b]{2,3} "c"+', "abc", "[ab]{2,3}c+"),
    ('root ::= (item ",")* item\nitem ::= "a" | "(" item ")"', "a,()", None),
    ('root ::= [^a]\n  | "a" . # a comment\n', "ab", "[^a]|a."),
    ('root ::= "" | "a" root', "ab", "a*"),
    ('root ::= x{2} [\\]x-]\nx ::= "x"', "x]-", r"xx[\]x-]"),
    ('root::="é"|"\\u00e8"|"\\x41"|"\\"\\\\"\n', "éèA\"\\", 'é|è|A|"\\\\'),
    ('root ::= ("a" | "ab") "bc"', "abc", "a(b|bb)c|abc"), ('root ::= ("ab" | "aba" | "ba")+', "ab", "(ab|aba|ba)+"),
    ('root ::= "a" | "ab" | "abc" | "abd"', "abcd", "a|ab|abc|abd"), ('root ::= [a-b]? "ab" "a"*', "ab", "[ab]?aba*"),
    ('root ::= x "aab" | "aaab"\nx ::= "aa" | "a"', "ab", "(aa|a)aab|aaab"), ('root ::= . "ab" | "aa"', "ab", ".ab|aa"),
    ('root ::= "abab" "ab"? [^b]', "abc", "abab(ab)?[^b]"), ('root ::= "\\x7f" | "éa" | "é"', "\x7féa", "\x7f|éa?"),
    ('root ::= a-b _c\na-b ::= "a" "b"\n_c ::= ("c" | "")', "abc", "abc?"),
]


def _nested(text: str) -> bool:
    """Items within brackets, with commas between."""
    inner = text
    while (shorter := re.sub(r"\(a\)", "a", inner)) != inner:
        inner = shorter
    return re.fullmatch("a(,a)*", inner) is not None


@pytest.mark.parametrize(("text", "letters", "pattern"), LANGUAGES, ids=[case[0][:30] for case in LANGUAGES])
def test_a_grammar_is_the_language_that_it_says(text: str, letters: str, pattern: str | None) -> None:
    """All texts of up to five letters, before a pattern of the same language."""
    constraint = compiler().compile(spec.Gbnf(text))
    tried = ["".join(each) for size in range(6) for each in itertools.product(letters, repeat=size)]
    expected = {each for each in tried if (re.fullmatch(pattern, each, re.DOTALL) if pattern else _nested(each))}
    assert expected == {each for each in tried if accepts(constraint, each)}
    assert expected


@pytest.mark.parametrize("text", [
    "", "# nothing", 'start ::= "a"', 'root ::= a', 'root ::= "a', 'root ::= [a', 'root ::= [z-a]', 'root ::= []',
    'root ::= "a" )', 'root ::= ( "a"', 'root ::= "a"**', 'root ::= *', '"a"', 'root ::= "a"\nroot ::= "b"', "::= a",
    'root ::= "\\q"', 'root ::= "\\ud800"', 'root ::= "a"{3,2}', 'root ::= "a"{1,2000}',
    'root ::= ' + '"a" ' * 200_000])
def test_what_is_no_grammar_is_refused(text: str) -> None:
    """In words, and by its line where it has one."""
    with pytest.raises(ConstraintError) as caught:
        gbnf.to_lark(text)
    assert caught.value.hint


def test_schemas_in_a_grammar_are_held_to_the_same() -> None:
    """They are rewritten, compact, and refused by their paths."""
    text = 'start: "call " %json {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]} "!"'
    constraint = compiler().compile(spec.Lark(text))
    assert accepts(constraint, 'call {"a":3}!')
    for wrong in ('call {"a": 3}!', 'call {"a":"x"}!', 'call {}!', 'call {"a":3,"\\u0061":"x"}!', 'call {"a":3}'):
        assert not accepts(constraint, wrong)
    with pytest.raises(ConstraintError) as caught:
        compiler().compile(spec.Lark('start: %json {"properties": {"a": {"uniqueItems": true}}}'))
    assert "properties.a.uniqueItems" == caught.value.path


def test_control_tokens_are_tokens_and_other_names_text() -> None:
    """`<name>` is a token where the vocabulary has one of that name; strings and patterns are as they stand."""
    names = {"<|im_end|>": 300}
    assert prepare("start: <|im_end|> <x> \"<|im_end|>\" /<y>/ <[5-7]> # <z>\n", names) == \
        "start: <|im_end|> \"<x>\" \"<|im_end|>\" /<y>/ <[5-7]> # <z>\n"
    walk = compiler().compile(spec.Lark("start: <|im_start|> <x>")).begin()
    [token] = allowed(walk)
    assert words().is_special(token)
    walk.accept(token)
    assert [b"<"] == [words().piece(each) for each in allowed(walk)]


@pytest.mark.parametrize("text", ["start: %json", "start: %json 3", "start: %json {", 'start: %regex {"a": 1}',
                                  'start: %lark { start: "a" }', "%import lark.X\nstart: X", "start: missing",
                                  "start: <[99999999]>", "start: ((", 'start: "a', "start: /(/", "x: start", ""])
def test_grammars_that_are_none_are_refused(text: str) -> None:
    """With a hint; never by an error of another kind."""
    with pytest.raises(ConstraintError) as caught:
        compiler().compile(spec.Lark(text))
    assert caught.value.hint


def test_choices_and_patterns() -> None:
    """Choices are texts as they stand; a pattern counts from the first character to the last."""
    texts = ("a", "ab", 'say "x"', "line\nend", "(.*)", "日本")
    constraint = compiler().compile(spec.TextList(texts))
    assert [] == [text for text in texts if not accepts(constraint, text)]
    assert [] == [text for text in ("b", "abc", "", "say x", "line") if accepts(constraint, text)]
    for wrong in ((), ("a", "\x00"), ("\x7f",), ("\ud800",)):
        with pytest.raises(ConstraintError):
            compiler().compile(spec.TextList(wrong))
    for text in ("", "a\u200cb", "a\u200db", "10\u00a0km", "a\u00adb", "a\x85b", "a\u2028b", "\ufeff", "a\tb\fc"):
        for each in (spec.TextList((text, text, "other")), spec.JsonSchema({"enum": [text, "other"]})):
            written = text if isinstance(each, spec.TextList) else json.dumps(text, ensure_ascii=False)
            assert accepts(compiler().compile(each), written), (text, each)
    assert accepts(compiler().compile(spec.RegexText("")), "")
    assert not accepts(compiler().compile(spec.RegexText("")), "a")
    found = compiler().compile(spec.RegexText("a/b|c+$"))
    assert [] == [text for text in ("a/b", "c", "cc") if not accepts(found, text)]
    assert [] == [text for text in ("xa/b", "a/bx", "", "ac") if accepts(found, text)]


FAULTS = [
    ("start: missing", 1, "a name that is not defined"),
    ("start: a\na: b\n\n# c\nb: (\"x\"\n", 5, "something else than ')'"),
    ('start "a"', 1, "something else than ':'"), ('start: "a"\nstart: "b"', 2, "a rule that is there twice"),
    ("start: /(/", 1, "a bracket that is not closed"), ('start: A\nA: "a" B\nB: A', 3, "a terminal within itself"),
    ('start: a b\na: %json {\n"type":\n"object"}\nb: c', 5, "a name that is not defined"),
    ('%llguidance {}\n%import common.INT\n\nstart: INT nothing', 4, "a name that is not defined"),
    ("%import common.NOTHING\nstart: NOTHING", 1, "something else than a common terminal"),
    ('start: "a"\n%llguidance {"allow_invalid_utf8": true}', 2, "something else than no_forcing")]


@pytest.mark.parametrize(("text", "line", "words_of_it"), FAULTS, ids=range(len(FAULTS)))
def test_a_fault_of_a_grammar_has_its_line_and_its_cause(text: str, line: int, words_of_it: str) -> None:
    """By the line of the text that was sent, whatever it became on the way."""
    with pytest.raises(ConstraintError) as caught:
        compiler().compile(spec.Lark(text))
    assert (f"line {line}", "constraint-refused") == (caught.value.path, caught.value.code)
    assert words_of_it in caught.value.summary
    assert "smaller" not in str(caught.value)


def test_a_grammar_without_a_start_is_told_so() -> None:
    """Where there is no line to name."""
    for text in ("", 'x: "a"'):
        with pytest.raises(ConstraintError, match="the grammar has no rule"):
            compiler().compile(spec.Lark(text))


@pytest.mark.parametrize("name", common.TERMINALS)
def test_common_terminals_are_larks(name: str) -> None:
    """Lark's own reader, with its own file of terminals, takes the same texts: random ones, and those of ours."""
    theirs = Lark(f"start: {name}\n%import common.{name}", parser="lalr")
    ours = compiler().compile(spec.Lark(f"%llguidance {{}}\n\n%import common.{name} -> T\nstart: T"))
    rng, taken = random.Random(name), 0
    texts = ["".join(rng.choice("0159aFzZ_+-.eE \t\r\n\f\"\\\\/*#-") for _ in range(rng.randrange(1, 6)))
             for _ in range(300)]
    texts += ["#a", "//a", "--a", "/*a*/", "/***/", "/* * /", '"\\\\"', '"\\""', "\r\n", "1.", ".5e-3", "-1E+5", "a_1"]
    texts += [text for text in (walked(ours, rng, 40) for _ in range(20)) if text]
    for text in texts:
        try:
            found = str(theirs.parse(text).children[0]) == text
        except UnexpectedInput:
            found = False
        assert found == accepts(ours, text), text
        taken += found
    assert taken


def test_what_guidance_sends() -> None:
    """An empty header restricts nothing; imports come by each of Lark's forms, and twice."""
    text = ('%llguidance {}\n\nstart: a\n%import common (INT, WS_INLINE)\n%import common.INT // again\n'
            '%ignore WS_INLINE\na[capture="n"]: INT "+" INT\n')
    constraint = compiler().compile(spec.Lark(text))
    assert accepts(constraint, "12 + 3")
    assert not accepts(constraint, "12 + x")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "required": ["a", "b"],
              "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
    constraint = compiler().compile(spec.Lark(f"%llguidance {{}}\nstart: a\na[capture]: %json {json.dumps(schema)}"))
    assert accepts(constraint, '{"a": 3, "b": null}')
    assert not accepts(constraint, '{"a":3,"b":null}')
