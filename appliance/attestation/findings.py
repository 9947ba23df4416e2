"""Findings: one rule each, with its outcome. A rule without an expectation is reported as not
checked."""

from __future__ import annotations

import hmac
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["holds", "fails", "not checked"]


@dataclass(frozen=True)
class Finding:
    """One rule and its outcome; `detail` holds digests and names, which are public."""

    rule: str
    outcome: Outcome
    detail: str = ""


def judged(rule: str, holds: bool, detail: str = "") -> Finding:
    """A finding that holds or fails."""
    return Finding(rule, "holds" if holds else "fails", detail)


def same(rule: str, found: bytes | None, wanted: bytes | None) -> Finding:
    """Compare bytes; nothing wanted is not checked, nothing found fails."""
    if wanted is None:
        return Finding(rule, "not checked")
    if found is not None and hmac.compare_digest(found, wanted):
        return Finding(rule, "holds")
    shown = "nothing" if found is None else found.hex()
    return Finding(rule, "fails", f"found {shown}, expected {wanted.hex()}")


def one_of(rule: str, found: bytes, wanted: Collection[bytes] | None) -> Finding:
    """Bytes that must be among `wanted`; None is not checked, an empty collection fails."""
    if wanted is None:
        return Finding(rule, "not checked")
    if any(hmac.compare_digest(found, each) for each in wanted):
        return Finding(rule, "holds")
    expected = " or ".join(sorted(each.hex() for each in wanted)) or "none at all"
    return Finding(rule, "fails", f"found {found.hex()}, expected {expected}")
