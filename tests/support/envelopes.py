"""Envelopes as other projects write them, around evidence of the fake hierarchies."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.support import fake_tpm
from tests.support.fake_amd import FakeAmd
from tests.support.fake_intel import FakeIntel

AMD, INTEL = FakeAmd(), FakeIntel()
ALL_PCRS = {number: hashlib.sha256(bytes((number,))).digest() for number in range(24)}
RUNTIME_EVENT = 0x08000001
REPORT_DATA = bytes(range(64))
_TCB_AT = {"bootloader": 0, "tee": 1, "snp": 6, "microcode": 7}


def b64(data: bytes) -> str:
    """Base64, RFC 4648 section 4."""
    return base64.b64encode(data).decode()


def b64url(data: bytes) -> str:
    """Base64url with padding, RFC 4648 section 5."""
    return base64.urlsafe_b64encode(data).decode()


def der(fake: FakeAmd = AMD) -> dict[str, bytes]:
    """The hierarchy's certificates by the names that AMD gives them."""
    return {"VCEK": fake.leaf.public_bytes(Encoding.DER), "ASK": fake.ask.public_bytes(Encoding.DER),
            "ARK": fake.ark.public_bytes(Encoding.DER)}


def sev_json(report: bytes) -> dict[str, Any]:
    """A report of Milan or Genoa, field by field."""
    def number(at: int, size: int) -> int:
        return int.from_bytes(report[at:at + size], "little")

    def octets(at: int, size: int) -> list[int]:
        return list(report[at:at + size])

    def tcb(at: int) -> dict[str, int | None]:
        return {"fmc": None, **{name: report[at + offset] for name, offset in _TCB_AT.items()}}

    def firmware(at: int) -> dict[str, int]:
        return {"major": report[at + 2], "minor": report[at + 1], "build": report[at]}

    return {
        "version": number(0, 4), "guest_svn": number(4, 4), "policy": number(8, 8), "family_id": octets(16, 16),
        "image_id": octets(32, 16), "vmpl": number(48, 4), "sig_algo": number(52, 4), "current_tcb": tcb(0x38),
        "plat_info": number(0x40, 8), "key_info": number(0x48, 4), "report_data": octets(0x50, 64),
        "measurement": octets(0x90, 48), "host_data": octets(0xC0, 32), "id_key_digest": octets(0xE0, 48),
        "author_key_digest": octets(0x110, 48), "report_id": octets(0x140, 32), "report_id_ma": octets(0x160, 32),
        "reported_tcb": tcb(0x180), "cpuid_fam_id": report[0x188], "cpuid_mod_id": report[0x189],
        "cpuid_step": report[0x18A], "chip_id": octets(0x1A0, 64), "committed_tcb": tcb(0x1E0),
        "current": firmware(0x1E8), "committed": firmware(0x1EC), "launch_tcb": tcb(0x1F0),
        "signature": {"r": octets(0x2A0, 72), "s": octets(0x2E8, 72)}}


def trustee_snp(fake: FakeAmd = AMD) -> dict[str, Any]:
    """Trustee's SEV-SNP evidence with the whole chain."""
    return {"attestation_report": sev_json(fake.report()),
            "cert_chain": [{"cert_type": name, "data": list(data)} for name, data in der(fake).items()]}


def runtime(which: str = "ak") -> bytes:
    """An Azure report's runtime data that name a TPM's key."""
    numbers = fake_tpm.rsa_key(which).public_key().public_numbers()
    sized = [base64.urlsafe_b64encode(each.to_bytes((each.bit_length() + 7) // 8, "big")).rstrip(b"=").decode()
             for each in (numbers.n, numbers.e)]
    return json.dumps({"keys": [{"kid": "HCLAkPub", "kty": "RSA", "n": sized[0], "e": sized[1]}]}).encode()


def azure(kind: int = 2, which: str = "ak") -> bytes:
    """An Azure report with an SEV-SNP report (2) or with a TDREPORT (4), which nobody can check elsewhere."""
    data = runtime(which)
    hardware = AMD.report(report_data=hashlib.sha256(data).digest() + bytes(32)) if kind == 2 else bytes(1184)
    return (b"HCLA" + bytes(28) + hardware + bytes(8) + struct.pack("<III", kind, 1, len(data)) + data + bytes(16))


def pieces(form: str = "hex", **changes: Any) -> dict[str, Any]:
    """A TPM quote over all registers, its members as lists of numbers (`numbers`), in `hex` or in `base64`."""
    message = fake_tpm.quote(ALL_PCRS)
    found: dict[str, bytes] = {
        "message": message, "signature": fake_tpm.sign(message, "rsassa" if form == "base64" else "plain")}
    spell = {"hex": bytes.hex, "numbers": list, "base64": b64}[form]
    values = [list(each) if form == "numbers" else each.hex() for each in ALL_PCRS.values()]
    return {**{name: spell(each) for name, each in found.items()}, "pcrs": values, **changes}


def azure_snp(version: int = 1) -> dict[str, Any]:
    """Trustee's evidence of an Azure VM on AMD; version 0 has lists of numbers and PEM."""
    if not version:
        return {"report": list(azure()), "quote": pieces("numbers"),
                "vcek": AMD.leaf.public_bytes(Encoding.PEM).decode()}
    return {"version": version, "hcl_report": b64url(azure()), "vcek": b64url(der()["VCEK"]), "tpm_quote": pieces()}


def azure_tdx(version: int = 1, which: str = "ak") -> dict[str, Any]:
    """Trustee's evidence of an Azure VM on Intel."""
    quote = INTEL.quote(report_data=hashlib.sha256(runtime()).digest() + bytes(32))
    if not version:
        return {"hcl_report": list(azure(4, which)), "td_quote": list(quote), "tpm_quote": pieces("numbers")}
    return {"version": version, "hcl_report": b64url(azure(4, which)), "td_quote": b64url(quote),
            "tpm_quote": pieces()}


def tpm(**changes: Any) -> dict[str, Any]:
    """Trustee's evidence of a TPM."""
    key = fake_tpm.rsa_key("ak").public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return {"ak_public": b64(key), "tpm_quote": pieces("base64", **changes)}


def ccel(events: Sequence[tuple[int, bytes]]) -> tuple[bytes, dict[str, bytes]]:
    """A log of TDX firmware (RTMR, measured bytes), and the values of the registers."""
    spec = b"Spec ID Event03\0" + struct.pack("<IBBBBI", 0, 0, 2, 0, 2, 1) + struct.pack("<HH", 0x0C, 48) + b"\0"
    out = struct.pack("<II", 1, 3) + bytes(20) + struct.pack("<I", len(spec)) + spec
    values: dict[str, bytes] = {}
    for register, data in events:
        digest = hashlib.sha384(data).digest()
        out += struct.pack("<IIIH", register + 1, 1, 1, 0x0C) + digest + struct.pack("<I", len(data)) + data
        values[f"rtmr{register}"] = hashlib.sha384(values.get(f"rtmr{register}", bytes(48)) + digest).digest()
    return out, values


def compact(number: int) -> bytes:
    """A compact integer of SCALE in its shortest form."""
    if number < 1 << 6:
        return bytes((number << 2,))
    if number < 1 << 14:
        return struct.pack("<H", number << 2 | 1)
    return struct.pack("<I", number << 2 | 2)


def sized(data: bytes) -> bytes:
    """Bytes or text in SCALE."""
    return compact(len(data)) + data


def runtime_digest(name: bytes, payload: bytes) -> bytes:
    """Return the digest by which dstack extends RTMR 3."""
    return hashlib.sha384(struct.pack("<I", RUNTIME_EVENT) + b":" + name + b":" + payload).digest()


def rtmr3(events: Mapping[bytes, bytes]) -> bytes:
    """The register after these runtime events."""
    value = bytes(48)
    for name, payload in events.items():
        value = hashlib.sha384(value + runtime_digest(name, payload)).digest()
    return value


EVENTS = {b"app-id": b"\x01\x02", b"compose-hash": b"\x03"}


def dstack(*, tdx: bool = True, report_data: bytes = REPORT_DATA) -> bytes:
    """dstack's attestation, version 0, in SCALE. Digests of runtime events are left away, as dstack does."""
    ending = compact(1) + sized(b"app-id") + sized(b"\x01") + report_data + sized(b'{"cpu_count":2}')
    if not tdx:
        chain = list(der().values())
        return (b"\x00\x03" + sized(AMD.report(report_data=REPORT_DATA)) + compact(len(chain))
                + b"".join(map(sized, chain)) + sized(b"{}") + ending)
    log = compact(len(EVENTS)) + b"".join(
        struct.pack("<II", 3, RUNTIME_EVENT) + sized(b"") + sized(name) + sized(payload)
        for name, payload in EVENTS.items())
    return b"\x00\x00" + sized(INTEL.quote(report_data=REPORT_DATA, rtmr3=rtmr3(EVENTS))) + log + ending


def _head(number: int, short: int | None, most: int, longer: tuple[int, ...]) -> bytes:
    """The first byte of a value of MessagePack with its length, in the shortest form."""
    if short is not None and number <= most:
        return bytes((short | number,))
    width = next(width for width in (1, 2, 4, 8) if width >= 1 << (4 - len(longer)) // 2 and number < 1 << 8 * width)
    return bytes((longer[(1, 2, 4, 8).index(width) - (len(longer) == 2)],)) + number.to_bytes(width, "big")


def message(value: Any) -> bytes:
    """A value in MessagePack."""
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return _head(value, 0, 127, (0xCC, 0xCD, 0xCE, 0xCF))
    if isinstance(value, bytes):
        return _head(len(value), None, 0, (0xC4, 0xC5, 0xC6)) + value
    if isinstance(value, str):
        return _head(len(value.encode()), 0xA0, 31, (0xD9, 0xDA, 0xDB)) + value.encode()
    if isinstance(value, dict):
        return _head(len(value), 0x80, 15, (0xDE, 0xDF)) + b"".join(
            message(name) + message(each) for name, each in value.items())
    return _head(len(value), 0x90, 15, (0xDC, 0xDD)) + b"".join(map(message, value))


def canonical_event(name: bytes, payload: bytes) -> bytes:
    """What version 2 of dstack's log measures of an event."""
    return b'{"name":"%s","payload":"%s","type":134217729}' % (name, payload.hex().encode())


def dstack_map(kind: str = "tdx", *, log: int = 1, **stack: Any) -> dict[str, Any]:
    """dstack's attestation, version 1, of a platform, with a log of version 1 or 2."""
    measured = runtime_digest if log == 1 else lambda name, payload: hashlib.sha384(
        canonical_event(name, payload)).digest()
    register, listed = bytes(48), []
    for name, payload in EVENTS.items():
        register = hashlib.sha384(register + measured(name, payload)).digest()
        listed.append({"imr": 3, "event_type": RUNTIME_EVENT, "digest": b"", "event": name.decode(),
                       "event_payload": payload, **({"version": 2} if log == 2 else {})})
    quote = list(INTEL.quote(report_data=REPORT_DATA, rtmr3=register))
    data = {"tdx": {"quote": quote, "event_log": listed},
            "gcp-tdx": {"quote": quote, "event_log": listed, "tpm_quote": {"message": b"\xffTCG", "event_log": []}},
            "sev-snp": {"report": list(AMD.report(report_data=REPORT_DATA)),
                        "cert_chain": [list(each) for each in der().values()], "mr_config": "{}"}}
    said = {"report_data": list(REPORT_DATA), "runtime_events": [{"event": "app-id", "payload": b"\1"}],
            "config": '{"cpu_count":2}', **stack}
    return {"version": 1, "platform": {"kind": kind, "data": data.get(kind, {"nsm_quote": [132]})},
            "stack": {"kind": "dstack-pod" if "report_data_payload" in stack else "dstack", "data": said}}


def dstack_json(spell: Any = bytes.hex) -> dict[str, Any]:
    """dstack's answer in JSON."""
    log = [{"imr": 3, "event_type": RUNTIME_EVENT, "digest": runtime_digest(name, payload).hex(),
            "event": name.decode(), "event_payload": payload.hex()} for name, payload in EVENTS.items()]
    return {"quote": spell(INTEL.quote(report_data=REPORT_DATA, rtmr3=rtmr3(EVENTS))), "event_log": json.dumps(log),
            "vm_config": "{}"}


def table(certificates: Mapping[str, bytes]) -> bytes:
    """The certificate table behind a report, as configfs gives it in `auxblob`."""
    guids = {"VCEK": "63da758de6644564adc5f4b93be8accd", "ASK": "4ab7b379bbac4fe4a02f05aef327c782",
             "ARK": "c0b406a4a803495297433fb6014cd0ae"}
    head, body, offset = b"", b"", 24 * (len(certificates) + 1)
    for name, blob in certificates.items():
        head += bytes.fromhex(guids[name]) + struct.pack("<II", offset, len(blob))
        body, offset = body + blob, offset + len(blob)
    return head + bytes(24) + body


def tsm(provider: str = "sev_guest") -> dict[str, Any]:
    """The files of configfs-tsm."""
    report = AMD.report() if provider == "sev_guest" else INTEL.quote()
    aux = table(der()) if provider == "sev_guest" else b""
    return {"provider": provider, "outblob": b64(report), "auxblob": b64(aux)}
