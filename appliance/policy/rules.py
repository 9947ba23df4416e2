"""Rules that span several fields. Each is a generator of findings over one block and the whole
policy.

A rule may read any field. Where that field is itself wrong, it is missing in the block, and reading
it raises `AttributeError`. The rule is then skipped for that block, because the field's own finding
stands already.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from appliance.codec.printable import quantity
from appliance.platforms import IMAGE_PCRS, PLATFORMS, SNP, TEES, TPM
from appliance.policy.bind import Path, path_text
from appliance.policy.digest import POLICY_PCR
from appliance.policy.hcl.diagnostics import Report, Severity, Span
from appliance.policy.schema import OPERATOR_PROVIDERS, Key, Listener, Model, Policy, Tenant
from appliance.policy.schema.identifiers import KEY_COMMAND
from appliance.policy.schema.kinds import closest
from appliance.policy.schema.sampling import PARAMETERS

HARDWARE = TEES
MAX_SOCKET_PATH = 107  # bytes: sun_path of unix(7), with the zero at its end
ESSENTIAL_FIELDS = frozenset({"messages", "messages.role", "messages.content", "messages.content.type",
                              "messages.content.text", "prompt", "model", "stream", "max_tokens"})


@dataclass(frozen=True)
class Finding:
    """The finding of a rule, at a path relative to the block that it looked at.

    A rule that came with a schema version says so by `since`: under older versions, where such a
    file was valid and has to stay so, an error is a warning.
    """

    path: Path
    summary: str
    fix: str
    detail: str = ""
    severity: Severity = "error"
    since: int = 1

    def severity_in(self, version: int) -> Severity:
        """Return how much the finding weighs in a file of a version."""
        return "warning" if self.severity == "error" and version < self.since else self.severity


Findings = Iterator[Finding]


def platforms(policy: Policy) -> Findings:
    """A weaker platform beside a stronger one would let the operator choose the weaker."""
    names = policy.tee.platforms
    for weak in (each.name for each in reversed(PLATFORMS) if not each.tee):
        if weak in names and len(names) > 1:
            yield Finding(("tee", "platforms"), f'"{weak}" stands beside other platforms, so the operator could choose '
                          "it", f'keep "{weak}" alone, or leave it out', f'"{weak}" alone, or hardware platforms alone')
            return


def budgets(policy: Policy) -> Findings:
    """The plaintext budget is part of the memory budget."""
    total = policy.tee.memory_budget_bytes
    if total is not None and policy.tee.plaintext_budget_bytes > total:
        yield Finding(("tee", "plaintext_budget"), "plaintext_budget is larger than memory_budget", "lower it")


def evidence(policy: Policy) -> Findings:
    """Requirements that hardware evidence would meet while protecting little deserve a word."""
    if policy.tee.evidence.debug and not policy.simulated:
        yield Finding(("tee", "evidence", "debug"), "debug = true accepts a guest that the host can read",
                      "leave it out in production", severity="warning")
    if TPM.name in policy.tee.platforms:
        yield Finding(("tee", "platforms"), "a TPM measures the boot, but protects nothing from the host: clients get "
                      'the verdict "measured boot, host trusted", never "verified"',
                      "use sev-snp or tdx where the host is not trusted", severity="warning")
    snp = policy.tee.evidence.sev_snp
    if snp.min_guest_svn and snp.id_key_sha384 is None and snp.author_key_sha384 is None:
        yield Finding(("tee", "evidence", "sev_snp", "min_guest_svn"),
                      "min_guest_svn is compared with an ID block that anybody may sign, so the operator writes it",
                      "pin who signs it: id_key_sha384 or author_key_sha384", severity="warning")


def machines(policy: Policy) -> Findings:
    """A list of machines is of use where evidence names its machine."""
    listed, snp = policy.tee.evidence.machines, policy.tee.evidence.sev_snp
    if listed is None:
        return
    place: Path = ("tee", "evidence", "machines")
    if policy.simulated:
        yield Finding(place, "simulated evidence names no machine, so that every verifier refuses it",
                      "delete the block, or write hardware platforms", severity="warning")
    elif policy.tee.platforms == (SNP.name,) and snp.signing_keys == ("vlek",):
        yield Finding(place, "a report that a VLEK signed names no machine, so that every verifier refuses it",
                      'delete the block, or add "vcek" to signing_keys', severity="warning")


def relays(policy: Policy) -> Findings:
    """Evidence that is of a TLS key, and not of a connection, can be relayed."""
    secured = any(listener.kind in ("tls", "ra-tls") for listener in policy.service.listeners)
    if not secured or policy.service.session_binding == "required":
        return
    one = policy.appliance.schema_version == 1
    yield Finding(("service",) if one else ("service", "session_binding"),
                  "evidence is bound to the TLS key alone: whoever once got that key can relay it",
                  "write schema = 2, by appliance check --upgrade, and leave out session_binding" if one else
                  'write session_binding = "required", if every client\'s TLS has an exporter', severity="warning")


def something_to_do(policy: Policy) -> Findings:
    """A policy without a model or a listener serves nothing."""
    if not policy.models:
        yield Finding(("model",), "there is no model", 'add model "name" { ... }')
    if not policy.service.listeners:
        yield Finding(("service",), "there is no listener", 'add listen "name" { kind = ... } to service')


def approvals(policy: Policy) -> Findings:
    """k of n needs n distinct keys, and k of them at most."""
    if policy.approvals is None:
        return
    approvers, required = policy.approvals.approvers, policy.approvals.required
    if required > len(approvers):
        yield Finding(("approvals", "required"), f"{quantity(required, 'approval')} required of "
                      f"{quantity(len(approvers), 'approver')}",
                      f"add approvers (their keys: {KEY_COMMAND}), or require fewer")
    seen: dict[str, str] = {}
    for approver in approvers:
        if approver.public_key in seen:
            yield Finding(("approvals", "approver", approver.name, "public_key"),
                          f"this is the key of {seen[approver.public_key]} too",
                          f"one key counts once: write another, as {KEY_COMMAND} prints it")
        seen.setdefault(approver.public_key, approver.name)


def state_users(policy: Policy) -> Findings:
    """Records that are written there need the state disk."""
    if policy.state is not None:
        return
    fix = "add a state block, or leave this out"
    for model in policy.models:
        if model.session_persistence:
            yield Finding(("model", model.name, "session_persistence"),
                          "sessions have no state disk to be kept on", fix)
    if policy.audit.sink == "state":
        yield Finding(("audit", "sink"), "the audit log has no state disk to be kept on", fix)


def successors(policy: Policy) -> Findings:
    """A state key in a TPM is one image's, until that image is told which one follows."""
    state = policy.state
    if state is None:
        return
    if state.key.provider != TPM.name:
        if state.successor is not None:
            yield Finding(("state", "successor"), f'a successor means nothing to provider "{state.key.provider}"',
                          "delete the block")
    elif state.successor is None:
        one = policy.appliance.schema_version == 1
        yield Finding(("state", "key", "provider"), "no image can follow this one: after an update of image or policy "
                      "the disk opens no more, and its log is lost",
                      "write schema = 2, by appliance check --upgrade, and a successor block" if one else
                      'name who signs its successor: successor { authority = "ed25519:…" } in state',
                      severity="warning")


def retention(policy: Policy) -> Findings:
    """A retention of something that is not kept is a misunderstanding."""
    kept = policy.privacy.retention
    if kept.audit_ms is not None and policy.audit.sink != "state":
        yield Finding(("privacy", "retention", "audit"), "the audit log is not kept by the appliance",
                      'write sink = "state" in audit, or leave this out')
    if kept.sessions_ms is not None and not any(model.session_persistence for model in policy.models):
        yield Finding(("privacy", "retention", "sessions"), "no model keeps sessions",
                      "write session_persistence = true in a model, or leave this out")


def receipts(policy: Policy) -> Findings:
    """A record whose place is told later needs a checkpoint that comes later."""
    audit = policy.audit
    if audit.receipt_position == "later" and not audit.receipts:
        yield Finding(("audit", "receipt_position"), 'receipt_position = "later" has no effect: there are no receipts',
                      "set receipts = true, or leave receipt_position out")
    elif audit.receipt_position == "later" and audit.checkpoint_interval_ms is None:
        yield Finding(("audit", "receipt_position"), 'receipt_position = "later" without checkpoint_interval: no '
                      "checkpoint would prove a record before the shutdown", 'add checkpoint_interval = "10m" to audit')


def sessions(policy: Policy) -> Findings:
    """Sessions are pages of the prefix cache, kept for a time that is said."""
    for model in policy.models:
        if not model.session_persistence or policy.appliance.schema_version == 1:
            continue
        place: Path = ("model", model.name, "session_persistence")
        if model.prefix_cache is None:
            yield Finding(place, "no pages are kept in memory that could be kept on the state disk, so no session is",
                          'add prefix_cache { size = "2GiB" } to the model, or leave this out', severity="warning")
        if policy.privacy.retention.sessions_ms is None:
            yield Finding(place, "sessions without a retention are deleted at once",
                          'write retention { sessions = "8h" } in privacy, or leave this out', severity="warning")
        if policy.state is not None and policy.state.key.provider == "ephemeral":
            yield Finding(place, "the state disk's key is ephemeral: no session outlives a restart",
                          "use a key that lasts, or leave this out", severity="warning")


def redaction(policy: Policy) -> Findings:
    """A request without its essential fields is no request."""
    for name in policy.privacy.redaction.fields:
        if name in ESSENTIAL_FIELDS:
            yield Finding(("privacy", "redaction", "fields"),
                          f'"{name}" cannot be dropped: no request works without it',
                          "leave it out; patterns change the text itself")


def quotas(policy: Policy) -> Findings:
    """A request that uses its limits fully must fit into the quotas."""
    limits = policy.limits
    longest = limits.prompt_tokens + limits.generation_tokens
    for name, quota in (("tokens_per_minute", limits.tokens_per_minute), ("tokens_per_day", limits.tokens_per_day)):
        if quota is not None and quota < longest:
            yield Finding(("limits", name), f"{name} is less than one longest request ({longest} tokens)",
                          "raise it, or lower prompt_tokens or generation_tokens")


def tenants(policy: Policy) -> Findings:
    """Either a signed list, or tenants in the policy itself, or the commitment of a redacted copy.
    """
    block = policy.tenants
    ways = [name for name, given in (("authority", block.authority), ("tenant", block.tenants),
                                     ("commitment", block.commitment)) if given]
    if len(ways) != 1:
        found = " and ".join(ways) + " stand together" if ways else "there are no tenants"
        yield Finding(("tenants",), found, f"name the authority (its key: {KEY_COMMAND}) and its list, or, for "
                      "development, write tenants here",
                      "authority and list, or tenant blocks, or the commitment of a redacted copy")
    if (block.authority is None) != (block.list_file is None):
        lone, other = ("authority", "list") if block.list_file is None else ("list", "authority")
        whose = f" (its key: {KEY_COMMAND})" if other == "authority" else ""
        yield Finding(("tenants", lone), f"{lone} stands without {other}", f"add {other}{whose}")
    if block.min_version and block.authority is None:
        yield Finding(("tenants", "min_version"), "min_version is of a signed list, and there is none", "delete it")


def inline_tenants(policy: Policy) -> Findings:
    """Tenants in the policy are for development: each new API key would change what clients verify.
    """
    if policy.simulated:
        return
    places: list[Path] = [("tenant", tenant.name) for tenant in policy.tenants.tenants]
    for place in places or ([("commitment",)] if policy.tenants.commitment else []):
        yield Finding(("tenants", *place), 'tenants in the policy itself need platforms = ["simulated"]',
                      f"use authority (its key: {KEY_COMMAND}) and list: then adding an API key changes nothing that "
                      "clients verify")


def api_keys(policy: Policy) -> Findings:
    """An API key names one tenant."""
    owner: dict[str, str] = {}
    for tenant in policy.tenants.tenants:
        for digest in tenant.api_key_sha256:
            if owner.setdefault(digest, tenant.name) != tenant.name:
                yield Finding(("tenants", "tenant", tenant.name, "api_key_sha256"),
                              f"an API key here is also one of {owner[digest]}", "make another: appliance key new")


def tenant(block: Tenant, policy: Policy) -> Findings:
    """A tenant asks models that exist."""
    names = [model.name for model in policy.models]
    for name in block.models:
        if name not in names:
            guess = closest(name, names)
            yield Finding(("models",), f'there is no model "{name}"', f'did you mean "{guess}"?' if guess else
                          f'add model "{name}" {{ ... }}', f"models of this policy: {', '.join(names) or 'none'}")
    if not block.models and block.role == "user":
        yield Finding(("models",), "this tenant may ask no model", "list the models: models = [...]")
    if block.models and block.role == "auditor":
        yield Finding(("models",), "an auditor asks no model, so this list has no effect",
                      'leave it out, or write role = "admin" or "user"', severity="warning")


def draft(model: Model, policy: Policy) -> Findings:
    """A draft model is another model of the policy, and has none itself."""
    names = [other.name for other in policy.models if other.name != model.name]
    if model.draft_model == model.name:
        yield Finding(("draft_model",), "a model cannot be its own draft", "name another model, or leave it out")
    elif any(other.name == model.draft_model and other.draft_model is not None for other in policy.models):
        yield Finding(("draft_model",), f'"{model.draft_model}" has a draft model itself', "leave out its draft_model")
    elif model.draft_model is not None and model.draft_model not in names:
        guess = closest(model.draft_model, names)
        yield Finding(("draft_model",), f'there is no model "{model.draft_model}"', f'did you mean "{guess}"?' if guess
                      else f'add model "{model.draft_model}" {{ ... }}', f"other models: {', '.join(names) or 'none'}")


def changeable(model: Model, policy: Policy) -> Findings:
    """A model that comes and goes neither drafts for another nor has a draft, and keeps no
    sessions."""
    if model.load == "always":
        return
    if model.draft_model is not None:
        yield Finding(("load",), "a model with a draft_model is loaded at boot, and stays", 'write load = "always", or '
                      "leave out draft_model")
    users = [other.name for other in policy.models if other.draft_model == model.name]
    if users:
        yield Finding(("load",), f'this is the draft model of "{users[0]}", which needs it always',
                      'write load = "always"')
    if model.session_persistence:
        yield Finding(("session_persistence",), 'sessions are kept of models with load = "always" alone',
                      'write load = "always", or leave out session_persistence')


def admins(policy: Policy) -> Findings:
    """Without a key that may change models, those on demand are never loaded."""
    demanded = [model.name for model in policy.models if model.load == "demand"]
    tenants = policy.tenants.tenants
    if demanded and tenants and not any(each.role == "admin" for each in tenants):
        yield Finding(("model", demanded[0], "load"), 'nobody may have it loaded: no tenant has the role "admin"',
                      'add a tenant with role = "admin", or write load = "boot"', severity="warning")


def sealed(model: Model, policy: Policy) -> Findings:
    """A sealed model has both a header pin and a key; a plain one has neither."""
    if model.sealed_header_sha256 is not None and model.key is None:
        yield Finding(("sealed_header_sha256",), "this sealed model has no key", "add key { provider = ... }")
    if model.key is not None and model.sealed_header_sha256 is None:
        yield Finding(("key",), "a key stands here, but the model is not sealed",
                      "add sealed_header_sha256, or delete the key")
    if model.sealed_header_sha256 == model.sha256:
        yield Finding(("sealed_header_sha256",), "this is the same hash as sha256",
                      "`appliance model inspect` prints both: sha256 is of the plaintext file")


def shards(model: Model, policy: Policy) -> Findings:
    """The pin of a sharded model is that of its shards, which are not sealed."""
    if model.shards is None:
        return
    pin = hashlib.sha256("".join(f"{digest}\n" for digest in model.shards).encode()).hexdigest()
    if model.sealed_header_sha256 is not None:
        yield Finding(("shards",), "a sealed model is one file, and has no shards", "delete shards",
                      "sha256 is then of the GGUF file that `appliance model seal` printed")
    elif model.sha256 != pin:
        yield Finding(("sha256",), "this is not the pin of these shards in this order", f'write "{pin}", if the shards '
                      "are right", "`appliance model pin FILE` prints both")


def publisher(model: Model, policy: Policy) -> Findings:
    """One signature, in one of two forms."""
    if model.publisher is not None and (model.publisher.signature is None) == (model.publisher.bundle is None):
        yield Finding(("publisher",), "publisher needs either signature or bundle", "write one of them")
    if model.publisher is None:
        return
    if model.publisher.signature is not None and not model.publisher.public_key.startswith("ed25519:"):
        yield Finding(("publisher", "public_key"), "signature is by Ed25519, and this is a key of another kind",
                      f"write an ed25519 key, as {KEY_COMMAND} prints it, or bundle in place of signature")
    if model.publisher.root_sha256 is not None and model.publisher.bundle is None:
        yield Finding(("publisher", "root_sha256"), "certificates stand in a bundle, and there is none",
                      "add bundle, or delete root_sha256")
    if model.publisher.identity is not None and model.publisher.root_sha256 is None:
        yield Finding(("publisher", "identity"), "a name without the root that vouches for it proves nothing",
                      "add root_sha256, or delete identity")


def context(model: Model, policy: Policy) -> Findings:
    """A prompt that the limits allow should fit into the context."""
    if policy.limits.prompt_tokens >= model.context_length:
        yield Finding(("context_length",), f"a prompt of {policy.limits.prompt_tokens} tokens, which limits allows, "
                      "leaves no room for an answer", "raise context_length, or lower prompt_tokens",
                      severity="warning")


def sampling(model: Model, policy: Policy) -> Findings:
    """min <= default <= max, for each parameter."""
    for name in (*(each.name for each in PARAMETERS), "length_penalty"):
        try:
            bound = getattr(model.sampling, name)
            low, default, high = bound.min, bound.default, bound.max
        except AttributeError:
            continue
        if low > high:
            yield Finding(("sampling", name, "min"), f"min {low:g} is above max {high:g}", "swap or mend them")
        elif not low <= default <= high:
            yield Finding(("sampling", name, "default"), f"default {default:g} is outside of {low:g} to {high:g}",
                          f"write default = {min(max(default, low), high):g}, or widen the bounds")


_PROVIDER_FIELDS = {"broker": "broker", "vault": "vault", "tpm": "pcrs", "file": "path", "environment": "variable",
                    "systemd-credential": "credential"}


def key(block: Key, policy: Policy) -> Findings:
    """Each provider has its own fields; those that hand the key to the operator are for
    development."""
    own = _PROVIDER_FIELDS.get(block.provider)
    for name in sorted(set(_PROVIDER_FIELDS.values())):
        given = getattr(block, name) is not None
        if name == own and not given:
            yield Finding(("provider",), f'provider "{block.provider}" needs {name}', f"add {name}")
        elif name != own and given:
            yield Finding((name,), f'{name} means nothing to provider "{block.provider}"', f"delete {name}")
    if block.provider in OPERATOR_PROVIDERS and not policy.simulated:
        yield Finding(("provider",), f'provider "{block.provider}" hands the key to the operator',
                      'use "broker", or on platforms = ["tpm"] "tpm"',
                      'only with platforms = ["simulated"]')
    if block.provider == "tpm" and not set(policy.tee.platforms) & {"tpm", "simulated"}:
        yield Finding(("provider",), "a vTPM that the host runs belongs to the operator", 'use "broker"',
                      'provider "tpm" only with platforms = ["tpm"]')


def registers(block: Key, policy: Policy) -> Findings:
    """A key sealed to registers that any system can bring about is any system's."""
    if block.provider != TPM.name or block.pcrs is None:
        return
    if not IMAGE_PCRS & set(block.pcrs):
        yield Finding(("pcrs",), "none of these registers tells the image: any system that this machine boots can have "
                      "the key", "add 4, 9 and 11", severity="warning")
    if POLICY_PCR not in block.pcrs:
        yield Finding(("pcrs",), f"PCR {POLICY_PCR}, which tells the policy, is not among these: an image that takes "
                      "its policy at launch gets the key under any policy", f"add {POLICY_PCR}", severity="warning")


def broker_session(block: Key, policy: Policy) -> Findings:
    """Evidence for a broker that is of no connection can be passed on by somebody in between."""
    if block.broker is None or block.broker.session_binding == "required":
        return
    one = policy.appliance.schema_version == 1
    yield Finding(("broker",) if one else ("broker", "session_binding"),
                  "evidence for the broker is bound to no connection: somebody in between can pass it on",
                  "write schema = 2, by appliance check --upgrade, and leave out session_binding" if one else
                  'write session_binding = "required", if nothing in front of the broker ends TLS', severity="warning")


def model_key(model: Model, policy: Policy) -> Findings:
    """A sealed model outlives the boot, so its key must."""
    if model.key is not None and model.key.provider == "ephemeral":
        yield Finding(("key", "provider"), "an ephemeral key cannot open a model", "name where its key comes from",
                      '"ephemeral" is for state')


_LISTENER_FIELDS = {  # kind: (fields that it needs, fields that it may have)
    "tcp": ({"port"}, {"address"}),
    "tls": ({"port", "certificate", "private_key"}, {"address"}),
    "ra-tls": ({"port"}, {"address", "transport", "names", "rotation"}),
    "unix": ({"path"}, set[str]()),
    "vsock": ({"port"}, set[str]()),
}


def listener_fields(block: Listener, policy: Policy) -> Findings:
    """Each kind of listener has its own fields."""
    needs, may = _LISTENER_FIELDS[block.kind]
    given = {"transport": block.transport, "address": block.address, "port": block.port, "path": block.path,
             "certificate": block.certificate, "private_key": block.private_key, "names": block.names or None,
             "rotation": block.rotation_ms}
    for name, value in given.items():
        if name in needs and value is None:
            yield Finding(("kind",), f'a listener of kind "{block.kind}" needs {name}', f"add {name} = ...")
        elif value is not None and name not in needs | may:
            yield Finding((name,), f'{name} means nothing to a listener of kind "{block.kind}"', f"delete {name}")
    over_vsock = block.kind == "vsock" or block.transport == "vsock"
    if over_vsock and block.address is not None and block.kind == "ra-tls":
        yield Finding(("address",), "vsock has no IP address", "delete address")
    if block.kind == "unix" and block.path is not None and len(block.path.encode()) > MAX_SOCKET_PATH:
        yield Finding(("path",), f"a socket's path of {len(block.path.encode())} bytes is more than the kernel takes",
                      f"write one of at most {MAX_SOCKET_PATH} bytes")
    if block.port is not None and block.port > 65535 and not over_vsock:
        yield Finding(("port",), f"{block.port} is no TCP port", "write a number from 1 to 65535")


def listener_trust(block: Listener, policy: Policy) -> Findings:
    """On real platforms RA-TLS is the only way in; a plain TCP port never leaves the machine."""
    if block.kind == "tcp" and not ipaddress.ip_address(block.host).is_loopback:
        yield Finding(("address",), f"plain text on {block.host} can be read on the network",
                      'write address = "127.0.0.1", or use kind = "ra-tls"', "a loopback address")
    if block.kind != "ra-tls" and not policy.simulated:
        yield Finding(("kind",), f'a listener of kind "{block.kind}" is open to the operator', 'write kind = "ra-tls"',
                      'other kinds only with platforms = ["simulated"]')


def listeners_apart(policy: Policy) -> Findings:
    """Two listeners cannot share an address or a socket; 0.0.0.0 and :: are every address of their
    kind."""
    seen: dict[tuple[Any, ...], dict[str, str]] = {}  # kind of address and port, or path: listeners by address
    for block in policy.service.listeners:
        address, everywhere = "", False
        if block.kind == "unix":
            place: tuple[Any, ...] = (block.path,)
        elif block.kind == "vsock" or block.transport == "vsock":
            place = ("vsock", block.port)
        else:
            ip = ipaddress.ip_address(block.host)
            address, everywhere, place = "" if ip.is_unspecified else block.host, ip.is_unspecified, (
                ip.version, block.port)
        there = seen.setdefault(place, {})
        other = there.get(address) or there.get("") or (next(iter(there.values()), None) if everywhere else None)
        if place[-1] is not None and other is not None:
            words = block.path if block.kind == "unix" else f"port {block.port} of {block.host}" if (
                place[0] != "vsock") else f"vsock port {block.port}"
            yield Finding(("service", "listen", block.name), f'{words} is where "{other}" listens',
                          f"choose another {'path' if block.kind == 'unix' else 'port'}")
        there.setdefault(address, block.name)


POLICY_RULES: tuple[Callable[[Policy], Findings], ...] = (
    platforms, budgets, evidence, machines, relays, something_to_do, approvals, state_users,
    successors, retention, sessions, receipts, redaction, quotas, tenants, inline_tenants, api_keys, admins,
    listeners_apart,
)


def _models(policy: Policy) -> Iterable[tuple[Path, Any]]:
    return [(("model", model.name), model) for model in policy.models]


def _keys(policy: Policy) -> Iterable[tuple[Path, Any]]:
    if (state := getattr(policy, "state", None)) is not None:
        yield ("state", "key"), state.key
    for path, model in _models(policy):
        if getattr(model, "key", None) is not None:
            yield (*path, "key"), model.key


def _tenants(policy: Policy) -> Iterable[tuple[Path, Any]]:
    return [(("tenants", "tenant", block.name), block) for block in policy.tenants.tenants]


def _listeners(policy: Policy) -> Iterable[tuple[Path, Any]]:
    return [(("service", "listen", block.name), block) for block in policy.service.listeners]


BLOCK_RULES: tuple[tuple[Callable[[Policy], Iterable[tuple[Path, Any]]], tuple[Callable[..., Findings], ...]], ...] = (
    (_models, (draft, changeable, sealed, shards, publisher, context, sampling, model_key)),
    (_keys, (key, registers, broker_session)),
    (_tenants, (tenant,)),
    (_listeners, (listener_fields, listener_trust)),
)


def _place(positions: dict[Path, Span], path: Path) -> Span:
    """Return where a path stands, or else the nearest block around it that stands in the file."""
    while path and path not in positions:
        path = path[:-1]
    return positions.get(path, Span(0, 1))


def apply(policy: Policy, positions: dict[Path, Span], report: Report, version: int) -> None:
    """Run all rules of a version; a rule that needs a field which is wrong itself is skipped."""
    partial = report.failed

    def run(findings: Findings, base: Path) -> None:
        try:
            for finding in findings:
                path = (*base, *finding.path)
                report.add(finding.severity_in(version), "rule", finding.summary, _place(positions, path),
                           detail=finding.detail, fix=finding.fix, path=path_text(path, version))
        except AttributeError:
            if not partial:
                raise

    for rule in POLICY_RULES:
        run(rule(policy), ())
    for select, rules in BLOCK_RULES:
        try:
            blocks = list(select(policy))
        except AttributeError:
            if not partial:
                raise
            continue
        for base, block in blocks:
            for block_rule in rules:
                run(block_rule(block, policy), base)
