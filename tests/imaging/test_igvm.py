"""IGVM files: written for an image, read strictly, and their launch digest by sev-snp-measure and QEMU's own layout."""

from __future__ import annotations

import hashlib
import json
import struct
import tracemalloc
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from appliance.attestation.case import measurements
from appliance.cli.main import main
from appliance.errors import ImageError
from appliance.imaging.igvm import launch, reader, writer
from appliance.imaging.predict import firmware as predict_firmware
from appliance.imaging.predict import predict, snp
from tests.fuzz import driver, igvm_fuzz
from tests.support import fake_firmware, fake_igvm, fake_image
from tests.support.fake_igvm import Header

CONTENT, STATE = bytes(range(256)) * 16, fake_igvm.save_area()
HEADS = [fake_igvm.platform(), fake_igvm.policy()]
WHOLE = [*HEADS, fake_igvm.page(0x1000, CONTENT), fake_igvm.page(0x2000), fake_igvm.page(0x3000, kind=1),
         fake_igvm.page(0x4000, kind=2), fake_igvm.page(0x5000, CONTENT, flags=2), fake_igvm.processor(0, STATE),
         fake_igvm.processor(1, STATE)]


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image, and firmware beside it."""
    (tmp_path / "ovmf.fd").write_bytes(fake_firmware.firmware())
    return fake_image.write(tmp_path / "out")


def _export(image: Path, *words: object, firmware: str = "ovmf.fd") -> bytes:
    file = image.parent / "guest.igvm"
    assert 0 == main(["image", "export", str(image), "--igvm", str(image.parent / firmware), "-o", str(file),
                      *map(str, words)])
    return file.read_bytes()


@pytest.mark.parametrize(("vcpus", "model"), [(1, "EPYC-v4"), (3, "EPYC-Genoa"), (16, "EPYC-Turin")])
def test_a_launch_is_what_the_judges_say(image: Path, vcpus: int, model: str) -> None:
    """The digest is sev-snp-measure's for the file's pages in their order. Where pages of zeros have the type ZERO, it
    is that of QEMU's own layout, so that order, hashes and virtual CPUs are the same."""
    data = _export(image, "--vcpus", vcpus, "--cpu-model", model)
    found = launch.launch(reader.parse(data))
    assert fake_igvm.digest(data) == found.digest
    own = snp.launch_digests(predict_firmware.parse(fake_firmware.firmware()), (image / "appliance.efi").read_bytes(),
                             vcpus=(vcpus,), cpu_models=(model,))
    assert own[vcpus, model] == fake_igvm.digest(data, zeros=True) != found.digest
    assert (fake_firmware.firmware(), 0x20000, vcpus) == (found.firmware(), found.policy, len(found.save_areas))
    assert snp.signature(model) == found.signature


def test_a_file_is_as_the_format_says(image: Path) -> None:
    """Headers, their checksum, the directives in order, and each page's content in the file once."""
    data = _export(image, "--vcpus", 2, "--guest-policy", "0x30000")
    magic, version, start, size, total, checksum = struct.unpack_from("<4sIIIII", data)
    assert (b"IGVM", 1, 24, len(data)) == (magic, version, start, total)
    assert checksum == zlib.crc32(data[:20] + bytes(4) + data[24:24 + size])
    heads = list(fake_igvm.walk(data))
    assert [fake_igvm.platform()[:2], fake_igvm.policy()[:2]] == heads[:2]
    pages = [struct.unpack("<QIIIHH", record) for kind, record in heads if kind == fake_igvm.PAGE]
    firmware = fake_firmware.firmware()
    top = (1 << 32) - len(firmware)
    assert firmware == b"".join(data[each[2]:each[2] + 4096] for each in pages if each[0] >= top)
    rest = [(gpa, kind) for section, length, what in fake_firmware.SNP_SECTIONS
            for gpa, kind in ((section + at, {2: 1, 3: 2}.get(what, 0)) for at in range(0, length, 4096))]
    assert rest == [(each[0], each[4]) for each in pages if each[0] < top]
    assert [fake_igvm.PROCESSOR] * 2 == [kind for kind, _ in heads[-2:]]
    assert _export(image, "--vcpus", 2, "--guest-policy", "0x30000") == data
    assert writer.write(reader.parse(data)) == data


def test_a_row_of_measurements_covers_the_image(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two files give two rows beside that of QEMU's own layout, and the firmware is told. Another image's file gives
    none, nor one with a page more."""
    file = image.parent / "guest.igvm"
    digests = []
    for vcpus in (1, 2):
        data = _export(image, "--vcpus", vcpus, "--cpu-model", "EPYC-Milan")
        (image.parent / f"{vcpus}.igvm").write_bytes(data)
        digests.append(fake_igvm.digest(data).hex())
    words = ["image", "predict", str(image), "--firmware", str(image.parent / "ovmf.fd"), "--vcpus", "1"]
    capsys.readouterr()
    assert 0 == main([*words, *(word for vcpus in (1, 2) for word in ("--igvm", str(image.parent / f"{vcpus}.igvm")))])
    assert 1 == capsys.readouterr().out.count(hashlib.sha256(fake_firmware.firmware()).hexdigest())
    found = measurements.parse((image / predict.OUTPUT).read_bytes())
    assert [(1, "EPYC-Milan", digests[0]), (2, "EPYC-Milan", digests[1])] == [
        (each.vcpus, each.cpu_model, each.launch_digest) for each in found.snp_rows()][1:]
    assert 3 == len(found.sev_snp_digests())
    assert all(each.image for each in found.snp_rows())
    other = fake_image.write(image.parent / "other", kernel=fake_image.pe((".text", b"other" * 300)))
    _export(other)
    _refused([*words, "--igvm", str(file)], capsys)
    heads = list(fake_igvm.walk(data))
    content = [data[offset:offset + 4096] if (offset := struct.unpack_from("<I", record, 12)[0]) and kind in (
        fake_igvm.PAGE, fake_igvm.PROCESSOR) else b"" for kind, record in heads]
    more: list[Header] = [(kind, record, each) for (kind, record), each in zip(heads, content, strict=True)]
    file.write_bytes(fake_igvm.build(more))
    assert 0 == main([*words, "--igvm", str(file)])
    more.insert(3, fake_igvm.page(0x1000, CONTENT))
    file.write_bytes(fake_igvm.build(more))
    _refused([*words, "--igvm", str(file)], capsys)
    capsys.readouterr()
    assert 0 == main(["image", "igvm", str(file), "--json"])
    assert fake_igvm.digest(file.read_bytes()).hex() == json.loads(capsys.readouterr().out)["launch_digest"]


def _refused(words: list[str], capsys: pytest.CaptureFixture[str], *said: str) -> None:
    capsys.readouterr()
    assert 2 == main(words)
    found = capsys.readouterr().err
    for each in said or ("does not lay out this image's launch",):
        assert each in found


def test_a_firmware_that_nobody_named_covers_nothing(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One byte of the firmware in the file is another: it may boot anything, and no row is written for it."""
    named, other = fake_firmware.firmware(), bytearray(fake_firmware.firmware())
    other[100] ^= 1
    (image.parent / "evil.fd").write_bytes(other)
    _export(image, firmware="evil.fd")
    words = ["image", "predict", str(image), "--igvm", str(image.parent / "guest.igvm")]
    _refused(words, capsys, "image-igvm", "--firmware")
    _refused([*words, "--firmware", str(image.parent / "ovmf.fd")], capsys, "image-igvm",
             *(hashlib.sha256(each).hexdigest() for each in (named, other)))
    assert not (image / predict.OUTPUT).exists()
    assert 0 == main([*words, "--firmware", str(image.parent / "evil.fd")])


def test_a_file_is_told(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Digest, policy, firmware, pages and virtual CPUs, for people."""
    data = _export(image, "--vcpus", 2)
    capsys.readouterr()
    assert 0 == main(["image", "igvm", str(image.parent / "guest.igvm")])
    told = capsys.readouterr().out
    for words in (fake_igvm.digest(data).hex(), "0x20000", "16384 bytes", "0 of them unmeasured", "signature 0x800f12"):
        assert words in told


def test_any_tool_s_file_is_measured() -> None:
    """Parameter areas before pages, unmeasured pages, another platform's headers, and a file without a policy."""
    assert fake_igvm.digest(fake_igvm.build(WHOLE)) == launch.launch(reader.parse(fake_igvm.build(WHOLE))).digest
    bare = [WHOLE[0], *WHOLE[2:]]
    assert launch.launch(reader.parse(fake_igvm.build(bare))).policy is None
    mixed = [HEADS[0], fake_igvm.platform(2, 0), HEADS[1], fake_igvm.area(3, 0x2000),
             (fake_igvm.VP_COUNT, struct.pack("<II", 3, 0), b""), fake_igvm.insert(3, 0x10000),
             fake_igvm.page(0x1000, STATE, mask=2), *WHOLE[2:]]
    flat = [*HEADS, fake_igvm.page(0x10000, flags=2), fake_igvm.page(0x11000, flags=2), *WHOLE[2:]]
    found = launch.launch(reader.parse(fake_igvm.build(mixed)))
    assert fake_igvm.digest(fake_igvm.build(flat)) == found.digest
    assert 7 == len(found.pages)


def test_a_changed_file_is_another_launch_or_none() -> None:
    """Each byte of the headers is under the checksum, and each measured byte of content moves the digest."""
    data = fake_igvm.build(WHOLE)
    start = 24 + struct.unpack_from("<I", data, 12)[0]
    for at in range(start):
        with pytest.raises(ImageError):
            reader.parse(_flipped(data, at))
    digests = {launch.launch(reader.parse(_flipped(data, at))).digest
               for at in (start, start + 4095, start + 2 * 4096, start + 4 * 4096 - 1)}
    assert 4 == len(digests - {launch.launch(reader.parse(data)).digest})
    assert launch.launch(reader.parse(_flipped(data, start + 4096))).digest not in digests  # it is not measured


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes((data[at] ^ 1,)) + data[at + 1:]


def _without(*places: int) -> list[Header]:
    return [each for number, each in enumerate(WHOLE) if number not in places]


@pytest.mark.parametrize(("headers", "says"), [
    ([], "headers of 0 bytes"), (HEADS[1:], "not a platform of the file"),
    ([fake_igvm.platform(3)], "one bit"), ([HEADS[0], fake_igvm.platform(2)], "twice"),
    ([HEADS[0], fake_igvm.platform(1, 0)], "twice"),
    ([HEADS[0], WHOLE[2], HEADS[1]], "later section"), ([HEADS[1], HEADS[0]], "not a platform"),
    ([HEADS[0], (0x30E, bytes(8), b"")], "0x30e"), ([HEADS[0], (0x80000302, WHOLE[2][1], b"")], "0x80000302"),
    ([HEADS[0], (0x302, bytes(16), b"")], "expected 24"), ([HEADS[0], (0x302, bytes(32), b"")], "expected 24"),
    ([HEADS[0], fake_igvm.page(0x1001)], "that of a page"), ([HEADS[0], fake_igvm.page(1 << 52)], "that of a page"),
    ([HEADS[0], fake_igvm.page(0, flags=1)], "flags 0x1"), ([HEADS[0], fake_igvm.page(0, flags=4)], "flags 0x4"),
    ([HEADS[0], fake_igvm.page(0, kind=4)], "type 4"), ([HEADS[0], fake_igvm.page(0, CONTENT, kind=1)], "content"),
    ([HEADS[0], fake_igvm.page(0, mask=2)], "not a platform"),
    ([HEADS[0], fake_igvm.page(0, mask=0)], "not a platform"),
    ([HEADS[0], fake_igvm.page(0, CONTENT[:4095])], "outside"),
    ([HEADS[0], fake_igvm.processor(0, b"")], "outside"),
    ([HEADS[0], fake_igvm.area(1, 0x1001)], "whole pages"), ([HEADS[0], fake_igvm.area(1, 1 << 32)], "whole pages"),
    ([HEADS[0], (fake_igvm.POLICY, struct.pack("<QII", 1, 1, 1), b"")], "reserved"),
    ([fake_igvm.platform(1, 3), *WHOLE[1:]], "not for SEV-SNP"),
    ([(1, struct.pack("<IBBHQ", 1, 0, 2, 2, 0), b""), *WHOLE[1:]], "version 2"),
    ([*WHOLE[:2], HEADS[1], fake_igvm.policy(1), *WHOLE[2:]], "more than one guest policy"),
    ([*WHOLE, fake_igvm.page(0x9000)], "different orders"),
    ([*WHOLE[:3], fake_igvm.area(1, 0x1000), fake_igvm.insert(1, 0x9000), *WHOLE[3:]], "different orders"),
    ([*HEADS, fake_igvm.insert(1, 0x9000), *WHOLE[2:]], "not declared"),
    ([*HEADS, fake_igvm.area(1, 0x1000), fake_igvm.insert(1, 0x9000), fake_igvm.insert(1, 0xA000), *WHOLE[2:]],
     "inserted twice"),
    ([*HEADS, fake_igvm.area(1, 0x1000), fake_igvm.area(1, 0x1000), *WHOLE[2:]], "twice"),
    ([*WHOLE[:3], *WHOLE[2:]], "page of the guest stands twice"),
    (_without(7, 8), "states of virtual CPUs"), (_without(7), "states of virtual CPUs"),
    ([*WHOLE, fake_igvm.processor(1, STATE)], "states of virtual CPUs"),
    ([*_without(7, 8), fake_igvm.processor(0, STATE, gpa=0x9000)], "where KVM puts it"),
    ([*_without(8), fake_igvm.processor(1, fake_igvm.save_area(3))], "different features"),
    ([*_without(7, 8), fake_igvm.processor(0, fake_igvm.save_area(0))], "none of SEV-SNP")])
def test_what_loaders_do_not_agree_on_is_refused(headers: Sequence[Header], says: str) -> None:
    """By name: what is out of form, what QEMU starts no guest from, and what has no one digest."""
    with pytest.raises(ImageError, match=says) as caught:
        launch.launch(reader.parse(fake_igvm.build(headers)))
    assert ("image-igvm", True) == (caught.value.code, bool(caught.value.hint))


def _areas(count: int, size: int) -> list[Header]:
    return [each for index in range(count)
            for each in (fake_igvm.area(index, size), fake_igvm.insert(index, index * size))]


@pytest.mark.parametrize(("headers", "says"), [
    ([HEADS[0], *_areas(16, 1 << 24)], "more than 65536"), ([HEADS[0], *_areas(2800, 1 << 24)], "more than 65536"),
    ([HEADS[0], *[(fake_igvm.VP_COUNT, bytes(8), b"")] * 65536], "more than 65536"),
    ([HEADS[0], *[fake_igvm.page(0x1000)] * 30000], "stands twice")])
def test_a_small_file_takes_little_memory(headers: Sequence[Header], says: str) -> None:
    """Areas that would fill gigabytes, headers without end, and one page again and again: refused as they are met."""
    data = fake_igvm.build(headers)
    assert len(data) < 1 << 21
    assert _peak(data, says) < 1 << 26


def _peak(data: bytes, says: str) -> int:
    """The most memory that reading takes beside the file; `says`: why it is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(ImageError, match=says):
            launch.launch(reader.parse(data))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_what_fits_the_bound_of_pages_is_read() -> None:
    """Fifteen areas of 16 MiB, beside the pages of a launch."""
    areas = [each for index in range(15) for each in (
        fake_igvm.area(index, 1 << 24), fake_igvm.insert(index, (1 << 24) * (index + 1)))]
    found = launch.launch(reader.parse(fake_igvm.build([*HEADS, *areas, *WHOLE[2:]])))
    assert 15 * 4096 + 5 == len(found.pages)


def test_a_content_that_headers_share_is_there_once() -> None:
    """Thirty thousand headers of one content; contents that overlap in part are refused."""
    heads = [HEADS[0], *(fake_igvm.page(4096 * at) for at in range(30000)), fake_igvm.page(1 << 40, CONTENT)]
    data = bytearray(fake_igvm.build(heads))
    start = 24 + struct.unpack_from("<I", data, 12)[0]
    for shift in (0, 1):
        for at in range(30000):
            struct.pack_into("<I", data, 24 + 24 + 32 * at + 8 + 12, start + shift * (at % 2))
        shared = fake_igvm.sealed(bytes(data[:start]), bytes(data[start:]) + b"x")
        whole = shared[:16] + struct.pack("<I", len(shared)) + shared[20:]
        says = ("states of virtual CPUs", "in part")[shift]
        assert _peak(fake_igvm.sealed(whole[:start], whole[start:]), says) < 1 << 26


@pytest.mark.parametrize(("data", "says"), [
    (b"", "0 bytes"), (b"IGVM", "4 bytes"), (bytes(100), "begin with IGVM"),
    (fake_igvm.build(WHOLE, version=2), "version 2"), (fake_igvm.build(WHOLE, offset=32), "at 32"),
    (fake_igvm.build(WHOLE, size=20), "multiple of 8"), (fake_igvm.build(WHOLE, size=1 << 25), "multiple of 8"),
    (fake_igvm.build(WHOLE)[:-1], "its header says"), (fake_igvm.build(WHOLE) + b"x", "its header says"),
    (fake_igvm.build(WHOLE, size=16), "CRC-32")])
def test_a_fixed_header_out_of_form_is_refused(data: bytes, says: str) -> None:
    """Magic, version, sizes, and the checksum."""
    with pytest.raises(ImageError, match=says):
        reader.parse(data)


def test_what_cannot_be_exported_is_refused(image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Firmware that measures no kernel, a CPU model that nobody knows, an image whose file was changed."""
    (image.parent / "old.fd").write_bytes(fake_firmware.firmware(hashes=0))
    words = ["image", "export", str(image), "-o", str(image.parent / "x"), "--igvm"]
    for more, said in (([str(image.parent / "old.fd")], "kernel hashes"),
                       ([str(image.parent / "ovmf.fd"), "--cpu-model", "i486"], "i486"),
                       ([str(image.parent / "none.fd")], "none.fd")):
        assert 2 == main([*words, *more])
        assert said in capsys.readouterr().err
    (image / "appliance.efi").write_bytes(b"MZ")
    assert 2 == main([*words, str(image.parent / "ovmf.fd")])
    assert not (image.parent / "x").exists()


def test_fuzzing_finds_nothing_in_seconds() -> None:
    """A little of what `make soak` does for minutes."""
    _, finding = driver.run(igvm_fuzz.fuzz, igvm_fuzz.seeds(), seconds=0, seed=1, least=2500)
    assert finding is None
