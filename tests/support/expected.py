"""Measurements of an image that does not exist: every part present, as a caller changes it."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from appliance.attestation.case import measurements
from appliance.attestation.case.measurements import Measurements
from appliance.attestation.measured import first

ROOT = Path(__file__).parents[2]


def digest(what: str, bits: int = 256) -> str:
    """A digest in hex that stands for something."""
    return hashlib.new(f"sha{bits}", what.encode()).hexdigest()


def extended(*events: str) -> str:
    """A SHA-256 register after these events, in hex."""
    value = bytes(32)
    for event in events:
        value = hashlib.sha256(value + bytes.fromhex(event)).digest()
    return value.hex()


def document() -> dict[str, Any]:
    """A whole, valid file as plain values."""
    events = [{"pcr": 4, "kind": 0x80000007, "sha256": digest("call"), "what": "boot option"},
              {"pcr": 4, "kind": 4, "sha256": digest("separator"), "what": "separator"},
              {"pcr": 11, "kind": 13, "sha256": digest("section"), "what": "section .linux"}]
    zero = "00" * 32
    pcrs = {str(number): [zero if number in (12, 13) else extended(
        *(event["sha256"] for event in events if event["pcr"] == number))] for number in first.PREDICTED_PCRS}
    return {
        "format": measurements.FORMAT,
        "build": {"version": "0.1.0", "code_sha384": digest("code", 384), "kernels_sha384": None},
        "image": {"appliance.efi": digest("uki"), "root.img": digest("root")},
        "policy_sha384": digest("policy", 384),
        "sev_snp": [{
            "vmm": "qemu", "vcpus": count, "cpu_model": "EPYC-v4", "guest_features": "0x1",
            "firmware_sha256": digest("amdsev"), "launch_digest": digest(f"launch {count}", 384),
            "id_block": None if count == 1 else {
                "block": base64.b64encode(bytes(96)).decode(), "auth": base64.b64encode(bytes(4096)).decode(),
                "id_key_sha384": digest("id key", 384), "author_key_sha384": None}} for count in (1, 2)],
        "tdx": [{"firmware_sha256": digest("tdvf"), "page_order": "page", "mrtd": digest("mrtd", 384),
                 "rtmr": [None, None, digest("rtmr2", 384), "00" * 48], "unverified": ["RTMR 0: depends on the VMM"]}],
        "tpm": {"bank": "sha256", "pcrs": pcrs, "events": events, "golden": [
            {"machine": name, "firmware_sha256": digest("ovmf"),
             "pcrs": {"0": digest(f"{name} 0"), "7": digest(f"{name} 7")}} for name in ("q35-1cpu", "q35-2cpu")]},
    }


def image() -> Measurements:
    """The parsed form of `document`."""
    return Measurements.model_validate(document())


def values(shape: str = "q35-1cpu") -> dict[int, bytes]:
    """Registers as a machine of `shape` shows them when it runs the image."""
    found = {int(name): bytes.fromhex(accepted[0]) for name, accepted in document()["tpm"]["pcrs"].items()}
    return found | {number: bytes.fromhex(digest(f"{shape} {number}")) for number in first.GOLDEN_PCRS}
