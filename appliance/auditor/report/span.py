"""The span of time that a pack's evidence bears: outside of it, a judge's `--at` judges nothing.

Certificates and lists have their times, and a log has records of some days. All else is timeless.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from appliance.attestation.case import reading
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.auditor.claims.case import Case, LackingError
from appliance.errors import ApplianceError

LONG = timedelta(days=400)  # after the last record, a pack without dated documents says little of a day
_FOREVER = datetime.max.replace(tzinfo=UTC)
Life = tuple[datetime, datetime]


def warnings(case: Case) -> list[str]:
    """Words on the judge's time where the pack's evidence does not bear it; with the span that it
    does."""
    at, said = case.given.at, []
    dated, log = documents(case), records(case)
    if dated is not None and not dated[0] <= at <= dated[1]:
        said.append(f"{_told(at)} is outside of the times that the evidence bears, {_told(dated[0])} to "
                    f"{_told(dated[1])}: certificates and lists in the pack are not for it")
    if log is not None and at < log[1]:
        said.append(f"{_told(at)} is before the log's last record, of {_told(log[1])} by the host's clock; its first "
                    f"is of {_told(log[0])}")
    if log is not None and dated is None and at > log[1] + LONG:
        said.append(f"{_told(at)} is long after the log's last record, of {_told(log[1])} by the host's clock, and "
                    "nothing in the pack is of that day")
    return said


def documents(case: Case) -> Life | None:
    """Return the time in which each certificate that travels with evidence is valid, and some list
    of each kind is in force. None where evidence has no such document."""
    own = Collateral()
    for name, content in case.many("evidence").items():
        with contextlib.suppress(ApplianceError):
            own = own.with_items(reading.collateral_of(reading.parse(content)), name)
    known = own.joined(case.collateral)
    spans = [(each.not_valid_before_utc, each.not_valid_after_utc) for each in own.certificates]
    spans += [(min(start for start, _ in lives), max(end for _, end in lives))
              for lives in (list(_lists(known)), list(_answers(known))) if lives]
    return (max(start for start, _ in spans), min(end for _, end in spans)) if spans else None


def _lists(known: Collateral) -> Iterator[Life]:
    for each in known.crls:
        yield each.last_update_utc, each.next_update_utc or _FOREVER


def _answers(known: Collateral) -> Iterator[Life]:
    for each in known.answers:
        if not each.misfit:
            yield each.issued, each.ends


def records(case: Case) -> Life | None:
    """Return the times of the log's first and last record, by the host's clock."""
    try:
        times = [datetime.fromisoformat(each["time"]) for each in case.as_written]
    except (LackingError, ValueError):
        return None
    return (min(times), max(times)) if times else None


def _told(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"
