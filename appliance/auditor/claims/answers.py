"""Claims about receipts: each is signed by an attested key, and its record is in the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from appliance.attestation.binding import ServeStatement
from appliance.attestation.case import reading
from appliance.attestation.collect.halves import COLLECTORS
from appliance.auditor import receipts
from appliance.auditor.archive.members import BY_NAME
from appliance.auditor.claims.case import Case, LackingError
from appliance.auditor.claims.claim import Answer, Claim, by_records, either, fails, holds, open_
from appliance.auditor.receipts import ReceiptDemands
from appliance.auditor.records import of_version_1
from appliance.client.verdict import VERIFIED
from appliance.errors import NoteError
from appliance.receipts import envelopes
from appliance.receipts.statement import Image
from appliance.transparency.tree import leaf_hash


def _hold(case: Case) -> Answer:
    taken = case.receipts
    keys = case.keys or tuple(dict.fromkeys(boot.audit_key for boot in case.log.boots))
    if not keys:
        raise LackingError("no key is known that may have signed them")
    policy = case.policy
    for name, each in taken.items():
        said = envelopes.statement(envelopes.parts(each.envelope)[0])
        if said.policy_sha384 != policy.digest.hex():
            return open_(f"{name} is of another policy: {said.policy_sha384}")
        tried: list[NoteError] = []
        for key in keys:
            try:
                receipts.verify(each, ReceiptDemands(key, policy.digest.hex(), policy.policy))
                break
            except NoteError as error:
                tried.append(error)
        else:
            return fails(f"{name}: {tried[0].summary}")
    if not case.keys:
        return open_(f"{len(taken)} are signed by keys of the log, which no verified evidence binds")
    return holds(f"{len(taken)} of {len(taken)}")


def _logged(case: Case) -> Answer:
    leaves = [leaf_hash(line[:-1]).hex() for line in case.lines if not of_version_1(line[:-1])]
    wrong = []
    for name, each in case.receipts.items():
        place = envelopes.statement(envelopes.parts(each.envelope)[0]).record
        if place.seq is None and place.leaf not in leaves:
            wrong.append(f"{name}: the log does not have its record")
        elif place.seq is not None and leaves[place.seq:place.seq + 1] != [place.leaf]:
            wrong.append(f"{name}: record {place.seq} of the log is another one")
    return either(not wrong, f"{len(case.receipts)} of {len(case.receipts)}", "; ".join(wrong[:3]))


@dataclass(frozen=True)
class _Shown:
    """One piece of evidence that was verified: the image that it is of, and the key that it binds.
    """

    key: bytes
    platform: str
    measurement: str | None
    self_test: str
    code: str | None

    def differs(self, image: Image) -> str:
        """Return the differences of a receipt's image, in words; empty where there is none."""
        pairs = {"platform": (image.platform, self.platform), "measurement": (image.measurement, self.measurement),
                 "self-test": (image.self_test_sha384, self.self_test)}
        if self.code is not None:
            pairs["code"] = (image.code_sha384, self.code)
        return ", ".join(f"its {name} is {said}, and evidence has {found}" for name, (said, found) in pairs.items()
                         if said != found)


def _shown(case: Case) -> list[_Shown]:
    found = []
    for name, verdict in case.verdicts.items():
        said = verdict.statement
        if verdict.status == VERIFIED and isinstance(said, ServeStatement) and said.audit_key_ed25519 is not None:
            measured = COLLECTORS[str(verdict.platform)].measurement
            report = reading.parse(case.members[name]).report_bytes()
            found.append(_Shown(
                bytes.fromhex(said.audit_key_ed25519), str(verdict.platform),
                None if measured is None else measured(report).hex(), said.self_test_sha384, said.build.code_sha384))
    return found


def _image(case: Case) -> Answer:
    """A receipt whose image no evidence is of may be of another boot, before an update. It is wrong
    where its key was that of one boot, or where the log has another self-test of its boot."""
    shown, taken = _shown(case), case.receipts
    records = case.as_written if BY_NAME["log"].place in case.members else []
    boots = [bytes.fromhex(each["audit_key_ed25519"]) for each in records if "audit_key_ed25519" in each]
    tests = {each["epoch"]: each["self_test_sha384"] for each in records
             if each["event"] == "boot.ready" and "self_test_sha384" in each}
    left = []
    for name, each in taken.items():
        said = envelopes.statement(envelopes.parts(each.envelope)[0])
        if tests.get(said.record.epoch, said.image.self_test_sha384) != said.image.self_test_sha384:
            return fails(f"{name}: the log has another self-test of its boot")
        of_key = [piece for piece in shown if _signed(each.envelope, piece.key)]
        wrong = [piece.differs(said.image) for piece in of_key]
        if wrong and all(wrong) and boots.count(of_key[0].key) == 1:
            return fails(f"{name}: {wrong[0]}")
        if all(wrong):
            left.append(f"{name}: {wrong[0] if wrong else 'no verified evidence binds the key that signed it'}")
    if not shown:
        raise LackingError("no evidence that was verified binds an audit key")
    return open_(left[0]) if left else holds(f"{len(taken)} of {len(taken)}")


def _signed(envelope: Any, key: bytes) -> bool:
    try:
        envelopes.payload(envelope, key)
    except NoteError:
        return False
    return True


CLAIMS = (
    Claim("receipts-hold", "The receipts are signed, and of this policy and its models.", _hold),
    Claim("receipts-image", "The image and self-test that receipts name are those that evidence is of.", _image),
    Claim("receipts-logged", "The log has the record of each receipt.", by_records(_logged)),
)
