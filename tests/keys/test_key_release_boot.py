"""A sealed model, its key at a broker, a whole boot and an answer; and every way in which there is no boot."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.sealing import sealing
from tests.support import forked, memory, server
from tests.support.brokers import Authority, reference
from tests.support.environment import unmeasured
from tests.support.require import absent

KEY = secrets.token_bytes(32)
CONFIG = """
port = {port}
certificate = "server.pem"
private_key = "server.key"
log = "broker.jsonl"
[[release]]
resource = "default/key/{released}"
key_file = "{key_file}"
version = 2
policy = "{policy}"
platforms = ["simulated"]
proves_nothing = true
"""


def _free_port() -> int:
    """A port below those that connections get by themselves: none takes it before the broker does."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Deployment:
    """A sealed model, a broker that listens for it, and policies that name the broker."""

    def __init__(self, folder: Path, plain: Path) -> None:
        self.folder, self.sealed = folder, folder / "tiny.sealed"
        self.made = sealing.seal(plain, self.sealed, KEY, tile_size=65536)
        Authority().write(folder)
        for name, key in (("tiny.key", KEY), ("other.key", KEY[::-1])):
            (folder / name).touch(0o600)
            (folder / name).write_text(key.hex())

    def policy(self, url: str, *, version: int = 2, name: str = "policy.hcl", limits: str = "") -> Path:
        """A policy whose model's key is at the broker."""
        block = (f'sealed_header_sha256 = "{self.made.header_sha256.hex()}"\n'
                 f'key {{\n provider = "broker"\n version = {version}\n broker {{\n url = "{url}"\n'
                 f' root_sha256 = "{Authority().pin}"\n resource = "default/key/tiny"\n }}\n }}')
        path = server.write_policy(self.folder, {"tiny": self.sealed}, model=block, limits=limits, schema=2)
        text = path.read_text().replace(hashlib.sha256(self.sealed.read_bytes()).hexdigest(), self.made.sha256.hex())
        path.unlink()
        (self.folder / name).write_text(text)
        return self.folder / name

    @contextlib.contextmanager
    def broker(self, key_file: str = "tiny.key", released: str = "tiny", **policy: Any) -> Iterator[str]:
        """The broker by a rule for the policy with these options, which needs its URL: the port is chosen first."""
        port = _free_port()
        url = f"https://127.0.0.1:{port}"
        self.policy(url, **{"name": "released.hcl", **policy})
        config = self.folder / "broker.toml"
        config.write_text(CONFIG.format(policy="released.hcl", key_file=key_file, port=port, released=released))
        with reference(config):
            yield url


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Deployment:
    """One for all: nothing in it is spoilt."""
    return Deployment(tmp_path_factory.mktemp("release"), tiny_model)


@pytest.mark.slow
def test_the_model_unlocks_and_serves(deployment: Deployment) -> None:
    """The right image and policy: the broker releases the key, the model answers, and the key is nowhere any more."""
    with deployment.broker() as url:
        running = server.Server(deployment.policy(url), [], fresh=True).wait_ready()
    try:
        answer = running.client().chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "a"}], max_tokens=4)
        assert answer.usage is not None
        assert 4 >= answer.usage.completion_tokens > 0
        pid = running.process.pid
        children = (Path("/proc") / str(pid) / "task" / str(pid) / "children").read_text()
        assert "" == children.strip(), "the key release process has ended"
        for name in ("environ", "cmdline"):
            assert KEY.hex().encode() not in (Path("/proc") / str(pid) / name).read_bytes()
        written = running.text("stdout") + running.text("stderr") + running.text("audit.jsonl")
        assert KEY.hex() not in written
        [step] = [record for record in running.audit("boot.step") if record["step"] == "key-release"]
        assert "passed" == step["verdict"]
        _nowhere_in_memory(pid)
    finally:
        running.stop()


def _nowhere_in_memory(pid: int) -> None:
    """Neither the key nor its text stands in the memory of the process; what it must hold does, so looking works."""
    try:
        assert memory.holds(pid, b"default/key/tiny"), "the policy is in memory, so that looking works"
        assert [] == memory.holds(pid, KEY)
        assert [] == memory.holds(pid, KEY.hex().encode())
    except PermissionError:
        absent("reading another process's memory needs root")


# what is wrong, the policy that the broker knows, the policy that boots, the broker's key; step, code, words
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str, str, str, str]] = [
    ("another policy", {}, {"limits": "prompt_tokens = 77"}, "tiny.key", "key-release", "key-denied",
     "refuses to release default/key/tiny"),
    ("no rule", {"released": "another"}, {}, "tiny.key", "key-release", "key-denied",
     "no rule of this broker releases it to this image and policy"),
    ("another version", {"version": 3}, {"version": 3}, "tiny.key", "key-release", "key-version",
     "the policy accepts version 3 alone"),
    ("another key", {}, {}, "other.key", "models", "model-key", "not the key that the model was sealed under"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "known", "booted", "key_file", "step", "code", "words"), REFUSED,
                         ids=[case[0] for case in REFUSED])
def test_no_key_no_boot(deployment: Deployment, what: str, known: dict[str, Any], booted: dict[str, Any],
                        key_file: str, step: str, code: str, words: str) -> None:
    """A policy that the broker does not know, no rule at all, a version that is not the one, another model's key: one
    diagnostic, nothing served, no key anywhere. The broker's log says that there is no rule, or what failed."""
    log = deployment.folder / f"{what}.jsonl"
    with deployment.broker(key_file, **known) as url:
        done = forked.run(["serve", str(deployment.policy(url, name="booted.hcl", **booted)), "--log", str(log)],
                          unmeasured())
    assert 2 == done.returncode, done.stderr
    assert f"error[{code}]: boot stopped at step {step}: model tiny: " in done.stderr
    assert words in done.stderr
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(step, code)] == [(each["step"], each["code"]) for each in records if each["event"] == "boot.failed"]
    assert [] == [each for each in records if each["event"] == "boot.ready"]
    assert KEY.hex() not in done.stderr + done.stdout + log.read_text()
    told = (deployment.folder / "broker.jsonl").read_text().splitlines()[-1]
    assert ("no rule releases 'default/key/tiny'" in told) == (what == "no rule"), told
