"""Predictions for clouds: Google's hand-off blocks and registers against what public logs of its machines show; its and
AWS's layout of SEV-SNP launches against sev-snp-measure; rows that `image predict` writes."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from sevsnpmeasure import guest, vcpu_types, vmm_types

from appliance.attestation.case import event_log, measurements
from appliance.attestation.google import rule
from appliance.attestation.measured import events
from appliance.cli.main import main
from appliance.errors import AttestationError, ImageError
from appliance.imaging.google import hob, log, machine
from appliance.imaging.google.machine import GoogleMachines
from appliance.imaging.predict import clouds, predict, tdx
from appliance.imaging.predict import firmware as predict_firmware
from appliance.policy.schema.platform import Gce
from tests.support import fake_firmware, fake_image
from tests.support import fake_google as google
from tests.support.fake_google import MRTD, NOW, OTHER, FakeGoogle
from tests.support.vectors import need

GOOGLE = FakeGoogle()
FIRMWARE = predict_firmware.parse(google.firmware())

# GiB of memory to the digest of the hand-off blocks, as machines of Google's have logged them: the first also in
# shared/vectors/eventlog/gce_ccel.bin.gz, all four in the tests of flashbots' attest-measure.
HOBS = {16: "458994daa60deac8dea19dba79748f6ff93fd0aebb8e3e0be5a65eb12309d342c3ce31cc67af7bbd22af1a44e7d9fe21",
        32: "aa9e81feeb58a9eb3a9f4110cc7b5696240437ea4c1a9c30518cfc44fa305183e6473e6bc02ddc4de09d0c49c49fadb5",
        88: "a5be8ecd74020972e328fbbe94d2886817ef0d2e8a4e94e9572e8e1b221f3f608cddc868cf8b08e8e645e4aaeba68279",
        176: "21092eadb73948aebb405b826354c23c3025635c89a8d91f85905afb120b7d98025a6c3083e8e82b5320695b253ce341"}

# Boots of other images on Google's machines: digests of partition table, boot program and kernel, then RTMR 1.
# From the logs CCEL_data_gcp and CCEL_data_grub_gke of confidential-containers/trustee, and from a quote that
# flashbots observed, with command line and initrd, whose RTMR 2 is known too.
BOOTS = [
    (("150de7cb5074b119f562209c0944a2a13350f146c46340ae3b168b289b273dfdfda8ba452bddda366f9f70cd3dd2aa17",
      "8a00de1d573d1af635e1e4e1f98c49c2fe5c3f7bc464097833a99eb78c2b9be2f90f3fe55e0f6314664fbee815a2aea5",
      "476f35ba0cf5110367716bcc5511591575588fde5794cd2ea7c6c0e89c4ccf4a29ce15343ff194e1143afd1f3c165011"),
     "204d49f78d29918fe7b2f694e76653861a0c2a018987d2c3a54266eff737232524cf0af68c4d180e2f8c2c0937f21967"),
    (("b6e099f656683dd378713b57d252155436f47a885460912773e039168da0c29e03a987a3f0a9bbcfa683849afd6e7a9e",
      "36e4a41d9f8491818894ef601cd110c9c2245dafaf96b43b833d500e754cadb05246d04f3ebf4592d0612a700e082644",
      "3c57129b96da53f0ee478f721b27e69b3c200421648b7011a054f05e5d2d24e4b2e5898c5df3c6e9ff7696227b14a981"),
     "c17cb288a4dee302bb9ed8d27257a168f3264ad68cab53757f37eeaa7039657fa887cad65cf910e0fdc435ff110f8a7b"),
    (("a3a41b0f933aec447be266dec5f907c2b0ba89afbc3f4f7378f0dca844969cbfca324ed64f1720da6e9d4484fda4f9da",
      "9b678ccbad7fc2f3935e3e760cf8daedd6e3e3e5a327e72ee9473399b7effac6bb5590002ed73a53f6b3a97d296852e2",
      "b6c5133268aa8b440509f3d53ee855a5cd3aeb6441eb109a9f27f14c43bce3e2383856df4af876501ceeb4c9a3b15f0c"),
     "2bd4946acfa6ccc29f9efa08a78fd5ace02194d0bc38d056003d2937c216e0de08dba010a661c4b344756234f08a4cf2")]
CMDLINE = ("console=tty0 console=ttyS0,115200n8 mitigations=auto,nosmt spec_store_bypass_disable=on nospectre_v2 "
           "transparent_hugepage=madvise systemd.unit=minimal.target")
INITRD = "305d9b8e2ce9b62bda924a990eed5234c8441882ba2cd603a427b1ac4180124bf1a49a4b49eae1796983ad608a4da666"
RTMR_2 = "4ae34b6b64c2a618c7ee61f488219fcd8383d149ad7e44606616598d73bd3f7a2f20846d780463278715433d9813af2c"


def _real_log() -> list[event_log.Event]:
    return event_log.parse(gzip.decompress(need("eventlog/gce_ccel.bin.gz").read_bytes()))


@pytest.mark.parametrize("ram", HOBS)
def test_hand_off_blocks_are_those_of_google_s_machines(ram: int) -> None:
    """Sections as Google's firmware has them, and nothing else, give the digest in public logs."""
    assert HOBS[ram] == hob.digest(FIRMWARE, ram).hex()


def test_hand_off_blocks_end_where_they_say() -> None:
    """Memory of several nodes is several ranges, and all of it is there once."""
    for ram in (16, 176, 352, 704):
        data = hob.build(FIRMWARE, ram)
        assert 0x809000 + len(data) == int.from_bytes(data[48:56], "little")
        ranges = [(int.from_bytes(data[at + 32:at + 40], "little"), int.from_bytes(data[at + 40:at + 48], "little"))
                  for at in range(56, len(data), 48)]
        high = [length for start, length in ranges if start >= 1 << 32]
        assert (ram << 30) - (3 << 30) == sum(high)
        assert -(-ram // 176) == len(high)


@pytest.mark.parametrize(("data", "ram"), [(fake_firmware.firmware(), 3), (fake_firmware.firmware(tdx=()), 16)])
def test_memory_without_hand_off_blocks_is_refused(data: bytes, ram: int) -> None:
    """A machine too small, and firmware without a place for them."""
    with pytest.raises(ImageError):
        hob.build(predict_firmware.parse(data), ram)


def _boot(gpt: bytes, program: bytes, kernel: bytes, *second: bytes) -> list[events.BootEvent]:
    """A boot as `events.of` lists it, with digests of another image."""
    def event(pcr: int, kind: int, digest: bytes) -> events.BootEvent:
        return events.BootEvent(pcr, kind, "", {"sha384": digest})

    def action(pcr: int, text: bytes) -> events.BootEvent:
        return event(pcr, events.EV_EFI_ACTION, hashlib.sha384(text).digest())

    return [action(4, events.CALLING), *(event(pcr, events.EV_SEPARATOR, hashlib.sha384(bytes(4)).digest())
                                      for pcr in events.SEPARATED), event(5, events.EV_EFI_GPT_EVENT, gpt),
            event(4, events.EV_EFI_BOOT_SERVICES_APPLICATION, program),
            event(4, events.EV_EFI_BOOT_SERVICES_APPLICATION, kernel),
            *(event(9, events.EV_EVENT_TAG, digest) for digest in second), action(5, events.EXIT_CALLED),
            action(5, events.EXIT_DONE)]


@pytest.mark.parametrize(("digests", "register"), BOOTS)
def test_rtmr_1_is_what_google_s_machines_show(digests: tuple[str, str, str], register: str) -> None:
    """Three boots of other images: our order of logged gives the register that was there."""
    first, second, third = map(bytes.fromhex, digests)
    assert register == events.rtmrs(_boot(first, second, third))[1].hex()


def test_rtmr_1_and_its_order_in_a_log_of_google_s() -> None:
    """The log in the vectors: its kinds of logged are ours, and ours give its register."""
    logged = [event for event in _real_log() if event.register == 2]
    assert [event.kind for event in logged] == [
        events.EV_EFI_ACTION, events.EV_SEPARATOR, events.EV_EFI_GPT_EVENT,
        *[events.EV_EFI_BOOT_SERVICES_APPLICATION] * 2,
        events.EV_EFI_ACTION, events.EV_EFI_ACTION]
    digests = [event.digests["sha384"] for event in logged[2:5]]
    assert event_log.replay(_real_log(), "sha384")[2] == events.rtmrs(_boot(*digests))[1]


def test_rtmr_2_ends_in_command_line_and_initrd() -> None:
    """Of a unified image that flashbots observed on Google's machines, whose stub measured no section."""
    boot = _boot(*map(bytes.fromhex, BOOTS[2][0]), hashlib.sha384((CMDLINE + "\0").encode("utf-16-le")).digest(),
                 bytes.fromhex(INITRD))
    assert RTMR_2 == events.rtmrs(boot)[2].hex()


def test_both_forms_of_rtmr_1() -> None:
    """One separator, or two; all else is alike, so that each covers the same boot."""
    boot = _boot(b"\1" * 48, b"\2" * 48, b"\3" * 48)
    separator = hashlib.sha384(bytes(4)).digest()
    for count in (1, 2):
        chain = [hashlib.sha384(events.CALLING).digest(), *[separator] * count, b"\1" * 48, b"\2" * 48, b"\3" * 48,
                 hashlib.sha384(events.EXIT_CALLED).digest(), hashlib.sha384(events.EXIT_DONE).digest()]
        assert events.extend(chain, "sha384") == events.rtmrs(boot, count)[1]


def test_rtmr_0_takes_from_a_log_what_no_file_gives() -> None:
    """With the log's own configuration volume, the register is the log's; with other memory or firmware, another."""
    logged = _real_log()
    own = {event.kind: event.digests["sha384"] for event in logged if event.register == 1}
    replaced = [event if event.kind != log.EV_EFI_PLATFORM_FIRMWARE_BLOB2 else event_log.Event(
        1, event.kind, {"sha384": hashlib.sha384(FIRMWARE.data[:0x20000]).digest()}, b"") for event in logged]
    assert HOBS[16] == own[log.EV_EFI_HANDOFF_TABLES2].hex()
    assert event_log.replay(replaced, "sha384")[1] == log.rtmr0(logged, FIRMWARE, 16)
    assert log.rtmr0(logged, FIRMWARE, 16) != log.rtmr0(logged, FIRMWARE, 32)


@pytest.mark.parametrize("count", [0, 2])
def test_a_log_of_another_kind_is_refused(count: int) -> None:
    """Not one event of the hand-off blocks, or two."""
    logged = [event for event in _real_log() for _ in range(
        count if event.kind == log.EV_EFI_HANDOFF_TABLES2 else 1)]
    with pytest.raises(ImageError, match="hand-off blocks"):
        log.rtmr0(logged, FIRMWARE, 16)


@pytest.mark.parametrize("vmm", ["gce", "ec2"])
def test_a_cloud_s_launch_is_what_the_judge_says(vmm: Any, tmp_path: Path) -> None:
    """sev-snp-measure with its own layout of the cloud: equal for each number of save areas."""
    data = fake_firmware.firmware()
    (tmp_path / "fw").write_bytes(data)
    found = clouds.launch_digests(predict_firmware.parse(data), vmm, (1, 2, 4, 48))
    assert [1, 2, 4, 48] == list(found)
    for vcpus, digest in found.items():
        assert digest == guest.snp_calc_launch_digest(
            vcpus, vcpu_types.CPU_SIGS["EPYC-Milan"], str(tmp_path / "fw"), "", "", "", 1, "",
            vmm_types.VMMType[vmm]), vcpus
    with pytest.raises(ImageError):
        clouds.launch_digests(predict_firmware.parse(fake_firmware.firmware(snp=None)), vmm, (1,))
    with pytest.raises(ImageError):
        clouds.launch_digests(predict_firmware.parse(data), vmm, (0,))


def _files(folder: Path, *, snp: dict[int, bytes] = google.LAUNCH, **changed: Any) -> GoogleMachines:
    """An endorsement of our firmware file, with the root beside it, the firmware and the log."""
    digest = hashlib.sha384(FIRMWARE.data).digest()
    shapes = [(tdx.mrtd(FIRMWARE, "page"), 0, 0), (OTHER, 32, 1)]
    (folder / "fw.binarypb").write_bytes(GOOGLE.endorsement(
        tdx=shapes, snp=snp, field5=google.content(5, digest), field6=b""))
    (folder / "GCE-cc-tcb-root_1.crt").write_bytes(GOOGLE.root.public_bytes(Encoding.DER))
    (folder / "fw.fd").write_bytes(FIRMWARE.data)
    (folder / "ccel").write_bytes(gzip.decompress(need("eventlog/gce_ccel.bin.gz").read_bytes()))
    return GoogleMachines(**{"document": folder / "fw.binarypb", "at": NOW, "root": GOOGLE.pin, **changed})


def _boot_of(folder: Path) -> list[events.BootEvent]:
    return _boot(*(bytes((each,)) * 48 for each in (1, 2, 3)))


def test_rows_of_an_endorsement(tmp_path: Path) -> None:
    """Each shape in both forms; its firmware alone proves nothing of an image on SEV-SNP."""
    tds, snps = machine.rows(_files(tmp_path), _boot_of(tmp_path))
    assert [(None, None), (None, None), (32, True), (32, True)] == [(row.ram_gib, row.early_accept) for row in tds]
    assert {True} == {row.image for row in tds}
    assert {None} == {row.rtmr[0] for row in tds}
    assert 2 == len({row.rtmr[1] for row in tds})
    assert [(1, 9, False), (4, 9, False)] == [(row.vcpus, row.svn, row.image) for row in snps]


def test_rtmr_0_is_predicted_by_size_of_memory(tmp_path: Path) -> None:
    """From firmware, log and memory: a shape that is endorsed for another size is left out."""
    tds, _ = machine.rows(_files(tmp_path, firmware=tmp_path / "fw.fd", log=tmp_path / "ccel", ram_gib=(16, 32)),
                          _boot_of(tmp_path))
    assert [("page", 16), ("page", 16), ("page", 32), ("page", 32), (None, 32), (None, 32)] == [
        (row.page_order, row.ram_gib) for row in tds]
    assert log.rtmr0(_real_log(), FIRMWARE, 16).hex() == tds[0].rtmr[0]


def test_another_firmware_than_the_endorsed_one_is_refused(tmp_path: Path) -> None:
    """By its digest; and RTMR 0 is not made of less than it takes."""
    (tmp_path / "other").write_bytes(fake_firmware.firmware())
    with pytest.raises(ImageError, match="the endorsement is of"):
        machine.rows(_files(tmp_path, firmware=tmp_path / "other"), [])
    with pytest.raises(ImageError, match="RTMR 0"):
        machine.rows(_files(tmp_path, ram_gib=(16,)), [])
    with pytest.raises(AttestationError):
        machine.rows(_files(tmp_path, root="00" * 32), [])


def test_the_command_writes_version_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Endorsed rows, a cloud's launch beside them; and the words for people say what is covered."""
    folder = fake_image.write(tmp_path / "out")
    _files(tmp_path)
    (tmp_path / "snp.fd").write_bytes(fake_firmware.firmware())
    words = ["image", "predict", str(folder), "--gce-endorsement", str(tmp_path / "fw.binarypb"), "--unsafe-root",
             str(tmp_path / "GCE-cc-tcb-root_1.crt"), "--at", f"{NOW:%Y-%m-%dT%H:%M:%SZ}", "--firmware",
             str(tmp_path / "snp.fd"), "--vmm", "ec2", "--vcpus", "4"]
    assert 0 == main(words)
    said = capsys.readouterr().out
    assert "4 x ec2, FIRMWARE ALONE" in said
    found = measurements.parse((folder / predict.OUTPUT).read_bytes())
    assert measurements.SECOND == found.format
    assert [("ec2", 4), ("gce", 1), ("gce", 4)] == [(row.vmm, row.vcpus) for row in found.snp_rows()]
    assert frozenset() == found.sev_snp_digests()
    assert {tdx.mrtd(FIRMWARE, "page"), OTHER} == found.tdx_mrtds() != {MRTD}
    assert {1, 2, 3} == set(found.tdx_rtmrs())


def test_an_endorsed_value_has_no_second_row(tmp_path: Path) -> None:
    """What we compute as well is the endorsement's row, with its security version: `gce-svn` takes no other."""
    folder, file = fake_image.write(tmp_path / "out"), tmp_path / "gce.fd"
    file.write_bytes(fake_firmware.firmware())
    _files(tmp_path)
    options = predict.Options(folder, predict.Snp(file, (4,), vmm="gce"), tmp_path / "fw.fd")
    own = predict.predict(options)
    launch = own.snp_rows()[0].launch_digest
    assert tdx.mrtd(FIRMWARE, "page").hex() in {each.mrtd for each in own.tdx}
    said = _files(tmp_path, snp={4: bytes.fromhex(launch)})
    found = predict.predict(replace(options, cloud=lambda boot: machine.rows(said, boot)))
    assert [(4, launch, 9)] == [(row.vcpus, row.launch_digest, row.svn) for row in found.snp_rows()]
    assert "holds" == rule.judge(found.snp_rows(), Gce(min_svn=9)).outcome
    assert {3} == {getattr(row, "svn", None) for row in found.tdx if row.mrtd == tdx.mrtd(FIRMWARE, "page").hex()}


def test_a_launch_of_too_many_processors_is_named(tmp_path: Path) -> None:
    """Google signs it, and no row has room for it."""
    with pytest.raises(ImageError, match="513 processors"):
        machine.rows(_files(tmp_path, snp={513: bytes(48)}), _boot_of(tmp_path))


def test_what_is_not_needed_keeps_version_1(tmp_path: Path) -> None:
    """Without a row that needs version 2, the file is as before."""
    folder = fake_image.write(tmp_path / "out")
    found = predict.predict(predict.Options(folder))
    assert measurements.FORMAT == found.format


@pytest.mark.parametrize("words", [
    ["--gce-ram", "16"], ["--vmm", "gce"], ["--vmm", "ec2", "--firmware", "x", "--id-key", "y"]])
def test_options_that_need_others_are_refused(tmp_path: Path, words: list[str],
                                              capsys: pytest.CaptureFixture[str]) -> None:
    """Named, with what to give."""
    assert 0 != main(["image", "predict", str(tmp_path), *words])
    assert "hint" in capsys.readouterr().err
