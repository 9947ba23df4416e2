"""The values that hardware is expected to measure: `measurements.json`, as the builder of an image
predicted and signed it.

The specification is docs/formats/measurements.md. `parse` takes exactly the canonical form of
version 1 or 2 and gives immutable objects; `verify_signature` says whether the builder signed those
bytes. Parsing needs no signature and proves nothing: a caller that takes the file from a stranger
MUST verify it under a key that it knows, and `signed` does both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import Field, ValidationError, model_validator

from appliance.attestation.binding import Build, Frozen, Hex32, Hex48, describe
from appliance.attestation.measured import second
from appliance.attestation.measured.fields import Word
from appliance.attestation.measured.first import SnpPrediction, TdxPrediction, TpmPrediction
from appliance.attestation.measured.nitro import NitroPrediction
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


def _registers(rows: list[tuple[str | None, str | None, str | None, str | None]]) -> Mapping[int, frozenset[bytes]]:
    return {number: frozenset(bytes.fromhex(each[number] or "") for each in rows)
            for number in range(4) if rows and all(each[number] is not None for each in rows)}


_VERSIONS: Mapping[str, type[Measurements]] = {FORMAT: Measurements, SECOND: SourcedMeasurements}


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
    if not isinstance(value, dict) or value.get("format") not in _VERSIONS:
        raise _malformed(f"format is missing or unknown{filekind.instead(data)}", f"known: {', '.join(_VERSIONS)}")
    if not one_form:
        raise _malformed("not in canonical form (RFC 8785), or a key stands twice", "take the file as it was written")
    try:
        found = _VERSIONS[value["format"]].model_validate(value)
    except ValidationError as error:
        raise _malformed(describe(error)) from None
    if found.to_json() != data:
        raise _malformed("a nested field is absent", "what does not apply is null")
    return found


def _malformed(what: str, hint: str | None = None) -> MalformedEvidenceError:
    return MalformedEvidenceError(f"measurements: {what}", code="measurements-malformed", hint=hint)


def message(data: bytes, version: str = FORMAT) -> bytes:
    """The bytes that the builder signs: the version as a domain, then the file's bytes."""
    return version.encode("ascii") + b"\n" + data


def sign(data: bytes, private_key: Ed25519PrivateKey) -> bytes:
    """The builder's signature, 64 bytes, over a measurements file. Raises MalformedEvidenceError if
    it is none."""
    return private_key.sign(message(data, parse(data).format))


def verify_signature(data: bytes, signature: bytes, public_key: bytes) -> str:
    """Return the version that `public_key` (32 bytes) signed the file's bytes as. Raises
    ForgedEvidenceError if it signed none."""
    for version in _VERSIONS:
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
    if found.format != version:
        raise _malformed(f"a file of {found.format}, signed as {version}", "sign it again: appliance image predict")
    return found
