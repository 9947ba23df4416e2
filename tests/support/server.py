"""A real server process, booted by a policy that a test writes, on a free port of the loopback."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import resource
import signal
import ssl
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from tests.support import forked, waiting, written
from tests.support.environment import unmeasured

if TYPE_CHECKING:
    import openai

KEY, OTHER_KEY, AUDITOR_KEY = "sk-test-user", "sk-test-other", "sk-test-auditor"
UNISOLATED = "import sys; from appliance.cli.main import main; sys.exit(main(sys.argv[1:]))"

POLICY = """
appliance {{
  name   = "test"
  schema = {schema}
}}
tee {{ platforms = ["simulated"] }}
{models}
privacy {{ {privacy} }}
limits {{ {limits} }}
tenants {{
  tenant "user" {{
    models         = {names}
    api_key_sha256 = ["{key}"]
  }}
  tenant "other" {{
    role           = "admin"
    models         = {names}
    api_key_sha256 = ["{other}"]
  }}
  tenant "auditor" {{
    role           = "auditor"
    api_key_sha256 = ["{auditor}"]
  }}
}}
service {{
  operator_may_set = ["listen_port", "log_sink"]
  {listeners}
  {service}
}}
{audit}
"""

MODEL = """
model "{name}" {{
  file   = "{file}"
  sha256 = "{sha256}"
  chat_template_fallback = "chatml"
  {more}
}}
"""
TCP = """listen "api" {
    kind = "tcp"
    port = 8080
  }"""


def sha256(data: str | bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


@functools.cache
def no_roots() -> ssl.SSLContext:
    """For clients over plain HTTP. Each would else load all roots that the world trusts: 20 ms."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def write_policy(folder: Path, models: dict[str, Path], *, privacy: str = "", limits: str = "", service: str = "",
                 listeners: str = TCP, model: str = "", schema: int = 1, audit: str = "") -> Path:
    """A policy file in `folder` for models (by name) in other folders; each argument is the inside of a block."""
    blocks = "".join(MODEL.format(name=name, file=path.name, sha256=sha256(path.read_bytes()), more=model)
                     for name, path in models.items())
    path = folder / "policy.hcl"
    path.write_text(POLICY.format(
        schema=schema, models=blocks, names=json.dumps(list(models)), privacy=privacy, limits=limits, service=service,
        listeners=listeners, audit=f"audit {{ {audit} }}" if audit else "", key=sha256(KEY), other=sha256(OTHER_KEY),
        auditor=sha256(AUDITOR_KEY)))
    return path


class Server:
    """One process. Its output is in `folder`: `stdout`, `stderr` and `audit.jsonl`. Where the test
    run measures coverage, `measured` keeps it out of its sandbox."""

    def __init__(self, policy: Path, models: list[Path], *, environment: dict[str, str] | None = None,
                 audit_bytes: int | None = None, measured: bool = True, log: Path | None = None,
                 isolated: bool = True, fresh: bool = False) -> None:
        """Without `isolated` it keeps the whole `environment`, libraries to load first among it. `audit_bytes` bounds
        every file that it writes. `log`: the audit log's file, `audit.jsonl` by default; the name "stdout" leaves it
        on standard output. `fresh`: an interpreter of its own, from `python -m appliance` on; see `forked`."""
        self.folder, self.policy = policy.parent, policy
        folders = [word for path in models for word in ("--models", str(path.parent))]
        environment = {**(os.environ if measured else unmeasured()), **(environment or {})}
        if audit_bytes is not None:  # it bounds the file of measured coverage as well
            environment = {name: value for name, value in environment.items() if not name.startswith("COVERAGE")}
        words = ["serve", str(policy), "--json", "--listen-port", "0",
                 *([] if log == Path("stdout") else ["--log", str(log or self.folder / "audit.jsonl")]), *folders]
        fresh = fresh or not isolated or any(name.startswith("COVERAGE_") for name in environment)
        with (self.folder / "stdout").open("wb") as out, (self.folder / "stderr").open("wb") as err:
            self.process: subprocess.Popen[bytes] | forked.Forked
            if fresh:
                limit = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (audit_bytes, audit_bytes))
                         ) if audit_bytes else None
                self.process = subprocess.Popen(
                    [sys.executable, *(["-m", "appliance"] if isolated else ["-c", UNISOLATED]), *words],
                    stdout=out, stderr=err, env=environment, preexec_fn=limit)
            else:
                self.process = forked.start(words, environment, out=out.fileno(), err=err.fileno(),
                                            file_size=audit_bytes)
        self.ready: dict[str, Any] = {}

    def wait_ready(self) -> Server:
        """Wait until the server listens; fails with what it wrote when it ends before."""
        def ended_or_ready() -> bool:
            for line in written.lines(self.folder / "stderr"):
                if '"event": "ready"' in line:
                    self.ready = json.loads(line)
            return bool(self.ready) or self.process.poll() is not None

        try:
            waiting.until(ended_or_ready, "server that is ready", lambda: waiting.processor_time(self.process.pid))
            assert self.ready, f"the server did not start:\n{self.text('stderr')}"
        except AssertionError:
            self.stop()
            raise
        return self

    @property
    def url(self) -> str:
        """The address on which it listens."""
        return str(self.ready["listening"][0])

    def client(self, key: str = KEY, **more: Any) -> openai.OpenAI:
        """The official client, without its retries."""
        import openai  # takes a second, which most servers' tests do not need

        class Transport(openai.DefaultHttpxClient):
            def __del__(self) -> None:
                self.close()

        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=600, **{
            "http_client": Transport(verify=no_roots()), **more})

    def http(self, key: str | None = KEY) -> httpx.Client:
        """A plain HTTP client."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=600, verify=no_roots())

    def text(self, name: str) -> str:
        """The text that it has written to a file so far."""
        path = self.folder / name
        return path.read_text(errors="replace") if path.exists() else ""

    def audit(self, event: str | None = None) -> list[dict[str, Any]]:
        """The audit log's records so far, or those of one event."""
        records = written.records(self.folder / "audit.jsonl")
        return [record for record in records if event in (None, record["event"])]

    def audited(self, request_id: str) -> dict[str, Any]:
        """The record of one request, which is written before its answer ends."""
        return written.audited(self.folder / "audit.jsonl", request_id)

    def stop(self, *, number: int = signal.SIGTERM, seconds: float = waiting.STALL_SECONDS) -> int:
        """Signal the process and wait for its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
