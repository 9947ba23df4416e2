"""The rules in words, those that must hold before the word "verified" is used, and the attack that
a failure looks like.

The rules' names are those of the modules that judge them, and of no one attack:
docs/reference/verify.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from appliance.attestation.judge.halves import JUDGES

OWN = tuple(rule for half in JUDGES.values() for rule in half.rules)  # those of one platform

MEANINGS: Mapping[str, str] = MappingProxyType({each.name: each.meaning for each in OWN} | {
    # what a verifier holds
    "approvals": "as many people approved the policy as it requires",
    "measurements": "the measurements are the builder's",
    "release": "the builder's release log has the measurements, revokes neither them nor the policy, and is new enough",
    "gate": "the image that the measurements name begins with the gate",
    "measured-policy": "the policy that is part of the measured image is this one",
    "overlap": "the appliance is the next one already; the one before is accepted for a stated time",
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
    "access-pattern": "no read of the disk depends on a text",
    "debug": "the host may not debug, that is read, the guest",
    "migration": "no migration agent may move the guest",
    "smt": "hyper-threading is as the policy demands",
    "kept": "the collateral of this evidence is kept for another day",
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

# The policy's field that a rule compares. Rules without one compare a field of the evidence.
FIELDS: Mapping[str, str] = MappingProxyType({
    "platform": "tee.platforms", "machine": "tee.evidence.machines", "models": "model.sha256",
    "debug": "tee.evidence.debug", "migration": "tee.evidence.migration", "smt": "tee.evidence.smt",
    "vmpl": "tee.evidence.vmpl", "session": "service.session_binding", "approvals": "approvals.required",
    "access-pattern": "model.access_pattern", "memory-access": "privacy.memory_access",
} | {rule: field for half in JUDGES.values() for rule, field in half.fields.items()})
_OF_EVIDENCE: Mapping[str, str] = MappingProxyType({
    "policy": "policy_sha384 of the statement", "self-test": "self_test_sha384 of the statement", "nonce": "nonce",
    "tls-key": "tls_spki_sha256 of the statement", "measurement": "MEASUREMENT, MRTD or registers",
    "launch-policy": "HOST_DATA or MRCONFIGID", "mrtd": "MRTD", "measured-policy": "policy_sha384 of the measurements"})

# The next step after a rule that failed, with the command that tells more.
NEXT: Mapping[str, str] = MappingProxyType({
    **dict.fromkeys(("policy", "launch-policy", "measured-policy"), "compare with the policy that was deployed: "
                    "appliance digest FILE prints the digest of one"),
    **dict.fromkeys(("measurement", "mrtd"), "predict again for this image, firmware and number of vCPUs: appliance "
                    "image predict DIR"),
    **dict.fromkeys(("nonce", "session", "tls-key", "channel", "certificate-evidence", "certificate"),
                    "ask again: appliance verify URL; if it stays, somebody is in between"),
    "models": "see what is loaded: appliance models list URL --policy FILE",
    "platform": "name the platform in tee.platforms, if it is the one you want: appliance schema",
    "machine": "look at the list: appliance machines show FILE --policy FILE",
    "approvals": "see who has approved: appliance approve FILE"})
SEE = "appliance evidence FILE prints all that the machine shows, for evidence that verify --save FILE kept"

# The advice on a rule that must hold and could not be checked.
HINTS: Mapping[str, str] = MappingProxyType({each.name: each.hint for each in OWN if each.hint} | {
    "measurement": "give the image's measurements: --measurements FILE --builder-key KEY",
    "machine": "put the signed list beside the policy, under the name that the policy has, or give it: --machines "
               "FILE; the policy's owner has it",
})

# Rules that say nothing new, or that the policy did not ask for: not shown to people where they
# were not checked.
_QUIET = frozenset({"machine", *(each.name for each in OWN if each.quiet)}.union(
    *(half.quiet for half in JUDGES.values())))


def required(platform: str, *, online: bool, revocation: bool, activation: bool = False,
             any_ak: bool = False, session: bool = False, listed: bool = False) -> tuple[str, ...]:
    """The rules that must hold, and not only go unchecked, for a good verdict on a platform's
    evidence.

    `activation`: a TPM had to be challenged. `any_ak`: its key needs nobody to vouch for it, for
    tests. `session`: the policy binds evidence to sessions. `listed`: it demands listed machines.
    """
    all_rules = JUDGES[platform].required
    rules = tuple(rule for rule in all_rules if rule != "revocation" and not (any_ak and rule == "ak-origin"))
    if activation:
        rules = (*JUDGES[platform].challenged, *rules)
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


def field(rule: str) -> str:
    """Return the field that a rule compares, of the policy or of the evidence, or nothing."""
    if rule.startswith(("pcr", "rtmr")) and rule[-1].isdigit():
        return f"{rule.upper()} of the measurements"
    return FIELDS.get(rule) or _OF_EVIDENCE.get(rule, "")


def next_step(rule: str) -> str:
    """Say what to do about a rule that failed."""
    if rule.startswith(("pcr", "rtmr")):
        return NEXT["measurement"]
    return NEXT.get(rule, SEE)


def is_quiet(rule: str) -> bool:
    """Whether a rule that was not checked is no news to a person."""
    return rule in _QUIET
