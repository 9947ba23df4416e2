"""What a process leaves in its memory when it ends: stopped at its exit, before the kernel takes the memory back.

Looked for: the key of the model, what is derived from it, AES' key schedule and GCM's hash key in every form in which
a library keeps them, every tensor in the order of the file and in that of kernels, and keys and values of attention.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.sealing import sealing
from benchmarks.residue import Words, windows
from tests.support import forked, server
from tests.support.aes import round_keys
from tests.support.demo_model import demo_model
from tests.support.engines import kernels
from tests.support.environment import unmeasured, usual_signals
from tests.support.exits import Traced
from tests.support.extent import WHOLE
from tests.support.plain import open_resident
from tests.support.traces import Traces, key_traces, weight_traces

LONG = 'prompt_tokens = 64\ngeneration_tokens = 400\nfirst_token_timeout = "1m"'
PROMPT = "▁aa▁ba▁ca▁da"


@dataclass(frozen=True)
class Deployment:
    """A sealed model, its policy, and what must not be found."""

    folder: Path
    policy: Path
    plain: Path
    sealed: Path
    traces: Traces


def _deploy(folder: Path, plain: Path, streaming: str, step: int = 64) -> Deployment:
    master, sealed = secrets.token_bytes(32), folder / "m.sealed"
    (folder / "key").touch(0o600)
    (folder / "key").write_text(master.hex())
    made = sealing.seal(plain, sealed, master, tile_size=65536)
    pins = (f'sealed_header_sha256 = "{made.header_sha256.hex()}"\nstreaming_decrypt = {streaming}\n'
            f'key {{\n provider = "file"\n path = "{folder / "key"}"\n }}')
    policy = server.write_policy(folder, {"tiny": sealed}, model=pins, limits=LONG)
    policy.write_text(policy.read_text().replace(server.sha256(sealed.read_bytes()), made.sha256.hex()))
    found = weight_traces(plain, sealed, master, step)
    return Deployment(folder, policy, plain, sealed,
                      Traces(key_traces(master, sealed), found | {"keys and values": _keys_and_values(plain)}))


def _keys_and_values(plain: Path) -> Words:
    """Of attention, for the prompt: every engine makes the same bits."""
    with closing(open_resident(plain)) as source, Engine.open(
            source, EngineOptions(threads=2, slots=1, context_length=64), kernels=kernels()) as engine:
        ids = engine.tokenizer.encode(PROMPT, add_special=True, parse_special=True)
        steps = engine.generate(GenerationRequest(ids, 2, Sampling(temperature=0, seed=1), ignore_end=True))
        next(steps)
        assert engine._cache._memory is not None
        found = windows(engine._cache._memory.view(np.uint8).tobytes(), 64)
        steps.close()
    return found


WAYS = {"true": "streamed", "false": "resident"}


@pytest.fixture(scope="module")
def deployments(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> dict[str, Deployment]:
    """The small model, both ways."""
    return {way: _deploy(tmp_path_factory.mktemp("exit"), tiny_model, way) for way in WAYS}


@pytest.fixture(params=list(WAYS), ids=list(WAYS.values()))
def deployed(request: pytest.FixtureRequest, deployments: dict[str, Deployment]) -> Deployment:
    """One way."""
    return deployments[request.param]


def _ways(names: str, cases: Sequence[tuple[Any, ...]], resident: bool = False) -> pytest.MarkDecorator:
    """Each case one of the two ways, by turns, or all `resident` and the first one streamed, too; in the soak, each
    case both ways. Where the model's key is, and what a signal does, is the same code in both."""
    found = [(way, *case) for way in WAYS for place, case in enumerate(cases)
             if WHOLE or (way == "false" or place == 0 if resident else place % 2 == (way == "false"))]
    return pytest.mark.parametrize(("deployed", *names.split()), found, indirect=["deployed"],
                                   ids=[f"{WAYS[way]}-{name}" for way, name, *_ in found])


def test_the_schedule_that_is_looked_for() -> None:
    """The last words of the example in FIPS 197, appendix A.3."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    assert "fe4890d1e6188d0b046df344706c631e" == round_keys(key)[14].hex()


@contextmanager
def _infer(deployed: Deployment, *more: str, program: str | None = None, before: Sequence[str] = (),
           fresh: bool = False) -> Iterator[tuple[subprocess.Popen[bytes] | forked.Forked, Traced]]:
    """`appliance infer`, or a `program` that takes its words, behind those of its own; see `forked`."""
    words = [*before, "infer", str(deployed.policy), "--prompt", PROMPT, "--raw", "--seed", "1", "--threads", "2",
             *more]
    with subprocess.Popen([sys.executable, "-m", "appliance", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=unmeasured(), preexec_fn=usual_signals
                          ) if fresh else forked.piped(words, unmeasured(), program) as child:
        try:
            yield child, Traced(child)
        finally:
            child.kill()


@pytest.mark.parametrize("deployed", [  # nothing of it is sealed
    pytest.param("true", id="streamed"), pytest.param("false", id="resident", marks=pytest.mark.soak)], indirect=True)
def test_a_plain_model(tmp_path: Path, deployed: Deployment) -> None:
    """Nor does it of a model that lies in the clear, of which headers are read, and more than those, before it is."""
    policy = server.write_policy(tmp_path, {"tiny": deployed.plain}, limits=LONG)
    plain = Deployment(tmp_path, policy, deployed.plain, deployed.sealed, deployed.traces)
    with _infer(plain, "--max-tokens", "8", "--models", str(deployed.plain.parent)) as (child, traced):
        assert {} == traced.at_exit(deployed.traces.found)
    assert 0 == child.returncode


def _after_the_first_byte(child: subprocess.Popen[bytes] | forked.Forked, action: Callable[[], None]) -> None:
    def wait() -> None:
        assert child.stdout is not None
        child.stdout.read(1)
        action()

    threading.Thread(target=wait).start()


def test_an_answer_from_begin_to_end(deployed: Deployment) -> None:
    """`appliance infer` leaves neither keys nor weights, in an interpreter that was started for it."""
    with _infer(deployed, "--max-tokens", "8", fresh=True) as (child, traced):
        assert {} == traced.at_exit(deployed.traces.found)
    assert 0 == child.returncode


@_ways("number", [(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGHUP,)], resident=True)
def test_a_signal_in_the_middle_of_an_answer(number: signal.Signals, deployed: Deployment) -> None:
    """Whoever asks it to end, politely, gets a wiped process."""
    with _infer(deployed, "--max-tokens", "400") as (child, traced):
        _after_the_first_byte(child, lambda: child.send_signal(number))
        assert {} == traced.at_exit(deployed.traces.found)
    assert 128 + number == child.returncode


@pytest.mark.parametrize("deployed", [
    pytest.param("false", id="resident"), pytest.param("true", id="streamed", marks=pytest.mark.soak)], indirect=True)
def test_several_signals_at_once(deployed: Deployment) -> None:
    """One decides (systemd may send SIGHUP right behind SIGTERM, and people press Ctrl-C again): the others do not
    interrupt what it began."""
    def send(child: subprocess.Popen[bytes] | forked.Forked) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(child.pid, number)  # `send_signal` would wait for the child, in the place of who traces it

    with _infer(deployed, "--max-tokens", "400") as (child, traced):
        _after_the_first_byte(child, lambda: send(child))
        assert {} == traced.at_exit(deployed.traces.found)
        assert child.stderr is not None
        assert b"" == child.stderr.read()
    assert child.returncode - 128 in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("deployed", ["true"], indirect=True, ids=["streamed"])
@pytest.mark.parametrize("verb", ["seal", "resume", "unseal", "verify"])
def test_tools_leave_no_key(verb: str, deployed: Deployment, tmp_path: Path) -> None:
    """Those who seal, restore and check a model leave no key. (They do leave pieces of weights: who runs them has the
    file in the clear, or is about to.)"""
    key, made = deployed.folder / "key", tmp_path / "made"
    file, *more = {"seal": (deployed.plain, "-o", made), "resume": (deployed.plain, "-o", made, "--tile-size", "65536"),
                   "unseal": (deployed.sealed, "-o", made), "verify": (deployed.sealed,)}[verb]
    if verb == "resume":
        body = deployed.sealed.read_bytes()
        made.with_name(made.name + ".part").write_bytes(body[:len(body) // 2])
    master = bytes.fromhex(key.read_text())

    def look(process: int) -> dict[str, int]:
        sealed = made if verb == "seal" else deployed.sealed  # sealed anew: with another salt, so with other keys
        return Traces(key_traces(master, sealed), {}).found(process)

    verb = "seal" if verb == "resume" else verb
    command = [sys.executable, "-m", "appliance", "model", verb, file, "--key", key, *more]
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=unmeasured()) as child:
        try:
            assert {} == Traced(child).at_exit(look)
        finally:
            child.kill()
    assert 0 == child.returncode


def test_the_search_finds_what_is_there(deployed: Deployment) -> None:
    """A process that is killed cannot wipe anything: what it had is found at its exit. (The image's kernel zeroes
    memory that is given back: init_on_free.)"""
    with _infer(deployed, "--max-tokens", "400") as (child, traced):
        _after_the_first_byte(child, child.kill)
        found = traced.at_exit(deployed.traces.found)
    assert -signal.SIGKILL == child.returncode
    assert found["weights, kernel order"] > 100
    assert found["keys and values"] > 100
    assert ("tile key: key" in found) == ("true" in deployed.policy.read_text())


def test_an_altered_tile(deployed: Deployment) -> None:
    """An error in the middle of an answer (or at the boot of a resident model) wipes as the end does."""
    body = deployed.sealed.read_bytes()
    with deployed.sealed.open("r+b") as file:
        file.seek(len(body) - 70000)
        file.write(bytes(8))
    try:
        with _infer(deployed) as (child, traced):
            assert {} == traced.at_exit(deployed.traces.found)
            assert child.stderr is not None
            assert b"model-tampered" in child.stderr.read()
    finally:
        deployed.sealed.write_bytes(body)
    assert 2 == child.returncode


DEFECT = """
import sys
from appliance.engine.decode.generation import Generation
calls = []
advance = Generation.advance
def fail(self, logits, negative=None):
    calls.append(1)
    if len(calls) == 4:
        raise {}("a defect")
    return advance(self, logits, negative)
Generation.advance = fail
from appliance.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@_ways("error words code", [
    ("ZeroDivisionError", b"ZeroDivisionError: a defect", 1), ("MemoryError", b"error[memory]: no memory is left", 2)])
def test_a_defect(error: str, words: bytes, code: int, deployed: Deployment) -> None:
    """An exception that nobody expects ends the process by a traceback, and wipes as well; want of memory does it by an
    error that says so."""
    with _infer(deployed, "--max-tokens", "40", program=DEFECT.format(error)) as (child, traced):
        assert {} == traced.at_exit(deployed.traces.found)
        assert child.stderr is not None
        assert words in child.stderr.read()
    assert code == child.returncode


INTERRUPTED = """
import signal, sys
where, name, number = sys.argv[1].split(":")
calls = []
def watch(frame, event, value):
    if event == "return" and frame.f_code.co_name == name and frame.f_code.co_filename.endswith(where):
        calls.append(1)
        if len(calls) == int(number):
            sys.setprofile(None)
            signal.raise_signal(signal.SIGTERM)
sys.setprofile(watch)
from appliance.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@_ways("place", [(each,) for each in (
    "keys/providers.py:_read_private:1", "models/sources/resident.py:vector:2", "keys/document.py:accept:1",
    "keys/document.py:decode:1", "boot/oneshot.py:open_session:1", "keys/policy_keys.py:release:1",
    "models/sealed/header.py:keys:1", "engine/forward/program_tables.py:vector:2", "engine/engine.py:__init__:1",
    "models/sealed/reader.py:open_sealed:1", "boot/running/load.py:_start:1", "engine/engine.py:acquire:1")])
def test_a_signal_in_the_moment_of_a_handover(place: str, deployed: Deployment) -> None:
    """SIGTERM just as a function hands a key, or what holds keys and weights, to the one who is to wipe it."""
    with _infer(deployed, "--max-tokens", "4", program=INTERRUPTED, before=[place]) as (child, traced):
        assert {} == traced.at_exit(deployed.traces.found)
    assert 128 + signal.SIGTERM == child.returncode


def _wiped_before_it_serves(program: str, word: str, deployed: Deployment) -> tuple[int, bytes]:
    """Exit code and standard error of a `serve` that `program` ends; it leaves nothing in memory."""
    words = [word, "serve", str(deployed.policy), "--listen-port", "0", "--models", str(deployed.folder)]
    with forked.piped(words, unmeasured(), program) as child:
        try:
            assert {} == Traced(child).at_exit(deployed.traces.found)
            assert child.stderr is not None
            assert child.returncode is not None
            return child.returncode, child.stderr.read()
        finally:
            child.kill()


@_ways("place", [(each,) for each in (
    "boot/sequence.py:prepare:1", "engine/scheduler.py:__init__:1", "service/parts/wiring.py:assemble:1",
    "http/loop.py:start_threads:1")])
def test_a_signal_while_the_service_is_made(place: str, deployed: Deployment) -> None:
    """SIGTERM when engines have their schedulers, and nobody was told yet to close these."""
    assert 128 + signal.SIGTERM == _wiped_before_it_serves(INTERRUPTED, place, deployed)[0]


NO_SERVICE = """
import sys, threading
from appliance.service.parts import wiring
def fail(*words):
    raise RuntimeError("can't start new thread" if sys.argv[1] == "no thread" else "broken")
if sys.argv[1] == "no thread":
    start = threading.Thread.start
    threading.Thread.start = lambda thread: fail() if thread.name == "engine" else start(thread)
else:
    wiring.Evidences = fail
from appliance.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@_ways("why error", [
    ("no thread", b"error[threads]: boot stopped at step service: no thread can be started"),
    ("a defect", b"error[boot-internal]: boot stopped at step service: RuntimeError")])
def test_a_service_that_cannot_be_made(why: str, error: bytes, deployed: Deployment) -> None:
    """An engine whose scheduler cannot start, or has when something else fails, is wiped; the first error is told."""
    code, said = _wiped_before_it_serves(NO_SERVICE, why, deployed)
    assert error in said
    assert 2 == code


@pytest.fixture
def served(deployed: Deployment) -> Iterator[tuple[server.Server, Traced]]:
    """`appliance serve`, traced since it listens."""
    running = server.Server(deployed.policy, [deployed.sealed], measured=False).wait_ready()
    try:
        yield running, Traced(running.process)
    finally:
        running.process.kill()
        running.process.wait()


def _ask(running: server.Server, tokens: int) -> None:
    with running.http() as http:
        http.post("/v1/completions", json={"model": "tiny", "prompt": [1, 5, 9], "max_tokens": tokens, "seed": 1})


@_ways("busy", [(True,), (False,)], resident=True)
def test_the_service_drained(busy: bool, deployed: Deployment, served: tuple[server.Server, Traced]) -> None:
    """SIGTERM to `appliance serve`, after an answer or within one."""
    running, traced = served
    _ask(running, 4)
    if busy:
        asking = threading.Thread(target=_ask, args=(running, 300))
        asking.start()
        time.sleep(0.1)
    running.process.send_signal(signal.SIGTERM)
    assert {} == traced.at_exit(deployed.traces.found)
    assert 0 == running.process.returncode
    if busy:
        asking.join()


@_ways("number", [(signal.SIGINT,), (signal.SIGTERM,), (signal.SIGHUP,)])
def test_signals_while_a_drained_service_ends(number: signal.Signals, deployed: Deployment,
                                              served: tuple[server.Server, Traced]) -> None:
    """They come until it is gone, and neither keep it from wiping nor change how it ended."""
    running, traced = served
    _ask(running, 4)
    over = threading.Event()

    def more() -> None:
        while not over.wait(0.02):
            os.kill(running.process.pid, number)  # not `send_signal`, which takes the exit code from the tracer

    sending = threading.Thread(target=more, daemon=True)
    running.process.send_signal(signal.SIGTERM)
    sending.start()
    try:
        assert {} == traced.at_exit(deployed.traces.found)
    finally:
        over.set()
        sending.join()
    assert 0 == running.process.returncode
    assert '"error"' not in running.text("stderr")


@pytest.mark.slow
def test_the_demo_model(tmp_path: Path) -> None:
    """A real model, served in both ways, asked, and stopped."""
    demo = _deploy(tmp_path, demo_model(), "true", step=4096)
    for way in WAYS:
        text = demo.policy.read_text()
        demo.policy.write_text(text.replace("streaming_decrypt = true", f"streaming_decrypt = {way}"))
        running = server.Server(demo.policy, [demo.sealed], measured=False).wait_ready()
        try:
            traced = Traced(running.process)
            _ask(running, 8)
            running.process.send_signal(signal.SIGTERM)
            assert {} == traced.at_exit(demo.traces.found)
        finally:
            running.process.kill()
            running.process.wait()
