"""From evidence and a reference to a verdict. Nothing is sent or received here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from appliance.attestation.case import reading
from appliance.attestation.case.certified import CertifiedEvidence
from appliance.attestation.case.expected import Expectations
from appliance.attestation.case.rule import waived
from appliance.attestation.case.terms import ChallengeOutcome, ClientTerms
from appliance.attestation.evidence import Evidence
from appliance.attestation.findings import Finding, judged, one_of
from appliance.attestation.judge import halves, validate, verify
from appliance.attestation.judge.verify import Claims
from appliance.attestation.trust.roots import VENDORS
from appliance.client import rules
from appliance.client.reference import Reference
from appliance.client.verdict import (
    EXIT_CODES,
    FIRMWARE_PROVED,
    KEY_BOUND,
    NOT_MET,
    UNCHECKED,
    VERIFIED,
    Status,
    Verdict,
    good,
    status_of,
)
from appliance.errors import AttestationError
from appliance.platforms import BY_NAME
from appliance.policy.schema import Policy

# A digest that is compared, of which a sentence shows the beginning. Names of machines stay whole.
_DIGITS = re.compile(r"(?:(?<=found )|(?<=expected )|(?<= or ))[0-9a-f]{32,}")
_MOST_DETAIL = 300  # characters of what differs in a verdict's sentence
_MOST_RULES = 6  # rules that it names beside the first
_TOLD = frozenset({"policy", "models", "self-test"})  # rules on what the statement says of its machine


@dataclass(frozen=True)
class Question:
    """The question about one piece of evidence.

    `nonce`, `spki_sha256` and `session` (the TLS session's exporter for the nonce) are those of the
    connection at hand; None is not checked. `online`:
    the evidence was asked for just now, so that both must hold. `seen` are findings on the
    connection itself, `activated` what a TPM that was challenged on it has shown.
    """

    target: str
    at: datetime
    nonce: bytes | None = None
    spki_sha256: bytes | None = None
    session: bytes | None = None
    online: bool = False
    seen: tuple[Finding, ...] = ()
    activated: ChallengeOutcome | None = None


@dataclass(frozen=True)
class Verification:
    """Evidence in JSON after its one verification: `outcome` has its claims, or the error that
    stopped it."""

    raw: bytes
    outcome: Claims | AttestationError

    def claims(self) -> Claims:
        """The claims of authentic evidence. Raises what stopped the verification."""
        if isinstance(self.outcome, AttestationError):
            raise self.outcome
        return self.outcome


def verified(data: bytes, reference: Reference, at: datetime) -> Verification:
    """Evidence in JSON, verified and not yet judged. Never raises on account of its bytes."""
    try:
        return Verification(data, authentic(reading.parse(data), reference, at))
    except AttestationError as error:
        return Verification(data, error)


def judge(data: bytes, reference: Reference, question: Question) -> Verdict:
    """The verdict on evidence in JSON. Never raises on account of its bytes."""
    return conclude(verified(data, reference, question.at), reference, question)


def conclude(found: Verification, reference: Reference, question: Question) -> Verdict:
    """The verdict on evidence that was verified with the same reference, at the same time."""
    try:
        claims = found.claims()
        # The certificate's own evidence last: what fails in both is no splice.
        findings = (*verify.shown(claims), *_findings(claims, reference, question), *question.seen,
                    *reference.findings(question.at))
    except AttestationError as error:
        return failed(error, reference, question, found.raw)
    status, code, reason, hint = _conclude(claims, findings, reference, question)
    return _verdict(reference, question, status=status, code=code, reason=reason, hint=hint, findings=findings,
                    platform=claims.platform, statement=claims.statement, nonce=claims.nonce, raw=found.raw)


def authentic(parsed: Evidence, reference: Reference, at: datetime) -> Claims:
    """The claims of evidence whose signature holds. Raises AttestationError."""
    collateral = reference.collateral.copy()  # remarks are left in it
    return verify.verify(parsed, collateral=collateral, at=at, roots=reference.roots)


def certificate_evidence(carried: CertifiedEvidence, reference: Reference, at: datetime) -> Finding:
    """The rule `certificate-evidence`: what the certificate carries is about its own key and meets
    the policy.

    That it is of this moment it cannot show; that is why a nonce is sent. Raises AttestationError.
    """
    claims = authentic(carried.evidence, reference, at)
    question = Question("certificate", at, carried.nonce, carried.spki_sha256)
    wrong = [each for each in _findings(claims, reference, question)
             if each.outcome == "fails" and not _awaits_challenge(each, claims)]
    return judged("certificate-evidence", not wrong, _summed(wrong) if wrong else "")


def _awaits_challenge(finding: Finding, claims: Claims) -> bool:
    """Whether a finding is on something that is shown later, by a challenge on the connection
    itself."""
    return finding.rule in halves.JUDGES[claims.platform].awaited


def failed(error: AttestationError, reference: Reference, question: Question, data: bytes | None = None) -> Verdict:
    """The verdict where something stopped the check."""
    findings = (*question.seen, *reference.findings(question.at))
    return _verdict(reference, question, status=status_of(error), code=error.code, reason=error.summary,
                    hint=error.hint, findings=findings, raw=data)


def _verdict(reference: Reference, question: Question, *, status: Status, **more: object) -> Verdict:
    return Verdict(status=status, target=question.target, at=question.at, policy_sha384=reference.policy.digest,
                   spki_sha256=question.spki_sha256, test_roots=reference.roots != VENDORS,
                   **more)  # type: ignore[arg-type]


def _findings(claims: Claims, reference: Reference, question: Question) -> list[Finding]:
    policy = reference.policy.policy
    known = None if reference.known is None else reference.known.measurements
    half = halves.JUDGES[claims.platform]
    expected = Expectations(
        platforms=frozenset(policy.tee.platforms), nonce=question.nonce, policy_sha384=reference.policy.digest,
        models={model.name: bytes.fromhex(model.sha256) for model in policy.models},
        may_lack=frozenset(model.name for model in policy.models if model.load != "always"),
        tls_spki_sha256=question.spki_sha256, session=question.session, hardware=policy.tee.evidence,
        own=halves.expectations(known), at=question.at, machines=reference.machines,
        endorsement=half.endorsement(claims.hardware, question.activated),
        baked=known is not None and known.policy_sha384 == reference.policy.digest.hex())
    judgement = validate.validate(claims, expected)
    common = tuple(_self_test(claims, reference) if each.rule == "self-test" else _with_publishers(each, policy)
                   for each in judgement.common)
    terms = ClientTerms(policy, reference.policy.digest, question.at, known, reference.attestation_keys,
                        reference.ek_roots, question.activated, any_ak=reference.any_ak)
    found = half.concluded(claims.hardware, common, judgement.hardware, terms)
    if _firmware_alone(claims.platform, {each.rule: each for each in found}):
        found = tuple(map(_by_hearsay, found))
    findings = [*found, *(remark for each in halves.JUDGES.values() for remark in each.remarks(policy)),
                *_access(policy)]
    return findings if reference.need_revocation else [waived(each) for each in findings]


def _by_hearsay(finding: Finding) -> Finding:
    """A statement about a machine whose software nothing shows."""
    told = finding.rule in _TOLD and finding.outcome == "holds"
    return Finding(finding.rule, "not checked", "by the word of software that nothing shows") if told else finding


def _access(policy: Policy) -> Iterator[Finding]:
    """Findings on the host's view: models of which the operator of the disk sees what a text is
    about, and memory."""
    leaking = [model.name for model in policy.models if model.access_pattern == "leaks"]
    if leaking:
        yield Finding("access-pattern", "not checked", f'the policy of {", ".join(leaking)} says "leaks": the operator '
                      "of the disk sees which embeddings and experts are read, which tells what a text is about")
    if policy.privacy.memory_access == "oblivious":
        yield Finding("memory-access", "holds", 'the policy says "oblivious": tokenizer, embeddings, samplers and '
                      "tokens' bytes touch the same pages for all texts of a class; JSON, templates and Python's own "
                      "objects still tell")


def _self_test(claims: Claims, reference: Reference) -> Finding:
    """The boot's self-test, if digests of it are known. Without them: no image that was measured
    serves after a failed one, so that `measurement` says as much, but not which kernels were
    tested."""
    digest = claims.statement.self_test_sha384
    if reference.self_tests is None:
        told = f"of digest {digest}; no digest to compare it with was given (--self-test)"
        return Finding("self-test", "not checked", told)
    return one_of("self-test", bytes.fromhex(digest), reference.self_tests)


def _with_publishers(finding: Finding, policy: Policy) -> Finding:
    """Models that are the policy's: say who signed them, which the appliance checks before it loads
    them."""
    signed = [f"{model.name} by {model.publisher.identity or model.publisher.public_key}"
              for model in policy.models if model.publisher is not None]
    if (finding.rule, finding.outcome) != ("models", "holds") or not signed:
        return finding
    return Finding("models", "holds", "; ".join([*filter(None, [finding.detail]), f"published: {', '.join(signed)}"]))


def _conclude(claims: Claims, findings: Iterable[Finding], reference: Reference,
              question: Question) -> tuple[Status, str, str, str | None]:
    """Status, code, reason, hint."""
    outcomes = {each.rule: each for each in findings}
    wrong = [each for each in findings if each.outcome == "fails"]
    if wrong:
        return NOT_MET, f"evidence-{wrong[0].rule}", _summed(wrong), rules.next_step(wrong[0].rule)
    needed = rules.required(claims.platform, online=question.online, revocation=reference.need_revocation,
                            activation=reference.ek_roots is not None, any_ak=reference.any_ak,
                            session=_binds_sessions(reference) and question.session is not None,
                            listed=reference.policy.policy.tee.evidence.machines is not None)
    lesser = _firmware_alone(claims.platform, outcomes)
    for rule in needed:
        if rule in lesser:
            continue
        if rule not in outcomes or outcomes[rule].outcome != "holds":
            detail = outcomes[rule].detail if rule in outcomes else ""
            return (UNCHECKED, f"unchecked-{rule}", f"{rule}: {rules.meaning(rule)}: not checked"
                    + (f", {detail}" if detail else ""), rules.HINTS.get(rule))
    if lesser:
        return FIRMWARE_PROVED, "", good(FIRMWARE_PROVED), None
    status, known_by = _standing(claims, outcomes, reference, question)
    return status, "", good(status) + (f"; {known_by}" if known_by else ""), None


def _firmware_alone(platform: str, outcomes: Mapping[str, Finding]) -> frozenset[str]:
    """The rules that are open because the hardware covers the firmware alone; none where it covers
    the image, or where the firmware is not proved."""
    half = halves.JUDGES[platform]
    proved = half.firmware in outcomes and outcomes[half.firmware].outcome == "holds"
    return frozenset(rule for rule in (*half.image, "launch-policy") if proved and rule in outcomes
                     and outcomes[rule].outcome == "not checked")


def _standing(claims: Claims, outcomes: Mapping[str, Finding], reference: Reference,
              question: Question) -> tuple[Status, str]:
    """The status where all that is needed holds, by the platform's row; and how its signer is
    known, where that matters."""
    row, half = BY_NAME[claims.platform], halves.JUDGES[claims.platform]
    known_by = "" if row.tee else half.known_by(outcomes)
    lifted = half.lifted_by in outcomes and outcomes[half.lifted_by].outcome == "holds"
    if not row.tee and not lifted:
        return next(each for each in EXIT_CODES if each == row.verdict), known_by
    if question.session is not None and "session" in outcomes and outcomes["session"].outcome != "holds" and not (
            reference.key_bound or reference.policy.policy.appliance.schema_version == 1):
        return KEY_BOUND, known_by
    return VERIFIED, known_by


def _binds_sessions(reference: Reference) -> bool:
    """Whether the policy binds evidence to the TLS session that it is asked on."""
    return reference.policy.policy.service.session_binding == "required"


def _summed(wrong: Sequence[Finding]) -> str:
    """Say what failed in a sentence: the first rule with its field and what differs, the others by
    name. The findings have all of it, whole."""
    first, others = wrong[0], [each.rule for each in wrong[1:]]
    attack, field = rules.ATTACKS.get(first.rule), rules.field(first.rule)
    detail = _DIGITS.sub(lambda found: f"{found[0][:16]}…", first.detail)
    said = (f"{attack}: " if attack else "") + first.rule + (
        f": {detail if len(detail) <= _MOST_DETAIL else detail[:_MOST_DETAIL] + '…'}" if detail else "") + (
        f" ({field})" if field else "")
    if not others:
        return said
    named = ", ".join(others[:_MOST_RULES]) + (f" and {len(others) - _MOST_RULES} more" if len(others) > _MOST_RULES
                                               else "")
    return f"{said}; {named} {'fail' if len(others) > 1 else 'fails'}, too"
