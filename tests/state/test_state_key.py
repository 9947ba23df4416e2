"""The state disk's key in a (software) TPM: made at the first boot, given out in that state alone, sealed for the image
that follows. Each life is what a boot does between its steps `key-release` and `state`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from appliance.attestation.tpm.chip import device as tpm_device
from appliance.attestation.tpm.chip.client import Tpm
from appliance.audit.log import AuditLog
from appliance.cli.main import main
from appliance.errors import ModelKeyError, PolicyError, StateError
from appliance.keys import policy_keys
from appliance.keys.providers import Secret
from appliance.keys.release.release import KeyRelease
from appliance.policy import Policy, load
from appliance.signed import desk, successor
from appliance.state import sealed_key
from appliance.state.audit_sink import open_disk
from appliance.state.disk import StateDisk
from appliance.state.frames import AUDIT
from tests.attestation.test_tpm_seal import after, extend
from tests.keys.test_key_release import attestor
from tests.project.test_key_broker import measurements
from tests.state.test_state_disk import PARTS, Killed, _dies_at
from tests.support import state_by_spec, swtpm
from tests.support.policies import BASE

MIB = 1 << 20
PLACES = (MIB - 4096, 2 * MIB - 4096)  # docs/formats/state-key.md
PCRS = [4, 11, 15]
AUTHORITY, STRANGER = (Ed25519PrivateKey.from_private_bytes(bytes(range(at, at + 32))) for at in (0, 1))
STATE = """
state {{
  device = "{device}"
  key {{
    provider = "tpm"
    pcrs     = {pcrs}
    {more}
  }}
  successor {{ authority = "ed25519:{authority}" }}
}}
"""


@dataclass(frozen=True)
class Machine:
    """A TPM and a state disk in memory: policies name devices below /dev."""

    tpm: Path
    disk: Path
    folder: Path

    def policy(self, more: str = "", pcrs: list[int] | None = None) -> Policy:
        """A policy with the state's key in the TPM."""
        path = self.folder / "deployment.hcl"
        public = AUTHORITY.public_key().public_bytes_raw().hex()
        path.write_text(BASE.replace("schema = 1", "schema = 2") + STATE.format(
            device=self.disk, pcrs=pcrs or PCRS, more=more, authority=public))
        return load(path).policy

    def life(self, line: bytes, *, policy: Policy | None = None, device: Path | None = None) -> tuple[int, bytes]:
        """A boot that writes one line; the disk's epoch and id. The disk is left as a power cut leaves it."""
        policy = policy or self.policy()
        following = successor.registers_of(policy, [self.folder])
        found = sealed_key.read(policy)
        release = KeyRelease(policy_keys.keys_of(policy), seconds=20, tpm=device or self.tpm)
        try:
            release.start({})
            keys = release.keys(attestor(), tolerant=False, own=sealed_key.own_key(found, following))
        finally:
            release.close()
        assert found is not None
        disk = open_disk(policy, policy_keys.state_key(policy, keys), None, AuditLog(io.BytesIO()),
                         replace(found, fresh=release.resealed))
        assert disk is not None
        disk.append(AUDIT, line)
        disk.device.close()
        return disk.epoch, disk.disk

    def extend(self, pcr: int, event: bytes) -> None:
        """Measure something, as another image does."""
        with contextlib.closing(Tpm(self.tpm)) as tpm:
            extend(tpm, pcr, event)

    def registers(self, numbers: list[int] | None = None) -> dict[int, bytes]:
        """What the TPM holds now."""
        with contextlib.closing(Tpm(self.tpm)) as tpm:
            return tpm_device.read_pcrs(tpm, numbers or PCRS)

    def name_successor(self, pcrs: dict[int, bytes], *, name: str = "demo", key: Ed25519PrivateKey = AUTHORITY) -> None:
        """Put the document beside the policy."""
        (self.folder / "successor.json").write_bytes(desk.sign_successor(name, pcrs, key))

    def sealed(self) -> list[bytes]:
        """The files in both places, by the specification."""
        data = self.disk.read_bytes()
        found = []
        for at in PLACES:
            size = struct.unpack_from("<I", data, at)[0]
            assert not any(data[at + 4 + size:at + 4096])
            found.append(data[at + 4:at + 4 + size])
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A fresh TPM and a blank disk."""
    disk = Path(f"/dev/shm/appliance-key-{os.getpid()}")  # noqa: S108
    disk.write_bytes(b"")
    os.truncate(disk, 4 * MIB)
    try:
        with swtpm.running() as tpm:
            found = Machine(tpm, disk, tmp_path)
            found.extend(4, b"boot loader")
            yield found
    finally:
        disk.unlink()


def test_made_once_and_given_out_in_one_state(machine: Machine) -> None:
    """The first boot makes it, each later one gets it, with the same disk and log. Under other registers, with another
    TPM, or after the key's place was blanked, the boot stops with a fix, and nothing is written over."""
    first = machine.life(b"one\n")
    assert (2, first[1]) == machine.life(b"two\n")
    files = machine.sealed()
    assert (True, b"") == (files[0].startswith(b"appliance/tpm-key/v1\n"), files[1])
    before = machine.disk.read_bytes()
    with swtpm.running() as other, pytest.raises(ModelKeyError) as caught:
        machine.life(b"x\n", device=other)
    assert ("tpm-other", True) == (caught.value.code, "blank disk" in str(caught.value.hint))
    blanked = bytearray(before)
    blanked[PLACES[0]:PLACES[0] + 4096] = bytes(4096)
    machine.disk.write_bytes(blanked)
    with pytest.raises(StateError, match="is in use, and has no key that a TPM sealed") as absent:
        machine.life(b"x\n")
    assert ("state-key-absent", True) == (absent.value.code, "blank disk" in str(absent.value.hint))
    assert bytes(blanked) == machine.disk.read_bytes()
    machine.disk.write_bytes(before)
    machine.extend(11, b"another image")
    with pytest.raises(ModelKeyError, match="state: TPM: PCR 4, 11, 15 are not what the key was sealed to") as caught:
        machine.life(b"x\n")
    assert ("tpm-pcrs", True) == (caught.value.code, "appliance image successor" in str(caught.value.hint))
    assert before == machine.disk.read_bytes()


def test_no_key_is_made_where_nothing_measured_the_image(machine: Machine) -> None:
    """Registers that are all zero tell no image: any system that boots so would get the key."""
    with pytest.raises(ModelKeyError, match="PCR 9, 11 are zero: nothing measured this image") as caught:
        machine.life(b"x\n", policy=machine.policy(pcrs=[9, 11, 15]))
    assert ("tpm-unmeasured", 0) == (caught.value.code, sum(machine.disk.read_bytes()))


def test_another_disk_of_ours_or_a_key_of_another_disk(machine: Machine) -> None:
    """A disk that another provider made has no sealed key; a sealed key of another disk opens nothing of this one."""
    StateDisk(machine.disk, Secret(bytearray(range(1, 33)))).close()
    used = machine.disk.read_bytes()
    with pytest.raises(StateError, match="has no key that a TPM sealed"):
        machine.life(b"x\n")
    machine.disk.write_bytes(bytes(4 * MIB))
    machine.life(b"one\n")
    foreign = bytearray(used)
    foreign[PLACES[0]:PLACES[0] + 4096] = machine.disk.read_bytes()[PLACES[0]:PLACES[0] + 4096]
    machine.disk.write_bytes(foreign)
    with pytest.raises(StateError, match="neither slot opens"):
        machine.life(b"x\n")
    assert bytes(foreign) == machine.disk.read_bytes()


def test_rotation_with_a_successor(machine: Machine) -> None:
    """The image that runs seals for the one that its policy's authority names. Then both open the disk, until the new
    one names the next; a third image does not."""
    here = machine.registers()
    following = {**here, 11: after(here[11], b"two"), 15: after(here[15], b"policy two")}
    disk = machine.life(b"one\n")[1]
    machine.name_successor(following)
    assert (2, disk) == machine.life(b"one again\n")
    assert all(machine.sealed())
    assert (3, disk) == machine.life(b"the first is not locked out\n")
    for pcr, event in ((11, b"two"), (15, b"policy two")):
        machine.extend(pcr, event)
    assert following == machine.registers()
    kept = machine.sealed()
    assert (4, disk) == machine.life(b"two\n"), "the document that names it stays beside the models"
    assert kept == machine.sealed()
    machine.name_successor({**following, 11: after(following[11], b"three")})
    assert (5, disk) == machine.life(b"two again\n")
    assert (True, kept[1]) == (machine.sealed()[0] != kept[0], machine.sealed()[1])
    machine.extend(11, b"three")
    assert (6, disk) == machine.life(b"three\n")
    machine.extend(4, b"a stranger")
    with pytest.raises(ModelKeyError, match="not what the key was sealed to"):
        machine.life(b"x\n")


def test_a_successor_may_be_sealed_to_other_registers(machine: Machine) -> None:
    """Its policy names its own; a policy that names others than the key was sealed to gets none."""
    disk = machine.life(b"one\n")[1]
    machine.name_successor(machine.registers([4, 9]))
    machine.life(b"one\n")
    with pytest.raises(ModelKeyError, match="PCR 4, 7 are not what"):
        machine.life(b"x\n", policy=machine.policy(pcrs=[4, 7]))
    assert (3, disk) == machine.life(b"two\n", policy=machine.policy(pcrs=[4, 9]))


def test_the_version_of_the_key(machine: Machine) -> None:
    """It is made with the version that the policy names, and no other is taken."""
    machine.life(b"one\n", policy=machine.policy("version = 3"))
    machine.life(b"two\n", policy=machine.policy("version = 3"))
    with pytest.raises(ModelKeyError) as caught:
        machine.life(b"x\n", policy=machine.policy("version = 4"))
    assert "key-version" == caught.value.code


WRONG = {
    "another signer": ("successor-signature", lambda m: m.name_successor(m.registers(), key=STRANGER)),
    "another appliance": ("successor-other", lambda m: m.name_successor(m.registers(), name="other")),
    "altered": ("successor-signature", lambda m: _altered(m, '"appliance":"demo"', '"appliance":"dem0"')),
    "no register": ("successor-malformed", lambda m: m.name_successor({})),
    "a register that no TPM has": ("successor-malformed", lambda m: m.name_successor({24: bytes(32)})),
    "a short value": ("successor-malformed", lambda m: m.name_successor({4: bytes(31)})),
    "upper case": ("successor-signature", lambda m: _altered(m, "ab" * 32, "AB" * 32)),
    "another format": ("successor-malformed", lambda m: _altered(m, "successor/v1", "successor/v2")),
    "a key more": ("successor-malformed", lambda m: _altered(m, '"pcrs"', '"more":1,"pcrs"')),
    "not JSON": ("successor-malformed", lambda m: (m.folder / "successor.json").write_bytes(b"\xff")),
    "too long": ("successor-malformed", lambda m: (m.folder / "successor.json").write_bytes(b" " * (1 << 15))),
}


def _altered(machine: Machine, old: str, new: str) -> None:
    machine.name_successor({4: b"\xab" * 32})
    path = machine.folder / "successor.json"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize("wrong", WRONG)
def test_a_document_of_somebody_else(wrong: str, machine: Machine) -> None:
    """Nobody but the policy's authority names a successor: the boot stops before the TPM is asked, and says why."""
    code, write = WRONG[wrong]
    write(machine)
    with pytest.raises(PolicyError) as caught:
        successor.registers_of(machine.policy(), [machine.folder])
    assert (code, True) == (caught.value.code, str(machine.folder / "successor.json") in caught.value.summary)
    assert caught.value.hint


CUTS = [(1, "nothing"), (1, "one byte"), (1, "half"), (1, "all"), (2, "half"), (5, "half"), (6, "half")]


@pytest.mark.slow
@pytest.mark.parametrize("named", [False, True])
def test_a_power_cut(named: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a blank disk, and while a key is sealed for a successor: the write of the sealed key is cut, and each kind
    that follows it. The next boot opens the disk, or formats what no boot has used."""
    here = machine.registers()
    for nth, part in CUTS[:5] if named else CUTS:
        machine.disk.write_bytes(bytes(4 * MIB))
        (machine.folder / "successor.json").unlink(missing_ok=True)
        if named:
            machine.life(b"one\n")
            machine.name_successor({**here, 11: after(here[11], b"two")})
        _dies_at(nth, PARTS[part], monkeypatch)
        with pytest.raises(Killed):
            machine.life(b"cut\n")
        monkeypatch.undo()
        assert machine.life(b"next\n")[0] in ((2, 3) if named else (1, 2)), (nth, part)
        assert named == bool(machine.sealed()[1])


def test_a_long_snapshot_leaves_the_key_alone(tmp_path: Path) -> None:
    """The longest that is taken ends before the key's place; one byte more is refused."""
    key = Secret(bytearray(range(1, 33)))
    path = tmp_path / "disk"
    path.write_bytes(bytes(4 * MIB))
    other = StateDisk(path, key, most_saved=sealed_key.MAX_SAVED)
    for _ in range(2):
        other.save(b"s" * sealed_key.MAX_SAVED)
    data = path.read_bytes()
    assert all(not any(data[at:at + 4096]) and any(data[at - 16:at]) for at in PLACES)
    with pytest.raises(StateError, match="bytes to save, at most"):
        other.save(b"s" * (sealed_key.MAX_SAVED + 1))
    other.close()


def test_who_names_the_successor_by_the_command(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """`appliance image successor` signs what `predict` computed, for the policy that will run; a boot takes it."""
    here = machine.registers()
    machine.policy()
    loaded = load(machine.folder / "deployment.hcl")
    registers = {str(number): ["00" * 32] for number in (2, 3, 4, 5, 6, 9, 12, 13)}
    registers |= {"4": [here[4].hex()], "11": [after(here[11], b"two").hex()]}
    measured, pem = machine.folder / "measurements.json", machine.folder / "authority.pem"
    measured.write_bytes(measurements(tpm={"bank": "sha256", "pcrs": registers, "golden": [], "events": []}))
    pem.write_bytes(AUTHORITY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    words = ["image", "successor", str(measured), "--policy", str(loaded.path), "--key", str(pem), "-o",
             str(machine.folder / "successor.json")]
    assert 0 == main([*words, "--json"])
    said = json.loads(capsys.readouterr().out)["pcrs"]
    assert {"4", "11", "15"} == set(said)
    found = successor.registers_of(loaded.policy, [machine.folder])
    assert {int(number): bytes.fromhex(value) for number, value in said.items()} == found
    assert found[11] == after(here[11], b"two")
    loaded.path.write_text(BASE)
    assert 2 == main(words)
    assert "has no state key in a TPM" in capsys.readouterr().err


def test_read_by_its_specification(machine: Machine) -> None:
    """A reader that was written from the format alone finds the sealed key, and with it slots and log."""
    machine.life(b"one\n")
    policy = machine.policy()
    release = KeyRelease(policy_keys.keys_of(policy), seconds=20, tpm=machine.tpm)
    try:
        release.start({})
        keys = release.keys(attestor(), tolerant=False, own=sealed_key.own_key(sealed_key.read(policy), {}))
    finally:
        release.close()
    with keys[policy_keys.STATE] as secret:
        slot, log = state_by_spec.disk(bytes(secret.data), machine.disk.read_bytes())
        assert bytes(secret.data) not in machine.disk.read_bytes()
    assert (1, [b"one\n"]) == (slot["epoch"], [payload for kind, payload in log if kind == 2])
