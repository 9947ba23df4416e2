"""A pattern as two programs for the `find_spans` kernel: operations on streams, and the walk.

From the end of the pattern to its beginning: the stream of a node and what follows it has a bit at
each position from which both match. The walk reads those streams that tell which choice succeeds,
so it never goes back.

| node | operations on streams | walk |
|---|---|---|
| fixed width | one for what follows, after those that find it, once | move on |
| repeat of fixed width | by doubling: as many as its bounds have bits | run to the last (first) good end |
| repeat of a body with one way to match | a loop of at most as many turns | count turns; planes say how many it needs |
| another repeat | a copy a turn (the policy's bound on cost keeps them few) | a choice a turn |
| alternatives | those of each | choose by halves |
| many parts that may be empty, in a row | where the walk moves on in them | skip by halves |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from re import _constants  # type: ignore[attr-defined]

from appliance.kernels.layouts.search import GIVEN, INSTRUCTIONS, OPERATIONS
from appliance.matching.characters import Ranges, category
from appliance.matching.tree import Alternatives, Assertion, Characters, Node, Repeat, Row

Words = dict[str, int]
Walk = list[Words]
_FEW = 4  # parts that may be empty are passed one by one where there are fewer
ONES, NOWHERE, BEGIN, END, LAST_LINE, BEYOND, ROOT, FORCED = range(len(GIVEN))


@dataclass(frozen=True)
class Program:
    """The programs that the kernel follows. Streams are numbers here."""

    classes: tuple[Ranges, ...]
    operations: tuple[Words, ...]
    walk: tuple[Words, ...]
    streams: int
    loops: int
    root: int

    @property
    def work(self) -> int:
        """Operations on whole streams that a stretch takes at most."""
        total, turns = 0, [1] * len(self.operations)
        for end, each in enumerate(self.operations):
            if each["KIND"] in (OPERATIONS.index("gained"), OPERATIONS.index("again")):
                for index in range(each["BACK"], end + 1):
                    turns[index] *= each["AMOUNT"]
        for each, count in zip(self.operations, turns, strict=True):
            total += count * (1 + each.get("PLANE_COUNT", 0))
        return total


def compile_node(node: Node) -> Program:
    """Return the programs of a whole pattern."""
    classes: dict[Ranges, int] = {}
    _collect(node, classes)
    maker = _Maker(classes)
    whole = maker.before(node, ROOT)
    return Program(tuple(classes), tuple(maker.operations), (*whole.walk, _walk("accept")), maker.streams, maker.loops,
                   whole.stream)


def _collect(node: Node, classes: dict[Ranges, int]) -> None:
    """Number the classes of a pattern, in the order of the streams."""
    if isinstance(node, Characters):
        classes.setdefault(node.ranges, len(GIVEN) + len(classes))
    elif isinstance(node, Assertion):
        for ranges in (category(_constants.CATEGORY_WORD, node.ascii_only), ((10, 11),)):
            classes.setdefault(ranges, len(GIVEN) + len(classes))
    elif isinstance(node, Repeat):
        _collect(node.body, classes)
    else:
        for item in node.items:
            _collect(item, classes)


def _walk(kind: str, **words: int) -> Words:
    return {"KIND": INSTRUCTIONS.index(kind), **words}


@dataclass(frozen=True)
class Continuation:
    """A node and what follows it."""

    stream: int  # where both match
    walk: Walk  # through the node
    moves: int  # the stream of where the walk through the node moves on, if it comes there: ONES for everywhere


@dataclass
class _Maker:
    """Makes the operations; the walk is put together from its parts, as jumps are relative."""

    classes: dict[Ranges, int]
    operations: list[Words] = field(default_factory=list)
    loops: int = 0

    def __post_init__(self) -> None:
        self.streams = len(GIVEN) + len(self.classes)
        self._matched: dict[Node, int] = {}
        self._powers: dict[tuple[int, int], int] = {}

    def _new(self) -> int:
        self.streams += 1
        return self.streams - 1

    def _operation(self, kind: str, a: int, b: int = 0, amount: int = 0, to: int | None = None, **words: int) -> int:
        """Add an operation; its stream, a new one unless `to` says which."""
        to = self._new() if to is None else to
        self.operations.append({"KIND": OPERATIONS.index(kind), "TO": to, "A": a, "B": b, "AMOUNT": amount, **words})
        return to

    def _either(self, a: int, b: int) -> int:
        return b if a == NOWHERE else a if b == NOWHERE else self._operation("either", a, b)

    def _both(self, a: int, b: int) -> int:
        return NOWHERE if NOWHERE in (a, b) else a if b == ONES else self._operation("shifted", a, b)

    def _not(self, stream: int) -> int:
        return self._operation("differ", stream, ONES)

    # --- nodes of fixed width ---------------------------------------------------------------------
    def _fixed(self, node: Node) -> int:
        """The stream of a node of fixed width alone."""
        if node not in self._matched:
            self._matched[node] = self._match(node)
        return self._matched[node]

    def _match(self, node: Node) -> int:
        if isinstance(node, Characters):
            return self.classes[node.ranges]
        if isinstance(node, Assertion):
            return self._place(node)
        if isinstance(node, Repeat):
            return self._power(self._fixed(node.body), node.body.width or 0, node.low)
        if isinstance(node, Alternatives):
            found = self._fixed(node.items[0])
            for item in node.items[1:]:
                found = self._either(found, self._fixed(item))
            return found
        if not node.items:
            return ONES
        found = self._fixed(node.items[-1])
        for item in reversed(node.items[:-1]):
            found = self._operation("shifted", self._fixed(item), found, item.width or 0)
        return found

    def _place(self, node: Assertion) -> int:
        """The stream of a place; from the end on all is possible where text may follow."""
        line = self.classes[((10, 11),)]
        if node.kind is _constants.AT_BEGINNING_STRING or (node.kind is _constants.AT_BEGINNING and not node.lines):
            found = BEGIN
        elif node.kind is _constants.AT_BEGINNING:
            found = self._either(BEGIN, self._operation("previous", line))
        elif node.kind is _constants.AT_END_STRING:
            found = END
        elif node.kind is _constants.AT_END:
            found = self._either(END, line if node.lines else LAST_LINE)
        else:
            word = self.classes[category(_constants.CATEGORY_WORD, node.ascii_only)]
            found = self._operation("differ", word, self._operation("previous", word))
            if node.kind is _constants.AT_NON_BOUNDARY:
                found = self._operation("differ", found, ONES)
        return self._either(found, BEYOND)

    def _power(self, stream: int, width: int, count: int) -> int:
        """`count` times a node of fixed width."""
        if count == 1 or width == 0:
            return stream
        if (stream, count) not in self._powers:
            half = 1 << (count.bit_length() - 1)
            if half == count:
                half //= 2
            first, rest = self._power(stream, width, half), self._power(stream, width, count - half)
            self._powers[stream, count] = self._operation("shifted", first, rest, half * width)
        return self._powers[stream, count]

    def _up_to(self, stream: int, width: int, rest: int, most: int) -> int:
        """0 to `most` times a node of fixed width, then `rest`."""
        found, done = rest, 0
        while done < most:
            more = min(done + 1, most - done)
            longer = self._operation("shifted", self._power(stream, width, more), found, more * width)
            found, done = self._either(found, longer), done + more
        return found

    # --- nodes and what follows -------------------------------------------------------------------
    def before(self, node: Node, rest: int) -> Continuation:
        """A node with the `rest` after it."""
        if node.width is not None:
            found = self._fixed(node)
            moved = [_walk("move", WIDTH=node.width)] if node.width else []
            return Continuation(found if rest == ONES else self._operation("shifted", found, rest, node.width), moved,
                                ONES if node.width else NOWHERE)
        if isinstance(node, Row):
            return self._row(node, rest)
        if isinstance(node, Alternatives):
            return self._halves([self.before(item, rest) for item in node.items])
        if isinstance(node, Repeat):
            return self._repeat(node, rest)
        here = self._either(self._either(END, LAST_LINE), BEYOND)  # $
        return Continuation(self._either(self._operation("shifted", here, rest), FORCED), [], NOWHERE)

    def _row(self, node: Row, rest: int) -> Continuation:
        found: list[Continuation] = []
        for item in reversed(node.items):
            found.insert(0, self.before(item, rest))
            rest = found[0].stream
        walk, group = list[Words](), list[Continuation]()
        for part in found:
            group.append(part)
            if part.moves == ONES:
                walk += self._skippable(group[:-1]).walk + part.walk
                group = []
        last = self._skippable(group)
        return Continuation(rest, walk + last.walk, ONES if any(part.moves == ONES for part in found) else last.moves)

    def _skippable(self, parts: Sequence[Continuation]) -> Continuation:
        """Parts in a row that may all be empty, with one look for those that are; of no stream."""
        if len(parts) < 2:
            return parts[0] if parts else Continuation(NOWHERE, [], NOWHERE)
        first, second = (self._skippable(half) for half in (parts[:len(parts) // 2], parts[len(parts) // 2:]))
        moves, walk = self._either(first.moves, second.moves), first.walk + second.walk
        if len(parts) >= _FEW:
            walk = [_walk("choice", STREAM=moves, NEXT=len(walk) + 1), *walk]
        return Continuation(NOWHERE, walk, moves)

    def _halves(self, parts: Sequence[Continuation]) -> Continuation:
        """Alternatives, chosen by halves."""
        if len(parts) == 1:
            return parts[0]
        first, second = self._halves(parts[:len(parts) // 2]), self._halves(parts[len(parts) // 2:])
        walk = [_walk("choice", STREAM=first.stream, NEXT=len(first.walk) + 2), *first.walk,
                _walk("jump", NEXT=len(second.walk) + 1), *second.walk]
        moves = ONES if first.moves == second.moves == ONES else self._either(
            self._both(first.stream, first.moves), self._both(self._not(first.stream), second.moves))
        return Continuation(self._either(first.stream, second.stream), walk, moves)

    def _repeat(self, node: Repeat, rest: int) -> Continuation:
        if node.body.width:
            return self._run(node, node.body.width, rest)
        if node.single and node.high > 1:
            return self._loop(node, rest)
        return self._copies(node, rest)

    def _run(self, node: Repeat, width: int, rest: int) -> Continuation:
        """A repeat of fixed width."""
        stream = self._fixed(node.body)
        walk = [_walk("run", STREAM=stream, OTHER=rest, WIDTH=width, LOW=node.low, HIGH=node.high, LAZY=int(node.lazy))]
        if node.low:
            found = self._up_to(stream, width, rest, node.high - node.low)
            power = self._power(stream, width, node.low)
            return Continuation(self._operation("shifted", power, found, node.low * width), walk, ONES)
        taken = self._operation("shifted", stream, self._up_to(stream, width, rest, node.high - 1), width)
        return Continuation(self._either(taken, rest), walk, self._not(rest) if node.lazy else taken)

    def _copies(self, node: Repeat, rest: int) -> Continuation:
        """A repeat as copies of its body."""
        found, walk, moves = rest, list[Words](), NOWHERE
        for _ in range(node.high - node.low):
            taken = self.before(node.body, found)
            after = len(taken.walk) + len(walk) + 1
            head = [_walk("choice", STREAM=rest, NEXT=2), _walk("jump", NEXT=after)] if node.lazy else [
                _walk("choice", STREAM=taken.stream, NEXT=after)]
            moves = self._both(self._not(rest) if node.lazy else taken.stream, taken.moves)
            found, walk = self._either(taken.stream, rest), head + taken.walk + walk
        for _ in range(node.low):
            part = self.before(node.body, found)
            found, walk, moves = part.stream, part.walk + walk, part.moves
        return Continuation(found, walk, moves)

    def _loop(self, node: Repeat, rest: int) -> Continuation:
        """A repeat of a body that matches in one way at most: the walk through it needs no look at
        what follows."""
        more, loop, have = node.high - node.low, self._loop_number(), NOWHERE
        body = self.before(node.body, ONES).walk
        planes = [self._operation("differ", ONES, ONES) for _ in range(more.bit_length())]
        found = self._operation("either", rest, rest)
        if more:
            have, turn = self._operation("differ", ONES, ONES), self._loop_number()
            back = len(self.operations)
            taken = self.before(node.body, found).stream
            taken = self._operation("either", taken, taken)  # `gained` writes to it
            self._operation("gained", taken, rest, more, have, PLANES=planes[0], PLANE_COUNT=len(planes), QUEUE=found,
                       LOOP=turn, BACK=back)
        if node.low:
            back = len(self.operations)
            taken = self.before(node.body, found).stream
            self._operation("either", taken, taken, to=found)
            self._operation("again", 0, 0, node.low, 0, LOOP=self._loop_number(), BACK=back)
        test = _walk("test", OTHER=rest, LOW=node.low, HIGH=node.high, LAZY=int(node.lazy), LOOP=loop,
                     PLANES=planes[0] if planes else 0, PLANE_COUNT=len(planes), NEXT=len(body) + 2)
        moves = ONES if node.low else self._not(rest) if node.lazy else have
        return Continuation(found, [_walk("enter", LOOP=loop), test, *body, _walk("jump", NEXT=-len(body) - 1)], moves)

    def _loop_number(self) -> int:
        self.loops += 1
        return self.loops - 1
