"""An appliance as a process of its own: a policy for some tenants, and what the process uses."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

APPLIANCE, MODEL = "bench", "model"
START_SECONDS = 300.0
_PROTECTED = "wf"  # in the kernel's words: wiped on fork, which `secure.locked` asks for
_POLICY = """appliance {{
  name   = "{appliance}"
  schema = 2
}}
tee {{ platforms = ["simulated"] }}
model "{name}" {{
  file   = {file}
  sha256 = "{digest}"
  chat_template_fallback = "chatml"
{model}
}}
privacy {{
{privacy}
}}
limits {{
{limits}
}}
tenants {{
{tenants}
}}
service {{
  operator_may_set = ["listen_port", "log_sink"]
  listen "api" {{
    kind = "tcp"
    port = 8080
  }}
}}
{more}
"""
_TENANT = """  tenant "{name}" {{
    role           = "{role}"
    models         = ["{model}"]
    api_key_sha256 = ["{digest}"]
{more}
  }}"""

LIST = "tenants.json"
_LIST = """  authority = "{authority}"
  list      = "{file}\""""


def key_of(tenant: str) -> str:
    """The API key of a tenant."""
    return f"sk-bench-{tenant}"


@dataclass(frozen=True)
class Deployment:
    """A policy: the inside of each block. `tenants`: what each has besides."""

    model: Path
    tenants: Mapping[str, str]
    model_block: str = ""
    privacy: str = ""
    limits: str = ""
    roles: Mapping[str, str] = field(default_factory=dict)
    more: str = ""  # further blocks
    authority: str = ""  # the key that signed `listed`, which then stands for `tenants`
    listed: bytes = b""

    def text(self) -> str:
        """The policy."""
        tenants = _LIST.format(authority=self.authority, file=LIST) if self.authority else "\n".join(_TENANT.format(
            name=name, role=self.roles.get(name, "user"), model=MODEL, more=more,
            digest=hashlib.sha256(key_of(name).encode()).hexdigest()) for name, more in self.tenants.items())
        return _POLICY.format(
            appliance=APPLIANCE, name=MODEL, file=json.dumps(self.model.name),
            digest=hashlib.sha256(self.model.read_bytes()).hexdigest(),
            model=self.model_block, privacy=self.privacy, limits=self.limits, tenants=tenants,
            more=self.more)


@dataclass(frozen=True)
class Memory:
    """Bytes of a process. `protected`: keys and values, activations and weights, whose room is made
    at boot, and held from the first touch of a page on."""

    protected: int
    other: int


class Served:
    """A process that serves a deployment, as a context."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.port = 0

    def __enter__(self) -> Served:
        """Wait until it listens; SystemExit with its words where it does not."""
        self._folder = tempfile.TemporaryDirectory(prefix="bench-tenants-")
        folder = Path(self._folder.name)
        (folder / "policy.hcl").write_text(self._deployment.text())
        if self._deployment.authority:
            (folder / LIST).write_bytes(self._deployment.listed)
        with (folder / "stderr").open("wb") as err, (folder / "stdout").open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "appliance", "serve", str(folder / "policy.hcl"), "--json", "--listen-port", "0",
                 "--log", str(folder / "audit.jsonl"), "--models", str(self._deployment.model.parent)],
                stdout=out, stderr=err)
        try:
            self._wait(folder / "stderr")
        except BaseException:
            self.close()
            raise
        return self

    def _wait(self, words: Path) -> None:
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            lines = [line for line in words.read_text().splitlines() if '"event": "ready"' in line]
            if lines:
                self.port = int(str(json.loads(lines[0])["listening"][0]).rpartition(":")[2])
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit(f"the appliance did not start:\n{words.read_text()}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def end(self) -> int:
        """End the process in order; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(120)

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def log(self) -> Path:
        """The audit log."""
        return Path(self._folder.name) / "audit.jsonl"

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def memory(self) -> Memory:
        """The memory that the process holds now."""
        found = {True: 0, False: 0}
        nbytes = 0
        for line in Path(f"/proc/{self._process.pid}/smaps").read_text().splitlines():
            if line.startswith("Rss:"):
                nbytes = int(line.split()[1]) << 10
            elif line.startswith("VmFlags:"):
                found[_PROTECTED in line.split()] += nbytes
        return Memory(found[True], found[False])

    @property
    def processor_seconds(self) -> float:
        """Seconds of a processor that it has used."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
