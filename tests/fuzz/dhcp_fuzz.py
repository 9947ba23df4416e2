"""Fuzz target: answers of a DHCP server, which is the host or whoever is on the wire."""

from __future__ import annotations

import ipaddress

from appliance.guest import dhcp

NUMBER, HARDWARE = 0x12345678, bytes.fromhex("525400123456")


def answer(kind: int, *, address: str = "10.0.2.15", options: bytes = b"", number: int = NUMBER) -> bytes:
    """A server's message, as RFC 2131 figure 1 draws it."""
    head = bytes([2, 1, 6, 0]) + number.to_bytes(4, "big") + bytes(8) + ipaddress.IPv4Address(address).packed + bytes(8)
    return (head + HARDWARE + bytes(10) + bytes(192) + b"\x63\x82\x53\x63" + bytes([53, 1, kind])
            + (options or bytes([1, 4, 255, 255, 255, 0, 3, 4, 10, 0, 2, 2, 54, 4, 10, 0, 2, 2])) + b"\xff")


def fuzz(data: bytes) -> None:
    """Parse; whatever is accepted can be given to the kernel."""
    lease = dhcp.parse(data, NUMBER, HARDWARE)
    if lease is None:
        return
    ipaddress.IPv4Network((0, str(lease.mask)))
    if lease.seconds is not None and not 0 < (lease.renewal or 0) < lease.seconds:
        raise AssertionError(f"{lease.seconds} seconds, to be renewed after {lease.renewal}")
    for address in (lease.address, lease.router):
        if address is not None and (address.is_loopback or address.is_multicast or address.is_unspecified):
            raise AssertionError(f"{address} cannot be an interface's or a router's")


def seeds() -> list[bytes]:
    """An offer and an acknowledgement, without and with much padding."""
    return [answer(dhcp.OFFER), answer(dhcp.ACK), answer(dhcp.ACK, options=bytes(200) + bytes([1, 4, 255, 255, 0, 0])),
            answer(dhcp.ACK, options=bytes([51, 4, 0, 0, 0, 60, 58, 4, 0, 0, 0, 30, 1, 4, 255, 255, 0, 0]))]
