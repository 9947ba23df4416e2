"""Claims about the audit log: whole, signed by an attested key, witnessed, of this policy."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from appliance.audit.chain import origin
from appliance.audit.events import ASKED, ENDS, RETAINED
from appliance.auditor import bundle
from appliance.auditor.claims.case import Case, LackingError
from appliance.auditor.claims.claim import Answer, Claim, by_records, either, fails, holds, open_
from appliance.auditor.records import Reader
from appliance.client.verdict import VERIFIED
from appliance.codec.printable import quantity
from appliance.errors import NoteError
from appliance.transparency import reading
from appliance.transparency.note import NoteKey

_MOST_NAMED = 5
_SETTINGS = ("boot.model", "generation.new", "operator.set", "tenants.loaded", "policy.approved", "key.released")
_MOST_CHANGES = 40  # that are listed one by one


def _whole(case: Case) -> Answer:
    report = case.log
    if report.bad is not None:
        return fails(f"record {report.bad.position}: {report.bad.what}")
    if not report.proved:
        return open_(f"by the log's own word alone, {quantity(report.records, 'record')}: no checkpoint that the judge "
                     "holds covers them, and none by a key that evidence binds")
    rest = f"; {report.own_word} more {'is' if report.own_word == 1 else 'are'} the log's own word"
    told = f"{quantity(report.proved, 'record')}, by {report.by}{rest if report.own_word else ''}"
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
    named = sum(each.audit_key not in case.bound for each in boots)
    return holds(quantity(len(boots), "boot") + (f", {named} of them by keys that the judge named" if named else ""))


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
    others = quantity(len(anchors) - len(own), "checkpoint") + " in the pack"
    if not own and not report.cosignatures:
        return open_(f"the judge holds no checkpoint, and no witness cosigned; compared with {others}")
    told = (f"{quantity(len(own), 'checkpoint')} of the judge's own, {quantity(report.cosignatures, 'cosignature')}; "
            f"compared with {others}, too")
    if not report.held:
        return open_(f"none of them covers a record: {told}")
    return holds(f"the first {report.held} of {quantity(report.records, 'record')}: {told}")


def _witnessed(case: Case) -> Answer:
    if case.log.bad is not None:
        return fails(f"record {case.log.bad.position}: {case.log.bad.what}")
    if not case.log.cosignatures:
        return open_("the log has no cosignature by a witness whose key is known")
    if not case.log.witnessed:
        return open_("the cosignatures are of a log without a record")
    return holds(f"the first {case.log.witnessed} of {quantity(case.log.records, 'record')}, by "
                 f"{quantity(case.log.cosignatures, 'cosignature')}")


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
    return holds(f"{first.size} of {quantity(case.log.records, 'record')} existed by {_when(first.time)}, {last.size} "
                 f"by {_when(last.time)}, says {last.authority}" + (f"; {'; '.join(ahead[:2])}" if ahead else ""))


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
    return holds(f"{len(boots) - len(others)} of {quantity(len(boots), 'boot')}"
                 + (f"; under others: epochs {', '.join(map(str, others[:5]))}" if others else ""))


def _self_test(case: Case) -> Answer:
    said = {each.get("self_test_sha384") for each in case.records if each["event"] == "boot.ready"}
    bound = {each.statement.self_test_sha384 for each in case.verdicts.values()
             if each.status == VERIFIED and each.statement is not None}
    if not said or not bound:
        return open_("the log, or verified evidence, names no self-test")
    return either(bound <= said, quantity(len(bound), "digest"), "evidence binds a self-test that no boot in it had")


def _lossless(case: Case) -> Answer:
    """A boot's last record counts what it dropped. A boot that was cut has none, and says
    nothing."""
    if case.log.bad is not None:
        return fails(f"record {case.log.bad.position}: {case.log.bad.what}")
    lost = Counter({each["epoch"]: each.get("dropped", 0) for each in case.records if each["event"] == "audit.closed"})
    if total := lost.total():
        return fails(f"dropped, of events, fields and values: {_by_epoch(+lost)}, {total} in all")
    closed = _closed(case)
    cut = [each.epoch for each in case.log.boots if each.epoch not in closed]
    torn = sum(each.repaired_bytes for each in case.log.boots)
    told = f"{len(closed)} of {quantity(len(case.log.boots), 'boot')} ended in order" + (
        f"; torn records were cut off, {quantity(torn, 'byte')}" if torn else "")
    if not closed:
        return open_(f"{told}: no boot says at its end what it dropped")
    several = len(cut) > 1
    return holds(told, f"{_epochs(cut)}, which did not end in order, or {'run' if several else 'runs'} still"
                 if cut else "")


def _closed(case: Case) -> set[int]:
    """Return the epochs of boots that ended in order."""
    return {each["epoch"] for each in case.records if each["event"] == "audit.closed"}


def _epochs(numbers: Iterable[int]) -> str:
    """Epochs in words, the first few by their number."""
    listed = sorted(set(numbers))
    more = f" and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
    return f"epoch{'s' * (len(listed) > 1)} {', '.join(map(str, listed[:_MOST_NAMED]))}{more}"


def _by_epoch(counts: Counter[int]) -> str:
    """Counts by epoch in words, the first few."""
    more = f" and {quantity(len(counts) - _MOST_NAMED, 'more epoch')}" if len(counts) > _MOST_NAMED else ""
    return ", ".join(f"{count} in epoch {epoch}" for epoch, count in sorted(counts.items())[:_MOST_NAMED]) + more


def _ended(case: Case) -> Answer:
    """Each stream that began has a record of its end. A boot that was cut took its running streams
    with it. In a boot that ended in order each stream has an end."""
    past = case.require_open("stream.started", *ENDS)
    ends = {each.get("request") for each in case.records if each["event"] in ENDS and "sealed" not in each}
    left = Counter(each["epoch"] for each in case.records if each["event"] == "stream.started"
                   and "sealed" not in each and each.get("request") not in ends)
    told = f"{quantity(len(ends), 'request')} ended{past}"
    closed = _closed(case)
    if lost := Counter({epoch: count for epoch, count in left.items() if epoch in closed}):
        return fails(f"{told}; streams without an end in boots that ended in order: {_by_epoch(lost)}")
    if not ends:
        return open_("the log has no request that ended")
    return holds(told, f"{quantity(left.total(), 'stream')} that ended with the boot, or ran when the log was copied: "
                 f"{_by_epoch(left)}" if left else "")


def _named(case: Case) -> Answer:
    """Each request for text that was let in names the tenant that asked."""
    past = case.require_open("request.done", "request.ended")
    done = [each for each in case.records if (each["event"] == "request.ended" and "sealed" not in each)
            or (each["event"] == "request.done" and "model" in each)]
    bare = sum("tenant" not in each for each in done)
    if not done:
        return open_("the log has no answer by a model")
    return either(not bare, f"{quantity(len(done), 'answer')}{past}",
                  f"{quantity(bare, 'answer')} without the tenant's name")


def _refusals(case: Case) -> Answer:
    past = case.require_open("request.refused")
    found = [each for each in case.records if each["event"] == "request.refused" and "sealed" not in each]
    counted = sum(count for each in case.records if each["event"] == "requests.counted"
                  for codes in each.get("refused", {}).values() for count in codes.values())
    if bare := sum("code" not in each for each in found):
        return fails(f"{quantity(bare, 'refusal')} without a code")
    told = f"{len(found)}, each with its code{past}" + (f"; {counted} more, counted by code" if counted else "")
    if hidden := sum(each["event"] == "request.ended" for each in case.records):
        more = f" ({told})" if found or counted else ""
        return open_(f"{quantity(hidden, 'request')} ended, refused or answered: the policy hides which{more}")
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
    told += [*map(_change, requested[:_MOST_CHANGES]), *([f"and {quantity(more, 'more change')}"] if more > 0 else [])]
    return holds("; ".join(told)) if told[0] else open_("the log has no such record")


def _change(record: dict[str, Any]) -> str:
    """Return a change that a request made, in words. Version 2 does not say whose it was."""
    asker = f"{record['tenant']} asked by {record['request']}" if "tenant" in record else "whoever asked is not named"
    return f"record {record['seq']}: {record['event']} {record.get('model', '')}".rstrip() + f", {asker}"


def _extracts(case: Case) -> Answer:
    count, ours = 0, None
    with contextlib.suppress(LackingError):
        ours = None if case.log.log is None else origin(case.log.log)
    for name, content in case.some("extract").items():
        if not case.keys:
            raise LackingError("no evidence that was verified binds an audit key")
        if ours not in (None, theirs := reading.head(bundle.noted(content)).origin):
            return fails(f"{name}: it is of another log than the pack's, {theirs}")
        if not any((found := _extract(content, key)) is not None for key in case.keys):
            return fails(f"{name}: no attested key signed its checkpoint, or a record is not under it")
        count += len(found or ())
    return holds(quantity(count, "record"))


def _extract(content: bytes, key: bytes) -> dict[int, Any] | None:
    """Return the records of an extract, if they are under a checkpoint by this key."""
    try:
        origin = reading.head(bundle.noted(content)).origin
        return dict(bundle.read(content, NoteKey(origin, key), Reader()).records)
    except NoteError:
        return None


CLAIMS = (
    Claim("log-whole", "The log is complete and unaltered up to a signed checkpoint.", _whole),
    Claim("log-attested", "The log is signed by keys that verified evidence binds, or the judge named.", _attested),
    Claim("log-held", "The judge's own checkpoints, or witnesses' cosignatures, agree with the log.", _held),
    Claim("log-witnessed", "Witnesses cosigned the log.", _witnessed),
    Claim("log-dated", "Records existed by the times that an authority outside gave.", _dated),
    Claim("log-policy", "The log's last boot was under this policy.", by_records(_of_policy)),
    Claim("log-self-test", "The self-test in evidence is that of a boot in the log.", by_records(_self_test)),
    Claim("log-lossless", "The log dropped nothing that it was given.", by_records(_lossless)),
    Claim("log-requests", "Every stream that began has a record of its end.", by_records(_ended)),
    Claim("log-tenants", "Every answer is recorded with the tenant that asked.", by_records(_named)),
    Claim("log-refusals", "Refused requests are recorded with the reason's code.", by_records(_refusals)),
    Claim("log-changes", "Changes of models, keys and settings are recorded.", by_records(_changes)),
    Claim("log-extracts", "Single records are proved to be in the log that an attested key signs.", _extracts),
)
