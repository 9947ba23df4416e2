"""The target of the client: a URL of an appliance, or a file of evidence."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
from dataclasses import dataclass

from appliance.errors import PolicyError

PORTS = {"https": 443, "http": 80}
_PATHS = ("", "/", "/v1", "/v1/")
# Context identifier and port, 32 bits each; 0 is the hypervisor's, all ones stands for any
# (linux/vm_sockets.h).
_VSOCK = re.compile(r"vsock://([1-9][0-9]{0,9}):([1-9][0-9]{0,9})(/|/v1/?)?", re.ASCII | re.IGNORECASE)
_VSOCK_LAST = (1 << 32) - 2


@dataclass(frozen=True)
class Endpoint:
    """Where an appliance listens. Without TLS only on the loopback, for the simulated platform.

    `vsock`: `host` is the decimal context identifier (CID) of a virtual machine; RA-TLS over
    AF_VSOCK, on Linux alone.
    """

    host: str
    port: int
    tls: bool
    vsock: bool = False

    def __str__(self) -> str:
        if self.vsock:
            return f"vsock://{self.host}:{self.port}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    @property
    def authority(self) -> str:
        """Host and port as a Host header has them."""
        return str(self).partition("//")[2]


def is_url(text: str) -> bool:
    """Whether a text is a URL rather than a path: `C:\\evidence.json` and `./http` are paths."""
    return text.lower().startswith(("https://", "http://", "vsock://"))


def _refuse(text: str, why: str) -> PolicyError:
    return PolicyError(f"{text[:200]!r}: {why}", code="url-invalid",
                       hint="write https://HOST:PORT, vsock://CID:PORT, or http://127.0.0.1:PORT for a simulated one")


def _vsock(text: str) -> Endpoint:
    found = _VSOCK.fullmatch(text)
    if found is None or max(int(found[1]), int(found[2])) > _VSOCK_LAST:
        raise _refuse(text, f"not vsock://CID:PORT, with numbers from 1 to {_VSOCK_LAST}")
    return Endpoint(found[1], int(found[2]), tls=True, vsock=True)


def endpoint(text: str) -> Endpoint:
    """The endpoint that a URL names; a path of `/v1` is that of the API. Raises PolicyError
    `url-invalid`."""
    if text.lower().startswith("vsock://"):
        return _vsock(text)
    try:
        parts = urllib.parse.urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _refuse(text, "not a URL") from None
    scheme = parts.scheme.lower()
    if scheme not in PORTS or not host or port == 0:
        raise _refuse(text, "not the URL of an appliance")
    if parts.username is not None or parts.query or parts.fragment or parts.path not in _PATHS:
        raise _refuse(text, "a URL of an appliance has no user, path, query or fragment")
    if scheme == "http" and not is_loopback(host):
        raise _refuse(text, "plain HTTP is for the loopback only: nothing would bind the connection to the evidence")
    return Endpoint(host, PORTS[scheme] if port is None else port, scheme == "https")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, without asking a resolver."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
