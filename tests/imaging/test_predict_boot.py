"""Predictions against a machine: OVMF, the boot stub and Linux measure into a software TPM what was predicted.

The registers are read from the TPM itself, from outside of the guest (`predict_machine`), so nothing in the image takes
part in the comparison.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from appliance.attestation.case.measurements import Measurements
from appliance.attestation.measured import events
from appliance.attestation.measured.first import GOLDEN_PCRS, PREDICTED_PCRS, Golden
from appliance.attestation.tpm.judging import registers
from appliance.imaging.predict import golden as predict_golden
from appliance.imaging.predict import gpt as predict_gpt
from appliance.imaging.predict import machine as predict_machine
from appliance.imaging.predict import predict
from appliance.imaging.predict import tpm as predict_tpm
from appliance.imaging.predict import uki as predict_uki
from appliance.imaging.qemu import run as boot
from appliance.imaging.recipe import manifest
from tests.support import images

pytestmark = [pytest.mark.guests, pytest.mark.timeout(900)]
OTHER_POLICY = ('name   = "demo"', 'name   = "demo-of-another-policy"')
WORDS = ("appliance.test=1",)
SMBIOS = "type=11,value=io.systemd.stub.kernel-cmdline-extra=appliance.host=1"


def _failed(values: dict[int, bytes], image: Measurements) -> list[str]:
    return [finding.rule for finding in registers.judge(values, image) if finding.outcome == "fails"]


def linked(image: Path, folder: Path) -> Path:
    """A folder of the image's own files, for what is predicted of it to be written beside them."""
    folder.mkdir()
    for name in (*manifest.FILES, manifest.NAME):
        (folder / name).symlink_to((image / name).resolve())
    return folder


class Started:
    """Two images with their predictions, and what machines show that run them."""

    def __init__(self, folder: Path, image: Path) -> None:
        other = folder / "other.hcl"
        other.write_text(images.DEMO.read_text("utf-8").replace(*OTHER_POLICY), "utf-8")
        self.folders = (linked(image, folder / "one"), images.make(folder / "two", policy=other, words=WORDS))
        self.altered = self.with_a_letter_changed(folder / "altered")
        with ThreadPoolExecutor(2) as pool:  # as many machines at a time
            self.values = list(pool.map(self.registers, self.folders))
            of_altered = pool.submit(self.registers, self.altered)
            of_smbios = pool.submit(self.registers, self.folders[0], "-smbios", SMBIOS)
            self.of_altered, self.of_smbios = of_altered.result(), of_smbios.result()
        self.golden = predict_golden.of("tcg-1cpu-512m", "00" * 32, self.values[0])
        self.predicted = [self.predict(image, self.golden) for image in self.folders]

    @staticmethod
    def registers(image: Path, *words: str) -> dict[int, bytes]:
        """What the TPM of a machine holds that runs this image."""
        return predict_machine.registers(boot.Options(image, memory=512, accelerator="tcg", confidential="none",
                                                      extra=words))

    def with_a_letter_changed(self, folder: Path) -> Path:
        """The first image with another os-release on its system partition."""
        disk = bytearray((self.folders[0] / "disk.raw").read_bytes())
        disk[disk.index(b"\nNAME=Appliance\n") + 6] ^= 1
        altered = linked(self.folders[0], folder)
        (altered / "disk.raw").unlink()
        (altered / "disk.raw").write_bytes(disk)
        return altered

    @staticmethod
    def predict(image: Path, *golden: Golden) -> Measurements:
        """From the files alone."""
        return predict.predict(predict.Options(image, golden=golden))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory, image: Path) -> Started:
    """Built and started once for all of these tests."""
    images.need("qemu-system-x86_64", "swtpm")
    return Started(tmp_path_factory.mktemp("started"), image)


def test_predicted_registers_are_those_that_the_tpm_reports(started: Started) -> None:
    """Two policies, two command lines: each predicted PCR, and the golden ones of the same machine for both images."""
    policies = {manifest.read(image)["policy"]["sha384"] for image in started.folders}
    cmdlines = {(image / "cmdline").read_text("ascii") for image in started.folders}
    assert (2, 2) == (len(policies), len(cmdlines))
    for values, image in zip(started.values, started.predicted, strict=True):
        assert [] == _failed(values, image)
        assert {values[number] for number in PREDICTED_PCRS} == {
            next(iter(image.tpm_pcrs()[number])) for number in PREDICTED_PCRS}


def test_one_image_does_not_pass_for_the_other(started: Started) -> None:
    """Another policy or command line moves PCR 4, 5, 9 and 11, and no golden register."""
    for values, image in zip(started.values, reversed(started.predicted), strict=True):
        assert ["pcr4", "pcr5", "pcr9", "pcr11"] == _failed(values, image)
    assert [started.values[1][number] for number in GOLDEN_PCRS] == [
        started.values[0][number] for number in GOLDEN_PCRS]


def test_a_quote_without_a_recorded_machine_is_refused(started: Started) -> None:
    """Without golden values nothing is accepted, whatever the predicted registers say."""
    bare = started.predict(started.folders[0])
    assert ["golden-pcrs"] == _failed(started.values[0], bare)


def test_one_byte_of_the_disk_that_changes_nothing_else_is_found(started: Started) -> None:
    """A letter of os-release on the system partition: the guest boots as ever, and its registers are others."""
    assert ["pcr4", "pcr9", "pcr11"] == _failed(started.of_altered, started.predicted[0])


def test_arguments_in_smbios_are_measured_and_refused(started: Started) -> None:
    """The boot stub takes a command line from the host's SMBIOS strings; it also measures it: PCR 12 is not zero."""
    assert "pcr12" in _failed(started.of_smbios, started.predicted[0])


@pytest.mark.parametrize("part", ["vmlinuz", "initrd.cpio", "cmdline", "os-release"])
def test_one_byte_of_any_part_gives_another_prediction(started: Started, part: str) -> None:
    """Kernel, initrd, command line and os-release each reach a register that the real machine shows otherwise."""
    folder = started.folders[0]
    uki = predict_uki.parse((folder / "appliance.efi").read_bytes())
    section = {"vmlinuz": ".linux", "initrd.cpio": ".initrd", "cmdline": ".cmdline", "os-release": ".osrel"}[part]
    where = next(each for each in uki.pe.sections if each.name == section)
    data = bytearray(uki.pe.data)
    data[where.raw_at + where.size // 2] ^= 1
    altered = predict_uki.parse(bytes(data))
    tpm = events.pcrs(predict_tpm.boot_events(altered, predict_gpt.event(folder / "disk.raw")))
    changed = {number for number in PREDICTED_PCRS
               if tpm.accepted()[number] != frozenset((started.values[0][number],))}
    assert {"vmlinuz": {4, 11}, "initrd.cpio": {4, 9, 11}, "cmdline": {4, 9, 11}, "os-release": {4, 9, 11}}[
        part] == changed
