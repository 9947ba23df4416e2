"""TLS 1.3 over memory: one stack for the service, its clients and the key broker.

It is pyOpenSSL over the OpenSSL that `cryptography` carries. Python's own `ssl` has no exporter
(RFC 8446, section 7.5), and evidence that is bound to a key alone can be relayed by whoever once
got that key. The exporter is a value that both ends of one connection know, and nobody else: a
relay has two connections, and two values.

No function of ours is called from C: under a kernel that refuses executable memory such calls fail.
So the server answers no ALPN and takes no notice of a server name. Sessions are never resumed.
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import socket
import time
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from OpenSSL import SSL, crypto

READ_BYTES: Final = 16 * 1024  # of a record, RFC 8446, section 5.1
LABEL: Final = b"EXPORTER-appliance-session-v1"
RELEASE_LABEL: Final = b"EXPORTER-appliance-key-release-v2"
EXPORTER_BYTES: Final = 32
POST_QUANTUM: Final = frozenset({"X25519MLKEM768", "SecP256r1MLKEM768", "SecP384r1MLKEM1024"})


class TlsError(OSError):
    """A handshake that failed, a record that is not genuine, or an end without close_notify."""

    def __init__(self, reason: str) -> None:
        super().__init__(0, reason)


def server_context(key: PrivateKeyTypes, chain: list[x509.Certificate]) -> SSL.Context:
    """A context for connections that show `chain`, leaf first, whose key is `key`. ValueError for a
    key that is not the leaf's."""
    context = _context(SSL.TLS_SERVER_METHOD)
    leaf, *others = chain
    try:
        context.use_certificate(leaf)
        context.use_privatekey(key)  # type: ignore[arg-type]
        for each in others:
            context.add_extra_chain_cert(each)
        context.check_privatekey()
    except SSL.Error as error:
        raise ValueError(_reason(error)) from None
    return context


def client_context() -> SSL.Context:
    """A context for connections whose peer is judged by what it shows, after the handshake."""
    context = _context(SSL.TLS_CLIENT_METHOD)
    context.set_verify(SSL.VERIFY_NONE)
    return context


def _context(method: int) -> SSL.Context:
    context = SSL.Context(method)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_options(SSL.OP_NO_TICKET | SSL.OP_NO_RENEGOTIATION)
    return context


def _reason(error: SSL.Error) -> str:
    """OpenSSL's own words for an error, which name no peer and no key."""
    queue = error.args[0] if error.args and isinstance(error.args[0], list) else []
    return next((words for *_, words in queue if words), type(error).__name__)


def _is_address(name: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return False


class Session:
    """One end of a connection: bytes of the network go in and come out, and so do the
    application's. Not safe to use from several threads at once."""

    def __init__(self, context: SSL.Context, *, server: bool, name: str | None = None) -> None:
        """`name`: the server's, as a client asks for it."""
        self._connection = SSL.Connection(context, None)
        if server:
            self._connection.set_accept_state()
        else:
            if name is not None and not _is_address(name):  # RFC 6066, section 3: no literal addresses
                self._connection.set_tlsext_host_name(name.encode("idna"))
            self._connection.set_connect_state()

    def feed(self, data: bytes) -> None:
        """Take bytes that came from the network."""
        while data:
            data = data[self._connection.bio_write(data):]

    def outgoing(self) -> bytes:
        """Return the bytes that are due to the network."""
        parts = []
        while True:
            try:
                parts.append(self._connection.bio_read(READ_BYTES * 4))
            except SSL.WantReadError:
                return b"".join(parts)

    def shake(self) -> bool:
        """Go on with the handshake; return whether it is complete. Raises TlsError."""
        try:
            self._connection.do_handshake()
        except SSL.WantReadError:
            return False
        except SSL.Error as error:
            raise TlsError(_reason(error)) from None
        return True

    def read(self, most: int = READ_BYTES) -> bytes | None:
        """Return application bytes: empty at the peer's close_notify, None where more must come.
        Raises TlsError."""
        try:
            return self._connection.recv(most)
        except SSL.WantReadError:
            return None
        except SSL.ZeroReturnError:
            return b""
        except SSL.Error as error:
            raise TlsError(_reason(error)) from None

    def peek(self) -> bool:
        """Whether application bytes, or the peer's end, came; neither is taken."""
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK))
        except SSL.WantReadError:
            return False
        except SSL.Error:
            return True

    def write(self, data: bytes) -> None:
        """Encrypt application bytes: `outgoing` has them then. Raises TlsError."""
        try:
            view = memoryview(data)
            while view:
                view = view[self._connection.send(view):]
        except SSL.Error as error:
            raise TlsError(_reason(error)) from None

    def close(self) -> bool:
        """Say close_notify; return whether the peer has said it, too."""
        try:
            return self._connection.shutdown()
        except SSL.Error:  # of a connection that is broken already
            return True

    @property
    def pending(self) -> int:
        """Decrypted bytes that wait to be read."""
        return self._connection.pending()

    def exporter(self, nonce: bytes, label: bytes = LABEL) -> bytes:
        """Return the 32 bytes that this connection alone has for `nonce` and a label of use (RFC
        8446, section 7.5)."""
        return self._connection.export_keying_material(label, EXPORTER_BYTES, nonce)

    @property
    def key_exchange(self) -> str:
        """The group of the key exchange, by its name in the registry of IANA."""
        return self._connection.get_group_name() or "unknown"

    def certificates(self) -> list[bytes]:
        """Return the certificates that the peer sent, in DER, its own first."""
        chain = self._connection.get_peer_cert_chain() or []
        return [crypto.dump_certificate(crypto.FILETYPE_ASN1, each) for each in chain]


class TlsStream:
    """A socket that speaks TLS: what http.client and socketserver ask of one. Blocking; a time-out
    is for all of a call, however slowly the bytes of a record come."""

    def __init__(self, sock: socket.socket, context: SSL.Context, *, server: bool = False,
                 name: str | None = None) -> None:
        """Shake hands, within the socket's time-out. Raises TlsError, or OSError of the socket,
        which stays the caller's then."""
        self.socket, self.session, self._seconds = sock, Session(context, server=server, name=name), sock.gettimeout()
        self._files, self._closed = 0, False
        until = self._until()
        while True:
            try:
                complete = self.session.shake()
            finally:
                self._flush(until)  # an alert, too
            if complete:
                return
            self._fill(until)

    def recv(self, most: int) -> bytes:
        """Return application bytes, at least one; none at the peer's close_notify. Raises
        TimeoutError, OSError."""
        until = self._until()
        while (data := self.session.read(min(most, READ_BYTES))) is None:
            self._flush(until)
            self._fill(until)
        return data

    def sendall(self, data: Any) -> None:
        """Send application bytes. Raises TimeoutError, OSError."""
        until = self._until()
        self.session.write(bytes(data))
        self._flush(until)

    def send(self, data: Any) -> int:
        """Send application bytes, all of them."""
        self.sendall(data)
        return len(data)

    def makefile(self, mode: str = "rb", buffering: int = -1) -> Any:
        """A reader ("rb"), buffered unless `buffering` is 0, or an unbuffered writer ("wb"). The
        stream ends with the last of its files."""
        self._files += 1
        raw = _Raw(self)
        return io.BufferedReader(raw) if "r" in mode and buffering else raw

    def settimeout(self, seconds: float | None) -> None:
        """Bound each call: at most so many seconds; None: no bound."""
        self._seconds = seconds

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.socket.fileno()

    def idle(self) -> bool:
        """Whether the connection is open, and nothing for the application came: tickets may have.
        """
        try:
            self.socket.settimeout(0)
            while not self.session.pending:
                data = self.socket.recv(READ_BYTES)
                self.session.feed(data)
                if not data or self.session.peek():
                    return False
            return False
        except BlockingIOError:
            return True
        except (OSError, ValueError):
            return False

    def close(self) -> None:
        """Say close_notify, if the network takes it at once, and close the socket, once no file of
        it is open any more."""
        self._closed = True
        self._end()

    def release(self) -> None:
        """Let go of a file."""
        self._files -= 1
        if self._closed:
            self._end()

    def _end(self) -> None:
        if self._files:
            return
        with contextlib.suppress(OSError):
            self.session.close()
            self.socket.settimeout(0)
            self.socket.sendall(self.session.outgoing())
        self.socket.close()

    def _until(self) -> float | None:
        return None if self._seconds is None else time.monotonic() + self._seconds

    def _arm(self, until: float | None) -> None:
        """Give the socket the time that is left. Raises TimeoutError."""
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError("timed out")
        self.socket.settimeout(left)

    def _fill(self, until: float | None) -> None:
        self._arm(until)
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise TlsError("the connection ended without close_notify")
        self.session.feed(data)

    def _flush(self, until: float | None) -> None:
        if data := self.session.outgoing():
            self._arm(until)
            self.socket.sendall(data)


class _Raw(io.RawIOBase):
    """A stream as a file."""

    def __init__(self, stream: TlsStream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.recv(len(buffer))
        buffer[:len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        return self._stream.send(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.release()
        super().close()
