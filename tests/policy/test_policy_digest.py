"""The policy digest: what changes it, what does not, and that it never changes for an old file."""

from __future__ import annotations

import hashlib
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.codec.canonical import canonical
from appliance.policy import load, policy_digest
from appliance.policy.digest import digested, document, host_data, tenants_commitment
from appliance.policy.explaining.checking import check
from appliance.policy.explaining.parser import parse
from appliance.policy.explaining.report import FullReport
from appliance.policy.hcl.diagnostics import SourceText
from appliance.policy.language import tables
from appliance.policy.language.redacted import without_tenants
from appliance.policy.schema import Policy, frozen
from tests.support import extent
from tests.support.policies import BASE, every_field, in_schema, two_values, valid, versioned_leaves, with_lines
from tests.support.rendering import render

ROOT = Path(__file__).parents[2]
SCHEMA_1 = sorted(ROOT.glob("tests/goldens/schema_1/*.hcl"))
EXAMPLES = sorted([*ROOT.glob("examples/*.hcl"), *ROOT.glob("policies/*.hcl")])


def test_schema_1_is_frozen() -> None:
    """The table of schema 1 is what it was at its release: an edit would change the digests of existing files."""
    text = (ROOT / "appliance/policy/schema/schema_1.json").read_bytes()
    assert "cbaec49951ae49ebef9feb08b2cd6922d0384738e25748988f06170b7f40ea14" == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("version", frozen.OPEN)
def test_the_table_of_an_open_version_is_what_the_code_states(version: int) -> None:
    """The table beside the code is the generated one, byte for byte; a frozen one is not made again."""
    assert tables.text_of(version) == (ROOT / f"appliance/policy/schema/schema_{version}.json").read_text(), (
        "run: make reference")
    assert frozen.table(version) == dict(tables.from_code(version))


@pytest.mark.parametrize("version", frozen.VERSIONS)
def test_code_agrees_with_each_table(version: int) -> None:
    """The fields that the code states for a version are those of its table; defaults are the table's alone."""
    def without_default(entry: dict[str, Any]) -> dict[str, Any]:
        return {key: None if key == "default" else value for key, value in entry.items()}

    assert {path: without_default(entry) for path, entry in frozen.table(version).items()} == {
        path: without_default(entry) for path, entry in tables.from_code(version)}


def test_schema_1_knows_nothing_of_schema_2() -> None:
    """A file of schema 1 has no field of schema 2 in its document, and the program reads what schema 1 meant."""
    old, new = valid(BASE), valid(in_schema(2))
    assert {"concurrent_requests": 32} == {
        name: value for name, value in digested(old)["limits"].items() if "quests" in name and value is not None}
    assert (None, None) == (old.limits.queued_requests, old.limits.answer_timeout_ms)
    assert (256, None) == (new.limits.queued_requests, new.limits.answer_timeout_ms)
    assert {"answer_timeout": None, "queued_requests": 256}.items() <= digested(new)["limits"].items()
    assert policy_digest(old) != policy_digest(new)


def test_a_default_comes_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where code and table differ, a file that declares the table's version gets the table's default."""
    before = valid(BASE)
    field = Policy.model_fields["limits"].annotation.model_fields["prompt_tokens"]  # type: ignore[union-attr]
    monkeypatch.setattr(field, "default", 4096)
    assert 2048 == valid(BASE).limits.prompt_tokens
    assert policy_digest(before) == policy_digest(valid(BASE))


@pytest.mark.parametrize("version", frozen.VERSIONS)
def test_absent_blocks_have_no_required_fields(version: int) -> None:
    """A block that is filled in where it is absent can be: none of its fields is required."""
    table = frozen.table(version)
    always = [path for path, entry in table.items() if entry.get("block") == "always"]
    assert [] == [path for path, entry in table.items() if ("required" in entry or entry.get("block") == "required")
                  and path.rpartition(".")[0] in always]


def test_known_digests() -> None:
    """The digests of the examples as they were when schema 1 was released, kept as they stood then."""
    assert PINNED == {path.name: load(path).digest.hex()[:32] for path in SCHEMA_1}


PINNED = {
    "demo.hcl": "09eda860066fcf3fbaf698b9f3aec2a3",
    "development.hcl": "ff65332007f6c2b4eff66fcb2e20ca20",
    "sev-snp-production.hcl": "ec77521f6109f9ab3f9805c533351d01",
    "vm.hcl": "0ceb2ea3761859925b25459acccdf227",
}


@pytest.mark.parametrize(("version", "place", "kind"), versioned_leaves(),
                         ids=lambda value: value if isinstance(value, str) else "")
def test_every_field_changes_the_digest(version: int, place: str, kind: Any) -> None:
    """Another value of any field, or its label, gives another digest."""
    one, two = (kind.parse(value) for value in two_values(kind))
    assert one != two
    digests = [policy_digest(every_field(override=(place, value), version=version)) for value in (one, two)]
    if place == "tenants.commitment":  # stands for tenants that are left out, and these are there
        assert digests[0] == digests[1]
    else:
        assert digests[0] != digests[1]


LABELLED = [(version, path) for version in frozen.VERSIONS for path, entry in frozen.table(version).items()
            if entry.get("block") == "labelled"]


@pytest.mark.parametrize(("version", "place"), LABELLED)
def test_every_label_changes_the_digest(version: int, place: str) -> None:
    """A block's label is a value, too."""
    assert policy_digest(every_field(version=version)) != policy_digest(every_field(relabel=place, version=version))


def test_optional_blocks_change_the_digest() -> None:
    """An empty optional block is something else than none."""
    plain = policy_digest(valid(BASE))
    assert plain != policy_digest(valid(with_lines("privacy", "timing_padding {}")))
    assert plain == policy_digest(valid(with_lines("privacy", "redaction {}\nretention {}")))


@pytest.mark.parametrize("version", frozen.VERSIONS)
def test_every_field_is_in_the_document(version: int) -> None:
    """The hashed document has each field of the table, absent ones as null, and no other."""
    def walk(block: dict[str, Any], place: str) -> set[str]:
        found = set()
        for name, value in block.items():
            where = f"{place}.{name}" if place else name
            found.add(where)
            kind = frozen.table(version)[where].get("block")
            if kind in ("labelled", "map"):
                found |= set().union(*(walk(each, where) for each in value.values()))
            elif isinstance(value, dict):
                found |= walk(value, where)
        return found

    assert set(frozen.table(version)) == walk(document(every_field(version=version), version), "")
    assert {"state": None, "approvals": None}.items() <= digested(valid(BASE)).items()


@settings(max_examples=extent.examples(5, 15), deadline=None)
@given(st.randoms(use_true_random=False))
@pytest.mark.parametrize("path", [*EXAMPLES, *SCHEMA_1], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_formatting_does_not_change_the_digest(path: Path, rng: random.Random) -> None:
    """Spacing, comments, escapes, line ends, and the order of fields, blocks and lists mean nothing."""
    text = path.read_text()
    again = render(parse(FullReport(SourceText(text, ""))), rng)
    again = again.replace("\n", "\r\n") if rng.random() < 0.3 and "\\n" not in again else again
    assert policy_digest(valid(text)) == policy_digest(valid(again))


SAME = [
    ("limits", "prompt_tokens = 2048"), ("limits", 'first_token_timeout = "30000ms"'),
    ("limits", 'first_token_timeout = "30 s"'), ("limits", 'request_size = "1024KiB"'),
    ("tee", 'plaintext_budget = "8MiB"'), ("tee", "evidence {}"), ("privacy", "token_count_rounding = 1"),
    ("model", 'kv_cache = "f16"'), ("model", "sampling { temperature { default = 0.80 } }"),
    ("model", "sampling { temperature { max = 2 } }"), ("model", "sampling { presence_penalty { default = -0.0 } }"),
]


@pytest.mark.parametrize(("block", "lines"), SAME)
def test_writing_a_default_out_changes_nothing(block: str, lines: str) -> None:
    """A default means the same whether it is written or not, and in whichever unit."""
    assert policy_digest(valid(BASE)) == policy_digest(valid(with_lines(block, lines)))


def test_commitment_hides_tenants_and_keeps_the_digest(tmp_path: Path) -> None:
    """The copy without tenants has the same digest, shows no tenant, and is refused at boot by name."""
    for path in [*EXAMPLES, *SCHEMA_1]:
        loaded = load(path)
        copy = without_tenants(loaded)
        again = check(copy)
        assert again.policy is not None
        assert loaded.digest == policy_digest(again.policy)
        for tenant in loaded.policy.tenants.tenants:
            assert not any(digest in copy for digest in tenant.api_key_sha256)
            assert f'tenant "{tenant.name}"' not in copy
            assert any("never boots" in d.summary for d in again.diagnostics)
        if not loaded.policy.tenants.tenants:
            assert path.read_text() == copy


def test_commitment_binds_tenants() -> None:
    """Another key, role, name or model of a tenant is another digest."""
    digests = {policy_digest(valid(text)) for text in (
        BASE, BASE.replace("2b1d8a7f", "2b1d8a70"), BASE.replace('"acme"', '"acma"'),
        with_lines("tenants", 'tenant "z" {\n role = "auditor"\n api_key_sha256 = ["' + "ab12" * 16 + '"]\n}'),
        BASE.replace("models         =", 'role = "admin"\nmodels ='))}
    assert 5 == len(digests)


def test_digest_forms() -> None:
    """The digests are the hashes that the specification says, over independent JSON text."""
    policy = valid(BASE)
    whole = document(policy, 1)
    inline = whole["tenants"].pop("tenant")
    plain = {"ensure_ascii": False, "sort_keys": True, "separators": (",", ":")}
    text = json.dumps(inline, **plain)  # type: ignore[arg-type]
    commitment = "sha384:" + hashlib.sha384(b"appliance/policy-tenants/v1\n" + text.encode()).hexdigest()
    assert commitment == tenants_commitment(inline)
    whole["tenants"]["commitment"] = commitment
    text = json.dumps(whole, **plain)  # type: ignore[arg-type]
    text = re.sub(r"(?<=[:,\[])(-?\d+)\.0(?=[,}\]])", r"\1", text)  # ECMAScript writes 2.0 as 2
    digest = hashlib.sha384(b"appliance/policy-digest/v1\n" + text.encode()).digest()
    assert digest == policy_digest(policy)
    assert hashlib.sha256(b"appliance/policy-host-data/v1\n" + digest).digest() == host_data(digest)
    with pytest.raises(ValueError, match="48 bytes"):
        host_data(b"x" * 32)


def test_source_digest_is_of_the_bytes(tmp_path: Path) -> None:
    """The digest of the file as it is stands beside the policy digest, and a comment changes it."""
    path = tmp_path / "p.hcl"
    path.write_bytes(BASE.replace("\n", "\r\n").encode())
    loaded = load(path)
    assert hashlib.sha384(path.read_bytes()).digest() == loaded.source_sha384
    path.write_bytes(b"# comment\n" + path.read_bytes())
    again = load(path)
    assert (loaded.digest, False) == (again.digest, loaded.source_sha384 == again.source_sha384)
    assert host_data(again.digest) == again.host_data


def test_positions() -> None:
    """A loaded policy knows where each field stands, or the block around it."""
    checked = check(BASE)
    assert (9, 12) == checked.positions.of(("model", "demo", "file"))[:2]
    assert (8, 1) == checked.positions.of(("model", "demo", "kv_cache"))[:2]
    assert (23, 3, 23, 15) == checked.positions.of(("service", "listen", "api", "names"))
    assert (1, 1) == checked.positions.of(("state",))[:2]


def test_worked_example_of_the_specification() -> None:
    """The example in docs/formats/policy-digest.md is true: its policy, canonical text and digests."""
    text = (ROOT / "docs/formats/policy-digest.md").read_text()
    source, canonical_text, tenants_text = (
        re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```", text, re.DOTALL)[1]  # type: ignore[index]
        for name in ("policy", "canonical", "tenants"))
    policy = valid(source)
    assert canonical_text.replace("\n", "") == canonical(digested(policy)).decode()
    inline = document(policy, 1)["tenants"]["tenant"]
    assert tenants_text.strip() == canonical(inline).decode()
    digest = policy_digest(policy)
    for value in (digest.hex(), host_data(digest).hex(), tenants_commitment(inline),
                  hashlib.sha384(source.encode()).hexdigest()):
        assert value in text
