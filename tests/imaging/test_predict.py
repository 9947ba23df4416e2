"""Predictions from an image's folder: files must be the manifest's, and every event is computed from them."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.attestation.case import measurements
from appliance.attestation.case.event_log import Event
from appliance.attestation.measured import events
from appliance.errors import ImageError
from appliance.imaging.predict import firmware as predict_firmware
from appliance.imaging.predict import golden as predict_golden
from appliance.imaging.predict import gpt as predict_gpt
from appliance.imaging.predict import pe as predict_pe
from appliance.imaging.predict import predict
from appliance.imaging.predict import tdx as predict_tdx
from appliance.imaging.predict import uki as predict_uki
from appliance.imaging.qemu import confidential, machine
from appliance.imaging.recipe import manifest
from tests.fuzz import driver, image_fuzz
from tests.support import fake_firmware, fake_image, fake_tpm

BUILDER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
GOLDEN = predict_golden.of("q35-1cpu", "ab" * 32, {0: bytes(32), 7: b"\x07" * 32})


def _sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def _chained(*contents: bytes) -> str:
    value = bytes(32)
    for content in contents:
        value = _sha256(value, _sha256(content))
    return value.hex()


def _predicted(folder: Path, **what: object) -> measurements.Measurements:
    return predict.predict(predict.Options(folder, **what))  # type: ignore[arg-type]


def test_registers_are_chains_of_what_is_in_the_files(tmp_path: Path) -> None:
    """PCRs 2, 3, 5, 6, 9, 11, 12 and 13, each chained here from the parts that went into the image."""
    found = _predicted(fake_image.write(tmp_path / "out"))
    assert found.tpm is not None
    values = {int(name): accepted for name, accepted in found.tpm.pcrs.items()}
    separator = _chained(bytes(4))
    assert {separator} == {values[number][0] for number in (2, 3, 6)}
    assert {"00" * 32} == {values[number][0] for number in (12, 13)}
    kernel = fake_image.pe((".text", b"kernel" * 300))
    sections = ((".linux", kernel), (".osrel", b"ID=appliance\n"), (".cmdline", fake_image.CMDLINE.encode()),
                (".initrd", fake_image.CPIO_END), (".uname", b"6.12.0"), (".sbat", b"sbat,1\n"))
    assert _chained(*(part for name, data in sections for part in (name.encode() + b"\x00", data))) == values[11][0]
    head = b"070701" + b"%08x" * 13
    folder = head % (1, 0o40555, 0, 0, 1, 0, 0, 0, 0, 0, 0, 7, 0) + b".extra\0\0\0\0"
    file = head % (2, 0o100444, 0, 0, 1, 0, 13, 0, 0, 0, 0, 18, 0) + b".extra/os-release\0ID=appliance\n\0\0\0"
    initrd = fake_image.CPIO_END + folder + file + fake_image.CPIO_END
    assert _chained(fake_image.CMDLINE.encode("utf-16-le") + b"\x00\x00", initrd) == values[9][0]
    gpt = (tmp_path / "out/disk.raw").read_bytes()
    entry = gpt[512:604] + struct.pack("<Q", 1) + gpt[1024:1152]
    assert _chained(bytes(4), entry, b"Exit Boot Services Invocation",
                    b"Exit Boot Services Returned with Success") == values[5][0]


def test_what_is_written_is_what_is_signed(tmp_path: Path) -> None:
    """The file parses and verifies; it names every file of the image; without a key no signature is left."""
    folder = fake_image.write(tmp_path / "out", policy="ab" * 48)
    (tmp_path / "fw").write_bytes(fake_firmware.firmware())
    snp = predict.Snp(tmp_path / "fw", (1, 2), ("EPYC-v4", "EPYC-Milan"), ec.derive_private_key(3, ec.SECP384R1()))
    found = _predicted(folder, snp=snp, tdx_firmware=tmp_path / "fw", golden=(GOLDEN,), key=BUILDER)
    data, signature = ((folder / name).read_bytes() for name in (predict.OUTPUT, predict.SIGNATURE))
    assert found == measurements.signed(data, signature, BUILDER.public_key().public_bytes_raw())
    assert 4 == len(found.sev_snp) == len(found.sev_snp_digests())
    assert ("ab" * 48, (GOLDEN,)) == (found.policy_sha384, found.tpm.golden if found.tpm else ())
    assert set(manifest.FILES) == set(found.image)
    assert all(each.id_block is not None for each in found.sev_snp)
    assert {1, 2, 3} == set(found.tdx_rtmrs())
    again = _predicted(folder, snp=snp, tdx_firmware=tmp_path / "fw", golden=(GOLDEN,))
    assert data == again.to_json()
    assert not (folder / predict.SIGNATURE).exists()


def _edit(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return edit


def _flip(data: bytes) -> bytes:
    return data[:-1] + bytes((data[-1] ^ 1,))


@pytest.mark.parametrize("name", manifest.FILES)
def test_a_file_that_is_not_the_manifest_s_is_refused(tmp_path: Path, name: str) -> None:
    """One bit of any file: named, and nothing written."""
    folder = fake_image.write(tmp_path / "out")
    _edit(name, _flip)(folder)
    with pytest.raises(ImageError, match=name) as caught:
        _predicted(folder)
    assert "image-file" == caught.value.code
    assert not (folder / predict.OUTPUT).exists()


@pytest.mark.parametrize("name", ["vmlinuz", "initrd.cpio", "cmdline"])
def test_parts_that_are_not_in_the_image_are_refused(tmp_path: Path, name: str) -> None:
    """A manifest that is honest about a part which is not the one in appliance.efi."""
    folder = fake_image.write(tmp_path / "out")
    _edit(name, _flip)(folder)
    fake_image.manifest(folder)
    with pytest.raises(ImageError, match=name):
        _predicted(folder)


@pytest.mark.parametrize("cmdline", [
    "quiet", "roothash=" + "11" * 32, fake_image.CMDLINE + " roothash=" + "11" * 32,
    fake_image.CMDLINE + f" roothash={fake_image.ROOT_HASH}", f"x{fake_image.CMDLINE[-73:]}",
    "\x07 " + fake_image.CMDLINE])
def test_a_command_line_that_does_not_fix_the_root_is_refused(tmp_path: Path, cmdline: str) -> None:
    """The root hash stands there once, and no other."""
    with pytest.raises(ImageError, match=r"command line|control|printable"):
        _predicted(fake_image.write(tmp_path / "out", cmdline=cmdline))


@pytest.mark.parametrize(("change", "said"), [
    (b"{", "not JSON"), (b"{}", "format"), (b'{"format":"appliance/image/v1"}', "absent"), (b"[" * 99999, "not JSON")])
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, change: bytes, said: str) -> None:
    """A folder without an image, or with another file of that name."""
    folder = fake_image.write(tmp_path / "out")
    (folder / "image.json").write_bytes(change)
    with pytest.raises(ImageError, match=said):
        _predicted(folder)
    (folder / "image.json").unlink()
    with pytest.raises(ImageError, match="No such file"):
        _predicted(folder)


KERNEL = fake_image.pe((".text", b"k"))
PARTS = [(".gate", b"g"), (".osrel", b"o"), (".cmdline", b"c"), (".uname", b"u"), (".initrd", b"i"), (".linux", KERNEL)]


@pytest.mark.parametrize(("program", "said"), [
    (fake_image.with_sections(fake_image.pe((".text", b"x")), *PARTS), "stub is not known"),
    (fake_image.with_sections(fake_image.stub().replace(b"257.13", b"299.99"), *PARTS), "systemd-stub 299"),
    (fake_image.with_sections(fake_image.stub(), *PARTS, (".dtb", b"x")), ".dtb are not predicted"),
    (fake_image.with_sections(fake_image.stub(), *PARTS, (".cmdline", b"x")), "stands twice"),
    (fake_image.with_sections(fake_image.stub(), *PARTS[:-1]), "no section .linux"),
    (fake_image.with_sections(fake_image.stub(), PARTS[0], *PARTS[2:]), "no section .osrel"),
    (fake_image.with_sections(fake_image.stub(), *PARTS[1:]), "no section .gate"),
    (fake_image.with_sections(fake_image.stub(), ("gate", b"g"), *PARTS[1:]).replace(b"gate\0\0\0\0", b".gate\0\0\0"),
     "does not begin in its gate"),
    (fake_image.with_sections(fake_image.stub(), *PARTS[:-1], (".linux", b"no program")), "kernel"),
    (b"MZ", "no PE file"), (b"", "no PE file")])
def test_an_image_of_unknown_parts_is_refused(program: bytes, said: str) -> None:
    """What a stub would measure and we do not know is never left out in silence."""
    with pytest.raises(ImageError, match=said):
        predict_uki.parse(program)


def test_authenticode_leaves_out_what_a_signature_changes() -> None:
    """Checksum, certificate entry and certificates are left out; the rest is hashed in the order of the file."""
    program = bytearray(fake_image.pe((".text", b"one" * 99), (".data", b"two" * 99)))
    checksum, entry = 0x98 + 64, 0x98 + 112 + 32
    by_hand = _sha256(program[:checksum], program[checksum + 4:entry], program[entry + 8:])
    assert by_hand == predict_pe.parse(bytes(program), "x").authenticode("sha256")
    struct.pack_into("<I", program, checksum, 0x1234)
    struct.pack_into("<II", program, entry, len(program), 16)
    signed = bytes(program) + b"s" * 16
    assert by_hand == predict_pe.parse(signed, "x").authenticode("sha256")
    program[0x400] ^= 1
    assert by_hand != predict_pe.parse(bytes(program) + b"s" * 16, "x").authenticode("sha256")


@pytest.mark.parametrize("where", [(512, b"X"), (512 + 16, b"\0\0\0\0"), (1024 + 20, b"X"), (512 + 80, b"\xff\xff")])
def test_a_broken_partition_table_is_refused(tmp_path: Path, where: tuple[int, bytes]) -> None:
    """Signature, checksums and sizes, so that what is predicted is what firmware reads."""
    data = bytearray(fake_image.disk(b"system"))
    data[where[0]:where[0] + len(where[1])] = where[1]
    (tmp_path / "disk").write_bytes(data)
    with pytest.raises(ImageError):
        predict_gpt.event(tmp_path / "disk")


def test_mrtd_is_a_chain_of_pages() -> None:
    """The record of each page and of each 256 bytes, chained here; a page of no content is added alone."""
    data = fake_firmware.firmware(tdx=((0, 0x1000, 0xFFFFF000, 0x2000, 0, 1), (0, 0, 0x800000, 0x1000, 3, 0),
                                       (0, 0, 0x900000, 0x1000, 4, 0), (0, 0, 0xA00000, 0x1000, 3, 2)))
    content = data[:0x1000].ljust(0x2000, b"\0")

    def add(gpa: int) -> bytes:
        return b"MEM.PAGE.ADD\0\0\0\0" + struct.pack("<Q", gpa) + bytes(104)

    def extend(at: int) -> bytes:
        return b"".join(b"MR.EXTEND".ljust(16, b"\0") + struct.pack("<Q", 0xFFFFF000 + each) + bytes(104)
                        + content[each:each + 256] for each in range(at, at + 0x1000, 256))

    first, second = add(0xFFFFF000), add(0x100000000)
    wanted = {"page": first + extend(0) + second + extend(0x1000),
              "section": first + second + extend(0) + extend(0x1000)}
    for order in predict_tdx.ORDERS:
        whole = hashlib.sha384(wanted[order] + add(0x800000)).digest()
        assert whole == predict_tdx.mrtd(predict_firmware.parse(data), order)


@pytest.mark.parametrize("sections", [
    None, (), ((0, 0, 0x800000, 0x1000, 3, 0),), ((0, 0x1000, 0x1000, 0x1000, 0, 0),)])
def test_tdx_firmware_whose_code_is_not_measured_is_refused(sections: tuple[tuple[int, ...], ...] | None) -> None:
    """No metadata, no boot firmware volume, or one that is not extended."""
    with pytest.raises(ImageError):
        predict_tdx.mrtd(predict_firmware.parse(fake_firmware.firmware(tdx=sections)), "page")


def test_rtmr_1_has_one_separator() -> None:
    """PCR 2 to 6 share RTMR 1, which edk2 separates once; PCR 9 and 11 share RTMR 2."""
    def event(pcr: int, kind: int, what: bytes) -> events.BootEvent:
        return events.BootEvent(pcr, kind, "", {"sha384": hashlib.sha384(what).digest()})

    log = [event(4, 1, b"a"), *(event(pcr, 4, bytes(4)) for pcr in range(2, 7)), event(5, 1, b"b"), event(11, 13, b"c"),
           event(4, 1, b"d"), event(9, 6, b"e")]
    registers = []
    for contents in ((b"a", bytes(4), b"b", b"d"), (b"c", b"e")):
        value = bytes(48)
        for content in contents:
            value = hashlib.sha384(value + hashlib.sha384(content).digest()).digest()
        registers.append(value)
    assert (None, *registers, bytes(48)) == events.rtmrs(log)


@pytest.mark.parametrize(("kind", "there", "not_there"), [
    ("snp", ["-kernel"], ["-initrd", "-append"]), ("tdx", [], ["-kernel", "-initrd", "-append"])])
def test_confidential_machines_start_as_is_predicted(tmp_path: Path, kind: str, there: list[str],
                                                     not_there: list[str]) -> None:
    """SEV-SNP: the whole image as kernel, with kernel hashes and nothing beside it. TDX: from the disk."""
    words = machine.Machine(tmp_path, "tcg", 768, confidential=confidential.arguments(kind, 768, None)).command("qemu")
    assert set(there) <= set(words)
    assert not set(not_there) & set(words)
    whole = " ".join(words)
    assert ("snp" == kind) == ("kernel-hashes=on" in whole) == (f"-kernel {tmp_path}/appliance.efi" in whole)
    assert ("tdx" == kind) == ("disk.raw" in whole) == ("quote-generation-socket.type=" in whole)
    assert "serial=appliance-collateral" not in whole


def test_a_machine_gets_its_host_s_documents(tmp_path: Path) -> None:
    """A disk that only the host writes, by the name that the guest looks for."""
    words = machine.Machine(tmp_path, "tcg", 768, collateral=tmp_path / "c.disk",
                            confidential=confidential.arguments("tdx", 768, None)).command("qemu")
    assert f"if=none,id=collateral,file={tmp_path}/c.disk,format=raw,cache=writeback,read-only=on" in words
    assert "virtio-blk-pci,drive=collateral,serial=appliance-collateral" in words


def test_golden_values_come_from_an_event_log(tmp_path: Path) -> None:
    """What a log's replay gives for PCR 0 and 7; the file is read back, and in one form only."""
    log = fake_tpm.event_log([(0, 8, b"firmware"), (7, 4, b"\0\0\0\0")])
    (tmp_path / "log").write_bytes(log)
    (tmp_path / "fw").write_bytes(b"firmware")
    golden = predict_golden.record("q35-1cpu", tmp_path / "fw", tmp_path / "log")
    wanted = _sha256(bytes(32), _sha256(b"firmware")).hex()
    assert (wanted, hashlib.sha256(b"firmware").hexdigest()) == (golden.pcrs["0"], golden.firmware_sha256)
    data = predict_golden.to_json(golden)
    (tmp_path / "golden").write_bytes(data)
    assert golden == predict_golden.load(tmp_path / "golden")
    assert Event(7, 4, {}, b"").register == 7
    for wrong in (data + b"\n", b"{}", b"x", data.replace(b'"q35', b'"../q35'), json.dumps(json.loads(data)).encode()):
        (tmp_path / "golden").write_bytes(wrong)
        with pytest.raises(ImageError):
            predict_golden.load(tmp_path / "golden")


def test_golden_values_are_not_made_of_nothing(tmp_path: Path) -> None:
    """A log without PCR 7, bytes that are no log, a machine's name that is none, one machine twice."""
    (tmp_path / "fw").write_bytes(b"firmware")
    for source in (fake_tpm.event_log([(0, 8, b"firmware")]), b"", b"{}", b"garbage" * 99):
        (tmp_path / "log").write_bytes(source)
        with pytest.raises(ImageError):
            predict_golden.record("q35", tmp_path / "fw", tmp_path / "log")
    with pytest.raises(ImageError, match="machine"):
        predict_golden.of("no name", "ab" * 32, {0: bytes(32), 7: bytes(32)})
    with pytest.raises(ImageError, match="twice"):
        _predicted(fake_image.write(tmp_path / "out"), golden=(GOLDEN, GOLDEN))


def test_fuzzing_finds_nothing_in_seconds() -> None:
    """A little of what `make soak` does for minutes."""
    count, finding = driver.run(image_fuzz.fuzz, image_fuzz.seeds(), seconds=2, seed=1, least=51)
    assert finding is None
    assert 50 < count
