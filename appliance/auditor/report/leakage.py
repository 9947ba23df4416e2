"""A table of measured leakage in a pack, as `benchmarks.leakage` wrote it.

A run is its maker's word. Its digest shows that nothing was altered since.
"""

from __future__ import annotations

import hashlib
from html import escape
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from appliance.attestation.binding import describe
from appliance.auditor.claims.case import Case
from appliance.codec import strict
from appliance.codec.canonical import canonical
from appliance.errors import AuditError

Word = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
Share = Annotated[float, Field(ge=0, le=1)]
Bits = Annotated[float, Field(ge=0, le=8)]


class LeakageCell(BaseModel):
    """One pair of requests, and one observer."""

    model_config = ConfigDict(frozen=True)

    pair: Word
    observer: Word
    share: Share  # right answers, where chance has one half
    at_most: Share  # its upper bound of 95%
    bits: Bits
    bits_at_most: Bits


class LeakageRun(BaseModel):
    """One run. Further members tell how it was made."""

    model_config = ConfigDict(frozen=True)

    format: Literal["appliance/leakage/v1"]
    policy: Word
    policy_sha384: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{96}$")]
    digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    cells: Annotated[tuple[LeakageCell, ...], Field(max_length=512)]


def parse(content: bytes) -> LeakageRun:
    """Read a run. Raises AuditError if it is not one, or if its digest is of another one."""
    try:
        document: Any = strict.json_value(content)
        run = LeakageRun.model_validate(document)
        rest = {name: value for name, value in document.items() if name != "digest"}
        found = hashlib.sha256(canonical(rest)).hexdigest()
    except ValidationError as error:
        raise AuditError(f"leakage: {describe(error)}", code="pack-member") from None
    except ValueError as error:
        raise AuditError(f"leakage: {error}", code="pack-member") from None
    if found != run.digest:
        raise AuditError(f"leakage: its digest is {run.digest}, and the rest gives {found}", code="pack-member",
                         hint="take the file as `python -m benchmarks.leakage` wrote it")
    return run


def section(case: Case) -> list[str]:
    """Return the tables for a page, by policy; nothing where the pack has none. A file that is not
    a run is named."""
    files = sorted(case.many("leakage").items())
    lines = ["<h2>What an onlooker can tell, as measured</h2>"] if files else []
    for name, content in files:
        try:
            lines += _table(parse(content))
        except AuditError as error:
            lines.append(f"<p>{escape(name)} cannot be shown: {escape(error.summary)}</p>")
    return lines


def _table(run: LeakageRun) -> list[str]:
    rows = "".join(f"<tr><td>{each.pair}</td><td>{each.observer}</td><td>{100 * each.share:.1f} "
                   f"(≤ {100 * each.at_most:.1f})</td><td>{each.bits:.3f} (≤ {each.bits_at_most:.3f})</td></tr>"
                   for each in run.cells)
    names = "".join(f'<th scope="col">{each}</th>' for each in ("pair", "observer", "% right", "bits"))
    return [f"<h3>{escape(run.policy)}</h3><p>Policy {run.policy_sha384}, run {run.digest}. Chance has 50% and 0 "
            f"bits; bounds are of 95%.</p><table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table>"]
