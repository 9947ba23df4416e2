"""A disk that hangs: reads of a model's file, or writes of the audit log, that never return, in a service that is told
to end."""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from appliance.boot.planning import budget
from appliance.models.catalogue import Catalogue
from appliance.policy import load
from appliance.sealing import sealing
from tests.support import server, waiting
from tests.support.engines import kernels
from tests.support.environment import unmeasured
from tests.support.exits import Traced
from tests.support.require import absent
from tests.support.traces import Traces, key_traces, weight_traces

SHIM = Path(__file__).parents[1] / "support" / "hanging.c"


@dataclass(frozen=True)
class Deployment:
    """A service whose sealed model is read from the disk in each pass, and how to make that hang."""

    running: server.Server
    traces: Traces
    switch: Path

    def hang(self, at: int = 0) -> None:
        """From now on no read returns (0), or no write of the log (2)."""
        with self.switch.open("r+b") as file:
            file.seek(at)
            file.write(b"\1")

    @property
    def hanging(self) -> bool:
        """Whether some thread is in such a read."""
        return self.switch.read_bytes()[1] != 0

    def wait_until_hanging(self) -> None:
        """Until some thread is."""
        waiting.until(lambda: self.hanging, "thread that hangs")


def _hanging(folder: Path, switch: Path) -> dict[str, str]:
    """The environment of a process whose reads hang once `switch` says so."""
    compiler = shutil.which("cc") or absent("a C compiler (gcc)")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "hanging.so", SHIM, "-ldl"], check=True)
    return {**unmeasured(), "LD_PRELOAD": str(folder / "hanging.so"), "HANG": str(switch)}


@pytest.fixture
def deployed(tmp_path: Path, tiny_model: Path) -> Iterator[Deployment]:
    """Its records find no place in memory."""
    master, sealed, switch = secrets.token_bytes(32), tmp_path / "m.sealed", tmp_path / "switch"
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_text(master.hex())
    made = sealing.seal(tiny_model, sealed, master, tile_size=65536)
    policy = server.write_policy(tmp_path, {"tiny": sealed}, service='drain_timeout = "1s"', model=(
        f'sealed_header_sha256 = "{made.header_sha256.hex()}"\nstreaming_decrypt = true\n'
        f'key {{\n provider = "file"\n path = "{tmp_path / "key"}"\n }}'))
    text = policy.read_text().replace(server.sha256(sealed.read_bytes()), made.sha256.hex())
    policy.write_text(text)
    least = budget.divide(load(policy).policy, Catalogue({"tiny": sealed}), 1,
                          compiles=kernels().origin != "ahead").nbytes
    policy.write_text(text.replace('tee { platforms = ["simulated"] }', 'tee {\n platforms = ["simulated"]\n '
                                   f'memory_budget = "{(least >> 20) + 1}MiB"\n}}'))
    switch.write_bytes(bytes(4096))
    running = server.Server(policy, [sealed], measured=False, isolated=False,
                            environment=_hanging(tmp_path, switch)).wait_ready()
    try:
        yield Deployment(running, Traces(key_traces(master, sealed), weight_traces(tiny_model, sealed, master)), switch)
    finally:
        running.process.kill()
        running.process.wait()


def _ask(running: server.Server) -> int:
    with running.http() as http:
        return http.post("/v1/completions", json={"model": "tiny", "prompt": [1, 5, 9], "max_tokens": 4}).status_code


def _ended(deployed: Deployment, at: int) -> tuple[list[int], float]:
    """Let something hang, and SIGTERM find it so: the answers' codes, and how many seconds the process took to end.
    When it did, keys, tiles, vectors and caches were wiped, and its exit code was 3."""
    running = deployed.running
    answers = [_ask(running)]
    traced = Traced(running.process)
    deployed.hang(at)

    def ask() -> None:
        with suppress(httpx.HTTPError):
            while not deployed.hanging:  # what was read ahead may do for an answer
                answers.append(_ask(running))

    asking = threading.Thread(target=ask)
    asking.start()
    deployed.wait_until_hanging()
    begun = time.monotonic()
    running.process.send_signal(signal.SIGTERM)
    took, found = traced.at_exit(lambda pid: (time.monotonic() - begun, deployed.traces.found(pid)))
    assert ({}, 3) == (found, running.process.returncode)
    asking.join()
    return answers, took


def test_the_service_ends_without_it(deployed: Deployment) -> None:
    """SIGTERM while a pass waits for a read: after the drain, and some seconds for the pass, the process ends; the
    audit log names the model."""
    running = deployed.running
    answers, took = _ended(deployed, 0)
    assert 10 < took < 20
    assert ["tiny"] == [record["model"] for record in running.audit("model.abandoned")]
    assert (503, {200}) == (answers.pop(), set(answers))  # who hung was told that the service ends
    assert [len(answers)] == [record["requests"] for record in running.audit("service.stopped")]
    assert 1 == len(running.audit("audit.closed"))


@pytest.mark.slow
def test_the_service_ends_without_its_log(deployed: Deployment) -> None:
    """SIGTERM while the event loop waits for a write of the audit log: after the drain's time, and that for a pass and
    for all else, the process ends, though no Python code of its main thread runs any more."""
    answers, took = _ended(deployed, 2)
    assert 21 < took < 30
    assert {200} == set(answers)
    assert [] == deployed.running.audit("service.draining")


UNUSED = """
import sys
import time
from pathlib import Path
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.decode.generation import GenerationRequest
from appliance.models.sealed.reader import open_sealed
from appliance.models.sources.streamed import StreamedSource

path, switch, key, header_sha256 = Path(sys.argv[1]), Path(sys.argv[2]), *map(bytes.fromhex, sys.argv[3:])
source = StreamedSource(open_sealed(path, key, header_sha256=header_sha256), drop=True, compiled=False)
with source, Engine.open(source, EngineOptions(threads=1)) as engine:
    print(len(list(engine.generate(GenerationRequest([1, 5, 9], max_tokens=1)))), flush=True)
    time.sleep(1)  # all is read ahead
    with switch.open("r+b") as file:
        file.write(b"\1")
    print(len(list(engine.generate(GenerationRequest([1, 5, 9], max_tokens=1)))), flush=True)
    while not switch.read_bytes()[1]:
        time.sleep(0.01)
print("ended")
"""


def test_a_model_is_closed_while_only_what_reads_ahead_waits(tmp_path: Path, tiny_model: Path) -> None:
    """Nobody uses the model, and reads ahead of the next pass do not return: closing it waits some seconds for them,
    and the process ends."""
    master, sealed, switch = secrets.token_bytes(32), tmp_path / "m.sealed", tmp_path / "switch"
    made = sealing.seal(tiny_model, sealed, master, tile_size=65536)
    switch.write_bytes(bytes(4096))
    found = subprocess.run(
        [sys.executable, "-c", UNUSED, sealed, switch, master.hex(), made.header_sha256.hex()], timeout=600,
        check=False, env=_hanging(tmp_path, switch), capture_output=True, text=True)
    assert (0, "1\n1\nended\n") == (found.returncode, found.stdout), found.stderr
