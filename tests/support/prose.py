"""Measure the prose of code and documentation: `python -m tests.support.prose [--list] [PATH ...]`.

Prose is docstrings, comments, messages (string literals of six words or more) and Markdown without
code, tables and headings. A sentence ends at `.`, `!` or `?` before white space, at the end of a
paragraph, list item or message, and at the colon before a list. A span of code counts as one word.
Idioms (`idioms.py`) are also looked for in tables. `tests/project/test_prose.py` bounds their
number in code.
"""

from __future__ import annotations

import argparse
import ast
import functools
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import idioms

ROOT = Path(__file__).parents[2]
ROOMS = ("appliance", "benchmarks", "examples", "image", "docs")
PAGES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "LIMITATIONS.md", "CHANGELOG.md", "SECURITY.md")
GENERATED = {"docs/reference/policy.md", "docs/reference/policy-schema-1.md"}  # from the schema's classes

QUOTED = {"docs/reference/parameters.md", "docs/reference/controls.md"}  # whose tables say what code says

MOST_WORDS = 35
MEAN_WORDS = 18
PROSE_COLUMNS = 100
MESSAGE_WORDS = 6

# A clause or a phrase where the subject should stand.
BANNED = re.compile(r"(?:Who|What|Whoever|Whatever|That which|Of (?:what|which|these|those|the)|As to)\b(?![^?]*\?$)")
BANNED_FIRST = re.compile(r"(?:All of (?:them|it)\b|See\b|The same\b[^a-z]*$|As above\b|Ditto\b)")
CUT = re.compile(r"(?:[,;]|\b(?:and|or|beside))$")

_ABBREVIATIONS = re.compile(r"\b(?:e\.g|i\.e|etc|cf|vs|No|Sec|Art|Fig|Vol|Rev|p|pp|approx|resp|ca|incl)\.$")
_END = re.compile(r"[.!?][)\"'”’`*_]*(?=\s)")
_COLUMNS = re.compile(r"[^\s.:] {2,}\S")  # a table in plain text
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, where it begins, and what it is part of: docstring, comment, message or page."""

    path: str
    line: int
    kind: str
    text: str

    @property
    def words(self) -> int:
        """Words: what holds a letter or a digit between white space. Joined words count once."""
        return sum(any(char.isalnum() for char in word) for word in self.text.split())


@dataclass(frozen=True, slots=True)
class Fault:
    """A place where prose breaks a rule."""

    path: str
    line: int
    rule: str
    text: str


def _plain(text: str) -> str:
    """Code spans and addresses as one word each, links as their text."""
    text = re.sub(r"``[^`]+``|`[^`]+`", "code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<?https?://\S+", "address", text)
    return re.sub(r"[*_]{1,2}(\S(?:.*?\S)?)[*_]{1,2}", r"\1", text)


def split(text: str) -> list[str]:
    """Sentences of one paragraph."""
    text = " ".join(_plain(text).split())
    found, begin = [], 0
    for match in _END.finditer(text):
        head = text[begin:match.end()]
        after = text[match.end():].lstrip()
        if _ABBREVIATIONS.search(head) or (after and after[0].islower() and not after.startswith("code")):
            continue
        found.append(head.strip())
        begin = match.end()
    return [each for each in [*found, text[begin:].strip()] if each]


def paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs and list items of Markdown or a docstring, by line from 0, without code, tables and headings."""
    fenced, held, begin = False, [], 0  # type: bool, list[str], int
    after_blank, comment = True, False
    for number, line in enumerate([*text.expandtabs().splitlines(), ""]):
        bare = line.strip()
        if bare.startswith(("```", "~~~")):
            fenced = not fenced
            bare = ""
        elif fenced:
            continue
        if "<!--" in bare:
            comment = True
        if comment:
            comment = "-->" not in bare
            bare = ""
        item = _ITEM.match(line)
        code = (line.startswith("    ") and after_blank and not held and not item) or _COLUMNS.search(bare) is not None
        if not bare or item or bare.startswith(("|", "#", ">>>")) or code or set(bare) <= set("=-_*"):
            if held:
                yield begin, " ".join(held)
            held = []
        if bare and not bare.startswith(("|", "#", ">>>")) and not code and not set(bare) <= set("=-_*"):
            if not held:
                begin = number
            held.append(_ITEM.sub("", line, count=1).strip() if item else bare.lstrip("> "))
        after_blank = not bare or (after_blank and code)


def _documented(tree: ast.Module) -> Iterator[tuple[ast.AST, int, str]]:
    """Modules, classes and functions with a docstring, and its line and text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node, node.body[0].lineno, text


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for _, line, text in _documented(tree):
        yield line, text


def _comments(source: str) -> Iterator[tuple[int, str, bool]]:
    """Blocks of comment lines, and comments behind code (True), with their first line."""
    held: list[str] = []
    begin = last = column = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or token.string.startswith(("#!", "# type:", "# noqa", "# pragma")):
            continue
        text = re.sub(r"\s*#\s*(?:noqa|type: ignore|pragma).*", "", token.string.lstrip("#").strip())
        behind = bool(token.line[:token.start[1]].strip())
        line = token.start[0]
        if held and (behind or line != last + 1 or token.start[1] != column):
            yield begin, "\n".join(held), False
            held = []
        if behind:
            yield line, text, True
        else:
            if not held:
                begin, column = line, token.start[1]
            held.append(text)
            last = line
    if held:
        yield begin, "\n".join(held), False


def _messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    documented = {line for line, _ in _docstrings(tree)}
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)
             if part is not node}
    for node in ast.walk(tree):
        if id(node) in inner:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.lineno not in documented:
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "value"
                                       for part in node.values)


@functools.lru_cache(maxsize=1)
def _parsed(path: Path) -> tuple[str, ast.Module]:
    """Source and tree of the module that was asked for last."""
    source = path.read_text("utf-8")
    return source, ast.parse(source)


def of_code(path: Path, name: str) -> Iterator[Sentence | Fault]:
    """Sentences of a module, and its faults of form."""
    source, tree = _parsed(path)
    lines = source.splitlines()
    for line, text in _docstrings(tree):
        first = next((each for each in text.splitlines() if each.strip()), "")
        if BANNED_FIRST.match(first):
            yield Fault(name, line, "first line", first)
        for offset, paragraph in paragraphs(text):
            for sentence in split(paragraph):
                yield Sentence(name, line + offset, "docstring", sentence)
        indent = len(lines[line - 1]) - len(lines[line - 1].lstrip())
        for offset in range(len(text.splitlines())):
            whole = lines[line - 1 + offset]
            plain = len(whole) - len(whole.lstrip()) == indent and "|" not in whole
            if plain and len(whole) > PROSE_COLUMNS and not _COLUMNS.search(whole.strip()):
                yield Fault(name, line + offset, "columns", whole.strip())
    for line, text, behind in _comments(source):
        if behind and CUT.search(text):
            yield Fault(name, line, "comment over several declarations", text)
        for offset, paragraph in paragraphs(text):
            for sentence in split(paragraph):
                yield Sentence(name, line + offset, "comment", sentence)
        for offset in range(0 if behind else len(text.splitlines())):
            whole = lines[line - 1 + offset]
            if len(whole) > PROSE_COLUMNS and not _COLUMNS.search(whole.strip().lstrip("# ")):
                yield Fault(name, line + offset, "columns", whole.strip())
    for line, text in _messages(tree):
        if not re.search(r"[.,:;?!]", text) and "_" in text:
            continue  # a list of names
        if len(text.split()) >= MESSAGE_WORDS and re.search(r"[a-z]{2,} [a-z]{2,} [a-z]{2,}", text):
            for _, paragraph in paragraphs(text.partition("exit codes:")[0].strip()):  # what follows is a table
                for sentence in split(paragraph):
                    yield Sentence(name, line, "message", sentence)


def of_page(path: Path, name: str) -> Iterator[Sentence | Fault]:
    """Sentences of a page of Markdown."""
    for line, paragraph in paragraphs(path.read_text("utf-8")):
        for sentence in split(paragraph):
            yield Sentence(name, line + 1, "page", sentence)


def cells(path: Path) -> Iterator[tuple[int, str]]:
    """Sentences of the cells of a page's tables, each with its line."""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", _plain(line)):
                yield from ((number, sentence) for sentence in split(cell))


def idioms_of(path: Path, name: str, sentences: list[Sentence]) -> Iterator[Fault]:
    """Offences against `idioms` in a file with these sentences."""
    for each in sentences:
        yield from (Fault(name, each.line, rule, each.text) for rule in idioms.of_sentence(each.text))
    if path.suffix == ".md":
        for line, text in () if name in QUOTED else cells(path):
            yield from (Fault(name, line, rule, text) for rule in idioms.of_cell(text))
    else:
        for node, line, text in _documented(_parsed(path)[1]):
            yield from (Fault(name, line, rule, text.split("\n\n")[0]) for rule in idioms.of_docstring(node, text))


def files(root: Path = ROOT) -> list[Path]:
    """Every file whose prose is measured."""
    found = [path for room in ROOMS for ending in ("*.py", "*.md") for path in (root / room).rglob(ending)]
    found += [root / page for page in PAGES if (root / page).exists()]
    return sorted(path for path in found if str(path.relative_to(root)) not in GENERATED)


@dataclass(frozen=True, slots=True)
class Measured:
    """The findings in some files: every sentence, faults of form, and offences against `idioms`."""

    sentences: list[Sentence]
    faults: list[Fault]
    idioms: list[Fault]


def measure(paths: list[Path], root: Path = ROOT) -> Measured:
    """Measure the prose of some files. Faults are those of form, long sentences and banned openings."""
    all_of = Measured([], [], [])
    for path in paths:
        name = str(path.relative_to(root))
        each_of = list((of_page if path.suffix == ".md" else of_code)(path, name))
        sentences = [each for each in each_of if isinstance(each, Sentence)]
        all_of.sentences.extend(sentences)
        all_of.faults.extend(each for each in each_of if isinstance(each, Fault))
        for each in sentences:
            if each.words > MOST_WORDS:
                all_of.faults.append(Fault(name, each.line, f"{each.words} words", each.text))
            if each.kind != "message" and BANNED.match(each.text):
                all_of.faults.append(Fault(name, each.line, "opening", each.text))
        all_of.idioms.extend(idioms_of(path, name, sentences))
    return all_of


def left(found: list[Fault]) -> Counter[str]:
    """The number of offences in code, by idiom."""
    return Counter(each.rule for each in found if not each.path.endswith(".md"))


def table(measured: Measured) -> str:
    """Sentences, mean words, sentences over 25 and over 35 words, faults and idioms, by kind."""
    rows = [f"{'kind':12}{'sentences':>10}{'mean':>7}{'> 25':>7}{'> 35':>7}"]
    for kind in ("docstring", "comment", "message", "page", "all"):
        words = [each.words for each in measured.sentences if kind in (each.kind, "all")]
        mean = sum(words) / max(1, len(words))
        rows.append(f"{kind:12}{len(words):>10}{mean:>7.1f}{sum(each > 25 for each in words):>7}"
                    f"{sum(each > MOST_WORDS for each in words):>7}")
    for rule in ("opening", "first line", "comment over several declarations", "columns"):
        rows.append(f"{rule + ':':35}{sum(each.rule == rule for each in measured.faults):>8}")
    in_code = left(measured.idioms)
    rows.append(f"{'idiom':35}{'code':>8}{'pages':>8}")
    for rule in (*idioms.PATTERNS, *idioms.DOCSTRINGS):
        pages = sum(each.rule == rule for each in measured.idioms) - in_code[rule]
        rows.append(f"{rule + ':':35}{in_code[rule]:>8}{pages:>8}")
    return "\n".join(rows)


def main() -> int:
    """Print the table; with `--list`, each fault in its place. Exit code 1 says that there are faults."""
    parser = argparse.ArgumentParser(description="measure the prose of code and documentation")
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders (default: all that is measured)")
    parser.add_argument("--list", action="store_true", help="print each fault as path:line: rule: text")
    parser.add_argument("--over", type=int, default=0, metavar="WORDS", help="also list sentences of more words")
    args = parser.parse_args()
    chosen = [path.resolve() for path in args.paths]
    paths = [path for path in files() if not chosen or any(path == each or each in path.parents for each in chosen)]
    measured = measure(paths)
    shown = [*measured.faults, *measured.idioms]
    if args.over:
        shown += [Fault(each.path, each.line, f"{each.words} words", each.text) for each in measured.sentences
                  if args.over < each.words <= MOST_WORDS]
    if args.list:
        for each in sorted(shown, key=lambda each: (each.path, each.line)):
            print(f"{each.path}:{each.line}: {each.rule}: {each.text}")
    print(table(measured))
    return 1 if measured.faults or any(each.path.endswith(".md") for each in measured.idioms) else 0


if __name__ == "__main__":
    sys.exit(main())
