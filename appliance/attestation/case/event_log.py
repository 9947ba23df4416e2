"""The TCG event log: what was measured into which register, and the register values that follow
from it.

Source: TCG "PC Client Platform Firmware Profile", section 10 (crypto-agile log: TCG_PCR_EVENT with
the Spec ID event, then TCG_PCR_EVENT2). TDX firmware writes the same format (CCEL) with RTMR
numbers plus one. Little endian. The log is untrusted: it says something only as far as its replay
gives the values that a quote signs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from appliance.attestation.tpm.abi import HASHES
from appliance.codec.cursor import Cursor
from appliance.errors import MalformedEvidenceError, UnsupportedEvidenceError

EV_NO_ACTION = 3
MAX_ALGORITHMS, MAX_EVENTS, MAX_LOG_BYTES = 8, 1 << 16, 1 << 24
SPEC_ID = b"Spec ID Event03\x00"
STARTUP_LOCALITY = b"StartupLocality\x00"


@dataclass(frozen=True)
class Event:
    """One measurement; `digests` by bank ("sha256"), banks that are not known are left out."""

    register: int
    kind: int
    digests: dict[str, bytes]
    data: bytes


def _header(cursor: Cursor) -> dict[int, int]:
    """The Spec ID event: digest size by algorithm."""
    cursor.number(4, "register")  # 0 in a TPM's log, 1 in some TDX firmware's
    kind = cursor.number(4, "event type")
    cursor.take(20, "SHA-1 digest")
    event = Cursor(cursor.sized(4, "Spec ID event"), "event log, Spec ID event", "little")
    if kind != EV_NO_ACTION or event.take(min(16, event.left), "signature") != SPEC_ID:
        raise UnsupportedEvidenceError(
            "event log: it does not begin with a Spec ID event of version 2; logs of SHA-1 alone are not read",
            code="tpm-event-log-version")
    event.take(8, "platform class and versions")
    count = event.number(4, "number of algorithms")
    if not 1 <= count <= MAX_ALGORITHMS:
        raise MalformedEvidenceError(f"event log: {count} algorithms, expected 1 to {MAX_ALGORITHMS}")
    sizes = {event.number(2, "algorithm"): event.number(2, "digest size") for _ in range(count)}
    event.sized(1, "vendor information")
    event.end()
    for algorithm, size in sizes.items():
        if algorithm in HASHES and size != hashlib.new(HASHES[algorithm]).digest_size:
            raise MalformedEvidenceError(f"event log: {HASHES[algorithm]} with digests of {size} bytes")
    return sizes


def _event(cursor: Cursor, sizes: dict[int, int]) -> Event:
    register, kind = cursor.number(4, "register"), cursor.number(4, "event type")
    digests: dict[str, bytes] = {}
    count = cursor.number(4, "number of digests")
    if count > MAX_ALGORITHMS:
        raise MalformedEvidenceError(f"event log: an event with {count} digests, at most {MAX_ALGORITHMS}")
    for _ in range(count):
        algorithm = cursor.number(2, "algorithm")
        if algorithm not in sizes:
            raise MalformedEvidenceError(f"event log: algorithm {algorithm:#06x} is not one that the log declares")
        digest = cursor.take(sizes[algorithm], "digest")
        if algorithm in HASHES:
            digests[HASHES[algorithm]] = digest
    return Event(register, kind, digests, cursor.sized(4, "event"))


def parse(log: bytes) -> list[Event]:
    """The events in order; zeros or ones behind the last event are the rest of the buffer, however
    many.

    Raises MalformedEvidenceError.
    """
    if len(log) > MAX_LOG_BYTES:
        raise MalformedEvidenceError(f"event log: {len(log)} bytes, at most {MAX_LOG_BYTES}")
    ends = {len(log.rstrip(filler)) for filler in (b"\x00", b"\xff")}
    cursor, events = Cursor(log, "event log", "little"), list[Event]()
    sizes = _header(cursor)
    while cursor.at < min(ends):
        if len(events) == MAX_EVENTS:
            raise MalformedEvidenceError(f"event log: more than {MAX_EVENTS} events")
        events.append(_event(cursor, sizes))
    return events


def _extensions(events: Sequence[Event], bank: str) -> Iterator[tuple[int, bytes]]:
    """Each register with its new value, event by event, its first value included where the log
    names one.

    Registers begin at zero, but for PCR 0 where the log names the locality of its start. Raises
    MalformedEvidenceError if an event has no digest in this bank, or the start of PCR 0 stands
    behind what it begins.
    """
    size = hashlib.new(bank).digest_size
    values: dict[int, bytes] = {}
    for event in events:
        if event.kind == EV_NO_ACTION:
            if event.register == 0 and event.data[:16] == STARTUP_LOCALITY and len(event.data) == 17:
                if 0 in values:  # what stands before would be in the log, and in no register
                    raise MalformedEvidenceError("event log: PCR 0 starts again after it was extended")
                values[0] = bytes(size - 1) + event.data[16:]
                yield 0, values[0]
            continue
        if bank not in event.digests:
            raise MalformedEvidenceError(f"event log: an event has no {bank} digest")
        before = values.get(event.register, bytes(size))
        values[event.register] = hashlib.new(bank, before + event.digests[bank]).digest()
        yield event.register, values[event.register]


def replay(events: Sequence[Event], bank: str) -> dict[int, bytes]:
    """Return the value of each register that the events extend, in one bank. Raises
    MalformedEvidenceError if an event has no digest in this bank, or PCR 0 starts twice."""
    return dict(_extensions(events, bank))


@dataclass(frozen=True)
class Explanation:
    """The log's explanation of quoted registers; each field maps a bank to registers.

    `explained`: register to how many of the log's events after the one that gave the quoted value
    extend it further (0: the log ends where the quote does). `unexplained`: registers whose quoted
    value the log does not give. Those of them that it has no event of are `beyond` it, if it
    explains any other: an honest quote may have some, since the operating system extends registers
    without writing into the firmware's log. `untouched`: registers at their reset value, of which
    it has no event.
    """

    explained: Mapping[str, Mapping[int, int]]
    unexplained: Mapping[str, tuple[int, ...]]
    problem: str = ""  # why the log could not be read; it explains nothing then
    beyond: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    untouched: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether the log ends where the quote does, in every quoted register, and there is one."""
        later = [count for registers in self.explained.values() for count in registers.values()]
        return bool(later) and not any(later) and not any(self.unexplained.values())


def explain(events: Sequence[Event], values: Mapping[str, Mapping[int, bytes]]) -> Explanation:
    """Compare quoted `values` (bank to register to value) with the replay of a log. Raises
    MalformedEvidenceError as `replay` does."""
    explained: dict[str, dict[int, int]] = {}
    unexplained, beyond, untouched = (dict[str, tuple[int, ...]]() for _ in range(3))
    for bank, quoted in values.items():
        later: dict[int, int] = {}
        logged = set[int]()
        for register, value in _extensions(events, bank):
            logged.add(register)
            if quoted.get(register) == value:
                later[register] = 0
            elif register in later:
                later[register] += 1
        explained[bank] = later
        untouched[bank] = tuple(sorted(number for number, value in quoted.items()
                                       if number not in logged and _at_reset(value)))
        unexplained[bank] = tuple(sorted(set(quoted) - set(later) - set(untouched[bank])))
        beyond[bank] = tuple(number for number in unexplained[bank] if later and number not in logged)
    return Explanation(explained, unexplained, beyond=beyond, untouched=untouched)


def told(explanation: Explanation, register: str = "PCR") -> list[str]:
    """Say where a log and a quote part, one sentence for each way and bank; nothing where they do
    not."""
    if explanation.problem:
        return [f"the log cannot be read ({explanation.problem}), so it explains no register"]
    found = []
    for bank, numbers in explanation.unexplained.items():
        beyond = explanation.beyond.get(bank, ())
        others = [number for number in numbers if number not in beyond]
        if others:
            found.append(f"this log does not lead to {register} {listed(others)} ({bank})")
        if beyond:
            found.append(f"it has no event of {register} {listed(beyond)} ({bank}), which something extended beyond "
                         "the log")
    for bank, registers in explanation.explained.items():
        later = [number for number, count in sorted(registers.items()) if count]
        if later:
            found.append(f"its last events of {register} {listed(later)} ({bank}) are not in the quote")
    return found


def shifted(explanation: Explanation, by: int) -> Explanation:
    """The same with other register numbers: a CCEL counts RTMRs from 1."""
    def moved(registers: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        return {bank: tuple(number + by for number in numbers) for bank, numbers in registers.items()}

    return Explanation(
        {bank: {number + by: later for number, later in registers.items()}
         for bank, registers in explanation.explained.items()},
        moved(explanation.unexplained), explanation.problem, moved(explanation.beyond), moved(explanation.untouched))


def listed(numbers: Iterable[int]) -> str:
    """Registers for a person: `0, 2, 7`."""
    return ", ".join(str(number) for number in sorted(numbers))


def _at_reset(value: bytes) -> bool:
    """Whether a register was never extended: all zeros, or all ones (the registers of a dynamic
    launch)."""
    return not any(value) or set(value) == {0xFF}


def explained(log: bytes, pcrs: Mapping[str, Mapping[int, bytes]]) -> tuple[tuple[Event, ...], Explanation]:
    """The events of a log, and which quoted registers they explain. The log is untrusted, and is no
    part of the quote: one that cannot be read, or that gives other values, explains nothing and
    refutes nothing."""
    try:
        events = tuple(parse(log))
        return events, explain(events, pcrs)
    except (MalformedEvidenceError, UnsupportedEvidenceError) as error:
        every = {bank: tuple(sorted(values)) for bank, values in pcrs.items()}
        return (), Explanation({}, every, problem=error.summary)
