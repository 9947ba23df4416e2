"""Serve a booted appliance until it is told to stop: listeners, event loop, signals, drain.

SIGTERM, SIGINT or SIGHUP: no new connections, requests in progress may end within the policy's
`drain_timeout`, exit 0. A second one: whatever still runs is cancelled, exit 0 all the same; the
audit log says what was cut off. Where a pass of a model then does not end, as it waits for a disk
that hangs, it is waited for no longer than `PASS_SECONDS`: memory is wiped, exit 3. So it is where
something else does not end, `LAST_SECONDS` later.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import uvicorn

from appliance.boot.booted import Booted
from appliance.boot.checks import Operator
from appliance.boot.planning import budget
from appliance.errors import AuditError
from appliance.http import protocol, tls
from appliance.http.departures import Departures
from appliance.http.listen import BoundSocket, Door, listen_tcp, listen_unix, listen_vsock
from appliance.http.loop import ServiceLoop, start_threads
from appliance.http.tls import RaTls
from appliance.http.watchdog import Watchdog
from appliance.policy.schema import Listener
from appliance.secure import interrupts, residue
from appliance.secure.interrupts import POLITE
from appliance.service.admission.quotas import Snapshots
from appliance.service.answering.guard import HEAD_BYTES
from appliance.service.app import create
from appliance.service.attesting import checkpoints
from appliance.service.loading.changes import Changes
from appliance.service.parts.readiness import Tell
from appliance.service.parts.wiring import Wiring, assemble

KEEP_ALIVE_SECONDS = 15
PASS_SECONDS = 10.0  # for the pass that is under way when everything was cancelled
LAST_SECONDS = 10.0  # for all else: wiping, the audit log's and the state disk's last records
ABANDONED = 3  # the exit code where it did not end
DRAIN_STEP = 0.05  # seconds from one look at who is still there to the next
Announce = Callable[[list[BoundSocket]], None]


def run(booted: Booted, *, announce: Announce = lambda _: None, tell: Tell = lambda event, **facts: None) -> int:
    """Open the listeners, call `announce`, serve, drain; returns the exit code. `tell` hears of
    what happens meanwhile. BootError when nothing can listen, AttestationError when a listener's
    key cannot be attested."""
    with contextlib.ExitStack() as stack:
        listening, identities = [], {}
        for listener in booted.policy.service.listeners:
            listening.append(_open(listener, booted))
            listening[-1].serves = listener.serves
            stack.callback(listening[-1].close)
        for listener, place in zip(booted.policy.service.listeners, listening, strict=True):
            if (identity := _secure(listener, place, booted)) is not None:
                identities[place.name] = identity
        with interrupts.later():  # a scheduler that nobody closes keeps its engine, which then is not wiped
            service = assemble(booted, stack)
        service.readiness.tell = tell
        for place in listening:
            booted.audit.write("service.listening", listener=place.name, kind=place.kind)
        server = Server(service, listening, tuple(identities.values()))
        Watchdog(booted.policy.service.drain_timeout_ms / 1000 + PASS_SECONDS + LAST_SECONDS, lambda: _end(booted))
        threads = start_threads()
        stack.callback(threads.shutdown)
        if service.timing.windows is not None:
            server.departures = Departures(service.timing.windows)
            stack.callback(server.departures.close)
        residue.keep_what_is_there()
        residue.overwrite_on_free()
        booted.ready()
        for model in service.models.loaded.values():
            model.running.prepare()
        service.facts.identities.update(identities)
        server.announce = lambda: announce(listening)
        with asyncio.Runner(loop_factory=lambda: ServiceLoop(threads)) as runner:
            runner.run(server.serve(sockets=[place.socket for place in listening]))
        with interrupts.later():
            abandoned = _stuck_models(service)
            books = service.books
            tell("stopped", requests=books.answered, refused=books.refusals.total(), refusals=dict(books.refusals),
                 abandoned=abandoned)
            for name in abandoned:
                booted.audit.write("model.abandoned", model=name)
            booted.audit.write("service.stopped", requests=books.answered, refused=books.refusals.total())
            if abandoned:
                _give_up(booted, listening)
    return 0


def _stuck_models(service: Wiring) -> list[str]:
    """Models in which a pass does not end, as where a disk hangs."""
    end = time.monotonic() + PASS_SECONDS
    for model in service.models:
        model.scheduler.close(0)
    return [model.name for model in service.models if not model.scheduler.close(max(end - time.monotonic(), 0))]


def _give_up(booted: Booted, listening: list[BoundSocket]) -> NoReturn:
    """Wipe, and end the process without its other threads, of which one would never end. Should its
    read return while memory is wiped, it finds neither key nor tile, and ends the process a little
    sooner at worst."""
    try:
        booted.close(abandoned=True)
        for place in listening:
            place.close()
    finally:
        os._exit(ABANDONED)


def _end(booted: Booted) -> None:
    """Wipe, and end the process whatever its other threads do."""
    try:
        booted.wipe()
    finally:
        os._exit(ABANDONED)


def _open(listener: Listener, booted: Booted) -> BoundSocket:
    """One listener of the policy, with what the operator was granted to choose."""
    if listener.kind == "unix" and listener.path is not None:
        return listen_unix(listener.name, Path(listener.path))
    if listener.kind == "vsock" or listener.transport == "vsock":
        return listen_vsock(listener.name, listener.port or 0, listener.kind)
    chosen = Operator() if listener.serves == "metrics" else booted.operator
    address = chosen.listen_address or listener.host
    port = listener.port if chosen.listen_port is None else chosen.listen_port
    return listen_tcp(listener.name, address, port or 0, listener.kind)


def _secure(listener: Listener, place: BoundSocket, booted: Booted) -> RaTls | None:
    """Give a TLS listener its key; returns the identity that rotates, if it does."""
    if listener.kind == "tls":
        place.tls = tls.OperatorIdentity(listener, booted.attestor)
    if listener.kind != "ra-tls":
        return None
    identity = RaTls(listener, booted.attestor)
    place.tls = identity
    record(booted, identity)
    return identity


def record(booted: Booted, identity: RaTls) -> None:
    """Write down that a new key is bound."""
    booted.audit.write("generation.new", generation=identity.generation, models=len(booted.models),
                       tls_spki_sha256=identity.spki_sha256.hex())


class Server(uvicorn.Server):
    """uvicorn with our protocol and our signals."""

    def __init__(self, service: Wiring, listening: Sequence[BoundSocket], identities: Sequence[RaTls]) -> None:
        self._service, self._listening, self._identities = service, listening, identities
        self._tasks: list[asyncio.Task[None]] = []
        self._doors: list[Door] = []
        self.departures: Departures | None = None  # which send answers in windows
        self.announce: Callable[[], None] = lambda: None  # called when it listens, and hears what asks it to end
        self._changes = Changes(service)
        self._changes.renew = self._renew
        disk = service.booted.state
        self._keeper = None if disk is None else Snapshots(service.accounts, disk)
        self._guard = create(service, self._changes)
        super().__init__(uvicorn.Config(
            self._guard, http=protocol.Protocol, ws="none", loop="asyncio", interface="asgi3", lifespan="off",
            log_config=None, log_level=None, access_log=False, proxy_headers=False, server_header=False,
            date_header=False, h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_keep_alive=KEEP_ALIVE_SECONDS))

    async def startup(self, sockets: Any = None) -> None:
        """Take over the event loop's way to report exceptions, then accept connections, each
        listener in its way."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._service.booted.silence.asyncio_handler)
        await self.lifespan.startup()
        arrivals = protocol.Arrivals(self.config, self.server_state,
                                     {**self.lifespan.state, "departures": self.departures},
                                     budget.connections(self._service.policy.limits))
        for place in self._listening:
            self._doors.append(Door(place, partial(arrivals, place.serves), handshake=tls.HANDSHAKE_SECONDS,
                                    shutdown=tls.SHUTDOWN_SECONDS,
                                    admit=tls.admission(self._service.policy.service.tls),
                                    count=self._guard.count_connection))
        self._tasks = [loop.create_task(tls.rotate(identity, self._note_renewal)) for identity in self._identities]
        if self._keeper is not None:
            self._tasks.append(loop.create_task(self._keeper.run(self._service.readiness.lose_audit)))
        audit, ready = self._service.audit, self._service.readiness
        self._tasks += map(loop.create_task, (
            checkpoints.make_checkpoints(audit, self._service.policy.audit.checkpoint_interval_ms, ready.lose_audit),
            checkpoints.expire(audit, ready.lose_audit),
            checkpoints.record_counts(audit, ready.ample, ready.lose_audit),
            self._service.books.hold(self._service.policy.privacy.metrics_interval_ms)))
        self.started = True
        self.announce()

    async def _renew(self) -> None:
        """Give each attested listener a new key, whose certificate has evidence of now."""
        for identity in self._identities:
            try:
                await asyncio.to_thread(identity.renew)
            except Exception as error:  # noqa: BLE001 - whatever it was, the listener goes on with the key it has
                self._note_renewal(identity, error)
            else:
                self._note_renewal(identity, None)
            tls.retire_later(identity)

    def _note_renewal(self, identity: RaTls, error: Exception | None) -> None:
        """Record a rotation, or that one failed: the key in use then stays, and another attempt
        follows."""
        if error is not None:
            self._service.booted.silence.exception("asyncio", type(error), error.__traceback__)
            return
        try:
            record(self._service.booted, identity)
        except AuditError as lost:
            self._service.readiness.lose_audit(lost)

    async def shutdown(self, sockets: Any = None) -> None:
        """Drain: stop accepting, let requests in progress end, cancel them when the time is over or
        at a second signal.

        Not as uvicorn does it, which knows whole seconds, and from Python 3.12 on waits for all
        connections to close when a second signal has come, too.
        """
        self._service.readiness.draining = True
        for task in self._tasks:
            task.cancel()
        self._changes.stop()
        in_flight, seconds = self._service.traffic.in_progress, self._service.policy.service.drain_timeout_ms / 1000
        self._service.readiness.tell("draining", in_flight=in_flight, seconds=seconds)
        try:
            self._service.audit.write("service.draining", in_flight=in_flight)
        except AuditError as error:  # those in progress are told so
            self._service.readiness.lose_audit(error)
        for door in self._doors:
            door.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (self.server_state.connections or self.server_state.tasks) and not self.force_exit and loop.time() < end:
            await asyncio.sleep(DRAIN_STEP)
        for task in self.server_state.tasks:
            task.cancel()
        if self._keeper is not None:
            self._keeper.finish()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle what asks the process to end here, and do not raise it again: a drained service
        exits with 0. Later signals are ignored, so that they do not interrupt wiping; and so is
        SIGHUP where it was before (nohup)."""
        deaf = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        numbers = [number for number in POLITE if not (deaf and number == signal.SIGHUP)]
        for number in numbers:
            signal.signal(number, self.handle_exit)
        try:
            yield
        finally:
            for number in numbers:
                signal.signal(number, signal.SIG_IGN)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, give up at the second."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
