"""How much a grammar has for llguidance to derive from, and how much of an answer it may force.

Its time grows with the square of the terminals and names that may come at one place, and no limit
of its own ends a compilation. So they are counted before it begins: what passes here takes some
tenths of a second at most.

Text that is forced is laid out to its end before the first token, with some 15 bytes of memory for
each of it, for up to 5,000 terminals in a row. So nothing is forced where a terminal is long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from appliance.errors import ConstraintError

MOST = 10_000  # terminals and names of rules in a grammar
REPEAT = 16  # terminals that a counted repeat stands for: llguidance writes it out as rules of four
FORCED = 768  # characters of a terminal, where text is forced

_ATOM = re.compile(r"\\x\{[0-9A-Fa-f]*+\}|\\.|\[(?:[^\]\\]|\\.)*+(?:\]|\\?\Z)|\{([0-9]{1,9}+)[,0-9]*+\}|.", re.DOTALL)


def check(terminals: int) -> None:
    """ConstraintError for a grammar with too many terminals and names."""
    if terminals > MOST:
        raise ConstraintError(f"the grammar has {terminals} terminals and names of rules", code="constraint-too-large",
                              hint=f"at most {MOST} are allowed, {REPEAT} for a counted repeat; list texts as a "
                                   "choice, or write a pattern")


def forces(regex: str) -> int:
    """The most characters that a pattern in Rust's syntax forces, repeats written out."""
    groups, last = [(0, 0)], 0  # of each group that is open: of its longest alternative, and of the one being read
    for match in _ATOM.finditer(regex):
        longest, length = groups[-1]
        if match[1] is not None:
            more = last * (max(int(match[1]), 1) - 1)
            last, groups[-1] = last + more, (longest, length + more)
        elif match[0] == "(":
            groups.append((0, 0))
        elif match[0] == "|":
            groups[-1] = max(longest, length), 0
        elif match[0] == ")" and len(groups) > 1:
            last = max(groups.pop())
            groups[-1] = groups[-1][0], groups[-1][1] + last
        elif match[0] not in "*+?":
            last, groups[-1] = 1, (longest, length + 1)
    return sum(map(max, groups))


def is_long(schema: Any) -> bool:
    """Whether a rewritten schema has a name, a constant or a pattern that may force more than
    `FORCED` characters."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and len(value) > FORCED:
            return True
        if isinstance(value, list):
            waiting += value
        if not isinstance(value, Mapping):
            continue
        for name, each in value.items():
            patterns = each if name == "patternProperties" else [each] if name == "pattern" else ()
            if len(name) > FORCED or any(isinstance(text, str) and forces(text) > FORCED for text in patterns):
                return True
            if name != "pattern" or not isinstance(each, str):
                waiting.append(each)
    return False
