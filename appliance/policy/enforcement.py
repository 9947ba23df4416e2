"""What this version enforces. A policy that sets anything else is refused at boot: nothing is silently ignored.

`ENFORCED` maps a field's path, without labels, to the values whose meaning is carried out: all of them, or some.
Every field may have its default, which asks for nothing beyond what is done. Blocks named in `BLOCKS` may stand;
any other optional or labelled block may not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from appliance.policy.schema import Policy, frozen
from appliance.policy.schema.base import Block, FieldShape, fields

ANY: Final = object()

BLOCKS = frozenset({
    "model", "model.publisher", "model.key", "model.key.broker", "privacy.timing_padding", "privacy.redaction.pattern",
    "tenants.tenant", "service.listen", "approvals", "approvals.approver",
    "state", "state.key", "state.key.broker", "tee.evidence.sev_snp.min_tcb"})

ENFORCED: dict[str, Any] = {
    "appliance.name": ANY, "appliance.schema": ANY,
    "approvals": ANY,
    "tee.platforms": ANY, "tee.evidence": ANY,  # whoever verifies demands it: clients and key brokers
    "model.file": ANY, "model.sha256": ANY, "model.sealed_header_sha256": ANY,
    "model.publisher.public_key": ANY, "model.publisher.signature": ANY,
    "model.key.provider": ("file", "environment", "systemd-credential", "broker", "tpm"), "model.key.path": ANY,
    "model.key.variable": ANY, "model.key.credential": ANY,
    "model.key.version": ANY, "model.key.pcrs": ANY, "model.key.broker": ANY,
    "model.streaming_decrypt": ANY,
    "model.access_pattern": ANY, "tee.plaintext_budget": ANY, "tee.memory_budget": ANY,
    "model.context_length": ANY, "model.kv_cache": ANY, "model.draft_model": ANY,
    "model.sampling": ANY,
    "model.chat_template": ANY, "model.chat_template_fallback": ANY,
    "privacy.timing_padding.first_token": ANY, "privacy.timing_padding.total": ANY,
    "privacy.timing_padding.jitter": ANY,
    "privacy.token_count_rounding": ANY, "privacy.size_padding": ANY,
    "privacy.redaction.fields": ANY, "privacy.redaction.pattern": ANY, "privacy.redaction.apply_to": ANY,
    "limits": ANY,
    "tenants.tenant": ANY, "tenants.authority": ANY, "tenants.list": ANY, "tenants.min_version": ANY,
    "service.listen": ANY, "service.drain_timeout": ANY, "service.operator_may_set": ANY,
    "audit.sink": ANY,
    "state.device": ANY, "state.key.provider": ("file", "environment", "systemd-credential", "broker", "ephemeral"),
    "state.key.path": ANY, "state.key.variable": ANY, "state.key.credential": ANY, "state.key.version": ANY,
    "state.key.broker": ANY,
}

REASON = "not enforced by this version"
REDACTED = "this is a copy without tenants, which verifies but never boots"


def allowed_values(place: str) -> Any:
    """Return what `ENFORCED` says on a field: its own entry, or that of a block around it, which must be `ANY`."""
    if place in ENFORCED:
        return ENFORCED[place]
    while "." in place:
        place = place.rpartition(".")[0]
        if ENFORCED.get(place) is ANY:
            return ANY
    return ()


def _is_enforced(place: str, value: Any, table: dict[str, frozen.Entry]) -> bool:
    entry = table[place]
    if "default" in entry and value == frozen.value_of(entry):
        return True
    allowed = allowed_values(place)
    if allowed is ANY:
        return True
    values = value if isinstance(value, tuple) else (value,)
    return all(any(type(v) is type(a) and v == a for a in allowed) for v in values)


def unenforced(policy: Policy) -> list[tuple[tuple[str | int, ...], str]]:
    """Return the path of each field that asks for something this version does not enforce, with the reason."""
    return list(_walk(policy, (), "", policy.appliance.schema_version))


def _walk(block: Block, path: tuple[str | int, ...], place: str,
          version: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for shape in fields(type(block), version):
        where = f"{place}.{shape.name}" if place else shape.name
        here = (*path, shape.name)
        value = getattr(block, shape.attribute)
        if shape.block is not None:
            yield from _nested(shape, value, here, where, version)
        elif not _is_enforced(where, value, frozen.table(version)):
            yield here, REDACTED if where == "tenants.commitment" else REASON


def _nested(shape: FieldShape, value: Any, here: tuple[str | int, ...], where: str,
            version: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if value is None:
        return
    blocks = [((*here, getattr(item, item.LABEL)), item) for item in value] if shape.labelled else [(here, value)]
    known = frozen.table(version)[where]["block"] in ("required", "always") or where in BLOCKS
    for path, block in blocks:
        if known:
            yield from _walk(block, path, where, version)
        else:
            yield path, REASON
