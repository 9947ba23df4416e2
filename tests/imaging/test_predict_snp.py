"""SEV-SNP launch digests and ID blocks: equal to sev-snp-measure's, and refused where they would prove nothing."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from sevsnpmeasure import guest, id_block, vcpu_types

from appliance.attestation.measured.launch import SNP_KERNEL_HASHES
from appliance.errors import ImageError
from appliance.imaging.predict import firmware as predict_firmware
from appliance.imaging.predict import idblock as predict_idblock
from appliance.imaging.predict import snp as predict_snp
from appliance.imaging.predict import tdx as predict_tdx
from tests.support.fake_firmware import SNP_SECTIONS, firmware
from tests.support.require import absent

KERNEL, INITRD, CMDLINE = b"kernel" * 1000, b"initrd", b"console=ttyS0 quiet"
ID_KEY, AUTHOR_KEY = (ec.derive_private_key(number, ec.SECP384R1()) for number in (7, 11))
OVMF = Path("/usr/share/OVMF/OVMF_CODE_4M.fd")


def _ours(data: bytes, **what: object) -> dict[tuple[int, str], bytes]:
    shapes = {"vcpus": (1, 2, 4), "cpu_models": predict_snp.cpu_models(), **what}
    return predict_snp.launch_digests(predict_firmware.parse(data), KERNEL, **shapes)  # type: ignore[arg-type]


def _judged(path: Path, folder: Path, vcpus: int, model: str, initrd: bytes = b"", cmdline: bytes = b"",
            features: int = 1) -> bytes:
    """The same by sev-snp-measure."""
    for name, data in (("kernel", KERNEL), ("initrd", initrd)):
        (folder / name).write_bytes(data)
    digest: bytes = guest.snp_calc_launch_digest(
        vcpus, vcpu_types.CPU_SIGS[model], str(path), str(folder / "kernel"), str(folder / "initrd") if initrd else "",
        cmdline.decode(), features, "")
    return digest


def test_every_shape_is_what_the_judge_says(tmp_path: Path) -> None:
    """Numbers of CPUs times CPU models, with and without initrd and command line."""
    (tmp_path / "fw").write_bytes(firmware())
    assert set(predict_snp.cpu_models()) == set(vcpu_types.CPU_SIGS)
    found = _ours(firmware())
    assert 3 * len(vcpu_types.CPU_SIGS) == len(found) == len(set(found))
    for (vcpus, model), digest in found.items():
        assert _judged(tmp_path / "fw", tmp_path, vcpus, model) == digest, (vcpus, model)
    whole = _ours(firmware(), initrd=INITRD, cmdline=CMDLINE, guest_features=0x21)
    assert _judged(tmp_path / "fw", tmp_path, 4, "EPYC-Genoa", INITRD, CMDLINE, 0x21) == whole[4, "EPYC-Genoa"]


def test_every_part_counts() -> None:
    """One byte of firmware, kernel, initrd or command line, or another feature: another digest."""
    parts = {"initrd": INITRD, "cmdline": CMDLINE, "vcpus": (1,), "cpu_models": ("EPYC",)}
    changed = bytearray(firmware())
    changed[5] ^= 1
    found = [_ours(firmware(), **parts), _ours(bytes(changed), **parts), _ours(firmware(), **parts | {"initrd": b"x"}),
             _ours(firmware(), **parts | {"cmdline": b"x"}), _ours(firmware(), **parts, guest_features=3),
             predict_snp.launch_digests(predict_firmware.parse(firmware()), b"other", **parts)]  # type: ignore[arg-type]
    assert 6 == len({each[1, "EPYC"] for each in found})


@pytest.mark.parametrize(("data", "code"), [
    (firmware(snp=None), "image-firmware"), (firmware(footer="00000000-0000-0000-0000-000000000000"), "image-firmware"),
    (firmware(hashes=0), "image-kernel-hashes"), (firmware(snp=SNP_SECTIONS[:-1]), "image-kernel-hashes"),
    (firmware(hashes=0x900C00), "image-kernel-hashes"), (firmware(reset=0), "image-firmware")])
def test_firmware_that_measures_no_kernel_is_refused(data: bytes, code: str) -> None:
    """Without a page for kernel hashes a digest says nothing of what boots; sev-snp-measure prints one."""
    with pytest.raises(ImageError) as caught:
        _ours(data)
    assert code == caught.value.code


def test_bookworm_s_firmware_is_refused() -> None:
    """Debian's OVMF_CODE_4M.fd: no SEV-SNP metadata in bookworm, no page for kernel hashes in trixie."""
    if not OVMF.exists():
        absent("OVMF: apt-get install ovmf")
    found = predict_firmware.parse(OVMF.read_bytes())
    if any(each.kind == SNP_KERNEL_HASHES for each in found.snp):
        pytest.skip("this OVMF has a page for kernel hashes")
    with pytest.raises(ImageError):
        predict_snp.check(found)


def _both(data: bytes) -> None:
    found = predict_firmware.parse(data)
    predict_snp.launch_digests(found, b"", vcpus=(1,), cpu_models=("EPYC",))
    predict_tdx.mrtd(found, "page")


@pytest.mark.parametrize("data", [
    b"", bytes(8192), bytes(5000), firmware()[:-4096], firmware(snp=((1, 0x1000, 1),)), firmware(snp=((0, 1, 1),)),
    firmware(snp=((0, 0x1000, 9), *SNP_SECTIONS)), firmware(snp=SNP_SECTIONS * 20),
    firmware(tdx=((0, 0x9000, 0, 0x9000, 0, 1),)), firmware(tdx=((0, 0x2000, 0, 0x1000, 0, 1),))])
def test_malformed_firmware_is_refused(data: bytes) -> None:
    """Sizes, offsets, kinds and counts are checked before anything is computed from them."""
    with pytest.raises(ImageError):
        _both(data)


@pytest.mark.parametrize("what", [{"vcpus": ()}, {"vcpus": (0,)}, {"vcpus": (513,)}, {"cpu_models": ("i486",)}])
def test_shapes_that_do_not_exist_are_refused(what: dict[str, object]) -> None:
    """No CPU, too many, or a model that nobody knows."""
    with pytest.raises(ImageError):
        _ours(firmware(), **what)


def _pem(path: Path, key: ec.EllipticCurvePrivateKey) -> str:
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return str(path)


def test_an_id_block_is_what_the_judge_makes(tmp_path: Path) -> None:
    """All but the signatures, which are random there, byte for byte; ours verify and are always the same."""
    digest = bytes(range(48))
    made = predict_idblock.make(digest, ID_KEY, AUTHOR_KEY, guest_policy=0x30000)
    text = id_block.snp_calc_id_block(digest, _pem(tmp_path / "id", ID_KEY), _pem(tmp_path / "author", AUTHOR_KEY))
    theirs = dict(part.split("=", 1) for part in text.split("\n")[0].split(","))
    assert theirs["id-block"] == made.block
    ours, judge = base64.b64decode(made.auth), base64.b64decode(theirs["id-auth"])
    signatures = ((64, 576), (1664, 2176))
    blank = [bytearray(each) for each in (ours, judge)]
    for start, end in signatures:
        for each in blank:
            each[start:end] = bytes(end - start)
    assert blank[1] == blank[0]
    for (start, _), key, signed in zip(signatures, (ID_KEY, AUTHOR_KEY), (base64.b64decode(made.block),
                                                                         ours[576:1604]), strict=True):
        r, s = (int.from_bytes(ours[start + at:start + at + 72], "little") for at in (0, 72))
        key.public_key().verify(encode_dss_signature(r, s), signed, ec.ECDSA(hashes.SHA384()))
    assert hashlib.sha384(ours[576:1604]).hexdigest() == made.id_key_sha384
    assert predict_idblock.make(digest, ID_KEY, AUTHOR_KEY, guest_policy=0x30000) == made


def test_an_id_block_forbids_debugging_unless_told() -> None:
    """The default guest policy: the reserved bit alone, so no SMT, no migration agent, no debugging; no author key."""
    made = predict_idblock.make(bytes(48), ID_KEY)
    assert 0x20000 == int.from_bytes(base64.b64decode(made.block)[88:96], "little")
    assert made.author_key_sha384 is None
    assert bytes(4) == base64.b64decode(made.auth)[4:8]
    with pytest.raises(ImageError, match="P-384"):
        predict_idblock.make(bytes(48), ec.derive_private_key(7, ec.SECP256R1()))
