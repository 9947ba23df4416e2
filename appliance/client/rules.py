"""The rules in words, those that must hold before the word "verified" is used, and the attack that
a failure looks like.

The rules' names are those of the modules that judge them, and of no one attack:
docs/reference/verify.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from appliance.attestation.judge.halves import JUDGES
from appliance.platforms import TPM

OWN = tuple(rule for half in JUDGES.values() for rule in half.rules)  # those of one platform

MEANINGS: Mapping[str, str] = MappingProxyType({each.name: each.meaning for each in OWN} | {
    # what a verifier holds
    "approvals": "as many people approved the policy as it requires",
    "measurements": "the measurements are the builder's",
    "release": "the builder's release log has the measurements, revokes neither them nor the policy, and is new enough",
    "gate": "the image that the measurements name begins with the gate",
    "measured-policy": "the policy that is part of the measured image is this one",
    # the connection
    "certificate": "the connection's certificate is in its time and signed by its own key",
    "certificate-evidence": "evidence in the certificate is about the certificate's own key",
    "channel": "the connection is the one that the evidence is about",
    "tls-key": "the TLS key of this connection is the one in the evidence",
    "session": "the evidence was made for this very connection",
    "nonce": "the evidence was made for this nonce, so after it was chosen",
    # every platform
    "signature": "the report is signed, up to a root that is pinned here",
    "statement": "the report binds the statement on policy, models, keys and nonce",
    "platform": "the platform is one that the policy allows",
    "machine": "the machine is on the policy's signed list, if the policy demands one",
    "policy": "the appliance enforces this policy",
    "launch-policy": "the machine was launched with this policy",
    "models": "the models loaded are those of the policy, no others, and none is missing that must be there",
    "self-test": "the boot's self-test gave the expected results",
    "measurement": "the machine runs an image that the measurements name",
    "debug": "the host may not debug, that is read, the guest",
    "migration": "no migration agent may move the guest",
    "smt": "hyper-threading is as the policy demands",
    "bulletins": "the machine shows all that the bulletins on its kind ask for",
})

# The attack that a failure of a rule looks like. The name of the attack is said first.
ATTACKS: Mapping[str, str] = MappingProxyType({each.name: each.attack for each in OWN if each.attack} | {
    "nonce": "replay", "session": "relay", "tls-key": "splice", "certificate-evidence": "splice",
    "channel": "splice", "debug": "debug",
    "measurement": "wrong image or vCPU count", "policy": "another deployment", "launch-policy": "another deployment",
    "measured-policy": "another deployment", "models": "other models", "approvals": "not approved",
    "machine": "another machine",
    "release": "revoked, or withheld news",
})

# The advice on a rule that must hold and could not be checked.
HINTS: Mapping[str, str] = MappingProxyType({each.name: each.hint for each in OWN if each.hint} | {
    "measurement": "give the image's measurements: --measurements FILE --builder-key KEY",
    "machine": "put the signed list beside the policy, under the name that the policy has, or give it: --machines "
               "FILE; the policy's owner has it",
})

# Rules that say nothing new, or that the policy did not ask for: not shown to people where they
# were not checked.
_QUIET = frozenset({"report-data", "host-data", "family-id", "image-id", "mrconfigid", "mrowner", "mrownerconfig",
                    "id-key", "author-key", "rtmr0", "rtmr3", "machine"} | {each.name for each in OWN if each.quiet})


def required(platform: str, *, online: bool, revocation: bool, activation: bool = False,
             any_ak: bool = False, session: bool = False, listed: bool = False) -> tuple[str, ...]:
    """The rules that must hold, and not only go unchecked, for a good verdict on a platform's
    evidence.

    `activation`: a TPM had to be challenged. `any_ak`: its key needs nobody to vouch for it, for
    tests. `session`: the policy binds evidence to sessions. `listed`: it demands listed machines.
    """
    all_rules = JUDGES[platform].required
    rules = tuple(rule for rule in all_rules if rule != "revocation" and not (any_ak and rule == "ak-origin"))
    if platform == TPM.name and activation:
        rules = ("ek-activation", *rules)
    if all_rules and online:
        rules += ("nonce", "tls-key", "certificate", *(("session",) if session else ()))
    if "revocation" in all_rules and revocation:
        rules += ("revocation",)
    return (*rules, "machine") if listed else rules


def meaning(rule: str) -> str:
    """A rule in words; a register by its number."""
    if rule in MEANINGS:
        return MEANINGS[rule]
    return f"{rule.upper()} is as the measurements say" if rule.startswith(("pcr", "rtmr")) else rule


def is_quiet(rule: str) -> bool:
    """Whether a rule that was not checked is no news to a person."""
    return rule in _QUIET
