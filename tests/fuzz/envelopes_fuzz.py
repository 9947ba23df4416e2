"""Fuzz target: the readers of envelopes. The first byte chooses an envelope and the second a member of it, whose value
is made of the rest; with a first byte of zero the rest is the whole file."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
from typing import Any

from appliance.attestation.envelopes import registry
from appliance.attestation.envelopes.provider import tinfoil
from appliance.errors import AttestationError
from tests.support import envelopes, provider_envelopes
from tests.support.envelopes import INTEL, b64


@functools.cache
def _envelopes() -> tuple[Any, ...]:
    tdx = {"quote": b64(INTEL.quote()), "cc_eventlog": b64(envelopes.ccel([(0, b"x")])[0])}
    return (envelopes.trustee_snp(), tdx, envelopes.azure_snp(0), envelopes.azure_snp(1), envelopes.azure_tdx(0),
            envelopes.azure_tdx(1), envelopes.tpm(), envelopes.tsm(), envelopes.tsm("tdx_guest"),
            {"platform": "tdx", "evidence": tdx}, {"platform": "az-snp", "evidence": envelopes.azure_snp()},
            {"tee-evidence": {"primary_evidence": envelopes.tpm(), "additional_evidence": "{}"}},
            envelopes.pieces(), envelopes.dstack_json(), {"attestation": envelopes.dstack().hex()},
            *provider_envelopes.every())


def spots_of(value: Any, items: int = 3) -> list[tuple[Any, Any]]:
    """Each member of an object or the first items of a list, at any depth: (what holds it, name or place)."""
    places = list(value) if isinstance(value, dict) else list(range(min(len(value), items)))
    found = [(value, place) for place in places]
    for place in places:
        if isinstance(value[place], dict | list):
            found += spots_of(value[place], items)
    return found


def _value(form: int, data: bytes) -> Any:
    """A value of JSON made of bytes, in one of the spellings that envelopes use."""
    if form % 7 == 0:
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(data)
    spellings = (lambda: data.decode("latin-1"), lambda: b64(data), lambda: base64.urlsafe_b64encode(data).decode(),
                 data.hex, lambda: list(data), lambda: [list(data)] * 3, lambda: {data.decode("latin-1"): data.hex()})
    return spellings[form % 7]()


def fuzz(data: bytes) -> None:
    """Recognise and read one envelope."""
    raw = data[1:]
    if data[:1] not in (b"", b"\0") and len(data) > 2:
        envelope = json.loads(json.dumps(_envelopes()[data[0] % len(_envelopes())]))
        holder, place = (spots := spots_of(envelope))[data[1] % len(spots)]
        holder[place] = _value(data[2], data[3:])
        raw = json.dumps(envelope).encode()
    name = registry.recognise(raw)
    try:
        carried, tail = registry.read(raw)
    except AttestationError:
        return
    if name is None or not raw.endswith(tail):
        raise AssertionError("read what was not recognised, or a tail that is not the file's")
    if not isinstance(carried.evidence, bytes) or len(carried.evidence) > max(len(raw) + 1184, tinfoil.MAX_BODY):
        raise AssertionError("more evidence than the file had")


def seeds() -> list[bytes]:
    """Whole envelopes, and inputs that change one member."""
    whole = [b"\0" + json.dumps(each, separators=(",", ":")).encode() for each in _envelopes()]
    changes = [bytes((number, member, form)) + rest for number in range(1, len(_envelopes()) + 1)
               for member, form, rest in ((0, 0, b"[1]"), (1, 2, b"\4\0\2\0\x81\0\0\0"), (3, 4, b"x" * 64))]
    maps = [b"\0" + envelopes.message(envelopes.dstack_map(kind)) for kind in ("tdx", "sev-snp", "nitro-enclave")]
    return [*whole, *changes, b"\0" + envelopes.dstack(), b"\0" + envelopes.dstack(tdx=False), *maps,
            b"\0" + provider_envelopes.token()]
