"""The parser: what it reads, what it reports and where, and that python-hcl2 reads the same."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from appliance.policy import check, check_bytes
from appliance.policy.hcl.diagnostics import MAX_DIAGNOSTICS, Report, Text
from appliance.policy.hcl.brackets import MAX_DEPTH
from appliance.policy.hcl.parser import MAX_BYTES, parse
from appliance.policy.hcl.tree import Body, Broken, ListNode, Literal, Node
from tests.support import hcl_judge
from tests.support.environment import unmeasured
from tests.support.policies import BASE, marked, with_lines

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted([*ROOT.glob("examples/*.hcl"), *ROOT.glob("policies/*.hcl")])
TOP = ("limits", "model", "tee", "appliance")


def read(text: str) -> tuple[Any, Report]:
    """Parse a text into plain values: blocks as a list of (type, labels, content)."""
    report = Report(Text(text, "t.hcl"))
    return plain(parse(report, TOP)), report


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
    ('"x"', "x"), ('""', ""), ("1", 1), ("-1", -1), ("0", 0), ("1.5", 1.5), ("-2.5e-3", -0.0025), ("1e3", 1000.0),
    ("true", True), ("false", False), ("[]", []), ("[1, 2]", [1, 2]), ("[1, 2,]", [1, 2]),
    ("[\n 1, # one\n 2\n]", [1, 2]), ("[[1], []]", [[1], []]), ("{}", {}), ("{ a = 1, b : 2 }", {"a": 1, "b": 2}),
    ('{\n "a b" = 1\n c = [2]\n}', {"a b": 1, "c": [2]}), (r'"\n\r\t\"\\"', '\n\r\t"\\'),
    (r'"\u00e9\U0001F600"', "é😀"),
    ('"$${x} %%{y} $ % $$ %% 5%"', "${x} %{y} $ % $$ %% 5%"), ('"# no // comment /* here"', "# no // comment /* here"),
    ("<<E\na\n  b\n\nE", "a\n  b\n\n"), ("<<-E\n    a\n\n      b\n    E", "a\n\n  b\n"), ("<<E\nE", ""),
    ('<<E\n\\n "q" {{ x }} {% y %} $${z}\n  E', '\\n "q" {{ x }} {% y %} ${z}\n'), ("1 // c", 1), ("/* a */ 1", 1),
    (str(2**53 - 1), 2**53 - 1), ('"héé 中"', "héé 中"),
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
    ("a = «007", "syntax", "leading zeros", {"a": "<broken>"}),
    ("a = «0x1f", "syntax", "not a number", {"a": "<broken>"}),
    ("a = «1_000", "syntax", "underscores", {"a": "<broken>"}),
    ("a = «1.", "syntax", "not a number", {"a": "<broken>"}),
    ("a = «9007199254740992", "syntax", "too large", {"a": "<broken>"}),
    ("a = «1e999", "syntax", "too large", {"a": "<broken>"}),
    ("a = «" + "1" * 41, "syntax", "not a number", {"a": "<broken>"}),
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
    (r'a = "«\ud800"', "syntax", "escape", {"a": "<broken>"}),
    (r'a = "«\u12"', "syntax", "escape", {"a": "<broken>"}),
    (r'a = "«\U00110000"', "syntax", "escape", {"a": "<broken>"}),
    (r'a = "«\u0000"', "syntax", "escape", {"a": "<broken>"}),
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
    ("«é = 1", "syntax", "attribute or block", {}),
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


HOPELESS = {
    "NUL": b"\0", "brackets": b"[", "blocks": b"a{", "templates": b'a="${${', "quotes": b'"', "comments": b"/*",
    "heredocs": b"<<E\n", "escapes": b'"\\q', "strays": b"aaaa=1\n", "words": b"a ", "minus": b"-", "marks": b"@",
    "conditions": b"1?1:", "open objects": b"a={b=", "bidi": "\u202e".encode(), "bytes": b"\xff", "lists": b"a=[1,\n",
    "models": b'model "a" {\n', "choices": b'tee { platforms = ["sev_snp",\n', "CR": b"\r", "blank": b"\n",
}


@pytest.mark.parametrize("name", HOPELESS)
def test_hopeless_input_is_cheap(name: str) -> None:
    """The largest file of any repeated piece takes seconds at most, and gives a bounded number of findings."""
    data = (HOPELESS[name] * MAX_BYTES)[:MAX_BYTES]
    start = time.process_time()
    checked = check_bytes(data)
    assert time.process_time() - start < 5
    assert 1 <= len(checked.diagnostics) <= MAX_DIAGNOSTICS + 1
    assert checked.policy is None


@pytest.mark.parametrize(("data", "words", "place"), [
    (b"\xef\xbb\xbf" + BASE.encode(), "byte-order mark", (1, 1)),
    (BASE.encode().replace(b"demo.gguf", b"d\xe9mo.gguf"), "0xe9 at offset", (9, 14)),
    (BASE.encode().replace(b"\n", b"\r\n").replace(b"demo.gguf", b"d\xe9mo.gguf"), "0xe9", (9, 14)),
    (b" " * (MAX_BYTES + 1), "1048576 bytes", (1, 1)),
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
    """A byte-order mark, or a wrong byte in a comment, hides nothing and brings no further findings."""
    for data in (b"\xef\xbb\xbf" + BASE.encode(), b"# \xe9\n" + BASE.encode()):
        assert ["encoding"] == [d.code for d in check_bytes(data).diagnostics]
    for mark in (b"", b"\xef\xbb\xbf"):
        assert ["a"] == [d.summary.split()[0] for d in check_bytes(mark + b"a = 1\n").diagnostics
                         if d.code == "unknown-key"]


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
def judge() -> Any:
    """The independent reader."""
    return hcl_judge.make()


def as_hcl2(node: Node) -> Any:
    """Turn our tree into the shape that python-hcl2 gives: blocks as lists under their type and labels."""
    if not isinstance(node, Body):
        return [as_hcl2(item) for item in node.items] if isinstance(node, ListNode) else plain(node)
    result: dict[str, Any] = {name: as_hcl2(attribute.value) for name, attribute in node.attributes.items()}
    for block in node.blocks:
        content: Any = as_hcl2(block.body)
        for label, _ in reversed(block.labels):
            content = {f'"{label}"': content}
        result.setdefault(block.type, []).append(content)
    return result


def unquoted(value: Any) -> Any:
    """Drop quotes around keys."""
    if isinstance(value, dict):
        return {key.strip('"'): unquoted(item) for key, item in value.items()}
    return [unquoted(item) for item in value] if isinstance(value, list) else value


def random_body(rng: random.Random, depth: int = 0) -> str:
    """Return a random body of literals, without escapes (python-hcl2 leaves them in)."""
    def value(level: int) -> str:
        kind = rng.randrange(7 if level < 3 else 5)
        if kind == 5:
            return "[" + ", ".join(value(level + 1) for _ in range(rng.randrange(4))) + rng.choice(["]", "\n]"])
        if kind == 6:
            return "{" + ", ".join(f"k{n} = {value(level + 1)}" for n in range(rng.randrange(4))) + "}"
        return str(rng.choice([rng.randrange(10**6), '"a b"', '"# x"', '"é // {"', "true", "false", "2.5", '""']))

    lines = []
    for number in range(rng.randrange(1, 5)):
        comment = rng.choice(["", "", " # c", " // c \" {", " /* [ */"])
        if depth < 3 and rng.random() < 0.4:
            labels = "".join(f' "l{n}"' for n in range(rng.randrange(3)))
            lines.append(f"b{number}{labels} {{{comment}\n{random_body(rng, depth + 1)}}}")
        else:
            lines.append(f"a{number} = {value(0)}{comment}")
    return "\n".join(lines) + rng.choice(["\n", "\n\n"])


def test_python_hcl2_reads_the_same(judge: Any) -> None:
    """An independent HCL reader gives the same values for random files and for the examples."""
    rng = random.Random(7)
    texts = [random_body(rng) for _ in range(60)]
    texts += [path.read_text() for path in EXAMPLES if "chat_template " not in path.read_text()]
    assert len(texts) > 61
    for text in texts:
        report = Report(Text(text, "t.hcl"))
        tree = parse(report)
        assert not report.found, (text, report.found)
        ours = unquoted(as_hcl2(tree))
        assert unquoted(judge(text.replace("\\\\", "/"))) == (
            ours if "\\\\" not in text else unquoted(as_hcl2(parse(Report(Text(text.replace("\\\\", "/"), "t"))))))


def test_no_pickle_cache() -> None:
    """Checking a policy neither imports python-hcl2 and Lark nor leaves their pickled parser on the disk."""
    code = ("import sys, appliance.policy as p; p.load('examples/demo.hcl');"
            "print(sorted({'hcl2', 'lark', 'pickle'} & set(sys.modules)))")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=unmeasured(), capture_output=True, text=True, check=True)
    assert "[]" == done.stdout.strip()
    spec = util.find_spec("hcl2")
    assert spec is not None
    assert spec.origin is not None
    assert [] == list(Path(spec.origin).parent.glob(".lark_cache*"))
