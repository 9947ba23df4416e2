"""A guest in QEMU with a software TPM, from the builder's machine to the first answer: an image with a sealed model's
policy in it, predicted and recorded measurements, a key broker that is all the guest may connect to, and the official
client through `appliance connect`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.attestation.tpm import container
from appliance.attestation.tpm.collecting.collector import TpmProvider
from appliance.attestation.tpm.judging import verify as tpm_verify
from appliance.imaging.predict import predict
from appliance.imaging.qemu import run as boot
from appliance.imaging.qemu import softtpm
from appliance.imaging.qemu.machine import FIRMWARE, Reach
from examples.broker.server import Server
from tests.support import images, server, swtpm
from tests.support.brokers import Authority, reference
from tests.support.images import Guest
from tests.support.require import absent

pytestmark = [pytest.mark.guests, pytest.mark.timeout(1800)]

KEY = secrets.token_bytes(32)
BROKER = Authority("guest", host=Reach.ADDRESS)
KEY_BLOCK = """provider = "broker"
    version  = 2
    broker {{
      url         = "https://{address}:{port}"
      root_sha256 = "{root}"
      resource    = "default/key/tiny"
    }}"""
CONFIG = """
host = "{host}"
port = {port}
certificate = "server.pem"
private_key = "server.key"
log = "{log}"
"""
RULE = """
[[release]]
resource = "default/key/tiny"
key_file = "tiny.key"
version = 2
policy = "{policy}"
measurements = "image/measurements.json"
platforms = ["tpm"]
host_trusted = true
attestation_keys = ["sha256:{ak}"]
ek_roots = "tpm/authority"
"""


def enrol(state: Path) -> str:
    """Make a TPM and take its attestation key's fingerprint, before it is in anybody else's hands."""
    softtpm.SoftTpm(state).close()
    with swtpm.running(state) as socket_path:
        provider = TpmProvider(socket_path, state / "none")
        key = tpm_verify.load_key(container.parse(provider.report(bytes(64))).key)
        provider.close()
    return hashlib.sha256(key.spki()).hexdigest()


class Deployment:
    """Everything that its owner has: policy, sealed model, tenants, image, signed measurements, broker."""

    def __init__(self, folder: Path, plain: Path) -> None:
        self.folder, self.image, self.models = folder, folder / "image", folder / "models"
        self.broker_port, self.builder = images.free_port(), Ed25519PrivateKey.generate()
        self.models.mkdir()
        sealed = images.Sealed.make("attested", plain, self.models, KEY)
        self.policy = folder / "policy.hcl"
        self.policy.write_text(sealed.policy(KEY_BLOCK.format(
            address=Reach.ADDRESS, port=self.broker_port, root=BROKER.pin)))
        BROKER.write(folder)
        (folder / "tiny.key").touch(0o600)
        (folder / "tiny.key").write_text(KEY.hex())
        images.make(self.image, policy=self.policy)
        self.tpm, self.ak = folder / "tpm", enrol(folder / "tpm")
        predict.predict(predict.Options(self.image, golden=(images.golden(self.image),), key=self.builder))

    def options(self, **more: object) -> boot.Options:
        """The guest: as the operator would start it."""
        return boot.Options(**{  # type: ignore[arg-type]
            "image": self.image, "accelerator": "tcg", "confidential": "none", **more})

    @contextlib.contextmanager
    def broker(self, rules: str, host: str = "127.0.0.1") -> Iterator[Server]:
        """The reference broker on an address of this machine's loopback; all have the policy's port."""
        config = self.folder / f"broker-{host}.toml"
        config.write_text(CONFIG.format(host=host, port=self.broker_port, log=self._log(host).name) + rules)
        with reference(config) as found:
            yield found

    def _log(self, host: str) -> Path:
        return self.folder / f"broker-{host}.jsonl"

    def broker_log(self, host: str = "127.0.0.1") -> str:
        """What the broker wrote."""
        return self._log(host).read_text() if self._log(host).exists() else ""

    def refused(self, case: Case, number: int) -> tuple[str, str]:
        """Console of a guest whose broker says no, and the broker's log: each with a TPM and broker of its own."""
        host, tpm = f"127.0.0.{number + 2}", self.folder / f"tpm-{number}"
        guest = Guest(self.options(image=case.image(self), port=None, models=self.models, tpm_state=tpm,
                                   broker=Reach(host, self.broker_port)))
        with self.broker(case.rules(self, enrol(tpm)), host):
            return guest.run().console, self.broker_log(host)


def _right_rule(deployment: Deployment, ak: str) -> str:
    return RULE.format(ak=ak, policy=deployment.policy.name)


def _next_policys_rule(deployment: Deployment, ak: str) -> str:
    """The owner has another policy by now; the operator still runs the image with the old one."""
    following = deployment.folder / "next.hcl"
    following.write_text(deployment.policy.read_text().replace('"10m"', '"9m"'))
    return RULE.format(ak=ak, policy=following.name)


def _as_built(deployment: Deployment) -> Path:
    return deployment.image


def _with_a_byte_changed(deployment: Deployment) -> Path:
    """The same disk, but for one letter of the system's name in the kernel image, which changes nothing it does."""
    folder = deployment.folder / "altered"
    folder.mkdir()
    for path in deployment.image.iterdir():
        if path.name != "disk.raw":
            (folder / path.name).hardlink_to(path)
    disk = (deployment.image / "disk.raw").read_bytes()
    altered = disk.replace(b'PRETTY_NAME="The', b'PRETTY_NAME="Thy', 1)
    assert 1 == sum(left != right for left, right in zip(disk, altered, strict=True))
    (folder / "disk.raw").write_bytes(altered)
    return folder


@dataclass(frozen=True)
class Case:
    """One thing wrong: rules of the broker, or what boots; what its log has to say, and what it must not."""

    name: str
    says: tuple[str, ...]
    never: tuple[str, ...] = ()
    rules: Callable[[Deployment, str], str] = _right_rule
    image: Callable[[Deployment], Path] = _as_built


WRONG_IMAGE = Case(
    "wrong image", ("pcr4: found", "event 2 differs: program appliance.efi", "pcr11: found"), ("policy: ", "golden"),
    image=_with_a_byte_changed)
WRONG_POLICY = Case("wrong policy", ("policy: found", "pcr15: found"), ("pcr4", "pcr11", "golden"),
                    rules=_next_policys_rule)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Deployment:
    """One image for all."""
    images.need("qemu-system-x86_64", "mkfs.erofs", "swtpm", "swtpm_setup")
    if not FIRMWARE[0].is_file():
        absent("OVMF: install ovmf")
    return Deployment(tmp_path_factory.mktemp("attested"), tiny_model)


@contextlib.contextmanager
def _connected(deployment: Deployment, port: int, *more: str) -> Iterator[tuple[str, list[dict[str, object]]]]:
    """`appliance connect` as a process of its own: the local address (empty: it refused), and what it told."""
    builder = f"ed25519:{deployment.builder.public_key().public_bytes_raw().hex()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "appliance", "connect", f"https://127.0.0.1:{port}", "--policy",
         str(deployment.policy), "--measurements", str(deployment.image / "measurements.json"), "--builder-key",
         builder, "--json", *more], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={"PATH": os.environ["PATH"]})
    said: list[dict[str, object]] = []
    url = ""
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("{"):
                said.append(json.loads(line))
                if said[-1]["event"] == "ready":
                    url = str(said[-1]["listening"])
                    break
        yield url, said
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def refusal(deployment: Deployment) -> Iterator[Future[tuple[str, str]]]:
    """Of the wrong image, the console and the broker's log, when its guest has ended. It runs beside what follows."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(deployment.refused, WRONG_IMAGE, 0)


@pytest.mark.usefixtures("refusal")
def test_the_official_client_chats_with_an_attested_guest(deployment: Deployment) -> None:
    """The right image with the right policy: the broker challenges the TPM and releases the key, the model unlocks,
    RA-TLS carries the TPM's evidence, and `connect`, which challenges it as well and needs no enrolled key, says
    "measured boot, host trusted", which has to be accepted by a flag."""
    port = images.free_port()
    guest = Guest(deployment.options(
        port=port, models=deployment.models, tpm_state=deployment.tpm,
        broker=Reach("127.0.0.1", deployment.broker_port)))
    with deployment.broker(_right_rule(deployment, deployment.ak)), images.serving(guest):
        assert "ready on" in guest.console, guest.console + deployment.broker_log()
        assert KEY.hex() not in guest.console
        with _connected(deployment, port, "--ek-roots", str(deployment.tpm / "authority")) as (refused, said):
            assert "" == refused
            verdict, error = said
            assert ("verdict", "measured boot, host trusted", 4) == (
                verdict["event"], verdict["verdict"], verdict["exit_code"])
            assert "known by activation" in str(verdict["reason"])
            assert ("error", "host-trusted", 4) == (error["event"], error["code"], error["exit_code"])
        with _connected(deployment, port, "--ak", f"sha256:{deployment.ak}", "--accept", "host-trusted") as (url, said):
            client = openai.OpenAI(base_url=f"{url}/v1", api_key=server.KEY, max_retries=0, timeout=600)
            answer = client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=4)
            assert answer.choices[0].finish_reason in ("length", "stop")


def test_without_the_key_there_is_no_boot(refusal: Future[tuple[str, str]]) -> None:
    """A guest that boots all the way to the broker, and one byte of the image is another. The broker's log names what
    failed and nothing else; the guest says that it was refused, serves nothing and goes off. (A broker without a rule,
    or with another policy's: tests/keys/test_key_release_boot.py.)"""
    _check(WRONG_IMAGE, *refusal.result())


@pytest.mark.soak
def test_nor_with_another_policy(deployment: Deployment) -> None:
    """The same of a guest whose policy is not the one that the broker knows."""
    _check(WRONG_POLICY, *deployment.refused(WRONG_POLICY, 1))


def _check(case: Case, console: str, log: str) -> None:
    told = f"{case.name}\n{console}\n{log}"
    assert "error[key-denied]" in console, told
    assert "no rule of this broker releases it to this image and policy" in console, told
    assert "service ended: exit code 2" in console, told
    assert "ready on" not in console, told
    assert '"released"' not in log, told
    assert all(word in log for word in case.says), told
    assert not any(word in log for word in case.never), told
