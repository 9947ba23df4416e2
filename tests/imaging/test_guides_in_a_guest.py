"""Two guides in a booted guest, to the letter. *Releasing keys* as it is for a machine with a TPM: key and model, the
broker and its certificate, policy, image, software TPM, boot, a key that is sealed to the TPM, a state key and the
image that follows. *Verify an appliance* by a client that was installed as that page says. `NOT_HERE` names what needs
other machines."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from appliance.imaging.qemu.machine import FIRMWARE, Reach
from tests.support import guides, images, server, written
from tests.support.pages import ROOT
from tests.support.reader import Reader, Script
from tests.support.require import absent

pytestmark = [pytest.mark.guests, pytest.mark.soak, pytest.mark.timeout(5400)]

NOT_HERE = {  # by the page and the beginning of a command: what it needs, and where else it is followed
    "key-release.md": {
        "appliance image predict build/demo --firmware OVMF.amdsev.fd": "SEV-SNP; of a TPM the page asks for --golden",
        "appliance serve": "the simulated platform: tests/keys/test_key_release_guide.py",
    },
    "verify.md": {
        "appliance collateral fetch": "SEV-SNP or TDX (a vendor that is ours: tests/client/test_verify_guide.py)",
        "appliance verify http://": "the simulated platform: the same test",
        "appliance machines": "SEV-SNP or TDX: the same test",
    },
}
POLICY = """
appliance {
  name   = "guide"
  schema = 2
}
tee { platforms = ["tpm"] }
%s
limits { first_token_timeout = "10m" }
tenants {
  authority = "AUTHORITY"
  list      = "tenants.json"
}
service {
  listen "api" {
    kind    = "ra-tls"
    address = "0.0.0.0"
    port    = 8443
  }
}
state {
  device = "/dev/appliance-state"
  key {
    provider = "tpm"
    pcrs     = [4, 9, 11, 15]
  }
  successor { authority = "AUTHORITY" }
}
audit { sink = "state" }
"""


class Deployment(Reader):
    """The folder of its owner, who is the builder, runs the broker, and starts the guest."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.port, self.broker = images.free_port(), images.free_port()
        super().__init__(folder, {
            "keys.example.org:8443": f"{Reach.ADDRESS}:{self.broker}", "DNS:keys.example.org": f"IP:{Reach.ADDRESS}",
            "keys.example.org": Reach.ADDRESS, "OUT/": "build/new/", "demo.sealed --key": "models/demo.sealed --key",
            "build/vm": "build/demo", "build/models": "models", "127.0.0.1:9443": f"127.0.0.1:{self.broker}",
            "https://10.0.0.7:8443": f"https://127.0.0.1:{self.port}", "--port 8443": f"--port {self.port}",
            "127.0.0.1:9000": f"127.0.0.1:{images.free_port()}"})
        self.environment["PYTHONPATH"] = str(ROOT)  # for the broker, as the page says
        (folder / "models").mkdir()
        (folder / "demo.gguf").write_bytes(model.read_bytes())
        (folder / "state.disk").write_bytes(bytes(8 << 20))
        [boot] = [each for each in guides.commands("image.md")
                  if each.startswith("appliance image boot build/vm") and "--broker" in each]
        self.boot = f"{boot} --state state.disk --add tenants.json"

    def write_policy(self, name: str, key: str, said: dict[str, str]) -> None:
        """A policy of the guide's `model` block; each … is what a command printed. `key`: its block of that name."""
        seal, root, authority = (next(text for command, text in said.items() if word in command)
                                 for word in (" seal ", "sha256sum", "key public"))
        block = self.here(guides.blocks("key-release.md", "hcl")[0])
        for pin in ("sealed_header_sha256", "sha256"):
            found = re.search(rf'^\s*{pin}\s*=\s*"([0-9a-f]{{64}})"', seal, re.MULTILINE)
            assert found is not None, seal
            block = re.sub(rf'(\s{pin}\s*= )"…"', rf'\1"{found[1]}"', block)
        block = block.replace('root_sha256 = "…"', f'root_sha256 = "{root.split()[0]}"')
        if key:
            block = re.sub(r"^  key \{.*^  \}\n", lambda _: key, block, flags=re.MULTILINE | re.DOTALL)
        assert "…" not in block
        (self.folder / name).write_text((POLICY % block).replace("AUTHORITY", authority.split()[0]))

    def write_tenants(self) -> None:
        """A list with one key, signed by the authority."""
        (self.folder / "list.json").write_text(json.dumps({"appliance": "guide", "version": 1, "tenants": [
            {"name": "user", "role": "user", "models": ["demo"], "api_key_sha256": [server.sha256(server.KEY)]}]}))
        self.ends("appliance tenants list.json --key authority.pem -o tenants.json", 0)

    def write_broker(self) -> None:
        """`broker.toml` of the page, as its comment has it for a TPM."""
        text = guides.blocks("key-release.md", "toml")[0].replace("8443", str(self.broker))
        text = text.replace('["sev-snp"]', '["tpm"]').replace('"0.0.0.0"', '"127.0.0.1"')
        told = re.search(r"^collateral .*for a TPM: (host_trusted = true), (ek_roots = .*)\n", text, re.MULTILINE)
        assert told is not None
        (self.folder / "broker.toml").write_text(text.replace(told[0], f"{told[1]}\n{told[2]}\n"))

    def health(self) -> dict[str, Any]:
        """What the guest says of itself, to anybody."""
        found: dict[str, Any] = json.loads(self.types(f"curl -sk https://127.0.0.1:{self.port}/health").stdout)
        return found


@pytest.fixture
def owner(tmp_path: Path, tiny_model: Path) -> Deployment:
    """Who has what the pages ask for."""
    images.need("qemu-system-x86_64", "mkfs.erofs", "swtpm", "swtpm_setup", "curl", "openssl")
    if not FIRMWARE[0].is_file():
        absent("OVMF: install ovmf")
    return Deployment(tmp_path, tiny_model)


def test_a_key_from_the_broker_then_from_the_tpm_and_a_state_disk_that_goes_on(owner: Deployment) -> None:
    """Each command of *Releasing keys*: the broker gives the key to the guest, which *Verify an appliance* then judges;
    the image that follows has its model's key from the TPM, and goes on with the state disk."""
    script = Script("key-release.md")
    _prepared(owner, script)
    broker = script.next("python -m examples.broker")
    script.next(_not_here("key-release.md", script))
    with owner.keeps(broker, "listening at") as log:
        with owner.keeps(owner.boot, "ready on"):
            first = owner.health()
            _verified(owner)
        _followed_by_another(owner, script)
        with owner.keeps(f"{owner.boot} --add successor.json", "ready on"):
            second = owner.health()
    released = [json.loads(line)["event"] for line in written.lines(log) if line.startswith("{")]
    assert ["released", "released"] == released
    assert "sealed for the successor as well" in next(
        each["detail"] for each in second["boot"] if each["step"] == "key-release")
    boot = owner.boot.replace("build/vm", "build/new").partition(" --broker ")[0] + owner.boot.partition(":9443")[2]
    with owner.keeps(boot, "ready on"):
        third = owner.health()
    states = [each["state"] for each in (first, second, third)]
    assert [(epoch, states[0]["disk"]) for epoch in (1, 2, 3)] == [(each["epoch"], each["disk"]) for each in states]
    assert [] == script.left


def _not_here(page: str, script: Script) -> str:
    """The beginning of the next command, which the list names."""
    [found] = [each for each in NOT_HERE[page] if script.left[0].startswith(each)]
    return found


def _prepared(owner: Deployment, script: Script) -> None:
    """Steps 1 to 4; the policy has a state key, whose authority the last chapter makes. On a TPM PCR 0 and 7 are
    recorded, and given to `predict`."""
    said = dict[str, str]()
    for command in (script.early("openssl genpkey"), script.early("appliance key public"),
                    *script.until("appliance check")):
        said[command] = owner.ends(command, 0)
    owner.write_policy("deployment.hcl", "", said)
    [key] = [each for each in guides.blocks("key-release.md", "hcl") if 'provider = "tpm"' in each]
    owner.write_policy("new.hcl", "".join(f"  {line}\n" for line in key.splitlines()), said)
    owner.write_tenants()
    owner.write_broker()
    owner.ends(script.next("appliance check"), 0)
    owner.ends(script.next("appliance image build"), 0)
    predict = script.next(_not_here("key-release.md", script)).partition(" --firmware ")[0]
    record = next(each for each in guides.commands("image.md") if each.startswith("appliance image record"))
    owner.ends(record.replace("build/any", "build/demo"), 0, "PCR 0")
    owner.ends("openssl genpkey -algorithm ed25519 -out builder.pem", 0)
    owner.ends("openssl pkey -in builder.pem -pubout -out builder.pub", 0)
    owner.ends(f"{predict} --golden build/golden.json --key builder.pem", 0, "PCR 0 and 7 of qemu")
    owner.ends(script.next("appliance image tpm"), 0, "build/tpm/authority")


def _verified(owner: Deployment) -> None:
    """*Verify an appliance*, with a client of its own."""
    script, folder = Script("verify.md"), owner.folder
    checkout = folder / "CHECKOUT"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".*", "build", "__pycache__", "prebuilt"))
    owner.ends("\n".join(("set -e", *script.until("appliance verify"))), 0)
    client = Reader(folder, owner.places, first=[folder / "client/bin"])
    client.ends("command -v appliance", 0, str(folder / "client/bin/appliance"))
    for name in ("measurements.json", "measurements.json.sig"):
        shutil.copy(folder / "build/demo" / name, folder)
    (folder / "collateral").mkdir()
    shutil.copytree(folder / "build/tpm/authority", folder / "makers")
    once = script.next("appliance verify https")
    key = re.search(r"sha256:[0-9a-f]{64}", client.ends(once, 2))
    assert key is not None, "the first refusal tells the key"
    options = once.partition("https://10.0.0.7:8443")[2]
    for code in (2, 4, 4):  # --save, --ak, --ek-roots
        while any(script.left[0].startswith(each) for each in NOT_HERE["verify.md"]):
            script.left.pop(0)
        command = script.next("appliance verify https").replace(" …", options).replace("sha256:8a77…", key[0])
        client.ends(command, code, *(["measured boot, host trusted".upper()] if code == 4 else []))
    script.until("appliance connect")
    connect = script.next("appliance connect")
    client.ends(connect, 2)
    with client.keeps(f"{connect} --ak {key[0]} --accept host-trusted", client.here("ready: http://127.0.0.1:9000")):
        client.ends("curl -s http://127.0.0.1:9000/health", 0, '"status": "ready"')
        asked = json.dumps({"model": "demo", "prompt": "a", "max_tokens": 2})
        client.ends(f"curl -sf http://127.0.0.1:9000/v1/completions -H 'authorization: Bearer {server.KEY}' "
                    f"-H 'content-type: application/json' -d '{asked}'", 0, '"finish_reason"')
    assert [] == script.left


def _followed_by_another(owner: Deployment, script: Script) -> None:
    """The new image: its key is sealed to the TPM while no guest has it, and it is named as the successor."""
    owner.ends("appliance image build new.hcl -o build/new", 0)
    page = (guides.GUIDES / "key-release.md").read_text()
    steps = re.findall(r"^\d\. `(appliance image [^`]*)`$", page, re.MULTILINE)
    assert ["predict", "successor"] == [each.split()[2] for each in steps]
    for command in steps:
        owner.ends(command, 0)
    seal = script.next("appliance model tpm-seal").replace("deployment.hcl", "new.hcl")
    tpm, again = script.next("swtpm socket"), script.next("appliance model tpm-seal")
    with owner.keeps(tpm, owner.folder / "build/tpm.socket"):
        owner.ends(seal + again.partition(" …")[2], 0, "put it beside the model")
    assert (owner.folder / "models/demo.sealed.tpm-key").exists()
