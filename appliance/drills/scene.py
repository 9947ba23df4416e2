"""The scene of a rehearsal: a folder, the commands that are run in it, and what they must say."""

from __future__ import annotations

import http.client
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from appliance.errors import ApplianceError, PolicyError

_START = "import sys; from appliance.cli.main import main; sys.exit(main(sys.argv[1:]))"
_POLICY = """\
appliance {{
  name   = "drill"
  schema = 2
}}

tee {{
  platforms = ["simulated"]
}}

model "m" {{
  file   = "{file}"
  sha256 = "{sha256}"
}}

tenants {{
  authority   = "{authority}"
  list        = "tenants.json"
  min_version = {version}
}}

service {{
  operator_may_set = ["listen_port", "log_sink"]

  listen "api" {{
    kind = "tcp"
    port = 8080
  }}
}}
{more}"""


# Words and the folder to run them in, to exit code, standard output and standard error.
Runner = Callable[[Sequence[str], Path], tuple[int, str, str]]


class DrillError(ApplianceError):
    """Something did not refuse, or refused, against what the guide says."""

    code = "drill-failed"


@dataclass(frozen=True)
class Materials:
    """The files of a deployment that a rehearsal needs. `options`: those of `appliance verify`."""

    model: Path | None = None
    policy: Path | None = None
    evidence: Path | None = None
    options: tuple[str, ...] = ()


@dataclass
class Scene:
    """One rehearsal. `tell` gets each line that is to be read; `runner` runs a command in a process
    of its own."""

    folder: Path
    given: Materials
    tell: Callable[[str], None]
    runner: Runner
    commands: list[list[str]] = field(default_factory=list)

    def step(self, words: str) -> None:
        """Say what comes."""
        self.tell(f"\n{words}")

    def run(self, *words: str, code: int = 0, says: str = "") -> str:
        """Run a command, and return its output. Raises DrillError unless it ends with `code` and
        says `says`."""
        self.tell(f"  $ appliance {shlex.join(words)}")
        self.commands.append(list(words))
        found, output, errors = self.runner(words, self.folder)
        told = output + errors
        if found != code or says not in told:
            raise DrillError(f"appliance {shlex.join(words)}: exit code {found}, expected {code}"
                             + (f" and {says!r}" if says else "") + f"; it said: {told[-500:].strip()}",
                             hint="the guide of this drill says what should refuse; report it if yours does not")
        if code:
            self.tell(f"    exit code {code}: {_first(told, says)}")
        return output

    def write(self, name: str, text: str) -> Path:
        """Write a file of the scene."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def key(self, name: str) -> str:
        """Make an Ed25519 key as a file, and return its public half as policies name it."""
        made = Ed25519PrivateKey.generate()
        path = self.folder / name
        path.touch(0o600)
        path.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return f"ed25519:{made.public_key().public_bytes_raw().hex()}"

    def policy(self, name: str, authority: str, *, file: str = "m.gguf", sha256: str = "01" * 32, version: int = 1,
               more: str = "") -> Path:
        """Write a policy for the simulated platform."""
        return self.write(name, _POLICY.format(file=file, sha256=sha256, authority=authority, version=version,
                                               more=more))

    def list(self, name: str, version: int, tenants: dict[str, tuple[str, str]], key: str) -> None:
        """Sign a list of tenants, each with its role and the SHA-256 of its key, as `name`."""
        rows = [{"name": tenant, "role": role, "models": ["m"], "api_key_sha256": [digest]}
                for tenant, (role, digest) in sorted(tenants.items())]
        plain = f"plain-{name}"
        self.write(plain, json.dumps({"appliance": "drill", "version": version, "tenants": rows}))
        self.run("tenants", plain, "--key", key, "-o", name)

    def needs(self, what: str, value: Path | None, option: str) -> Path:
        """A file that this rehearsal needs. Raises PolicyError without it."""
        if value is None:
            raise PolicyError(f"this drill needs {what}", code="drill-needs", hint=f"give it: {option} FILE")
        return value.resolve()

    @contextmanager
    def serving(self, policy: Path, models: Path) -> Iterator[str]:
        """An appliance that serves by a policy, and its URL."""
        words = ["serve", policy.name, "--models", str(models), "--listen-port", "0", "--json", "--log", "audit.jsonl"]
        self.tell(f"  $ appliance {shlex.join(words)} &")
        log = self.folder / "serve.jsonl"
        with log.open("wb") as output, subprocess.Popen(  # noqa: S603 - our own interpreter and words
                [sys.executable, "-c", _START, *words], cwd=self.folder, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE) as process:
            try:
                yield _ready(process, output.write)
            finally:
                process.terminate()

    def status(self, url: str, key: str) -> int:
        """The status of an answer to somebody with an API key."""
        place = urlsplit(url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
        status = connection.getresponse().status
        connection.close()
        self.tell(f"  GET /v1/models with the key {key[:8]}…: {status}")
        return status

    def expect(self, found: object, wanted: object, what: str) -> None:
        """Raise DrillError unless something is as the guide says."""
        if found != wanted:
            raise DrillError(f"{what}: {found}, expected {wanted}")


def _ready(process: subprocess.Popen[bytes], keep: Callable[[bytes], object]) -> str:
    """Return the URL of a server that has begun to listen."""
    said = b""
    for line in process.stderr or ():
        keep(line)
        said = line
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") == "ready":
            return str(event["listening"][0])
    raise DrillError(f"the appliance did not boot: {said[-300:].decode(errors='replace').strip()}")


def _first(text: str, says: str) -> str:
    """Return the line that says why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if says and says in line), lines[0] if lines else "")[:200]
