"""Fuzz target: challenges to a TPM as the service reads them, a TPM's answers as a client does, and EK certificates.

The first byte of an input says what the rest is.
"""

from __future__ import annotations

import base64
import functools
import json
from typing import Any, cast

from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.case.terms import EkRoots
from appliance.attestation.tpm import credential as tpm_credential
from appliance.attestation.tpm.judging import ek as tpm_ek
from appliance.attestation.tpm.judging import protection
from appliance.attestation.x509 import walks
from appliance.client import activation as client
from appliance.errors import AttestationError
from appliance.service.attesting import activation as service
from examples.broker import server as broker
from tests.support.fake_tpm import NOW
from tests.support.tpm_maker import Maker, other_key


@functools.cache
def _genuine() -> tuple[bytes, EkRoots]:
    maker = Maker()
    roots = EkRoots({walks.fingerprint(maker.root): "Maker Root"}, (maker.root, maker.authority))
    return maker.certify(other_key()).public_bytes(Encoding.DER), roots


def fuzz(data: bytes) -> None:
    """One part from the input."""
    which, rest = data[:1], data[1:]
    try:
        if which == b"\0":
            service.parse(rest.decode("latin-1"))
        elif which == b"\1":
            client._answer(cast(Any, None), 200, rest)
        elif which == b"\2":
            certificate, roots = _genuine()
            tpm_ek.check(rest, roots, (), at=NOW)
            if rest != certificate:
                raise AssertionError("a certificate that nobody issued")
        else:
            broker.answer_in(rest.decode("latin-1"))
    except (AttestationError, ValueError, TypeError, LookupError, RecursionError) as error:  # as the broker catches
        if which in b"\0\1\2" and not isinstance(error, AttestationError):
            raise


def seeds() -> list[bytes]:
    """One of each in form."""
    sent = protection.challenge(other_key(), b"\0\x0b" + bytes(32), bytes(32))
    said = json.dumps({"format": tpm_credential.FORMAT, "answer": "ab" * 32}).encode()
    return [b"\0" + base64.urlsafe_b64encode(sent).rstrip(b"="), b"\1" + said, b"\2" + _genuine()[0],
            b"\3" + json.dumps({broker.ACTIVATION: "ab" * 32}).encode()]
