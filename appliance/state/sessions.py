"""Sessions on the state disk: for each model whose policy says `session_persistence`, a shelf for
the pages of its tenants' texts, at the disk's end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from appliance.engine.engine import Engine, PageKind
from appliance.engine.forward.persistence import AHEAD, RESTORING
from appliance.engine.forward.states import pieces
from appliance.engine.forward.trees import TOKENS_NBYTES
from appliance.errors import StateError
from appliance.policy.schema import Model, Policy
from appliance.state import page_format, page_keys
from appliance.state.disk import StateDisk
from appliance.state.page_keys import StateKeys
from appliance.state.pages import QUEUE_BYTES, PageShelf, PageWriter

CLOSING_SECONDS = 10.0  # at the end, for what is on its way to the disk


class SessionModel(Protocol):
    """A model that was loaded."""

    @property
    def policy(self) -> Model:
        """Its part of the policy."""
        ...

    @property
    def engine(self) -> Engine:
        """Its engine."""
        ...

    @property
    def pin(self) -> bytes:
        """SHA-256 of its file, as it was read."""
        ...


class Sessions:
    """The shelves of all models, and the keys of what is on them. Close it before the disk."""

    def __init__(self, disk: StateDisk, models: Iterable[SessionModel], lifetime_ms: int,
                 failed: Callable[[int], None] = lambda models: None) -> None:
        """`failed` is called, from a thread of its own, with the number of models once the disk has
        failed. Raises StateError where the disk has no room, or fails."""
        self._keeper = PageWriter(disk.device)
        wanted = [(each, each.engine.page) for each in models if keeps(each)]
        sizes = [shelf_nbytes(page) for _, page in wanted]
        at = disk.reserve(sum(sizes) + page_format.TABLES_BYTES)
        try:
            self._keys = StateKeys(disk, at + sum(sizes), lifetime_ms, schedule=self._keeper.schedule)
        except OSError as error:
            raise StateError(f"state disk: {error.strerror}", code="state-broken") from None
        self._shelves: dict[str, PageShelf] = {}
        for (model, page), size in zip(wanted, sizes, strict=True):
            self._shelves[model.policy.name] = PageShelf(
                self._keeper, self._keys, binding(model.policy.name, at, model.pin, page.arithmetic), at=at,
                places=page.kept, halves=page.halves, states=page.states, state=page.state_nbytes)
            at += size
        self._failed = failed
        self._keeper.tend, self._keeper.failed = self._keys.tend, self._end
        self._keeper.start()

    @property
    def models(self) -> list[str]:
        """The models whose sessions are kept, by name."""
        return sorted(self._shelves)

    @property
    def word(self) -> str:
        """A sentence for the boot's report; empty where there is nothing to tell."""
        version = self._keys.dropped
        return "" if version is None else (
            f"sessions that an earlier version kept are dropped (format {version}, this one is {page_format.VERSION})")

    def as_json(self) -> dict[str, object]:
        """Plain data for `/health`. `dropped_version`: the format of pages that an earlier version
        left, and that were given up."""
        return {"models": self.models, "failed": self.broken, "dropped_version": self._keys.dropped}

    @property
    def broken(self) -> bool:
        """Whether the disk has failed: texts are read again then, and nothing is kept."""
        return self._keeper.broken

    def shelf(self, model: str) -> PageShelf | None:
        """The shelf of a model; None where it keeps no sessions."""
        return self._shelves.get(model)

    def close(self) -> None:
        """Write what is on its way, note how old the keys are, and forget them. A disk that hangs
        is not waited for."""
        self._keeper.close(self._keys.close, CLOSING_SECONDS)
        self._keys.wipe()

    def wipe(self) -> None:
        """Forget the keys, and write nothing: the process must end then."""
        self._keys.wipe()

    def _end(self) -> None:
        self._keys.wipe()
        self._failed(len(self._shelves))


def shelf_nbytes(page: PageKind) -> int:
    """Bytes of the disk for what is kept of a model's texts."""
    return (page_format.content_nbytes(page.halves) * page.kept
            + page_format.content_nbytes(pieces(page.state_nbytes)) * page.states)


def nbytes(page: int, places: int, state: int = 0) -> int:
    """Bytes of memory that sessions of a model take: pages and states on their way to or from the
    disk, and token ids of all `places`. `page`, `state`: bytes of one."""
    return QUEUE_BYTES + max(page, state) + RESTORING * (AHEAD * page + state) + places * TOKENS_NBYTES


def keeps(model: SessionModel) -> bool:
    """Whether sessions of a model are kept."""
    return model.policy.session_persistence and model.engine.keeps_prefixes


def binding(label: str, at: int, sha256: bytes, arithmetic: str) -> bytes:
    """The binding of the shelf of a model, whose records begin at byte `at`: no other shelf has it.
    `sha256` of the model's file and `arithmetic` are all that the bits of a page depend on, beside
    its text."""
    return page_format.shelf_binding(label, at, f"model {sha256.hex()}\n{arithmetic}".encode("ascii"))


def open_sessions(policy: Policy, disk: StateDisk | None, running: Mapping[str, SessionModel],
                  failed: Callable[[int], None]) -> Sessions | None:
    """The sessions of a policy; None where it keeps none: keys of earlier ones are destroyed then.
    `failed` as for `Sessions`. Raises StateError."""
    lifetime = policy.privacy.retention.sessions_ms
    if disk is None:
        return None
    if lifetime is None or not any(keeps(each) for each in running.values()):
        try:
            page_keys.erase(disk, disk.end - page_format.TABLES_BYTES)
        except OSError as error:
            raise StateError(f"state disk: {error.strerror}", code="state-broken") from None
        return None
    return Sessions(disk, [running[name] for name in sorted(running)], lifetime, failed)
