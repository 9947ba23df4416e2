"""Claims about receipts: each is signed by an attested key, and its record is in the log."""

from __future__ import annotations

from appliance.auditor import receipts
from appliance.auditor.claims.case import Case, LackingError
from appliance.auditor.claims.claim import Answer, Claim, either, holds, open_
from appliance.auditor.receipts import Expected
from appliance.errors import NoteError
from appliance.receipts import dsse, statement
from appliance.transparency.tree import leaf_hash


def _hold(case: Case) -> Answer:
    taken = case.receipts
    keys = case.keys or tuple(dict.fromkeys(boot.audit_key for boot in case.log.boots))
    if not keys:
        raise LackingError("no key is known that may have signed them")
    policy = case.policy
    for name, each in taken.items():
        said = statement.parse(dsse.parts(each.envelope)[0])
        if said.policy_sha384 != policy.digest.hex():
            return open_(f"{name} is of another policy: {said.policy_sha384}")
        tried: list[NoteError] = []
        for key in keys:
            try:
                receipts.verify(each, Expected(key, policy.digest.hex(), policy.policy))
                break
            except NoteError as error:
                tried.append(error)
        else:
            return "fails", f"{name}: {tried[0].summary}"
    if not case.keys:
        return open_(f"{len(taken)} are signed by keys of the log, which no verified evidence binds")
    return holds(f"{len(taken)} of {len(taken)}")


def _logged(case: Case) -> Answer:
    lines = [line for line in case.lines if b'"v":2' in line]
    wrong = []
    for name, each in case.receipts.items():
        place = statement.parse(dsse.parts(each.envelope)[0]).record
        line = lines[place.seq][:-1] if place.seq < len(lines) else b""
        if leaf_hash(line).hex() != place.leaf:
            wrong.append(f"{name}: record {place.seq} of the log is another one")
    return either(not wrong, f"{len(case.receipts)} of {len(case.receipts)}", "; ".join(wrong[:3]))


CLAIMS = (
    Claim("receipts-hold", "The receipts are signed, and of this policy and its models.", _hold),
    Claim("receipts-logged", "The log has the record of each receipt.", _logged),
)
