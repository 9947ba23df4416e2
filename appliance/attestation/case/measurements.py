"""The values that hardware is expected to measure: `measurements.json`, as the builder of an image
predicted and signed it.

The specification is docs/formats/measurements.md. `parse` takes exactly the canonical form and
gives immutable objects; `verify_signature` says whether the builder signed those bytes. Parsing
needs no signature and proves nothing: a caller that takes the file from a stranger MUST verify it
under a key that it knows, and `signed` does both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import AfterValidator, Field, StringConstraints, ValidationError, model_validator

from appliance.attestation.binding import Build, Frozen, Hex32, Hex48, describe
from appliance.codec import filekind, strict
from appliance.codec.canonical import canonical
from appliance.errors import ForgedEvidenceError, MalformedEvidenceError
from appliance.transparency import ed25519

FORMAT = "appliance/measurements/v1"
DOMAIN = b"appliance/measurements/v1\n"
MAX_BYTES, SIGNATURE_BYTES, PUBLIC_KEY_BYTES = 1 << 22, 64, 32
PREDICTED_PCRS = (2, 3, 4, 5, 6, 9, 11, 12, 13)
GOLDEN_PCRS = (0, 7)
ZERO_PCRS = (12, 13)  # the boot stub extends them by what the host adds to command line and initrd: nothing may be
ID_BLOCK_BYTES, ID_AUTH_BYTES = 96, 4096

Text = Annotated[str, StringConstraints(strict=True, pattern=r"^[ -~]{1,256}$")]
Word = Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$")]
Bits64 = Annotated[str, StringConstraints(strict=True, pattern=r"^0x(0|[1-9a-f][0-9a-f]{0,15})$")]
Number = Annotated[int, Field(strict=True, ge=0, lt=1 << 32)]
PcrName = Annotated[str, StringConstraints(strict=True, pattern=r"^([0-9]|1[0-9]|2[0-3])$")]
Register = Annotated[int, Field(strict=True, ge=0, le=23)]


def _base64(size: int) -> AfterValidator:
    def check(text: str) -> str:
        try:
            data = strict.base64(text)
        except ValueError:
            data = b""
        if len(data) != size:
            raise ValueError(f"not {size} bytes in base64")
        return text

    return AfterValidator(check)


class IdBlock(Frozen):
    """AMD 56860, "ID Block" and "ID Authentication Information": what a host must pass for the
    launch to succeed."""

    block: Annotated[str, Field(strict=True, max_length=128), _base64(ID_BLOCK_BYTES)]
    auth: Annotated[str, Field(strict=True, max_length=5464), _base64(ID_AUTH_BYTES)]
    id_key_sha384: Hex48
    author_key_sha384: Hex48 | None


class SnpPrediction(Frozen):
    """The launch digest of one shape of guest."""

    vmm: Literal["qemu"]
    vcpus: Annotated[int, Field(strict=True, ge=1, le=512)]
    cpu_model: Word
    guest_features: Bits64
    firmware_sha256: Hex32
    launch_digest: Hex48
    id_block: IdBlock | None


class TdxPrediction(Frozen):
    """MRTD of one firmware in one order of its pages, and the RTMRs as far as files give them."""

    firmware_sha256: Hex32
    page_order: Literal["page", "section"]
    mrtd: Hex48
    rtmr: tuple[Hex48 | None, Hex48 | None, Hex48 | None, Hex48 | None]
    unverified: tuple[Text, ...] = Field(max_length=16)


class Golden(Frozen):
    """Registers that were read on a machine of this shape, since no file gives them."""

    machine: Word
    firmware_sha256: Hex32
    pcrs: dict[PcrName, Hex32] = Field(max_length=24)

    @model_validator(mode="after")
    def _registers(self) -> Self:
        if set(self.pcrs) != {str(number) for number in GOLDEN_PCRS}:
            raise ValueError("golden values are of PCR 0 and PCR 7, no more and no less")
        return self


class PcrEvent(Frozen):
    """One measurement that a predicted register is made of, in the order of extension."""

    pcr: Register
    kind: Number
    sha256: Hex32
    what: Text


class TpmPrediction(Frozen):
    """PCRs in the SHA-256 bank: the values that are accepted for each, and the events that give the
    first of them."""

    bank: Literal["sha256"]
    pcrs: dict[PcrName, Annotated[tuple[Hex32, ...], Field(min_length=1, max_length=16)]]
    golden: tuple[Golden, ...] = Field(max_length=64)
    events: tuple[PcrEvent, ...] = Field(max_length=256)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if set(self.pcrs) != {str(number) for number in PREDICTED_PCRS}:
            raise ValueError(f"predicted PCRs are {', '.join(map(str, PREDICTED_PCRS))}, no more and no less")
        if any(self.pcrs[str(number)] != ("00" * 32,) for number in ZERO_PCRS):
            raise ValueError("PCR 12 and PCR 13 are zero")
        names = [shape.machine for shape in self.golden]
        if names != sorted(set(names)):
            raise ValueError("golden machines are not in ascending order of name, each once")
        return self

    def accepted(self) -> Mapping[int, frozenset[bytes]]:
        """PCR number to the values that the files give, without the golden ones."""
        return {int(name): frozenset(map(bytes.fromhex, values)) for name, values in self.pcrs.items()}


class Measurements(Frozen):
    """The whole file. `policy_sha384` is the policy that is part of the image, None if it is given
    at launch."""

    format: Literal["appliance/measurements/v1"]
    build: Build
    image: dict[Word, Hex32] = Field(max_length=64)
    policy_sha384: Hex48 | None
    sev_snp: tuple[SnpPrediction, ...] = Field(max_length=256)
    tdx: tuple[TdxPrediction, ...] = Field(max_length=64)
    tpm: TpmPrediction | None

    def sev_snp_digests(self) -> frozenset[bytes]:
        """The launch digests that are accepted, 48 bytes each; empty: no SEV-SNP launch of this
        image is known."""
        return frozenset(bytes.fromhex(each.launch_digest) for each in self.sev_snp)

    def tdx_mrtds(self) -> frozenset[bytes]:
        """The MRTDs that are accepted, 48 bytes each."""
        return frozenset(bytes.fromhex(each.mrtd) for each in self.tdx)

    def tdx_rtmrs(self) -> Mapping[int, frozenset[bytes]]:
        """RTMR number to the values that are accepted; a register that some entry does not give is
        absent."""
        return {number: frozenset(bytes.fromhex(each.rtmr[number] or "") for each in self.tdx)
                for number in range(4) if self.tdx and all(each.rtmr[number] is not None for each in self.tdx)}

    def tpm_pcrs(self) -> Mapping[int, frozenset[bytes]]:
        """PCR number to the predicted values that are accepted; empty without a TPM prediction."""
        return {} if self.tpm is None else self.tpm.accepted()

    def to_json(self) -> bytes:
        """The canonical form (RFC 8785), which is what is written and signed."""
        return canonical(self.model_dump(mode="json"))


def parse(data: bytes) -> Measurements:
    """The measurements in `data`. Raises MalformedEvidenceError on anything that is not exactly the
    format."""
    if len(data) > MAX_BYTES:
        raise _malformed(f"{len(data)} bytes, at most {MAX_BYTES}")
    try:
        value = json.loads(data.decode("utf-8"))
        one_form = canonical(value) == data
    except (ValueError, RecursionError):
        raise _malformed(f"not JSON{filekind.instead(data)}") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise _malformed(f"format is missing or unknown{filekind.instead(data)}", f"known: {FORMAT}")
    if not one_form:
        raise _malformed("not in canonical form (RFC 8785), or a key stands twice", "take the file as it was written")
    try:
        found = Measurements.model_validate(value)
    except ValidationError as error:
        raise _malformed(describe(error)) from None
    if found.to_json() != data:
        raise _malformed("a nested field is absent", "what does not apply is null")
    return found


def _malformed(what: str, hint: str | None = None) -> MalformedEvidenceError:
    return MalformedEvidenceError(f"measurements: {what}", code="measurements-malformed", hint=hint)


def message(data: bytes) -> bytes:
    """The bytes that the builder signs: a domain, then the file's bytes."""
    return DOMAIN + data


def sign(data: bytes, private_key: Ed25519PrivateKey) -> bytes:
    """The builder's signature, 64 bytes, over a measurements file. Raises MalformedEvidenceError if
    it is none."""
    parse(data)
    return private_key.sign(message(data))


def verify_signature(data: bytes, signature: bytes, public_key: bytes) -> None:
    """Raise ForgedEvidenceError unless `public_key` (32 bytes) signed the file's bytes."""
    try:
        ed25519.verify(public_key, signature, message(data))
    except InvalidSignature:
        raise ForgedEvidenceError(
            f"measurements: the signature does not verify under ed25519:{public_key.hex()}",
            code="measurements-signature",
            hint="file or signature were changed, or another builder signed them") from None


def signed(data: bytes, signature: bytes, public_key: bytes) -> Measurements:
    """The measurements that the builder signed: the signature is verified before anything is
    parsed."""
    verify_signature(data, signature, public_key)
    return parse(data)
