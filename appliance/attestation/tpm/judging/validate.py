"""Policy on TPM claims. However many rules hold, a quote alone never says more than that the host
measured a boot."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from appliance.attestation.case import event_log
from appliance.attestation.case.terms import ChallengeOutcome, EkRoots
from appliance.attestation.findings import Finding, judged, one_of, same
from appliance.attestation.tpm.judging import ek
from appliance.attestation.tpm.judging.verify import TpmClaims
from appliance.errors import UncheckedEvidenceError
from appliance.policy.schema.platform import TpmRegisters

BANKS = ("sha256", "sha384", "sha512")  # SHA-1 measures nothing any more


@dataclass(frozen=True)
class TpmExpectations:
    """The expectations of a quote beyond the policy's `evidence.tpm` block. None is not checked.

    `nonce`: the quote's extraData. `pcrs`: PCR number to the values that are accepted, in `bank`.
    `bound_key`: DER SubjectPublicKeyInfo of an AK that an SEV-SNP or TDX report binds; only with it
    is the host not trusted.
    """

    nonce: bytes | None = None
    pcrs: Mapping[int, Collection[bytes]] = field(default_factory=dict)
    bank: str = "sha256"
    bound_key: bytes | None = None


def validate(claims: TpmClaims, expected: TpmExpectations, policy: TpmRegisters) -> tuple[Finding, ...]:
    """Judge every rule of `policy` and every expectation on authentic claims."""
    values = claims.pcrs.get(expected.bank, {}) if expected.bank in BANKS else {}
    absent = sorted(set(policy.pcrs) - set(values))
    findings = [
        same("nonce", claims.quote.extra_data, expected.nonce),
        judged("pcrs-covered", not absent, f"PCR {', '.join(map(str, absent))} of {expected.bank} not quoted"
               if absent else ""),
        *(one_of(f"pcr{number}", values.get(number, b""), wanted) for number, wanted in sorted(expected.pcrs.items())),
        _event_log(claims),
    ]
    if claims.key.area is None:
        findings.append(Finding("ak-attributes", "not checked", "the AK's public area is not at hand"))
    else:
        findings.append(judged("ak-attributes", claims.key.area.attests))
    return (*findings, same("ak-bound-in-hardware", claims.key.spki(), expected.bound_key))


def _event_log(claims: TpmClaims) -> Finding:
    """Whether the log explains every quoted register. It never fails: registers are judged by
    measurements."""
    if claims.log is None:
        return Finding("event-log", "not checked", "no event log, or no quoted values to compare it with")
    if claims.log.whole:
        return Finding("event-log", "holds")
    return Finding("event-log", "not checked", "; ".join(event_log.told(claims.log)))


def endorsed(claims: TpmClaims) -> tuple[bytes, bytes]:
    """The certificate of the endorsement key (DER) and the attestation key's name: what a challenge
    is made for.

    Raises UncheckedEvidenceError `tpm-ek-absent`.
    """
    if claims.ek_certificate is None or claims.key.area is None:
        raise UncheckedEvidenceError("TPM evidence: it has no certificate of an endorsement key", code="tpm-ek-absent",
                                     hint="without --ek-roots the attestation key can be enrolled: --ak")
    return claims.ek_certificate, claims.key.area.name


def activation(claims: TpmClaims, roots: EkRoots | None, activated: ChallengeOutcome | None, *,
               at: datetime) -> Finding:
    """Whether the attestation key is in the same TPM as an endorsement key that one of `roots`
    certified: shown only by a challenge just now (`activated`). Raises as `endorsed` and
    `ek.check` do."""
    if roots is None:
        return Finding("ek-activation", "not checked", "the TPM was not challenged")
    certificate, name = endorsed(claims)
    endorsement = ek.check(certificate, roots, claims.others, at=at)
    told = f"endorsement key sha256:{endorsement.fingerprint}, certified by {endorsement.root}"
    if activated is None:
        return Finding("ek-activation", "not checked",
                       f"{told}; that the attestation key is in that TPM takes a challenge to the running machine")
    return judged("ek-activation", activated == ChallengeOutcome(name, certificate), told)


def endorsement(claims: TpmClaims, activated: ChallengeOutcome | None) -> bytes | None:
    """Return the name of the endorsement key that a challenge has shown to be in one TPM with the
    key that quoted: SHA-256 of its SubjectPublicKeyInfo. None without a challenge, or of another
    key."""
    if activated is None or claims.ek_certificate is None or claims.key.area is None:
        return None
    if activated != ChallengeOutcome(claims.key.area.name, claims.ek_certificate):
        return None
    return ek.name_of(activated.certificate)


def origin(claims: TpmClaims, enrolled: Collection[bytes], *, bound: bool, activated: bool = False) -> Finding:
    """Judge the word that a TPM holds the key. It is a pinned root's, or that of a hardware report
    of a known guest (`bound`). It may be the verifier's own, which has `enrolled` the key by
    SHA-256 of its SubjectPublicKeyInfo. Or it is that of a TPM of a maker that the verifier named
    (`activated`). Without any of them it is anybody's; where keys were enrolled, activation makes
    no other key one."""
    digest = hashlib.sha256(claims.key.spki()).digest()
    if claims.root is not None or bound:
        return Finding("ak-origin", "holds", f"certificate by {claims.root}" if claims.root
                       else "named by the hardware report")
    if enrolled:
        return judged("ak-origin", digest in enrolled, f"key sha256:{digest.hex()}, "
                      f"{'enrolled by the verifier' if digest in enrolled else 'not among those enrolled'}")
    if activated:
        return Finding("ak-origin", "holds", f"activation: key sha256:{digest.hex()} is in a TPM whose maker the "
                       "verifier named")
    return Finding("ak-origin", "not checked", f"no certificate says that a TPM holds key sha256:{digest.hex()}")
