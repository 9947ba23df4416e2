"""The broker's configuration and its decisions. Nothing is released that no rule names; a rule
leaves nothing open.

A configuration is a TOML file; README.md has one. Paths in it are relative to the file.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from appliance.attestation import evidence
from appliance.attestation.case import measurements
from appliance.attestation.case.expected import Expectations
from appliance.attestation.case.machine import MachineList
from appliance.attestation.case.measurements import Measurements
from appliance.attestation.case.rule import waived
from appliance.attestation.case.terms import ChallengeOutcome, EkRoots
from appliance.attestation.collect.release import BrokerSession
from appliance.attestation.findings import Finding, judged
from appliance.attestation.judge import collateral_folder, halves, validate, verify
from appliance.attestation.judge.verify import Claims
from appliance.attestation.tpm.judging import ek as tpm_ek
from appliance.attestation.tpm.judging import protection, registers
from appliance.attestation.tpm.judging import validate as tpm_validate
from appliance.attestation.tpm.judging import verify as tpm_verify
from appliance.attestation.tpm.judging.protection import Challenge
from appliance.attestation.tpm.judging.verify import TpmClaims
from appliance.attestation.trust.roots import VENDORS, Roots
from appliance.attestation.x509 import walks
from appliance.errors import ApplianceError, AttestationError, ForgedEvidenceError
from appliance.keys import document as keydocument
from appliance.keys import policy_keys
from appliance.keys.providers import FileKey
from appliance.policy import Loaded, load
from appliance.policy.bulletins import lines
from appliance.secure.wipe import wipe
from appliance.signed import machines

WEAK = {"simulated": "proves_nothing", "tpm": "host_trusted"}  # platform -> what a rule must say to take it
# The findings that every rule needs: each must hold, and "not checked" is a refusal.
DECISIVE = {"sev-snp": ("launch-policy", "measurement", "revocation"),
            "tdx": ("launch-policy", "mrtd", "rtmr1", "rtmr2"),
            "tpm": ("pcr15", "golden-pcrs", "ak-origin"), "simulated": ("launch-policy",)}
ALWAYS = ("platform", "nonce", "policy", "release-key")
Authentic = Mapping[Path | None, Claims]  # by folder of collateral


class ConfigError(ApplianceError):
    """A configuration that this broker does not start with."""

    code = "broker-config"


class DeniedError(ApplianceError):
    """No key: the summary names each rule that failed, and goes into the broker's log, not to the
    asker."""

    code = "broker-denied"


@dataclass(frozen=True)
class Rule:
    """The rule for one key: who may have it."""

    resource: str
    key_file: Path
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
    until: datetime | None = None  # the end of an overlap: from then on the rule releases nothing

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
        if self.until is not None and at >= self.until:
            raise DeniedError(f"{self.resource}: its rule ended at {self.until:%Y-%m-%dT%H:%M:%SZ}")
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
        failed = [f"{each.rule}: {each.detail}" for each in findings if each.outcome == "fails"]
        judged_rules = {each.rule for each in findings if each.outcome != "not checked"} | set(self.waived)
        decisive = (*ALWAYS, *DECISIVE[claims.platform], *self._asked(claims))
        failed += [f"{rule}: not checked" for rule in decisive if rule not in judged_rules]
        if failed:
            raise DeniedError(f"{self.resource}: {'; '.join(failed)}")

    def _asked(self, claims: Claims) -> tuple[str, ...]:
        challenged = self.ek_roots is not None and isinstance(claims.hardware, TpmClaims)
        return (*(["ek-activation"] if challenged else ()),
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
        return (activation, tpm_validate.origin(claims.hardware, self.attestation_keys, bound=False,
                                                 activated=activation.outcome == "holds"),
                *registers.judge(claims.hardware.pcrs.get("sha256", {}), self.measured, self.policy.digest,
                                    claims.hardware.events))

    def document(self) -> bytearray:
        """Read the key and its version, to be encrypted at once and wiped. Raises ModelKeyError if
        the file is not a key, or a key of another version."""
        with FileKey(self.key_file, self.version, bare=True).key() as key:
            return keydocument.make(key.data, self.version)


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
    roots: Roots = VENDORS
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

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
        for roots in (rule.ek_roots for rule in self.rules if rule.ek_roots is not None):
            try:
                others = [each for data in chain for each in walks.load(data, "EK chain")]
                endorsement = tpm_ek.check(certificate, roots, others, at=self.now())
            except AttestationError as error:
                found = error
                continue
            return protection.new(endorsement.key, area.name), ChallengeOutcome(area.name, certificate)
        if found is not None:
            raise found
        return None

    def release(self, resource: str, claims: Authentic, nonce: bytes, release_spki_sha256: bytes,
                activated: ChallengeOutcome | None = None, session: BrokerSession | None = None) -> bytearray:
        """The key document of the first rule for `resource` that holds. Raises DeniedError if none
        does.
        """
        reasons = []
        for rule in self.rules:
            if rule.resource != resource:
                continue
            if rule.collateral not in claims:
                reasons.append(f"{resource}: the evidence is not authentic by the rule's collateral")
                continue
            try:
                rule.decide(claims[rule.collateral], nonce, release_spki_sha256, self.now(), activated, session)
            except DeniedError as error:
                reasons.append(error.summary)
                continue
            return rule.document()
        raise DeniedError(" | ".join(reasons) or f"no rule releases {resource[:128]!r}")


def read(path: Path, roots: Roots = VENDORS) -> Rules:
    """The configuration in a file. Raises ConfigError, which names what is wrong in it."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    folder = path.parent
    top = _Table(table, str(path), folder)
    rules = tuple(_checked_rule(_Table(entry, f"{path}: release {number}", folder))
                  for number, entry in enumerate(top.take("release", list, []), 1))
    found = Rules(
        host=top.take("host", str, "127.0.0.1"), port=top.take("port", int, 8443), certificate=top.path("certificate"),
        private_key=top.path("private_key"), log=top.path("log", optional=True), rules=rules, roots=roots)
    top.done()
    return found


def _checked_rule(table: _Table) -> Rule:
    try:
        return _rule(table)
    except (OSError, ValueError, ApplianceError) as error:
        raise ConfigError(str(error) if table.where in str(error) else f"{table.where}: {error}") from None


def _rule(table: _Table) -> Rule:
    policy = load(table.path("policy"))
    platforms = frozenset(table.take("platforms", list))
    for name in sorted(platforms):
        if name not in policy.policy.tee.platforms:
            raise ConfigError(f"{table.where}: platform {name!r} is none of the policy's")
        if name in WEAK and not table.take(WEAK[name], bool, False):
            raise ConfigError(f"{table.where}: platform {name} needs {WEAK[name]} = true",
                              hint="simulated evidence proves nothing; of TPM evidence the host is trusted")
    measured = table.path("measurements", optional=True)
    if platforms - {"simulated"} and measured is None:
        raise ConfigError(f"{table.where}: measurements is absent: which image may have the key?")
    self_test, makers = table.take("self_test_sha384", str, None), table.path("ek_roots", optional=True)
    rule = Rule(
        resource=table.take("resource", str), key_file=table.path("key_file"), version=table.take("version", int),
        platforms=platforms, policy=policy,
        measured=None if measured is None else measurements.parse(measured.read_bytes()),
        collateral=table.path("collateral", optional=True),
        self_test_sha384=None if self_test is None else bytes.fromhex(self_test),
        attestation_keys=frozenset(map(_fingerprint, table.take("attestation_keys", list, []))),
        ek_roots=None if makers is None else collateral_folder.ek_roots(makers),
        waived=("revocation",) if table.take("without_revocation", bool, False) else (),
        machines=_machines(table, policy), until=_until(table))
    table.done()
    for product in lines.accepted_without_root(rule.policy.policy):
        print(f"warning: {rule.resource}: the policy accepts {product}, and {lines.ROOT_SEED_OUT[product]}",
              file=sys.stderr, flush=True)
    if not platforms or not 1 <= rule.version <= keydocument.LAST_VERSION:
        raise ConfigError(f"{table.where}: at least one platform, and a version from 1")
    wipe(rule.document())  # a key that cannot be read is found now, not when it is asked for
    return rule


def _until(table: _Table) -> datetime | None:
    """The time at which a rule ends, in UTC; None without one."""
    found: datetime | None = table.take("until", datetime, None)
    if found is not None and found.tzinfo is None:
        raise ConfigError(f"{table.where}: until has no zone", hint="write it in UTC: until = 2026-12-01T12:00:00Z")
    return None if found is None else found.astimezone(UTC)


def _machines(table: _Table, policy: Loaded) -> MachineList | None:
    """The list of machines, as a verifier finds it."""
    found = machines.machines_of(policy.policy, policy.path.parent, table.path("machines", optional=True))
    if found is None and policy.policy.tee.evidence.machines is not None:
        raise ConfigError(f"{table.where}: machines is absent: the policy demands listed ones",
                          hint="name the signed list, or put it beside the policy")
    return found


def _fingerprint(text: object) -> bytes:
    if not isinstance(text, str) or not text.startswith("sha256:") or len(digest := bytes.fromhex(text[7:])) != 32:
        raise ValueError("attestation_keys: each is sha256: and 64 hex digits")
    return digest


class _Table:
    """A TOML table from which each key is taken once; a key that is left over is an error."""

    def __init__(self, table: Mapping[str, Any], where: str, folder: Path) -> None:
        self._left, self.where, self._folder = dict(table), where, folder

    def take(self, key: str, kind: type, *default: Any) -> Any:
        if key not in self._left and default:
            return default[0]
        value = self._left.pop(key, None)
        if not isinstance(value, kind):
            raise ConfigError(f"{self.where}: {key} is absent or no {kind.__name__}")
        return value

    def path(self, key: str, *, optional: bool = False) -> Any:
        value = self.take(key, str, *([None] if optional else []))
        return None if value is None else self._folder / value

    def done(self) -> None:
        if self._left:
            raise ConfigError(f"{self.where}: {', '.join(sorted(self._left))}: not known here")
