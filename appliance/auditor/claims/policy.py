"""Claims about the policy: that it is valid and approved, and what it promises.

A promise counts once evidence shows that the appliance enforces this policy.
"""

from __future__ import annotations

from appliance.auditor.claims.case import Case, LackingError
from appliance.auditor.claims.claim import Answer, Claim, asked, either, fails, holds, open_
from appliance.auditor.claims.retention import least_days, least_words, most_words
from appliance.codec.printable import quantity
from appliance.signed import approvals


def _valid(case: Case) -> Answer:
    errors = [each for each in case.checked.diagnostics if each.severity == "error"]
    if errors:
        return fails(f"{quantity(len(errors), 'error')}, the first: {errors[0].summary}")
    notes = sum(each.severity == "note" for each in case.checked.diagnostics)
    return holds(f"schema {case.checked.version}, SHA-384 {case.policy.digest.hex()}"
                 + (f"; {quantity(notes, 'field')} that this version does not enforce" if notes else ""))


def _expected(case: Case) -> Answer:
    if case.given.policy_sha384 is None:
        raise LackingError("the judge named no digest that the policy must have")
    return either(case.policy.digest == case.given.policy_sha384, f"SHA-384 {case.policy.digest.hex()}",
                  f"found {case.policy.digest.hex()}, expected {case.given.policy_sha384.hex()}")


def _approved(case: Case) -> Answer:
    policy = case.policy
    if policy.policy.approvals is None:
        return open_("the policy requires no approvals")
    counted = approvals.tally(policy.policy, policy.digest, case.approvals)
    return either(counted.enough, str(counted), str(counted))


def _transport(case: Case) -> Answer:
    others = [each.name for each in case.policy.policy.service.listeners if each.kind != "ra-tls"]
    return asked(not others, "every listener is TLS with a key that was made inside and is bound by evidence",
                 f"listeners of another kind: {', '.join(others)}")


def _tenants(case: Case) -> Answer:
    tenants = case.policy.policy.tenants
    if tenants.authority is not None:
        return holds(f"by the list that {tenants.authority} signs, version {tenants.min_version} or newer")
    return asked(bool(tenants.tenants), f"{quantity(len(tenants.tenants), 'tenant')} in the policy", "it names none")


def _limits(case: Case) -> Answer:
    limits = case.policy.policy.limits
    found = {name: getattr(limits, name) for name in ("requests_per_minute", "tokens_per_minute", "tokens_per_day")}
    told = ", ".join(f"{name} {value}" for name, value in found.items() if value is not None)
    return asked(bool(told), told, "no rate and no quota")


def _sealed(case: Case) -> Answer:
    plain = [each.name for each in case.policy.policy.models if each.sealed_header_sha256 is None]
    return asked(not plain, "each model is sealed by AES-256-GCM", f"models that are not sealed: {', '.join(plain)}")


def _redacted(case: Case) -> Answer:
    found = case.policy.policy.privacy.redaction
    told = ", ".join([*found.detectors, *(each.name for each in found.patterns)])
    return asked(bool(told), told, "no redaction")


def _padded(case: Case) -> Answer:
    privacy = case.policy.policy.privacy
    times = privacy.timing_padding
    kinds = {"times": times is not None and bool(times.first_token_ms or times.total_ms or times.jitter_ms),
             "sizes": privacy.size_padding_bytes is not None, "token counts": privacy.token_count_rounding > 1}
    hidden, bare = ([name for name, value in kinds.items() if value is yes] for yes in (True, False))
    return asked(bool(hidden), ", ".join(hidden) + (f"; not {', '.join(bare)}" if bare else ""),
                 "neither times nor sizes are padded")


def _memory(case: Case) -> Answer:
    """Session pages on the state disk are made of prompts and answers, and have their token ids."""
    policy = case.policy.policy
    kept = [each.name for each in policy.models if each.session_persistence]
    age = policy.privacy.retention.sessions_ms
    return asked(not kept, "no model has session_persistence", "session_persistence keeps token ids, keys and values "
                 f"of {', '.join(kept)} on the state disk, sealed" + (f", for up to {_age(age)}" if age else ""))


def _forgotten(case: Case) -> Answer:
    """Keys and values that are kept for a next text outlive the answer that they are of."""
    kept = [each.name for each in case.policy.policy.models if each.prefix_cache is not None]
    return asked(not kept, "no model has a prefix_cache", "prefix_cache keeps token ids, keys and values of "
                 f"{', '.join(kept)} for a next text")


def _age(milliseconds: int) -> str:
    """Return an age in the largest unit that it is a whole number of."""
    for length, unit in ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second")):
        if milliseconds % length == 0:
            return quantity(milliseconds // length, unit)
    return quantity(milliseconds, "millisecond")


def _kept(case: Case) -> Answer:
    days = least_days(case.policy.policy)
    return asked(days is not None, least_words(days or 0), "the log's lines go to whoever collects them")


def _destroyed(case: Case) -> Answer:
    age = case.policy.policy.privacy.retention.audit_ms
    return asked(age is not None, most_words(age or 0), "no time at which records are destroyed")


def _receipts(case: Case) -> Answer:
    return asked(case.policy.policy.audit.receipts, "on request, for each answer", "no receipts")


def _checkpoints(case: Case) -> Answer:
    every = case.policy.policy.audit.checkpoint_interval_ms
    return asked(every is not None, f"every {(every or 0) // 1000} s at most", "no interval of checkpoints")


def _witnesses(case: Case) -> Answer:
    names = ", ".join(each.name for each in case.policy.policy.audit.witnesses)
    return asked(bool(names), names, "no witness")


CLAIMS = (
    Claim("policy-valid", "The policy is valid.", _valid),
    Claim("policy-expected", "The policy is the one that the judge expects.", _expected),
    Claim("policy-approved", "As many approvers signed the policy as it requires.", _approved),
    Claim("policy-transport", "The policy has every connection encrypted up to the inside of the machine.", _transport),
    Claim("policy-tenants", "The policy answers to API keys alone that it, or its signed list, knows.", _tenants),
    Claim("policy-limits", "The policy bounds how much may be asked.", _limits),
    Claim("policy-sealed", "The policy has models lie encrypted on the operator's disk.", _sealed),
    Claim("policy-redaction", "The policy has texts of given kinds redacted.", _redacted),
    Claim("policy-padding", "Times, sizes or token counts are padded or rounded.", _padded),
    Claim("policy-memory", "The policy keeps prompts and answers, and what the model makes of them, in memory alone.",
          _memory),
    Claim("policy-forgotten", "The policy keeps nothing of a prompt or an answer for a next one.", _forgotten),
    Claim("policy-kept", "The policy says how long records of requests can be read at least.", _kept),
    Claim("policy-destroyed", "The policy says when records of requests are destroyed.", _destroyed),
    Claim("policy-receipts", "The policy lets clients have a receipt for each answer.", _receipts),
    Claim("policy-checkpoints", "The policy has the log signed in an interval.", _checkpoints),
    Claim("policy-witnesses", "The policy names witnesses outside that cosign the log.", _witnesses),
)
