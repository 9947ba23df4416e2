"""Lines of code of a module: those with a token that is neither comment nor docstring."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

_SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def count(path: Path) -> int:
    """How many lines of code a file has; strings that stand for themselves are docstrings."""
    text = path.read_text(encoding="utf-8")
    prose = {line for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr)
             and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
             for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {line for token in tokens if token.type not in _SILENT for line in range(token.start[0], token.end[0] + 1)}
    return len(code - prose)
