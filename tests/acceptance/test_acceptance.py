"""A machine is accepted, end to end: an image boots, each attack is refused, and the bundle is judged anywhere. SEV-SNP
and TDX are faked below the kernel; the guest with a TPM is in tests/imaging/test_image_acceptance.py."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.acceptance import bundle
from appliance.acceptance.machine import AcceptanceError
from appliance.auditor.archive import zipped
from appliance.cli.main import main
from tests.support import acceptance_machine, fake_appliance, fake_image, hardware_server

SHOWN = {"replay", "relay", "stolen-key", "report", "statement", "software"}  # attacks by what a client is shown
BOOTED = {"kernel", "initrd", "command-line"}  # by another boot that comes up


@dataclass(frozen=True)
class Owner:
    """A person with a machine, and the folder of its trial."""

    folder: Path

    @property
    def bundle(self) -> Path:
        """Where the bundle is."""
        return self.folder / "out.bundle"


@pytest.fixture(scope="module", params=["sev-snp", "tdx"])
def owner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory,
          tiny_model: Path) -> Owner:
    """One trial of each faked platform, with every attack."""
    folder, platform = tmp_path_factory.mktemp("accept"), request.param
    words = prepare(folder, platform, tiny_model)
    with contextlib.redirect_stdout(io.StringIO()) as printed, acceptance_machine.host(folder / "host"):
        code = main(["accept", str(folder / "image"), "-o", str(folder / "out.bundle"), *words,
                     f"--boot-command={command(platform, folder, tiny_model)}"])
    assert 0 == code, printed.getvalue()
    return Owner(folder)


def command(platform: str, folder: Path, model: Path) -> str:
    """The owner's command that boots an image on the faked machine."""
    return f"{sys.executable} -m tests.support.acceptance_boot {folder / 'host'} {platform} {folder} {model.parent}"


def prepare(folder: Path, platform: str, model: Path) -> tuple[str, ...]:
    """What an owner has before: a policy, an image and its measurements, a vendor's documents."""
    hardware_server.write(folder, platform, model, schema=2, evidence=hardware_server.EVIDENCE.format(tcb='"genoa" '))
    image = fake_image.write(folder / "image", system=lambda program: program + acceptance_machine.ROOT_IMAGE)
    acceptance_machine.prepare(platform, folder)
    measured = acceptance_machine.measured(image)
    registers = (None, measured, hardware_server.RTMRS[2], None)
    (image / "measurements.json").write_bytes(fake_appliance.measured(
        launch=(measured,), mrtd=hardware_server.MRTD, rtmrs=registers).to_json())
    return ("--policy", str(folder / "policy.hcl"), "--collateral", str(folder / "collateral"), "--unsafe-root",
            str(folder / "root.der"))


def judged(owner: Owner, path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    """Exit code and outcome of a judgement somewhere else."""
    code = main(["accept", "--judge", str(path), "--json", *words])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_each_attack_is_refused_by_its_rule(owner: Owner, capsys: pytest.CaptureFixture[str]) -> None:
    """What a host shows or boots is refused by evidence, and another root file system does not come up."""
    elsewhere = owner.folder / "elsewhere.bundle"
    shutil.copy(owner.bundle, elsewhere)
    code, told = judged(owner, elsewhere, capsys, "--unsafe-root", str(owner.folder / "root.der"))
    attacks = {name: each["ended"] for name, each in told["attacks"].items()}  # type: ignore[attr-defined]
    assert (0, True) == (code, told["held"])
    assert dict.fromkeys(SHOWN | BOOTED, "refused") == {name: attacks[name] for name in SHOWN | BOOTED}
    assert "silent" == attacks["root"]
    assert {"not tried"} == {attacks[name] for name in ("clock", "cpus")}  # options of QEMU, which no fake has


@pytest.mark.slow
def test_a_bundle_brings_no_trust_of_its_own(owner: Owner, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the root of the test's vendor, which is nobody's, a bundle shows nothing."""
    code, told = judged(owner, owner.bundle, capsys)
    assert (1, "bundle-refused") == (code, told["code"])


@pytest.mark.slow
def test_no_byte_can_be_changed(owner: Owner) -> None:
    """A bundle of which a byte is another is refused by the name of a file: each byte of the headers, the manifest, the
    seal and the signature, and bytes of every file."""
    data = owner.bundle.read_bytes()
    names = list(zipped.read(data, lambda _: 1 << 24))
    random.seed(1)
    ends = data.index(b"PK\3\4", 4), data.index(f"{bundle.SEAL}/".encode(), data.index(b"PK\3\4", 4))
    places = {*range(0, ends[0], 7), *range(ends[1], len(data), 11), *random.sample(range(len(data)), 2000)}
    for at in sorted(places):
        changed = bytearray(data)
        changed[at] ^= 1 << random.randrange(8)
        with pytest.raises(AcceptanceError) as refused:
            bundle.unpack(bytes(changed))
        assert "bundle-altered" == refused.value.code
        said = refused.value.summary
        assert any(name in said for name in names) or "the archive's end" in said, said


@pytest.mark.slow
def test_a_file_exchanged_with_a_new_checksum(owner: Owner) -> None:
    """An archive that somebody packs again, with right checksums, is refused by the file's name; so is one with a
    manifest to match, which the seal does not answer."""
    whole = bundle.unpack(owner.bundle.read_bytes())
    entries = zipped.read(owner.bundle.read_bytes(), lambda _: 1 << 24)
    other = b'{"another": "policy"}'
    packed = zipped.written([zipped.stored(name, other if name == "policy/deployment.hcl" else each.content())
                             for name, each in entries.items()])
    with pytest.raises(AcceptanceError, match=r"policy/deployment\.hcl"):
        bundle.unpack(packed)
    forged = dict(whole.files) | {"policy/deployment.hcl": other}
    key = Ed25519PrivateKey.generate()
    manifest = whole.manifest.model_copy(update={
        "signer": key.public_key().public_bytes_raw().hex(),
        "files": {name: bundle.file_of(content) for name, content in sorted(forged.items())}})
    with pytest.raises(AcceptanceError, match="the seal is of another manifest"):
        bundle.unpack(bundle.pack(manifest, forged, whole.seal, key))
