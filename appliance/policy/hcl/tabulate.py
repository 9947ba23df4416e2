"""Writes `table.json`: python-hcl2's grammar as Lark's LALR parse table, in plain data.

Building the table takes more than a second, so it is done once, for the locked python-hcl2, by
`make table`. A test builds it again and compares. The file holds terminals in the order in which
Lark tries them, rules, and for each state its row: what to reduce (rule and lookaheads) and what to
shift (symbol and next state). Equal rows and equal sets of lookaheads are written once.
"""

from __future__ import annotations

import hashlib
import json
import sys
from importlib import metadata
from typing import Any

from lark import Lark
from lark.lexer import BasicLexer
from lark.parsers.lalr_analysis import Shift

from appliance.policy.hcl.grammar import folder


def tabulated() -> dict[str, Any]:
    """Return the table of the python-hcl2 that is installed."""
    source = (folder() / "hcl2.lark").read_text(encoding="utf-8")
    lark = Lark(source, parser="lalr", propagate_positions=True, cache=False)
    table = lark.parser.parser._parse_table
    ordered = sorted(lark.rules, key=lambda rule: (rule.origin.name, [each.name for each in rule.expansion]))
    numbers = {rule: number for number, rule in enumerate(ordered)}
    renumbered = _walked(table)
    sets: dict[str, int] = {}
    rows: dict[str, int] = {}
    states = []
    for state in renumbered:
        reduces: dict[int, list[str]] = {}
        shifts = {}
        for symbol, (action, argument) in sorted(table.states[state].items(), key=lambda entry: entry[0]):
            if action is Shift:
                shifts[symbol] = renumbered[argument]
            else:
                reduces.setdefault(numbers[argument], []).append(symbol)
        sums = [[rule, sets.setdefault(" ".join(symbols), len(sets))] for rule, symbols in sorted(reduces.items())]
        states.append(rows.setdefault(json.dumps([sums, shifts]), len(rows)))
    return {
        "from": {"python-hcl2": metadata.version("python-hcl2"), "lark": metadata.version("lark"),
                 "hcl2.lark sha256": hashlib.sha256(source.encode()).hexdigest()},
        "ignore": list(lark.lexer_conf.ignore),
        "terminals": [[each.name, each.pattern.type, each.pattern.value, each.priority, list(each.pattern.flags),
                       [each.pattern.min_width, each.pattern.max_width]]
                      for each in BasicLexer(lark.lexer_conf).terminals],
        "rules": [[rule.origin.name, " ".join(symbol.name for symbol in rule.expansion), rule.alias,
                   rule.options.expand1 and rule.alias is None and len(rule.expansion) == 1] for rule in ordered],
        "lookaheads": list(sets),
        "rows": [json.loads(row) for row in rows],
        "states": states,
        "start": renumbered[table.start_states["start"]],
        "end": renumbered[table.end_states["start"]],
    }


def _walked(table: Any) -> dict[int, int]:
    """Return new numbers for the states, by the way from the first: Lark numbers them in another
    way each time."""
    found = {table.start_states["start"]: 0}
    waiting = list(found)
    for state in waiting:
        for _, (action, argument) in sorted(table.states[state].items(), key=lambda entry: entry[0]):
            if action is Shift and argument not in found:
                found[argument] = len(found)
                waiting.append(argument)
    return found


def text() -> str:
    """Return the table as the file has it: one entry a line."""
    lines = []
    for key, value in tabulated().items():
        if key in ("terminals", "rules", "lookaheads", "rows"):
            entries = ",\n".join(json.dumps(each, separators=(",", ":")) for each in value)
            lines.append(f"{json.dumps(key)}: [\n{entries}]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}")
    return "{" + ",\n".join(lines) + "}\n"


if __name__ == "__main__":
    sys.stdout.write(text())
