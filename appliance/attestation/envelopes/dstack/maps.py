"""dstack's attestation, version 1, in MessagePack: a map of version, platform and stack.

    {"version": 1, "platform": {"kind": "tdx", "data": {"quote": [4, 0, …], "event_log": […]}},
     "stack": {"kind": "dstack", "data": {"report_data": […], "runtime_events": […], "config": "{}"}}}

Source: Dstack-TEE/dstack, `dstack-attest/src/v1.rs`, as `rmp-serde` writes it: long bytes are lists
of numbers, those of events are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from appliance.attestation.case.event_log import Event
from appliance.attestation.envelopes.dstack import log
from appliance.attestation.envelopes.parts import messagepack, strict
from appliance.attestation.envelopes.parts.carried import EnvelopeParts
from appliance.attestation.envelopes.parts.strict import Members
from appliance.errors import MalformedEvidenceError, UnsupportedEvidenceError

_WHAT = "dstack attestation"
_BEGINNING, _PLATFORM = b"\x83\xa7version", b"\xa8platform"
_EVENT = ("imr", "event_type", "digest", "event", "event_payload", "version", "preimage")
_RUNTIME_EVENT = ("event", "payload", "version")
_STACKS = {"dstack": ("report_data", "runtime_events", "config"),
           "dstack-pod": ("report_data", "runtime_events", "config", "report_data_payload")}
HEX_BEGINNING = _BEGINNING.hex()


def fits(data: bytes) -> bool:
    """Whether the bytes begin as a map of version and platform, whatever the version."""
    at = len(_BEGINNING)
    return data.startswith(_BEGINNING) and data[at:at + 1] < b"\x80" and data[at + 1:].startswith(_PLATFORM)


def read(data: bytes) -> tuple[EnvelopeParts, bytes]:
    """Read the evidence in the attestation, and the bytes behind it."""
    if len(data) > strict.MAX_BYTES:
        raise MalformedEvidenceError(f"{_WHAT}: {len(data)} bytes, at most {strict.MAX_BYTES}")
    found, tail = messagepack.read(data)
    if found.get("version") != 1:
        raise UnsupportedEvidenceError(f"{_WHAT}: version {found.get('version')} is not read", code="envelope-version",
                                       hint="versions 0 and 1 are: take the quote out and examine that")
    strict.only(found, ("version", "platform", "stack"), _WHAT)
    platform, evidence = _tagged(found, "platform")
    if platform not in _PLATFORMS:
        raise UnsupportedEvidenceError(
            f"{_WHAT}: {platform[:40]!r} is not a platform of this appliance", code="envelope-platform",
            hint="TDX, SEV-SNP and NitroTPM are; verify documents of enclaves with AWS' own tools")
    members, parts = _PLATFORMS[platform]
    strict.only(evidence, members, f"{_WHAT}: {platform}")
    return EnvelopeParts(**parts(evidence), **_stack(found, evidence)), tail


def _tagged(found: Members, name: str) -> tuple[str, Members]:
    """Return kind and data of an object that has both and no more."""
    value = strict.mapping(found, name, _WHAT)
    strict.only(value, ("kind", "data"), f"{_WHAT}: {name}")
    return strict.text(value, "kind", f"{_WHAT}: {name}"), strict.mapping(value, "data", f"{_WHAT}: {name}")


def _octets(value: object, what: str) -> bytes:
    """Bytes as such, or as the list of numbers that serde makes of a vector."""
    return value if isinstance(value, bytes) else strict.octets(value, f"{_WHAT}: {what}")


def _tdx(evidence: Members) -> dict[str, Any]:
    listed = strict.items(evidence, "event_log", log.MAX_EVENTS, _WHAT)
    beside = {"unjudged": ("tpm_quote",)} if "tpm_quote" in evidence else {}
    return {"evidence": _octets(evidence.get("quote"), "quote"), "events": tuple(map(_event, listed)) or None, **beside}


def _sev_snp(evidence: Members) -> dict[str, Any]:
    chain = strict.items(evidence, "cert_chain", 16, _WHAT)
    return {"evidence": _octets(evidence.get("report"), "report"),
            "certificates": tuple(_octets(each, "cert_chain") for each in chain)}


def _nitro_tpm(evidence: Members) -> dict[str, Any]:
    return {"evidence": _octets(evidence.get("attestation_doc"), "attestation_doc")}


_PLATFORMS: Mapping[str, tuple[tuple[str, ...], Callable[[Members], dict[str, Any]]]] = {
    "tdx": (("quote", "event_log"), _tdx), "gcp-tdx": (("quote", "event_log", "tpm_quote"), _tdx),
    "sev-snp": (("report", "cert_chain", "mr_config"), _sev_snp), "aws-nitro-tpm": (("attestation_doc",), _nitro_tpm)}


def _event(found: object) -> Event:
    if not isinstance(found, dict):
        raise MalformedEvidenceError(f"{_WHAT}: an event is not an object")
    strict.only(found, _EVENT, f"{_WHAT}: event")
    return log.event(
        strict.number(found, "imr", 32, _WHAT), strict.number(found, "event_type", 32, _WHAT),
        _octets(found.get("digest", b""), "digest"), strict.text(found, "event", _WHAT).encode(),
        _octets(found.get("event_payload"), "event_payload"), log.version(found))


def _stack(found: Members, evidence: Members) -> dict[str, Any]:
    """Report data, runtime events and configuration, of which nothing is proved."""
    kind, stack = _tagged(found, "stack")
    if kind not in _STACKS:
        raise UnsupportedEvidenceError(f"{_WHAT}: a stack of kind {kind[:40]!r} is not known", code="envelope-version",
                                       hint="take the quote out and examine that")
    strict.only(stack, _STACKS[kind], f"{_WHAT}: {kind}")
    names = [_runtime_event(each) for each in strict.items(stack, "runtime_events", log.MAX_EVENTS, _WHAT)]
    told = [("mr_config", strict.text(evidence, "mr_config", _WHAT))] if "mr_config" in evidence else []
    told += [("runtime events", ", ".join(names)), ("config", strict.text(stack, "config", _WHAT))]
    if kind == "dstack-pod":
        told.append(("report_data_payload", strict.text(stack, "report_data_payload", _WHAT)))
    return {"report_data": _report_data(stack), "told": tuple((name, value) for name, value in told if value)}


def _report_data(stack: Members) -> bytes:
    said = _octets(stack.get("report_data"), "report_data")
    if len(said) != 64:
        raise MalformedEvidenceError(f"{_WHAT}: report_data has {len(said)} bytes, expected 64")
    return said


def _runtime_event(found: object) -> str:
    """Return the name of a runtime event."""
    if not isinstance(found, dict):
        raise MalformedEvidenceError(f"{_WHAT}: a runtime event is not an object")
    strict.only(found, _RUNTIME_EVENT, f"{_WHAT}: runtime event")
    _octets(found.get("payload"), "payload")
    log.version(found)
    return strict.text(found, "event", _WHAT)
