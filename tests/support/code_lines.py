"""Lines of code of a module: those with a token that is neither comment nor docstring."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

_SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """A module and all statements in it, without the expressions in them, which are most of a tree."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, name, ())


def count(path: Path, tree: ast.Module | None = None) -> int:
    """How many lines of code a file has; strings that stand for themselves are docstrings. `tree`: of the file."""
    text = path.read_text(encoding="utf-8")
    prose = {line for node in statements(tree or ast.parse(text)) if isinstance(node, ast.Expr)
             and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
             for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {line for token in tokens if token.type not in _SILENT for line in range(token.start[0], token.end[0] + 1)}
    return len(code - prose)
