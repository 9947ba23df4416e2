"""Publishers' signatures: Ed25519 over the pins of a model, in a short text that anyone can write
again.

    appliance/model-signature/1
    sha256 <64 digits>
    sealed_header_sha256 <64 digits, or "-" where the signature is of the plaintext alone>

Each line ends with a line feed. The signature covers the weights through their SHA-256; with the
header's digest too, it covers one sealing of them. docs/formats/sealed-model.md has vectors.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature

from appliance.errors import PinError
from appliance.transparency import ed25519

NBYTES = 64


def message(sha256: bytes, header_sha256: bytes | None = None) -> bytes:
    """The signed bytes: the pins, 32 bytes each."""
    header = "-" if header_sha256 is None else header_sha256.hex()
    return f"appliance/model-signature/1\nsha256 {sha256.hex()}\nsealed_header_sha256 {header}\n".encode()


def check(public_key: bytes, signature: bytes, sha256: bytes, header_sha256: bytes | None = None, *,
          claimed: bool = False) -> None:
    """PinError unless the publisher signed these pins; for a sealed model, both of them or the
    plaintext's alone. Both of them where `sha256` is only `claimed` by the header: whoever wrote
    that may state another model's."""
    forms = [message(sha256, header_sha256)]
    if header_sha256 is not None and not claimed:
        forms.append(message(sha256))
    for form in forms:
        try:
            ed25519.verify(public_key, signature, form)
        except InvalidSignature:
            continue
        return
    raise PinError(f"the publisher's signature does not verify over sha256 {sha256.hex()}", code="model-signature",
                   hint="the pins or the signature were changed, or another publisher signed")
