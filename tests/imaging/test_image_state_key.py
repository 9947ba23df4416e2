"""A state disk whose key is in the TPM, in emulated guests with firmware and a software TPM: the first boot, a power
cut, another image, and then that image as the successor."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from appliance.cli.main import main
from appliance.imaging.predict import predict
from appliance.imaging.qemu import run as boot
from appliance.imaging.qemu.machine import FIRMWARE
from appliance.policy import load
from appliance.signed import desk
from tests.support import images, server
from tests.support.images import Guest, free_port
from tests.support.require import absent

pytestmark = [pytest.mark.guests, pytest.mark.timeout(2400)]

POLICY = """
appliance {{
  name   = "measured"
  schema = 2
}}
tee {{ platforms = ["tpm"] }}
{model}
limits {{ first_token_timeout = "10m" }}
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
}}
state {{
  device = "/dev/appliance-state"
  key {{
    provider = "tpm"
    pcrs     = [4, 9, 11, 15]
  }}
  successor {{ authority = "ed25519:{authority}" }}
}}
audit {{ sink = "state" }}
"""


class Machine:
    """Two images that take a policy at launch, one machine with a TPM, and its state disk."""

    def __init__(self, folder: Path, plain: Path) -> None:
        self.folder, self.models, self.disk = folder, folder / "models", folder / "state.disk"
        self.one = images.make(folder / "one", policy=None)
        self.two = images.make(folder / "two", policy=None, words=("appliance.image=two",))
        self.disk.write_bytes(bytes(8 << 20))
        self.models.mkdir()
        shutil.copy(plain, self.models / "tiny.gguf")
        authority = Ed25519PrivateKey.generate()
        (folder / "authority.pem").write_bytes(
            authority.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        auditor = {"name": "auditor", "role": "auditor", "models": [],
                   "api_key_sha256": [server.sha256(server.AUDITOR_KEY)]}
        (self.models / "tenants.json").write_bytes(desk.sign_tenants(
            {"appliance": "measured", "version": 1, "tenants": [auditor]}, authority))
        self.policy = folder / "deployment.hcl"
        self.policy.write_text(POLICY.format(
            authority=authority.public_key().public_bytes_raw().hex(), model=server.MODEL.format(
                name="tiny", file="tiny.gguf", sha256=server.sha256(plain.read_bytes()), more="")))

    def guest(self, image: Path, port: int | None = None, **more: Any) -> Guest:
        """As the operator starts it."""
        return Guest(boot.Options(
            image=image, policy=load(self.policy), models=self.models, state=self.disk, tpm_state=self.folder / "tpm",
            port=port, memory=512, accelerator="tcg", confidential="none", **more))

    def lives(self, image: Path, **more: Any) -> tuple[dict[str, Any], list[bytes]]:
        """Boot until it serves; what it says of its state, and its log. Then the power is cut."""
        port = free_port()
        with images.serving(self.guest(image, port, **more)) as guest:
            assert "ready on" in guest.console, guest.console
            with httpx.Client(base_url=f"https://127.0.0.1:{port}", timeout=600, verify=False) as http:  # noqa: S501
                health = http.get("/health").json()
                log = http.get("/v1/audit/log", headers={"authorization": f"Bearer {server.AUDITOR_KEY}"})
            assert 200 == log.status_code
            return health["state"], log.content.splitlines()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Machine:
    """Built once."""
    images.need("qemu-system-x86_64", "mkfs.erofs", "swtpm", "swtpm_setup")
    if not FIRMWARE[0].is_file():
        absent("OVMF: install ovmf")
    return Machine(tmp_path_factory.mktemp("key"), tiny_model)


def test_boot_power_cut_another_image_and_its_successor(machine: Machine) -> None:
    """The key that the first boot made opens the disk for that image, after a power cut too, and for no other. Once the
    first image knows its successor, that one goes on with disk and log, whatever the machine's clock says."""
    first, _ = machine.lives(machine.one)
    assert 1 == first["epoch"]
    before = machine.disk.read_bytes()
    refused = machine.guest(machine.two).run().console
    assert "step key-release: state: TPM: PCR 4, 9, 11, 15 are not what the key was sealed to" in refused, refused
    assert "appliance image successor" in refused
    assert "ready on" not in refused
    assert before == machine.disk.read_bytes()

    predict.predict(predict.Options(machine.two))
    document = machine.folder / "successor.json"
    assert 0 == main(["image", "successor", str(machine.two / "measurements.json"), "--policy", str(machine.policy),
                      "--key", str(machine.folder / "authority.pem"), "-o", str(document)])
    second, _ = machine.lives(machine.one, add=(document,), extra=("-rtc", "base=2099-08-07T06:05:04"))
    third, log = machine.lives(machine.two, extra=("-rtc", "base=2007-03-04T05:06:07"))
    assert [(2, first["disk"]), (3, first["disk"])] == [(each["epoch"], each["disk"]) for each in (second, third)]
    events = [json.loads(line) for line in log]
    assert [1, 2, 3] == [event["epoch"] for event in events if event["event"] == "state.opened"]
    years = {epoch: {event["time"][:4] for event in events if event["epoch"] == epoch} for epoch in (2, 3)}
    assert {"2007"} == years[3]
    assert min(years[2]) > "2050"  # what a guest makes of 2099 is its kernel's matter
    leaves = [hashlib.sha256(b"\0" + line).hexdigest() for line in log]  # docs/formats/audit-log-2.md
    assert [None, *leaves[:-1]] == [event["prev"] for event in events]
