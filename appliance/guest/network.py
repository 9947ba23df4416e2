"""Bring up the loopback and every Ethernet interface, by DHCP, with ioctls of netdevice(7) and
route(7), and keep what DHCP gave for as long as the machine runs.

An address whose time is over while no server answers is kept until there is another: the network is
the operator's, and with it whether anybody is reached.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from appliance.guest import dhcp

_SIOCADDRT, _SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x890B, 0x8913, 0x8914
_SIOCSIFADDR, _SIOCSIFNETMASK = 0x8916, 0x891C
_UP, _GATEWAY = 0x1, 0x2  # IFF_UP, RTF_GATEWAY
_RTF_UP = 0x1
_ETHERNET = "1"  # ARPHRD_ETHER
_INTERFACES = Path("/sys/class/net")


_AGAIN = 60.0  # seconds after a question that nobody answered (RFC 2131, section 4.4.5)


@dataclass
class _Held:
    """An interface's address, and by the monotonic clock when it ends and when to ask for it again.
    """

    name: str
    hardware: bytes
    lease: dhcp.Lease
    ends: float
    asks: float


class Network:
    """The machine's interfaces."""

    def __init__(self, folder: Path = _INTERFACES) -> None:
        self._folder = folder
        self._held: list[_Held] = []

    def bring_up(self) -> str:
        """Bring every interface up and address it. Returns which got what. An interface without a
        DHCP answer stays without."""
        told = []
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            _flags_up(control, "lo")
            for entry in sorted(self._folder.iterdir()):
                if entry.name == "lo" or (entry / "type").read_text(encoding="ascii").strip() != _ETHERNET:
                    continue
                _flags_up(control, entry.name)
                hardware = bytes.fromhex((entry / "address").read_text(encoding="ascii").strip().replace(":", ""))
                lease = dhcp.ask(entry.name, hardware)
                if lease is not None:
                    configure(control, entry.name, lease)
                    self.hold(entry.name, hardware, lease)
                told.append(f"{entry.name} {lease.address if lease else 'no address'}")
        return ", ".join(told) or "no interface"

    def hold(self, name: str, hardware: bytes, lease: dhcp.Lease) -> None:
        """Remember when a lease must be renewed; one for ever needs nothing."""
        self._held = [held for held in self._held if held.name != name]
        if lease.seconds is not None:
            now = time.monotonic()
            self._held.append(_Held(name, hardware, lease, now + lease.seconds,
                                    now + (lease.renewal or lease.seconds / 2)))

    def rest(self) -> float | None:
        """Seconds until `keep` has something to do; None: never."""
        return min((max(held.asks - time.monotonic(), 0.0) for held in self._held), default=None)

    def keep(self, say: Callable[[str], None]) -> None:
        """Ask for what is due. Changes are said; an answer that the kernel does not take is none.
        """
        for held in [held for held in self._held if held.asks <= time.monotonic()]:
            lease = None
            with contextlib.suppress(OSError):
                lease = self._asked(held, say)
            if lease is None:
                held.asks = time.monotonic() + _AGAIN
            else:
                self.hold(held.name, held.hardware, lease)

    def _asked(self, held: _Held, say: Callable[[str], None]) -> dhcp.Lease | None:
        over = time.monotonic() >= held.ends
        lease = dhcp.ask(held.name, held.hardware) if over else dhcp.renew(held.name, held.hardware, held.lease)
        if lease is not None and (lease.address, lease.mask, lease.router) != (
                held.lease.address, held.lease.mask, held.lease.router):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                configure(control, held.name, lease)
            say(f"network    {held.name} {lease.address} instead of {held.lease.address}")
        return lease


def configure(control: socket.socket, name: str, lease: dhcp.Lease) -> None:
    """Give an interface its address, mask and default route. Raises OSError if the kernel
    refuses."""
    for request, address in ((_SIOCSIFADDR, lease.address), (_SIOCSIFNETMASK, lease.mask)):
        fcntl.ioctl(control, request, struct.pack("16s16s8x", name.encode(), _sockaddr(str(address))))
    if lease.router is not None:
        # struct rtentry: pad, destination, gateway, mask, flags, and what stays zero
        route = struct.pack("8x16s16s16sH62x", _sockaddr("0.0.0.0"), _sockaddr(str(lease.router)),  # noqa: S104
                            _sockaddr("0.0.0.0"), _RTF_UP | _GATEWAY)  # noqa: S104
        try:
            fcntl.ioctl(control, _SIOCADDRT, route)
        except OSError as error:
            if error.errno != errno.EEXIST:  # two interfaces, one router
                raise


def _flags_up(control: socket.socket, name: str) -> None:
    request = struct.pack("16sH22x", name.encode(), 0)
    _, flags = struct.unpack("16sH22x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))
    fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", name.encode(), flags | _UP))


def _sockaddr(address: str) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
