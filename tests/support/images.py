"""Images for tests: built once a session from the machine's mirrors, kept by content between sessions."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.attestation.measured.first import Golden
from appliance.imaging import build
from appliance.imaging.predict import golden as predict_golden
from appliance.imaging.qemu import run as boot
from appliance.imaging.recipe import recipe
from appliance.imaging.recipe.stages import Steps
from appliance.policy import load
from appliance.sealing import sealing
from appliance.signed import desk
from tests.support import libraries, require, server
from tests.support.environment import children_unmeasured
from tests.support.require import absent

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo.hcl"
MODELS = ROOT / "build" / "models"
TARGETS = ("avx2",)  # what emulated guests run; the others add nothing but time
PROCESSOR_SECONDS = 400  # of an emulator: some ten times what the longest boot takes
POLICY = """
appliance {{
  name   = "{name}"
  schema = 1
}}
tee {{ platforms = ["tpm"] }}
model "tiny" {{
  file                   = "tiny.sealed"
  sha256                 = "{sha256}"
  sealed_header_sha256   = "{header}"
  chat_template_fallback = "chatml"
  key {{
    {key}
  }}
}}
limits {{ first_token_timeout = "{patience}" }}
tenants {{
  authority = "ed25519:{authority}"
  list      = "tenants.json"
}}
service {{
  listen "api" {{
    kind    = "ra-tls"
    address = "0.0.0.0"
    port    = 8443
  }}
  {listener}
}}
"""


def need(*tools: str) -> None:
    """The tools must be installed, or the test skips (fails where all must run)."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        absent(f"{', '.join(missing)}: see .ci/run for the Debian packages")


def make(output: Path, *, policy: Path | None = DEMO, folder: Path = recipe.FOLDER, **more: Any) -> Path:
    """Build an image with kernels for emulated guests only, which other tests may be building."""
    require.guests()
    with children_unmeasured():
        for target in TARGETS:
            libraries.library(target)
        build.build(build.Options(recipe=recipe.load(folder), output=output, policy=load(policy) if policy else None,
                                  targets=TARGETS, **more), Steps())
    return output


_golden = list[Golden]()


def golden(image: Path) -> Golden:
    """PCR 0 and 7 of a machine of the usual shape, which are the same for every image: one is started for all."""
    require.guests()
    if not _golden:
        _golden.append(predict_golden.started("here", boot.Options(image, accelerator="tcg", confidential="none")))
    return _golden[0]


@dataclass(frozen=True)
class Sealed:
    """A sealed model "tiny" and the tenants of a deployment, for a machine with a TPM."""

    name: str  # of the appliance
    sha256: bytes
    header_sha256: bytes
    authority: bytes  # public key of who signs tenants

    @classmethod
    def make(cls, name: str, plain: Path, models: Path, key: bytes) -> Sealed:
        """Seal `plain` into the folder `models`, beside a list with one tenant."""
        made = sealing.seal(plain, models / "tiny.sealed", key, tile_size=65536)
        authority = Ed25519PrivateKey.generate()
        tenant = {"name": "user", "role": "user", "models": ["tiny"], "api_key_sha256": [server.sha256(server.KEY)]}
        (models / "tenants.json").write_bytes(desk.sign_tenants(
            {"appliance": name, "version": 1, "tenants": [tenant]}, authority))
        return cls(name, made.sha256, made.header_sha256, authority.public_key().public_bytes_raw())

    def policy(self, key: str, *, patience: str = "10m", listener: str = "") -> str:
        """The text of a policy; `key` stands in the model's key block."""
        return POLICY.format(name=self.name, sha256=self.sha256.hex(), header=self.header_sha256.hex(),
                             authority=self.authority.hex(), key=key, patience=patience, listener=listener)


class Guest:
    """A machine that ran, or runs in a thread of its own; `console` is what it wrote."""

    def __init__(self, options: boot.Options) -> None:
        self.options, self.lines = options, list[str]()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def console(self) -> str:
        """Everything so far."""
        return "".join(self.lines)

    def run(self, until: Callable[[str], bool] = lambda _: False, *, seconds: int = PROCESSOR_SECONDS) -> Guest:
        """Run until it is off, a line satisfies `until`, or the emulator has had `seconds` of a processor, which are
        no fewer where other work goes on."""
        require.guests()
        with boot.machine(self.options) as command, tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(["prlimit", f"--cpu={seconds}", *command], stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=errors)
            self._process = process
            assert process.stdout is not None
            for line in process.stdout:
                self.lines.append(line.decode(errors="replace").replace("\r\n", "\n"))
                if until(self.lines[-1]):
                    break
            process.terminate()
            process.wait()
            errors.seek(0)
            self.lines.append(errors.read().decode(errors="replace"))
        return self

    def stop(self) -> None:
        """Switch it off, from a thread that does not run it."""
        if self._process is not None:
            self._process.terminate()


def direct(image: Path, **more: Any) -> Guest:
    """A guest without firmware, emulated: the fastest way to the kernel."""
    return Guest(boot.Options(image=image, accelerator="tcg", direct=True, confidential="none",
                              **{"port": None, **more}))


def free_port() -> int:
    """A TCP port of the loopback that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def serving(guest: Guest) -> Iterator[Guest]:
    """A guest that serves, or has ended; it is switched off at once afterwards, as by a power cut."""
    ready = threading.Event()

    def seen(line: str) -> bool:
        if line.startswith("ready on"):
            ready.set()
        return False

    thread = threading.Thread(target=lambda: (guest.run(seen), ready.set()))
    thread.start()
    try:
        ready.wait()
        yield guest
    finally:
        guest.stop()
        thread.join()
