"""Serve a booted appliance until it is told to stop: listeners, event loop, signals, drain.

SIGTERM or SIGINT: no new connections, requests in progress may end within the policy's `drain_timeout`, exit 0.
A second one: whatever still runs is cancelled, exit 0 all the same; the audit log says what was cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from appliance.boot.booted import Booted
from appliance.errors import BootError
from appliance.policy.schema import Listener
from appliance.service import protocol
from appliance.service.app import assemble, create
from appliance.service.context import Service
from appliance.service.guard import HEAD_BYTES
from appliance.service.listen import Listening, listen_tcp, listen_unix

KEEP_ALIVE_SECONDS = 15
Announce = Callable[[list[Listening]], None]


def run(booted: Booted, *, announce: Announce = lambda _: None) -> int:
    """Open the listeners, call `announce`, serve, drain; returns the exit code. BootError when nothing can listen."""
    with contextlib.ExitStack() as stack:
        listening = []
        for listener in booted.policy.service.listeners:
            listening.append(_open(listener, booted))
            stack.callback(listening[-1].close)
        service = assemble(booted)
        for model in service.models.values():
            stack.callback(model.scheduler.close, drain=False)
        for place in listening:
            booted.audit.write("service.listening", listener=place.name, kind=place.kind)
        server = Server(service)
        booted.ready()
        service.metrics.ready.set(1)
        announce(listening)
        server.run(sockets=[place.socket for place in listening])
        booted.audit.write("service.stopped", requests=service.answered, refused=service.refused)
    return 0


def _open(listener: Listener, booted: Booted) -> Listening:
    """One listener of the policy, with what the operator was granted to choose."""
    if listener.kind == "tcp":
        chosen = booted.operator
        address = chosen.listen_address or listener.address or "127.0.0.1"
        port = listener.port if chosen.listen_port is None else chosen.listen_port
        return listen_tcp(listener.name, address, port or 0)
    if listener.kind == "unix" and listener.path is not None:
        return listen_unix(listener.name, Path(listener.path))
    raise BootError(f'listener "{listener.name}": {listener.kind} is not enforced by this version',
                    hint='use kind = "tcp" or "unix"', code="not-enforced")


class Server(uvicorn.Server):
    """uvicorn with our protocol and our signals."""

    def __init__(self, service: Service) -> None:
        self._service = service
        drain = service.policy.service.drain_timeout_ms / 1000
        super().__init__(uvicorn.Config(
            create(service), http=protocol.Protocol, ws="none", loop="asyncio", interface="asgi3", lifespan="off",
            log_config=None, log_level=None, access_log=False, proxy_headers=False, server_header=False,
            date_header=False, h11_max_incomplete_event_size=HEAD_BYTES,
            timeout_keep_alive=KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=max(1, round(drain))))

    async def startup(self, sockets: Any = None) -> None:
        """Take over the event loop's way to report exceptions, then accept connections."""
        asyncio.get_running_loop().set_exception_handler(self._service.booted.silence.asyncio_handler)
        await super().startup(sockets=sockets)

    async def shutdown(self, sockets: Any = None) -> None:
        """Drain: stop accepting, let requests in progress end, cancel them when the time is over."""
        self._service.draining = True
        self._service.metrics.ready.set(0)
        self._service.audit.write("service.draining", in_flight=self._service.in_progress)
        await super().shutdown(sockets=sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT here, and do not raise them again: a drained service exits with 0."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, give up at the second."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
