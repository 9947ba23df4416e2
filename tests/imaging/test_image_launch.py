"""One image for many deployments, in emulated guests: the policy comes on a launch disk and is bound by the TPM; state
is kept on a sealed disk across power cuts. Then the host gives another policy, none, an altered disk, or another's."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from appliance.auditor.statedisk import examine
from appliance.client import Verifier, transport
from appliance.client.verdict import HOST_TRUSTED
from appliance.imaging.predict import golden as predict_golden
from appliance.imaging.predict import predict
from appliance.imaging.qemu import run as boot
from appliance.imaging.qemu import softtpm
from appliance.imaging.qemu.machine import FIRMWARE
from appliance.kernels.layouts.attention import PAGE
from appliance.keys.providers import Secret
from appliance.keys.release import tpm as tpmkeys
from appliance.policy import load
from appliance.policy.digest import policy_pcr
from appliance.state.disk import StateDisk
from tests.support import images, meddling_tpm, server, swtpm, waiting
from tests.support.dhcp_server import GUEST, MINE, Wire
from tests.support.images import Guest, direct, free_port
from tests.support.require import absent
from tests.support.state_by_spec import saved_requests
from tests.support.vhost_vsock import Device

pytestmark = [pytest.mark.guests, pytest.mark.timeout(1800)]

MODEL_KEY, STATE_KEY = bytes(range(32)), bytes(range(32, 64))
VSOCK_PORT = 9000
LEASE = 20  # seconds: the shortest that process 1 believes
MEMORY = 512
LONG = "the quick brown fox jumps over the lazy dog. " * 4

KEY_BLOCK = """provider = "tpm"
    pcrs     = [15]"""
VSOCK = f"""listen "host" {{
    kind      = "ra-tls"
    transport = "vsock"
    port      = {VSOCK_PORT}
  }}"""
LISTENER = """listen "api" {
    kind    = "ra-tls"
    address = "0.0.0.0"
    port    = 8443
  }"""
STATE = """
state {
  device = "/dev/appliance-state"
  key {
    provider = "file"
    path     = "/models/state.key"
  }
}
audit {
  sink = "state"
}
"""


class Deployments:
    """An image without a policy, and what two deployments have of their own."""

    def __init__(self, folder: Path, plain: Path) -> None:
        self.folder, self.models = folder, folder / "models"
        self.image = images.make(folder / "image", policy=None)
        self.models.mkdir()
        shutil.copy(plain, self.models / "tiny.gguf")
        (self.models / "state.key").touch(0o600)
        (self.models / "state.key").write_text(STATE_KEY.hex())
        self.stateful = folder / "policy.hcl"
        server.write_policy(
            folder, {"tiny": self.models / "tiny.gguf"}, schema=2,
            limits='requests_per_minute = 2\n  first_token_timeout = "10m"',
            listeners=LISTENER, privacy='retention { sessions = "1h" }',
            model='session_persistence = true\n  prefix_cache {\n    size = "1MiB"\n  }')
        self.stateful.write_text(self.stateful.read_text() + STATE)

    @cached_property
    def measured(self) -> tuple[Path, Path]:
        """Two policies that differ in one word. The key of their model is sealed to what PCR 15 is under the first."""
        sealed = images.Sealed.make("launched", self.models / "tiny.gguf", self.models, MODEL_KEY)
        found = []
        for name, patience in (("right", "10m"), ("other", "11m")):
            found.append(self.folder / f"{name}.hcl")
            found[-1].write_text(sealed.policy(KEY_BLOCK, patience=patience, listener=VSOCK))
        softtpm.SoftTpm(self.tpm).close()
        with swtpm.running(self.tpm) as device:
            tpmkeys.seal_key(Secret(bytearray(MODEL_KEY)), 1, {15: policy_pcr(load(found[0]).digest)},
                             self.models / "tiny.sealed", device)
        return found[0], found[1]

    @property
    def tpm(self) -> Path:
        """The state of the TPM that the key is sealed by."""
        return self.folder / "tpm"

    def guest(self, policy: Path | None, **more: Any) -> Guest:
        """As the operator starts it."""
        return direct(self.image, policy=load(policy) if policy else None, models=self.models, memory=MEMORY, **more)


@pytest.fixture(scope="module")
def deployments(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Deployments:
    """Built once."""
    images.need("qemu-system-x86_64", "mkfs.erofs", "swtpm", "swtpm_setup")
    if not FIRMWARE[0].is_file():
        absent("OVMF: install ovmf")
    return Deployments(tmp_path_factory.mktemp("launch"), tiny_model)


def _meanwhile(*guests: Guest) -> Callable[[], None]:
    """Run guests that are to end by themselves, one after the other, beside what follows; wait for them by calling."""
    thread = threading.Thread(target=lambda: [guest.run() for guest in guests])
    thread.start()
    return thread.join


def test_a_policy_is_in_force_only_where_its_binding_says_so(deployments: Deployments, tmp_path: Path) -> None:
    """The right policy: PCR 15 lets the TPM give the model's key, the quote shows it, the official client chats. A
    verifier with the other policy refuses the machine. Meanwhile: no policy, a disk that is none, a register that was
    extended before, and the other policy for the same TPM: each stops the boot with the reason."""
    right, other = deployments.measured
    (tmp_path / "bad").write_bytes(b"appliance {}".ljust(4096))
    (tmp_path / "x").mkdir()
    with ExitStack() as stack:
        meddled = stack.enter_context(meddling_tpm.machine(tmp_path / "m", 15, hashlib.sha256(b"host").digest()))
        shutil.copytree(deployments.tpm, tmp_path / "tpm", ignore=shutil.ignore_patterns("control"))
        refused = {
            "no policy: none at /etc/appliance/deployment.hcl, and no launch disk": deployments.guest(None),
            "launch disk: not a ustar archive": deployments.guest(None, extra=(
                "-drive", f"if=none,id=bad,format=raw,readonly=on,file={tmp_path / 'bad'}", "-device",
                "virtio-blk-pci,drive=bad,serial=appliance-launch")),
            "policy binding: PCR 15 is ": deployments.guest(right, extra=meddled),
            "PCR 15 are not what the key was sealed to": deployments.guest(other, tpm_state=tmp_path / "tpm")}
        ended = _meanwhile(*refused.values())
        _serves_and_is_verified(deployments, right, other)
        ended()
    for said, guest in refused.items():
        assert said in guest.console, guest.console
        assert "ready on" not in guest.console
        assert "Kernel panic" not in guest.console


def _serves_and_is_verified(deployments: Deployments, right: Path, other: Path) -> None:
    port = free_port()
    device = Device(deployments.folder, MEMORY, VSOCK_PORT)
    with Wire(LEASE) as wire, device.running(), images.serving(Guest(boot.Options(
            image=deployments.image, models=deployments.models, memory=MEMORY, accelerator="tcg", confidential="none",
            policy=load(right), tpm_state=deployments.tpm, port=port, extra=(*wire.words, *device.words)))) as guest:
        assert "ready on https://ADDRESS:8443, vsock:9000 " in guest.console, guest.console
        assert MODEL_KEY.hex() not in guest.console
        url = f"https://127.0.0.1:{port}"
        evidence = deployments.folder / "evidence.json"
        with httpx.Client(verify=False) as anybody:  # noqa: S501  PCR 0 and 7 of this shape of machine
            evidence.write_bytes(anybody.get(f"{url}/v1/attestation", params={"nonce": "00" * 32}, timeout=600).content)
        golden = predict_golden.record("this", FIRMWARE[0], evidence)
        predict.predict(predict.Options(deployments.image, golden=(golden,)))
        verifiers = [Verifier.from_files(policy, deployments.image / "measurements.json", measurements_unsigned=True,
                                         any_ak=True) for policy in (right, other)]
        verdict = verifiers[0].verify(url)
        assert HOST_TRUSTED == verdict.status, str(verdict)
        assert HOST_TRUSTED != verifiers[1].verify(url).status
        by_vsock = verifiers[0].verify(f"https://127.0.0.1:{device.port}")
        assert HOST_TRUSTED == by_vsock.status, str(by_vsock)
        with httpx.Client(transport=transport(verifiers[0], accept=(HOST_TRUSTED,)), timeout=600) as http:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key=server.KEY, max_retries=0, http_client=http)
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hi"}], max_tokens=2)
        _address_is_kept(guest, wire)


def _address_is_kept(guest: Guest, wire: Wire) -> None:
    """After half of a lease its server is asked for more, by process 1, in a running guest (RFC 2131, table 5)."""
    assert f"eth1 {GUEST}" in guest.console
    renewed = (3, str(GUEST), str(MINE))
    waiting.until(lambda: renewed in wire.questions, "renewal of the lease", lambda: len(wire.questions))
    assert {(1, "0.0.0.0", "255.255.255.255"), (3, "0.0.0.0", "255.255.255.255"), renewed} <= set(  # noqa: S104
        wire.questions)


def _ask(port: int, prompt: str = "a b", key: str = server.KEY) -> Any:
    with httpx.Client(verify=False) as simulated:  # noqa: S501
        client = openai.OpenAI(base_url=f"https://127.0.0.1:{port}/v1", api_key=key, max_retries=0, timeout=600,
                               http_client=simulated)
        return client.completions.create(model="tiny", prompt=prompt, max_tokens=2, temperature=0)


def _health(port: int) -> Any:
    return httpx.get(f"https://127.0.0.1:{port}/health", timeout=600, verify=False).json()  # noqa: S501


def test_state_outlives_a_power_cut(deployments: Deployments, tmp_path: Path) -> None:
    """Two lives of one disk: epoch, quota, sessions and audit log go on."""
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(32 << 20))
    ports = free_port(), free_port()
    with images.serving(deployments.guest(deployments.stateful, state=disk, port=ports[0])) as guest:
        assert "ready on" in guest.console, guest.console
        first = _ask(ports[0], LONG, server.OTHER_KEY)
        for _ in range(2):
            _ask(ports[0])
        health = _health(ports[0])
        assert 1 == health["state"]["epoch"]
        steps = [step["step"] for step in health["boot"]]
        assert ["mounts", "gate", "network", "disks", "sysctl", "policy"] == steps[:6]
        waiting.until(lambda: 3 == saved_requests(STATE_KEY, disk), "quota that is written")
        waiting.until(lambda: 2 <= disk.read_bytes().count(b"APG2"), "pages that are written")
    older = disk.read_bytes()
    with images.serving(deployments.guest(deployments.stateful, state=disk, port=ports[1])) as guest:
        assert "ready on" in guest.console, guest.console
        with pytest.raises(openai.RateLimitError, match="minute"):
            _ask(ports[1])
        later = _ask(ports[1], LONG, server.OTHER_KEY)
        found = [each.usage.prompt_tokens_details.cached_tokens for each in (first, later)]
        assert (0, True) == (found[0], 2 * PAGE <= found[1]), found
        assert first.choices[0].text == later.choices[0].text
        again = _health(ports[1])
        assert (2, health["state"]["disk"]) == (again["state"]["epoch"], again["state"]["disk"])
    _tells_both_lives(disk, older, tmp_path)


@pytest.mark.soak
def test_no_altered_disk_will_do(deployments: Deployments, tmp_path: Path) -> None:
    """One byte is altered in each slot: the boot stops at the step `state`, and nothing is written over. (With another
    key, and without a guest: tests/service/test_state_service.py, tests/state/test_state_disk.py.)"""
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(4 << 20))
    with images.serving(deployments.guest(deployments.stateful, state=disk)) as guest:
        assert "ready on" in guest.console, guest.console
    data = bytearray(disk.read_bytes())
    for slot in (0, 1 << 20):
        data[slot + 100] ^= 1
    disk.write_bytes(data)
    refused = deployments.guest(deployments.stateful, state=disk).run()
    assert "boot stopped at step state" in refused.console, refused.console
    assert "neither slot opens" in refused.console
    assert "ready on" not in refused.console
    assert bytes(data) == disk.read_bytes()


def _tells_both_lives(disk: Path, older: bytes, folder: Path) -> None:
    """The audit log of both; a disk that was put back shows by an epoch that repeats."""
    events = [json.loads(frame.payload) for frame in examine(disk, Secret(bytearray(STATE_KEY)))[2] if frame.kind == 2]
    assert [1, 2] == [event["epoch"] for event in events if event["event"] == "state.opened"]
    assert 2 == sum(event["event"] == "boot.ready" for event in events)
    assert [429] == [event["status"] for event in events if event["event"] == "request.refused"]
    (folder / "back").write_bytes(older)
    back = StateDisk(folder / "back", Secret(bytearray(STATE_KEY)))
    assert 2 == back.epoch
    back.close()
