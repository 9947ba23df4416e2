"""Fuzz target: dstack's attestation, version 1. The first byte chooses an attestation and the second a member of it,
whose value is made of the rest; with a first byte of zero the rest is MessagePack."""

from __future__ import annotations

import contextlib
import copy
import functools
from typing import Any

from appliance.attestation.envelopes import registry
from appliance.attestation.envelopes.parts import messagepack
from appliance.errors import AttestationError
from tests.fuzz.envelopes_fuzz import spots_of
from tests.support import envelopes

KINDS = ("tdx", "gcp-tdx", "sev-snp", "aws-nitro-tpm", "nitro-enclave")


@functools.cache
def _attestations() -> tuple[dict[str, Any], ...]:
    """One of each, with evidence of some bytes: nothing here judges it."""
    found = (*(envelopes.dstack_map(kind) for kind in KINDS), envelopes.dstack_map(log=2, report_data_payload="{}"))
    for each in found:
        data = each["platform"]["data"]
        data.update({name: data[name][:64] for name in ("quote", "report") if name in data})
        if "cert_chain" in data:
            data["cert_chain"] = [certificate[:64] for certificate in data["cert_chain"]]
    return found


def _value(form: int, data: bytes) -> Any:
    """A value made of bytes: themselves, a list, a number, a text, a map, or what MessagePack they are."""
    if form % 6 == 0:
        with contextlib.suppress(AttestationError):
            return messagepack.read(data)[0]
    return (data, list(data), int.from_bytes(data[:8], "big"), data.decode("latin-1"), {data.hex(): data},
            [{"event": data.hex(), "payload": data, "version": len(data)}])[form % 6]


def fuzz(data: bytes) -> None:
    """Read one attestation."""
    raw = data[1:]
    if data[:1] not in (b"", b"\0") and len(data) > 2:
        attestation = copy.deepcopy(_attestations()[data[0] % len(_attestations())])
        holder, place = (spots := spots_of(attestation, 2))[data[1] % len(spots)]
        holder[place] = _value(data[2], data[3:])
        raw = envelopes.message(attestation)
    try:
        carried, tail = registry.read(raw)
    except AttestationError:
        return
    if not raw.endswith(tail) or len(carried.evidence) > len(raw):
        raise AssertionError("a tail that is not the file's, or more evidence than the file had")


def seeds() -> list[bytes]:
    """Whole attestations, and inputs that change one member."""
    changes = [bytes((number, member, form)) + rest for number in range(1, len(_attestations()) + 1)
               for member in range(20) for form, rest in ((0, b"\x91\x01"), (1, b"x" * 64), (5, b"\1"))]
    return [*(b"\0" + envelopes.message(each) for each in _attestations()), *changes]
