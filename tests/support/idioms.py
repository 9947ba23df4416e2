"""The idioms that prose avoids, each by a name. Short sentences can still be hard to read.

`tests/support/prose.py` splits prose into sentences, and asks here about each. It asks about table
cells as well.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_PERSON = (r"(?:administrator|attacker|auditor|browser|builder|caller|client|guest|host|kernel|maker|model|operator|"
           r"owner|people|person|program|reader|reviewer|server|tenant|user|verifier|they|you)s?")
_WITH_NO = r"(?:longer|more|less|fewer|better|worse|larger|smaller|greater|later|earlier|other|different|one)"
_CLAUSE = r"(?:[Ww]ho|[Ww]hat|[Ww]hoever|[Ww]hatever)\b(?![^?]*\?)"
_CLOSING = r"[)\"'”’*_]*"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Each idiom, and the pattern of its offences in one sentence.
PATTERNS = {
    "one that": re.compile(r"\b(?:ones?|those) (?:that|which|who|whose|whom)\b", re.IGNORECASE),
    "what of": re.compile(r"\bwhat of\b", re.IGNORECASE),
    "last word": re.compile(rf"\b(?:alone|at all|too){_CLOSING}[.!?;:]?{_CLOSING}$"),
    "is no": re.compile(rf"(?<![Tt]here )\b(?:is|are|was|were) no (?!{_WITH_NO}\b)(?=[a-z])"),
    "told": re.compile(r"\btold\b(?! apart)", re.IGNORECASE),
    "clause": re.compile(rf"^(?:Who|What|Whoever|Whatever)\b(?![^?]*\?)|; {_CLAUSE}|: [Ww]ho(?:ever)?\b(?![^?]*\?)"),
}
_PERSON_TOLD = re.compile(
    rf"\b{_PERSON} (?:(?:is|are|was|were|ha(?:s|ve) been|(?:must|can) be) )?told\b", re.IGNORECASE)

# First words of commands.
COMMANDS = _words("""
    accept add answer append apply ask attest begin bind boot bound bring build call carry check choose close collect
    compare compile compute connect consume convert copy count create cut decide decode decrypt describe do draw drop
    encode encrypt end ensure enter exchange expect explain export fail feed fetch fill find finish follow free get
    give go group hand handle hash hold install judge keep know learn leave let list listen load lock look make map
    mark match measure merge move multiply name note open pack parse pass pick play predict prepare print prove pull
    put raise read receive recognise record redact refuse reject release remember remove render replace report require
    reserve resolve return rewrite run say seal search send serve set share show sign skip sort split start stop store
    stream strip submit sum take tell test tokenize turn undo unpack unseal update use validate verify wait walk wipe
    withhold work wrap write
""")
# Of these, the words that are nouns or adjectives as well: a command by one has its object's article behind it.
_AMBIGUOUS = _words("""
    answer cut count end exchange export feed find follow free group hand handle hash hold judge lock look map mark
    match measure move open pack pass pick play print prove pull raise read record release report request return run
    seal search set share show sign sort split start stop store stream sum test turn update use wait walk wipe work
    wrap write
""")
_DETERMINERS = _words("""
    a an the what whether how which each every its one all this these that another
""")
# Words with which no noun phrase begins, and no command.
_DANGLING = _words("""
    after as at because before behind below beside between but by for from if in into like never not
    of on once only or so than then to under unless until upon when where whether which while who
    whose why with within without yes
""")
FEW_WORDS = 3
DOCSTRINGS = ("command for a class", "few words")  # rules of `of_docstring`


def of_sentence(text: str) -> Iterator[str]:
    """Name each idiom that a sentence offends against."""
    for name, pattern in PATTERNS.items():
        if pattern.search(_PERSON_TOLD.sub("", text) if name == "told" else text):
            yield name


def of_cell(text: str) -> Iterator[str]:
    """Name each idiom that a sentence of a table's cell offends against. A cell may be a clause, such as the head
    "what it costs", but not "whoever asks"."""
    yield from (name for name in of_sentence(text) if name != "clause")
    if text.lower().startswith(("whoever", "whatever")):
        yield "clause"


def of_docstring(node: ast.AST, text: str) -> Iterator[str]:
    """Name each rule that the first sentence of a docstring offends against, by what it documents."""
    first = next(iter(text.split("\n\n")), "")
    words = [word.strip(".,:;()`\"'").lower() for word in first.split()]
    if isinstance(node, ast.ClassDef) and _commands(words):
        yield DOCSTRINGS[0]
    if not isinstance(node, ast.Module) and len(first.split()) <= FEW_WORDS and _dangles(node, words):
        yield DOCSTRINGS[1]


def _commands(words: list[str]) -> bool:
    if len(words) < 2 or words[0] not in COMMANDS:
        return False
    return words[0] not in _AMBIGUOUS or words[1] in _DETERMINERS


def _dangles(node: ast.AST, words: list[str]) -> bool:
    """Whether so few words are neither a noun phrase nor, of a function, a command with its object."""
    if not words or words[0] in _DANGLING:
        return True
    return len(words) == 1 and not isinstance(node, ast.ClassDef)
