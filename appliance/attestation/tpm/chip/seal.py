"""Keys that a TPM gives out only while its PCRs have the values that they were sealed to.

A sealed key is a KEYEDHASH object under the storage primary key of the owner hierarchy, with
PolicyPCR over the SHA-256 bank as its only authorisation. Source: TPM 2.0 Library, revision 1.59,
Part 1, section 19.7; Part 3, sections 11.1, 12.1, 12.2, 12.7, 23.7. Values may be predicted:
sealing to a boot that has not happened yet needs nothing but the numbers.

The file is docs/formats/key-release.md's: a magic, TPM2B_PRIVATE, TPM2B_PUBLIC. The TPM's owner can
read what it gives out: of a vTPM that is the host.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Mapping

from appliance.attestation.tpm import abi
from appliance.attestation.tpm.abi import sized
from appliance.attestation.tpm.chip import client, device
from appliance.attestation.tpm.chip.client import Command, Tpm, TpmAnswer
from appliance.codec.cursor import Cursor
from appliance.errors import AttestationError, MalformedEvidenceError

MAGIC = b"appliance/tpm-key/v1\n"
MAX_BYTES, MAX_SECRET_BYTES = 1024, 128  # TPM 2.0 Library, Part 2, section 11.1.14: MAX_SYM_DATA
CREATE = Command("TPM2_Create", 0x153, "12.1", authorised=1)
LOAD = Command("TPM2_Load", 0x157, "12.2", authorised=1, returns=1)
UNSEAL = Command("TPM2_Unseal", 0x15E, "12.7", authorised=1)
POLICY_PCR = Command("TPM2_PolicyPCR", 0x17F, "23.7")
_KEYEDHASH, _AES, _CFB = 0x0008, 0x0006, 0x0043
_USER_WITH_AUTH, _NO_DA = 1 << 6, 1 << 10  # TPMA_OBJECT, Part 2, section 8.3
_POLICY_FAIL, _INTEGRITY, _FORMAT_ONE = 0x09D, 0x09F, 0x080  # TPM_RC, Part 2, section 6.6, without handle or session


def policy_digest(values: Mapping[int, bytes]) -> bytes:
    """The policy that PCRs (SHA-256 bank) have these values: 32 bytes (Part 3, section 23.7,
    equation 27)."""
    together = hashlib.sha256(b"".join(value for _, value in sorted(values.items()))).digest()
    command = struct.pack(">I", POLICY_PCR.code)
    return hashlib.sha256(bytes(32) + command + device.selection(sorted(values)) + together).digest()


def seal(tpm: Tpm, secret: bytes | bytearray, values: Mapping[int, bytes]) -> bytes:
    """A sealed key file: `secret` (at most 128 bytes) for the time when PCRs have `values` (32
    bytes each).

    Raises AttestationError when the TPM refuses.
    """
    if not 0 < len(secret) <= MAX_SECRET_BYTES or not values or any(len(value) != 32 for value in values.values()):
        raise ValueError("1 to 128 bytes of secret, and PCR values of 32 bytes")
    template = (struct.pack(">HHI", _KEYEDHASH, device.SHA256, abi.FIXED_TPM | abi.FIXED_PARENT | _NO_DA)
                + sized(policy_digest(values)) + struct.pack(">H", abi.NULL) + sized(b""))
    sensitive = sized(sized(b"") + sized(bytes(secret)))
    parent = _storage_key(tpm)
    try:
        answer = tpm.require(CREATE, (parent,), sensitive + sized(template) + sized(b"") + struct.pack(">I", 0))
    finally:
        tpm.flush(parent)
    cursor = answer.cursor("sealed object")
    private, public = cursor.sized(2, "private part"), cursor.sized(2, "public part")
    return MAGIC + sized(private) + sized(public)


def unseal(tpm: Tpm, data: bytes, pcrs: Collection[int]) -> bytearray:
    """The secret in a sealed key file, which the caller wipes.

    Raises MalformedEvidenceError for another file; AttestationError `tpm-pcrs` when the PCRs have
    other values than it was sealed to, `tpm-other` when another TPM sealed it, or as the TPM says.
    """
    private, public = _parts(data)
    parent = _storage_key(tpm)
    try:
        loaded = tpm.execute(LOAD, (parent,), sized(private) + sized(public))
    finally:
        tpm.flush(parent)
    if _reason(loaded) == _INTEGRITY:
        raise AttestationError("TPM: the sealed key is another TPM's", code="tpm-other",
                               hint="seal the key again on this TPM")
    item = _required(loaded, LOAD).handles[0]
    try:
        return _unsealed(tpm, item, pcrs)
    finally:
        tpm.flush(item)


def _unsealed(tpm: Tpm, item: int, pcrs: Collection[int]) -> bytearray:
    """Unseal in a policy session over the PCRs as they are; the session ends with the command, or
    is flushed."""
    session = client.policy_session(tpm)
    answer: TpmAnswer | None = None
    try:
        tpm.require(POLICY_PCR, (session,), sized(b"") + device.selection(sorted(pcrs)))
        answer = tpm.execute(UNSEAL, (item,), sessions=client.session_auth(session))
    finally:
        if answer is None or answer.code != client.SUCCESS:
            tpm.flush(session)
    if _reason(answer) == _POLICY_FAIL:
        raise AttestationError(
            f"TPM: PCR {', '.join(map(str, sorted(pcrs)))} are not what the key was sealed to", code="tpm-pcrs",
            hint="another image, command line or firmware has booted; or the key was sealed to other PCRs")
    return bytearray(_required(answer, UNSEAL).cursor("unsealed data").sized(2, "unsealed data"))


def _storage_key(tpm: Tpm) -> int:
    """A handle of the storage primary key: ECC P-256 with AES-128-CFB, the same for the life of the
    owner seed."""
    attributes = (abi.FIXED_TPM | abi.FIXED_PARENT | abi.SENSITIVE_ORIGIN | abi.RESTRICTED
                  | _USER_WITH_AUTH | _NO_DA | abi.DECRYPT)
    template = (struct.pack(">HHI", abi.ECC, device.SHA256, attributes) + sized(b"")
                + struct.pack(">HHHHHH", _AES, 128, _CFB, abi.NULL, 0x0003, abi.NULL) + sized(b"") + sized(b""))
    sensitive = sized(sized(b"") + sized(b""))
    return tpm.require(client.CREATE_PRIMARY, (client.OWNER,),
                       sensitive + sized(template) + sized(b"") + struct.pack(">I", 0)).handles[0]


def _parts(data: bytes) -> tuple[bytes, bytes]:
    """TPM2B_PRIVATE and TPM2B_PUBLIC, without their sizes."""
    if len(data) > MAX_BYTES or not data.startswith(MAGIC):
        raise MalformedEvidenceError("TPM-sealed key: it does not begin as one, or is too long", code="tpm-key-file",
                                     hint="make it with: appliance model tpm-seal")
    cursor = Cursor(data[len(MAGIC):], "TPM-sealed key", "big")
    private, public = cursor.sized(2, "private part"), cursor.sized(2, "public part")
    if cursor.left:
        raise MalformedEvidenceError("TPM-sealed key: bytes behind its end", code="tpm-key-file")
    return private, public


def _reason(answer: TpmAnswer) -> int:
    """A format-one response code without what says which handle, session or parameter it is about.
    """
    return answer.code & 0x0BF if answer.code & _FORMAT_ONE else answer.code


def _required(answer: TpmAnswer, command: Command) -> TpmAnswer:
    if answer.code != client.SUCCESS:
        raise AttestationError(f"TPM: {command.name} was refused with code {answer.code:#05x}", code="tpm-refused",
                               hint="TPM 2.0 Library, Part 2, section 6.6 says what the code means")
    return answer
