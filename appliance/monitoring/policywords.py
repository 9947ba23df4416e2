"""A policy in plain words: what it promises to whom, in a sentence a field. The rest is
left out."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.monitoring.load import nbytes, span
from appliance.policy.schema import Model, Policy

_ROLES = {"user": "asks models", "auditor": "reads metrics and the log", "admin": "asks models and changes them",
          "metrics": "reads metrics"}


def sentences(policy: Policy) -> Iterator[str]:
    """Yield the sentences, the gravest first."""
    yield from _platform(policy)
    for model in policy.models:
        yield _model(model)
    yield from _people(policy)
    yield from _privacy(policy)
    yield from _limits(policy)
    yield from _log(policy)


def _platform(policy: Policy) -> Iterator[str]:
    if policy.simulated:
        yield "It runs on the simulated platform: its operator can read everything."
    else:
        yield f"It runs only on {' or '.join(policy.tee.platforms)}, and clients check that."
    if policy.state is None:
        yield "It has no writable disk: nothing outlives a boot but what leaves it."
    if policy.approvals is not None:
        yield (f"{policy.approvals.required} of {len(policy.approvals.approvers)} approvers must have signed this "
               "policy.")


def _model(model: Model) -> str:
    kept = {True: "Its weights are decrypted piece by piece.", False: "Its weights stay decrypted in memory.",
            "auto": "Its weights stay in memory as far as there is room."}[model.streaming_decrypt]
    when = {"always": "It stays loaded.", "boot": "A boot loads it, and an admin may unload it.",
            "demand": "An admin loads it."}[model.load]
    return f"Model {model.name} is the file {model.file}, by its pinned digest. {kept} {when}"


def _people(policy: Policy) -> Iterator[str]:
    if policy.tenants.authority is not None:
        yield "A signed list names the tenants, and may change without a new policy."
    for tenant in policy.tenants.tenants:
        asks = f" It may ask {', '.join(tenant.models)}." if tenant.models else ""
        yield f"Tenant {tenant.name} {_ROLES[tenant.role]}.{asks}"


def _privacy(policy: Policy) -> Iterator[str]:
    privacy, padding = policy.privacy, policy.privacy.timing_padding
    if padding is None:
        yield "Answers leave as soon as they are there: an onlooker on the wire sees how long each took."
    else:
        yield (f"First tokens leave on a grid of {padding.first_token_ms} ms, and answers end on one of "
               f"{padding.total_ms} ms.")
        if padding.cadence_ms:
            yield f"Each model works at a cadence of {padding.cadence_ms} ms, whether or not anybody asks."
    if privacy.size_padding_bytes is not None:
        yield f"Events and answers have sizes in multiples of {nbytes(privacy.size_padding_bytes)}."
    if privacy.token_count_rounding > 1:
        yield f"Counts of tokens are rounded up to multiples of {privacy.token_count_rounding}."
    names = [*privacy.redaction.detectors, *(each.name for each in privacy.redaction.patterns)]
    if names:
        yield f"In {' and '.join(f'{each}s' for each in privacy.redaction.apply_to)} it replaces: {', '.join(names)}."


def _limits(policy: Policy) -> Iterator[str]:
    limits = policy.limits
    yield (f"{limits.concurrent_requests} requests may be in progress, each with a prompt of {limits.prompt_tokens} "
           f"tokens and an answer of {limits.generation_tokens}.")
    for number, what in ((limits.requests_per_minute, "requests a minute"), (limits.tokens_per_minute,
                         "tokens a minute"), (limits.tokens_per_day, "tokens a day")):
        if number is not None:
            yield f"A key has {number} {what}."


def _log(policy: Policy) -> Iterator[str]:
    audit = policy.audit
    yield f"The audit log goes to {'the state disk' if audit.sink == 'state' else 'whoever runs the machine'}."
    if audit.checkpoint_interval_ms is not None:
        yield f"Its head is signed every {span(audit.checkpoint_interval_ms / 1000)}, when it grew."
    for witness in audit.witnesses:
        yield f"Witness {witness.name} cosigns it."
    if audit.receipts:
        yield "Each answer has a receipt."
