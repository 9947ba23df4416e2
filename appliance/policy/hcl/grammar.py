"""python-hcl2's grammar, ready to use: its terminals, its post-lexer, and Lark's parse table out of
`table.json`.

The table is data that the package carries; nothing is built from a grammar, cached or unpickled at
run time. The package's own `__init__` imports its transformer and the compiled package `regex`; its
post-lexer needs neither, and is loaded from its file alone.
"""

from __future__ import annotations

import functools
import importlib.resources
import importlib.util
import json
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from lark.common import LexerConf
from lark.grammar import NonTerminal, Rule, Symbol, Terminal
from lark.lexer import BasicLexer, PatternRE, PatternStr, TerminalDef, TextSlice
from lark.parsers.lalr_analysis import IntParseTable, Reduce, Shift
from lark.parsers.lalr_parser_state import ParseConf, ParserState

# Terminals inside of a string.
_STRING = frozenset(["DBLQUOTE", "STRING_CHARS", "INTERP_START", "DIRECTIVE_START"])
# Terminals that are not looked for outside of one: of strings, templates, heredocs (`tokens.py`),
# names with `::`.
_NOT_CODE = (_STRING - {"DBLQUOTE"}) | {
    "ESCAPED_INTERPOLATION", "ESCAPED_DIRECTIVE", "TEMPLATE_STRING", "STRIP_MARKER", "HEREDOC_TEMPLATE",
    "HEREDOC_TEMPLATE_TRIM", "COLONS"}


class SyntaxNode(NamedTuple):
    """The node that a rule of the grammar made of its parts."""

    rule: str
    children: list[Any]  # trees and tokens; those of a rule that begins with `_` belong to the rule around it


class Language(NamedTuple):
    """The parser and its terminals."""

    code: BasicLexer  # outside of strings
    string: BasicLexer  # inside of one
    conf: ParseConf[int]
    postlexer: Any

    def parser(self) -> ParserState[int]:
        """Return a parser at its start."""
        return ParserState(self.conf, None)  # without a lexer: tokens are fed


def folder() -> Path:
    """Return the folder of the package python-hcl2, without importing it."""
    spec = importlib.util.find_spec("hcl2")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("python-hcl2 is not installed", name="hcl2")
    return Path(next(iter(spec.submodule_search_locations)))


@functools.cache
def load() -> Language:
    """Return the grammar."""
    table = json.loads(importlib.resources.files(__package__).joinpath("table.json").read_bytes())
    terminals = [_terminal(*entry) for entry in table["terminals"]]
    rules = [_rule(*entry) for entry in table["rules"]]
    rows = [_row(row, rules, table["lookaheads"]) for row in table["rows"]]
    states = dict(enumerate(rows[row] for row in table["states"]))
    parse_table = IntParseTable(states, {"start": table["start"]}, {"start": table["end"]})
    callbacks = {rule: _made(rule, *more) for rule, (_, _, *more) in zip(rules, table["rules"], strict=True)}
    return Language(
        _lexer([each for each in terminals if each.name not in _NOT_CODE], table["ignore"]),
        _lexer([each for each in terminals if each.name in _STRING], ()),
        ParseConf(parse_table, callbacks, "start"), _postlexer())


def _terminal(name: str, kind: str, value: str, priority: int, flags: list[str], width: list[int]) -> TerminalDef:
    pattern = PatternStr(value, flags) if kind == "str" else PatternRE(value, flags)
    if isinstance(pattern, PatternRE):
        pattern._width = tuple(width)  # as Lark's own loading of a table has it: measuring takes a while
    return TerminalDef(name, pattern, priority)


def _rule(origin: str, expansion: str, alias: str | None, hands_on: bool) -> Rule:
    symbols: list[Symbol] = [Terminal(name) if name.isupper() else NonTerminal(name) for name in expansion.split()]
    return Rule(NonTerminal(origin), symbols, alias=alias)


def _made(rule: Rule, alias: str | None, hands_on: bool) -> Callable[[list[Any]], Any]:
    """Return what makes a tree of a rule's parts. A dozen rules, one a precedence, only hand on
    each value."""
    name = str(alias or rule.origin.name)
    return (lambda parts: parts[0]) if hands_on else (lambda parts: SyntaxNode(name, parts))


def _row(row: Any, rules: list[Rule], lookaheads: list[str]) -> dict[str, Any]:
    reduces, shifts = row
    actions: dict[str, Any] = {symbol: (Shift, state) for symbol, state in shifts.items()}
    for rule, symbols in reduces:
        actions.update(dict.fromkeys(lookaheads[symbols].split(" "), (Reduce, rules[rule])))
    return actions


def _lexer(terminals: list[TerminalDef], ignore: Collection[str]) -> BasicLexer:
    lexer = BasicLexer(LexerConf(terminals, re, ignore, skip_validation=True))
    lexer.match(TextSlice("", 0, 0), 0)  # its expressions are compiled, and which names are keywords is known
    return lexer


def _postlexer() -> Any:
    spec = importlib.util.spec_from_file_location("hcl2.postlexer", folder() / "postlexer.py")
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("python-hcl2 has no post-lexer", name="hcl2.postlexer")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.PostLexer()
