"""Fetch collateral from a vendor's service, or from a mirror of it: a base URL, or a folder laid
out by URL path.

Answers are untrusted, and are looked at before they are kept: an error page or half an answer never
becomes a file. The signatures in it are what counts, and are for the verifier.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from email.message import Message
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes, urlsplit

from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation import keyfile
from appliance.attestation.google import endorsement
from appliance.attestation.x509.judging import revocation
from appliance.attestation.x509.judging.collateral import MAX_FILE_BYTES, Collateral
from appliance.attestation.x509.judging.requests import Request
from appliance.errors import AttestationError, PolicyError, UncheckedEvidenceError
from appliance.openers import BoundedHttp, BoundedHttps

ATTEMPTS, LONGEST_WAIT = 5, 60.0  # of one request; seconds between two
_CREDENTIALS = "it is served to a cloud with credentials alone"
_LATER = (429, 500, 502, 503, 504)
_ELSEWHERE = "no network here? --print tells the requests to be made elsewhere, --from takes a mirror"
_CHAIN = ".issuer-chain.pem"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class FetchResult:
    """An answer, and the certificates above it in PEM where they came apart from it."""

    body: bytes
    chain: bytes = b""


class Source(Protocol):
    """Where answers are."""

    def get(self, request: Request) -> FetchResult:
        """The answer to a request. Raises UncheckedEvidenceError."""
        ...


def failed(summary: str, hint: str | None = None) -> UncheckedEvidenceError:
    """The error for an answer that did not come, or is not what was asked for."""
    return UncheckedEvidenceError(summary, code="collateral-fetch", hint=hint)


def source(place: str | None, *, timeout: float, tell: Tell) -> Source:
    """The vendors' services, or the mirror at a base URL or folder. Raises PolicyError for another
    kind of place."""
    if place is None or "://" in place:
        return Service(None if place is None else checked_base(place), timeout, tell)
    if not Path(place).is_dir():
        raise PolicyError(f"--from {place}: neither a folder nor a URL", code="mirror")
    return Folder(Path(place))


def checked_base(url: str) -> str:
    """A mirror's base URL: https, or http on the loopback."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise PolicyError(f"--from {url}: expected https://HOST[:PORT][/PATH]", code="mirror")
    if parts.scheme == "http" and not _loopback(parts.hostname):
        raise PolicyError(f"--from {url}: plain http is for this machine alone", code="mirror",
                          hint="use https, or http://127.0.0.1:PORT")
    return url.rstrip("/")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class Service:
    """HTTPS with the system's trust store; redirects are not followed. `base` stands in for scheme
    and host."""

    base: str | None
    timeout: float  # seconds for a whole answer
    tell: Tell

    def get(self, request: Request) -> FetchResult:
        """Ask, up to `ATTEMPTS` times, and wait as long as the service says."""
        url = self._url(request.url)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                body, headers = self._ask(url)
                return FetchResult(body, _chain_in(headers, request))
            except urllib.error.HTTPError as error:
                error.close()
                if error.code not in _LATER or attempt == ATTEMPTS:
                    raise failed(f"GET {url}: HTTP {error.code} {error.reason}", _meaning(error.code)) from None
                wait, why = _wait(error.headers, attempt), f"HTTP {error.code}"
            except (OSError, http.client.HTTPException, ValueError) as error:
                cause = getattr(error, "reason", error)
                why = str(cause) or type(error).__name__
                if attempt == ATTEMPTS or isinstance(cause, ssl.SSLCertVerificationError | socket.gaierror):
                    raise failed(f"GET {url}: {why}", _ELSEWHERE) from None
                wait = 2.0 ** (attempt - 1)
            if wait > LONGEST_WAIT:
                raise failed(f"GET {url}: {why}, and the service asks to wait {wait:.0f} s", "run it again then")
            self.tell(f"{why}; again in {wait:.0f} s")
            time.sleep(wait)
        raise AssertionError

    def _url(self, url: str) -> str:
        if self.base is None:
            return url
        parts = urlsplit(url)
        return self.base + parts.path + (f"?{parts.query}" if parts.query else "")

    def _ask(self, url: str) -> tuple[bytes, Message]:
        handlers: list[urllib.request.BaseHandler] = [
            _NoRedirects(), BoundedHttp(MAX_FILE_BYTES + 1), BoundedHttps(MAX_FILE_BYTES + 1)]
        if _loopback(urlsplit(url).hostname or ""):
            handlers.append(urllib.request.ProxyHandler({}))
        question = urllib.request.Request(url, headers={"Accept": "*/*"})  # noqa: S310 - the scheme was checked
        with urllib.request.build_opener(*handlers).open(question, timeout=self.timeout) as answer:
            body = answer.read(MAX_FILE_BYTES + 1)
            if len(body) > MAX_FILE_BYTES:
                raise failed(f"GET {url}: more than {MAX_FILE_BYTES} bytes")
            told = answer.headers.get("Content-Length")
            if told is not None and told.isdigit() and int(told) != len(body):
                raise http.client.IncompleteRead(body, int(told) - len(body))
            return body, answer.headers


def _wait(headers: Message, attempt: int) -> float:
    """Seconds until the next attempt: the service's Retry-After, or twice the last."""
    told = str(headers.get("Retry-After") or "").strip()
    return float(told) if told.isdigit() and len(told) < 7 else 2.0 ** (attempt - 1)


def _meaning(code: int) -> str | None:
    if 300 <= code < 400:
        return "redirects are not followed"
    return {401: _CREDENTIALS, 403: _CREDENTIALS,
            404: "the service does not know it: another product line, chip or TCB, or a mirror without it",
            429: "the service limits the rate of requests: run it again later"}.get(code)


def _chain_in(headers: Message, request: Request) -> bytes:
    for name in request.chain_headers:
        if headers.get(name):
            return unquote_to_bytes(str(headers[name]))
    return b""


@dataclass(frozen=True)
class Folder:
    """A folder of answers by URL path (`vcek/v1/Milan/crl`), with the host as first folder or
    without it, and the query behind a `?` or left out. Issuer chains are beside, as
    `.issuer-chain.pem` or `.headers`."""

    path: Path

    def get(self, request: Request) -> FetchResult:
        """The file that answers."""
        parts = urlsplit(request.url)
        for root in (self.path / str(parts.hostname), self.path):
            for name in (f"{parts.path}?{parts.query}" if parts.query else parts.path, parts.path):
                file = root / name.lstrip("/")
                if file.is_file():
                    return FetchResult(_read(file), _beside(file))
        kept = self.path / request.file  # as `--print` names it
        if kept.is_file():
            return FetchResult(_read(kept), _beside(kept))
        raise failed(f"{self.path} has no answer to {request.url}",
                     f"expected: {self.path / parts.path.lstrip('/')}{'?' + parts.query if parts.query else ''}")


def _beside(file: Path) -> bytes:
    for ending in (_CHAIN, ".headers"):
        beside = file.with_name(file.name + ending)
        if beside.is_file():
            return _read(beside)
    return b""


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise failed(f"{file} cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise failed(f"{file}: more than {MAX_FILE_BYTES} bytes")
    return data


def keep(fetched: FetchResult, request: Request, folder: Path) -> list[str]:
    """Write an answer and its chain, each whole or not at all; returns the names. Raises
    UncheckedEvidenceError where it is not what was asked for, PolicyError where it cannot be
    written."""
    chain = check(fetched, request)
    names = [request.file]
    if chain:
        keyfile.write_whole(folder / (request.file + _CHAIN), chain)
        names.append(request.file + _CHAIN)
    keyfile.write_whole(folder / request.file, fetched.body)
    return names


def kept_until(request: Request, folder: Path, at: datetime) -> datetime | None:
    """When what an earlier fetch kept of a request ends; None where it is due at that time: absent,
    not what was asked for, or near its end."""
    file = folder / request.file
    if not file.is_file() or request.kind == "endorsement":  # Google may amend it, and it is small
        return None
    try:
        fetched = FetchResult(_read(file), _beside(file))
        check(fetched, request)
    except AttestationError:
        return None
    found = Collateral()
    found.add(fetched.body, request.file)
    found.add(fetched.chain, request.file)
    lives = [*((each.not_valid_before_utc, each.not_valid_after_utc) for each in found.certificates),
             *((each.last_update_utc, each.next_update_utc or each.last_update_utc) for each in found.crls),
             *((each.issued, each.ends) for each in found.answers)]
    if any(revocation.ends_soon(issued, ends, at) for issued, ends in lives):
        return None
    return min(ends for _, ends in lives)


def check(fetched: FetchResult, request: Request) -> bytes:
    """The chain in PEM of an answer that is what was asked for. Raises UncheckedEvidenceError."""
    if request.kind == "endorsement":
        return _endorsement(fetched, request)
    found, chain = Collateral(), Collateral()
    known = found.add(fetched.body, request.file)
    count = {"certificates": len(found.certificates), "list": len(found.crls), "json": len(found.answers)}
    if not known or found.problems or found.ignored or not count[request.kind]:
        said = found.problems[0].summary if found.problems else found.ignored[0][1] if found.ignored else (
            f"{len(fetched.body)} bytes of something else")
        raise failed(f"{request.url}: the answer is not {_KINDS[request.kind]} ({said})")
    if fetched.chain and (not chain.add(fetched.chain, request.file + _CHAIN) or chain.problems):
        raise failed(f"{request.url}: the certificates beside the answer cannot be read")
    if request.kind == "json" and not fetched.chain:
        raise failed(f"{request.url}: the answer came without its certificates, header {request.chain_headers[0]}")
    return b"".join(each.public_bytes(Encoding.PEM) for each in chain.certificates)


def _endorsement(fetched: FetchResult, request: Request) -> bytes:
    """Google's protocol buffer, which has its certificates in it."""
    try:
        endorsement.shaped(fetched.body)
    except AttestationError as error:
        raise failed(f"{request.url}: the answer is not {_KINDS[request.kind]} ({error.summary})") from None
    return b""


_KINDS = {"certificates": "a certificate", "list": "a revocation list", "json": "Intel's JSON",
          "endorsement": "an endorsement of Google's"}
