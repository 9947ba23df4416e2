"""Warnings on a valid policy, each a rule as `rules` has them: it protects less than it seems to,
or asks for something that has no effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from appliance.platforms import IMAGE_PCRS, SNP, TPM
from appliance.policy import rules
from appliance.policy.bind import Path
from appliance.policy.digest import POLICY_PCR
from appliance.policy.rules import BlockRules, Breach, Breaches, Rules
from appliance.policy.schema import KeySource, Model, Policy, Tenant


def evidence(policy: Policy) -> Breaches:
    """Requirements that hardware evidence would meet while protecting little deserve a word."""
    if policy.tee.evidence.debug and not policy.simulated:
        yield Breach(("tee", "evidence", "debug"), "debug = true accepts a guest that the host can read",
                      "leave it out in production", severity="warning")
    if TPM.name in policy.tee.platforms and policy.tee.evidence.azure is None:
        yield Breach(("tee", "platforms"), "a TPM measures the boot, but protects nothing from the host: clients get "
                      'the verdict "measured boot, host trusted", never "verified"',
                      "use sev-snp or tdx where the host is not trusted", severity="warning")
    snp = policy.tee.evidence.sev_snp
    if snp.min_guest_svn and snp.id_key_sha384 is None and snp.author_key_sha384 is None:
        yield Breach(("tee", "evidence", "sev_snp", "min_guest_svn"),
                      "min_guest_svn is compared with an ID block that anybody may sign, so the operator writes it",
                      "pin who signs it: id_key_sha384 or author_key_sha384", severity="warning")


def machines(policy: Policy) -> Breaches:
    """A list of machines is of use where evidence names its machine."""
    listed, snp = policy.tee.evidence.machines, policy.tee.evidence.sev_snp
    if listed is None:
        return
    place: Path = ("tee", "evidence", "machines")
    if policy.simulated:
        yield Breach(place, "simulated evidence names no machine, so that every verifier refuses it",
                      "delete the block, or write hardware platforms", severity="warning")
    elif policy.tee.platforms == (SNP.name,) and snp.signing_keys == ("vlek",):
        yield Breach(place, "a report that a VLEK signed names no machine, so that every verifier refuses it",
                      'delete the block, or add "vcek" to signing_keys', severity="warning")


def relays(policy: Policy) -> Breaches:
    """Evidence that is of a TLS key, and not of a connection, can be relayed."""
    secured = any(listener.kind in ("tls", "ra-tls") for listener in policy.service.listeners)
    if not secured or policy.service.session_binding == "required":
        return
    one = policy.appliance.schema_version == 1
    yield Breach(("service",) if one else ("service", "session_binding"),
                  "evidence is bound to the TLS key alone: whoever once got that key can relay it",
                  "write schema = 2, by appliance check --upgrade, and leave out session_binding" if one else
                  'write session_binding = "required", if every client\'s TLS has an exporter', severity="warning")


def unnamed_successor(policy: Policy) -> Breaches:
    """A state key in a TPM is one image's, until that image is told which one follows."""
    state = policy.state
    if state is not None and state.key.provider == TPM.name and state.successor is None:
        one = policy.appliance.schema_version == 1
        yield Breach(("state", "key", "provider"), "no image can follow this one: after an update of image or policy "
                      "the disk opens no more, and its log is lost",
                      "write schema = 2, by appliance check --upgrade, and a successor block" if one else
                      'name who signs its successor: successor { authority = "ed25519:…" } in state',
                      severity="warning")


def sessions(policy: Policy) -> Breaches:
    """Sessions are pages of the prefix cache, kept for a time that is said."""
    for model in policy.models:
        if not model.session_persistence or policy.appliance.schema_version == 1:
            continue
        place: Path = ("model", model.name, "session_persistence")
        if model.prefix_cache is None:
            yield Breach(place, "no pages are kept in memory that could be kept on the state disk, so no session is",
                          'add prefix_cache { size = "2GiB" } to the model, or leave this out', severity="warning")
        if policy.privacy.retention.sessions_ms is None:
            yield Breach(place, "sessions without a retention are deleted at once",
                          'write retention { sessions = "8h" } in privacy, or leave this out', severity="warning")
        if policy.state is not None and policy.state.key.provider == "ephemeral":
            yield Breach(place, "the state disk's key is ephemeral: no session outlives a restart",
                          "use a key that lasts, or leave this out", severity="warning")


def admins(policy: Policy) -> Breaches:
    """Without a key that may change models, those on demand are never loaded."""
    demanded = [model.name for model in policy.models if model.load == "demand"]
    tenants = policy.tenants.tenants
    if demanded and tenants and not any(each.role == "admin" for each in tenants):
        yield Breach(("model", demanded[0], "load"), 'nobody may have it loaded: no tenant has the role "admin"',
                      'add a tenant with role = "admin", or write load = "boot"', severity="warning")


def context(model: Model, policy: Policy) -> Breaches:
    """A prompt that the limits allow should fit into the context."""
    if policy.limits.prompt_tokens >= model.context_length:
        yield Breach(("context_length",), f"a prompt of {policy.limits.prompt_tokens} tokens, which limits allows, "
                      "leaves no room for an answer", "raise context_length, or lower prompt_tokens",
                      severity="warning")


def guesses(model: Model, policy: Policy) -> Breaches:
    """A cadence hides how long an answer is, but not how well it is guessed."""
    padding = policy.privacy.timing_padding
    if model.speculation == "on" and padding is not None and padding.cadence_ms and policy.appliance.schema_version > 1:
        yield Breach(("speculation",), "guesses give an answer several tokens in a pass: its times show how well it is "
                      "guessed, whatever the cadence", 'write speculation = "hidden", or "off"', severity="warning")


def registers(block: KeySource, policy: Policy) -> Breaches:
    """A key sealed to registers that any system can bring about is any system's."""
    if block.provider != TPM.name or block.pcrs is None:
        return
    if not IMAGE_PCRS & set(block.pcrs):
        yield Breach(("pcrs",), "none of these registers tells the image: any system that this machine boots can have "
                      "the key", "add 4, 9 and 11", severity="warning")
    if POLICY_PCR not in block.pcrs:
        yield Breach(("pcrs",), f"PCR {POLICY_PCR}, which tells the policy, is not among these: an image that takes "
                      "its policy at launch gets the key under any policy", f"add {POLICY_PCR}", severity="warning")


def broker_session(block: KeySource, policy: Policy) -> Breaches:
    """Evidence for a broker that is of no connection can be passed on by somebody in between."""
    if block.broker is None or block.broker.session_binding == "required":
        return
    one = policy.appliance.schema_version == 1
    yield Breach(("broker",) if one else ("broker", "session_binding"),
                  "evidence for the broker is bound to no connection: somebody in between can pass it on",
                  "write schema = 2, by appliance check --upgrade, and leave out session_binding" if one else
                  'write session_binding = "required", if nothing in front of the broker ends TLS', severity="warning")


def idle_models(block: Tenant, policy: Policy) -> Breaches:
    """An auditor asks no model."""
    if block.models and block.role == "auditor":
        yield Breach(("models",), "an auditor asks no model, so this list has no effect",
                      'leave it out, or write role = "admin" or "user"', severity="warning")


# behind which rule each has its turn: findings at one place stand in this order
_BEHIND: Mapping[Callable[..., Any], tuple[Callable[..., Breaches], ...]] = {
    rules.budgets: (evidence, machines, relays), rules.successors: (unnamed_successor,), rules.retention: (sessions,),
    rules.api_keys: (admins,), rules.speculation: (guesses,),
    rules.publisher: (context,), rules.key: (registers, broker_session), rules.tenant: (idle_models,)}


def _with_advice(found: tuple[Callable[..., Breaches], ...]) -> tuple[Callable[..., Breaches], ...]:
    return tuple(each for rule in found for each in (rule, *_BEHIND.get(rule, ())))


def policy_rules() -> Rules:
    """Return the rules of a policy and the advice on it."""
    return _with_advice(rules.POLICY_RULES)


def block_rules() -> BlockRules:
    """Return the rules of blocks and the advice on them."""
    return tuple((select, _with_advice(found)) for select, found in rules.BLOCK_RULES)
