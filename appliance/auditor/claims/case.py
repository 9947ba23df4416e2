"""The case that claims are judged in: a pack's members, each read once, and what the judge knows.

Properties raise `LackingError` where the pack has no such member, and an ApplianceError where the
member is not what it should be.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from appliance.attestation.case import measurements, reading
from appliance.attestation.trust.roots import VENDORS, Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.auditor import examine, held, receipts
from appliance.auditor.archive.members import BY_NAME
from appliance.auditor.held import Anchor
from appliance.auditor.outcome import Report
from appliance.auditor.receipts import KeptReceipt
from appliance.auditor.records import Reader, of_version_1
from appliance.client import Reference, Verdict, Verifier
from appliance.client.reference import KnownImage
from appliance.client.verdict import VERIFIED
from appliance.codec import strict
from appliance.codec.canonical import canonical
from appliance.codec.printable import quantity
from appliance.errors import ApplianceError, AttestationError, AuditError, NoteError
from appliance.policy import InvalidPolicyError, Loaded, policy_digest
from appliance.policy.explaining.checking import CheckResult, check_bytes
from appliance.receipts import envelopes
from appliance.signed import approvals, machines, releases
from appliance.signed.approvals import Approvals
from appliance.signed.releases import Releases
from appliance.transparency.note import NoteKey


class LackingError(Exception):
    """The pack, or its judge, lacks what a claim is judged by. The text says what."""


@dataclass(frozen=True)
class Given:
    """The facts that a judge knows from elsewhere than the pack.

    `builder_key`: 32 bytes of Ed25519. `unsigned`: measurements are believed as they are, since the
    judge rebuilt the image. `keys`: audit keys that evidence bound which is not in the pack.
    `anchors`: checkpoints of the judge's own. `held_release`: one of the builder's release log.
    `period_keys`: of sealed records, by their periods. `machines`: the file of the signed list of
    machines, which no pack carries: it says who holds them, and where.
    """

    at: datetime
    builder_key: bytes | None = None
    unsigned: bool = False
    policy_sha384: bytes | None = None
    nonces: tuple[bytes, ...] = ()
    self_tests: frozenset[bytes] = frozenset()
    keys: tuple[bytes, ...] = ()
    witnesses: tuple[NoteKey, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    max_release_age: timedelta | None = None
    held_release: bytes | None = None
    period_keys: Mapping[int, bytes] = field(default_factory=dict)
    machines: bytes | None = None
    need_revocation: bool = True
    roots: Roots = VENDORS


@dataclass
class Case:
    """One pack and one judge."""

    members: Mapping[str, bytes]
    given: Given

    def one(self, kind: str) -> bytes:
        """Return the one member of a kind."""
        try:
            return self.members[BY_NAME[kind].place]
        except KeyError:
            raise LackingError(f"the pack lacks {BY_NAME[kind].what}") from None

    def many(self, kind: str) -> dict[str, bytes]:
        """Return the members of a kind that may come many times; empty where there is none."""
        return {name: content for name, content in self.members.items() if BY_NAME[kind].holds(name)}

    def some(self, kind: str) -> dict[str, bytes]:
        """Return the members of a kind, of which there must be one."""
        found = self.many(kind)
        if not found:
            raise LackingError(f"the pack lacks {BY_NAME[kind].what}")
        return found

    @cached_property
    def checked(self) -> CheckResult:
        """The findings on the policy."""
        return check_bytes(self.one("policy"), BY_NAME["policy"].place)

    @cached_property
    def policy(self) -> Loaded:
        """The valid policy."""
        found = self.checked
        if found.policy is None:
            raise InvalidPolicyError(found.diagnostics)
        path: Any = PurePosixPath(BY_NAME["policy"].place)
        return Loaded(found.policy, policy_digest(found.policy), found.source_sha384, path, found.positions,
                      found.diagnostics)

    @cached_property
    def approvals(self) -> Approvals:
        """The file of approvals."""
        return approvals.parse(self.one("approvals"))

    @cached_property
    def known(self) -> KnownImage:
        """The measurements, which the builder signed or the judge vouches for."""
        data = self.one("measurements")
        if self.given.unsigned:
            return KnownImage(measurements.parse(data))
        if self.given.builder_key is None:
            raise LackingError("the judge named no builder's key")
        key = self.given.builder_key
        return KnownImage(measurements.signed(data, self.one("signature"), key), key)

    @cached_property
    def releases(self) -> Releases:
        """The builder's release log, signed as a whole."""
        log, head = self.one("releases"), self.one("release-head")
        if self.given.builder_key is None:
            raise LackingError("the judge named no builder's key")
        return releases.read(log, head, self.given.builder_key, held=self.given.held_release)

    @cached_property
    def collateral(self) -> Collateral:
        """All collateral that is understood."""
        found = Collateral()
        for name, content in self.many("collateral").items():
            found.add(content, name)
        return found

    @cached_property
    def _reference(self) -> Reference:
        try:
            known = self.known
        except LackingError:
            known = None
        signed = self.approvals if BY_NAME["approvals"].place in self.members else None
        given = self.given
        return Reference(self.policy, known, signed, self.collateral, given.need_revocation, roots=given.roots,
                         self_tests=given.self_tests or None,
                         machines=None if given.machines is None else machines.parse(
                             given.machines, self.policy.policy))

    @cached_property
    def verdicts(self) -> dict[str, Verdict]:
        """The client's verdict on each piece of evidence."""
        judge = Verifier(self._reference, clock=lambda: self.given.at)
        return {name: judge.verify_evidence(content, nonce=self._nonce(content), name=name)
                for name, content in self.some("evidence").items()}

    def _nonce(self, content: bytes) -> bytes | None:
        """Return the judge's nonce that this evidence answers by its own word; else another of
        them."""
        try:
            said = bytes.fromhex(reading.parse(content).proof.nonce)
        except AttestationError:
            return None
        return said if said in self.given.nonces else next(iter(self.given.nonces), None)

    @cached_property
    def keys(self) -> tuple[bytes, ...]:
        """The audit keys that verified evidence binds, and the judge's own."""
        return tuple(dict.fromkeys((*self.given.keys, *self.bound)))

    @cached_property
    def bound(self) -> tuple[bytes, ...]:
        """The audit keys that verified evidence binds."""
        found = [getattr(verdict.statement, "audit_key_ed25519", None)
                 for verdict in (self.verdicts.values() if self.many("evidence") else ())
                 if verdict.status == VERIFIED and verdict.statement is not None]
        return tuple(dict.fromkeys(bytes.fromhex(each) for each in found if each is not None))

    @cached_property
    def lines(self) -> list[bytes]:
        """The lines of the log, with their line feeds."""
        return self.one("log").splitlines(keepends=True)

    @cached_property
    def anchors(self) -> list[Anchor]:
        """Checkpoints besides the log's own: the judge's, the pack's, and those in receipts. The
        judge's alone prove something.

        `unread` names those in the pack that cannot be read."""
        found = list(self.given.anchors)
        for name, content in {**self.many("checkpoint"), **self.many("receipt")}.items():
            with contextlib.suppress(NoteError):
                found.append(held.anchor(content, name, proves=False))
        return found

    @cached_property
    def unread(self) -> list[str]:
        """The names of checkpoints in the pack that cannot be read."""
        readable = {each.name for each in self.anchors}
        return [name for name in self.many("checkpoint") if name not in readable]

    @cached_property
    def log(self) -> Report:
        """The log's examination, by keys that evidence binds and by what the judge holds."""
        witnesses, authority, policy = list(self.given.witnesses), None, None
        if BY_NAME["policy"].place in self.members and self.checked.policy is not None:
            said = self.checked.policy.audit
            witnesses += [held.witness_key(f"{each.name}={each.public_key}") for each in said.witnesses]
            authority = None if said.timestamp_authority is None else said.timestamp_authority.root_sha256
            policy = self.policy.digest.hex()
        keys = self.given.keys
        with contextlib.suppress(LackingError, ApplianceError):  # evidence that cannot be judged binds none
            keys = self.keys
        return examine.examine(self.lines, anchors=self.anchors, trust=examine.Trust(
            bound=keys, witnesses=tuple(witnesses), authority_sha256=authority, authority_policy=policy))

    @property
    def own_word(self) -> str:
        """Words for a claim that rests on records which nothing from outside covers; else empty."""
        if not self.log.proved:
            return "; by the log's own word alone"
        return f"; {self.log.unbound_words}" if self.log.unbound else ""

    @cached_property
    def as_written(self) -> list[dict[str, Any]]:
        """The records before the first bad one, whose form the examination has checked."""
        lines = [line for line in self.lines if not of_version_1(line)]
        good = lines if self.log.bad is None else lines[:min(self.log.bad.position, self.log.bad.since)]
        return [json.loads(line) for line in good]

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """The records, sealed ones opened by the judge's keys."""
        reader, keys = Reader(), self.given.period_keys
        try:
            return [reader.opened(reader.read(canonical(each)), keys) if each.get("period") in keys and "sealed" in each
                    else each for each in self.as_written]
        except NoteError as error:
            raise LackingError(f"the judge's keys of periods do not fit: {error.summary}") from None

    def require_open(self, *events: str) -> str:
        """Words on the records of these events that are past their time. Raises LackingError if
        others are sealed, and the judge has no keys."""
        left = [each["period"] for each in self.records if "sealed" in each and each["event"] in events]
        past = sum(period in self.log.expired for period in left)
        if past < len(left):
            raise LackingError(f"{quantity(len(left) - past, 'sealed record')}, and the judge has no key of theirs")
        return f"; {quantity(past, 'record')} past the time of reading" if past else ""

    @cached_property
    def receipts(self) -> dict[str, KeptReceipt]:
        """The receipts, none of which has been verified."""
        return {name: receipts.take(content) for name, content in self.some("receipt").items()}

    def document(self, kind: str) -> dict[str, Any]:
        """Return a member that is a JSON object. Raises AuditError for anything else."""
        try:
            found = strict.json_value(self.one(kind))
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise AuditError(f"{BY_NAME[kind].place} is not a JSON object", code="pack-member")
        return found


def stripped(content: bytes) -> bytes:
    """Return a receipt without the answer around it and without its opening, for others than its
    client. Raises NoteError if there is none."""
    taken = receipts.take(content)
    envelopes.statement(envelopes.parts(taken.envelope)[0])
    kept = {"cwt": taken.token, "envelope": taken.envelope}
    return json.dumps({name: value for name, value in kept.items() if value is not None}, sort_keys=True,
                      separators=(",", ":")).encode() + b"\n"
