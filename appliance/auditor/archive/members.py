"""The kinds of members that a pack may have: one row each, in the order of the archive.

A name that no row has is refused, so nothing in a pack leads out of a folder. A kind that may come
many times has a folder, and its members have names in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_STRANGE = re.compile(r"[^a-z0-9._-]+")
KIB, MIB = 1 << 10, 1 << 20
MOST_OF_A_KIND = 256


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of member. `place`: its name in the archive; with a slash at its end, its folder."""

    name: str
    place: str
    what: str  # in words, for lists of what a pack lacks
    most: int  # bytes
    needed_for: str  # the claims that cannot be shown without it, in words
    optional: bool = False  # no pack lacks it: packs of before it was a kind stay whole

    @property
    def many(self) -> bool:
        """Whether it may come many times."""
        return self.place.endswith("/")

    def holds(self, name: str) -> bool:
        """Whether a member's name is of this kind."""
        if not self.many:
            return name == self.place
        return name.startswith(self.place) and _NAME.fullmatch(name[len(self.place):]) is not None


KINDS = (
    Kind("report", "report.html", "the report for people", 16 * MIB, "reading the outcome without a program"),
    Kind("policy", "policy/deployment.hcl", "the policy", MIB, "what was promised"),
    Kind("approvals", "policy/deployment.hcl.approvals", "the approvals of the policy", 64 * KIB, "who agreed to it"),
    Kind("measurements", "image/measurements.json", "the predicted measurements", 4 * MIB, "which image ran"),
    Kind("signature", "image/measurements.json.sig", "the builder's signature of them", 64, "whose prediction it is"),
    Kind("sbom", "image/sbom.cdx.json", "the bill of materials of image and models", 16 * MIB, "what is in the image"),
    Kind("provenance", "image/provenance.intoto.jsonl", "the image's provenance", 16 * MIB, "how the image was made"),
    Kind("releases", "image/releases/log.jsonl", "the builder's release log", 64 * MIB,
         "that the builder released the image, and did not revoke it"),
    Kind("release-head", "image/releases/checkpoint", "the release log's signed head", 64 * KIB,
         "that the release log is the builder's, and whole"),
    Kind("bundle", "publishers/", "bundles by which publishers signed the models", 4 * MIB, "whose models they are"),
    Kind("evidence", "evidence/", "evidence from the hardware", MIB, "that this image ran under this policy"),
    Kind("collateral", "collateral/", "collateral of that day", 4 * MIB, "judging the evidence later"),
    Kind("health", "self-test/health.json", "the boot's report with its self-test", MIB, "that the self-test passed"),
    Kind("log", "log/audit.jsonl", "the audit log", 256 * MIB, "what happened"),
    Kind("extract", "log/extracts/", "records with proofs out of the log", 64 * MIB, "single records without the log"),
    Kind("checkpoint", "log/held/", "checkpoints that were held outside of the log", 64 * KIB,
         "that the log was not cut off or set back"),
    Kind("receipt", "receipts/", "receipts of answers", 256 * KIB, "that answers have a record"),
    Kind("leakage", "leakage/", "tables of what an onlooker can tell, as measured", MIB,
         "how far padding hides what is asked", optional=True),
    Kind("controls", "controls/", "further mappings of controls", MIB, "frameworks of one's own"),
)
BY_NAME = {each.name: each for each in KINDS}


def kind_of(name: str) -> Kind | None:
    """Return the kind of a member by its name in the archive; None for a name that no pack has."""
    return next((each for each in KINDS if each.holds(name)), None)


def place(kind: Kind, name: str, taken: set[str]) -> str:
    """Return a free place for a member of a kind that may come many times, after its file's
    name."""
    plain = _STRANGE.sub("-", name.lower()).strip("-.")[-48:].lstrip("-._") or "item"
    found, number = kind.place + plain, 1
    while found in taken:
        number += 1
        found = f"{kind.place}{number}-{plain}"
    return found


def order(name: str) -> tuple[int, str]:
    """Return the place of a member in the archive."""
    kind = kind_of(name)
    return (len(KINDS) if kind is None else KINDS.index(kind)), name
