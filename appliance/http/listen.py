"""Listening sockets from the policy: TCP, vsock and Unix. Plain TCP stays on the loopback; TLS
may be reached from elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import BootError
from appliance.http.secured import SecureTransport
from appliance.http.tls import Identity
from appliance.tls import Session

BACKLOG = 256
_OTHER_PORT = "choose another port, or stop what uses this one"
RETRY_SECONDS = 1.0  # where no connection can be accepted for want of files or memory


@dataclass
class BoundSocket:
    """A bound socket and how clients reach it."""

    name: str
    kind: str
    socket: socket.socket
    url: str
    path: Path | None = None
    tls: Identity | None = None
    serves: str = "all"  # which endpoints: a word of the policy

    def close(self) -> None:
        """Close the socket and remove a Unix socket's file."""
        self.socket.close()
        if self.path is not None:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()


class Door:
    """Accepts a listener's connections, one at a time. asyncio's own servers try as often as the
    backlog is long, also where there is no file or memory for one. They report each time, and do it
    all again for each: more and more of them."""

    def __init__(self, place: BoundSocket, protocols: Callable[[], asyncio.Protocol], *, handshake: float,
                 shutdown: float, admit: Callable[[Session], None] | None = None,
                 count: Callable[[str], None] = lambda how: None) -> None:
        """`protocols` makes one for each connection; ConnectionAbortedError drops it. `handshake`
        and `shutdown` are seconds for those of TLS; `admit` judges its sessions. `count` hears of
        each connection that was dropped. Opens at once, in the event loop that runs."""
        self._count = count
        self._socket, self._tls, self._protocols = place.socket, place.tls, protocols
        self._handshake, self._shutdown, self._admit = handshake, shutdown, admit
        self._loop = asyncio.get_running_loop()
        self._later: asyncio.TimerHandle | None = None
        self._begun: set[asyncio.Task[None]] = set()  # the event loop itself holds none
        self._socket.setblocking(False)
        self._open()

    def close(self) -> None:
        """Accept no more."""
        if self._later is not None:
            self._later.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def _open(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        try:
            accepted, _ = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._loop.remove_reader(self._socket)
            self._later = self._loop.call_later(RETRY_SECONDS, self._open)
            self._loop.call_exception_handler({"message": "no connection can be accepted", "exception": error})
            return
        try:
            protocol = self._protocols()
        except ConnectionAbortedError:
            accepted.close()
            self._count("refused")
            return
        task = self._loop.create_task(self._begin(accepted, protocol))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)

    async def _begin(self, accepted: socket.socket, protocol: asyncio.Protocol) -> None:
        try:
            await self._accepted(accepted, protocol)
        except Exception:  # noqa: BLE001 - of a handshake: whoever can reach the port could fill the audit log
            self._count("handshake")

    async def _accepted(self, accepted: socket.socket, protocol: asyncio.Protocol) -> None:
        if self._tls is None:
            await self._loop.connect_accepted_socket(lambda: protocol, accepted)
            return
        secured = SecureTransport(protocol, self._tls.latest, handshake=self._handshake, shutdown=self._shutdown,
                          admit=self._admit)
        await self._loop.connect_accepted_socket(lambda: secured, accepted)
        await secured.ready


def listen_tcp(name: str, address: str, port: int, kind: str = "tcp") -> BoundSocket:
    """Return a TCP socket, on a loopback address if `kind` is plain "tcp"; port 0 takes a free one.
    BootError when it cannot be had."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        raise BootError(f'listener "{name}": not an IP address', hint='write an address such as "127.0.0.1"') from None
    if kind == "tcp" and not ip.is_loopback:
        raise BootError(f'listener "{name}": {ip} can be reached from the network, and the listener is plain TCP',
                        hint="listen on 127.0.0.1 or ::1")
    family = socket.AF_INET6 if ip.version == 6 else socket.AF_INET
    # The protocol is named because asyncio sends small writes at once (TCP_NODELAY) only where it
    # is.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    with _binding(made, name, f"{address} port {port}", _OTHER_PORT):
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if ip.version == 6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((address, port))
    bound = made.getsockname()[1]
    host = f"[{address}]" if ip.version == 6 else address
    return BoundSocket(name, kind, made, f"{'http' if kind == 'tcp' else 'https'}://{host}:{bound}")


def listen_vsock(name: str, port: int, kind: str = "vsock") -> BoundSocket:
    """Bind a vsock socket for this machine's other side, which is the host. BootError when there is
    none."""
    try:
        made = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    except (AttributeError, OSError):
        raise BootError(f'listener "{name}": this machine has no vsock', hint="give the guest a vsock device") from None
    with _binding(made, name, f"vsock port {port}", _OTHER_PORT):
        made.bind((socket.VMADDR_CID_ANY, port))
    return BoundSocket(name, kind, made, f"vsock:{made.getsockname()[1]}")


def listen_unix(name: str, path: Path) -> BoundSocket:
    """Bind a Unix socket that only the appliance's own user may connect to, in place of a dead
    socket of its own."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with _binding(made, name, str(path), "its folder must exist and be writable; remove a dead socket's file"):
            _remove_dead(path)
            made.bind(str(path))
    finally:
        os.umask(before)
    return BoundSocket(name, "unix", made, f"unix:{path}", path)


@contextlib.contextmanager
def _binding(made: socket.socket, name: str, where: str, hint: str) -> Iterator[None]:
    """Listen on a socket that is bound within. If that fails, close it and raise BootError."""
    try:
        yield
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise BootError(f'listener "{name}": cannot listen on {where}: {error.strerror or error}', hint=hint) from None


def _remove_dead(path: Path) -> None:
    """Remove a socket file of ours on which nobody listens."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.geteuid():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
