"""Tokens to a tree by python-hcl2's grammar. Lark's parser stops at the first token that its state
has no use for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lark import Token, UnexpectedToken
from lark.parsers.lalr_parser_state import ParserState

from appliance.policy.hcl.diagnostics import InvalidPolicyError, SourceText, Span
from appliance.policy.hcl.grammar import Language, SyntaxNode
from appliance.policy.hcl.tokens import NAMES, NEWLINE, span, token

MARK = 2  # characters of an operator at most
MAX_DEPTH = 24  # blocks, lists and objects inside of each other
LITERALS = "a policy is data: strings, numbers, true, false, lists, objects"

_END = "$END"
_OPENERS, _CLOSERS = frozenset(["LBRACE", "LSQB"]), frozenset(["RBRACE", "RSQB"])
_COMPUTED = frozenset(["DOUBLE_EQ", "NEQ", "LT", "GT", "LEQ", "GEQ", "MINUS", "ASTERISK", "SLASH", "PERCENT",
                       "DOUBLE_AMP", "DOUBLE_PIPE", "PLUS", "NOT", "QMARK", "LPAR"])
_WORDS = {"NAME": "a name", "DBLQUOTE": "a text in double quotes", "INT_LITERAL": "a number", "EQ": "=",
          "COMMA": "a comma", "LBRACE": "{", "RBRACE": "}", "LSQB": "[", "RSQB": "]", NEWLINE: "the end of the line",
          _END: "the end of the file"}


def tree(tokens: Iterator[Token], grammar: Language, text: SourceText) -> SyntaxNode:
    """Return the tree. Raises InvalidPolicyError at the first token that does not fit."""
    parser, depth, end = grammar.parser(), 0, len(text.text)
    for each in grammar.postlexer.process(tokens):
        if each.type in _COMPUTED:
            raise text.refusal("expression", "this is an expression, which has to be computed", span(each), LITERALS)
        depth += (each.type in _OPENERS) - (each.type in _CLOSERS)
        if depth > MAX_DEPTH:
            raise text.refusal("too-large", f"this is nested more than {MAX_DEPTH} deep", span(each))
        _feed(parser, each, text)
    whole: SyntaxNode = _feed(parser, token(_END, "", end, end), text)
    return whole


def _feed(parser: ParserState[int], here: Token, text: SourceText) -> Any:
    """Give the parser a token. A keyword is a name where the grammar has no use for it, as in
    Lark's lexer."""
    actions = parser.parse_conf.states[parser.position]
    if here.type not in actions and here.type in NAMES and "NAME" in actions:
        here = token("NAME", here, *span(here))
    try:
        return parser.feed_token(here, here.type == _END)
    except UnexpectedToken:
        raise _unexpected(here, [word for kind, word in _WORDS.items() if kind in actions], text) from None


def _unexpected(here: Token, allowed: list[str], text: SourceText) -> InvalidPolicyError:
    # As in all refusals here no word of the text is repeated: it may be a key, given by mistake.
    found = _WORDS.get(here.type, repr(str(here)) if len(here) <= MARK else "this")
    start, end = span(here)
    return text.refusal("syntax", f"{found} cannot stand here", Span(start, max(end, start + 1)), ", ".join(allowed))
