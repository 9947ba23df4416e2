"""Fuzz target: firmware and boot programs of strangers, whose launch values somebody wants computed."""

from __future__ import annotations

from appliance.attestation.measured import events
from appliance.errors import ImageError
from appliance.imaging.predict import firmware as predict_firmware
from appliance.imaging.predict import pe as predict_pe
from appliance.imaging.predict import snp as predict_snp
from appliance.imaging.predict import tdx as predict_tdx
from appliance.imaging.predict import tpm as predict_tpm
from appliance.imaging.predict import uki as predict_uki
from tests.support import fake_firmware, fake_image


def _firmware(data: bytes) -> None:
    found = predict_firmware.parse(data)
    for predicted in (lambda: predict_snp.launch_digests(found, b"", vcpus=(1,), cpu_models=("EPYC",)),
                      lambda: predict_tdx.mrtd(found, "page")):
        try:
            predicted()
        except ImageError:
            continue


def fuzz(data: bytes) -> None:
    """The first byte says what the rest is."""
    kind, rest = data[:1], data[1:]
    try:
        if kind == b"f":
            _firmware(rest)
        elif kind == b"u":
            events.pcrs(predict_tpm.boot_events(predict_uki.parse(rest), b""))
        else:
            predict_pe.parse(rest, "program").authenticode("sha256")
    except ImageError:
        return


def seeds() -> list[bytes]:
    """One of each."""
    kernel = fake_image.pe((".text", b"kernel" * 30))
    parts = [(".osrel", b"ID=x"), (".cmdline", b"a b"), (".uname", b"6"), (".initrd", b"i"), (".linux", kernel)]
    return [b"f" + fake_firmware.firmware(), b"p" + kernel,
            b"u" + fake_image.with_sections(fake_image.stub(), *parts)]
