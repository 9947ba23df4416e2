"""All detectors, one row each. The order decides which name stands in for a text that several
find."""

from __future__ import annotations

from collections.abc import Collection

from appliance.detectors.candidates.row import Detector
from appliance.detectors.kinds import addresses, birth, email, lettered, national, payment, phone, secret

DETECTORS: tuple[Detector, ...] = (
    *secret.ROWS, *email.ROWS, *payment.ROWS, *lettered.ROWS, *national.ROWS, *birth.ROWS,
    *addresses.ROWS, *phone.ROWS)


def chosen(names: Collection[str]) -> tuple[Detector, ...]:
    """Return the detectors of some names and groups, in the order of the table."""
    return tuple(each for each in DETECTORS if each.name in names or each.group in names)
