"""Checks before a boot: every promise that this machine or version cannot keep is refused by its name."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from appliance.boot import checks
from appliance.boot.planning import budget, machine
from appliance.boot.sequence import prepare
from appliance.errors import BootError
from appliance.models.catalogue import Catalogue
from appliance.policy import Loaded, load
from tests.support import server
from tests.support.engines import synthetic_model

GIB = 1 << 30


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is no model: these boots never come to read it."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    path.write_bytes(b"not read")
    return path


def _loaded(folder: Path, path: Path, **parts: Any) -> Loaded:
    return load(server.write_policy(folder, {"tiny": path}, **parts))


def _refused(loaded: Loaded, model: Path, **arguments: Any) -> BootError:
    with contextlib.ExitStack() as closing, pytest.raises(BootError) as caught:
        prepare(loaded, closing, model_folders=(model.parent,), **arguments)
    assert caught.value.summary.startswith("boot stopped at step policy: ")
    return caught.value


@pytest.mark.parametrize(("parts", "named"), [
    ({"privacy": 'timing_padding { cadence = "10ms" }'}, "privacy.timing_padding.cadence (policy.hcl:"),
    ({"privacy": 'redaction { detectors = ["email"] }'}, "privacy.redaction.detectors (policy.hcl:"),
])
def test_unenforced_fields_stop_the_boot_by_name_and_line(
        parts: dict[str, str], named: str, tmp_path: Path, model: Path) -> None:
    """A field that this version would not enforce is refused with the place where it stands."""
    error = _refused(_loaded(tmp_path, model, **parts), model)
    assert named in error.summary
    assert "not enforced by this version" in error.summary
    assert "policy-not-met-here" == error.code


@pytest.mark.parametrize(("operator", "named"), [
    (checks.Operator(listen_address="0.0.0.0"), "listen_address"),  # noqa: S104
    (checks.Operator(listen_port=1), None),
])
def test_the_operator_may_choose_only_what_is_granted(
        operator: checks.Operator, named: str | None, tmp_path: Path, model: Path) -> None:
    """A choice outside of service.operator_may_set is refused by name; a granted one is not a finding."""
    loaded = _loaded(tmp_path, model)
    found = list(checks.operator_choices(loaded.policy, operator))
    assert [named] * (named is not None) == [finding.split(":")[0] for finding in found]
    if named is not None:
        assert f"{named}: the policy does not let" in _refused(loaded, model, operator=operator).summary


def test_a_log_that_is_not_granted_is_never_opened(tmp_path: Path, model: Path) -> None:
    """The operator's log file is not even made when the policy does not let it be chosen."""
    path = server.write_policy(tmp_path, {"tiny": model})
    path.write_text(path.read_text().replace(', "log_sink"', ""))
    error = _refused(load(path), model, operator=checks.Operator(log_sink=tmp_path / "audit.log"))
    assert "log_sink: the policy does not let" in error.summary
    assert not (tmp_path / "audit.log").exists()


def test_a_log_that_cannot_be_opened_stops_the_boot(tmp_path: Path, model: Path) -> None:
    """Without an audit log there is no boot."""
    error = _refused(_loaded(tmp_path, model), model, operator=checks.Operator(log_sink=tmp_path / "no" / "audit.log"))
    assert "audit-error" == error.code


def test_all_findings_are_told_at_once(tmp_path: Path) -> None:
    """A missing model, a field that is not enforced and a choice that is not granted stand in one diagnostic."""
    gone = tmp_path / "gone.gguf"
    gone.write_bytes(b"x")
    loaded = _loaded(tmp_path, gone, privacy='redaction { detectors = ["email"] }')
    gone.unlink()
    error = _refused(loaded, gone, operator=checks.Operator(listen_address="::1"))
    assert all(word in error.summary for word in ("gone.gguf: No such file", "redaction.detectors", "listen_address"))


def test_a_model_that_cannot_be_looked_for_is_a_finding(tmp_path: Path) -> None:
    """A folder whose files the system refuses to look up stops the boot with the system's words, not with a defect."""
    gone = tmp_path / "gone.gguf"
    gone.write_bytes(b"x")
    loaded = _loaded(tmp_path, gone)
    gone.unlink()
    assert "gone.gguf: No such file" in _refused(loaded, Path("x" * 300) / "m").summary
    gone.symlink_to("x" * 300)
    assert "gone.gguf: File name too long" in _refused(loaded, gone).summary


def test_every_platform_of_the_language_can_be_attested(tmp_path: Path, model: Path) -> None:
    """What the policy language knows, this version can collect; a name beyond that is refused."""
    policy = _loaded(tmp_path, model).policy
    for name, found in (("sev-snp", 0), ("tdx", 0), ("tpm", 0), ("simulated", 0), ("sgx", 1)):
        other = policy.model_copy(update={"tee": policy.tee.model_copy(update={"platforms": (name,)})})
        assert found == len(list(checks.platform(other)))


def test_model_files_are_plain_files(tmp_path: Path) -> None:
    """A folder in a model's place is refused; the first folder that has the file wins."""
    (tmp_path / "folder.gguf").mkdir()
    assert ["model x: " + str(tmp_path / "folder.gguf") + " is not a regular file"] == list(
        checks.model_files({"x": tmp_path / "folder.gguf"}))


@pytest.mark.parametrize(("template", "words"), [
    ("{% if x %}", "line 1: the end of the template found"), ("{{ nothing.at.all }}", "no chat can be put into")])
def test_the_policy_s_chat_templates_are_read_first(template: str, words: str, tmp_path: Path, model: Path) -> None:
    """A chat template of the policy that cannot be used stops the boot before any model is read."""
    loaded = _loaded(tmp_path, model, model=f"chat_template = {json.dumps(template)}")
    with pytest.raises(BootError, match="model tiny: ") as caught:
        checks.check(loaded, checks.Operator(), Catalogue({"tiny": model}))
    assert words in caught.value.summary


@pytest.mark.parametrize(("limit", "total", "available", "finding"), [
    (None, None, None, None),
    (None, 8 * GIB, 8 * GIB, None),
    (GIB, 8 * GIB, 8 * GIB, None),
    (16 * GIB, 8 * GIB, 8 * GIB, "tee.memory_budget: 16,384 MiB, but the machine has 8,192 MiB"),
    (None, 8 * GIB, 100 << 20, "memory: 305 MiB are needed, there are 100 MiB: "),
    (256 << 20, 8 * GIB, 8 * GIB, "memory: 305 MiB are needed, there are 256 MiB: "),
])
def test_memory_must_suffice(limit: int | None, total: int | None, available: int | None, finding: str | None,
                             tmp_path: Path, model: Path) -> None:
    """The budget must exist and hold everything: process, 192 connections of 96 KiB, 32 requests of 1.375 MiB, their
    answers, 100 MiB of model, reading one."""
    policy = _loaded(tmp_path, model).policy
    policy = policy.model_copy(update={"tee": policy.tee.model_copy(update={"memory_budget_bytes": limit})})
    big = tmp_path / "big.gguf"
    with big.open("wb") as file:
        file.truncate(100 << 20)
    [said] = list(checks.memory(policy, Catalogue({"tiny": big}), total, available)) or [None]
    blank = r"b'\x00\x00\x00\x00'"
    parts = (f"{budget.PROCESS_BYTES >> 20} MiB process, 18 MiB connections, 192 x, 44 MiB requests, 32 x, "
             "2 MiB answers, 32 x, "
             f"100 MiB tiny: the whole file ({big}: byte 0: the magic is {blank}; allowed: b'GGUF'), "
             "48 MiB loading, then reading a request, one at a time")
    assert (finding or "") + parts * (finding or "").startswith("memory") == (said or "")


@pytest.mark.parametrize(("kind", "draft", "said"), [
    # 3 layers of 2 heads of 32 elements, keys and values, 2 bytes: 768 bytes a position, of which a slot has 512.
    ("f16", False, "12 MiB in 32"), ("q8", False, "6 MiB in 32"), ("f16", True, "14 MiB in 32")])
def test_keys_and_values_count(kind: str, draft: bool, said: str, tmp_path: Path) -> None:
    """The caches of all models and of drafts are part of the sum; where memory is short, there are fewer slots."""
    path = tmp_path / "model.gguf"
    path.write_bytes(synthetic_model("Q8_0"))
    policy = _loaded(tmp_path, path).policy
    first = policy.models[0].model_copy(update={"kv_cache": kind, "draft_model": "small" if draft else None})
    others = (first.model_copy(update={"name": "small", "draft_model": None}),) if draft else ()
    policy = policy.model_copy(update={"models": (first, *others)})
    files = {"tiny": path, "small": path}
    found = budget.divide(policy, Catalogue(files), 8 * GIB)
    [line] = [line for line in found.lines if line.what.startswith("tiny: keys and values")]
    assert said == f"{round(line.nbytes / 2**20)} MiB in {found.shares['tiny'].slots}"
    least = budget.divide(policy, Catalogue(files), 1)
    assert "memory: " + str(least.refusal) in list(checks.memory(policy, Catalogue(files), None, 1))
    assert 1 == budget.divide(policy, Catalogue(files), least.nbytes).shares["tiny"].slots


def test_private_keys_are_private(tmp_path: Path, model: Path) -> None:
    """A TLS key that others can read, or that is not there, is refused."""
    policy = _loaded(tmp_path, model).policy
    key = tmp_path / "key.pem"

    def findings() -> list[str]:
        listener = policy.service.listeners[0].model_copy(update={"kind": "tls", "private_key": str(key)})
        service = policy.service.model_copy(update={"listeners": (listener,)})
        return [finding.replace(str(key), "KEY") for finding in checks.private_files(
            policy.model_copy(update={"service": service}))]

    assert ["listener api: private key KEY: No such file or directory"] == findings()
    key.write_text("")
    key.chmod(0o640)
    assert ["listener api: private key KEY has mode 0640, expected 0600"] == findings()
    key.chmod(0o600)
    assert [] == findings()


def test_group_limits_are_read_in_both_versions(tmp_path: Path) -> None:
    """The tightest limit from the process's group up to the root counts; `max` and the v1 maximum are no limit."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "memory" / "c").mkdir(parents=True)
    groups = tmp_path / "cgroup"
    groups.write_text("0::/a/b\n")
    assert None is machine.group_limit(groups, tmp_path)
    (tmp_path / "a" / "memory.max").write_text("1000\n")
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    assert 1000 == machine.group_limit(groups, tmp_path)
    groups.write_text("4:memory:/c\n3:cpu,cpuacct:/a\n0::/a\n")
    (tmp_path / "memory" / "c" / "memory.limit_in_bytes").write_text("700\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert 700 == machine.group_limit(groups, tmp_path)
    assert None is machine.group_limit(tmp_path / "missing", tmp_path)


def test_the_tightest_of_all_limits(tmp_path: Path) -> None:
    """Above `memory.high` a group of version 2 is slowed down until it stands still: a limit as well. A container of
    version 1 does not see the groups around it, but its own group tells their limit."""
    (tmp_path / "a").mkdir()
    (tmp_path / "memory").mkdir()
    groups = tmp_path / "cgroup"
    groups.write_text("0::/../a\n")
    (tmp_path / "a" / "memory.max").write_text("900\n")
    (tmp_path / "a" / "memory.high").write_text("800\n")
    assert 800 == machine.group_limit(groups, tmp_path)
    groups.write_text("4:memory:/docker/c1\n0::/docker/c1\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (tmp_path / "memory" / "memory.stat").write_text("cache 5\nhierarchical_memory_limit 600\n")
    assert 600 == machine.group_limit(groups, tmp_path)
    (tmp_path / "memory" / "memory.stat").write_text("hierarchical_memory_limit 9223372036854771712\n")
    assert None is machine.group_limit(groups, tmp_path)


@pytest.mark.parametrize(("kind", "files"), [
    ("v2", {"memory.max": "1000", "memory.current": "700", "memory.stat": "active_file 100\ninactive_file 50\n"}),
    ("v1", {"memory.limit_in_bytes": "1000", "memory.usage_in_bytes": "700",
            "memory.stat": "active_file 1\ntotal_active_file 100\ntotal_inactive_file 50\n"})])
def test_what_others_in_the_group_take(kind: str, files: dict[str, str], tmp_path: Path) -> None:
    """Room is the limit less what others in the group have: the cache of files can be had back, our own counts as
    ours."""
    folder = tmp_path / ("memory" if kind == "v1" else "") / "a"
    folder.mkdir(parents=True)
    groups = tmp_path / "cgroup"
    groups.write_text("4:memory:/a\n" if kind == "v1" else "0::/a\n")
    for name, text in files.items():
        (folder / name).write_text(text)
    for own, room in ((0, 1000 - 550), (300, 1000 - 250), (800, 1000)):
        assert room == machine.room_in(folder, own)
    assert 1000 == machine.group_room(groups, tmp_path)


def test_this_machine_has_memory() -> None:
    """What the kernel says of this machine is plausible."""
    total, available = machine.total_memory(), machine.available_memory()
    assert total is not None
    assert available is not None
    assert 64 << 20 < available <= total + machine.own_memory()
