"""A production policy as it stands, with all that it names: a model and its publisher, a broker, a state disk,
approvals, tenants and machines. Only what is made up in it gets other values, one for one."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.attestation.case.measurements import Measurements
from appliance.attestation.trust.roots import VENDORS, Roots
from appliance.attestation.x509.walks import fingerprint
from appliance.attestation.x509.walks import load as load_certificates
from appliance.policy import load
from appliance.sealing import sealing
from appliance.signed import desk
from appliance.signed.approvals import Approvals
from tests.signed.test_signed_bundle import signed, statement
from tests.support import machine_lists, synthetic
from tests.support.brokers import HOST, Authority, reference
from tests.support.fake_amd import CHIP
from tests.support.ggufs import STRING, kv
from tests.support.hardware_server import MEASUREMENT, MRTD, RTMRS
from tests.support.server import KEY, sha256

POLICIES = Path(__file__).parents[2] / "policies"
MADE_UP = {"sha256", "sealed_header_sha256", "public_key", "url", "root_sha256", "device", "authority", "port"}
MODEL_KEY, STATE_KEY = bytes(range(32)), bytes(range(1, 33))
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
STATE_BYTES = 1 << 30  # sessions of the largest prefix cache have room on it
_RULE = """
[[release]]
resource = "{resource}"
key_file = "{name}.key"
version = {version}
policy = "deployment.hcl"
platforms = ["{platform}"]
measurements = "measurements.json"
collateral = "collateral"
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def changed(text: str, key: str, value: str | int, *, after: str = "") -> str:
    """A policy's text with another value of the first attribute of a name behind some words."""
    assert key in MADE_UP
    place = text.index(after)
    found = re.compile(rf'^( *{key} += )(?:"[^"\n]*"|[0-9]+)', re.M)
    assert found.search(text, place) is not None, (key, after)
    return text[:place] + found.sub(lambda match: match[1] + json.dumps(value), text[place:], count=1)


@dataclass
class Production:
    """The deployment of a production policy in a folder, where also what the machine shows is written."""

    platform: str
    folder: Path
    disk: Path
    source: Path | None = None  # another policy than the platform's own

    def write(self) -> Path:
        """Write the policy and all files that it names; return its path."""
        self.port, self.keys = _free_port(), [Ed25519PrivateKey.generate() for _ in range(3)]
        text = self._models((self.source or POLICIES / f"{self.platform}-production.hcl").read_text())
        text = re.sub(r'https://keys\.[a-z-]+\.example"', f'https://{HOST}:{self.port}"', text)
        for block in ("state {", 'model "assistant"'):
            text = changed(text, "root_sha256", Authority().pin, after=block)
        self.approvers = re.findall(r'approver "([^"]+)"', text)[:2]
        for name, key in zip(self.approvers, self.keys, strict=False):
            text = changed(text, "public_key", _public(key), after=f'approver "{name}"')
        text = changed(text, "authority", _public(self.keys[2]), after="tenants {")
        if " machines {\n" in text:
            text = changed(text, "authority", machine_lists.PUBLIC, after=" machines {\n")
        text = changed(text, "device", str(self.disk), after="state {")
        for listener in re.findall(r'listen "[^"]+"', text):
            text = changed(text, "port", _free_port(), after=listener)
        path = self.folder / "deployment.hcl"
        path.write_text(text)
        self._signed(path)
        return path

    def _models(self, text: str) -> str:
        plain = self.folder / "plain.gguf"
        plain.write_bytes(synthetic.model(
            synthetic.VARIANTS["Q8_0"], 8192, kv("tokenizer.chat_template", STRING, _TEMPLATE)))
        made = sealing.seal(plain, self.folder / "mistral-7b-instruct.Q4_K_M.sealed", MODEL_KEY, tile_size=65536)
        data, publisher = signed(statement(made.sha256))
        (self.folder / "mistral-7b-instruct.sigstore").write_bytes(data)
        for key, value, after in (("sha256", made.sha256.hex(), 'model "assistant"'),
                                  ("sealed_header_sha256", made.header_sha256.hex(), 'model "assistant"'),
                                  ("public_key", publisher, "publisher {")):
            text = changed(text, key, value, after=after)
        return text

    def _signed(self, path: Path) -> None:
        loaded = load(path)
        given = Approvals(format="appliance/approvals/v1", policy_sha384=loaded.digest.hex(), approvals=tuple(
            desk.approve(key, name, loaded.digest)
            for name, key in sorted(zip(self.approvers, self.keys, strict=False), key=_first)))
        path.with_name(path.name + ".approvals").write_bytes(given.to_json())
        tenant = {"name": "user", "role": "user", "models": ["assistant"], "api_key_sha256": [sha256(KEY)]}
        (self.folder / "tenants.json").write_bytes(desk.sign_tenants(
            {"appliance": loaded.policy.appliance.name, "version": 17, "tenants": [tenant]}, self.keys[2]))
        if loaded.policy.tee.evidence.machines is not None:
            machine_lists.write(self.folder, machine_lists.entry("chip-id", CHIP), name=loaded.policy.appliance.name)
        with self.disk.open("wb") as file:
            file.truncate(STATE_BYTES)

    def roots(self) -> Roots:
        """The maker of the machine, once it has shown it."""
        if self.platform == "sev-snp":
            return Roots(amd=json.loads((self.folder / "roots.json").read_text()))
        der = (self.folder / "root.der").read_bytes()
        return Roots(amd=VENDORS.amd, intel=fingerprint(load_certificates(der, "root")[0]), intel_der=der)

    @contextmanager
    def broker(self) -> Iterator[None]:
        """The reference broker, which gives both keys to this image and policy, once the machine is there."""
        Authority().write(self.folder)
        for name, key in (("model", MODEL_KEY), ("state", STATE_KEY)):
            (self.folder / f"{name}.key").touch(0o600)
            (self.folder / f"{name}.key").write_text(key.hex())
        (self.folder / "measurements.json").write_bytes(_measurements())
        keys = load(self.folder / "deployment.hcl").policy
        rules = "".join(_RULE.format(resource=key.broker.resource, name=name, version=version, platform=self.platform)
                        for key, name, version in ((keys.models[0].key, "model", 1), (keys.state.key, "state", 2)))
        config = self.folder / "broker.toml"
        config.write_text(f'port = {self.port}\ncertificate = "server.pem"\nprivate_key = "server.key"\n'
                          f'log = "broker.jsonl"\n{rules}')
        self._collateral()
        with reference(config, self.roots()):
            yield

    def _collateral(self) -> None:
        place = self.folder / "collateral"
        place.mkdir()
        for name in ("amd-0.der", "amd-1.der", "amd-2.der", "amd.crl") if self.platform == "sev-snp" else (
                "collateral-today.json",):
            (place / name).write_bytes((self.folder / name).read_bytes())


def _first(pair: tuple[str, Ed25519PrivateKey]) -> str:
    return pair[0]


def _public(key: Ed25519PrivateKey) -> str:
    return f"ed25519:{key.public_key().public_bytes_raw().hex()}"


def _measurements() -> bytes:
    """The measurements of both fake guests."""
    zero = "00" * 32
    return Measurements.model_validate({
        "format": "appliance/measurements/v1", "image": {}, "policy_sha384": None, "tpm": None,
        "build": {"version": "0.1.0", "code_sha384": None, "kernels_sha384": None},
        "sev_snp": [{"vmm": "qemu", "vcpus": 4, "cpu_model": "EPYC-v4", "guest_features": "0x1",
                     "firmware_sha256": zero, "launch_digest": MEASUREMENT.hex(), "id_block": None}],
        "tdx": [{"firmware_sha256": zero, "page_order": "page", "mrtd": MRTD.hex(), "unverified": [],
                 "rtmr": [None, RTMRS[1].hex(), RTMRS[2].hex(), None]}]}).to_json()
