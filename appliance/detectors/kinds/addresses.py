"""Addresses of the Internet Protocol: IPv4 in four decimal parts, IPv6 in each of its forms."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from appliance.detectors.candidates import context
from appliance.detectors.candidates.row import DIGITS, Candidate, Detector, Span

_FOUR = r"(?a)\b[0-9](?:[0-9]|\.[0-9]){3,60}\b(?:[.-][A-Za-z_])?"
_SIX = r"(?ai)(?:\b[0-9a-f]{1,4}:|::)(?:[0-9a-f]|:|\.[0-9]){1,50}(?:%[A-Za-z0-9]{1,8})?[_G-Zg-z.-]?"
_WORDS = context.words(
    "ip|ipv4|ipv6|ip-address|ip address|address|host|server|gateway|dns|ping|ssh|adresse|serveur|servidor|direccion|"
    "indirizzo|endereco|पता|地址|服务器", "oid|rfc|kapitel|§|paragraph|para|clause|step|schritt|figure|fig|table|"
    "firmware-version|driver|sdk|api|jdk|java|chrome|firefox|safari|python|kernel|windows|android|ios|app|software|"
    "versao|versione|versión|संस्करण|版本|版")
_SHORT = 3  # parts, or digits of a part, that a slice of a program or a time has at most


def _four(candidate: Candidate) -> Iterator[Span]:
    own, start = candidate.own, candidate.start
    joined, around = candidate.before(start), candidate.before(start - 1) if start else " "
    if own[-1:].isdecimal() and not (joined in "-_./" and around.isascii() and around.isalnum()) and (
            _valid(own, ipaddress.IPv4Address) and candidate.holds(_WORDS, start, start + len(own), alone=True)):
        yield start, start + len(own)


def _six(candidate: Candidate) -> Iterator[Span]:
    own, start = candidate.own, candidate.start
    text, zone, name = own.partition("%")
    if text[-1:] in ("_", "-", ".") or (text[-1:].lower() > "f" and text[-1:].isalpha()):
        if text[-1] != ".":
            return
        text = text[:-1]
    if text.endswith(":") and not text.endswith("::"):  # what an address is followed by in a sentence
        text = text[:-1]
    if own.startswith("::") and candidate.before(start).isalnum() and candidate.before(start).isascii():
        return
    if (candidate.before(start) == ":" and own[0] == ":") or not _valid(text, ipaddress.IPv6Address):
        return
    if _plausible(text) or candidate.holds(_WORDS, start, start + len(text), alone=False):
        yield start, start + len(text) + (len(zone) + len(name.rstrip("_-.")) if zone else 0)


def _plausible(text: str) -> bool:
    """Whether a valid address can hardly be a part of a program, a time or a name."""
    parts = [part for part in text.split(":") if part]
    if not any(map(str.isdecimal, text)) or all(len(part) == 2 for part in parts):  # the latter: hardware's
        return False
    return text == "::1" or "." in text or len(parts) > _SHORT or (
        len(parts[0]) == 4 and parts[0][0] in "2fF") or any(len(part) >= _SHORT for part in parts[1:])


def _valid(text: str, kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


ROWS = (Detector("ip-address", _SIX, _six, needs=":", lead=4, wakes=":"),
        Detector("ip-address", _FOUR, _four, least=4, lead=1, wakes=DIGITS))
