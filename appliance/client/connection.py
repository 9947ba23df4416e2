"""One connection to an appliance, and whose key answers on it.

TLS proves here that the other side holds the private key of the certificate it shows, and no more:
no authority is asked, and no name is checked. That the key is an appliance's is told by evidence,
over this very connection, before anything but a nonce is sent on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import select
import socket
from typing import Any, cast

from appliance.attestation.case.reading import MAX_EVIDENCE_BYTES
from appliance.bounded import HEAD_BYTES, Bounded, dial
from appliance.client.target import Endpoint
from appliance.codec import der
from appliance.errors import MalformedEvidenceError, UncheckedEvidenceError
from appliance.tls import TlsStream, client_context

CONNECT_SECONDS = 10.0
EVIDENCE_SECONDS = 60.0  # for a whole answer to the verifier: firmware makes reports one at a time
ANSWER_SECONDS = 3600.0  # until the head of an answer is there, and between two pieces of its body
WHOLE_SECONDS, WHOLE_BYTES = 86400.0, 1 << 30  # of an answer's body
LEFT_SECONDS, LEFT_BYTES = 0.25, 1 << 16  # of what is left of it when its reader has left
PATH = "/v1/attestation?nonce="


def _unreachable(endpoint: Endpoint, error: Exception) -> UncheckedEvidenceError:
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return UncheckedEvidenceError(f"{endpoint}: no connection: {said}", code="unreachable",
                                  hint="check host and port, and that the appliance is up")


class Connection:
    """An open connection: `certificate` is what the other side showed (DER), None without TLS.

    `spki_sha256` is SHA-256 of the certificate's SubjectPublicKeyInfo: the key of this very
    connection.
    """

    def __init__(self, endpoint: Endpoint, sock: socket.socket | TlsStream, certificate: bytes | None) -> None:
        self.endpoint, self.certificate = endpoint, certificate
        self.spki_sha256 = None if certificate is None else spki_sha256(certificate)
        self._socket, self._stream = sock, Bounded(sock)
        self._http = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=ANSWER_SECONDS)
        self._http.sock = cast("socket.socket", self._stream)
        self._http.auto_open = 0  # it must never open another connection by itself: that one would not be verified

    @property
    def usable(self) -> bool:
        """Whether a request may go out on it: still open, and nothing came that nobody asked for.
        """
        if self._http.sock is None:
            return False
        if isinstance(self._socket, TlsStream):
            return self._socket.idle()
        try:
            readable, _, _ = select.select([self._socket], [], [], 0)
        except (OSError, ValueError):
            return False
        return not readable

    def request(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes = b"", *,
                seconds: float = ANSWER_SECONDS, nbytes: int = HEAD_BYTES) -> http.client.HTTPResponse:
        """Send a request as it is and return the answer's head. Bounds of seconds and bytes hold
        for all that comes until `go_on`. Raises OSError or http.client.HTTPException."""
        self._stream.allow(0, ANSWER_SECONDS)
        self._http.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            self._http.putheader(name, value)
        self._http.endheaders(body or None)
        self._stream.allow(nbytes, seconds)
        return self._http.getresponse()

    def go_on(self, pause: float) -> None:
        """Let the body of an answer come, with so many seconds at most between two pieces."""
        self._stream.allow(WHOLE_BYTES, WHOLE_SECONDS, pause)

    def finish(self) -> None:
        """Let no more of an answer come than its end: few bytes, at once."""
        self._stream.allow(LEFT_BYTES, LEFT_SECONDS)

    def exporter(self, nonce: bytes) -> bytes | None:
        """The value that this TLS session alone has for a nonce; None without TLS."""
        return self._socket.session.exporter(nonce) if isinstance(self._socket, TlsStream) else None

    def abort(self) -> None:
        """End the connection from another thread than the one that reads from it."""
        with contextlib.suppress(OSError):
            (self._socket.socket if isinstance(self._socket, TlsStream) else self._socket).shutdown(socket.SHUT_RDWR)

    def evidence(self, nonce: bytes) -> bytes:
        """Ask `/v1/attestation` with a nonce. Raises UncheckedEvidenceError,
        MalformedEvidenceError."""
        status, body = self.get(PATH + nonce.hex(), MAX_EVIDENCE_BYTES, "no-evidence")
        if status != 200:
            raise UncheckedEvidenceError(f"{self.endpoint}: no evidence: HTTP status {status}",
                                         code="no-evidence", hint="is it an appliance?")
        return body

    def get(self, path: str, most: int, code: str) -> tuple[int, bytes]:
        """Status and body of an answer of at most `most` bytes to one of the verifier's own
        questions.

        Raises UncheckedEvidenceError with `code` if none comes, MalformedEvidenceError for a longer
        one.
        """
        try:
            answer = self.request("GET", path, [("Host", self.endpoint.authority), ("Accept", "application/json")],
                                  seconds=EVIDENCE_SECONDS, nbytes=most + HEAD_BYTES)
            body = answer.read(most + 1)
            if not answer.isclosed():
                self.close()  # what is left of the answer must not be taken for the next one
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise UncheckedEvidenceError(f"{self.endpoint}: no evidence came: {error or type(error).__name__}",
                                         code=code) from None
        if len(body) > most:
            raise MalformedEvidenceError(f"evidence: more than {most} bytes")
        return answer.status, body

    def close(self) -> None:
        """Close the connection, whatever is under way on it."""
        with contextlib.suppress(OSError):
            self._http.close()
        with contextlib.suppress(OSError):
            self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def spki_sha256(certificate: bytes) -> bytes:
    """SHA-256 of a DER certificate's SubjectPublicKeyInfo. Raises MalformedEvidenceError."""
    return hashlib.sha256(der.certificate(certificate).spki).digest()


def _dial(endpoint: Endpoint, seconds: float) -> socket.socket:
    """A stream to the endpoint: TCP, or AF_VSOCK, which Linux alone has."""
    if not endpoint.vsock:
        return dial(endpoint.host, endpoint.port, seconds)
    family = getattr(socket, "AF_VSOCK", None)
    if family is None:
        raise UncheckedEvidenceError(f"{endpoint}: this system has no vsock", code="vsock-absent",
                                     hint="vsock is for a host of Linux and its guests; elsewhere use https://HOST:PORT")
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(seconds)
        sock.connect((int(endpoint.host), endpoint.port))
    except BaseException:
        sock.close()
        raise
    return sock


def connect(endpoint: Endpoint, *, seconds: float = CONNECT_SECONDS) -> Connection:
    """A connection on which nothing was sent but the handshake. Raises UncheckedEvidenceError
    `unreachable`, or `vsock-absent` where the system has none."""
    try:
        sock = _dial(endpoint, seconds)
    except (OSError, ValueError) as error:
        raise _unreachable(endpoint, error) from None
    try:
        if not endpoint.tls:
            return Connection(endpoint, sock, None)
        name = None if endpoint.vsock else endpoint.host
        secured = TlsStream(sock, client_context(), name=name)
        shown = secured.session.certificates()
        if not shown:
            raise MalformedEvidenceError(f"{endpoint}: no certificate in the handshake")
        return Connection(endpoint, secured, shown[0])
    except (OSError, ValueError) as error:
        sock.close()
        raise _unreachable(endpoint, error) from None
    except BaseException:
        sock.close()
        raise
