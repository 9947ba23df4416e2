"""Pages of earlier texts that outlive the process: on a shelf, such as a sealed disk.

The engine knows which pages of which texts are there; the shelf seals, writes, reads and opens
them. Here, too, each tenant has a tree of its own and a fixed share (`trees`). A page is bound to
its whole text by a chain of names: each page's record has the name of the page before it, and no
name is given twice.

    keep      a text's pages are put one by one, as the shelf has room; nobody waits for them
    restore   pages are fetched by the shelf's own threads, and opened into the pages of a slot
    expire    the shelf says which names are alive; a page that is not goes, with all after it
    damaged   a page that does not open is as one that is not there

Where layers have states, a text ends with the last page whose state is on the shelf as well. Its
pages and this state are restored together, or none of them. A state has a place of its own, behind
those of all pages, and the name of its page in place of a text.

Not safe to use from two threads at once.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from appliance.engine.forward.kvcache import KVCache
from appliance.engine.forward.states import KeptStates, StateRooms
from appliance.engine.forward.trees import Ids, Node, TextTree, Trees, shares
from appliance.errors import EngineError
from appliance.kernels.layouts.attention import PAGE

ARITHMETIC = 1  # the version of docs/formats/arithmetic.md: pages of another one hold other bits
AHEAD = 2  # pages of a text that are fetched while one is opened
RESTORING = 4  # texts at most whose pages are fetched at the same time
BURST = 4  # pages that are sealed, or opened, between two passes
_SOON = 0.02  # seconds until a shelf that had no room is asked again


class RecordName(NamedTuple):
    """The name of a page's record: the key it is sealed under, and its number under that key."""

    key: int
    number: int


NOBODY = RecordName(0, 0)
"""The name in place of a page before the first."""


_NO_TOKENS: Ids = np.zeros(PAGE, np.int32)  # of a state


@dataclass(frozen=True, slots=True)
class Entry:
    """A page or a state that is on the shelf."""

    place: int
    name: RecordName
    before: RecordName  # the page before; of a state: its own page
    tenant: str
    tokens: Ids  # (PAGE,)


class Shelf(Protocol):
    """Where pages are kept. Its own threads read and write; the engine's thread seals and opens."""

    @property
    def places(self) -> int:
        """Pages that it has room for."""

    @property
    def state_places(self) -> int:
        """States that it has room for: their places follow those of pages."""

    @property
    def ready(self) -> bool:
        """Whether it takes a page now."""

    @property
    def broken(self) -> bool:
        """Whether it failed, so that nothing is kept or found any more."""

    def entries(self, tenants: Collection[str]) -> Iterable[Entry]:
        """The records that are there, in the order of their names. The token ids of one are wiped
        when the next is asked for."""

    def put(self, place: int, tenant: str, before: RecordName, tokens: Ids,
            content: Sequence[memoryview]) -> RecordName | None:
        """Seal keys and values of a page, or the pieces of a state, to be written soon; None where
        that cannot be just now. To be asked when it is ready."""

    def fetch(self, place: int) -> Future[bytes]:
        """Begin to read a record, which is still sealed."""

    def open(self, record: bytes, place: int, tenant: str, name: RecordName, content: Sequence[memoryview]) -> bool:
        """Open a record into keys and values of a page, or the pieces of a state, which are zeros
        where it does not open."""

    def alive(self, key: int) -> bool:
        """Whether a key is still there."""

    @property
    def next_expiry(self) -> float | None:
        """Seconds until a key goes; None where there is none."""

    def flush(self, seconds: float) -> None:
        """Wait, no longer than that, until what was put is written."""


@dataclass(slots=True)
class Restoration:
    """The pages that a running text is about to get from the shelf."""

    tenant: str
    nodes: deque[Node]  # not asked for yet; with a state, the last one stands here twice
    state: bool = False  # whether the state at the last page's end comes after it
    gained: int = 0  # positions whose pages opened, and that are not part of the text yet
    fetched: deque[tuple[Node, int, RecordName, Future[bytes]]] = field(default_factory=deque)  # with their places

    @property
    def at_state(self) -> bool:
        """Whether what comes next is the state."""
        return self.state and len(self.nodes) + len(self.fetched) == 1

    @property
    def done(self) -> bool:
        """Whether nothing is left."""
        return not self.nodes and not self.fetched

    def wait(self, seconds: float) -> None:
        """Wait until the next page is read, no longer than that."""
        if self.fetched:
            wait([self.fetched[0][-1]], seconds)

    def drop(self) -> None:
        """Ask for no more."""
        for *_, record in self.fetched:
            record.cancel()
        self.nodes.clear()
        self.fetched.clear()


class ShelfPages:
    """The pages that are on a shelf, and those on their way to it."""

    def __init__(self, cache: KVCache, tenants: Collection[str], shelf: Shelf,
                 tokens: Callable[[int], Ids] | None = None, clock: Callable[[], float] = time.monotonic, *,
                 kept: KeptStates | None = None, weights: Mapping[str, int] | None = None) -> None:
        """The shelf's places are divided among `tenants` by their weights. `tokens` gives the token
        ids of a page that is kept in memory; None where none is. `kept`: the states in memory."""
        self._kept = kept
        self._cache, self._shelf, self._tokens, self._clock = cache, shelf, tokens, clock
        self.trees = Trees(shares(shelf.places, tenants, weights or {}), shelf.places, self._let_go)
        self._names: dict[int, RecordName] = {}  # by place, of pages and of states
        self._states = StateRooms(range(shelf.places, shelf.places + shelf.state_places), tenants, weights or {},
                                  lambda place: self._names.pop(place, None))
        self._keys = Counter[int]()  # pages under each key
        self._free: list[int] = []
        self._waiting: deque[tuple[str, Node]] = deque()  # last nodes of texts in memory that are to be put
        self._load(tenants)

    @property
    def page_count(self) -> int:
        """Pages on the shelf, or on their way there, for all tenants."""
        return len(self.trees)

    def _load(self, tenants: Collection[str]) -> None:
        """Take up what is there. A page whose text is not there from its beginning is left out, and
        so is one beyond a tenant's share: the places of these are free."""
        nodes = dict[RecordName, Node]()
        for each in self._shelf.entries(tenants):
            tree = self.trees.of(each.tenant)
            before = None if tree is None else tree.root if each.before == NOBODY else nodes.get(each.before)
            if each.place >= self._shelf.places:
                self._load_state(each, before)
                continue
            if tree is None or before is None or self.trees.child(before, each.tokens) is not None:
                continue
            path = before.path
            if len(path) >= tree.share or (path and before.number < 0):
                continue
            self.trees.touch(tree, path, 0.0)  # so that what makes room is not of this text
            self.trees.make_room(tree)
            nodes[each.name] = self._add(tree, before, each.place, each.name, each.tokens)
            self.trees.touch(tree, [*path, nodes[each.name]], 0.0)
        self._free = sorted(set(range(self._shelf.places)) - self._names.keys(), reverse=True)

    def _load_state(self, entry: Entry, page: Node | None) -> None:
        """Take up the state of a page that is there."""
        if page is not None and page.number >= 0 and self._states.take(entry.tenant, page.number, entry.place):
            self._names[entry.place] = entry.name

    def divide(self, tenants: Collection[str], weights: Mapping[str, int]) -> None:
        """Let `tenants` share the shelf's places by their weights from now on. The texts of others
        go."""
        self.trees.divide(shares(self._shelf.places, tenants, weights))
        self._states.divide(tenants, weights)

    def find(self, tenant: str, tokens: Sequence[int], pages: int) -> Restoration | None:
        """The pages of a text from its page `pages` on that can be restored; None where there are
        none. The pages before count as used."""
        self.expire()
        path = self.trees.find(tenant, tokens, self._clock())
        state = self._cache.states.stride > 0
        if state:
            path = path[:self._states.longest([each.number for each in path])]
        nodes = deque(path[pages:])
        if state:
            nodes.extend(path[-1:])
        return Restoration(tenant, nodes, state) if len(path) > pages else None

    def next_page(self, coming: Restoration, page: Callable[[], int], state: Callable[[], int]) -> bool | None:
        """Restore the next page of a text into that which `page` gives, or its state into that of
        `state`: whether it opened; None where it has not been read yet. A page that does not open
        goes, with those after it."""
        self._fetch(coming)
        if not coming.fetched:
            return False
        at_state = coming.at_state
        node, place, name, record = coming.fetched[0]
        if not record.done():
            return None
        coming.fetched.popleft()
        failed = record.cancelled() or record.exception() is not None
        if self._names.get(place) != name:  # it expired, or another took its place
            return False
        if failed or not self._shelf.open(record.result(), place, coming.tenant, name,
                                          self._cache.states.views(state()) if at_state else self._cache.views(page())):
            self._lose(coming.tenant, node, at_state)
            return False
        coming.gained += 0 if at_state else PAGE
        return True

    def _fetch(self, coming: Restoration) -> None:
        """Begin to read what comes next. Of a text that lost a page, no more is read."""
        while coming.nodes and len(coming.fetched) < AHEAD:
            node = coming.nodes.popleft()
            place = self._states.room(node.number) if coming.state and not coming.nodes else node.number
            if node.number < 0 or place is None:
                if coming.state:
                    coming.drop()  # without its state, no page of it helps
                coming.nodes.clear()
                return
            coming.fetched.append((node, place, self._names[place], self._shelf.fetch(place)))

    def _lose(self, tenant: str, node: Node, state: bool) -> None:
        """Let a page go that does not open, with those after it, or the state of a page."""
        tree = self.trees.of(tenant)
        if state:
            self._states.drop(node.number)
        elif tree is not None:
            self.trees.drop(tree, node)

    def later(self, tenant: str, last: Node) -> None:
        """Put a text that is kept in memory on the shelf when there is time; `last` is its end
        there."""
        if self.trees.of(tenant) is not None and (tenant, last) not in self._waiting:
            self._waiting.append((tenant, last))

    def put(self, tenant: str, tokens: Sequence[int], pages: Sequence[int], seconds: float) -> None:
        """Put the pages of a text at once, as many as the shelf takes in so many seconds."""
        tree, ids = self.trees.of(tenant), np.array(tokens, np.int32)
        if tree is None:
            return
        text = [(page, ids[index * PAGE:(index + 1) * PAGE]) for index, page in enumerate(pages)]
        end = self._clock() + seconds
        while not self._put(tenant, tree, text) and self._clock() < end and not self._shelf.broken:
            self._shelf.flush(_SOON)
        ids[:] = 0

    def work(self) -> float | None:
        """Let go of what expired, and put some of what waits; seconds until there is more to do,
        None where nothing is."""
        self.expire()
        if self._shelf.broken:
            self._waiting.clear()
            return None
        if self._waiting:
            tenant, last = self._waiting[0]
            while last.number < 0 and last.parent is not None:  # its end went from memory, its beginning may be there
                last = last.parent
            tree = self.trees.of(tenant)
            if tree is None or self._put(tenant, tree, [(each.number, None) for each in last.path]):
                self._waiting.popleft()
            return 0.0 if self._shelf.ready and self._waiting else _SOON
        return self._shelf.next_expiry if self._names else None

    def expire(self) -> None:
        """Let go of pages whose key is gone, and of all that continues them."""
        dead = {key for key in self._keys if self._shelf.broken or not self._shelf.alive(key)}
        for tree in self.trees if dead else ():
            for node in list(tree.order.values())[::-1]:
                if node.number >= 0 and self._names[node.number].key in dead:
                    self.trees.drop(tree, node)

    def close(self, seconds: float) -> None:
        """Put what waits, in so many seconds at most, and let everything go. It stays on the
        shelf."""
        end = self._clock() + seconds
        while self._waiting and self._clock() < end:
            self.work()
            self._shelf.flush(_SOON)
        self._waiting.clear()
        self.trees.clear()

    def _put(self, tenant: str, tree: TextTree, text: Sequence[tuple[int, Ids | None]]) -> bool:
        """Put what lacks of a text, given by pages and their tokens, None where they stand in
        memory; whether all of it is there now."""
        node, path, budget, whole = tree.root, list[Node](), BURST, True
        for page, ids in text[:tree.share]:
            chunk = ids if ids is not None else self._in_memory(page)
            child = self.trees.child(node, chunk)
            if child is None:
                if not budget or not self._shelf.ready:
                    whole = False
                    break
                self.trees.make_room(tree)
                before = self._names[node.number] if path else NOBODY
                place = self._free.pop()
                name = self._shelf.put(place, tenant, before, chunk, self._cache.views(page))
                if name is None:
                    self._free.append(place)
                    whole = False
                    break
                child = self._add(tree, node, place, name, chunk)
                budget -= 1
            node = child
            tree.order.move_to_end(node.number)
            path.append(node)
            whole = self._put_state(tenant, node, page) and whole
        self.trees.touch(tree, path, self._clock())
        return whole

    def _put_state(self, tenant: str, node: Node, page: int) -> bool:
        """Put the state that stands beside a page in memory, if the shelf has room and lacks it;
        False where that has to wait."""
        source = None if self._kept is None else self._kept.room(page)
        if source is None or self._states.room(node.number) is not None or not self._states.shares.get(tenant, 0):
            return True
        place = self._states.take(tenant, node.number) if self._shelf.ready else None
        if place is None:
            return False
        name = self._shelf.put(place, tenant, self._names[node.number], _NO_TOKENS, self._cache.states.views(source))
        if name is None:
            self._states.drop(node.number)
            return False
        self._names[place] = name
        return True

    def _in_memory(self, page: int) -> Ids:
        """The token ids of a page in memory."""
        if self._tokens is None:
            raise EngineError("no page is kept in memory")
        return self._tokens(page)

    def _add(self, tree: TextTree, before: Node, place: int, name: RecordName, chunk: Ids) -> Node:
        """A new node, which has a name."""
        self._names[place] = name
        self._keys[name.key] += 1
        return self.trees.add(tree, before, place, chunk)

    def _let_go(self, node: Node) -> None:
        self._states.drop(node.number)
        self._free.append(node.number)
        key = self._names.pop(node.number).key
        self._keys[key] -= 1
        if not self._keys[key]:
            del self._keys[key]
