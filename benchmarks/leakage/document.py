"""A run as a JSON document with its own digest, and as a table in Markdown."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from appliance.codec.canonical import canonical
from benchmarks.leakage.bounds import Verdict

FORMAT = "appliance/leakage/v1"
DIGITS = 5


def cell(pair: str, observer: str, verdicts: Mapping[str, Verdict], *, again: bool) -> dict[str, Any]:
    """Return a cell: the verdict of the classifier with more right answers, and its name. `again`:
    it was run once more, with four times the trials."""
    kind, best = max(verdicts.items(), key=lambda item: item[1].right)
    numbers = {name: round(float(getattr(best, name)), DIGITS) for name in (
        "share", "at_least", "at_most", "bits", "bits_at_least", "bits_at_most")}
    return {"pair": pair, "observer": observer, "classifier": kind, "judged": best.trials, "again": again, **numbers}


def document(facts: Mapping[str, Any], cells: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the document of a run. `digest` is SHA-256 of the rest in canonical JSON (RFC 8785).
    """
    found = {"format": FORMAT, **facts, "cells": [dict(each) for each in cells]}
    return {**found, "digest": hashlib.sha256(canonical(found)).hexdigest()}


def markdown(found: Mapping[str, Any]) -> str:
    """Return the table of a document: right answers in percent and bits, each with its upper bound,
    by pair and observer."""
    observers = list(dict.fromkeys(each["observer"] for each in found["cells"]))
    rows = [f"| pair | {' | '.join(observers)} |", f"|---|{'---|' * len(observers)}"]
    for pair in dict.fromkeys(each["pair"] for each in found["cells"]):
        cells = {each["observer"]: each for each in found["cells"] if each["pair"] == pair}
        rows.append(f"| {pair} | " + " | ".join(_words(cells.get(observer)) for observer in observers) + " |")
    return "\n".join([f"Policy `{found['policy']}`, SHA-384 `{found['policy_sha384'][:16]}…`, {found['trials']} trials "
                      f"of each pair, run `{found['digest'][:16]}…`:", "", *rows]) + "\n"


def _words(each: Mapping[str, Any] | None) -> str:
    if each is None:
        return "–"
    return (f"{100 * each['share']:.1f} (≤ {100 * each['at_most']:.1f}), {each['bits']:.3f} (≤ "
            f"{each['bits_at_most']:.3f})")
