"""Judge a bundle, offline: every verdict in it is made again.

The person who judges brings the trust: the vendors' pinned roots, and, if they know it, the
builder's key. A bundle's own words are compared, and never believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from appliance.acceptance import bundle, materials, sight
from appliance.acceptance.attacks import ATTACKS
from appliance.acceptance.bundle import Bundle, Trial
from appliance.acceptance.machine import AcceptanceError
from appliance.attestation import keyfile
from appliance.attestation.trust.roots import VENDORS, Roots
from appliance.client import Verdict, Verifier, reference
from appliance.platforms import BY_NAME
from appliance.policy import Loaded
from appliance.policy.schema import Policy

GOOD = "good"
MAX_BYTES = bundle.MAX_BYTES


@dataclass(frozen=True)
class Trust:
    """The judge's own knowledge, which comes by another way than the bundle."""

    builder_key: str | None = None
    attestation_keys: Sequence[str] = ()
    roots: Roots = VENDORS
    policy: bytes | None = None  # its digest
    attacks: Sequence[str] = tuple(ATTACKS)  # all of them have to be tried, where they say something


@dataclass(frozen=True)
class Line:
    """One attack, judged again."""

    name: str
    what: str
    ended: str
    by: str


@dataclass(frozen=True)
class Judgement:
    """The outcome. `verdict` is that of the seal, by which hardware binds the whole. `missing`: the
    attacks that had to be tried, and were not."""

    verdict: Verdict
    lines: tuple[Line, ...]
    missing: tuple[str, ...]
    machine: str
    version: str
    remarks: tuple[str, ...]

    @property
    def against(self) -> str:
        """Return the reason against the machine; empty where each attack was tried and refused."""
        for what, names in (("accepted", [each.name for each in self.lines if each.ended == "accepted"]),
                            ("not tried, without a reason that the bundle shows", self.missing)):
            if names:
                return f"{what}: {', '.join(names)}"
        return "" if any(each.ended == "refused" for each in self.lines) else "no attack was refused by evidence"

    @property
    def held(self) -> bool:
        """Whether each attack that had to be tried was, one was refused, and none accepted."""
        return not self.against

    def as_json(self) -> dict[str, Any]:
        """The whole as plain values."""
        return {"held": self.held, "against": self.against, "missing": list(self.missing),
                "policy_sha384": self.verdict.policy_sha384.hex(), "verdict": self.verdict.as_json(),
                "machine": self.machine, "version": self.version, "remarks": list(self.remarks),
                "attacks": {each.name: {"ended": each.ended, "by": each.by} for each in self.lines}}


def judge(data: bytes, trust: Trust) -> Judgement:
    """Judge the bytes of a bundle. Raises AcceptanceError for a bundle that is not whole or whose
    words differ from its evidence, PolicyError and AttestationError for files that cannot be
    used."""
    whole = bundle.unpack(data)
    _same_builder(whole, trust)
    verifier = materials.verifier(whole.files, whole.manifest.terms, trust.roots)
    policy = verifier.reference.policy
    if trust.policy not in (None, policy.digest):
        raise _differs(materials.POLICY, f"its digest is sha384:{policy.digest.hex()}", "name its own policy: --policy")
    seal = whole.seal.verdict(verifier)
    if not is_good(seal):
        raise _differs(bundle.SEAL, f"{seal.status}: {seal.reason}", seal.hint)
    first = _seen(whole, GOOD)
    good = first.verdict(verifier)
    if not is_good(good):
        raise _differs(GOOD, f"{good.status}: {good.reason}", good.hint)
    lines = tuple(_line(whole, verifier, name, trial) for name, trial in whole.manifest.attacks.items())
    missing = _missing({each.name: each.ended for each in lines}, trust, policy.policy, first, good.platform or "")
    return Judgement(seal, lines, tuple(missing), whole.manifest.machine, whole.manifest.version,
                     tuple(_remarks(whole, trust, policy)))


def _missing(ended: Mapping[str, str], trust: Trust, policy: Policy, first: sight.Sight,
             platform: str) -> Iterator[str]:
    """Yield the attacks that say something on this machine, and have no outcome. Only of an attack
    that needs our own command is a reason taken that the bundle cannot show."""
    for name in trust.attacks:
        attack, end = ATTACKS[name], ended.get(name, "-")
        done = {"accepted", "refused", "silent" if attack.boot else "", "not tried" if attack.own else ""}
        if end not in done and not attack.beside_the_point(policy, first, platform):
            yield name


def is_good(verdict: Verdict) -> bool:
    """Whether a verdict is the best of its platform."""
    return not verdict.code and verdict.platform in BY_NAME and verdict.status in (
        BY_NAME[verdict.platform].verdict, "verified")


def words_of(verdict: Verdict) -> frozenset[str]:
    """Return the words of a refusal: the verdict's status, its code, and the rules that fail."""
    return frozenset({verdict.status, verdict.code, *(
        each.rule for each in verdict.findings if each.outcome == "fails")})


def _line(whole: Bundle, verifier: Verifier, name: str, trial: Trial) -> Line:
    """Judge an attack by its evidence, and compare with what the bundle says."""
    if name not in ATTACKS:
        raise _differs(name, "this version does not know the attack", "judge by the version that made the bundle")
    attack, place = ATTACKS[name], f"attacks/{name}"
    if f"{place}/{sight.QUESTION}" not in whole.files:
        if trial.ended not in ("silent", "not tried"):
            raise _differs(place, f"it says {trial.ended!r}, and has no evidence", None)
        return Line(name, attack.what, trial.ended, trial.by)
    verdict = _seen(whole, place).verdict(verifier)
    by = words_of(verdict) & attack.refusals
    ended = "accepted" if is_good(verdict) or not by else "refused"
    if ended != trial.ended:
        raise _differs(place, f"it says {trial.ended!r}, and its evidence is {ended}: {verdict.status}", None)
    return Line(name, attack.what, ended, ", ".join(sorted(by)) or verdict.code or verdict.status)


def _seen(whole: Bundle, place: str) -> sight.Sight:
    try:
        return sight.read(whole.files, place)
    except (KeyError, ValueError):
        raise _differs(place, "it has no question and answer in form", None) from None


def _same_builder(whole: Bundle, trust: Trust) -> None:
    """Raise AcceptanceError where the bundle was judged by other keys than those of the judge."""
    own = whole.manifest.terms
    if trust.builder_key is not None and keyfile.ed25519_public_key(trust.builder_key).hex() != own.builder_key:
        raise _differs(bundle.MANIFEST, f"its builder is ed25519:{own.builder_key}", "name the builder's own key")
    enrolled = {reference.enrolled(each).hex() for each in trust.attestation_keys}
    if enrolled and not enrolled.issuperset(own.attestation_keys):
        raise _differs(bundle.MANIFEST, f"its TPM's key is sha256:{', '.join(own.attestation_keys)}",
                       "name the key that you enrolled: --ak KEY")


def _remarks(whole: Bundle, trust: Trust, policy: Loaded) -> Iterator[str]:
    """Yield what the outcome rests on that nothing in the bundle proves."""
    terms = whole.manifest.terms
    yield "times, the name of the processor and consoles are the word of the person who ran it"
    if trust.policy is None:
        yield "the policy is the bundle's own (compare it: --policy)"
    if policy.policy.tee.evidence.debug:
        yield "the policy takes a guest that the host may read (debug = true)"
    if terms.key_bound:
        yield "evidence of a TLS key is taken: whoever once got the key can relay it (--key-bound)"
    if terms.builder_key is None:
        yield "nobody signed the measurements"
    elif trust.builder_key is None:
        yield f"the builder is the bundle's own: ed25519:{terms.builder_key} (compare it: --builder-key)"
    if terms.attestation_keys and not trust.attestation_keys:
        yield "the TPM's key is the bundle's own: anybody can make such a TPM (compare it: --ak)"
    if terms.without_revocation:
        yield "no list of revoked certificates was asked for"


def _differs(place: str, what: str, hint: str | None) -> AcceptanceError:
    return AcceptanceError(f"bundle: {place}: {what}", code="bundle-refused",
                           hint=hint or "ask the person who ran it for a new bundle")
