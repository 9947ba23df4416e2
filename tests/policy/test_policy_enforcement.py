"""What this version does not enforce is named, and nothing else is."""

from __future__ import annotations

import ast
import functools
import inspect
from pathlib import Path
from typing import Any

import pytest

from appliance.policy import load, unenforced
from appliance.policy.enforcement import places, stands
from appliance.policy.explaining.checking import check
from appliance.policy.schema import frozen
from appliance.policy.schema.base import ANY, Block, FieldShape
from tests.support.policies import BASE, every_field, two_values, valid, versioned_leaves, with_lines

ROOT = Path(__file__).parents[2]

# The fields whose every value this version enforces: a list of its own, so that the schema's cannot grow unnoticed.
ENFORCED_WHOLE = {
    "privacy.redaction.detectors",
    "appliance.name", "appliance.schema", "approvals.required", "approvals.approver.public_key",
    "tee.plaintext_budget", "model.streaming_decrypt", "model.access_pattern",
    "model.file", "model.sha256", "model.shards", "model.load", "model.sealed_header_sha256",
    "model.publisher.public_key",
    "model.publisher.signature", "model.publisher.bundle", "model.publisher.root_sha256", "model.publisher.identity",
    "model.key.path", "model.key.variable", "model.key.credential",
    "model.key.version", "model.key.pcrs", "model.key.broker.url", "model.key.broker.root_sha256",
    "model.key.broker.resource", "model.key.broker.session_binding",
    "model.rope.factor", "model.rope.original_context",
    "model.context_length", "model.kv_cache", "model.draft_model", "model.chat_template",
    "model.chat_template_fallback", "model.prefix_cache.size", "model.prefix_cache.lifetime", "model.context_shift",
    "model.session_persistence", "privacy.retention.sessions",
    "model.speculation", "model.tools", "model.structured_output", "model.tokenization",
    *(f"model.sampling.{name}.{part}" for part in ("default", "min", "max") for name in (
        "bound", "temperature", "top_p", "top_k", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty")),
    "model.sampling.max_logprobs", "model.sampling.max_beams",
    "model.sampling.samplers", "model.sampling.extended",
    "privacy.timing_padding.first_token", "privacy.timing_padding.total", "privacy.timing_padding.jitter",
    "privacy.timing_padding.cadence",
    "privacy.token_count_rounding", "privacy.size_padding", "privacy.redaction.fields", "privacy.redaction.apply_to",
    "privacy.metrics_interval",
    "audit.timestamp_authority.root_sha256", "audit.timestamp_authority.url",
    "privacy.retention.audit", "privacy.redaction.pattern.regex", "privacy.redaction.pattern.replacement",
    "limits.prompt_tokens", "limits.generation_tokens", "limits.concurrent_requests", "limits.first_token_timeout",
    "limits.queued_requests", "limits.answer_timeout", "limits.choices", "limits.oversized_max_tokens",
    "limits.request_size", "limits.requests_per_minute", "limits.tokens_per_minute", "limits.tokens_per_day",
    "tenants.tenant.role", "tenants.tenant.models", "tenants.tenant.api_key_sha256", "tenants.tenant.weight",
    "tenants.tenant.concurrent_requests", "tenants.tenant.context_length",
    *(f"tenants.tenant.{name}" for name in ("requests_per_minute", "tokens_per_minute", "tokens_per_day",
                                            "prompt_price", "answer_price")),
    "alias.models", *(f"model.limits.{name}" for name in ("prompt_tokens", "generation_tokens", "max_tokens_default")),
    "service.listen.serves",
    "tenants.authority", "tenants.list", "tenants.min_version",
    "service.listen.kind", "service.listen.transport", "service.listen.address", "service.listen.port",
    "service.listen.path", "service.listen.certificate", "service.listen.private_key", "service.listen.names",
    "service.listen.rotation", "service.drain_timeout", "service.operator_may_set", "service.session_binding",
    "service.strict",
    "service.tls.key_exchange", "tee.platforms",
    "tee.memory_budget", *(f"tee.evidence.{name}" for name in (
        "debug", "migration", "smt", "vmpl", "max_collateral_age", "tpm.pcrs",
        "machines.authority", "machines.list", "machines.min_version", "gce.min_svn",
        "azure.paravisor_measurements", "azure.id_key_sha384", "azure.source",
        *(f"sev_snp.{rule}" for rule in (
            "products", "signing_keys", "min_api", "min_guest_svn", "single_socket", "ciphertext_hiding",
            "rapl_disabled", "aes256_xts", "cxl", "id_key_sha384", "author_key_sha384", "alias_check", "tsme", "ecc",
            "iommu_write_safe", "max_revocation_age", "min_report_version", "committed_is_current",
            "guest_ciphertext_hiding", "guest_rapl_disabled", "page_swap_disabled", "tio", "csp_ids",
            *(f"min_tcb.{component}" for component in (
                "bootloader", "tee", "snp", "microcode", "fmc", "launch_mitigations", "current_mitigations")))),
        *(f"tdx.{rule}" for rule in (
            "tcb_status", "accepted_advisories", "min_evaluation_number", "tcb_grace", "mr_seam", "min_tee_tcb_svn",
            "xfam", "service_tds")))),
    "audit.sink", "audit.checkpoint_interval", "audit.receipts", "audit.receipt_position",
    "audit.outcomes",
    "audit.witness.public_key", "audit.witness.url",
    "privacy.auditor_key", "privacy.memory_access",
    "state.device", "state.key.path", "state.key.variable", "state.key.credential", "state.key.version",
    "state.key.broker.url", "state.key.broker.root_sha256", "state.key.broker.resource",
    "state.key.broker.session_binding", "state.key.pcrs", "state.successor.authority", "state.successor.document",
}
# What a log of version 1 cannot do: under schema 1 they are named.
SINCE_2 = {"model.publisher.bundle", "audit.timestamp_authority.root_sha256", "audit.timestamp_authority.url",
           "audit.checkpoint_interval", "audit.receipts", "audit.witness.public_key", "audit.witness.url",
           "model.session_persistence", "privacy.auditor_key", "privacy.retention.audit", "privacy.retention.sessions",
           "privacy.timing_padding.cadence", "privacy.redaction.detectors"}
ENFORCED_PARTLY = {
    "model.key.provider", "state.key.provider"}


def without_labels(path: tuple[Any, ...]) -> str:
    """Return a path as the tables have it."""
    return ".".join(str(name) for name in path if name not in ("one", "demo", "acme", "api", "x"))


@pytest.mark.parametrize(("version", "place", "kind"), versioned_leaves(),
                         ids=lambda value: value if isinstance(value, str) else "")
def test_every_field_is_enforced_or_named(version: int, place: str, kind: Any) -> None:
    """A value other than the default is enforced, or the field (or the block that it stands in) is named."""
    entry = frozen.table(version)[place]
    default = frozen.value_of(entry) if "default" in entry and not isinstance(entry["default"], dict) else None
    value = next(v for v in map(kind.parse, two_values(kind)[::-1]) if v != default)
    named = {without_labels(path) for path, _ in unenforced(every_field(override=(place, value), version=version))}
    covered = any(place == name or place.startswith(name + ".") for name in named)
    if place in SINCE_2 and version == 1:
        assert covered
    elif place in ENFORCED_WHOLE:
        assert not covered
    elif place not in ENFORCED_PARTLY:
        assert covered


# The fields that nothing enforces, of any version: another one needs a reason to stand here, or someone to enforce it.
LATER = {
    "tenants.commitment",  # stands in copies that never boot
    *(f"{key}.vault.{name}" for key in ("model.key", "state.key") for name in (
        "url", "root_sha256", "mount", "key_name")),  # of schema 1
}
EVERY = {place: shape for version in frozen.VERSIONS for place, shape in places(version).items()}
LEAVES = {place: shape for place, shape in EVERY.items() if shape.kind is not None}


def test_the_lists_are_whole() -> None:
    """Each field of each version stands in one of the three lists here, and the schema says the same."""
    assert set(LEAVES) == ENFORCED_WHOLE | ENFORCED_PARTLY | LATER
    found = {place: shape.enforced.values(place) for place, shape in LEAVES.items()}
    assert ENFORCED_WHOLE == {place for place, values in found.items() if values is ANY}
    assert LATER == {place for place, values in found.items() if values == ()}


def test_later_blocks() -> None:
    """A block stands where something in it is enforced."""
    former = {"model.key.vault", "state.key.vault", "audit.witness", "audit.timestamp_authority"}
    for version, names in ((1, former), (2, set())):
        found = {place for place, shape in places(version).items() if shape.block and not stands(place, version)}
        assert names == found


@functools.cache
def _reads(path: Path) -> frozenset[str]:
    """Names of attributes that a module, or the modules of a room, read."""
    files = path.glob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    return frozenset(node.attr for file in files for node in ast.walk(ast.parse(file.read_bytes()))
                     if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))


def _names(shape: FieldShape) -> set[str]:
    """By which names a field is read: its own, and those of the block's properties that read it."""
    own = {name for name, value in vars(shape.owner).items()
           if isinstance(value, property) and f"self.{shape.attribute}" in inspect.getsource(value.fget)}
    return {shape.attribute} | own


@pytest.mark.parametrize("place", sorted(LEAVES))
def test_who_enforces_a_field_reads_it(place: str) -> None:
    """Each module or room that a field names exists, and reads the field; a field says nothing only on purpose."""
    by = LEAVES[place].enforced.by
    assert by is not None
    for each in (by,) if isinstance(by, str) else by:
        path = ROOT / "appliance" / each
        assert path.is_dir() or path.with_suffix(".py").is_file(), each
        assert _names(LEAVES[place]) & _reads(path), f"{each} does not read {place}"


def test_values_of_places_are_of_real_places() -> None:
    """Where a field is enforced in part, its places exist and have the field."""
    for place, shape in LEAVES.items():
        assert set(shape.enforced.only or {}) <= {
            each for each, other in LEAVES.items() if (other.owner, other.attribute) == (shape.owner, shape.attribute)
        }, place


def test_blocks_name_nobody() -> None:
    """A block is enforced where its fields are, so that there is one statement."""
    assert [] == [place for place, shape in EVERY.items() if shape.block is not None and any(
        vars(entry).get("by") for entry in shape.info.metadata)]
    assert Block.ENFORCED_BY is None


CASES = [
    ("privacy", 'timing_padding { cadence = "10ms" }', "privacy.timing_padding.cadence"),
    ("privacy", 'redaction { detectors = ["email"] }', "privacy.redaction.detectors"),
    ("audit", "receipts = true", "audit.receipts"),
    ("audit", 'checkpoint_interval = "1m"', "audit.checkpoint_interval"),
]


@pytest.mark.parametrize(("block", "lines", "place"), CASES)
def test_unenforced_field_is_noted(block: str, lines: str, place: str) -> None:
    """The policy is valid, the field is named once with its line, and the reason is given."""
    text = with_lines(block, lines)
    policy = valid(text)
    assert [place] == [without_labels(path) for path, _ in unenforced(policy)]
    assert ["not enforced by this version"] == [reason for _, reason in unenforced(policy)]
    notes = [d for d in check(text).diagnostics if d.severity == "note"]
    assert ["unenforced"] == [d.code for d in notes]
    assert notes[0].line == BASE.count("\n") + 1 if not block else notes[0].line > 1


ALLOWED = [
    ("tee", 'plaintext_budget = "4MiB"'), ("model", "streaming_decrypt = true"), ("model", 'access_pattern = "leaks"'),
    ("model", "streaming_decrypt = false"), ("model", 'streaming_decrypt = "auto"'), ("model", 'kv_cache = "f16"'),
    ("model", 'kv_cache = "q8"'), ("model", 'kv_cache = "q4"'),
    ("tee", "evidence { smt = true }"), ("tee", "evidence { sev_snp { min_tcb { snp = 1 } } }"),
    ("tee", "evidence { smt = false }"), ("audit", 'sink = "stdout"'), ("privacy", "retention {}"),
    ("service", 'listen "x" {\n kind = "unix"\n path = "/a"\n}'),
    ("service", 'listen "x" {\n kind = "vsock"\n port = 1\n}'),
    ("service", 'listen "x" {\n kind = "ra-tls"\n transport = "vsock"\n port = 1\n rotation = "1h"\n}'),
    ("privacy", "redaction { detectors = [] }"),
    ("", 'state {\n device = "/dev/vdb"\n key { provider = "ephemeral" }\n}'),
    ("", 'state {\n device = "/dev/vdb"\n key {\n provider = "tpm"\n pcrs = [4, 9, 11, 15]\n}\n}'),
]


@pytest.mark.parametrize(("block", "lines"), ALLOWED)
def test_enforced_values_pass(block: str, lines: str) -> None:
    """A default that is written out, and the enforced values of a partly enforced field, are not named."""
    assert [] == unenforced(valid(with_lines(block, lines)))


def test_examples() -> None:
    """The demo and every policy that comes with the project boot with this version: nothing in them is not enforced."""
    for path in (*(ROOT / "examples").rglob("*.hcl"), *(ROOT / "policies").glob("*.hcl")):
        found = load(path)
        assert [] == [each for each in found.diagnostics if each.severity != "warning"], path
        assert () == found.diagnostics or ("tpm",) == found.policy.tee.platforms, path
