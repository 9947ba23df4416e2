"""A rule in words, and the one that a client may do without."""

from __future__ import annotations

from typing import NamedTuple

from appliance.attestation.findings import Finding


class Rule(NamedTuple):
    """A rule that a platform's `validate` judges, as verdicts speak of it.

    `about`: the claim of the AR4SI trustworthiness vector that a failure speaks against. `attack`
    is what a failure looks like. `hint` is the advice where the rule must hold and could not be
    checked. `quiet`: a rule that was not checked is no news to a person.
    """

    name: str
    meaning: str
    about: str
    attack: str = ""
    hint: str = ""
    quiet: bool = False


def waived(finding: Finding) -> Finding:
    """A finding on revocation for someone who does without: an old list is never worse than none.
    """
    if finding.rule != "revocation" or finding.outcome != "fails":
        return finding
    return Finding(finding.rule, "not checked", finding.detail)
