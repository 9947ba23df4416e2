"""What this version does not enforce is named, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from appliance.policy import check, load, unenforced
from appliance.policy.enforcement import BLOCKS, ENFORCED
from appliance.policy.schema import frozen
from tests.support.policies import BASE, every_field, two_values, valid, versioned_leaves, with_lines

ROOT = Path(__file__).parents[2]

# The fields whose every value this version enforces: a list of its own, so that the module's cannot grow unnoticed.
ENFORCED_WHOLE = {
    "appliance.name", "appliance.schema", "approvals.required", "approvals.approver.public_key",
    "tee.plaintext_budget", "model.streaming_decrypt", "model.access_pattern",
    "model.file", "model.sha256", "model.sealed_header_sha256", "model.publisher.public_key",
    "model.publisher.signature", "model.key.path", "model.key.variable", "model.key.credential",
    "model.key.version", "model.key.pcrs", "model.key.broker.url", "model.key.broker.root_sha256",
    "model.key.broker.resource",
    "model.context_length", "model.kv_cache", "model.draft_model", "model.chat_template",
    "model.chat_template_fallback",
    *(f"model.sampling.{name}.{bound}" for bound in ("default", "min", "max") for name in (
        "temperature", "top_p", "top_k", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty")),
    "model.sampling.max_logprobs",
    "privacy.timing_padding.first_token", "privacy.timing_padding.total", "privacy.timing_padding.jitter",
    "privacy.token_count_rounding", "privacy.size_padding", "privacy.redaction.fields", "privacy.redaction.apply_to",
    "privacy.redaction.pattern.regex", "privacy.redaction.pattern.replacement",
    "limits.prompt_tokens", "limits.generation_tokens", "limits.concurrent_requests", "limits.first_token_timeout",
    "limits.queued_requests", "limits.answer_timeout",
    "limits.request_size", "limits.requests_per_minute", "limits.tokens_per_minute", "limits.tokens_per_day",
    "tenants.tenant.role", "tenants.tenant.models", "tenants.tenant.api_key_sha256",
    "tenants.authority", "tenants.list", "tenants.min_version",
    "service.listen.kind", "service.listen.transport", "service.listen.address", "service.listen.port",
    "service.listen.path", "service.listen.certificate", "service.listen.private_key", "service.listen.names",
    "service.listen.rotation", "service.drain_timeout", "service.operator_may_set", "tee.platforms",
    "tee.memory_budget", *(f"tee.evidence.{name}" for name in (
        "debug", "migration", "smt", "vmpl", "max_collateral_age", "tpm.pcrs",
        *(f"sev_snp.{rule}" for rule in (
            "products", "signing_keys", "min_api", "min_guest_svn", "single_socket", "ciphertext_hiding",
            "rapl_disabled", "aes256_xts", "cxl", "id_key_sha384", "author_key_sha384", "alias_check", "tsme", "ecc",
            "iommu_write_safe", "max_revocation_age",
            *(f"min_tcb.{component}" for component in ("bootloader", "tee", "snp", "microcode", "fmc")))),
        *(f"tdx.{rule}" for rule in (
            "tcb_status", "accepted_advisories", "min_evaluation_number", "tcb_grace", "mr_seam", "min_tee_tcb_svn",
            "xfam", "service_tds")))),
    "audit.sink", "state.device", "state.key.path", "state.key.variable", "state.key.credential", "state.key.version",
    "state.key.broker.url", "state.key.broker.root_sha256", "state.key.broker.resource",
}
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
    default = frozen.value_of(entry) if "default" in entry else None
    value = next(v for v in map(kind.parse, two_values(kind)[::-1]) if v != default)
    named = {without_labels(path) for path, _ in unenforced(every_field(override=(place, value), version=version))}
    covered = any(place == name or place.startswith(name + ".") for name in named)
    if place in ENFORCED_WHOLE:
        assert not covered
    elif place not in ENFORCED_PARTLY:
        assert covered


def test_enforced_tables_name_real_fields() -> None:
    """The tables speak of fields that exist, and hold no entry that means nothing."""
    table = {path: entry for version in frozen.VERSIONS for path, entry in frozen.table(version).items()}
    assert set() == {name for name in ENFORCED if name not in table}
    assert {"block"} == {key for name in BLOCKS for key in table[name]}
    assert set() == ENFORCED_WHOLE - set(table)


CASES = [
    ("model", "context_shift = true", "model.context_shift"),
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
]


@pytest.mark.parametrize(("block", "lines"), ALLOWED)
def test_enforced_values_pass(block: str, lines: str) -> None:
    """A default that is written out, and the enforced values of a partly enforced field, are not named."""
    assert [] == unenforced(valid(with_lines(block, lines)))


def test_examples() -> None:
    """The demo and the development policy boot with this version; the production policy is valid, but does not."""
    assert () == load(ROOT / "examples/demo.hcl").diagnostics
    assert () == load(ROOT / "policies/development.hcl").diagnostics
    production = load(ROOT / "policies/sev-snp-production.hcl")
    assert {"note"} == {d.severity for d in production.diagnostics}
    assert {"audit.receipts"} <= {without_labels(path) for path, _ in unenforced(production.policy)}
