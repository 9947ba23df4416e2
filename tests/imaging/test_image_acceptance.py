"""A machine with a software TPM is accepted from a booted image: `appliance accept` by its own boot command, in QEMU.
The faked SEV-SNP and TDX machines are in tests/acceptance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.cli.main import main
from appliance.imaging.predict import predict
from appliance.imaging.qemu.machine import FIRMWARE
from appliance.signed import desk
from tests.imaging.test_image_attested import enrol
from tests.support import images, server
from tests.support.require import absent

pytestmark = [pytest.mark.guests, pytest.mark.timeout(3600)]

POLICY = """
appliance {{
  name   = "accepted"
  schema = 2
}}
tee {{ platforms = ["tpm"] }}
model "tiny" {{
  file                   = "tiny.gguf"
  sha256                 = "{sha256}"
  chat_template_fallback = "chatml"
  streaming_decrypt      = false
}}
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
audit {{ sink = "stdout" }}
"""
# What ends early or boots whole: each of the latter takes a minute of a processor, or more.
ATTACKS = {"replay": "refused", "relay": "refused", "stolen-key": "refused", "report": "refused",
           "statement": "refused", "software": "refused", "kernel": "refused", "initrd": "refused",
           "command-line": "silent", "root": "silent", "clock": "refused"}


def test_a_guest_with_a_tpm_is_accepted(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict is what a TPM gives, "measured boot, host trusted". A changed initrd boots, and its registers refuse
    it; with another command line or root file system nothing comes up. The judge sees the same, without the machine."""
    images.need("qemu-system-x86_64", "mkfs.erofs", "swtpm", "swtpm_setup")
    if not FIRMWARE[0].is_file():
        absent("OVMF: install ovmf")
    authority, builder = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    models, image, policy = tmp_path / "models", tmp_path / "image", tmp_path / "policy.hcl"
    models.mkdir()
    (models / "tiny.gguf").write_bytes(tiny_model.read_bytes())
    tenant = {"name": "user", "role": "user", "models": ["tiny"], "api_key_sha256": [server.sha256(server.KEY)]}
    (models / "tenants.json").write_bytes(desk.sign_tenants(
        {"appliance": "accepted", "version": 1, "tenants": [tenant]}, authority))
    policy.write_text(POLICY.format(sha256=server.sha256(tiny_model.read_bytes()),
                                    authority=authority.public_key().public_bytes_raw().hex()))
    images.make(image, policy=policy)
    predict.predict(predict.Options(image, golden=(images.golden(image),), key=builder))
    ak, bundle = enrol(tmp_path / "tpm"), tmp_path / "out.bundle"
    key = f"ed25519:{builder.public_key().public_bytes_raw().hex()}"
    code = main(["accept", str(image), "-o", str(bundle), "--policy", str(policy), "--builder-key", key, "--ak",
                 f"sha256:{ak}", f"--boot=--models {models} --tpm-state {tmp_path / 'tpm'} --accelerator tcg "
                 "--confidential none", "--seconds", "1500"])
    assert 4 == code, capsys.readouterr().out
    capsys.readouterr()
    assert 4 == main(["accept", "--judge", str(bundle), "--builder-key", key, "--ak", f"sha256:{ak}", "--json"])
    told = json.loads(capsys.readouterr().out)
    ended = {name: each["ended"] for name, each in told["attacks"].items()}
    assert {**ATTACKS, "cpus": "not tried"} == ended
    assert "measured boot, host trusted" == told["verdict"]["verdict"]
    assert {"pcr9"} <= set(told["attacks"]["initrd"]["by"].split(", "))
