"""Claims about the builder's release log: which images it released, and which it took back since.

docs/formats/release-log.md has the format; docs/guides/verify.md says when to ask for its age.
"""

from __future__ import annotations

import contextlib
import hashlib

from appliance.auditor.claims.case import Case, LackingError
from appliance.auditor.claims.claim import Answer, Claim, either, fails, holds, open_
from appliance.codec.printable import quantity


def _measured(case: Case) -> str:
    """SHA-384 of the measurements in their one form."""
    return hashlib.sha384(case.known.measurements.to_json()).hexdigest()


def _logged(case: Case) -> Answer:
    log, digest = case.releases, _measured(case)
    count = quantity(len(log.measurements), "release")
    return either(digest in log.measurements, f"{count} in {quantity(log.head.size, 'record')}",
                  f"of its {count} none has the measurements {digest}")


def _standing(case: Case) -> Answer:
    """A revocation counts whenever it was made. The policy's revocation also counts without
    measurements."""
    log, measured = case.releases, None
    lacking = "the pack has no measurements that the judge believes"
    with contextlib.suppress(LackingError):
        measured = _measured(case)
    for what, digest in (("measurements", measured), ("policy", case.policy.digest.hex())):
        if digest is not None and (what, digest) in log.revoked:
            return fails(f"the builder revoked the {what}")
    listed = "has the policy" if case.policy.digest.hex() in log.policies else "says nothing else of the policy"
    return open_(lacking) if measured is None else holds(
        f"up to {log.newest:%Y-%m-%dT%H:%M:%SZ}; revoked: {quantity(len(log.revoked), 'other')}; the log {listed}")


def _recent(case: Case) -> Answer:
    """An old log knows no new revocation. Its age is at the judge's time."""
    newest, most = case.releases.newest, case.given.max_release_age
    if most is None:
        return open_(f"the judge named no age; the newest record is of {newest:%Y-%m-%dT%H:%M:%SZ}")
    told = f"the newest record is of {newest:%Y-%m-%dT%H:%M:%SZ}"
    return either(case.given.at - newest <= most, told, f"{told}, older than {most}")


CLAIMS = (
    Claim("release-logged", "The builder's release log has the measurements.", _logged),
    Claim("release-standing", "The builder revoked neither the measurements nor the policy.", _standing),
    Claim("release-recent", "The release log is as new as the judge asks.", _recent),
)
