"""Rules that span several fields. Each is a generator of breaches by one block and the whole
policy. Warnings are rules of `explaining/advice`.

A rule may read any field. Where that field is itself wrong, it is missing in the block, and reading
it raises `AttributeError`. The rule is then skipped for that block, because the field's own finding
stands already.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from appliance.codec.printable import quantity
from appliance.platforms import PLATFORMS, TPM
from appliance.policy.bind import Path, path_text
from appliance.policy.hcl.diagnostics import Report, Severity, Span
from appliance.policy.schema import OPERATOR_PROVIDERS, KeySource, Listener, Model, Policy, Tenant
from appliance.policy.schema.identifiers import KEY_COMMAND

MAX_SOCKET_PATH = 107  # bytes: sun_path of unix(7), with the zero at its end
LEAST_PARCEL = 1024  # bytes that leave of a stream at once: an event's own words take up to half of them
ESSENTIAL_FIELDS = frozenset({"messages", "messages.role", "messages.content", "messages.content.type",
                              "messages.content.text", "prompt", "model", "stream", "max_tokens"})


@dataclass(frozen=True)
class Breach:
    """A breach of a rule, at a path relative to the block that it looked at.

    A rule that came with a schema version says so by `since`: under older versions, where such a
    file was valid and has to stay so, an error is a warning.
    """

    path: Path
    summary: str
    fix: str
    detail: str = ""
    severity: Severity = "error"
    since: int = 1
    name: str = ""  # that was not found
    names: tuple[str, ...] = ()  # among these

    def severity_in(self, version: int) -> Severity:
        """Return how much the breach weighs in a file of a version."""
        return "warning" if self.severity == "error" and version < self.since else self.severity


Breaches = Iterator[Breach]


def platforms(policy: Policy) -> Breaches:
    """A weaker platform beside a stronger one would let the operator choose the weaker."""
    names = policy.tee.platforms
    for weak in (each.name for each in reversed(PLATFORMS) if not each.tee):
        if weak in names and len(names) > 1:
            yield Breach(("tee", "platforms"), f'"{weak}" stands beside other platforms, so the operator could choose '
                          "it", f'keep "{weak}" alone, or leave it out', f'"{weak}" alone, or hardware platforms alone')
            return


def paravisors(policy: Policy) -> Breaches:
    """A list of paravisors is of use where a TPM is the witness."""
    if policy.tee.evidence.azure is not None and policy.tee.platforms != ("tpm",):
        yield Breach(("tee", "evidence", "azure"), "azure is about the TPM of a guest on Azure, and the platforms are "
                      "others", 'write platforms = ["tpm"], or leave the block out', 'only with platforms = ["tpm"]')


def budgets(policy: Policy) -> Breaches:
    """The plaintext budget is part of the memory budget."""
    total = policy.tee.memory_budget_bytes
    if total is not None and policy.tee.plaintext_budget_bytes > total:
        yield Breach(("tee", "plaintext_budget"), "plaintext_budget is larger than memory_budget", "lower it")


def something_to_do(policy: Policy) -> Breaches:
    """A policy without a model or a listener serves nothing."""
    if not policy.models:
        yield Breach(("model",), "there is no model", 'add model "name" { ... }')
    if not policy.service.listeners:
        yield Breach(("service",), "there is no listener", 'add listen "name" { kind = ... } to service')
    elif all(each.serves == "metrics" for each in policy.service.listeners):
        yield Breach(("service", "listen", policy.service.listeners[0].name, "serves"), "no listener serves the API",
                      'add a listener with serves = "api"')


def aliases(policy: Policy) -> Breaches:
    """An alias stands for models, and is not the name of one."""
    names = [model.name for model in policy.models]
    for alias in policy.aliases:
        if alias.name in names:
            yield Breach(("alias", alias.name), f'"{alias.name}" is the name of a model', "choose another name")
        for name in alias.models:
            if name not in names:
                yield Breach(("alias", alias.name, "models"), f'there is no model "{name}"',
                              f'add model "{name}" {{ ... }}', f"models of this policy: {', '.join(names) or 'none'}",
                              name=name, names=tuple(names))


def approvals(policy: Policy) -> Breaches:
    """k of n needs n distinct keys, and k of them at most."""
    if policy.approvals is None:
        return
    approvers, required = policy.approvals.approvers, policy.approvals.required
    if required > len(approvers):
        yield Breach(("approvals", "required"), f"{quantity(required, 'approval')} required of "
                      f"{quantity(len(approvers), 'approver')}",
                      f"add approvers (their keys: {KEY_COMMAND}), or require fewer")
    seen: dict[str, str] = {}
    for approver in approvers:
        if approver.public_key in seen:
            yield Breach(("approvals", "approver", approver.name, "public_key"),
                          f"this is the key of {seen[approver.public_key]} too",
                          f"one key counts once: write another, as {KEY_COMMAND} prints it")
        seen.setdefault(approver.public_key, approver.name)


def state_users(policy: Policy) -> Breaches:
    """Records that are written there need the state disk."""
    if policy.state is not None:
        return
    fix = "add a state block, or leave this out"
    for model in policy.models:
        if model.session_persistence:
            yield Breach(("model", model.name, "session_persistence"),
                          "sessions have no state disk to be kept on", fix)
    if policy.audit.sink == "state":
        yield Breach(("audit", "sink"), "the audit log has no state disk to be kept on", fix)


def successors(policy: Policy) -> Breaches:
    """A successor is of a state key in a TPM."""
    state = policy.state
    if state is not None and state.key.provider != TPM.name and state.successor is not None:
        yield Breach(("state", "successor"), f'a successor means nothing to provider "{state.key.provider}"',
                      "delete the block")


def retention(policy: Policy) -> Breaches:
    """A retention of something that is not kept is a misunderstanding."""
    kept = policy.privacy.retention
    if kept.audit_ms is not None and policy.audit.sink != "state":
        yield Breach(("privacy", "retention", "audit"), "the audit log is not kept by the appliance",
                      'write sink = "state" in audit, or leave this out')
    if kept.sessions_ms is not None and not any(model.session_persistence for model in policy.models):
        yield Breach(("privacy", "retention", "sessions"), "no model keeps sessions",
                      "write session_persistence = true in a model, or leave this out")


def receipts(policy: Policy) -> Breaches:
    """A record whose place is told later needs a checkpoint that comes later."""
    audit = policy.audit
    if audit.receipt_position == "later" and not audit.receipts:
        yield Breach(("audit", "receipt_position"), 'receipt_position = "later" has no effect: there are no receipts',
                      "set receipts = true, or leave receipt_position out")
    elif audit.receipt_position == "later" and audit.checkpoint_interval_ms is None:
        yield Breach(("audit", "receipt_position"), 'receipt_position = "later" without checkpoint_interval: no '
                      "checkpoint would prove a record before the shutdown", 'add checkpoint_interval = "10m" to audit')


def outcomes(policy: Policy) -> Breaches:
    """Ends that a record does not name must not show in times and sizes, or in a receipt's place.
    """
    if policy.audit.outcomes == "named":
        return
    times, place = policy.privacy.timing_padding, ("audit", "outcomes")
    if times is None or not (times.cadence_ms and times.first_token_ms and times.total_ms
                             and policy.privacy.size_padding_bytes):
        yield Breach(place, 'outcomes = "hidden" without length classes: times and sizes would tell how a request '
                     "ended", "add cadence, first_token and total to timing_padding, and size_padding to privacy, or "
                     'write outcomes = "named"')
    if policy.audit.receipts and policy.audit.receipt_position == "now":
        yield Breach(place, 'outcomes = "hidden" with receipt_position = "now": a checkpoint of its moment '
                     "would show an answer with a receipt", 'write receipt_position = "later"')


def redaction(policy: Policy) -> Breaches:
    """A request without its essential fields is no request."""
    for name in policy.privacy.redaction.fields:
        if name in ESSENTIAL_FIELDS:
            yield Breach(("privacy", "redaction", "fields"),
                          f'"{name}" cannot be dropped: no request works without it',
                          "leave it out; patterns change the text itself")


def cadence(policy: Policy) -> Breaches:
    """With a cadence, answers have both grids and a size."""
    times, size = policy.privacy.timing_padding, policy.privacy.size_padding_bytes
    if times is None or not times.cadence_ms:
        return
    place: Path = ("privacy", "timing_padding", "cadence")
    shown = "a cadence hides how long an answer is, which its {} would tell"
    for name, grid, what in (("first_token", times.first_token_ms, "events"), ("total", times.total_ms, "end")):
        if not grid:
            yield Breach(place, f"cadence stands without {name}: {shown.format(what)}",
                         f"add {name} to timing_padding", since=2)
    if times.first_token_ms and times.total_ms % times.first_token_ms:
        fitting = -(-times.total_ms // times.first_token_ms) * times.first_token_ms
        yield Breach((*place[:2], "total"), "total is not a multiple of first_token: with a cadence, answers end where "
                     "an event leaves", f'write total = "{fitting}ms"', since=2)
    if size is None:
        yield Breach(place, f"cadence stands without size_padding: {shown.format('sizes')}",
                     'add size_padding = "4KiB" to privacy', since=2)
    elif size < LEAST_PARCEL:
        yield Breach((*place[:1], "size_padding"), f"{quantity(size, 'byte')} have no room for an event and its text: "
                     "with a cadence, so many leave at each multiple of first_token",
                     f'write size_padding = "{LEAST_PARCEL >> 10}KiB" or more', since=2)


def quotas(policy: Policy) -> Breaches:
    """A request that uses its limits fully must fit into the quotas."""
    limits = policy.limits
    longest = limits.prompt_tokens + limits.generation_tokens
    for name, quota in (("tokens_per_minute", limits.tokens_per_minute), ("tokens_per_day", limits.tokens_per_day)):
        if quota is not None and quota < longest:
            yield Breach(("limits", name), f"{name} is less than one longest request ({longest} tokens)",
                          "raise it, or lower prompt_tokens or generation_tokens")


def model_limits(model: Model, policy: Policy) -> Breaches:
    """Bounds of a model lie within those of all, and its default within its bound."""
    own, most = model.limits, policy.limits
    if own is None:
        return
    longest = own.generation_tokens or most.generation_tokens
    for name, value, bound, whose in (
            ("prompt_tokens", own.prompt_tokens, most.prompt_tokens, "limits.prompt_tokens"),
            ("generation_tokens", own.generation_tokens, most.generation_tokens, "limits.generation_tokens"),
            ("max_tokens_default", own.max_tokens_default, longest, "the longest answer")):
        if value is not None and value > bound:
            yield Breach(("limits", name), f"{name} is more than {whose}, which is {bound}", "lower it")


def tenants(policy: Policy) -> Breaches:
    """Either a signed list, or tenants in the policy itself, or the commitment of a redacted copy.
    """
    block = policy.tenants
    ways = [name for name, given in (("authority", block.authority), ("tenant", block.tenants),
                                     ("commitment", block.commitment)) if given]
    if len(ways) != 1:
        found = " and ".join(ways) + " stand together" if ways else "there are no tenants"
        yield Breach(("tenants",), found, f"name the authority (its key: {KEY_COMMAND}) and its list, or, for "
                      "development, write tenants here",
                      "authority and list, or tenant blocks, or the commitment of a redacted copy")
    if (block.authority is None) != (block.list_file is None):
        lone, other = ("authority", "list") if block.list_file is None else ("list", "authority")
        whose = f" (its key: {KEY_COMMAND})" if other == "authority" else ""
        yield Breach(("tenants", lone), f"{lone} stands without {other}", f"add {other}{whose}")
    if block.min_version and block.authority is None:
        yield Breach(("tenants", "min_version"), "min_version is of a signed list, and there is none", "delete it")


def inline_tenants(policy: Policy) -> Breaches:
    """Tenants in the policy are for development: each new API key would change what clients verify.
    """
    if policy.simulated:
        return
    places: list[Path] = [("tenant", tenant.name) for tenant in policy.tenants.tenants]
    for place in places or ([("commitment",)] if policy.tenants.commitment else []):
        yield Breach(("tenants", *place), 'tenants in the policy itself need platforms = ["simulated"]',
                      f"use authority (its key: {KEY_COMMAND}) and list: then adding an API key changes nothing that "
                      "clients verify")


def api_keys(policy: Policy) -> Breaches:
    """An API key names one tenant."""
    owner: dict[str, str] = {}
    for tenant in policy.tenants.tenants:
        for digest in tenant.api_key_sha256:
            if owner.setdefault(digest, tenant.name) != tenant.name:
                yield Breach(("tenants", "tenant", tenant.name, "api_key_sha256"),
                              f"an API key here is also one of {owner[digest]}", "make another: appliance key new")


def tenant(block: Tenant, policy: Policy) -> Breaches:
    """A tenant asks models that exist."""
    names = [model.name for model in policy.models]
    for name in block.models:
        if name not in names:
            yield Breach(("models",), f'there is no model "{name}"', f'add model "{name}" {{ ... }}',
                          f"models of this policy: {', '.join(names) or 'none'}", name=name, names=tuple(names))
    if not block.models and block.role == "user":
        yield Breach(("models",), "this tenant may ask no model", "list the models: models = [...]")


def draft(model: Model, policy: Policy) -> Breaches:
    """A draft model is another model of the policy, and has none itself."""
    names = [other.name for other in policy.models if other.name != model.name]
    if model.draft_model == model.name:
        yield Breach(("draft_model",), "a model cannot be its own draft", "name another model, or leave it out")
    elif any(other.name == model.draft_model and other.draft_model is not None for other in policy.models):
        yield Breach(("draft_model",), f'"{model.draft_model}" has a draft model itself', "leave out its draft_model")
    elif model.draft_model is not None and model.draft_model not in names:
        yield Breach(("draft_model",), f'there is no model "{model.draft_model}"',
                      f'add model "{model.draft_model}" {{ ... }}', f"other models: {', '.join(names) or 'none'}",
                      name=model.draft_model, names=tuple(names))


def speculation(model: Model, policy: Policy) -> Breaches:
    """Guesses are hidden in passes at fixed times. A draft model is asked as often as it pays."""
    padding = policy.privacy.timing_padding
    if model.speculation == "hidden" and (padding is None or not padding.cadence_ms):
        yield Breach(("speculation",), '"hidden" needs passes at a fixed interval, and there is no cadence',
                      'add timing_padding { cadence = "200ms" } to privacy, or write speculation = "off"')
    if model.speculation == "heads" and padding is not None and padding.cadence_ms:
        yield Breach(("speculation",), '"heads" has passes of its own between the others, and there is a cadence',
                      'write speculation = "hidden", or leave out cadence')
    if model.speculation != "on" and model.draft_model is not None:
        yield Breach(("draft_model",), f'a draft model makes guesses, and speculation is "{model.speculation}"',
                      'leave out draft_model, or write speculation = "on"',
                      "passes of a draft model cannot be hidden: they are run where guesses pay, in the place of a "
                      "layer that guesses")


def changeable(model: Model, policy: Policy) -> Breaches:
    """A model that comes and goes neither drafts for another nor has a draft, and keeps no
    sessions."""
    if model.load == "always":
        return
    if model.draft_model is not None:
        yield Breach(("load",), "a model with a draft_model is loaded at boot, and stays", 'write load = "always", or '
                      "leave out draft_model")
    users = [other.name for other in policy.models if other.draft_model == model.name]
    if users:
        yield Breach(("load",), f'this is the draft model of "{users[0]}", which needs it always',
                      'write load = "always"')
    if model.session_persistence:
        yield Breach(("session_persistence",), 'sessions are kept of models with load = "always" alone',
                      'write load = "always", or leave out session_persistence')


def sealed(model: Model, policy: Policy) -> Breaches:
    """A sealed model has both a header pin and a key; a plain one has neither."""
    if model.sealed_header_sha256 is not None and model.key is None:
        yield Breach(("sealed_header_sha256",), "this sealed model has no key", "add key { provider = ... }")
    if model.key is not None and model.sealed_header_sha256 is None:
        yield Breach(("key",), "a key stands here, but the model is not sealed",
                      "add sealed_header_sha256, or delete the key")
    if model.sealed_header_sha256 == model.sha256:
        yield Breach(("sealed_header_sha256",), "this is the same hash as sha256",
                      "`appliance model inspect` prints both: sha256 is of the plaintext file")


def unseen(model: Model, policy: Policy) -> Breaches:
    """Weights that stay decrypted are touched where a text needs them."""
    if model.access_pattern == "oblivious" and model.streaming_decrypt is not True:
        yield Breach(("access_pattern",), '"oblivious" is for models that are decrypted anew in each pass',
                      "write streaming_decrypt = true", "the host sees which pages of a resident model are touched")
    if policy.privacy.memory_access == "oblivious" and model.access_pattern != "oblivious":
        yield Breach(("access_pattern",), f'privacy.memory_access = "oblivious" with "{model.access_pattern}": a '
                      "lookup of embeddings would show tokens", 'write access_pattern = "oblivious"')


def shards(model: Model, policy: Policy) -> Breaches:
    """The pin of a sharded model is that of its shards, which are not sealed."""
    if model.shards is None:
        return
    pin = hashlib.sha256("".join(f"{digest}\n" for digest in model.shards).encode()).hexdigest()
    if model.sealed_header_sha256 is not None:
        yield Breach(("shards",), "a sealed model is one file, and has no shards", "delete shards",
                      "sha256 is then of the GGUF file that `appliance model seal` printed")
    elif model.sha256 != pin:
        yield Breach(("sha256",), "this is not the pin of these shards in this order", f'write "{pin}", if the shards '
                      "are right", "`appliance model pin FILE` prints both")


def publisher(model: Model, policy: Policy) -> Breaches:
    """One signature, in one of two forms."""
    if model.publisher is not None and (model.publisher.signature is None) == (model.publisher.bundle is None):
        yield Breach(("publisher",), "publisher needs either signature or bundle", "write one of them")
    if model.publisher is None:
        return
    if model.publisher.signature is not None and not model.publisher.public_key.startswith("ed25519:"):
        yield Breach(("publisher", "public_key"), "signature is by Ed25519, and this is a key of another kind",
                      f"write an ed25519 key, as {KEY_COMMAND} prints it, or bundle in place of signature")
    if model.publisher.root_sha256 is not None and model.publisher.bundle is None:
        yield Breach(("publisher", "root_sha256"), "certificates stand in a bundle, and there is none",
                      "add bundle, or delete root_sha256")
    if model.publisher.identity is not None and model.publisher.root_sha256 is None:
        yield Breach(("publisher", "identity"), "a name without the root that vouches for it proves nothing",
                      "add root_sha256, or delete identity")


def sampling(model: Model, policy: Policy) -> Breaches:
    """min <= default <= max, for each parameter."""
    for bound in model.sampling.bounds:
        try:
            low, default, high = bound.min, bound.default, bound.max
        except AttributeError:
            continue
        former = bound is getattr(model.sampling, bound.name, None)  # a block of schema 1
        place: Path = ("sampling", bound.name) if former else ("sampling", "bound", bound.name)
        if low > high:
            yield Breach((*place, "min"), f"min {low:g} is above max {high:g}", "swap or mend them")
        elif not low <= default <= high:
            yield Breach((*place, "default"), f"default {default:g} is outside of {low:g} to {high:g}",
                          f"write default = {min(max(default, low), high):g}, or widen the bounds")


_PROVIDER_FIELDS = {"broker": "broker", "vault": "vault", "tpm": "pcrs", "file": "path", "environment": "variable",
                    "systemd-credential": "credential"}


def key(block: KeySource, policy: Policy) -> Breaches:
    """Each provider has its own fields; those that hand the key to the operator are for
    development."""
    own = _PROVIDER_FIELDS.get(block.provider)
    for name in sorted(set(_PROVIDER_FIELDS.values())):
        given = getattr(block, name) is not None
        if name == own and not given:
            yield Breach(("provider",), f'provider "{block.provider}" needs {name}', f"add {name}")
        elif name != own and given:
            yield Breach((name,), f'{name} means nothing to provider "{block.provider}"', f"delete {name}")
    if block.provider in OPERATOR_PROVIDERS and not policy.simulated:
        yield Breach(("provider",), f'provider "{block.provider}" hands the key to the operator',
                      'use "broker", or on platforms = ["tpm"] "tpm"',
                      'only with platforms = ["simulated"]')
    if block.provider == "tpm" and not set(policy.tee.platforms) & {"tpm", "simulated"}:
        yield Breach(("provider",), "a vTPM that the host runs belongs to the operator", 'use "broker"',
                      'provider "tpm" only with platforms = ["tpm"]')


def model_key(model: Model, policy: Policy) -> Breaches:
    """A sealed model outlives the boot, so its key must."""
    if model.key is not None and model.key.provider == "ephemeral":
        yield Breach(("key", "provider"), "an ephemeral key cannot open a model", "name where its key comes from",
                      '"ephemeral" is for state')


_LISTENER_FIELDS = {  # kind: (fields that it needs, fields that it may have)
    "tcp": ({"port"}, {"address"}),
    "tls": ({"port", "certificate", "private_key"}, {"address"}),
    "ra-tls": ({"port"}, {"address", "transport", "names", "rotation"}),
    "unix": ({"path"}, set[str]()),
    "vsock": ({"port"}, set[str]()),
}


def listener_fields(block: Listener, policy: Policy) -> Breaches:
    """Each kind of listener has its own fields."""
    needs, may = _LISTENER_FIELDS[block.kind]
    given = {"transport": block.transport, "address": block.address, "port": block.port, "path": block.path,
             "certificate": block.certificate, "private_key": block.private_key, "names": block.names or None,
             "rotation": block.rotation_ms}
    for name, value in given.items():
        if name in needs and value is None:
            yield Breach(("kind",), f'a listener of kind "{block.kind}" needs {name}', f"add {name} = ...")
        elif value is not None and name not in needs | may:
            yield Breach((name,), f'{name} means nothing to a listener of kind "{block.kind}"', f"delete {name}")
    over_vsock = block.kind == "vsock" or block.transport == "vsock"
    if over_vsock and block.address is not None and block.kind == "ra-tls":
        yield Breach(("address",), "vsock has no IP address", "delete address")
    if block.kind == "unix" and block.path is not None and len(block.path.encode()) > MAX_SOCKET_PATH:
        yield Breach(("path",), f"a socket's path of {len(block.path.encode())} bytes is more than the kernel takes",
                      f"write one of at most {MAX_SOCKET_PATH} bytes")
    if block.port is not None and block.port > 65535 and not over_vsock:
        yield Breach(("port",), f"{block.port} is no TCP port", "write a number from 1 to 65535")


def listener_trust(block: Listener, policy: Policy) -> Breaches:
    """On real platforms RA-TLS is the only way in; a plain TCP port never leaves the machine."""
    if block.kind == "tcp" and not ipaddress.ip_address(block.host).is_loopback:
        yield Breach(("address",), f"plain text on {block.host} can be read on the network",
                      'write address = "127.0.0.1", or use kind = "ra-tls"', "a loopback address")
    if block.kind != "ra-tls" and not policy.simulated:
        yield Breach(("kind",), f'a listener of kind "{block.kind}" is open to the operator', 'write kind = "ra-tls"',
                      'other kinds only with platforms = ["simulated"]')


def listeners_apart(policy: Policy) -> Breaches:
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
            yield Breach(("service", "listen", block.name), f'{words} is where "{other}" listens',
                          f"choose another {'path' if block.kind == 'unix' else 'port'}")
        there.setdefault(address, block.name)


Rules = tuple[Callable[[Policy], Breaches], ...]
BlockRules = tuple[tuple[Callable[[Policy], Iterable[tuple[Path, Any]]], tuple[Callable[..., Breaches], ...]], ...]
POLICY_RULES: Rules = (
    platforms, paravisors,
    budgets, something_to_do, approvals, state_users, successors, retention, receipts, outcomes, redaction,
    cadence, quotas, aliases, tenants, inline_tenants, api_keys, listeners_apart,
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


BLOCK_RULES: BlockRules = (
    (_models, (draft, speculation, changeable, sealed, unseen, shards, publisher, sampling, model_key, model_limits)),
    (_keys, (key,)),
    (_tenants, (tenant,)),
    (_listeners, (listener_fields, listener_trust)),
)


def breaches(policy: Policy, *, partial: bool = False, policy_rules: Rules | None = None,
               block_rules: BlockRules | None = None) -> Iterator[tuple[Path, Breach]]:
    """Yield what the rules find, each with its path. In a `partial` policy, a rule that needs a
    field which is wrong itself is skipped."""
    asked: list[tuple[Path, Callable[[], Breaches]]] = [
        ((), functools.partial(rule, policy)) for rule in (POLICY_RULES if policy_rules is None else policy_rules)]
    for select, rules in BLOCK_RULES if block_rules is None else block_rules:
        with contextlib.suppress(*([AttributeError] if partial else ())):
            asked += [(base, functools.partial(rule, block, policy)) for base, block in list(select(policy))
                      for rule in rules]
    for base, rule in asked:
        with contextlib.suppress(*([AttributeError] if partial else ())):
            for found in rule():
                yield (*base, *found.path), found


def require(policy: Policy, positions: Mapping[Path, Span], report: Report, version: int) -> None:
    """Report what breaks a rule of a version."""
    for path, found in breaches(policy):
        if found.severity_in(version) == "error":
            report.error("rule", found.summary, nearest(positions, path), detail=found.detail,
                         path=path_text(path, version))


def nearest(positions: Mapping[Path, Span], path: Path) -> Span:
    """Return where a path stands, or else the nearest block around it that stands in the file."""
    while path and path not in positions:
        path = path[:-1]
    return positions.get(path, Span(0, 1))
