"""Evidence: a report, the statement it binds, and one client's proof that its nonce is in it.

A `Provider` turns 64 bytes of report data into a signed report (`collect.provider` finds the one of
this machine). The simulated one is all there is on a machine without a TEE; its evidence says so in
every place where it can be seen.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol

from pydantic import Field, StringConstraints, model_validator

from appliance import platforms
from appliance.attestation import merkle
from appliance.attestation.binding import Frozen, Hex32, Statement
from appliance.codec import strict
from appliance.codec.canonical import canonical
from appliance.errors import AttestationError, MalformedEvidenceError
from appliance.platforms import NAMES, PLATFORMS

FORMAT = "appliance/evidence/v1"
SESSION_FORMAT = "appliance/evidence/v2"  # of one TLS session: with its exporter
SIMULATED = platforms.SIMULATED.name
NOTICES = {each.name: each.notice for each in PLATFORMS if each.notice}
EVIDENCE_OID = "2.23.133.5.4.9"  # TCG: the extension that carries evidence in a certificate
MAX_REPORT_BYTES = 3 << 17  # a TPM's evidence with its event log; the others are far smaller
MAX_COLLATERAL = 16
if TYPE_CHECKING:
    PlatformName = str
else:
    PlatformName = Literal[(SIMULATED, *(each for each in NAMES if each != SIMULATED))]  # as its message lists them


class ReportWithCollateral(NamedTuple):
    """A report, and what came with it to verify it by: certificates and lists, each DER, PEM or a
    JSON document."""

    report: bytes
    collateral: tuple[bytes, ...] = ()


class TpmEndorsement(NamedTuple):
    """The material of a challenge to a TPM: TPM2B_PUBLIC of its attestation key, the certificate of
    its endorsement key and those of the authorities above it, in DER."""

    key: bytes
    certificate: bytes
    chain: tuple[bytes, ...] = ()


class Provider(Protocol):
    """A source of signed reports: one per platform."""

    @property
    def platform(self) -> str:
        """The platform's name as policies spell it."""
        ...

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """A report over 64 bytes with its collateral. Raises AttestationError when the platform
        gives none."""
        ...

    def report(self, report_data: bytes) -> bytes:
        """The report alone."""
        return self.collect(report_data).report

    def endorsement(self) -> TpmEndorsement | None:
        """Of a TPM with a certificate: what a verifier needs to challenge it."""
        return None

    def activate(self, challenge: bytes) -> bytes:
        """A TPM's answer to a challenge. Raises AttestationError, `activation-platform` on every
        other platform."""
        raise AttestationError(f"{self.platform}: only a TPM is asked for credential activation",
                               code="activation-platform")

    def close(self) -> None:
        """Let go of the platform's interfaces, if it holds any."""
        return


class NonceProof(Frozen):
    """One client's nonce (hex) and its path to the statement's `nonces.root`, lowest sibling first.
    """

    nonce: Annotated[str, StringConstraints(strict=True, pattern=r"^([0-9a-f]{2}){16,64}$")]
    index: Annotated[int, Field(strict=True, ge=0, lt=merkle.MAX_LEAVES)]
    path: tuple[Hex32, ...] = Field(max_length=16)


Base64 = StringConstraints(strict=True, pattern=r"^[A-Za-z0-9+/]*={0,2}$", max_length=MAX_REPORT_BYTES // 3 * 4)


class Evidence(Frozen):
    """The evidence that a client gets: everything that it needs to verify, and nothing it has to
    fetch."""

    format: Literal["appliance/evidence/v1", "appliance/evidence/v2"] = "appliance/evidence/v1"
    platform: PlatformName
    notice: str | None = Field(max_length=256)  # a warning for people; not trusted, not bound
    report: Annotated[str, Base64]
    statement: dict[str, Any]  # as JSON; `case/reading` has the checked form
    proof: NonceProof
    session: Hex32 | None = None  # the exporter of the TLS session that the evidence is of; in version 2 alone
    collateral: tuple[Annotated[str, Base64], ...] = Field(default=(), max_length=MAX_COLLATERAL)  # not trusted

    @model_validator(mode="after")
    def _version(self) -> Evidence:
        if (self.format == SESSION_FORMAT) != (self.session is not None):
            raise ValueError("session: version 2 has it, version 1 does not")
        return self

    def report_bytes(self) -> bytes:
        """The decoded report. Raises MalformedEvidenceError unless it is strict base64 (RFC 4648
        section 4)."""
        return decoded(self.report, "report")

    def to_json(self) -> bytes:
        """Canonical JSON of the whole."""
        return "".join(self.texts()).encode()

    def texts(self) -> list[str]:
        """`to_json` in parts, of which report and collateral, which may be long, are no copies."""
        apart = {"collateral", "report"} | ({"session"} if self.session is None else set())
        rest = canonical(self.model_dump(mode="json", exclude=apart)).decode()
        split = '"statement":' if self.session is None else '"session":'  # the key after "report"
        before, after = rest[1:].split(split, 1)  # keys are sorted, and quotes in a text before it escaped
        texts = ['{"collateral":[']
        for each in self.collateral:
            texts += ['"' if len(texts) == 1 else ',"', each, '"']
        return [*texts, f'],{before}"report":"', self.report, f'",{split}{after}']


def decoded(text: str, what: str) -> bytes:
    """Return what a text of strict base64 encodes. Raises MalformedEvidenceError, naming `what`."""
    try:
        decoded = strict.base64(text)
    except ValueError:
        decoded = b""
    if not decoded:
        raise MalformedEvidenceError(f"evidence: {what} is not base64")
    return decoded


def make(provider: Provider, report: bytes, statement: Statement, proof: NonceProof,
         collateral: Sequence[bytes] = (), session: bytes | None = None) -> Evidence:
    """Evidence for one client out of a report, the statement that it signs, the client's proof,
    collateral, and the exporter of its TLS session where it is bound to that."""
    return Evidence(
        format="appliance/evidence/v1" if session is None else "appliance/evidence/v2",
        session=None if session is None else session.hex(),
        platform=provider.platform,  # pydantic refuses a platform without a name here
        notice=NOTICES.get(provider.platform),
        report=base64.b64encode(report).decode("ascii"),
        statement=statement.model_dump(mode="json"), proof=proof,
        collateral=tuple(base64.b64encode(each).decode("ascii") for each in collateral))
