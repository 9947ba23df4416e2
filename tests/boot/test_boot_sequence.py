"""The boot, whole: in a process of its own, since it hardens the process for good."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from appliance.attestation.case.reading import parse
from appliance.attestation.judge.validate import Expectations, validate
from appliance.attestation.judge.verify import verify
from appliance.boot import sequence
from appliance.policy import load
from tests.support import forked, server

NONCE = bytes(range(32))
STEPS = ["policy", "hardening", "self-test", "key-release", "state", "models", "attestation", "service"]

BOOT = """
import json, sys
from pathlib import Path
from appliance.boot.sequence import boot
from appliance.errors import ApplianceError
from appliance.policy import load

seen = []

def serve(booted):
    {serve}
    booted.ready()
    evidence = booted.attest(bytes(range(32)))
    print(json.dumps({{
        "evidence": json.loads(evidence.to_json()), "report": booted.report.as_json(), "progress": seen,
        "digest": booted.self_test.digest.hex(), "models": list(booted.models),
        "context": booted.models["tiny"].context_length}}), file=sys.stderr)
    return 7

{before}
try:
    code = boot(load(sys.argv[1]), start_service=serve, model_folders=(Path(sys.argv[2]),),
                progress=lambda step, done, total, unit: seen.append([step, done, total, unit]))
except ApplianceError as error:
    print(json.dumps({{"summary": error.summary, "code": error.code, "hint": error.hint}}), file=sys.stderr)
    code = 2
sys.exit(code)
"""


Outcome = tuple[int, list[dict[str, Any]], dict[str, Any]]


def _boot(policy: Path, folder: Path, *, serve: str = "pass", before: str = "") -> Outcome:
    """Exit code, audit records, and what the program said."""
    done = forked.run([str(policy), str(folder)], dict(os.environ), program=BOOT.format(serve=serve, before=before))
    said = [line for line in done.stderr.splitlines() if line.startswith("{")]
    assert said, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], json.loads(said[-1])


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A policy for the tiny model."""
    return server.write_policy(tmp_path_factory.mktemp("policy"), {"tiny": tiny_model})


@pytest.fixture(scope="module")
def booted(policy: Path, tiny_model: Path) -> Outcome:
    """One boot that goes well, which several tests look at."""
    return _boot(policy, tiny_model.parent)


def _verdicts(records: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(record["step"], record["verdict"]) for record in records if record["event"] == "boot.step"]


def test_a_boot_passes_every_step_and_attests_itself(booted: Outcome, policy: Path, tiny_model: Path) -> None:
    """All steps in order, each recorded; the evidence holds against the policy, the model's digest, the self-test."""
    code, records, said = booted
    assert 7 == code
    verdicts = dict(_verdicts(records))
    assert STEPS == list(verdicts)
    assert {"passed": 5, "skipped": 2} == {
        verdict: sum(found == verdict for step, found in verdicts.items() if step != "hardening")
        for verdict in ("passed", "skipped")}
    assert STEPS == [step["step"] for step in said["report"]]
    assert ["boot.start", "boot.ready", "audit.closed"] == [
        record["event"] for record in records if record["event"] not in ("boot.step", "boot.model", "runtime.log")]
    loaded = load(policy)
    verdict = validate(verify(parse(json.dumps(said["evidence"]).encode())), Expectations(
        platforms=frozenset({"simulated"}), nonce=NONCE, policy_sha384=loaded.digest,
        models={"tiny": bytes.fromhex(server.sha256(tiny_model.read_bytes()))},
        self_test_sha384=bytes.fromhex(said["digest"])))
    assert [] == [finding for finding in verdict.findings if finding.outcome == "fails"]
    assert 64 < said["context"]


def test_progress_names_steps_and_counts_bytes(booted: Outcome, tiny_model: Path) -> None:
    """The progress callback hears of each step, of answers checked, and of every byte of the model."""
    _, records, said = booted
    begun = [step for step, done, total, unit in said["progress"] if (done, total, unit) == (0, 0, "")]
    assert STEPS[:-1] == begun
    size = tiny_model.stat().st_size
    assert ["models", size, size, "bytes"] in said["progress"]
    assert any(step == "self-test" and unit == "answers" for step, _, _, unit in said["progress"])
    assert list(range(len(records))) == [record["seq"] for record in records]


def test_another_model_than_pinned_stops_the_boot(policy: Path, tiny_model: Path, tmp_path: Path) -> None:
    """One flipped bit in the model file: the step, the digest expected and the digest found are named."""
    data = bytearray(tiny_model.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / tiny_model.name).write_bytes(data)
    code, records, said = _boot(policy, tmp_path)
    assert (2, "model-pin-mismatch") == (code, said["code"])
    assert said["summary"].startswith("boot stopped at step models: ")
    assert server.sha256(bytes(data)) in said["summary"]
    assert server.sha256(tiny_model.read_bytes()) in said["summary"]
    assert ("models", "failed") == _verdicts(records)[-1]
    assert {"step": "models", "code": "model-pin-mismatch"} == {
        key: record[key] for record in records if record["event"] == "boot.failed" for key in ("step", "code")}


FLIP_ANSWER = """
from appliance.boot.selftest import kernels as kernel_answers
answers = dict(kernel_answers.known())
answers["gather_q8_0"] = f"{int(answers['gather_q8_0'], 16) ^ 1:064x}"
kernel_answers.known = lambda: answers
"""
FLIP_KEY = """
import dataclasses
from appliance.boot.selftest import crypto_vectors as vectors
first = vectors.GCM[1]
vectors.GCM = (vectors.GCM[0], dataclasses.replace(first, sealed=bytes([first.sealed[0] ^ 1]) + first.sealed[1:]))
"""


@pytest.mark.parametrize(("before", "named"), [(FLIP_ANSWER, "gather_q8_0: expected "), (FLIP_KEY, "InvalidTag at ")])
def test_one_flipped_bit_in_the_self_test_stops_the_boot(
        before: str, named: str, policy: Path, tiny_model: Path) -> None:
    """A kernel's or cipher's answer that differs in one bit ends the boot before any model is read."""
    code, records, said = _boot(policy, tiny_model.parent, before=before)
    assert 2 == code
    assert said["summary"].startswith(f"boot stopped at step self-test: {named}")
    assert ("self-test", "failed") == _verdicts(records)[-1]
    assert [] == [record for record in records if record["event"] == "boot.model"]


FEW_FILES = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 255))\n"
NO_THREAD = """
import threading
start = threading.Thread.start
def fail(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = lambda thread: fail(thread) if thread.name.startswith("NAME") else start(thread)
"""


@pytest.mark.parametrize(("before", "step", "code", "said"), [
    (FEW_FILES, "policy", "files", "192 of them connections; the limit allows 255"),
    ("import resource; resource.setrlimit(resource.RLIMIT_CPU, (3600, 7200))\n", "policy", "cpu-time",
     "ended after 7200 seconds of processor time"),
    (NO_THREAD.replace("NAME", "kernel-"), "self-test", "threads", "can't start new thread"),
    (NO_THREAD.replace("NAME", "engine"), "service", "threads", "no thread can be started"),
])
def test_what_the_machine_lacks_is_named(
        before: str, step: str, code: str, said: str, policy: Path, tiny_model: Path) -> None:
    """A boot that gets too few files or threads says what to raise, not that the CPU computes wrong or the program has
    a defect."""
    # Imported before the sandbox, as the command line does: with Python 3.13, litestar brings pdb, pdb brings readline.
    before += "import contextlib\nfrom appliance.service.parts import wiring\n"
    status, _, told = _boot(policy, tiny_model.parent, before=before,
                            serve="wiring.assemble(booted, contextlib.ExitStack())")
    assert (2, code) == (status, told["code"])
    assert told["summary"].startswith(f"boot stopped at step {step}: ")
    assert said in told["summary"]
    assert {"files": "LimitNOFILE", "cpu-time": "LimitCPU"}.get(code, "TasksMax") in told["hint"]


def test_connections_have_files(policy: Path, tiny_model: Path) -> None:
    """The usual soft limit of 1024 files is too low for the 1024 connections that a policy can have: as far as the hard
    one goes, the boot raises it to what is needed, here 192 connections and 64 more."""
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (80, 300))"
    code, _, _ = _boot(policy, tiny_model.parent, before=few,
                       serve="assert (256, 300) == resource.getrlimit(resource.RLIMIT_NOFILE)")
    assert 7 == code


@pytest.mark.parametrize(("serve", "summary", "code"), [
    ("from appliance.errors import ServiceError; raise ServiceError('the port is taken')",
     "boot stopped at step service: the port is taken", "service-error"),
    ("raise RuntimeError('xyzzy-canary')",
     r"boot stopped at step service: RuntimeError at appliance\.boot\.sequence:\d+", "boot-internal"),
])
def test_a_service_that_cannot_start_is_a_failed_boot(
        serve: str, summary: str, code: str, policy: Path, tiny_model: Path) -> None:
    """What stops the service before it listens is the last step's failure, without a stranger's message."""
    _, records, said = _boot(policy, tiny_model.parent, serve=serve)
    assert re.fullmatch(summary, said["summary"])
    assert code == said["code"]
    assert ("service", "failed") == _verdicts(records)[-1]
    assert "xyzzy" not in json.dumps([records, said])


def test_the_sequence_is_one_page() -> None:
    """The page to read first stays short."""
    assert 150 >= len(Path(sequence.__file__).read_text().splitlines())
