"""The parser: what it reads, what it reports and where, and that HashiCorp's own parser reads the same."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.policy.explaining.checking import check, check_bytes
from appliance.policy.explaining.lexer import LenientLexer, Marks
from appliance.policy.explaining.parser import parse
from appliance.policy.explaining.report import MAX_DIAGNOSTICS, FullReport
from appliance.policy.hcl import grammar, tabulate
from appliance.policy.hcl.diagnostics import SourceText
from appliance.policy.hcl.parser import MAX_BYTES
from appliance.policy.hcl.reading import MAX_DEPTH
from appliance.policy.hcl.tokens import MAX_TOKENS
from appliance.policy.hcl.tree import Body, Broken, ListNode, Literal, Node
from tests.support import extent, hcl_judge, hcl_texts, pace
from tests.support.environment import unmeasured
from tests.support.policies import BASE, marked, with_lines

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted([*ROOT.glob("examples/*.hcl"), *ROOT.glob("policies/*.hcl")])
TOP = ("limits", "model", "tee", "appliance")


def parsed(text: str) -> tuple[Body, FullReport]:
    """Parse a text."""
    report = FullReport(SourceText(text, "t.hcl"))
    return parse(report, TOP), report


def read(text: str) -> tuple[Any, FullReport]:
    """Parse a text into plain values: blocks as a list of (type, labels, content)."""
    body, report = parsed(text)
    return plain(body), report


def plain(node: Node) -> Any:
    """Turn a node into plain values."""
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, ListNode):
        return [plain(item) for item in node.items]
    if isinstance(node, Broken):
        return "<broken>"
    content: dict[str, Any] = {name: plain(attribute.value) for name, attribute in node.attributes.items()}
    blocks = [(block.type, [label for label, _ in block.labels], plain(block.body)) for block in node.blocks]
    return {**content, "": blocks} if blocks else content


VALUES = [
    ('"x"', "x"), ('""', ""), ("1", 1), ("-1", -1), ("0", 0), ("1.5", 1.5), ("-2.5e-3", -0.0025), ("1e3", 1000),
    ("true", True), ("false", False), ("[]", []), ("[1, 2]", [1, 2]), ("[1, 2,]", [1, 2]),
    ("[\n 1, # one\n 2\n]", [1, 2]), ("[[1], []]", [[1], []]), ("{}", {}), ("{ a = 1, b : 2 }", {"a": 1, "b": 2}),
    ('{\n "a b" = 1\n c = [2]\n}', {"a b": 1, "c": [2]}), (r'"\n\r\t\"\\"', '\n\r\t"\\'),
    (r'"\u00e9\U0001F600"', "é😀"),
    ('"$${x} %%{y} $ % $$ %% 5%"', "${x} %{y} $ % $$ %% 5%"), ('"# no // comment /* here"', "# no // comment /* here"),
    ("<<E\na\n  b\n\nE", "a\n  b\n\n"), ("<<-E\n    a\n\n      b\n    E", "a\n\n  b\n"), ("<<E\nE", ""),
    ('<<E\n\\n "q" {{ x }} {% y %} $${z}\n  E', '\\n "q" {{ x }} {% y %} ${z}\n'), ("1 // c", 1), ("/* a */ 1", 1),
    (str(2**53 - 1), 2**53 - 1), ('"héé 中"', "héé 中"),
    ("1.0", 1), ("10e-1", 1), ("15e-1", 1.5), ("-1.5e1", -15), ("0e9", 0), ("-0.0", 0), ("1e-400", 0.0),
    ("9.007e15", 9007 * 10**12),
    ("<<ÄÖ\nx\nÄÖ", "x\n"), ("<<-é-1\n  x\n  é-1", "x\n"), ("<<E\nx\n\u00a0E", "x\n"),
]


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_reads_values(text: str, value: object) -> None:
    """Each literal form gives its value, of the right type."""
    got, report = read(f"a = {text}\n")
    assert not report.found
    assert (value, type(value)) == (got["a"], type(got["a"]))


def test_reads_blocks() -> None:
    """Blocks nest, carry labels, and may stand on one line."""
    got, report = read('a "b" "c" { d = 1\n e {} }\nf { g = 1 h = 2 i { j = "k" } }\n')
    assert not report.found
    assert {"": [("a", ["b", "c"], {"d": 1, "": [("e", [], {})]}),
                 ("f", [], {"g": 1, "h": 2, "": [("i", [], {"j": "k"})]})]} == got


# a mistake, with « where the finding must point; its code; a piece of summary or fix; what is read nevertheless
MISTAKES = [
    ('a = «"x\nb = 1', "syntax", "closing quote", {"a": "<broken>", "b": 1}),
    ("a = «512MiB\nb = 1", "syntax", 'write "512MiB"', {"a": "<broken>", "b": 1}),
    ("a = «007", "syntax", "write 7: leading zeros", {"a": "<broken>"}),
    ("a = «0x1f", "syntax", "not a number", {"a": "<broken>"}),
    ("a = «1_000", "syntax", "underscores", {"a": "<broken>"}),
    ("a = «1.", "syntax", "not a number", {"a": "<broken>"}),
    ("a = «9007199254740992", "syntax", "9007199254740992 is too large a number numbers from -9007199254740991",
     {"a": "<broken>"}),
    ("a = «1e999", "syntax", "too large", {"a": "<broken>"}),
    ("a = «" + "1" * 41, "syntax", "has 41 characters, so it is not a number of at most 40", {"a": "<broken>"}),
    ("a = «1e+\nb = 1", "syntax", "digits behind the e", {"a": "<broken>", "b": 1}),
    ("a = «b\nc = 1", "expression", 'write "b"', {"a": "<broken>", "c": 1}),
    ("a = «b.c\nd = 1", "expression", "computed", {"a": "<broken>", "d": 1}),
    ('a = «env("HOME")\nd = 1', "expression", "computed", {"a": "<broken>", "d": 1}),
    ("a = «1 + 2\nd = 1", "expression", "computed", {"a": "<broken>", "d": 1}),
    ("a = «true ? 1 : 2\nd = 1", "expression", "computed", {"a": "<broken>", "d": 1}),
    ("a = «(1)\nd = 1", "expression", "computed", {"a": "<broken>", "d": 1}),
    ("a = «!true", "expression", "computed", {"a": "<broken>"}),
    ("a = «- 1", "expression", "computed", {"a": "<broken>"}),
    ("a = «[1][0]", "expression", "computed", {"a": "<broken>"}),
    ('a = «"x" == "y"', "expression", "computed", {"a": "<broken>"}),
    ("a = [«for x in y : x]\nb = 1", "expression", "computed", {"a": ["<broken>"], "b": 1}),
    ("a = [1, «b + 1, 3]", "expression", "computed", {"a": [1, "<broken>", 3]}),
    ("a = «NULL\nb = 1", "expression", "leave the attribute out", {"a": "<broken>", "b": 1}),
    ("a = «True\nb = 1", "expression", "write true", {"a": "<broken>", "b": 1}),
    ("a = «.5\nb = 1", "syntax", "such as 8080 or 0.5", {"a": "<broken>", "b": 1}),
    ("a = «+5\nb = 1", "syntax", "such as 8080", {"a": "<broken>", "b": 1}),
    ("a = «\uff18\nb = 1", "syntax", "such as 8080", {"a": "<broken>", "b": 1}),
    ("a = «\u201cx\u201d\nb = 1", "syntax", "straight double quotes", {"a": "<broken>", "b": 1}),
    ("a = «'x'\nb = 1", "syntax", "straight double quotes", {"a": "<broken>", "b": 1}),
    ("a = «null", "expression", "leave the attribute out", {"a": "<broken>"}),
    ('a = "x «${b} y"\nc = 1', "expression", "$${", {"a": "<broken>", "c": 1}),
    ('a = "x «${f("}")} y"\nc = 1', "expression", "template", {"a": "<broken>", "c": 1}),
    ('a = "«%{ if b }y%% "\nc = 1', "expression", "%%{", {"a": "<broken>", "c": 1}),
    ("a = «<<E\n ${b}\nE\nc = 1", "expression", "template", {"a": "<broken>", "c": 1}),
    ("a = «<<E\nx\nb = 1", "syntax", "E alone", {"a": "<broken>"}),
    (r'a = "x «\d y"', "syntax", r"\\d", {"a": "<broken>"}),
    (r'a = "«\ud800"', "syntax", "a surrogate: half of a character", {"a": "<broken>"}),
    (r'a = "«\ud83d\ude00"', "syntax", r"write \U0001F600", {"a": "<broken>"}),
    (r'a = "«\u12"', "syntax", "without its 4 hexadecimal digits", {"a": "<broken>"}),
    (r'a = "«\U0001F60"', "syntax", "without its 8 hexadecimal digits", {"a": "<broken>"}),
    (r'a = "«\U00110000"', "syntax", "beyond the last character, U+10FFFF", {"a": "<broken>"}),
    (r'a = "«\u0000"', "syntax", "NUL", {"a": "<broken>"}),
    ("a = 1\n«a = 2", "duplicate", "line 1", {"a": 1}),
    ("a = { b = 1, «b = 2 }", "duplicate", "delete", {"a": {"b": 1}}),
    ("a«: 1", "syntax", "write a = ...", {"a": 1}),
    ('«a "x"\nb = 1', "syntax", "write a = ...", {"a": "<broken>", "b": 1}),
    ("«a 1\nb = 1", "syntax", "write a = ...", {"a": "<broken>", "b": 1}),
    ("«a\nb = 1", "syntax", "name = value", {"a": "<broken>", "b": 1}),
    ('«"a" = 1', "syntax", "without quotes", {"a": 1}),
    ("a = «\nb = 1", "syntax", "a value", {"a": "<broken>", "b": 1}),
    ("a = 1«, \nb = 2", "syntax", "delete", {"a": 1, "b": 2}),
    ("a = 1 «2\nb = 2", "syntax", "end of the line", {"a": 1, "b": 2}),
    ("a = [1«\n 2]", "syntax", "comma is missing", None),
    ("a = [«, 1]", "syntax", "a value", None),
    ("a = «[1, 2\nb = 1", "syntax", "] behind", {"a": "<broken>", "b": 1}),
    ("a = «{ b = 1", "syntax", "} behind", {"a": "<broken>"}),
    ("a = { b «1 }", "syntax", "stands where = should", {"a": {}}),
    ("a = 0«,7\nb = 2", "syntax", "a comma stands in a number", {"a": 0, "b": 2}),
    ("a = 3«,\nb = 2", "syntax", "a comma stands behind an attribute", {"a": 3, "b": 2}),
    ("«}\na = 1", "syntax", "closes nothing", {"a": 1}),
    ("limits «{\n a = 1\ntee {\n b = 2\n}", "syntax", "before line 3",
     {"": [("limits", [], {"a": 1}), ("tee", [], {"b": 2})]}),
    ("limits «{\n a = 1", "syntax", "end of the file", {"": [("limits", [], {"a": 1})]}),
    ("a «b {\n}", "syntax", 'write "b"', {"": [("a", ["b"], {})]}),
    ("a«\n{\n}", "syntax", "line of a", {"": [("a", [], {})]}),
    ("«= 1\nb = 1", "syntax", "attribute or block", {"b": 1}),
    ("«@\nb = 1", "syntax", "attribute or block", {"b": 1}),
    ("«<<\nb = 1", "syntax", "attribute or block", {"b": 1}),
    ("«/* x\na = 1", "syntax", "*/", {}),
    ("a = 1 «\x07\nb = 1", "character", "U+0007", {"a": 1, "b": 1}),
    ('a = "«\u202e"', "character", "U+202E", {"a": "\u202e"}),
    ("«\x00a = 1", "character", "U+0000", {"a": 1}),
    ("a = 1«\rb = 1", "character", "U+000D", {"a": 1, "b": 1}),
    ("«é = 1", "syntax", "the name é has a letter beyond ASCII", {}),
    ("«aé {\n}\nb = 1", "syntax", "the name aé", {"b": 1}),
    ("a = { «é = 1, b = 2 }", "syntax", "the name é", {"a": {"b": 2}}),
    ("a = «é", "expression", 'write "é"', {"a": "<broken>"}),
    ("a =«\u00a01\nb = 1", "character", "the blank U+00A0 stands outside of a text", {"a": 1, "b": 1}),
    ("a«\u200b = 1", "character", "the invisible character U+200B", {"a": 1}),
    ("a = «<<E # c\nx\nE\nb = 1", "syntax", "write <<E", {"a": "<broken>", "b": 1}),
    ("a = «<< E\nx\nE\nb = 1", "syntax", "without blanks, quotes or comments", {"a": "<broken>", "b": 1}),
    ("a = «<<1E\nx\n1E\nb = 1", "syntax", "write <<END, and END below the text", {"a": "<broken>", "b": 1}),
    ("a = «<<E\nx\nE,\nb = 1", "syntax", "line 3 holds E and more", {"a": "<broken>"}),
    ("b {\n a = «<<E\nx\n}\nc = 1", "syntax", "add a line with E", None),
    ('a = [\n «<<E\nx\n]\n', "syntax", "E alone", None),
    ("b {\n a = 1 «/* c\n}", "syntax", "never closed", None),
    ('b «"l\nc = 1', "syntax", "not closed on its line", None),
    ("b «'l' {}\nc = 1", "syntax", "write texts in straight double quotes", None),
    ('b "l" «= {}\nc = 1', "syntax", "b with a label is a block", None),
    ("a = true «false\nb = 1", "syntax", "the end of the line", None),
]


@pytest.mark.parametrize(("text", "code", "words", "rest"), MISTAKES)
def test_reports_one_mistake_and_goes_on(text: str, code: str, words: str, rest: object) -> None:
    """Each mistake is one finding, at its place, with its fix; what stands around it is read."""
    clean, place = marked(text)
    got, report = read(clean + "\n")
    assert 1 == len(report.found), report.found
    finding = report.found[0]
    assert (code, place) == (finding.code, (finding.line, finding.column))
    assert words in f"{finding.summary} {finding.detail} {finding.fix}"
    if rest is not None:
        assert rest == got


def test_nesting_is_bounded() -> None:
    """The deepest allowed nesting is read, one more is a finding, and a hundred thousand are no crash."""
    for depth, findings in ((MAX_DEPTH, 0), (MAX_DEPTH + 1, 1), (40_000, 1)):
        _, report = read(f"a = {'[' * depth}{']' * depth}\n")
        assert findings == len(report.found)
    assert "too-large" == report.found[0].code
    _, report = read("a {\n" * 30_000)
    assert report.found
    assert len(report.found) <= MAX_DIAGNOSTICS + 1


PART = extent.examples(4, 1)  # of the largest texts, what is read
HOPELESS = {
    "NUL": b"\0", "brackets": b"[", "blocks": b"a{", "templates": b'a="${${', "quotes": b'"', "comments": b"/*",
    "heredocs": b"<<E\n", "escapes": b'"\\q', "strays": b"aaaa=1\n", "words": b"a ", "minus": b"-", "marks": b"@",
    "conditions": b"1?1:", "open objects": b"a={b=", "bidi": "\u202e".encode(), "bytes": b"\xff", "lists": b"a=[1,\n",
    "models": b'model "a" {\n', "choices": b'tee { platforms = ["sev_snp",\n', "CR": b"\r", "blank": b"\n",
}


@pytest.mark.parametrize("name", HOPELESS)
def test_hopeless_input_is_cheap(name: str) -> None:
    """The largest file of any repeated piece takes seconds at most, and gives a bounded number of findings. Outside of
    the soak: a part of that file, in the same part of the time."""
    data = (HOPELESS[name] * MAX_BYTES)[:MAX_BYTES // PART]
    start = time.process_time()
    checked = check_bytes(data)
    assert pace.within(time.process_time() - start, 5 / PART)
    assert 1 <= len(checked.diagnostics) <= MAX_DIAGNOSTICS + 1
    assert checked.policy is None


@pytest.mark.parametrize(("data", "words", "place"), [
    (BASE.encode().replace(b"demo.gguf", b"d\xe9mo.gguf"), "0xe9 at offset", (9, 14)),
    (BASE.encode().replace(b"\n", b"\r\n").replace(b"demo.gguf", b"d\xe9mo.gguf"), "0xe9", (9, 14)),
    (b" " * (MAX_BYTES + 9), "1048585 bytes, more than the 1048576 bytes allowed", (1, 1)),
    (BASE.encode("utf-16"), "not UTF-8", (1, 1)),
])
def test_encoding(data: bytes, words: str, place: tuple[int, int]) -> None:
    """A file that is not plain UTF-8 of bounded size is refused, at the first wrong byte."""
    finding = next(d for d in check_bytes(data).diagnostics if d.code == "encoding")
    assert words in finding.summary
    assert place == (finding.line, finding.column)
    assert check_bytes(data).policy is None


def test_a_file_in_another_encoding_is_one_finding() -> None:
    """Not one for each of its characters."""
    assert ["save the file as plain UTF-8"] == [d.fix for d in check_bytes(BASE.encode("utf-16")).diagnostics]


def test_a_file_too_large_is_not_told_to_change_its_encoding() -> None:
    """The fix for a file that is too large is to shorten it."""
    assert ["make it shorter"] == [d.fix for d in check_bytes(b" " * (MAX_BYTES + 1)).diagnostics]


def test_encoding_is_the_only_finding() -> None:
    """A wrong byte in a comment hides nothing and brings no further findings."""
    assert ["encoding"] == [d.code for d in check_bytes(b"# \xe9\n" + BASE.encode()).diagnostics]


def test_a_byte_order_mark_is_passed_over() -> None:
    """Editors of Windows write one: the policy means the same, and places count behind it."""
    mark = b"\xef\xbb\xbf"
    assert check_bytes(mark + BASE.encode()).policy == check(BASE).policy
    assert check_bytes(mark + b"a = 1\n").diagnostics == check_bytes(b"a = 1\n").diagnostics
    wrong = check_bytes(mark + BASE.encode().replace(b"demo.gguf", b"d\xe9mo.gguf")).diagnostics[0]
    assert ("encoding", 9, 14) == (wrong.code, wrong.line, wrong.column)
    assert "character" == check_bytes(mark * 2 + BASE.encode()).diagnostics[0].code


LOST = {
    "a text": ('file   = "demo.gguf"', "file   = <<E\n  demo.gguf", "this text has no end"),
    "a comment": ("limits {", "/* limits {", "this comment is never closed"),
    "a brace": ("audit {\n}\n", "audit {\n", "the brace of audit is not closed"),
    "the rest": (BASE[BASE.index("  sha256"):], "", "the brace of model is not closed"),
}


@pytest.mark.parametrize("what", LOST)
def test_what_takes_the_rest_of_the_file_is_the_only_finding(what: str) -> None:
    """Neither the brace that the text swallowed is missed, nor the blocks that stand in it."""
    old, new, told = LOST[what]
    text = BASE.replace(old, new)
    assert text != BASE
    found = check(text).diagnostics
    assert [told] == [each.summary.partition(":")[0] for each in found], found


def test_the_cause_comes_first() -> None:
    """A mistake in a line is told before what is missing because of it, wherever that is told to stand."""
    found = check(BASE.replace("port = 8080", "p\u00f6rt = 8080")).diagnostics
    assert ["the name p\u00f6rt has a letter beyond ASCII", 'a listener of kind "tcp" needs port'] == [
        each.summary for each in found]
    assert found[0].line > found[1].line


def test_a_whole_number_may_be_written_in_any_way() -> None:
    """Its field takes it, and the digest is the same."""
    assert check(BASE).policy == check(BASE.replace("port = 8080", "port = 8.08e3")).policy
    assert not check(BASE.replace("port = 8080", "port = 8.08")).valid


def test_text_with_lone_surrogates() -> None:
    """A Python text that UTF-8 cannot carry is a finding as well."""
    assert "encoding" == check(BASE.replace("demo.gguf", "\ud800")).diagnostics[0].code


def test_windows_line_ends() -> None:
    """CRLF files are valid and mean the same."""
    assert check_bytes(BASE.replace("\n", "\r\n").encode()).policy == check(BASE).policy


def test_no_diagnostic_shows_a_secret() -> None:
    """Neither text nor JSON repeats what looks like a key, whatever the finding on that line is."""
    for line in ('api_key_sha256 = ["sk-appliance-0123456789abcdef"]', 'models = ["sk-appliance-0123456789abcdef',
                 'role = "sk-appliance-0123456789abcdef"', 'xyz = "sk-appliance-0123456789abcdef"',
                 'api_key_sha256 = ["hunter2-hunter2-0123456789abcdef"]',
                 f'models = ["{"x" * 300}" "sk-appliance-0123456789abcdef"]'):
        text = BASE.replace('tenant "acme" {', 'tenant "acme" {\n' + line)
        checked = check(text)
        assert checked.policy is None
        for finding in checked.diagnostics:
            assert "0123456789abcdef" not in f"{finding}{finding.as_json()}"


@pytest.mark.parametrize(("text", "marker"), [
    ('a = "x ${b} y"', "       ^^^^"), ('a = "x ${f("}")} y"', "       ^^^^^^^^^"), ('a = "x ${b y"', "       ^^"),
    ("a = [1 2]", "      ^"), ('a = "x', "    ^^"), ("a = b.c[0] # d", "    ^^^^^^"), ("a = 1 + 2 }", "    ^^^^^"),
])
def test_markers_span_the_mistake(text: str, marker: str) -> None:
    """The carets cover what is wrong, and nothing else."""
    _, report = read(text + "\n")
    assert marker == report.found[0].marker


def test_source_lines_are_fit_for_a_terminal() -> None:
    """Escape sequences in a file do not reach the terminal, and a long line is cut around the mistake."""
    finding = check(f'x = "\x1b[31m"\ny = [{"1, " * 5000}z]').diagnostics
    assert all("\x1b" not in str(d) and len(d.source) <= 120 for d in finding)
    assert any(d.source[d.marker.index("^")] == "z" for d in finding)


def test_caret_points_at_the_mistake() -> None:
    """The marker line stands below the wrong value."""
    text = with_lines("limits", "\tprompt_tokens = 0")
    finding = check(text).diagnostics[0]
    assert ("prompt_tokens = 0", "^") == (finding.source.strip(), finding.marker.strip())
    assert "0" == finding.source[finding.marker.index("^")]
    assert f"policy.hcl:{finding.line}:18: error[value]" in str(finding)


@pytest.fixture(scope="module")
def judge() -> Iterator[hcl_judge.Judge]:
    """HashiCorp's own parser."""
    made = hcl_judge.Judge()
    yield made
    made.close()


# What a policy refuses of the literals that HashiCorp's parser takes.
NARROWER = ("is not a number", "too large", "the control character", "is the escape of NUL", "stands without quotes",
            "nested more than", "a letter beyond ASCII", "is set twice")


def agrees(text: str, judge: hcl_judge.Judge) -> bool:
    """Compare one text with the judge; return whether it is one of literals alone."""
    said = judge.read(text)
    body, report = parsed(text)
    if not said.literal:
        return False
    if report.found:
        assert all(any(words in found.summary for words in NARROWER) for found in report.found), (text, report.found)
    else:
        assert hcl_judge.same(hcl_judge.whole(body), said.body), (text, hcl_judge.whole(body), said.body)
    return not report.found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_hashicorp_reads_the_examples(path: Path, judge: hcl_judge.Judge) -> None:
    """HashiCorp's parser takes each example policy, and gives the same values."""
    assert agrees(path.read_text(), judge)


@pytest.mark.parametrize("seed", range(8))
def test_hashicorp_reads_the_same(seed: int, judge: hcl_judge.Judge) -> None:
    """What HashiCorp's parser takes of random literals is read here, to the same values."""
    rng = random.Random(seed)
    assert sum(agrees(hcl_texts.body(rng), judge) for _ in range(150)) > 75


@pytest.mark.parametrize("seed", range(4))
def test_hashicorp_reads_mutations_the_same(seed: int, judge: hcl_judge.Judge) -> None:
    """The same for texts with pieces changed: where they are still of literals, they are read alike, or refused."""
    rng = random.Random(seed)
    whole = [path.read_text() for path in EXAMPLES] + [hcl_texts.body(rng) for _ in range(100)]
    whole += [marked(text)[0] + "\n" for text, *_ in MISTAKES if "é" not in text]
    assert sum(agrees(hcl_texts.mutated(rng.choice(whole), rng), judge) for _ in range(200)) > 10


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_hashicorp_reads_values(text: str, value: object, judge: hcl_judge.Judge) -> None:
    """Each literal form is one of HashiCorp's, with the same value."""
    assert agrees(f"a = {text}\n", judge)


def test_reading_unpickles_nothing_and_builds_no_grammar() -> None:
    """A policy is read by the table of the package: no pickle is read, no cache written, no grammar opened."""
    code = """
import sys
seen = []
def hook(event, arguments):
    if event.startswith("pickle.") or (event == "open" and str(arguments[0]).endswith((".lark", ".bin", ".pickle"))):
        seen.append((event, arguments))
sys.addaudithook(hook)
import appliance.policy
assert not {"lark", "hcl2"} & set(sys.modules), "imported before a policy is read"
appliance.policy.load("examples/demo.hcl")
assert "lark" in sys.modules
print(seen, sorted(name for name in sys.modules if name.startswith("hcl2")))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=unmeasured(), capture_output=True, text=True, check=True)
    assert "[] []" == done.stdout.strip()


def test_the_table_is_of_the_locked_grammar() -> None:
    """`make table` would write the table that is there, byte for byte."""
    path = ROOT / "appliance/policy/hcl/table.json"
    assert path.read_text() == tabulate.text(), "run `make table`"


JUST_BELOW = {
    "nesting": "a = " + "[" * MAX_DEPTH + "]" * MAX_DEPTH + "\n",
    "too deep": "a = " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1) + "\n",
    "blocks": "a {\n" * MAX_DEPTH + "}\n" * MAX_DEPTH,
    "heredocs": "a = <<-E\n \n\n  x\n E\n", "parentheses": "a = ((((1))))\n", "conditions": "a = b ? c : d ? e : f\n",
    "operations": "a = 1 + 2 * 3 - 4\n", "strings": 'a = ["x", "y", "z"]\n', "braces": "}\n",
    "templates": 'a = "${b}"\n',
}


@pytest.mark.parametrize("name", JUST_BELOW)
def test_the_most_words_are_cheap(name: str) -> None:
    """A policy just below the bound on words is read, or refused with a bounded number of findings, in about a second.

    The limit is generous: it is there to find work that grows faster than the text. Outside of the soak: a part of it.
    """
    piece = JUST_BELOW[name]
    words = LenientLexer(grammar.load(), FullReport(SourceText(piece, "t")), Marks()).run()
    assert words is not None
    part = 1 if name == "operations" else PART
    text = piece * min(MAX_TOKENS * 9 // 10 // len(words) // part, MAX_BYTES // len(piece))
    start = time.process_time()
    checked = check(text)
    assert pace.within(time.process_time() - start, 6 / part)
    assert 1 <= len(checked.diagnostics) <= MAX_DIAGNOSTICS + 1
    assert not any("words and marks" in found.summary for found in checked.diagnostics)


BIG = {
    "brackets": "a = " + "[" * 500_000 + "]" * 500_000, "blank heredoc": "a = <<-E\n" + " \n" * 500_000 + "E\n",
    "string": 'a = "' + "x" * 1_000_000 + '"', "comment": "/*" + "x\n" * 500_000 + "*/",
    "open heredoc": "a = <<E\n" + "E \\\n" * 250_000, "open comment": "/* " + "* /" * 300_000,
}


@pytest.mark.parametrize("name", BIG)
def test_one_large_piece_is_cheap(name: str) -> None:
    """A file of nearly the most bytes that is one token, or a million brackets, takes about a second, too."""
    assert len(BIG[name]) < MAX_BYTES
    start = time.process_time()
    checked = check(BIG[name])
    assert pace.within(time.process_time() - start, 6)
    assert checked.policy is None
    if name == "brackets":
        assert [f"the policy has more than {MAX_TOKENS} words and marks"] == [d.summary for d in checked.diagnostics]
