"""Loading models by a policy, naming what runs, and the documents about the boot."""

from __future__ import annotations

import hashlib
import io
import re
from pathlib import Path

import pytest

from appliance import __version__
from appliance.audit.events import STEPS
from appliance.audit.log import AuditLog
from appliance.boot import identity
from appliance.boot.running import load as models
from appliance.errors import AuditError, BootError, PinError, TemplateError
from appliance.kernels.runtime import ahead, table
from appliance.models.catalogue import ModelFile
from appliance.policy import Policy, load
from tests.support import server

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def policy(tmp_path: Path, tiny_model: Path) -> Policy:
    """A policy for the tiny model, which has no chat template of its own."""
    return load(server.write_policy(tmp_path, {"tiny": tiny_model})).policy


def test_formats_come_from_headers_of_matrices(tiny_model: Path, tmp_path: Path) -> None:
    """Vectors do not count, nor do files that are no models: the models step reports those."""
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    assert frozenset({"Q8_0"}) == models.formats_named_by(map(ModelFile, [
        tiny_model, tmp_path / "bad.gguf", tmp_path / "none.gguf"]))
    assert frozenset() == models.formats_named_by([])


def test_a_model_that_the_self_test_did_not_cover_is_refused(policy: Policy, tiny_model: Path) -> None:
    """A file that named other formats when it was looked at than when it was loaded does not run."""
    with pytest.raises(BootError, match="model tiny: uses Q8_0, which the self-test did not cover") as caught:
        models.load(policy.models[0], ModelFile(tiny_model), models.Loading(policy.limits, tested=frozenset({"Q4_0"})))
    assert "self-test-incomplete" == caught.value.code


def test_a_model_without_template_is_loaded(policy: Policy, tiny_model: Path) -> None:
    """A base model continues prompts; the boot report says that it takes no chats."""
    base = policy.models[0].model_copy(update={"chat_template_fallback": "refuse"})
    running = models.load(base, ModelFile(tiny_model), models.Loading(policy.limits, kernels=table.load()))
    try:
        assert None is running.template
        report = models.description({"tiny": running}, {"tiny": "it fits"}, tolerant=True)
        assert "tiny: resident (it fits), no chat template: completions only" == report.split("; ")[0]
    finally:
        running.close()


def test_a_template_that_fails_is_refused_after_the_model(policy: Policy, tiny_model: Path) -> None:
    """A broken template stops the boot, and what is wrong with the model itself is said before it."""
    broken = policy.models[0].model_copy(update={"chat_template": "{{ messages.nothing.more }}"})
    with pytest.raises(TemplateError, match=r"^model tiny: no chat can be put into the model's template"):
        models.load(broken, ModelFile(tiny_model), models.Loading(policy.limits, kernels=table.load()))


def test_another_pin_is_refused(policy: Policy, tiny_model: Path) -> None:
    """What is loaded has the digest that the policy pins."""
    other = policy.models[0].model_copy(update={"sha256": "ab" * 32})
    with pytest.raises(PinError, match=r"^model tiny: "):
        models.load(other, ModelFile(tiny_model), models.Loading(policy.limits))


def test_a_loaded_model_is_bound_by_what_was_read(policy: Policy, tiny_model: Path) -> None:
    """Name, digest of the bytes read, tokenizer and the least of all context bounds."""
    seen: list[int] = []
    running = models.load(policy.models[0], ModelFile(tiny_model), models.Loading(
        policy.limits, lambda done, total: seen.append(done), tested=frozenset({"Q8_0"}), kernels=table.load()))
    try:
        data = tiny_model.read_bytes()
        assert ("tiny", hashlib.sha256(data).hexdigest(), None) == (
            running.bound().name, running.bound().sha256, running.bound().sealed_header_sha256)
        assert len(data) == seen[-1]
        assert 512 == running.context_length  # the model's own
        assert running.tokenizer.encode("a b")
    finally:
        running.close()


def test_build_identity_says_what_runs() -> None:
    """Version and files; the kernel library has a digest exactly if one is in use."""
    kernels = table.load()
    build = identity.build(kernels)
    assert (__version__, identity.code_digest().hex()) == (build.version, build.code_sha384)
    library = ahead.default_path(kernels.target)
    expected = hashlib.sha384(library.read_bytes()).hexdigest() if kernels.origin == "ahead" else None
    assert expected == build.kernels_sha384


def test_the_audit_log_learns_the_policys_names_and_no_other(policy: Policy) -> None:
    """Models, tenants and listeners of the policy can be written; a neighbour's name cannot."""
    sink = io.BytesIO()
    log = AuditLog(sink)
    identity.name_things(log, policy, policy.tenants.tenants)
    log.write("service.listening", listener="api", kind="tcp")
    with pytest.raises(AuditError, match="lacks listener"):
        log.write("service.listening", listener="admin", kind="tcp")
    log.write("boot.model", model="tiny", sha256="ab" * 32)
    assert [1, 0, 1] == [sink.getvalue().count(word) for word in (b'"api"', b'"admin"', b'"tiny"')]
    assert {"user", "other", "auditor"} == log.words.tenants.words


def test_the_threat_model_names_tests_that_exist() -> None:
    """Each row's test is a file of tests."""
    named = set(re.findall(r"`(test_[a-z_]+)`", (DOCS / "threat-model.md").read_text()))
    assert 10 < len(named)
    assert set() == named - {path.stem for path in Path(__file__).parents[1].rglob("test_*.py")}


def test_the_boot_page_shows_the_steps_in_order() -> None:
    """The page about the boot has the sequence's steps, in its order."""
    shown = re.findall(r"^\| `([a-z-]+)` \|", (DOCS / "concepts" / "boot.md").read_text(), re.MULTILINE)
    assert list(STEPS) == shown
