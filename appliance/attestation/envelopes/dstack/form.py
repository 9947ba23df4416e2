"""dstack's attestation, version 0, in SCALE: platform, quote, event log, runtime events, report
data, configuration.

Source: Dstack-TEE/dstack, `dstack-attest`, VersionedAttestation. Version 1 is MessagePack, which
`maps` reads.
"""

from __future__ import annotations

from appliance.attestation.case.event_log import Event
from appliance.attestation.envelopes.dstack import log, maps
from appliance.attestation.envelopes.parts import scale
from appliance.attestation.envelopes.parts.carried import EnvelopeParts
from appliance.codec.cursor import Cursor
from appliance.errors import UnsupportedEvidenceError

TDX, GCP_TDX, NITRO, SNP, NITRO_TPM = range(5)
_NAMES = {NITRO: "AWS Nitro Enclaves"}
_WHAT = "dstack attestation"
_STARTS = {TDX: (b"\x04\x00\x02\x00\x81\x00\x00\x00", b"\x05\x00\x02\x00\x81\x00\x00\x00"),
           SNP: tuple(bytes((version, 0, 0, 0)) for version in range(2, 6)), NITRO: (b"\x84\x44\xa1\x01",)}
_STARTS[GCP_TDX], _STARTS[NITRO_TPM] = _STARTS[TDX], _STARTS[NITRO]
_MOST_HEADER = 6  # version, platform, and a compact length


def fits(data: bytes) -> bool:
    """Whether the bytes begin as version 0 of a platform, with what that platform's evidence begins
    with, or as version 1."""
    if maps.fits(data):
        return True
    if data[:1] != b"\x00" or len(data) < _MOST_HEADER or data[1] not in _STARTS:
        return False
    size = (1, 2, 4, 0)[data[2] & 3]
    return bool(size) and data[2 + size:].startswith(_STARTS[data[1]])


def read(data: bytes) -> tuple[EnvelopeParts, bytes]:
    """Read the evidence in the attestation, and the bytes behind it."""
    if data[:1] != b"\x00":
        return maps.read(data)
    cursor = Cursor(data, _WHAT, "little")
    platform = cursor.take(2, "version and platform")[1]
    if platform in _NAMES:
        raise UnsupportedEvidenceError(f"{_WHAT}: {_NAMES[platform]} is not a platform of this appliance",
                                       code="envelope-platform", hint="TDX, SEV-SNP and NitroTPM are; verify documents "
                                       "of enclaves with AWS' own tools")
    evidence = scale.octets(cursor, "quote")
    if platform == NITRO_TPM:
        return EnvelopeParts(evidence, unjudged=("all behind the document",)), b""
    if platform == SNP:
        certificates = tuple(scale.octets(cursor, "certificate")
                             for _ in range(scale.count(cursor, "certificates")))
        carried = EnvelopeParts(evidence, certificates)
        return _rest(cursor, data, carried, [("mr_config", scale.text(cursor, "mr_config"))])
    events = tuple(_event(cursor) for _ in range(scale.count(cursor, "events")))
    if platform == GCP_TDX:
        return EnvelopeParts(evidence, events=events or None, unjudged=("TPM quote and all behind it",)), b""
    return _rest(cursor, data, EnvelopeParts(evidence, events=events or None), [])


def _event(cursor: Cursor) -> Event:
    register, kind = cursor.number(4, "IMR"), cursor.number(4, "event type")
    digest, name = scale.octets(cursor, "digest"), scale.text(cursor, "event name").encode()
    return log.event(register, kind, digest, name, scale.octets(cursor, "event payload"))


def _rest(cursor: Cursor, data: bytes, carried: EnvelopeParts,
          told: list[tuple[str, str]]) -> tuple[EnvelopeParts, bytes]:
    """Runtime events, report data and configuration, which end the attestation."""
    names = []
    for _ in range(scale.count(cursor, "runtime events")):
        names.append(scale.text(cursor, "event name"))
        scale.octets(cursor, "event payload")
    report_data = cursor.take(64, "report data")
    told += [("runtime events", ", ".join(names)), ("config", scale.text(cursor, "config"))]
    found = EnvelopeParts(carried.evidence, carried.certificates, events=carried.events, report_data=report_data,
                    told=tuple((name, value) for name, value in told if value))
    return found, data[cursor.at:]
