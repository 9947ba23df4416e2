"""A DHCP client that asks for an address, a mask, a router and how long they hold (RFC 2131,
options of RFC 2132), and nothing else.

The answer comes from the host, so it decides only how packets travel; every other option is
ignored.
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import socket
import struct
import time
from dataclasses import dataclass

_SERVER, _CLIENT = 67, 68
_MAGIC = b"\x63\x82\x53\x63"
# op, hardware type and length, hops, transaction, seconds, flags, 4 addresses, hardware address,
# names
_HEADER = struct.Struct("!BBBBIHH4s4s4s4s16s192x")
_REQUEST, _REPLY, _ETHERNET, _BROADCAST = 1, 2, 1, 0x8000
DISCOVER, OFFER, ASK, ACK = 1, 2, 3, 5
_PAD, _MASK, _ROUTER, _REQUESTED, _SECONDS, _TYPE, _SERVER_ID, _PARAMETERS, _RENEWAL, _END = (
    0, 1, 3, 50, 51, 53, 54, 55, 58, 255)
_FOREVER = 0xFFFFFFFF  # RFC 2131, section 3.3
TRIES, SECONDS = 4, 3.0
LARGEST = 1500
SHORTEST = 20  # seconds: a host that gives less is asked no more often


@dataclass(frozen=True)
class Lease:
    """The settings that an interface is given."""

    address: ipaddress.IPv4Address
    mask: ipaddress.IPv4Address
    router: ipaddress.IPv4Address | None
    server: ipaddress.IPv4Address | None
    kind: int  # OFFER or ACK
    seconds: int | None = None  # None: for ever
    renewal: int | None = None  # after so many seconds the server is asked to go on


def ask(interface: str, hardware: bytes) -> Lease | None:
    """Return a lease for an interface that is up, or None when nobody answers."""
    with _socket(interface) as client:
        for _ in range(TRIES):
            number = secrets.randbits(32)
            offer = _exchange(client, message(DISCOVER, number, hardware), number, hardware, OFFER)
            if offer is not None:
                lease = _exchange(client, message(ASK, number, hardware, offer), number, hardware, ACK)
                if lease is not None:
                    return lease
    return None


def renew(interface: str, hardware: bytes, held: Lease) -> Lease | None:
    """Return the same lease for longer: its server is asked, then, as RFC 2131 has it for later,
    whoever hears it. None when nobody agrees."""
    with _socket(interface) as client:
        for server in (*([held.server] if held.server else []), None):
            number = secrets.randbits(32)
            with contextlib.suppress(OSError):  # no way to that server
                lease = _exchange(client, message(ASK, number, hardware, held=held), number, hardware, ACK, server)
                if lease is not None:
                    return lease
    return None


def _socket(interface: str) -> socket.socket:
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    client.bind(("", _CLIENT))
    return client


def message(kind: int, number: int, hardware: bytes, offer: Lease | None = None, held: Lease | None = None) -> bytes:
    """Return a DISCOVER, a REQUEST for what was offered, or one for what is held (RFC 2131, table
    5: then the address stands in the header, and neither it nor the server is an option)."""
    options = bytes([_TYPE, 1, kind, _PARAMETERS, 2, _MASK, _ROUTER])
    if offer is not None:
        options += bytes([_REQUESTED, 4]) + offer.address.packed
        if offer.server is not None:
            options += bytes([_SERVER_ID, 4]) + offer.server.packed
    none, mine = bytes(4), held.address.packed if held else bytes(4)
    return _HEADER.pack(_REQUEST, _ETHERNET, len(hardware), 0, number, 0, 0 if held else _BROADCAST, mine, none, none,
                        none, hardware) + _MAGIC + options + bytes([_END])


def parse(data: bytes, number: int, hardware: bytes) -> Lease | None:
    """Return the lease in an answer to this transaction; None for anything else, malformed or
    not."""
    if not _HEADER.size + 4 <= len(data) <= LARGEST or data[_HEADER.size:_HEADER.size + 4] != _MAGIC:
        return None
    op, _, length, _, transaction, _, _, _, yours, _, _, chaddr = _HEADER.unpack_from(data)
    if op != _REPLY or transaction != number or length != len(hardware) or chaddr[:length] != hardware:
        return None
    options = _options(data[_HEADER.size + 4:])
    if options is None or len(options.get(_TYPE, b"")) != 1:
        return None
    mask = _address(options.get(_MASK))
    address = ipaddress.IPv4Address(yours)
    if mask is None or not _usable(address) or not _is_mask(mask):
        return None
    router = _address(options.get(_ROUTER))
    seconds = _duration(options.get(_SECONDS))
    renewal = _duration(options.get(_RENEWAL))
    if seconds is not None and (renewal is None or renewal >= seconds):
        renewal = seconds // 2
    return Lease(address, mask, router if router and _usable(router) else None, _address(options.get(_SERVER_ID)),
                 options[_TYPE][0], seconds, None if seconds is None else renewal)


def _exchange(client: socket.socket, question: bytes, number: int, hardware: bytes, kind: int,
              server: ipaddress.IPv4Address | None = None) -> Lease | None:
    client.sendto(question, (str(server or "255.255.255.255"), _SERVER))
    until = time.monotonic() + SECONDS
    while (left := until - time.monotonic()) > 0:
        client.settimeout(left)
        try:
            data = client.recv(LARGEST + 1)
        except TimeoutError:
            return None
        lease = parse(data, number, hardware)
        if lease is not None and lease.kind == kind:
            return lease
    return None


def _options(data: bytes) -> dict[int, bytes] | None:
    """Code -> value; the first of a code counts. None when they are cut off."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data) and data[at] != _END:
        if data[at] == _PAD:
            at += 1
            continue
        if at + 2 > len(data) or at + 2 + data[at + 1] > len(data):
            return None
        found.setdefault(data[at], data[at + 2:at + 2 + data[at + 1]])
        at += 2 + data[at + 1]
    return found


def _address(value: bytes | None) -> ipaddress.IPv4Address | None:
    return ipaddress.IPv4Address(value[:4]) if value is not None and len(value) >= 4 else None


def _duration(value: bytes | None) -> int | None:
    """Seconds, no less than the shortest; None for ever, or where nothing is said."""
    if value is None or len(value) != 4 or (seconds := int.from_bytes(value, "big")) == _FOREVER:
        return None
    return max(seconds, SHORTEST)


def _usable(address: ipaddress.IPv4Address) -> bool:
    return not (address.is_loopback or address.is_multicast or address.is_unspecified or address.is_reserved)


def _is_mask(mask: ipaddress.IPv4Address) -> bool:
    inverted = ~int(mask) & 0xFFFFFFFF
    return inverted & (inverted + 1) == 0 and int(mask) != 0
