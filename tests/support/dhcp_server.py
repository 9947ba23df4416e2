"""A DHCP server on a wire of its own: Ethernet frames in UDP datagrams, as QEMU's `-netdev socket,udp=` sends them.

Written from RFC 2131, RFC 826 and RFC 791 alone; leases are short, and each question is kept.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import threading

MINE, GUEST = ipaddress.IPv4Address("10.9.0.1"), ipaddress.IPv4Address("10.9.0.7")
HARDWARE = bytes.fromhex("52549a9a9a9a")


def _sum(data: bytes) -> int:
    """RFC 1071."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


class Wire:
    """Use it as a context; `words` are QEMU's, `questions` the (type, client address, destination) seen so far."""

    def __init__(self, seconds: int) -> None:
        self._seconds, self.questions = seconds, list[tuple[int, str, str]]()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            self._guest = free.getsockname()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def words(self) -> tuple[str, ...]:
        """A second network card on this wire."""
        return ("-netdev", f"socket,id=wire,udp=127.0.0.1:{self._socket.getsockname()[1]},localaddr=127.0.0.1:"
                f"{self._guest[1]}", "-device", "virtio-net-pci,netdev=wire,romfile=")

    def __enter__(self) -> Wire:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                frame = self._socket.recv(2048)
            except OSError:
                return
            kind = frame[12:14]
            answer = self._arp(frame) if kind == b"\x08\x06" else self._ip(frame) if kind == b"\x08\x00" else None
            if answer is not None:
                self._socket.sendto(frame[6:12] + HARDWARE + kind + answer, self._guest)

    @staticmethod
    def _arp(frame: bytes) -> bytes | None:
        if frame[20:22] != b"\x00\x01" or frame[38:42] != MINE.packed:
            return None
        return frame[14:20] + b"\x00\x02" + HARDWARE + MINE.packed + frame[22:32]

    def _ip(self, frame: bytes) -> bytes | None:
        if frame[14] != 0x45 or frame[23] != 17 or frame[36:38] != b"\x00\x43":
            return None
        asked, target = frame[42:], ipaddress.IPv4Address(frame[30:34])
        options = dict[int, bytes]()
        at = 240
        while asked[at] != 255:
            options[asked[at]] = asked[at + 2:at + 2 + asked[at + 1]]
            at += 2 + asked[at + 1]
        self.questions.append((options[53][0], str(ipaddress.IPv4Address(asked[12:16])), str(target)))
        reply = (b"\x02" + asked[1:4] + asked[4:8] + bytes(4) + asked[12:16] + GUEST.packed + bytes(8) + asked[28:44]
                 + bytes(192) + asked[236:240] + bytes([53, 1, 2 if options[53] == b"\x01" else 5, 54, 4]) + MINE.packed
                 + bytes([51, 4]) + self._seconds.to_bytes(4, "big") + bytes([1, 4, 255, 255, 255, 0, 255]))
        head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28 + len(reply), 0, 0, 64, 17, 0, MINE.packed, b"\xff" * 4)
        head = head[:10] + struct.pack("!H", _sum(head)) + head[12:]
        return head + struct.pack("!HHHH", 67, 68, 8 + len(reply), 0) + reply
