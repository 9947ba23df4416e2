"""`appliance image predict|record|export|sbom|kubevirt`: files, exit codes, and what people are told."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from appliance.attestation.case import measurements
from appliance.cli.main import main
from appliance.imaging.papers import container, provenance
from appliance.imaging.predict import predict
from appliance.imaging.qemu import run as boot
from appliance.policy import load
from tests.support import fake_firmware, fake_image, fake_tpm, images
from tests.support.expected import ROOT

DEMO = ROOT / "examples/demo.hcl"
STATE = """
state {
  device = "/dev/appliance-state"
  key { provider = "ephemeral" }
}
"""
BUILDER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
ID_KEY = ec.derive_private_key(7, ec.SECP384R1())


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image with the demo policy, and beside it keys, firmware and an event log."""
    for name, key in (("builder.pem", BUILDER), ("id.pem", ID_KEY)):
        (tmp_path / name).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "ovmf.fd").write_bytes(fake_firmware.firmware())
    (tmp_path / "old.fd").write_bytes(fake_firmware.firmware(snp=None))
    (tmp_path / "log").write_bytes(fake_tpm.event_log([(0, 8, b"firmware"), (7, 4, b"\0\0\0\0")]))
    return fake_image.write(tmp_path / "out", policy=load(DEMO).digest.hex())


def _run(*words: object) -> int:
    return main(["image", *map(str, words)])


def test_a_prediction_is_written_signed_and_told(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Golden values from a log, then all of it: what is not verified or not predicted is said plainly."""
    folder = image.parent
    assert 0 == _run("record", "--from", folder / "log", "--firmware", folder / "ovmf.fd", "--machine", "mine", "-o",
                     folder / "golden.json", "--json")
    assert (folder / "golden.json").read_bytes().decode() == capsys.readouterr().out.strip()
    assert 0 == _run("predict", image, "--golden", folder / "golden.json", "--firmware", folder / "ovmf.fd", "--vcpus",
                     "1,3", "--cpu-model", "EPYC-Milan,EPYC-v4", "--id-key", folder / "id.pem", "--tdx-firmware",
                     folder / "ovmf.fd", "--key", folder / "builder.pem")
    told = capsys.readouterr().out
    data, signature = ((image / name).read_bytes() for name in (predict.OUTPUT, predict.SIGNATURE))
    found = measurements.signed(data, signature, BUILDER.public_key().public_bytes_raw())
    assert {(1, "EPYC-Milan"), (3, "EPYC-Milan"), (1, "EPYC-v4"), (3, "EPYC-v4")} == {
        (each.vcpus, each.cpu_model) for each in found.sev_snp}
    assert found.tpm is not None
    assert ["mine"] == [shape.machine for shape in found.tpm.golden]
    assert all(each.launch_digest in told for each in found.sev_snp)
    assert "no value of this entry was compared with TDX hardware" in told
    assert told.rstrip().endswith("signed")


def test_what_is_missing_is_told(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No firmware, no golden values, no key: predicted all the same, and each lack is named."""
    assert 0 == _run("predict", image)
    told = capsys.readouterr().out
    for words in ("no --firmware given", "no --tdx-firmware given", "every TPM quote will be refused", "NOT SIGNED"):
        assert words in told
    assert 0 == _run("predict", image, "--json")
    assert (image / predict.OUTPUT).read_bytes().decode() == capsys.readouterr().out.strip()


def test_a_manifest_without_its_fields_is_refused(image: Path, tmp_path: Path,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    """By every action that reads one, and with the field's name."""
    (image / "image.json").write_text('{"format":"appliance/image/v1"}')
    for words in (["predict", image], ["sbom", image], ["export", image, "--format", "vhd", "-o", tmp_path / "x"],
                  ["container", image, "-o", tmp_path / "x"]):
        assert 2 == _run(*words), words
        assert "is absent" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_what_cannot_be_predicted_is_refused(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Firmware that measures no kernel; a key of the wrong kind; two sources of golden values, or none."""
    folder = image.parent
    golden = ("--machine", "x", "--firmware", folder / "ovmf.fd", "-o", folder / "golden.json")
    for words, said in ((("predict", image, "--firmware", folder / "old.fd"), "no SEV-SNP metadata"),
                        (("predict", image, "--key", folder / "id.pem"), "no Ed25519 key"),
                        (("predict", image, "--firmware", folder / "ovmf.fd", "--id-key", folder / "builder.pem"),
                         "P-384"),
                        (("predict", image, "--id-key", folder / "id.pem"), "SEV-SNP launch"),
                        (("predict", folder), "image.json"), (("record", *golden), "name one of them"),
                        (("record", image, "--from", folder / "log", *golden), "name one of them")):
        assert 0 != _run(*words)
        assert said in capsys.readouterr().err
    assert not (image / predict.OUTPUT).exists()


def test_papers_are_written_elsewhere(image: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """The SBOM alone into a file or to standard output, or all papers into a folder; the image stays as it is."""
    before = {path.name for path in image.iterdir()}
    assert 0 == _run("sbom", image, "-o", tmp_path / "bom.json")
    capfdbinary.readouterr()
    assert 0 == _run("sbom", image, "-o", "-")
    assert (tmp_path / "bom.json").read_bytes() == capfdbinary.readouterr().out
    assert 2 == _run("sbom", image, "-o", tmp_path / "x", "--key", image.parent / "builder.pem")
    assert b"name a folder that is there: -o DIR" in capfdbinary.readouterr().err
    assert not (tmp_path / "x").exists()
    (tmp_path / "papers").mkdir()
    assert 0 == _run("sbom", image, "-o", tmp_path / "papers", "--key", image.parent / "builder.pem")
    assert {"sbom.cdx.json", provenance.STATEMENT_NAME, provenance.ENVELOPE_NAME} == {
        path.name for path in (tmp_path / "papers").iterdir()}
    assert before == {path.name for path in image.iterdir()}


def test_papers_are_written(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SBOM with the policy's model, provenance over it, and an envelope only where there is a key."""
    assert 0 == _run("sbom", image, "--policy", DEMO, "--key", image.parent / "builder.pem")
    statement = (image / provenance.STATEMENT_NAME).read_bytes()
    assert "sbom.cdx.json" in {each["name"] for each in json.loads(statement)["subject"]}
    assert "model:demo" in (image / "sbom.cdx.json").read_text()
    assert (image / provenance.ENVELOPE_NAME).read_bytes() == provenance.envelope(statement, BUILDER)
    capsys.readouterr()
    assert 0 == _run("sbom", image, "--json")
    assert [{"file": str(path), "size": path.stat().st_size} for path in (
        image / "sbom.cdx.json", image / provenance.STATEMENT_NAME)] == json.loads(capsys.readouterr().out)
    assert not (image / provenance.ENVELOPE_NAME).exists()


def test_a_disk_is_exported_and_a_manifest_rendered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A disk of whole MiB goes out; a container by tag does not go into a manifest."""
    out = fake_image.write(tmp_path / "out")
    (out / "disk.raw").write_bytes(fake_image.disk(b"x").ljust(2 << 20, b"\0"))
    fake_image.manifest(out)
    assert 0 == _run("export", out, "--format", "raw", "-o", tmp_path / "disk", "--json")
    assert {"file": str(tmp_path / "disk"), "size": 2 << 20} == json.loads(capsys.readouterr().out)
    assert (out / "disk.raw").read_bytes() == (tmp_path / "disk").read_bytes()
    os.mkfifo(tmp_path / "pipe")
    for words in (("export", out, "--format", "raw"), ("container", out)):
        assert 2 == _run(*words, "-o", tmp_path / "pipe")
        assert "not a regular file" in capsys.readouterr().err
    for target, said in (("/", "/ cannot be written"), (tmp_path / "none/x", "none/x cannot be written: No such file"),
                         (tmp_path / "out", "out cannot be written: Is a directory")):
        assert 2 == _run("export", out, "--format", "raw", "-o", target)
        assert said in capsys.readouterr().err
    assert {"disk", "out", "pipe"} == {each.name for each in tmp_path.iterdir()}
    pinned = "registry.example/appliance@sha256:" + "ab" * 32
    assert 0 == _run("kubevirt", DEMO, "--container", pinned, "--models-claim", "models", "-o",
                     tmp_path / "vm.json", "--json")
    assert str(tmp_path / "vm.json") == json.loads(capsys.readouterr().out)["file"]
    assert "List" == json.loads((tmp_path / "vm.json").read_bytes())["kind"]
    assert 0 != _run("kubevirt", DEMO, "--container", "registry.example/appliance:latest")
    assert "digest" in capsys.readouterr().err


def test_a_container_is_of_the_file_that_the_manifest_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A root file system that was altered since the build does not get into one; no cache is asked for tools then."""
    out = fake_image.write(tmp_path / "out")
    (out / "root.img").write_bytes((out / "root.img").read_bytes() + b"x")
    words = ("container", out, "-o", tmp_path / "root.tar", "--cache", tmp_path / "cache")
    assert 2 == _run(*words)
    assert "root.img: SHA-256 " in capsys.readouterr().err
    fake_image.manifest(out)
    assert 2 == _run(*words, "--mirror", f"debian=file://{tmp_path}/none", "--mirror", f"security=file://{tmp_path}/none")
    assert f"file://{tmp_path}/none/" in capsys.readouterr().err, "tools that the cache lacks come from the mirrors"
    assert {"out"} == {each.name for each in tmp_path.iterdir()}


def test_the_command_of_a_container_is_in_one_piece(capsys: pytest.CaptureFixture[str]) -> None:
    """The line of the help that people copy."""
    with pytest.raises(SystemExit):
        _run("container", "--help")
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("docker import"))
    assert ["docker", "import", "--change"] == (words := shlex.split(line))[:3]
    assert list(container.COMMAND) == json.loads(words[3].removeprefix("ENTRYPOINT "))


def test_a_state_disk_is_there_and_keeps_what_was_flushed(image: Path, tmp_path: Path,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    """QEMU's `cache=unsafe` ignores a guest's flushes: this machine's power cut would take back what is on the disk."""
    images.need("qemu-system-x86_64")
    assert 2 == _run("boot", image, "--state", tmp_path / "state")
    assert "truncate -s 1G" in capsys.readouterr().err
    (tmp_path / "state").touch()
    with boot.machine(boot.Options(image, state=tmp_path / "state", accelerator="tcg", direct=True,
                                   confidential="none")) as words:
        (drive,) = (word for word in words if f"file={tmp_path / 'state'}" in word)
    assert "cache=writeback" in drive.split(",")


def test_what_would_be_ignored_is_refused(image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another policy for an image that has one; a vsock device that the host lacks; a policy that no boot keeps."""
    images.need("qemu-system-x86_64")
    other = tmp_path / "other.hcl"
    other.write_text(DEMO.read_text().replace('name   = "demo"', 'name   = "another"'))
    kept = tmp_path / "kept.hcl"
    kept.write_text(DEMO.read_text().replace("streaming_decrypt = false", "streaming_decrypt = true").replace(
        '"stdout"', '"state"') + STATE)
    cases = [(("boot", image, "--policy", other), "the image has a policy of its own"),
             (("build", kept, "-o", tmp_path / "new"), 'model "demo".streaming_decrypt (kept.hcl:')]
    if not Path("/dev/vhost-vsock").exists():
        cases.append((("boot", image, "--vsock", "3"), "modprobe vhost_vsock"))
    for words, said in cases:
        assert 2 == _run(*words)
        assert said in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
