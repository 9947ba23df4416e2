"""A vsock device on a host without vhost_vsock: the other side of QEMU's `vhost-user-vsock-pci`, which carries TCP
connections of the loopback to one vsock port of the guest.

Written from QEMU's docs/interop/vhost-user.rst and the virtio 1.2 specification: sections 2.7 (split virtqueues) and
5.10 (socket device).
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import selectors
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

GUEST, HOST = 3, 2  # context identifiers
_REQUEST, _RESPONSE, _RST, _SHUTDOWN, _RW, _CREDIT_UPDATE, _CREDIT_REQUEST = range(1, 8)
_HEADER = struct.Struct("<QQIIIHHIII")  # virtio_vsock_hdr
_ROOM = 1 << 24  # bytes that we say we can take
_VERSION_1, _PROTOCOL_FEATURES, _CONFIG = 1 << 32, 1 << 30, 1 << 9


@dataclass
class _Region:
    guest: int
    size: int
    user: int
    offset: int
    memory: mmap.mmap


@dataclass
class _Queue:
    size: int = 0
    desc: int = 0
    used: int = 0
    avail: int = 0
    last: int = 0
    call: int = -1


@dataclass
class _Stream:
    tcp: socket.socket
    taken: int = 0  # bytes from the guest


class Device:
    """The device. `words` are QEMU's, for a machine of `memory` MiB; `port` leads to the guest's `guest_port`."""

    def __init__(self, folder: Path, memory: int, guest_port: int) -> None:
        self._path, self._memory, self._guest_port = folder / "vsock", memory, guest_port
        self._regions, self._queues = list[_Region](), (_Queue(), _Queue())  # to the guest, from it
        self._streams, self._waiting = dict[int, _Stream](), list[bytes]()
        self._ports = itertools.count(1024)
        self._selector = selectors.DefaultSelector()
        self._control = socket.socket(socket.AF_UNIX)
        self._control.bind(str(self._path))
        self._control.listen()
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self._stop, self._stopped = os.pipe()
        self.port = int(self._tcp.getsockname()[1])

    @property
    def words(self) -> tuple[str, ...]:
        """Memory that this process may see, and the device."""
        return ("-object", f"memory-backend-memfd,id=shared,size={self._memory}M,share=on", "-machine",
                "memory-backend=shared", "-chardev", f"socket,id=vsock,path={self._path}", "-device",
                "vhost-user-vsock-pci,chardev=vsock")

    @contextlib.contextmanager
    def running(self) -> Iterator[Device]:
        """Serve until the context ends."""
        thread = threading.Thread(target=self._serve)
        thread.start()
        try:
            yield self
        finally:
            os.close(self._stopped)
            thread.join(10)
            for each in (self._control, self._tcp):
                each.close()

    def _serve(self) -> None:
        self._selector.register(self._stop, selectors.EVENT_READ, None)
        self._selector.register(self._control, selectors.EVENT_READ, self._connected)
        self._selector.register(self._tcp, selectors.EVENT_READ, self._opened)
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                key.data()

    def _connected(self) -> None:
        qemu, _ = self._control.accept()
        self._selector.register(qemu, selectors.EVENT_READ, lambda: self._message(qemu))

    def _message(self, qemu: socket.socket) -> None:
        """One message of vhost-user."""
        head, handles, _, _ = socket.recv_fds(qemu, 12, 8)
        if len(head) < 12:
            self._selector.unregister(qemu)
            return
        request, _, size = struct.unpack("<III", head)
        body = qemu.recv(size, socket.MSG_WAITALL) if size else b""
        answer = self._answer(request, body, handles)
        if answer is not None:
            qemu.sendall(struct.pack("<III", request, 5, len(answer)) + answer)

    def _answer(self, request: int, body: bytes, handles: list[int]) -> bytes | None:
        if request == 1:  # GET_FEATURES
            return struct.pack("<Q", _VERSION_1 | _PROTOCOL_FEATURES)
        if request == 15:  # GET_PROTOCOL_FEATURES
            return struct.pack("<Q", _CONFIG)
        if request == 24:  # GET_CONFIG: virtio_vsock_config
            return body[:12] + struct.pack("<Q", GUEST)[:len(body) - 12]
        if request == 5:  # SET_MEM_TABLE
            (count,) = struct.unpack_from("<I", body)
            self._regions = []
            for number in range(count):
                guest, size, user, offset = struct.unpack_from("<4Q", body, 8 + 32 * number)
                self._regions.append(_Region(guest, size, user, offset, mmap.mmap(handles[number], offset + size)))
        elif request in (8, 9, 10, 11, 12, 13):
            return self._set_queue(request, body, handles)
        return None

    def _set_queue(self, request: int, body: bytes, handles: list[int]) -> bytes | None:
        number, value = struct.unpack_from("<II", body)
        queue = self._queues[number & 0xFF]
        if request == 8:  # SET_VRING_NUM
            queue.size = value
        elif request == 9:  # SET_VRING_ADDR
            queue.desc, queue.used, queue.avail = struct.unpack_from("<3Q", body, 8)
        elif request == 10:  # SET_VRING_BASE
            queue.last = value
        elif request == 11:  # GET_VRING_BASE
            return struct.pack("<II", number, queue.last)
        elif request == 12 and handles:  # SET_VRING_KICK
            action = self._flush if number & 0xFF == 0 else self._take
            self._selector.register(handles[0], selectors.EVENT_READ, lambda: self._kicked(handles[0], action))
        elif request == 13 and handles:  # SET_VRING_CALL
            queue.call = handles[0]
        return None

    @staticmethod
    def _kicked(handle: int, action: Callable[[], None]) -> None:
        os.read(handle, 8)
        action()

    def _at(self, address: int, *, user: bool = False) -> tuple[mmap.mmap, int]:
        for region in self._regions:
            start = region.user if user else region.guest
            if start <= address < start + region.size:
                return region.memory, address - start + region.offset
        raise ValueError(hex(address))

    def _chain(self, queue: _Queue) -> tuple[int, list[tuple[int, int]]] | None:
        """The next chain that the guest offers: its head, and (address, length) of each part."""
        memory, at = self._at(queue.avail, user=True)
        (index,) = struct.unpack_from("<H", memory, at + 2)
        if index == queue.last & 0xFFFF or not queue.size:
            return None
        (head,) = struct.unpack_from("<H", memory, at + 4 + 2 * (queue.last % queue.size))
        queue.last = (queue.last + 1) & 0xFFFF
        parts, number, more = [], head, True
        while more:
            table, place = self._at(queue.desc, user=True)
            address, length, flags, following = struct.unpack_from("<QIHH", table, place + 16 * number)
            parts.append((address, length))
            number, more = following, bool(flags & 1)
        return head, parts

    def _done(self, queue: _Queue, head: int, written: int) -> None:
        memory, at = self._at(queue.used, user=True)
        (index,) = struct.unpack_from("<H", memory, at + 2)
        struct.pack_into("<II", memory, at + 4 + 8 * (index % queue.size), head, written)
        struct.pack_into("<H", memory, at + 2, (index + 1) & 0xFFFF)
        os.write(queue.call, struct.pack("<Q", 1))

    def _take(self) -> None:
        """Packets from the guest."""
        while (found := self._chain(self._queues[1])) is not None:
            data = b""
            for address, length in found[1]:
                memory, at = self._at(address)
                data += memory[at:at + length]
            self._done(self._queues[1], found[0], 0)
            _, _, _, ours, size, _, operation, *_ = _HEADER.unpack_from(data)
            self._packet(ours, operation, data[_HEADER.size:_HEADER.size + size])

    def _packet(self, ours: int, operation: int, data: bytes) -> None:
        stream = self._streams.get(ours)
        if stream is None:
            return
        if operation == _RESPONSE:
            self._selector.register(stream.tcp, selectors.EVENT_READ, lambda: self._read(ours, stream))
        elif operation == _RW:
            stream.tcp.sendall(data)
            stream.taken += len(data)
            self._send(ours, _CREDIT_UPDATE)
        elif operation == _CREDIT_REQUEST:
            self._send(ours, _CREDIT_UPDATE)
        elif operation in (_SHUTDOWN, _RST):
            if operation == _SHUTDOWN:
                self._send(ours, _RST)
            with contextlib.suppress(KeyError):
                self._selector.unregister(stream.tcp)
            self._streams.pop(ours).tcp.close()

    def _opened(self) -> None:
        tcp, _ = self._tcp.accept()
        ours = next(self._ports)
        self._streams[ours] = _Stream(tcp)
        self._send(ours, _REQUEST)

    def _read(self, ours: int, stream: _Stream) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = stream.tcp.recv(2048)
        if data:
            self._send(ours, _RW, data)
        else:
            self._selector.unregister(stream.tcp)
            self._send(ours, _SHUTDOWN, flags=3)

    def _send(self, ours: int, operation: int, data: bytes = b"", flags: int = 0) -> None:
        self._waiting.append(_HEADER.pack(HOST, GUEST, ours, self._guest_port, len(data), 1, operation, flags, _ROOM,
                                          self._streams[ours].taken & 0xFFFFFFFF) + data)
        self._flush()

    def _flush(self) -> None:
        """Packets to the guest, as far as it has room."""
        while self._waiting and (found := self._chain(self._queues[0])) is not None:
            packet = self._waiting.pop(0)
            left = packet
            for address, length in found[1]:
                memory, at = self._at(address)
                memory[at:at + min(length, len(left))] = left[:length]
                left = left[length:]
            assert not left
            self._done(self._queues[0], found[0], len(packet))
