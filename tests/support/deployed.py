"""A deployment as pages of the documentation take it for granted: its owner's folder, and the running appliance.

The appliance runs on an SEV-SNP machine that is faked below the kernel, by a vendor of ours. The folder has
the files that pages name: policies, keys, measurements, lists, a release log, evidence of an earlier day.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from appliance.attestation.case import measurements
from appliance.cli.main import main
from appliance.imaging.papers import releases
from appliance.keys.providers import Secret
from appliance.policy import load
from appliance.signed import desk
from appliance.state.disk import StateDisk
from appliance.state.frames import AUDIT, MIN_DISK_BYTES
from tests.support import fake_appliance, fake_firmware, fake_image, fake_tpm, hardware_server, shard_files, waiting
from tests.support.packs import AUTHORITY, BUILDER, key, public
from tests.support.pages import ROOT
from tests.support.server import AUDITOR_KEY, KEY, sha256

ADMIN_KEY = "sk-admin"
NAME = "llm-prod"
PUBLISHER = key(9)
MODEL = """
model "{name}" {{
  file                   = "MODEL.gguf"
  sha256                 = "{sha256}"
  chat_template_fallback = "chatml"
  {more}
}}
"""
POLICY = """
appliance {{
  name   = "{name}"
  schema = 2
}}
tee {{
  platforms = ["{platform}"]
  {evidence}
}}
{models}
limits {{ concurrent_requests = 2 }}
tenants {{
  authority = "{authority}"
  list      = "tenants.json"
}}
service {{
  operator_may_set = ["listen_port", "log_sink"]
  listen "api" {{
    kind = "ra-tls"
    port = 8443
  }}
}}
audit {{
  receipts            = true
  checkpoint_interval = "1s"
}}
"""
EVIDENCE = f"evidence {{{hardware_server.EVIDENCE.format(tcb=chr(34) + 'genoa' + chr(34) + ' ')}}}"
VERSIONS = itertools.count(2)  # of tenant lists: each is newer than those before it
TENANTS = (("acme", "user", KEY), ("auditor", "auditor", AUDITOR_KEY), ("operations", "admin", ADMIN_KEY))


def _private(path: Path, private: Ed25519PrivateKey) -> None:
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path.chmod(0o600)


def _public(path: Path, private: Ed25519PrivateKey) -> None:
    path.write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def policy(model: Path, *, platform: str = "sev-snp", models: tuple[str, ...] = ("small", "large")) -> str:
    """The text of the deployment's policy. The model "large" is loaded on demand."""
    digest = sha256(model.read_bytes())
    blocks = "".join(MODEL.format(name=name, sha256=digest, more='load = "demand"' if name == "large" else
                                  'load = "boot"') for name in models)
    return POLICY.format(name=NAME, platform=platform, models=blocks, authority=public(AUTHORITY),
                         evidence=EVIDENCE if platform == "sev-snp" else "")


def listed(version: int) -> dict[str, object]:
    """A list of tenants before it is signed."""
    return {"appliance": NAME, "version": version, "tenants": [
        {"name": name, "role": role, "models": ["small", "large"] if role == "user" else [],
         "api_key_sha256": [sha256(api_key)]} for name, role, api_key in TENANTS]}


def write(folder: Path, model: Path) -> None:
    """All files that need no running appliance."""
    shutil.copy(model, folder / "MODEL.gguf")
    text = policy(model)
    (folder / "deployment.hcl").write_text(text)
    (folder / "policy.hcl").write_text(text)
    (folder / "next.hcl").write_text(text.replace('max_collateral_age = "60d"', 'max_collateral_age = "50d"'))
    _keys(folder)
    (folder / "list.json").write_text(json.dumps(listed(next(VERSIONS))))
    for version, name in ((1, "tenants.json"), (99, "tenants-next.json")):
        (folder / name).write_bytes(desk.sign_tenants(listed(version), AUTHORITY))
    for name in ("demo.gguf", "model.gguf", "mistral-7b.Q4_K_M.gguf"):
        (folder / name).symlink_to("MODEL.gguf")
    _measured(folder)
    (folder / "collateral").mkdir()
    (folder / "request.json").write_text(json.dumps({
        "model": "small", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}))
    (folder / "person.json").write_text(json.dumps({"type": "object", "properties": {"born": {"enum": [1775, 1816]}},
                                                    "required": ["born"], "additionalProperties": False}))
    _disk(folder)
    _released(folder)
    _image(folder)


def _image(folder: Path) -> None:
    """An image of no use, for what is computed from its files: with a firmware, and golden values."""
    (folder / "OVMF.amdsev.fd").write_bytes(fake_firmware.firmware())
    (folder / "events").write_bytes(fake_tpm.event_log([(0, 8, b"firmware"), (7, 4, b"\0\0\0\0")]))
    assert 0 == main(["image", "record", "--from", str(folder / "events"), "--firmware",
                      str(folder / "OVMF.amdsev.fd"), "--machine", "mine", "-o", str(folder / "golden.json")])
    fake_image.write(folder / "OUT", policy=load(folder / "deployment.hcl").digest.hex())
    shutil.copy(folder / "measurements.json", folder / "OUT/measurements.json")


def _disk(folder: Path) -> None:
    """A state disk with some lines of a log, and its key."""
    (folder / "state.disk").write_bytes(b"")
    os.truncate(folder / "state.disk", MIN_DISK_BYTES)
    disk = StateDisk(folder / "state.disk", Secret(bytearray(range(1, 33))))
    disk.append(AUDIT, b"{}")
    disk.close()
    (folder / "state.key").write_text(bytes(range(1, 33)).hex())
    (folder / "state.key").chmod(0o600)


def _keys(folder: Path) -> None:
    for number, name in ((2, "builder-2"), (6, "authority"), (7, "alice"), (8, "auditor"), (9, "publisher")):
        _private(folder / f"{name}.pem", key(number))
    _private(folder / "builder.pem", BUILDER)
    _public(folder / "builder.pub", BUILDER)
    _public(folder / "publisher.pub", PUBLISHER)
    for name, value in (("admin.key", ADMIN_KEY), ("auditor.key", AUDITOR_KEY)):
        (folder / name).write_text(value)
        (folder / name).chmod(0o600)


def _measured(folder: Path) -> None:
    """Measurements of the image that runs, of the one before it, and of the next."""
    for name, launch in (("measurements", hardware_server.MEASUREMENT), ("measurements-next", b"\x0a" * 48),
                         ("old", b"\x0b" * 48)):
        data = fake_appliance.measured(launch=(launch,)).to_json()
        (folder / f"{name}.json").write_bytes(data)
        (folder / f"{name}.json.sig").write_bytes(measurements.sign(data, BUILDER))
    for suffix in ("", ".sig"):
        shutil.copy(folder / f"measurements.json{suffix}", folder / f"image.json{suffix}")


def _released(folder: Path) -> None:
    """The builder's log of releases: all three images, and a checkpoint of last week."""
    at = datetime.now(UTC) - timedelta(days=9)
    entries: list[releases.Entry] = [("release.measurements", {
        "sha384": hashlib.sha384((folder / f"{name}.json").read_bytes()).hexdigest(), "version": "0.1.0"})
        for name in ("old", "measurements", "measurements-next")]
    releases.append(folder / "releases", entries, BUILDER, at)
    shutil.copy(folder / "releases/checkpoint", folder / "checkpoint.last-week")
    releases.append(folder / "releases", [("release.policy", {
        "sha384": load(folder / "deployment.hcl").digest.hex(), "name": NAME})], BUILDER)


def approved_by_alice(folder: Path) -> None:
    """Have the policy ask for the approval of somebody who has not given it."""
    path = folder / "deployment.hcl"
    path.write_text(f"{path.read_text()}approvals {{\n  required = 1\n  approver \"alice\" {{\n"
                    f"    public_key = \"{public(key(7))}\"\n  }}\n}}\n")


def next_authority(folder: Path) -> None:
    """Put the key of `authority-2.pem` into the next policy, as the page says."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    made = load_pem_private_key((folder / "authority-2.pem").read_bytes(), None)
    assert isinstance(made, Ed25519PrivateKey)
    path = folder / "next.hcl"
    path.write_text(re.sub(r"ed25519:[0-9a-f]{64}", public(made), path.read_text(), count=1))


def for_tdx(folder: Path) -> None:
    """Have the policy allow TDX as well."""
    path = folder / "deployment.hcl"
    path.write_text(path.read_text().replace('platforms = ["sev-snp"]', 'platforms = ["sev-snp", "tdx"]'))


def split(folder: Path) -> None:
    """Have the model in shards, as its publisher may."""
    shard_files.shards((folder / "MODEL.gguf").read_bytes(), 3, folder, "large")


def planned(folder: Path) -> None:
    """A policy for a desk, whose one model is called "demo"."""
    text = policy(folder / "MODEL.gguf", platform="simulated", models=("demo",))
    (folder / "policy.hcl").write_text(text)


def banks(folder: Path) -> None:
    """The deployment of the example's bank."""
    shutil.copy(ROOT / "examples/deployments/bank/deployment.hcl", folder / "deployment.hcl")


def continued(folder: Path) -> None:
    """The log of releases that there is, in the folder that the page names."""
    shutil.copytree(folder / "releases", folder / "LOG")


def answered(folder: Path, url: str) -> None:
    """An answer with its receipt, and the log with its record; what signs them is in the evidence."""
    with httpx.Client(base_url=url, verify=False, timeout=600) as http:  # noqa: S501 - the page verified it before
        answer = http.post("/v1/chat/completions", content=(folder / "request.json").read_bytes(), headers={
            "authorization": f"Bearer {KEY}", "appliance-receipt": "1", "content-type": "application/json"})
    assert 200 == answer.status_code, answer.text
    (folder / "answer.json").write_bytes(answer.content)


def checkpointed(folder: Path, url: str, name: str) -> None:
    """A checkpoint of the audit log, by its auditor's key."""
    def held() -> bytes | None:
        with httpx.Client(base_url=url, verify=False, timeout=600) as http:  # noqa: S501
            answer = http.get("/v1/audit/checkpoint", headers={"authorization": f"Bearer {AUDITOR_KEY}"})
        return answer.content if answer.status_code == 200 else None

    (folder / name).write_bytes(waiting.until(held, "checkpoint") or b"")


def simulated(folder: Path) -> None:
    """The policy of a desk: the simulated platform, and one model."""
    (folder / "deployment.hcl").write_text(policy(folder / "MODEL.gguf", platform="simulated", models=("small",)))
