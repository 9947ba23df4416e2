"""A portable reference of an image that does not exist: every part present, as a caller changes it."""

from __future__ import annotations

import hashlib
from typing import Any

from appliance.attestation.measured import events, portable
from tests.support import rows
from tests.support.expected import digest

ROOT = digest("root file system")
COMMAND_LINE = f"console=ttyS0 roothash={ROOT}"
FIRMWARE = digest("amdsev")


def both(content: bytes) -> dict[str, str]:
    """The two digests of some content."""
    return {"sha256": hashlib.sha256(content).hexdigest(), "sha384": hashlib.sha384(content).hexdigest()}


def document(**changed: Any) -> dict[str, Any]:
    """A whole, valid file as plain values."""
    parts = {name: both(COMMAND_LINE.encode() if name == ".cmdline" else name.encode()) for name in events.MEASURED}
    return {
        "format": portable.FORMAT,
        "build": {"version": "0.1.0", "code_sha384": None, "kernels_sha384": None},
        "image": {"appliance.efi": digest("uki"), "root.img": digest("root")}, "policy_sha384": None,
        "boot": {"program": both(b"program"), "kernel": both(b"kernel"), "sections": parts,
                 "command_line": COMMAND_LINE, "initrd": both(b"initrd"), "partitions": both(b"gpt")},
        "sev_snp": {
            "cpu_models": ["EPYC-v4"], "max_vcpus": 64, "guest_features": "0x1",
            "firmware": [{"sha256": FIRMWARE, "pages_digest": digest("pages", 384), "hashes_gpa": 0x810C00,
                          "reset_eip": 0x80B004,
                          "sections": [{"gpa": 0x800000, "size": 0x9000, "kind": 1},
                                       {"gpa": 0x80D000, "size": 0x1000, "kind": 2},
                                       {"gpa": 0x80E000, "size": 0x1000, "kind": 3},
                                       {"gpa": 0x810000, "size": 0x1000, "kind": 16}]}]},
        "tdx": [rows.tdx(bytes.fromhex(digest("mrtd", 384)))], "firmware_rows": [], "golden": [], "nitro": False,
        **changed}
