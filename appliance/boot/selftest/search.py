"""Self-test of the kernel that finds matches: patterns that take every path through it, on fixed
text."""

from __future__ import annotations

import numpy as np

from appliance.boot.selftest import inputs
from appliance.kernels.runtime.table import KernelTable
from appliance.matching import Automaton, points

LETTERS = "aabbbcc1- \né"
HELD = 60  # characters at the end of the text that are looked at as if more came
PATTERNS = (
    r"[ab]{1,78}[ab]{1,78}[c1]",  # runs, by doubling
    r"[^\n]{1,70}?c",  # a lazy run
    r"(?:ab|c){2,40}1?",  # a loop that counts, and planes
    r"(?:ab|c){1,9}?\b",  # a lazy loop
    r"(?:a|ab)(?:b|bc){1,3}?",  # copies
    r"(?:a?b?){1,1}c?1?-?\n?é",  # parts that may be empty
    r"(?:ab){1,20}(?:ba){0,3}?",  # runs two characters wide
    r"a|bb|c1|-é\n?|1",  # alternatives
    r"(?im)^[^a]{1,3}$|\Bc$",  # places
    r"\A\w|.\Z|b\n$",
    "|".join(chr(code) for code in range(0x100, 0x150)) + "|a[^bé]",  # more classes than a word has bits
)


def text() -> str:
    """Return the fixed text."""
    return "".join(LETTERS[byte % len(LETTERS)] for byte in inputs.stream("search text", 5000).tolist())


def find_spans(table: KernelTable) -> bytes:
    """Return each pattern's matches, and the positions that text to come may matter for, as int64.
    """
    codes, found = points(text()), []
    for pattern in PATTERNS:
        automaton = Automaton(pattern, table)
        found += [*automaton.spans(codes), automaton.undecided(codes, len(codes) - HELD)]
    return np.concatenate([part.reshape(-1) for part in found]).tobytes()
