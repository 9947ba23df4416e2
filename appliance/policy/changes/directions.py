"""Whether another value of a field promises less or more: one row a field of the newest schema.

A field loosens where machines, people, requests or onlookers may do or see more than before.
Fields that only name something else, or whose two ends are both of use, have the row `other`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

Direction = Literal["loosens", "tightens", "changes"]
Judge = Callable[[Any, Any], Direction]


def other(_before: Any, _after: Any) -> Direction:
    """Say of any difference that it is another, neither looser nor tighter."""
    return "changes"


def floor(before: Any, after: Any) -> Direction:
    """A higher value is tighter; none is the loosest."""
    return "tightens" if before is None or (after is not None and after > before) else "loosens"


def ceiling(before: Any, after: Any) -> Direction:
    """A lower value is tighter; none is the loosest."""
    return "tightens" if before is None or (after is not None and after < before) else "loosens"


def version_floor(before: Any, after: Any) -> Direction:
    """A floor of versions, such as 1.55; or of bytes in hexadecimal, component by component."""
    if before is None or after is None:
        return floor(before, after)
    old, new = _components(before), _components(after)
    if "." in before:
        return floor(old, new)
    lower = any(mine < theirs for mine, theirs in zip(new, old, strict=True))
    return "loosens" if lower else "tightens"


def _components(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("."))) if "." in text else tuple(bytes.fromhex(text))


def bits_demanded(before: Any, after: Any) -> Direction:
    """A bit more is tighter; a bit that goes is looser, whatever comes."""
    old, new = (int(each or "0x0", 16) for each in (before, after))
    return "loosens" if old & ~new else "tightens"


def bits_accepted(before: Any, after: Any) -> Direction:
    """A bit more is looser; none stands for any."""
    if before is None or after is None:
        return "loosens" if after is None else "tightens"
    return "loosens" if int(after, 16) & ~int(before, 16) else "tightens"


def accepted(before: Any, after: Any) -> Direction:
    """An item more is looser, whatever goes."""
    return "loosens" if set(after) - set(before) else "tightens"


def accepted_or_any(before: Any, after: Any) -> Direction:
    """The same, where an empty list stands for any."""
    if not before or not after:
        return "tightens" if after else "loosens"
    return accepted(before, after)


def demanded(before: Any, after: Any) -> Direction:
    """An item that goes is looser, whatever comes."""
    return "loosens" if set(before) - set(after) else "tightens"


def risk(_before: Any, after: Any) -> Direction:
    """`true` is looser."""
    return "loosens" if after is True else "tightens"


def guard(_before: Any, after: Any) -> Direction:
    """`true` is tighter."""
    return "tightens" if after is True else "loosens"


def pinned(before: Any, after: Any) -> Direction:
    """A pin where there was none is tighter, none where there was one is looser."""
    return "tightens" if before is None else "loosens" if after is None else "changes"


def ladder(*steps: Any) -> Judge:
    """Judge values that stand in an order, the loosest first; absent is the first."""
    def judge(before: Any, after: Any) -> Direction:
        places = [steps.index(steps[0] if each is None else each) for each in (before, after)]
        return "tightens" if places[1] > places[0] else "loosens"
    return judge


def _rows(prefix: str, judge: Judge, names: str) -> dict[str, Judge]:
    return {f"{prefix}.{name}": judge for name in names.split()}


_KEY: Mapping[str, Judge] = {
    **dict.fromkeys(("provider", "version", "path", "variable", "credential"), other), "pcrs": demanded,
    **dict.fromkeys(("broker.url", "broker.root_sha256", "broker.resource"), other),
    "broker.session_binding": ladder("key", "required")}
_EVIDENCE, _SNP, _TDX = "tee.evidence", "tee.evidence.sev_snp", "tee.evidence.tdx"

FIELDS: Mapping[str, Judge] = {
    "appliance.name": other, "appliance.schema": other, "tee.platforms": accepted, "tee.memory_budget": other,
    "tee.plaintext_budget": ceiling,
    **_rows(_EVIDENCE, risk, "debug migration smt"), **_rows(_EVIDENCE, ceiling, "vmpl max_collateral_age"),
    **_rows(_SNP, accepted, "products signing_keys"),
    **_rows(f"{_SNP}.min_tcb", floor, "bootloader tee snp microcode fmc"),
    **_rows(f"{_SNP}.min_tcb", bits_demanded, "launch_mitigations current_mitigations"),
    **_rows(_SNP, floor, "min_report_version min_guest_svn"), f"{_SNP}.min_api": version_floor,
    **_rows(_SNP, guard, "committed_is_current single_socket ciphertext_hiding guest_ciphertext_hiding rapl_disabled "
            "guest_rapl_disabled page_swap_disabled aes256_xts alias_check tsme ecc iommu_write_safe"),
    f"{_SNP}.tio": pinned, f"{_SNP}.max_revocation_age": ceiling, f"{_SNP}.cxl": risk,
    f"{_SNP}.csp_ids": accepted_or_any, **_rows(_SNP, pinned, "id_key_sha384 author_key_sha384"),
    **_rows(_TDX, accepted, "tcb_status accepted_advisories service_tds"), f"{_TDX}.min_evaluation_number": floor,
    # No grace is the tightest: a value where there was none accepts more.
    f"{_TDX}.tcb_grace": lambda before, after: ceiling(before or 0, after or 0),
    f"{_TDX}.mr_seam": accepted_or_any, f"{_TDX}.min_tee_tcb_svn": version_floor, f"{_TDX}.xfam": bits_accepted,
    f"{_EVIDENCE}.tpm.pcrs": demanded,
    f"{_EVIDENCE}.azure.paravisor_measurements": accepted, f"{_EVIDENCE}.azure.id_key_sha384": pinned,
    f"{_EVIDENCE}.azure.source": other,
    f"{_EVIDENCE}.gce.min_svn": floor,
    **_rows(f"{_EVIDENCE}.machines", other, "authority list"), f"{_EVIDENCE}.machines.min_version": floor,
    "state.device": other, **{f"state.key.{name}": judge for name, judge in _KEY.items()},
    **_rows("state.successor", other, "authority document"),
    "approvals.required": floor, "approvals.approver.public_key": other,
    **_rows("model", other, "file sha256 shards load draft_model kv_cache chat_template chat_template_fallback "
            "context_shift"),
    "model.sealed_header_sha256": pinned,
    **_rows("model.publisher", other, "public_key signature bundle"),
    **_rows("model.publisher", pinned, "root_sha256 identity"),
    **{f"model.key.{name}": judge for name, judge in _KEY.items()},
    "model.streaming_decrypt": ladder(False, "auto", True),
    "model.access_pattern": ladder("leaks", "hidden", "oblivious"), "model.context_length": ceiling,
    **_rows("model.rope", other, "factor original_context"),
    **_rows("model.limits", ceiling, "prompt_tokens generation_tokens"), "model.limits.max_tokens_default": other,
    "alias.models": other, "service.listen.serves": ladder("all", "api", "metrics"),
    "model.prefix_cache.size": other, "model.prefix_cache.lifetime": ceiling,
    "model.speculation": ladder("heads", "on", "hidden", "off"),
    **_rows("model.sampling.bound", other, "default"), "model.sampling.bound.min": floor,
    "model.sampling.bound.max": ceiling, "model.sampling.extended": risk, "model.sampling.samplers": other,
    **_rows("model.sampling", ceiling, "max_beams max_logprobs"),
    **_rows("model", risk, "tools structured_output tokenization session_persistence"),
    **_rows("privacy.timing_padding", floor, "first_token total jitter cadence"), "privacy.size_padding": floor,
    **_rows("privacy", floor, "token_count_rounding metrics_interval"),
    **_rows("privacy.redaction", demanded, "fields detectors apply_to"),
    **_rows("privacy.redaction.pattern", other, "regex replacement"), "privacy.retention.audit": other,
    "privacy.retention.sessions": lambda before, after: ceiling(before or 0, after or 0),
    "privacy.auditor_key": other,
    **_rows("limits", ceiling, "prompt_tokens generation_tokens choices concurrent_requests queued_requests "
            "first_token_timeout answer_timeout request_size requests_per_minute tokens_per_minute tokens_per_day"),
    "limits.oversized_max_tokens": ladder("clamp", "refuse"),
    **_rows("tenants", other, "authority list commitment"), "tenants.min_version": floor,
    "tenants.tenant.role": ladder("admin", "user", "auditor", "metrics"),
    **_rows("tenants.tenant", accepted, "models api_key_sha256"), "tenants.tenant.weight": other,
    **_rows("tenants.tenant", ceiling, "concurrent_requests context_length requests_per_minute tokens_per_minute "
            "tokens_per_day"), **_rows("tenants.tenant", floor, "prompt_price answer_price"),
    "service.listen.kind": ladder("tcp", "vsock", "unix", "tls", "ra-tls"),
    **_rows("service.listen", other, "transport address port path certificate private_key names"),
    "service.listen.rotation": ceiling, "service.operator_may_set": accepted,
    "service.session_binding": ladder("key", "required"), "service.strict": guard,
    "service.tls.key_exchange": ladder("any", "post-quantum"), "service.drain_timeout": other,
    "audit.sink": ladder("stdout", "state"), "audit.checkpoint_interval": ceiling, "audit.receipts": guard,
    "audit.receipt_position": other, "audit.outcomes": other,
    "privacy.memory_access": ladder("open", "oblivious"), **_rows("audit.witness", other, "url public_key"),
    **_rows("audit.timestamp_authority", other, "url root_sha256"),
}

# Of a block that may stand or not: what it is that one comes. That one goes is the opposite.
BLOCKS: Mapping[str, Direction] = {
    f"{_SNP}.min_tcb": "tightens", f"{_EVIDENCE}.azure": "loosens",
    f"{_EVIDENCE}.gce": "tightens", f"{_EVIDENCE}.machines": "tightens",
    "state": "changes",
    "state.key.broker": "changes", "state.successor": "loosens", "approvals": "tightens",
    "approvals.approver": "loosens", "model": "changes", "model.publisher": "tightens", "model.key": "changes",
    "model.key.broker": "changes", "model.limits": "tightens", "alias": "changes",
    "model.rope": "changes", "model.prefix_cache": "loosens",
    "model.sampling.bound": "changes", "privacy.timing_padding": "tightens",
    "privacy.redaction.pattern": "tightens", "tenants.tenant": "loosens", "service.listen": "loosens",
    "service.tls": "tightens", "audit.witness": "tightens", "audit.timestamp_authority": "tightens",
}
_OPPOSITE: Mapping[Direction, Direction] = {"loosens": "tightens", "tightens": "loosens", "changes": "changes"}


def of_field(place: str, before: Any, after: Any) -> Direction:
    """Return the direction of two values of a field, by its path without labels."""
    return FIELDS[place](before, after)


def of_block(place: str, *, comes: bool) -> Direction:
    """Return the direction of a block that comes, or goes."""
    return BLOCKS[place] if comes else _OPPOSITE[BLOCKS[place]]
