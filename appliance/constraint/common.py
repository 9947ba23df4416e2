"""Lark's common terminals, which a grammar may import: `%import common.INT`.

The definitions are ours, and mean what those of Lark's file `common.lark` do. No file is read.
"""

from __future__ import annotations

import re

from appliance.errors import ConstraintError

_SIGN, _INT, _EXPONENT = "[+\\-]?", "[0-9]+", "[eE][+\\-]?[0-9]+"
_DECIMAL = f"(?:{_INT}\\.[0-9]*|\\.{_INT})"
_FLOAT = f"(?:{_INT}{_EXPONENT}|{_DECIMAL}(?:{_EXPONENT})?)"
_NUMBER = f"(?:{_FLOAT}|{_INT})"

TERMINALS = {
    "DIGIT": "[0-9]", "HEXDIGIT": "[a-fA-F0-9]", "INT": _INT, "SIGNED_INT": _SIGN + _INT, "DECIMAL": _DECIMAL,
    "FLOAT": _FLOAT, "SIGNED_FLOAT": _SIGN + _FLOAT, "NUMBER": _NUMBER, "SIGNED_NUMBER": _SIGN + _NUMBER,
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]", "UCASE_LETTER": "[A-Z]", "LETTER": "[A-Za-z]", "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "WS_INLINE": r"[ \t]+", "WS": r"[ \t\f\r\n]+", "CR": r"\r", "LF": r"\n", "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*", "CPP_COMMENT": r"\/\/[^\n]*", "SQL_COMMENT": r"--[^\n]*",
    "C_COMMENT": r"\/\*(?:[^*]|\*+[^*\/])*\*+\/",
}
"""Each terminal as a pattern between slashes."""

_NAME = re.compile(r"_?[A-Z][A-Z0-9_]*+")


def imports(line: str, number: int) -> dict[str, str]:
    """The patterns of the terminals that the rest of a line names after `%import`, by the names
    that they get. ConstraintError, with the `number` of the line, where Lark has none of them."""
    path, arrow, other = (part.strip() for part in line.partition("->"))
    module, _, rest = path.partition("(" if "(" in path else ".")
    names = [each.strip() for each in rest.removesuffix(")").split(",")]
    if module.strip() != "common" or not all(each in TERMINALS for each in names) or (
            arrow and (len(names) > 1 or _NAME.fullmatch(other) is None)):
        raise ConstraintError(f"the grammar imports something else than a common terminal in line {number}",
                              path=f"line {number}", hint="write the terminal out, or import one of: "
                              + ", ".join(f"common.{each}" for each in TERMINALS))
    return {other: TERMINALS[names[0]]} if arrow else {each: TERMINALS[each] for each in names}
