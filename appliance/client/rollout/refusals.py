"""The parties that refuse after a change, until somebody does something about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from appliance.codec.printable import quantity
from appliance.platforms import TPM
from appliance.policy import Loaded
from appliance.policy.digest import POLICY_PCR
from appliance.policy.schema import KeySource, Policy
from appliance.policy.schema.platform import State

OTHER_KEY, SEALED_KEY = "a key that did not make it", "the state disk's key, under NEW"
PINNED = ("policy", "launch-policy")  # the rules on which evidence under another policy fails


@dataclass(frozen=True)
class Denial:
    """One party that refuses, by which rules or code, and what mends it. `breaks`: until then the
    new deployment does not start, or something is lost."""

    who: str
    of: str  # what it refuses
    rules: tuple[str, ...]  # of a verdict, or an error's code
    mended_by: str
    breaks: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the refusal for JSON output."""
        return asdict(self) | {"rules": list(self.rules)}


def of_policies(old: Loaded, new: Loaded) -> Iterator[Denial]:
    """Yield who refuses because the policy is another: nobody where both have one digest."""
    if old.digest == new.digest:
        return
    yield Denial("clients with OLD", "machines under NEW", _pinned(old.policy, new.policy), "give clients NEW")
    yield Denial("clients with NEW", "machines under OLD", _pinned(new.policy, old.policy),
                 "move clients when machines under NEW serve")
    yield Denial("verifiers with OLD", "receipts and packs of NEW", ("policy",),
                 "keep OLD for what was answered under it, and give auditors both")
    for key in released(new.policy):
        yield Denial("the broker's rule for OLD", f"the key {key}, for machines under NEW", PINNED,
                     f"add a rule for {key} with NEW, beside the one with OLD", breaks=True)
    if new.policy.approvals is not None:
        yield Denial("the boot of NEW", "approvals of OLD", ("approvals-missing",),
                     f"{quantity(new.policy.approvals.required, 'approver')} must sign NEW", breaks=True)
    yield from _lists(old.policy, new.policy)
    yield from _state(old.policy, new.policy)


def _pinned(client: Policy, machine: Policy) -> tuple[str, ...]:
    """Return the rules on which evidence under another policy fails: for its digest, and for the
    models that are loaded at boot."""
    known = {each.name: each.sha256 for each in client.models}
    loaded = {each.name: each.sha256 for each in machine.models if each.load != "demand"}
    required = {each.name for each in client.models if each.load == "always"}
    same = required <= loaded.keys() and loaded.items() <= known.items()
    return PINNED if same else (*PINNED, "models")


def released(policy: Policy) -> list[str]:
    """Return the resources that a broker releases."""
    keys = [each.key for each in policy.models] + [policy.state.key if policy.state else None]
    return sorted({key.broker.resource for key in keys if key is not None and key.broker is not None})


def _lists(old: Policy, new: Policy) -> Iterator[Denial]:
    """Yield what is said of signed lists that were made for the old policy."""
    if new.tenants.authority is not None:
        code = _list_code(old, new, old.tenants.authority, new.tenants.authority)
        if code:
            yield Denial("the boot of NEW", "the tenant list of OLD", (code,), "the authority signs a list for NEW",
                         breaks=True)
        elif gone := sorted({model.name for model in old.models} - {model.name for model in new.models}):
            yield Denial("the boot of NEW", f"tenant lists that name {', '.join(gone)}", ("tenants-other",),
                         "the authority signs a list without them, unless it never named them", breaks=True)
        elif new.tenants.min_version > old.tenants.min_version:
            yield Denial("the boot of NEW", f"tenant lists before version {new.tenants.min_version}",
                         ("tenants-version",), f"a list of version {new.tenants.min_version} or later")
    mine, theirs = new.tee.evidence.machines, old.tee.evidence.machines
    if mine is not None:
        code = _list_code(old, new, theirs.authority if theirs else None, mine.authority)
        if code:
            refused = "the machine list of OLD" if theirs else "evidence without a machine list"
            yield Denial("clients and brokers", refused, ("machine",), "the authority signs a list for NEW",
                         breaks=True)


def _list_code(old: Policy, new: Policy, before: str | None, after: str) -> str:
    if before != after:
        return "tenants-signature"
    return "tenants-other" if old.appliance.name != new.appliance.name else ""


def _state(old: Policy, new: Policy) -> Iterator[Denial]:
    """Yield whether the state disk goes on."""
    if old.state is None or new.state is None:
        return
    before, after = old.state.key, new.state.key
    if after.provider == TPM.name and before.provider == TPM.name:
        yield from _sealed(old.state, before)
    elif _source(before) != _source(after):
        yield Denial("the state disk", OTHER_KEY, ("state-tampered",), "move the same key to where NEW takes it from, "
                     "or begin with an empty disk and keep the old log", breaks=True)
    elif before.version != after.version:
        yield Denial("the boot of NEW", OTHER_KEY, ("key-version",), "the provider hands out that version; the disk "
                     "still opens under its first key only", breaks=True)


def _sealed(state: State, key: KeySource) -> Iterator[Denial]:
    """Yield whether a TPM opens its sealed key under another policy, which PCR 15 tells."""
    if key.pcrs is None or POLICY_PCR in key.pcrs:
        yield Denial("the TPM", SEALED_KEY, ("tpm-pcrs",), "name NEW's image as successor first: appliance image "
                     "successor" if state.successor is not None else "nothing: OLD names nobody who may say what "
                     "follows, so the log and sessions on the disk end here", breaks=True)


def _source(key: KeySource) -> tuple[object, ...]:
    """Return where a key comes from: from another place, nothing says that it is the same."""
    return (key.provider, key.path, key.variable, key.credential, _resource(key))


def _resource(key: KeySource) -> tuple[str, str] | None:
    return None if key.broker is None else (key.broker.url, key.broker.resource)
