"""Keys by which anybody can sign: OpenSSL takes a signature that nobody made, and nothing of ours does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from appliance.attestation import keyfile
from appliance.attestation.case import measurements
from appliance.auditor import held
from appliance.errors import ApplianceError
from appliance.receipts import dsse, envelopes
from appliance.signed import approvals, bundle, publisher
from appliance.transparency import ed25519, reading
from appliance.transparency.note import COSIGNS, Note, NoteKey, SignatureLine

ROOT = Path(__file__).parents[2]
PRIME = 2**255 - 19
NOBODYS = bytes([1]) + bytes(63)  # a signature that was made without any key: R is the neutral element, S is 0
# The y coordinates of all eight points of small order, by curve arithmetic below, in each encoding that has 32 bytes.
ORDER_8 = (0x5FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
           0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7)
SMALL = (0, 1, PRIME - 1, *ORDER_8)
WEAK = [(y | sign << 255).to_bytes(32, "little") for y in (*SMALL, PRIME, PRIME + 1) for sign in (0, 1)]
SECOND_NAMES = [(y | sign << 255).to_bytes(32, "little") for y in range(PRIME, 1 << 255) for sign in (0, 1)]
GOOD = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def _doubled(point: tuple[int, int]) -> tuple[int, int]:
    """Twice a point of the curve -x^2 + y^2 = 1 + d x^2 y^2 (RFC 8032, section 5.1.4), in affine coordinates."""
    x, y = point
    product = -121665 * pow(121666, -1, PRIME) * x * x * y * y % PRIME
    return (2 * x * y * pow(1 + product, -1, PRIME) % PRIME, (y * y + x * x) * pow(1 - product, -1, PRIME) % PRIME)


def _x(y: int) -> int:
    """An x coordinate to a y coordinate of the curve."""
    square = (y * y - 1) * pow(-121665 * pow(121666, -1, PRIME) * y * y + 1, -1, PRIME) % PRIME
    root = pow(square, (PRIME + 3) // 8, PRIME)
    root = root if root * root % PRIME == square else root * pow(2, (PRIME - 1) // 4, PRIME) % PRIME
    assert root * root % PRIME == square
    return root


@pytest.mark.parametrize("y", SMALL)
def test_eight_times_each_point_is_neutral(y: int) -> None:
    """By the curve's own arithmetic: so these are points of small order."""
    point = (_x(y), y)
    for _ in range(3):
        point = _doubled(point)
    assert (0, 1) == point


@pytest.mark.parametrize("public", WEAK)
def test_openssl_takes_what_nobody_signed(public: bytes) -> None:
    """For one message in eight at least, under each of these keys; `verify` never does."""
    taken = 0
    for number in range(200):
        message = b"%d" % number
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(NOBODYS, message)
        except InvalidSignature:
            continue
        taken += 1
        with pytest.raises(InvalidSignature):
            ed25519.verify(public, NOBODYS, message)
    assert taken > 10


@pytest.mark.parametrize("public", [*SECOND_NAMES, b"", bytes(31), GOOD.public_key().public_bytes_raw() + b"x"])
def test_an_encoding_is_one_keys_alone(public: bytes) -> None:
    """A coordinate beyond the field's is another name of a key; other lengths are none."""
    assert ed25519.fault(public)


def test_a_key_that_signs_is_taken() -> None:
    """And its signature verifies; another's does not."""
    public = GOOD.public_key().public_bytes_raw()
    assert ed25519.fault(public) is None
    ed25519.verify(public, GOOD.sign(b"x"), b"x")
    for signature in (GOOD.sign(b"y"), NOBODYS, b""):
        with pytest.raises(InvalidSignature):
            ed25519.verify(public, signature, b"x")


def _forged(public: bytes) -> dict[str, Any]:
    made = dsse.sign(b"x", GOOD, "00000000")
    made["signatures"][0]["sig"] = "AQ" + "A" * 84 + "=="
    return {"envelope": made, "public": public}


def _cosigned(public: bytes) -> None:
    """A note that nobody cosigned, at a time at which it verifies under most of these keys."""
    key = NoteKey("w1", public, COSIGNS)
    for when in range(64):
        try:
            key.check(Note("a\n", (SignatureLine("w1", key.id, when.to_bytes(8, "big") + NOBODYS),)))
        except ApplianceError:
            continue
        return
    raise ApplianceError("none verifies")


READERS: dict[str, Callable[[bytes], object]] = {
    "audit key": lambda public: held.public_key(public.hex()),
    "witness": lambda public: held.witness_key(f"w1={public.hex()}"),
    "key in C2SP's form": lambda public: reading.key(NoteKey("w1", public).text),
    "builder's key": lambda public: keyfile.ed25519_public_key(f"ed25519:{public.hex()}"),
    "publisher's key": lambda public: bundle.public_key(f"ed25519:{public.hex()}"),
    "note": _cosigned,
    "receipt": lambda public: envelopes.payload(**_forged(public)),
    "measurements": lambda public: measurements.verify_signature(b"x", NOBODYS, public),
    "model": lambda public: publisher.check(public, NOBODYS, bytes(32), bytes(32))}


@pytest.mark.parametrize("public", WEAK)
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_takes_such_a_key(reader: str, public: bytes) -> None:
    """Each that reads a key of somebody, or verifies by one, refuses it by an error of ours."""
    with pytest.raises(ApplianceError):
        READERS[reader](public)
    digest = bytes(48)
    assert not approvals.verifies(f"ed25519:{public.hex()}", f"ed25519:{NOBODYS.hex()}", digest)


def test_signatures_are_verified_in_one_place() -> None:
    """Nothing else of ours asks OpenSSL with bytes of a key: bundles have a key of several kinds, and refuse these."""
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "appliance").rglob("*.py")
             if re.search(r"\bEd25519PublicKey\s*\.\s*from_public_bytes", path.read_text("utf-8"))}
    assert {"appliance/transparency/ed25519.py", "appliance/signed/bundle.py",
            "appliance/boot/selftest/crypto.py"} == found
