"""The request for a document, as a NitroTPM takes it: CBOR in an NV index, which the answer
replaces.

Source: aws/NitroTPM-Tools and aws/aws-nitro-enclaves-nsm-api, whose messages these are. The command
is the vendor's own. The answer may come from the host: it is bytes that a verifier judges.
"""

from __future__ import annotations

import struct

from appliance.attestation.tpm.abi import sized
from appliance.attestation.tpm.chip import client, device
from appliance.attestation.tpm.chip.client import Command, Tpm
from appliance.codec import cbor
from appliance.codec.cursor import Cursor
from appliance.errors import AttestationError

INDEX, BUFFER_BYTES = 0x01801A50, 8192  # an index of the owner's, for one request and its answer
NSM_REQUEST = Command("TPM2_VENDOR_AWS_NSM_REQUEST", 0x20000001, "of the vendor", authorised=1)
NV_DEFINE = Command("TPM2_NV_DefineSpace", 0x12A, "31.3", authorised=1)
NV_UNDEFINE = Command("TPM2_NV_UndefineSpace", 0x122, "31.4", authorised=1)
NV_WRITE = Command("TPM2_NV_Write", 0x137, "31.7", authorised=1)
_AUTH_WRITE, _AUTH_READ = 1 << 2, 1 << 18  # TPMA_NV, Part 2, section 13.4
_MAP_OF_ONE, _MAP_OF_THREE, _NULL = b"\xa1", b"\xa3", b"\xf6"
_NAME = cbor.encode("Attestation")
ANSWER = _MAP_OF_ONE + _NAME + _MAP_OF_ONE + cbor.encode("document") + b"\x59"  # then a length of two bytes
MAX_DOCUMENT_BYTES = BUFFER_BYTES - len(ANSWER) - 2


def encoded(user_data: bytes) -> bytes:
    """The request for a document that carries `user_data`, at most 256 bytes, and neither nonce nor
    key."""
    return b"".join((_MAP_OF_ONE, _NAME, _MAP_OF_THREE, cbor.encode("user_data"), cbor.encode(user_data),
                     cbor.encode("nonce"), _NULL, cbor.encode("public_key"), _NULL))


def document(answer: bytes) -> bytes:
    """The document in an answer, which anything may follow. Raises AttestationError where the
    answer is an error or in another form."""
    if not answer.startswith(ANSWER):
        raise AttestationError(f"NitroTPM: it answers no document, but {answer[:48]!r}", code="nitro-answer",
                               hint="aws/NitroTPM-Tools names its errors")
    return Cursor(answer[len(ANSWER):], "NitroTPM, answer", "big").sized(2, "document")


def collect(tpm: Tpm, user_data: bytes) -> bytes:
    """A document over the registers as they are now. Raises AttestationError, `nitro-absent` where
    the TPM is none of AWS's."""
    if tpm.execute(client.NV_READ_PUBLIC, (INDEX,)).code == client.SUCCESS:
        _undefine(tpm)  # of a process that ended in between
    area = struct.pack(">IHI", INDEX, device.SHA256, _AUTH_WRITE | _AUTH_READ) + sized(b"") + struct.pack(
        ">H", BUFFER_BYTES)
    tpm.require(NV_DEFINE, (client.OWNER,), sized(b"") + sized(area))
    try:
        tpm.require(NV_WRITE, (INDEX, INDEX), sized(encoded(user_data)) + struct.pack(">H", 0))
        asked = tpm.execute(NSM_REQUEST, (INDEX, INDEX))
        if asked.code != client.SUCCESS:
            raise AttestationError(f"NitroTPM: the TPM refused the request with code {asked.code:#05x}",
                                   code="nitro-absent", hint="the instance needs a NitroTPM: an image with UEFI and "
                                   "TPM support v2.0, on a type of instance that has one")
        return document(device.read_nv(tpm, INDEX) or b"")
    finally:
        _undefine(tpm)


def _undefine(tpm: Tpm) -> None:
    tpm.execute(NV_UNDEFINE, (client.OWNER, INDEX))
