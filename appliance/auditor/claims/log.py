"""Claims about the audit log: whole, signed by an attested key, witnessed, of this policy."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from appliance.audit.events import ASKED, RETAINED
from appliance.auditor import bundle
from appliance.auditor.claims.case import Case, LackingError
from appliance.auditor.claims.claim import Answer, Claim, by_records, either, fails, holds, open_
from appliance.auditor.records import Reader
from appliance.client.verdict import VERIFIED
from appliance.errors import NoteError
from appliance.transparency.checkpoint import Checkpoint
from appliance.transparency.note import Key

_SETTINGS = ("boot.model", "generation.new", "operator.set", "tenants.loaded", "policy.approved", "key.released")
_MOST_CHANGES = 40  # that are told one by one


def _whole(case: Case) -> Answer:
    report = case.log
    if report.bad is not None:
        return fails(f"record {report.bad.position}: {report.bad.what}")
    if not report.proved:
        return open_(f"{report.records} records are the log's own word: no checkpoint that the judge holds covers "
                     "them, and none by a key that evidence binds")
    rest = f"; {report.own_word} more {'is' if report.own_word == 1 else 'are'} the log's own word"
    told = f"{report.proved} records, by {report.by}{rest if report.own_word else ''}"
    return open_(f"{told}; {report.unbound_words}") if report.unbound else holds(told)


def _attested(case: Case) -> Answer:
    """Checkpoints prove something if evidence binds the keys that signed them. It must bind the key
    of each boot, since whoever has the file can write a boot with another one."""
    boots = case.log.boots
    if not boots:
        return open_("the log names no boot")
    if not case.keys:
        return open_("no evidence that was verified binds an audit key")
    foreign = [each.epoch for each in boots if each.audit_key not in case.keys]
    if len(foreign) == len(boots):
        return fails("no boot of the log has a key that evidence binds")
    if foreign:
        return fails(f"no evidence binds the keys of epochs {', '.join(map(str, foreign[:5]))}")
    if absent := [key for key in case.given.keys if all(each.audit_key != key for each in boots)]:
        return fails(f"no boot of the log has the key {absent[0].hex()}")
    if case.log.unbound:
        return open_(f"{case.log.unbound_words}: no checkpoint covers its first record")
    return holds(f"{len(boots)} boots")


def _held(case: Case) -> Answer:
    """A log that was cut off or set back contradicts what others hold. Checkpoints in the pack are
    compared, too, but the packer may have made them a minute ago."""
    report, anchors, own = case.log, case.anchors, case.given.anchors
    if case.unread:
        return fails(f"{case.unread[0]} cannot be read")
    if report.bad is not None:
        return fails(f"record {report.bad.position}: {report.bad.what}")
    if stranger := [each for each in report.notes if "signed by a key that no boot of this log names" in each]:
        return fails(stranger[0])
    if not own and not report.cosignatures:
        return open_(f"the judge holds no checkpoint, and no witness cosigned; {len(anchors)} in the pack agree")
    return holds(f"{len(own)} checkpoints of the judge's own, {report.cosignatures} cosignatures, and "
                 f"{len(anchors) - len(own)} checkpoints in the pack")


def _witnessed(case: Case) -> Answer:
    if case.log.bad is not None:
        return fails(f"record {case.log.bad.position}: {case.log.bad.what}")
    if not case.log.cosignatures:
        return open_("the log has no cosignature by a witness whose key is known")
    return holds(f"{case.log.cosignatures} cosignatures")


def _dated(case: Case) -> Answer:
    """Tokens of the policy's authority for checkpoints in the log: the records before each existed
    by its time. It says nothing of how much earlier they were written."""
    if case.log.bad is not None:
        return fails(f"record {case.log.bad.position}: {case.log.bad.what}")
    if case.policy.policy.audit.timestamp_authority is None:
        return open_("the policy names no timestamp authority")
    if not case.log.stamps:
        others = [each for each in case.log.notes if each.startswith("timestamps of boots")]
        return open_(others[0] if others else "the log has no timestamp")
    first, last = case.log.stamps[0], max(case.log.stamps, key=lambda each: each.size)
    ahead = [each for each in case.log.notes if "clock was ahead" in each]
    return holds(f"{first.size} of {case.log.records} records existed by {_when(first.time)}, {last.size} by "
                 f"{_when(last.time)}, says {last.authority}" + (f"; {'; '.join(ahead[:2])}" if ahead else ""))


def _when(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


def _of_policy(case: Case) -> Answer:
    boots = [each for each in case.records if each["event"] == "boot.start"]
    if not boots:
        return open_("the log has no boot's start")
    digest = case.policy.digest.hex()
    if case.log.outside and boots[-1]["epoch"] in [each.epoch for each in case.log.unbound]:
        return open_(f"{case.log.unbound_words}, and the last boot is among them")
    others = [each["epoch"] for each in boots if each.get("policy_sha384") != digest]
    if boots[-1].get("policy_sha384") != digest:
        return fails(f"the last boot was under the policy {boots[-1].get('policy_sha384')}")
    return holds(f"{len(boots) - len(others)} of {len(boots)} boots"
                 + (f"; under others: epochs {', '.join(map(str, others[:5]))}" if others else ""))


def _self_test(case: Case) -> Answer:
    said = {each.get("self_test_sha384") for each in case.records if each["event"] == "boot.ready"}
    bound = {each.statement.self_test_sha384 for each in case.verdicts.values()
             if each.status == VERIFIED and each.statement is not None}
    if not said or not bound:
        return open_("the log, or verified evidence, names no self-test")
    return either(bound <= said, f"{len(bound)} digests", "evidence binds a self-test that no boot in the log had")


def _lossless(case: Case) -> Answer:
    if case.log.bad is not None:
        return fails(f"record {case.log.bad.position}: {case.log.bad.what}")
    lost = sum(each.get("dropped", 0) for each in case.records if each["event"] == "audit.closed")
    torn = sum(each.repaired_bytes for each in case.log.boots)
    if lost:
        return fails(f"{lost} events, fields or values were dropped")
    closed = sum(each["event"] == "audit.closed" for each in case.records)
    return holds(f"{closed} of {len(case.log.boots)} boots ended in order"
                 + (f"; {torn} bytes of torn records were cut off" if torn else ""))


def _ended(case: Case) -> Answer:
    """Each stream that began has a record of its end."""
    past = case.require_open("stream.started", "request.done", "request.refused")
    ends = {each.get("request") for each in case.records
            if each["event"] in ("request.done", "request.refused") and "sealed" not in each}
    begun = [each.get("request") for each in case.records
             if each["event"] == "stream.started" and "sealed" not in each]
    left = [each for each in begun if each not in ends]
    if not ends and not begun:
        return open_("the log has no request")
    return holds(f"{len(ends)} requests{past}") if not left else open_(
        f"{len(ends)} requests; {len(left)} streams have no end: they ran when the log was copied, or were cut")


def _named(case: Case) -> Answer:
    """Each request for text that was let in names the tenant that asked."""
    past = case.require_open("request.done")
    done = [each for each in case.records if each["event"] == "request.done" and "model" in each]
    bare = sum("tenant" not in each for each in done)
    if not done:
        return open_("the log has no answer by a model")
    return either(not bare, f"{len(done)} answers{past}", f"{bare} answers name no tenant")


def _refusals(case: Case) -> Answer:
    past = case.require_open("request.refused")
    found = [each for each in case.records if each["event"] == "request.refused" and "sealed" not in each]
    counted = sum(count for each in case.records if each["event"] == "requests.counted"
                  for codes in each.get("refused", {}).values() for count in codes.values())
    told = f"{len(found)}, each with its code{past}" + (f"; {counted} are counted by code" if counted else "")
    return holds(told) if found or counted else open_("the log has no refusal")


def _changes(case: Case) -> Answer:
    """Loads of models and settings by the operator are in the log, and what requests changed, each
    with who asked."""
    requested = [each for each in case.records if each["event"] in ASKED or (
        "request" in each and each["event"] not in RETAINED)]
    events = dict.fromkeys((*_SETTINGS, *(each["event"] for each in requested)))
    counts = {name: sum(each["event"] == name for each in case.records) for name in events}
    bare = [each["seq"] for each in requested if each["v"] > 2 and "tenant" not in each]
    if bare:
        return fails(f"records of changes without the tenant that asked: {len(bare)}, the first is record {bare[0]}")
    told = [", ".join(f"{name} {count}" for name, count in counts.items() if count)]
    more = len(requested) - _MOST_CHANGES
    told += [*map(_change, requested[:_MOST_CHANGES]), *([f"and {more} more changes"] if more > 0 else [])]
    return holds("; ".join(told)) if told[0] else open_("the log has no such record")


def _change(record: dict[str, Any]) -> str:
    """A change that a request made, in words. Version 2 does not say whose it was."""
    asker = f"{record['tenant']} asked by {record['request']}" if "tenant" in record else "whoever asked is not named"
    return f"record {record['seq']}: {record['event']} {record.get('model', '')}".rstrip() + f", {asker}"


def _extracts(case: Case) -> Answer:
    count = 0
    for name, content in case.some("extract").items():
        if not case.keys:
            raise LackingError("no evidence that was verified binds an audit key")
        if not any((found := _extract(content, key)) is not None for key in case.keys):
            return fails(f"{name}: no attested key signed its checkpoint, or a record is not under it")
        count += len(found or ())
    return holds(f"{count} records")


def _extract(content: bytes, key: bytes) -> dict[int, Any] | None:
    """The records of an extract, if they are under a checkpoint by this key."""
    try:
        origin = Checkpoint.parse(bundle.noted(content)).origin
        return dict(bundle.read(content, Key(origin, key), Reader()).records)
    except NoteError:
        return None


CLAIMS = (
    Claim("log-whole", "The log is complete and unaltered up to a signed checkpoint.", _whole),
    Claim("log-attested", "The log is signed by keys that the hardware's evidence binds.", _attested),
    Claim("log-held", "The judge's own checkpoints, or witnesses' cosignatures, agree with the log.", _held),
    Claim("log-witnessed", "Witnesses cosigned the log.", _witnessed),
    Claim("log-dated", "Records existed by the times that an authority outside gave.", _dated),
    Claim("log-policy", "The log's last boot was under this policy.", by_records(_of_policy)),
    Claim("log-self-test", "The self-test in evidence is that of a boot in the log.", by_records(_self_test)),
    Claim("log-lossless", "The log dropped nothing that it was given.", by_records(_lossless)),
    Claim("log-requests", "Every request that began has a record of its end.", by_records(_ended)),
    Claim("log-tenants", "Every answer is recorded with the tenant that asked.", by_records(_named)),
    Claim("log-refusals", "Refused requests are recorded with the reason's code.", by_records(_refusals)),
    Claim("log-changes", "Changes of models, keys and settings are recorded.", by_records(_changes)),
    Claim("log-extracts", "Single records are proved to be in the log.", _extracts),
)
