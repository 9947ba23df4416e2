"""The values that hardware is expected to measure: `measurements.json`, as the builder of an image
predicted and signed it, or a portable reference, from which they are derived here.

The specifications are docs/formats/measurements.md and docs/formats/portable-reference.md. `parse`
takes exactly the canonical form of either and gives immutable objects; `verify_signature` says
whether the builder signed those bytes. Parsing needs no signature and proves nothing: a caller that
takes the file from a stranger MUST verify it under a key that it knows, and `signed` does both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import Field, ValidationError, model_validator

from appliance.attestation.binding import Build, Frozen, Hex32, Hex48, describe
from appliance.attestation.measured import portable, second
from appliance.attestation.measured.fields import Word
from appliance.attestation.measured.first import SnpPrediction, TdxPrediction, TpmPrediction
from appliance.attestation.measured.nitro import NitroPrediction
from appliance.attestation.measured.portable import PortableReference
from appliance.attestation.measured.second import SnpRow, TdxRow
from appliance.codec import filekind
from appliance.codec.canonical import canonical
from appliance.errors import ForgedEvidenceError, MalformedEvidenceError
from appliance.transparency import ed25519

FORMAT, SECOND = "appliance/measurements/v1", "appliance/measurements/v2"
MAX_BYTES, SIGNATURE_BYTES, PUBLIC_KEY_BYTES = 1 << 22, 64, 32


class Measurements(Frozen):
    """The whole file, of version 1. `policy_sha384` is the policy that is part of the image, None
    if it is given at launch."""

    format: Literal["appliance/measurements/v1"]
    build: Build
    image: dict[Word, Hex32] = Field(max_length=64)
    policy_sha384: Hex48 | None
    sev_snp: tuple[SnpPrediction, ...] = Field(max_length=256)
    tdx: tuple[TdxPrediction, ...] = Field(max_length=64)
    tpm: TpmPrediction | None

    @property
    def form(self) -> str:
        """The format of the file, which is also the domain of its signature."""
        return self.format

    def launched(self, _digest: bytes) -> Measurements:
        """The measurements with the rows that matter for a launch digest (48 bytes): all there are.
        """
        return self

    def launches(self) -> str:
        """The shapes of SEV-SNP guests that have a launch digest, in words."""
        shapes = sorted({each.vcpus for each in self.snp_rows()})
        return f"predicted for {', '.join(map(str, shapes))} vCPUs" if shapes else "none is predicted"

    def snp_rows(self) -> tuple[SnpRow, ...]:
        """The launch digests, as rows of version 2."""
        return tuple(map(second.snp_row, self.sev_snp))

    def tdx_rows(self) -> tuple[TdxRow, ...] | None:
        """The TDX rows, of which a TD must show one whole; None in version 1, whose values may
        stand together in any way."""
        return None

    def nitro_prediction(self) -> NitroPrediction | None:
        """The registers of a NitroTPM; None in version 1, which has no other bank than SHA-256."""
        return None

    def sev_snp_digests(self) -> frozenset[bytes]:
        """The launch digests that are accepted for the image, 48 bytes each; empty: no SEV-SNP
        launch of it is known."""
        return frozenset(bytes.fromhex(each.launch_digest) for each in self.snp_rows() if each.image)

    def allows(self, vcpus: int) -> bool:
        """Whether an SEV-SNP launch with so many virtual CPUs may be one of the image's."""
        return any(each.vcpus == vcpus for each in self.snp_rows() if each.image)

    def tdx_mrtds(self) -> frozenset[bytes]:
        """The MRTDs that are accepted, 48 bytes each. They say which firmware started; the RTMRs
        say what it booted."""
        return frozenset(bytes.fromhex(each.mrtd) for each in self.tdx)

    def tdx_rtmrs(self) -> Mapping[int, frozenset[bytes]]:
        """RTMR number to the values that are accepted; a register that some entry does not give is
        absent."""
        return _registers([each.rtmr for each in self.tdx])

    def tpm_pcrs(self) -> Mapping[int, frozenset[bytes]]:
        """PCR number to the predicted values that are accepted; empty without a TPM prediction."""
        return {} if self.tpm is None else self.tpm.accepted()

    def to_json(self) -> bytes:
        """The canonical form (RFC 8785), which is what is written and signed."""
        return canonical(self.model_dump(mode="json"))


class SourcedMeasurements(Measurements):
    """The whole file, of version 2: its rows say where a value comes from and what it covers."""

    format: Literal["appliance/measurements/v2"]  # type: ignore[assignment]
    sev_snp: tuple[SnpRow, ...] = Field(max_length=256)  # type: ignore[assignment]
    tdx: tuple[TdxRow, ...] = Field(max_length=256)  # type: ignore[assignment]
    nitro: NitroPrediction | None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        second.one_coverage(self.sev_snp)
        return self

    def snp_rows(self) -> tuple[SnpRow, ...]:
        """The rows."""
        return self.sev_snp

    def nitro_prediction(self) -> NitroPrediction | None:
        """The registers of a NitroTPM, if they were predicted."""
        return self.nitro

    def tdx_rows(self) -> tuple[TdxRow, ...]:
        """The rows."""
        return self.tdx

    def tdx_rtmrs(self) -> Mapping[int, frozenset[bytes]]:
        """RTMR number to the values of the rows that cover the image."""
        return _registers([each.rtmr for each in self.tdx if each.image])


class DerivedMeasurements(SourcedMeasurements):
    """Measurements that a portable reference gives. The builder signed `written`, and `reference`
    may have more firmware. `launched` derives the SEV-SNP row of the launch digest at hand; before
    that, only rows of a cloud's firmware are there."""

    reference: PortableReference
    written: PortableReference
    told: str | None = None

    @classmethod
    def of(cls, reference: PortableReference, written: PortableReference | None = None) -> DerivedMeasurements:
        """The measurements of a reference."""
        return cls(format=SECOND, build=reference.build, image=reference.image, policy_sha384=reference.policy_sha384,
                   sev_snp=reference.firmware_rows, tdx=portable.tdx_rows(reference), tpm=portable.tpm(reference),
                   nitro=portable.nitro(reference), reference=reference, written=written or reference)

    def endorsed(self, tds: tuple[TdxRow, ...], launches: tuple[SnpRow, ...]) -> DerivedMeasurements:
        """The measurements with rows of further firmware. Raises MalformedEvidenceError for more
        rows than there may be."""
        try:
            return self.of(portable.endorsed(self.reference, tds, launches), self.written)
        except ValidationError as error:
            raise _malformed(describe(error)) from None

    @property
    def form(self) -> str:
        """The format of the reference."""
        return self.reference.format

    def launched(self, digest: bytes) -> DerivedMeasurements:
        """The measurements with the row of a launch digest, if the reference has such a launch."""
        rows, told = portable.launched(self.reference, digest)
        return self.model_copy(update={"sev_snp": rows, "told": told})

    def allows(self, vcpus: int) -> bool:
        """Whether the builder allows so many virtual CPUs."""
        shapes = self.reference.sev_snp
        return shapes is not None and vcpus <= shapes.max_vcpus

    def launches(self) -> str:
        """The shape of the launch, or why none has its digest."""
        return self.told or portable.allowed(self.reference)

    def sev_snp_digests(self) -> frozenset[bytes]:
        """The launch digests of the image: that of the launch at hand, or those of all shapes."""
        if self.told is not None:
            return super().sev_snp_digests()
        return portable.digests(self.reference)

    def to_json(self) -> bytes:
        """The canonical form of the reference that was signed."""
        return self.written.to_json()


def _registers(rows: list[tuple[str | None, str | None, str | None, str | None]]) -> Mapping[int, frozenset[bytes]]:
    return {number: frozenset(bytes.fromhex(each[number] or "") for each in rows)
            for number in range(4) if rows and all(each[number] is not None for each in rows)}


_VERSIONS: Mapping[str, type[Measurements]] = {FORMAT: Measurements, SECOND: SourcedMeasurements}
_FORMATS = (*_VERSIONS, portable.FORMAT)


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
    if not isinstance(value, dict) or value.get("format") not in _FORMATS:
        raise _malformed(f"format is missing or unknown{filekind.instead(data)}", f"known: {', '.join(_FORMATS)}")
    if not one_form:
        raise _malformed("not in canonical form (RFC 8785), or a key stands twice", "take the file as it was written")
    try:
        found = _checked(value)
    except ValidationError as error:
        raise _malformed(describe(error)) from None
    if found.to_json() != data:
        raise _malformed("a nested field is absent", "what does not apply is null")
    return found


def _checked(value: dict[str, Any]) -> Measurements:
    if value["format"] == portable.FORMAT:
        return DerivedMeasurements.of(PortableReference.model_validate(value))
    return _VERSIONS[value["format"]].model_validate(value)


def _malformed(what: str, hint: str | None = None) -> MalformedEvidenceError:
    return MalformedEvidenceError(f"measurements: {what}", code="measurements-malformed", hint=hint)


def message(data: bytes, version: str = FORMAT) -> bytes:
    """The bytes that the builder signs: the version as a domain, then the file's bytes."""
    return version.encode("ascii") + b"\n" + data


def sign(data: bytes, private_key: Ed25519PrivateKey) -> bytes:
    """The builder's signature, 64 bytes, over a measurements file. Raises MalformedEvidenceError if
    it is none."""
    return private_key.sign(message(data, parse(data).form))


def verify_signature(data: bytes, signature: bytes, public_key: bytes) -> str:
    """Return the version that `public_key` (32 bytes) signed the file's bytes as. Raises
    ForgedEvidenceError if it signed none."""
    for version in _FORMATS:
        try:
            ed25519.verify(public_key, signature, message(data, version))
        except InvalidSignature:
            continue
        return version
    raise ForgedEvidenceError(
        f"measurements: the signature does not verify under ed25519:{public_key.hex()}",
        code="measurements-signature", hint="file or signature were changed, or another builder signed them")


def signed(data: bytes, signature: bytes, public_key: bytes) -> Measurements:
    """The measurements that the builder signed: the signature is verified before anything is
    parsed."""
    version, found = verify_signature(data, signature, public_key), parse(data)
    if found.form != version:
        raise _malformed(f"a file of {found.form}, signed as {version}", "sign it again: appliance image predict")
    return found
