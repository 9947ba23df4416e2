"""How deep the rules of a grammar lead into each other.

llguidance follows rules by calls of functions, some kilobytes of stack each, and a stack that
overflows ends the process. So the depth is computed here, in the order in which it follows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from appliance.errors import ConstraintError

DEEPEST = 128  # rules and groups within each other: some 600 KB of stack

Rules = Mapping[str, Sequence[tuple[str, int]]]
"""For each rule, the rules that it names, in order, and within how many groups."""


def check(rules: Rules, start: str) -> None:
    """ConstraintError where rules lead too deep. A rule that was seen is not followed again."""
    seen = {start}
    waiting = [(iter(rules.get(start, ())), 1)]
    while waiting:
        names, depth = waiting[-1]
        for name, groups in names:
            if name in rules and name not in seen:
                seen.add(name)
                if depth + groups >= DEEPEST:
                    raise ConstraintError("the grammar has rules too deep within each other",
                                          hint=f"at most {DEEPEST}, brackets included")
                waiting.append((iter(rules[name]), depth + groups + 1))
                break
        else:
            waiting.pop()
