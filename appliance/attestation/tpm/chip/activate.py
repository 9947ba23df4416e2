"""The appliance's half of credential activation: its TPM opens what a verifier locked to it and to
its own key.

Source: TPM 2.0 Library, Part 3: section 12.5 (TPM2_ActivateCredential), 23.4 (TPM2_PolicySecret);
TCG "EK Credential Profile", version 2.5, annex B (default templates, their policies A and B).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from appliance.attestation.tpm import abi, credential
from appliance.attestation.tpm.abi import sized
from appliance.attestation.tpm.chip import client, device
from appliance.attestation.tpm.chip.client import Command, Tpm
from appliance.attestation.x509 import walks
from appliance.errors import AttestationError

POLICY_SECRET = Command("TPM2_PolicySecret", 0x151, "23.4", authorised=1)
ACTIVATE_CREDENTIAL = Command("TPM2_ActivateCredential", 0x147, "12.5", authorised=2, returns=0)
_USER_WITH_AUTH, _ADMIN_WITH_POLICY = 1 << 6, 1 << 7  # TPMA_OBJECT, Part 2, section 8.3
_ATTRIBUTES = (abi.FIXED_TPM | abi.FIXED_PARENT | abi.SENSITIVE_ORIGIN | _ADMIN_WITH_POLICY
               | abi.RESTRICTED | abi.DECRYPT)
# Where a maker may have left the key itself: TCG "TPM v2.0 Provisioning Guidance", section 7.8
PERSISTENT = (0x81010001, 0x81010002, 0x8101000A, 0x81010012, 0x81010014, 0x81010016, 0x8101001C, 0x8101001E)
# Policy A: TPM2_PolicySecret(TPM_RH_ENDORSEMENT). Policy B: A, or what an NV index of the owner's
# says.
_POLICY_A = bytes.fromhex("837197674484b3f81a90cc8d46a5d724fd52d76e06520b64f2a1da1b331469aa")
_POLICY_B: Mapping[int, bytes] = {
    0x000B: bytes.fromhex("ca3d0a99a2b93906f7a3342414efcfb3a385d44cd1fd459089d19b5071c0b7a0"),
    0x000C: bytes.fromhex("b26e7d28d11a50bc53d882bcf5fd3a1a074148bb35d3b4e4cb1c0ad9bde419ca"
                          "cb47ba09699646150f9fc000f3f80e12"),
    0x000D: bytes.fromhex("b8221ca69e8550a4914de3faa6a18c072cc01208073a928d5d66d59ef79e49a4"
                          "29c41a6b269571d57edb25fbdb1838425608b413cd616a5f6db5b6071af99bea")}


@dataclass(frozen=True)
class EkTemplate:
    """A default template: name algorithm, bits of AES, and either a curve (TPM_ECC_CURVE) or bits
    of RSA; `low`: of the low range, whose policy is A and whose `unique` is zeros."""

    name: int
    aes: int
    curve: int = 0
    rsa: int = 0
    low: bool = False

    def area(self) -> bytes:
        """TPMT_PUBLIC."""
        attributes = _ATTRIBUTES if self.low else _ATTRIBUTES | _USER_WITH_AUTH
        policy = _POLICY_A if self.low else _POLICY_B[self.name]
        kind = abi.RSA if self.rsa else abi.ECC
        out = struct.pack(">HHI", kind, self.name, attributes) + sized(policy)
        out += struct.pack(">HHHH", device.AES, self.aes, device.CFB, abi.NULL)
        if self.rsa:
            return out + struct.pack(">HI", self.rsa, 0) + sized(bytes(256 if self.low else 0))
        return out + struct.pack(">HH", self.curve, abi.NULL) + 2 * sized(bytes(32 if self.low else 0))


# NV index of a certificate -> template: "EK Credential Profile", section 2.2.1.4, annexes B.3 and
# B.4
TEMPLATES: Mapping[int, EkTemplate] = {
    0x01C00002: EkTemplate(0x000B, 128, rsa=2048, low=True),    # L-1
    0x01C0000A: EkTemplate(0x000B, 128, curve=0x0003, low=True),  # L-2
    0x01C00012: EkTemplate(0x000B, 128, rsa=2048),              # H-1
    0x01C00014: EkTemplate(0x000B, 128, curve=0x0003),          # H-2
    0x01C00016: EkTemplate(0x000C, 256, curve=0x0004),          # H-3
    0x01C00018: EkTemplate(0x000D, 256, curve=0x0005),          # H-4
    0x01C0001C: EkTemplate(0x000C, 256, rsa=3072),              # H-6
    0x01C0001E: EkTemplate(0x000C, 256, rsa=4096)}              # H-7


@dataclass(frozen=True)
class LoadedEk:
    """An endorsement key in the TPM; `persistent`: it was there and stays."""

    handle: int
    attributes: int
    persistent: bool


def load(tpm: Tpm, index: int, certificate: bytes) -> LoadedEk:
    """The key of the certificate (DER) at an NV index: where the maker left it, or made anew from
    its template.

    Raises AttestationError `tpm-ek-other` when neither is the certificate's key.
    """
    wanted = walks.load(certificate, "EK certificate")[0].public_key()
    for handle in PERSISTENT:
        answer = tpm.execute(client.READ_PUBLIC, (handle,))
        if answer.code == client.SUCCESS:
            area = _area(sized(answer.cursor("public area").sized(2, "public area")))
            if area is not None and area.key == wanted:
                return LoadedEk(handle, area.attributes, persistent=True)
    made = device.create_primary(tpm, TEMPLATES[index].area())
    area = _area(made.public)
    if area is None or area.key != wanted:
        tpm.flush(made.handle)
        raise AttestationError("TPM: its endorsement key is not the one of the certificate that it holds",
                               code="tpm-ek-other", hint="the endorsement seed has changed, or the key is of no "
                               "default template")
    return LoadedEk(made.handle, area.attributes, persistent=False)


def _area(public: bytes) -> abi.PublicArea | None:
    try:
        return abi.parse_public(public)
    except AttestationError:
        return None


def secret(tpm: Tpm, key: int, ek: LoadedEk, challenge: bytes) -> bytes:
    """Open a challenge to this TPM and the attestation key at handle `key`.

    Raises MalformedEvidenceError; AttestationError `tpm-activation` when the TPM does not open it.
    """
    blob, encrypted = credential.parse_challenge(challenge)
    session = None if ek.attributes & _USER_WITH_AUTH else client.policy_session(tpm)
    use = client.empty_password()
    answer = None
    try:
        if session is not None:
            tpm.require(POLICY_SECRET, (client.ENDORSEMENT, session),
                        sized(b"") + sized(b"") + sized(b"") + struct.pack(">i", 0))
            use = client.session_auth(session)
        answer = tpm.execute(ACTIVATE_CREDENTIAL, (key, ek.handle), sized(blob) + sized(encrypted),
                             sessions=client.empty_password() + use)
    finally:
        if session is not None and (answer is None or answer.code != client.SUCCESS):
            tpm.flush(session)
    if answer.code != client.SUCCESS:
        raise AttestationError(f"TPM: it does not open the challenge (code {answer.code:#05x})", code="tpm-activation",
                               hint="the challenge is for another endorsement key, or another attestation key")
    return answer.cursor("activated credential").sized(2, "secret")
