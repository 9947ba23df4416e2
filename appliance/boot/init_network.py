"""Bring up the loopback and every Ethernet interface, by DHCP, with ioctls of netdevice(7) and route(7)."""

from __future__ import annotations

import fcntl
import socket
import struct
from pathlib import Path

from appliance.boot import dhcp

_SIOCADDRT, _SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x890B, 0x8913, 0x8914
_SIOCSIFADDR, _SIOCSIFNETMASK = 0x8916, 0x891C
_UP, _GATEWAY = 0x1, 0x2  # IFF_UP, RTF_GATEWAY
_RTF_UP = 0x1
_ETHERNET = "1"  # ARPHRD_ETHER
_INTERFACES = Path("/sys/class/net")


def bring_up(folder: Path = _INTERFACES) -> str:
    """Every interface up and addressed; says which got what. An interface without a DHCP answer stays without."""
    told = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        _flags_up(control, "lo")
        for entry in sorted(folder.iterdir()):
            if entry.name == "lo" or (entry / "type").read_text(encoding="ascii").strip() != _ETHERNET:
                continue
            _flags_up(control, entry.name)
            hardware = bytes.fromhex((entry / "address").read_text(encoding="ascii").strip().replace(":", ""))
            lease = dhcp.ask(entry.name, hardware)
            if lease is not None:
                configure(control, entry.name, lease)
            told.append(f"{entry.name} {lease.address if lease else 'no address'}")
    return ", ".join(told) or "no interface"


def configure(control: socket.socket, name: str, lease: dhcp.Lease) -> None:
    """Give an interface its address, mask and default route."""
    for request, address in ((_SIOCSIFADDR, lease.address), (_SIOCSIFNETMASK, lease.mask)):
        fcntl.ioctl(control, request, struct.pack("16s16s8x", name.encode(), _sockaddr(str(address))))
    if lease.router is not None:
        # struct rtentry: pad, destination, gateway, mask, flags, and what stays zero
        route = struct.pack("8x16s16s16sH62x", _sockaddr("0.0.0.0"), _sockaddr(str(lease.router)),  # noqa: S104
                            _sockaddr("0.0.0.0"), _RTF_UP | _GATEWAY)  # noqa: S104
        fcntl.ioctl(control, _SIOCADDRT, route)


def _flags_up(control: socket.socket, name: str) -> None:
    request = struct.pack("16sH22x", name.encode(), 0)
    _, flags = struct.unpack("16sH22x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))
    fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", name.encode(), flags | _UP))


def _sockaddr(address: str) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
