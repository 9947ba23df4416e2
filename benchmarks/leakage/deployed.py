"""A policy as it is measured: its own blocks, but tenants whose keys are known, and RA-TLS as the way in."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from appliance.models.sealed import reader as sealed
from appliance.policy import Policy, load
from benchmarks import memory
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
    key: Path | None = None  # of a sealed model, which each pass then reads from the disk

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
        if self.key is not None:
            text = self._streamed(text)
        for name, new in (("tenants", f"tenants {{\n{tenants}}}\n"), ("service", _SERVICE)):
            text, count = re.subn(_BLOCK.format(name=name), lambda _, new=new: new, text, flags=re.M | re.S)
            if count != 1:
                raise ValueError(f"{self.policy}: {count} blocks `{name}`, expected one that begins a line")
        return text

    def _streamed(self, text: str) -> str:
        """Return the policy with its model as a sealed one."""
        header = sealed.structure(self.model)[0].digest.hex()
        lines = (f'  file = {json.dumps(self.model.name)}\n  sealed_header_sha256 = "{header}"\n'
                 f'  streaming_decrypt = true\n  key {{\n    provider = "file"\n    path = "{self.key}"\n  }}\n')
        return re.sub(r"^  file +=.*\n", lambda _: lines, text, count=1, flags=re.M)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def measured(setting: str, lanes: int, streamed: Path | None = None) -> Measured:
    """Return a deployment with so many lanes. `streamed`: a folder for the sealed model that is then
    read by each pass."""
    path = path_of(setting)
    policy = load(path).policy
    if not policy.simulated:
        raise SystemExit(f"{path}: only a policy with platforms = [\"simulated\"] can be measured here")
    names = [*map(lane, range(lanes)), NEIGHBOUR, WATCHER]
    model, key = MODELS / policy.models[0].file, None
    if streamed is not None:
        model, key = (each.absolute() for each in memory.sealed_model(str(model), streamed))
    return Measured(model, dict.fromkeys(names, ""), policy=path, key=key)
