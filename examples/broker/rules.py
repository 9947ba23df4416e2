"""The broker's decisions. Nothing is released that no rule names; a rule leaves nothing open.
`config` reads the rules from a file."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.attestation import evidence
from appliance.attestation.case.expected import Expectations
from appliance.attestation.case.machine import MachineList
from appliance.attestation.case.measurements import Measurements
from appliance.attestation.case.rule import waived
from appliance.attestation.case.terms import ChallengeOutcome, ClientTerms, EkRoots
from appliance.attestation.collect.release import BrokerSession
from appliance.attestation.findings import Finding, judged
from appliance.attestation.judge import collateral_folder, halves, validate, verify
from appliance.attestation.judge.verify import Claims
from appliance.attestation.paravisor import judge as paravisor
from appliance.attestation.tpm.judging import ek as tpm_ek
from appliance.attestation.tpm.judging import protection, registers
from appliance.attestation.tpm.judging import validate as tpm_validate
from appliance.attestation.tpm.judging import verify as tpm_verify
from appliance.attestation.tpm.judging.protection import Challenge
from appliance.attestation.tpm.judging.verify import TpmClaims
from appliance.attestation.trust.roots import VENDORS, Roots
from appliance.attestation.x509 import walks
from appliance.codec.canonical import canonical
from appliance.errors import ApplianceError, AttestationError, ForgedEvidenceError
from appliance.keys import document as keydocument
from appliance.keys import policy_keys
from appliance.keys.providers import KeyProvider
from appliance.policy import Loaded

# Platform -> what a rule must say to take it.
WEAK = {"simulated": "proves_nothing", "tpm": "host_trusted", "aws-nitrotpm": "aws_trusted"}
# The findings that every rule needs: each must hold, and "not checked" is a refusal.
DECISIVE = {"sev-snp": ("launch-policy", "measurement", "revocation"),
            "tdx": ("launch-policy", "mrtd", "rtmr1", "rtmr2"),
            "tpm": ("pcr15", "golden-pcrs", "ak-origin"), "aws-nitrotpm": ("pcr15", "measurement"),
            "simulated": ("launch-policy",)}
ALWAYS = ("platform", "nonce", "policy", "release-key")
Authentic = Mapping[Path | None, Claims]  # by folder of collateral


class ConfigError(ApplianceError):
    """A configuration that this broker does not start with, or does not take while it runs."""

    code = "broker-config"


class DeniedError(ApplianceError):
    """No key: the summary names each rule that failed, and goes into the broker's log, not to the
    asker."""

    code = "broker-denied"

    def __init__(self, summary: str, failed: Mapping[str, int] | None = None) -> None:
        """`failed`: names of what failed, and in how many rules."""
        super().__init__(summary)
        self.failed = dict(failed or {})


@dataclass(frozen=True)
class Rule:
    """The rule for one key: who may have it."""

    resource: str
    source: KeyProvider
    version: int
    platforms: frozenset[str]
    policy: Loaded
    measured: Measurements | None
    collateral: Path | None
    self_test_sha384: bytes | None
    attestation_keys: frozenset[bytes] = frozenset()  # of TPMs that were enrolled, by SHA-256
    waived: tuple[str, ...] = ()  # rules that may go unchecked, because the broker's rule says so
    ek_roots: EkRoots | None = None  # makers of TPMs; a TPM must then have taken a challenge
    machines: MachineList | None = None  # the list that the policy demands; None: it demands none
    until: datetime | None = None  # the rule ends then; None: when it is taken out

    def facts(self) -> dict[str, object]:
        """The facts that decide, without paths: brokers with the same facts decide alike."""
        measured = None if self.measured is None else hashlib.sha256(self.measured.to_json()).hexdigest()
        return {
            "resource": self.resource, "version": self.version, "platforms": sorted(self.platforms),
            "policy_sha384": self.policy.digest.hex(),
            "measurements_sha256": measured,
            "self_test_sha384": None if self.self_test_sha384 is None else self.self_test_sha384.hex(),
            "attestation_keys": sorted(each.hex() for each in self.attestation_keys), "waived": list(self.waived),
            "ek_roots": None if self.ek_roots is None else sorted(self.ek_roots.pins),
            "machines": None if self.machines is None else _machines(self.machines),
            "until": None if self.until is None else self.until.isoformat()}

    def ended(self, at: datetime) -> bool:
        """Whether its time is over."""
        return self.until is not None and at >= self.until

    @property
    def of_session(self) -> bool:
        """Whether evidence must be of the connection that it came on. It need not where the policy
        says so, for each key of this name. The policy alone decides, and evidence has its digest,
        so nobody in between can choose the lesser."""
        brokers = (key.broker for key in policy_keys.keys_of(self.policy.policy).values())
        found = {each.session_binding for each in brokers if each is not None and each.resource == self.resource}
        return found != {"key"}

    def decide(self, claims: Claims, nonce: bytes, release_spki_sha256: bytes, at: datetime,
               activated: ChallengeOutcome | None = None, session: BrokerSession | None = None) -> None:
        """Check authentic claims against the rule. Raises DeniedError, which names the rules that
        failed. `activated`: what the TPM has shown in this session. `session`: the connection that
        the evidence came on."""
        if self.ended(at):
            raise DeniedError(f"{self.resource}: the rule ended at {self.until}", {"until": 1})
        measured = self.measured
        expected = Expectations(
            platforms=self.platforms, nonce=nonce, policy_sha384=self.policy.digest,
            self_test_sha384=self.self_test_sha384, release_spki_sha256=release_spki_sha256,
            session=None if session is None else session.exporter,
            broker_spki_sha256=None if session is None else session.spki_sha256,
            hardware=self.policy.policy.tee.evidence, at=at,
            baked=measured is not None and measured.policy_sha384 == self.policy.digest.hex(),
            own=halves.expectations(measured), machines=self.machines,
            endorsement=self._endorsement(claims, activated))
        findings = (*validate.validate(claims, expected).findings, *self._registers(claims, activated, at))
        if "revocation" in self.waived:
            findings = tuple(waived(each) for each in findings)
        failed = [(each.rule, each.detail) for each in findings if each.outcome == "fails"]
        judged_rules = {each.rule for each in findings if each.outcome != "not checked"} | set(self.waived)
        decisive = (*ALWAYS, *DECISIVE[claims.platform], *self._asked(claims))
        failed += [(rule, "not checked") for rule in decisive if rule not in judged_rules]
        if failed:
            raise DeniedError(f"{self.resource}: {'; '.join(map(': '.join, failed))}", {name: 1 for name, _ in failed})

    def _asked(self, claims: Claims) -> tuple[str, ...]:
        challenged = self.ek_roots is not None and isinstance(claims.hardware, TpmClaims)
        return (*(["ek-activation"] if challenged else ()),
                *([paravisor.RULE] if self.policy.policy.tee.evidence.azure is not None else ()),
                *(["machine"] if self.policy.policy.tee.evidence.machines is not None else ()),
                *(["session", "broker-key"] if self.of_session else ()))

    @staticmethod
    def _endorsement(claims: Claims, activated: ChallengeOutcome | None) -> bytes | None:
        return tpm_validate.endorsement(claims.hardware, activated) if isinstance(claims.hardware, TpmClaims) else None

    def _registers(self, claims: Claims, activated: ChallengeOutcome | None, at: datetime) -> tuple[Finding, ...]:
        """A TPM has no launch field: the image that its registers tell measures its policy into PCR
        15."""
        if not isinstance(claims.hardware, TpmClaims) or self.measured is None:
            return ()
        try:
            activation = tpm_validate.activation(claims.hardware, self.ek_roots, activated, at=at)
        except AttestationError as error:
            activation = judged("ek-activation", False, f"{error.summary} ({error.code})")
        below = ClientTerms(self.policy.policy, self.policy.digest, at, self.measured)
        return (activation, tpm_validate.origin(claims.hardware, self.attestation_keys, bound=False,
                                                 activated=activation.outcome == "holds"),
                *paravisor.judge(claims.hardware.bound_by, below),
                *registers.judge(claims.hardware.pcrs.get("sha256", {}), self.measured, self.policy.digest,
                                    claims.hardware.events))

    def document(self) -> bytearray:
        """Read the key and its version, to be encrypted at once and wiped. Raises ModelKeyError if
        the file is not a key, or a key of another version."""
        with self.source.key() as key:
            return keydocument.make(key.data, self.version)


def _machines(listed: MachineList) -> dict[str, object]:
    """The version of a list of machines, and SHA-256 of all that it says."""
    rows = sorted([str(name), each.note, each.not_after and each.not_after.isoformat()]
                  for name, each in listed.machines.items())
    return {"version": listed.version, "sha256": hashlib.sha256(canonical(rows)).hexdigest()}


@dataclass(frozen=True)
class Rules:
    """The whole configuration. `roots` other than the vendors', and another clock, are for tests.
    """

    host: str
    port: int
    certificate: Path
    private_key: Path
    log: Path | None
    rules: tuple[Rule, ...]
    shared_secret: bytes | None = None  # of brokers behind one address
    audit: Path | None = None
    audit_key: Ed25519PrivateKey | None = None
    roots: Roots = VENDORS
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @property
    def sha256(self) -> bytes:
        """The digest of what decides: brokers behind one address should have the same."""
        return hashlib.sha256(canonical([rule.facts() for rule in self.rules])).digest()

    def authentic(self, given: evidence.Evidence) -> Authentic:
        """The claims of evidence by each rule's own collateral: what one rule knows to be revoked,
        another may not. Raises AttestationError if it is genuine by none."""
        claims: dict[Path | None, Claims] = {}
        found: ApplianceError | None = None
        for folder in {rule.collateral for rule in self.rules} or {None}:
            try:
                heap = None if folder is None else collateral_folder.load(folder)
                claims[folder] = verify.verify(given, collateral=heap, at=self.now(), roots=self.roots)
            except ApplianceError as error:
                found = error
        if not claims:
            raise found or DeniedError("no rule")
        return claims

    def challenge(self, key: bytes, certificate: bytes,
                  chain: Iterable[bytes]) -> tuple[Challenge, ChallengeOutcome] | None:
        """A challenge to a TPM, by TPM2B_PUBLIC of its attestation key and its EK certificate
        (DER), and what the right answer shows; None if no rule asks for one. Raises
        AttestationError if no rule's roots lead to the certificate."""
        area = tpm_verify.load_key(key).area
        if area is None or not area.attests:
            raise ForgedEvidenceError("the attestation key may do more than attest", code="tpm-ak-attributes")
        found: AttestationError | None = None
        now = self.now()
        for roots in (rule.ek_roots for rule in self.rules if rule.ek_roots is not None and not rule.ended(now)):
            try:
                others = [each for data in chain for each in walks.load(data, "EK chain")]
                endorsement = tpm_ek.check(certificate, roots, others, at=now)
            except AttestationError as error:
                found = error
                continue
            return protection.new(endorsement.key, area.name), ChallengeOutcome(area.name, certificate)
        if found is not None:
            raise found
        return None

    def release(self, resource: str, claims: Authentic, nonce: bytes, release_spki_sha256: bytes,
                activated: ChallengeOutcome | None = None, session: BrokerSession | None = None) -> Rule:
        """The first rule for `resource` that holds. Raises DeniedError if none does."""
        reasons, failed = list[str](), Counter[str]()
        for rule in self.rules:
            if rule.resource != resource:
                continue
            if rule.collateral not in claims:
                reasons.append(f"{resource}: the evidence is not authentic by the rule's collateral")
                failed["collateral"] += 1
                continue
            try:
                rule.decide(claims[rule.collateral], nonce, release_spki_sha256, self.now(), activated, session)
            except DeniedError as error:
                reasons.append(error.summary)
                failed.update(error.failed)
                continue
            return rule
        raise DeniedError(" | ".join(reasons) or f"no rule releases {resource[:128]!r}", failed)
