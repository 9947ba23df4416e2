"""How a policy's models share the memory: reckoned before anything is loaded, and carried out as
reckoned.

First everything gets the least with which it runs: weights streamed where the policy allows it, one
slot of keys and values, passes of a few rows. If that is too much, the boot is refused with the
sum. Then, step by step, slots become more and passes grow, and what is left keeps weights resident.
The steps, and the room from which each is taken, do not depend on the room that there is. Weights
leave room for the next step. So nothing becomes less with more memory, and speed rises without a
step.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from appliance.boot.planning import machine
from appliance.boot.planning.footprint import Footprint, Line, Share, mebibytes, needed, read, there
from appliance.engine.forward.forward import ROWS, most_slots
from appliance.errors import BootError
from appliance.kernels.runtime import quota
from appliance.models.catalogue import Catalogue
from appliance.policy import Policy
from appliance.policy.schema import Limits, Model

PROCESS_BYTES = 92 << 20
"""What the process takes beside models, connections and requests, measured with kernels compiled ahead:
interpreter, libraries, service, thread stacks, and what the kernel keeps for it."""

COMPILER_BYTES = 260 << 20
"""As much more where kernels are compiled as they are needed."""

CONNECTIONS = 1024  # most open connections, over all listeners
_CONNECTIONS_BESIDE = 128  # beside two for each request that may be in progress, and one for each that may wait
_FILES = 64  # beside those: a served model has some ten open, and evidence takes a few for a while
_CONNECTION_BYTES = 96 << 10  # of buffers and objects of each, with a part of a request that waits
_REQUEST_BYTES = 256 << 10  # of Python objects of one request that runs or waits, beside its body
_TOKEN_BYTES = 64  # of each token of a request's prompt: a number, and its place in two or three lists
_CHARACTER_BYTES = 4  # of text that waits to be tokenized, where one of its characters is beyond U+FFFF
_ANSWER_TOKEN_BYTES = 160  # of each token of an answer, in lists, counts and what waits for its client, beside its text
_KEY_BYTES = 72 << 10  # of an API key whose limits' windows are full
_ENTRY_BYTES = 16  # of each log-probability of an answer's token, where the policy allows them
_EVENT_BYTES = 768 << 10  # of an event with many log-probabilities: three may be there where a grid is kept
_SWEPT_BYTES = 112 << 10  # of an answer's stop strings that are looked for by sweeps, and of what waits for one
_LOOK_BYTES = 24 << 20  # of tables and memory of looks at texts that redaction may change
_READING_SHARE = 48  # bytes for each of a body's, while it is read: lists in lists take that much
_LETTER_BYTES = 200  # of each letter of a prompt, while it is tokenized: a long word takes that much
_SPARE_BYTES = 64 << 20  # stay free, whoever else may want them
_SPARE_SHARE = 4  # one part in this many of what is left stays free besides
_SHORT_BYTES, _SHORT_SHARE = 24 << 20, 32  # the same, where passes would else wait for a disk
_UNKNOWN = 1 << 62  # bytes of a machine that does not say what it has: nobody is kept short
_LEAST_ROWS = 32  # of a pass; the engine wants no fewer
_ROWS_SHARE = 6  # activations grow up to one part in this many of the memory
_CACHED_SHARE = 64  # one part in this many is left to the page cache, through which weights are streamed
_CACHE_SHARE = 4  # keys and values of all models up to one part in this many; one slot of each is always made


@dataclass(frozen=True, slots=True)
class Division:
    """Divide `room` bytes (None: unknown, so nobody is kept short). `refusal`: why it does not
    suffice."""

    shares: Mapping[str, Share]
    lines: tuple[Line, ...]
    room: int | None
    refusal: str | None = None

    reasons: Mapping[str, str] = field(default_factory=dict)
    later: int = 0  # bytes of the lines that are needed after loading only: connections and requests

    @property
    def nbytes(self) -> int:
        """Bytes of all lines."""
        return sum(line.nbytes for line in self.lines)


def room(policy: Policy) -> int | None:
    """Bytes for everything: the least of the policy's budget and what this machine gives; None if
    neither is known."""
    known = (policy.tee.memory_budget_bytes, machine.available_memory())
    return min((size for size in known if size is not None), default=None)


def divide(policy: Policy, catalogue: Catalogue, room: int | None, *, models: Sequence[Model] | None = None,
           beside: Mapping[str, Share] | None = None, compiles: bool = False, threads: int | None = None) -> Division:
    """Divide `room` among the models that the policy has loaded at boot (or those of `models`).
    `beside`: the shares of models that are loaded already, and keep them. `compiles`: kernels are
    compiled as needed."""
    prints = [read(model, policy, catalogue) for model in (policy.at_boot if models is None else models)]
    loaded = [(read(model, policy, catalogue), beside[model.name]) for model in policy.models
              if beside and model.name in beside]
    cpus = quota.cpus() if threads is None else threads
    return _Divider(policy, prints, room, compiles, cpus, loaded).division()


def fitting(policy: Policy, catalogue: Catalogue, *, models: Sequence[Model] | None = None,
            compiles: bool = False) -> Division:
    """Divide what this machine has now. BootError where it does not suffice, with the sum."""
    found = divide(policy, catalogue, room(policy), models=models, compiles=compiles)
    if found.refusal is not None:
        raise BootError(f"memory: {found.refusal}", code="memory", hint="give the machine more memory, or lower the "
                        "policy's context_length, limits or number of models; `appliance plan-memory` shows the sum")
    return found


def hold(policy: Policy, division: Division) -> None:
    """With everything loaded and all threads started: let the kernel refuse what would take the
    process beyond `tee.memory_budget`.

    All that was reckoned is allocated, so what may still come is what the budget leaves. No thread
    can count on a stack from here on: it would be allocated whole. OSError or ValueError where the
    kernel refuses the limit.
    """
    budget = policy.tee.memory_budget_bytes
    if budget is not None:
        machine.limit_growth(max(budget - division.nbytes, 0) + division.later)


def allow_files(limits: Limits) -> None:
    """Let the process have as many files open as all connections and its own take. BootError where
    it may not: whoever can reach the port could take those away that evidence is collected with."""
    needed = connections(limits) + _FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != hard < needed:
        raise BootError(f"{needed} files may be open at the same time, {needed - _FILES} of them connections; the "
                        f"limit allows {hard}", code="files", hint="raise it (LimitNOFILE in systemd, `--ulimit "
                        "nofile` of a container, RLIMIT_NOFILE), or lower limits.concurrent_requests")
    if resource.RLIM_INFINITY != soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def allow_time() -> None:
    """Let the process use processor time without end. BootError where it may not: the kernel would
    end it without a word, in the middle of answers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard != resource.RLIM_INFINITY:
        raise BootError(f"the process is ended after {hard} seconds of processor time", code="cpu-time", hint="allow "
                        "it all (ulimit -t unlimited, LimitCPU=infinity in systemd, `--ulimit cpu=-1` of a container, "
                        "RLIMIT_CPU)")
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_CPU, (hard, hard))


def connections(limits: Limits) -> int:
    """How many connections there may be at the same time, those in a TLS handshake included."""
    return min(CONNECTIONS, _CONNECTIONS_BESIDE + 2 * limits.concurrent_requests + (limits.queued_requests or 0))


def queue_length(limits: Limits) -> int:
    """How many requests may wait beside those in progress: each has a connection."""
    return min(limits.queued_requests or 0, connections(limits))


def _answer_nbytes(policy: Policy, tokens: int, longest: int) -> int:
    """Bytes of an answer of so many tokens, of up to `longest` characters each, whose client does
    not read."""
    logged = max((model.sampling.max_logprobs for model in policy.models), default=0)
    entries = _ENTRY_BYTES * (1 + logged) if logged else 0
    event = policy.privacy.size_padding_bytes or 0
    event += _EVENT_BYTES if logged and policy.privacy.timing_padding is not None else 0
    event += _SWEPT_BYTES if policy.privacy.memory_access == "oblivious" else 0
    return tokens * (_ANSWER_TOKEN_BYTES + _CHARACTER_BYTES * longest + entries) + event


@dataclass(frozen=True, slots=True)
class _Step:
    """The division from a room of `room` bytes on; all lines together are `taken` bytes then."""

    room: int
    taken: int
    rows: int
    slots: tuple[int, ...]  # of each model


def _last(steps: Sequence[_Step], room: int) -> _Step:
    return [step for step in steps if step.room <= room][-1]


def _left(steps: Sequence[_Step], step: _Step, room: int, *, cached: bool = False) -> int:
    """The room that a step leaves, but no more than each later one leaves of its own; with
    `cached`, the page cache has its part of that."""
    later = [(each.room, each.taken) for each in steps if each.room > room]
    return max(0, min(size - taken - (size // _CACHED_SHARE if cached else 0)
                      for size, taken in ((room, step.taken), *later)))


class _Divider:
    def __init__(self, policy: Policy, prints: Sequence[Footprint], room: int | None, compiles: bool,
                 threads: int, loaded: Sequence[tuple[Footprint, Share]] = ()) -> None:
        self._limits, self._prints, self._threads = policy.limits, prints, threads
        self._loaded = [line for each, share in loaded for line in each.lines(share, threads)]
        prints = [*prints, *(each for each, _ in loaded)]
        self._known, self._room, self._compiles = room, _UNKNOWN if room is None else room, compiles
        self._keys = sum(len(tenant.api_key_sha256) for tenant in policy.tenants.tenants)
        longest = max((each.longest_token for each in prints), default=0)
        self._letters = min(self._limits.request_size_bytes, self._limits.prompt_tokens * longest)  # of a prompt
        context = max((each.context for each in prints), default=_UNKNOWN)
        shifting = any(each.model.context_shift for each in prints)  # its answers may be longer than its context
        most = self._limits.generation_tokens
        privacy = policy.privacy
        redacts = privacy.redaction.detectors or privacy.redaction.patterns
        self._looks = _LOOK_BYTES if privacy.memory_access == "oblivious" and redacts else 0
        self._answer = _answer_nbytes(policy, most if shifting else min(most, context), longest)

    def division(self) -> Division:
        """The most that fits."""
        least = {each.name: Share(1, _LEAST_ROWS, None if each.streaming is False else 0, foreign=each.foreign)
                 for each in self._prints}
        nbytes = self._total(least)
        if nbytes > self._room:
            return self._refused(least)
        whole = {each.name: replace(least[each.name], resident=0 if each.streaming is True else None)
                 for each in self._prints}
        streamed = self._steps(nbytes)
        resident = self._resident(streamed, self._total(whole) - nbytes)
        if self._room >= resident[0].room:
            step = _last(resident, self._room)
            return self._made(self._with_records(self._given(whole, step), _left(resident, step, self._room)))
        step, streamed = _last(streamed, self._room), [each for each in streamed if each.room < resident[0].room]
        shares = self._with_weights(self._given(least, step), _left(streamed, step, self._room, cached=True))
        return self._made(self._with_records(
            shares, min(_left(streamed, step, self._room), self._room // _CACHED_SHARE)))

    def _steps(self, nbytes: int) -> list[_Step]:
        """From the least, which takes so many bytes, to the most. Passes get wider for all models,
        as long as they take no more than their part and prompts may fill them. Each gets more
        slots, as many as its part for keys and values holds. In the order in which a growing room
        has these parts."""
        rows, most = [_LEAST_ROWS], min(ROWS, self._limits.prompt_tokens * self._limits.concurrent_requests)
        while rows[-1] < most:
            rows.append(2 * rows[-1])
        wide = {number: sum(each.activations(number, self._threads) for each in self._prints) for number in rows}
        caches = [[each.cache(slots) for slots in range(most_slots(rows[-1]) + 1)] for each in self._prints]
        wanted = [(_ROWS_SHARE * wide[number], -1, number) for number in rows[1:]]
        for index, sizes in enumerate(caches):
            for slots in range(2, min(self._limits.concurrent_requests, len(sizes) - 1) + 1):
                narrow = next(number for number in rows if slots <= most_slots(number))
                wanted.append((max(_CACHE_SHARE * len(caches) * sizes[slots],
                                   0 if narrow == rows[0] else _ROWS_SHARE * wide[narrow]), index, slots))
        found = [_Step(nbytes, nbytes, rows[0], (1,) * len(caches))]
        for part, index, number in sorted(wanted):
            last = found[-1]
            if index < 0:
                taken = last.taken + wide[number] - wide[last.rows]
                step = replace(last, rows=number)
            else:
                taken = last.taken + caches[index][number] - caches[index][number - 1]
                step = replace(last, slots=(*last.slots[:index], number, *last.slots[index + 1:]))
            found.append(replace(step, room=max(last.room, part, taken), taken=taken))
        return found

    def _resident(self, steps: list[_Step], more: int) -> list[_Step]:
        """The steps with all weights that may be resident, which take so many bytes more: from the
        first on that there is room for before the next one is taken. Models that stream beside keep
        their part."""
        mixed = {each.streaming for each in self._prints} >= {True, "auto"}
        found = []
        for step in steps:
            taken = step.taken + more
            beside = -(-taken // (_CACHED_SHARE - 1)) if mixed else 0
            found.append(replace(step, taken=taken, room=max(step.room, taken + beside)))
        first = next((index for index, step in enumerate(steps[1:]) if found[index].room < step.room), len(steps) - 1)
        return found[first:]

    def _given(self, shares: Mapping[str, Share], step: _Step) -> Mapping[str, Share]:
        return {each.name: replace(shares[each.name], rows=step.rows, slots=slots)
                for each, slots in zip(self._prints, step.slots, strict=True)}

    def _with_weights(self, shares: Mapping[str, Share], left: int) -> Mapping[str, Share]:
        """So many bytes for weights of the models that may keep some, in proportion to their size.
        """
        sizes = {each.name: each.weights for each in self._prints if each.streaming == "auto"}
        whole = max(sum(sizes.values()), 1)  # a file need not have any matrix: loading says what it lacks
        return {name: replace(share, resident=min(sizes[name], left * sizes[name] // whole)) if name in sizes else share
                for name, share in shares.items()}

    def _with_records(self, shares: Mapping[str, Share], left: int) -> Mapping[str, Share]:
        """Of so many bytes, room for the records of models that must be streamed, so that no pass
        waits for a disk."""
        sizes = {each.name: each.records for each in self._prints
                 if each.model.streaming_decrypt is True and each.records}
        whole = sum(sizes.values())
        short = min(left, whole)
        room = max(left - _SPARE_BYTES - left // _SPARE_SHARE, short - _SHORT_BYTES - short // _SHORT_SHARE, 0)
        made = {name: replace(share, kept=min(sizes[name], room * sizes[name] // whole) if name in sizes else 0)
                for name, share in shares.items()}
        read = {each.name: each.readable_ahead - made[each.name].kept - (made[each.name].resident or 0)
                for each in self._prints if made[each.name].resident is not None}
        missing = sum(read.values()) > self._room - self._total(made)
        return {name: replace(share, drop=missing and read.get(name, 0) > 0) for name, share in made.items()}

    def _lines(self, shares: Mapping[str, Share]) -> list[Line]:
        requests, waiting = self._limits.concurrent_requests, queue_length(self._limits)
        lines = [Line("process", PROCESS_BYTES + (COMPILER_BYTES if self._compiles else 0) + self._looks),
                 Line(f"connections, {connections(self._limits)} x", self._connections()),
                 Line(f"requests, {requests} x", self._requests()),
                 *([Line(f"requests that wait, {waiting} x", self._waiting())] if waiting else []),
                 Line(f"answers, {requests} x", requests * self._answer)]
        lines += self._loaded
        for each in self._prints:
            lines += each.lines(shares[each.name], self._threads)
        loading = max((each.loading(shares[each.name]) for each in self._prints), default=0)
        return [*lines, Line("loading, then reading a request, one at a time", max(loading, self._reading()))]

    def _connections(self) -> int:
        return connections(self._limits) * _CONNECTION_BYTES

    def _requests(self) -> int:
        """Those in progress; beside their own tokens, text of as many requests, in progress or not.
        """
        text = max(self._limits.request_size_bytes, _CHARACTER_BYTES * self._letters)
        return self._limits.concurrent_requests * (text + self._tokens()) + self._keys * _KEY_BYTES

    def _waiting(self) -> int:
        """Those that wait hold tokens, and no text."""
        return queue_length(self._limits) * self._tokens()

    def _tokens(self) -> int:
        """The bytes of a request whose prompt is tokens."""
        return _REQUEST_BYTES + _TOKEN_BYTES * min(self._limits.prompt_tokens, self._limits.request_size_bytes)

    def _reading(self) -> int:
        """The bytes that reading the longest body takes for a while, and tokenizing the longest
        prompt."""
        return _READING_SHARE * self._limits.request_size_bytes + _LETTER_BYTES * self._letters

    def _total(self, shares: Mapping[str, Share]) -> int:
        return sum(line.nbytes for line in self._lines(shares))

    def _made(self, shares: Mapping[str, Share]) -> Division:
        return Division(shares, tuple(self._lines(shares)), self._known,
                        reasons={each.name: each.reason(shares[each.name], self._known) for each in self._prints},
                        later=self._connections() + self._requests() + self._waiting() + self._reading()
                        + self._limits.concurrent_requests * self._answer)

    def _refused(self, shares: Mapping[str, Share]) -> Division:
        made = self._made(shares)
        said = ", ".join(f"{mebibytes(line.nbytes)} {line.what}" for line in made.lines)
        return replace(made, refusal=f"{needed(made.nbytes)} are needed, there are {there(self._room)}: {said}")
