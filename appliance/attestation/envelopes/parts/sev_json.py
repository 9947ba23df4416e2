"""An SEV-SNP report that was written as JSON, field by field, put together again.

Source: AMD publication 56860, "SEV Secure Nested Paging Firmware ABI", ATTESTATION_REPORT
(offsets), and the names that the Rust crate `sev` gives the fields. AMD's signature covers the
bytes, so a wrong field gives a wrong signature.
"""

from __future__ import annotations

from appliance.attestation.envelopes.parts import strict
from appliance.attestation.envelopes.parts.strict import Members
from appliance.attestation.snp.layout import REPORT_BYTES
from appliance.errors import MalformedEvidenceError

_WHAT = "SEV-SNP report in JSON"
# field -> (offset, bytes)
_NUMBERS = {"version": (0x00, 4), "guest_svn": (0x04, 4), "policy": (0x08, 8), "vmpl": (0x30, 4),
            "sig_algo": (0x34, 4), "plat_info": (0x40, 8), "key_info": (0x48, 4)}
_OPTIONAL = {"cpuid_fam_id": (0x188, 1), "cpuid_mod_id": (0x189, 1), "cpuid_step": (0x18A, 1),
             "launch_mit_vector": (0x1F8, 8), "current_mit_vector": (0x200, 8)}
_OCTETS = {"family_id": (0x10, 16), "image_id": (0x20, 16), "report_data": (0x50, 64), "measurement": (0x90, 48),
           "host_data": (0xC0, 32), "id_key_digest": (0xE0, 48), "author_key_digest": (0x110, 48),
           "report_id": (0x140, 32), "report_id_ma": (0x160, 32), "chip_id": (0x1A0, 64)}
_TCBS = {"current_tcb": 0x38, "reported_tcb": 0x180, "committed_tcb": 0x1E0, "launch_tcb": 0x1F0}
_FIRMWARE = {"current": 0x1E8, "committed": 0x1EC}
_SIGNATURE = {"r": (0x2A0, 72), "s": (0x2E8, 72)}
# component -> byte of the TCB; Turin's TCBs have an FMC, the others write null there
_TCB = {"bootloader": 0, "tee": 1, "snp": 6, "microcode": 7}
_TURIN_TCB = {"fmc": 0, "bootloader": 1, "tee": 2, "snp": 3, "microcode": 7}


def report(fields: Members) -> bytes:
    """The report's bytes. Raises MalformedEvidenceError, UnsupportedEvidenceError on a field that
    is not known."""
    strict.only(fields, (*_NUMBERS, *_OPTIONAL, *_OCTETS, *_TCBS, *_FIRMWARE, "signature"), _WHAT)
    out = bytearray(REPORT_BYTES)
    for name, (at, size) in _NUMBERS.items():
        out[at:at + size] = _number(fields, name, size)
    for name, (at, size) in _OPTIONAL.items():
        if fields.get(name) is not None:
            out[at:at + size] = _number(fields, name, size)
    for name, (at, size) in _OCTETS.items():
        out[at:at + size] = _sized(fields, name, size)
    for name, at in _TCBS.items():
        out[at:at + 8] = _tcb(strict.mapping(fields, name, _WHAT))
    for name, at in _FIRMWARE.items():
        version = strict.mapping(fields, name, _WHAT)
        strict.only(version, ("build", "minor", "major"), _WHAT)
        out[at:at + 3] = b"".join(_number(version, part, 1) for part in ("build", "minor", "major"))
    signature = strict.mapping(fields, "signature", _WHAT)
    strict.only(signature, _SIGNATURE, _WHAT)
    for name, (at, size) in _SIGNATURE.items():
        out[at:at + size] = _sized(signature, name, size)
    return bytes(out)


def _number(fields: Members, name: str, size: int) -> bytes:
    return strict.number(fields, name, 8 * size, _WHAT).to_bytes(size, "little")


def _sized(fields: Members, name: str, size: int) -> bytes:
    found = strict.octets(fields.get(name), f"{_WHAT}: {name}")
    if len(found) != size:
        raise MalformedEvidenceError(f"{_WHAT}: {name} has {len(found)} bytes, expected {size}")
    return found


def _tcb(components: Members) -> bytes:
    strict.only(components, _TURIN_TCB, _WHAT)
    out = bytearray(8)
    for name, at in (_TCB if components.get("fmc") is None else _TURIN_TCB).items():
        out[at:at + 1] = _number(components, name, 1)
    return bytes(out)
