"""A policy as it is measured: its own blocks, but with known tenants' keys, and RA-TLS as the way
in."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from appliance.models.sealed import reader as sealed
from appliance.policy import Policy, load
from benchmarks import commandline, memory
from benchmarks.tenants.served import Deployment, key_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "privacy"
MODELS = Path(__file__).parents[2] / "build" / "models"
SETTINGS = ("strict", "balanced", "open")
NEIGHBOUR, WATCHER = "neighbour", "watcher"  # who may be busy, and who reads `/metrics`
_BLOCK = r"^{name} \{{\n.*?^\}}\n"
_TENANT = """  tenant "{name}" {{
    role           = "{role}"
    models         = ["{model}"]
    api_key_sha256 = ["{digest}"]
  }}
"""
_SERVICE = """service {
  operator_may_set = ["listen_port", "log_sink"]
  listen "api" {
    kind    = "ra-tls"
    address = "127.0.0.1"
    port    = 8443
  }
}
"""


def path_of(setting: str) -> Path:
    """Return the policy file of an example's name, or a file that is named."""
    return EXAMPLES / f"{setting}.hcl" if setting in SETTINGS else Path(setting)


def lane(number: int) -> str:
    """Return the tenant of a lane."""
    return f"lane{number}"


@dataclass(frozen=True)
class Measured(Deployment):
    """A policy file whose tenants are lanes, a neighbour and a watcher."""

    policy: Path = Path()
    key: Path | None = None  # of a sealed model
    mebibytes: int = 0  # of memory for the service with a sealed model, so that passes read it from the disk

    @property
    def loaded(self) -> Policy:
        """The policy as it is in its file."""
        return load(self.policy).policy

    def text(self) -> str:
        """Return the policy with its tenants and listeners replaced. ValueError for a policy that
        does not have these blocks at the top."""
        model = self.loaded.models[0].name
        tenants = "".join(_TENANT.format(
            name=name, model=model, role="admin" if name == WATCHER else "user", digest=_digest(key_of(name)))
            for name in self.tenants)
        text = self.policy.read_text()
        text = re.sub(r"^  file +=.*\n  sha256 +=.*\n", lambda _: self._pins(), text, count=1, flags=re.M)
        if self.mebibytes:
            text = text.replace("tee {\n", f'tee {{\n  memory_budget = "{self.mebibytes}MiB"\n', 1)
        for name, new in (("tenants", f"tenants {{\n{tenants}}}\n"), ("service", _SERVICE)):
            text, count = re.subn(_BLOCK.format(name=name), lambda _, new=new: new, text, flags=re.M | re.S)
            if count != 1:
                raise ValueError(f"{self.policy}: {count} blocks `{name}`, expected one at the start of a line")
        return text

    def _pins(self) -> str:
        """Return the lines of the model that is served."""
        lines = f'  file = {json.dumps(self.model.name)}\n  chat_template_fallback = "chatml"\n'
        if self.key is None:
            return lines + f'  sha256 = "{hashlib.sha256(self.model.read_bytes()).hexdigest()}"\n'
        header = sealed.structure(self.model)[0]
        return (lines + f'  sha256 = "{header.sha256.hex()}"\n  sealed_header_sha256 = "{header.digest.hex()}"\n'
                f'  streaming_decrypt = true\n  key {{\n    provider = "file"\n    path = "{self.key}"\n  }}\n')


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def measured(setting: str, lanes: int, *, model: str | None = None, work: Path = Path("build/bench"),
             mebibytes: int = 0) -> Measured:
    """Return a deployment with so many lanes. `model`: another one than the policy's. `mebibytes`:
    memory for the service, which then has a sealed model."""
    path = path_of(setting)
    policy = load(path).policy
    if not policy.simulated:
        raise SystemExit(f"{path}: only a policy with platforms = [\"simulated\"] can be measured here")
    names = [*map(lane, range(lanes)), NEIGHBOUR, WATCHER]
    file = MODELS / policy.models[0].file if model is None else commandline.model(model, work)
    key = None
    if mebibytes:
        file, key = (each.absolute() for each in memory.sealed_model(str(file), work))
    return Measured(file, dict.fromkeys(names, ""), policy=path, key=key, mebibytes=mebibytes)
