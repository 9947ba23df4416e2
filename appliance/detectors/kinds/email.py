"""Addresses of mail (RFC 5321, RFC 6531): letters of any script, a quoted local part, and no word
of a program that only looks like one."""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Iterator

from appliance.detectors.candidates.row import Candidate, Detector, Span

_WIDE = r"\u00c0-\u0963\u0966-\u1fff\u3040-\u9fff\uac00-\ud7af"
_LOCAL = rf"[A-Za-z0-9_%+&'!#$*/=?^`{{|}}~{_WIDE}-]"
_DOMAIN = rf"[A-Za-z0-9{_WIDE}-]"
_AT = rf"@{_DOMAIN}(?:{_DOMAIN}|\.{_DOMAIN}){{1,200}}(?::[A-Za-z~/])?"
_QUOTED = rf'"[A-Za-z0-9 ._+-]{{1,62}}"{_AT}'
_PLAIN = rf"{_LOCAL}(?:{_LOCAL}|\.{_LOCAL}){{0,63}}{_AT}"
_EDGES = "'!#$*/=?^`{|}~&%-+"  # before an address, these are of the text around it
_ENDINGS = (
    "png|jpg|jpeg|gif|svg|webp|ico|bmp|css|scss|js|mjs|jsx|ts|tsx|json|xml|html|htm|php|pyc|rb|java|jar|"
    "cpp|hpp|txt|rst|pdf|gz|tar|tgz|yaml|yml|toml|ini|cfg|conf|log|lock|sql|csv|bat|exe|dll|service|target|"
    "socket|timer|mount|whl|deb|rpm|map|setter|getter|deleter|route")
_FILES = frozenset(_ENDINGS.split("|"))  # of files, units and programs, not of domains


_DIGITS_AND_LETTERS = string.digits + string.ascii_letters  # before it: the end of a longer text


def _ascii_end(text: str) -> int:
    """Return where letters of a script without spaces end, if plain ones follow them."""
    for place in range(len(text), 0, -1):
        if text[place - 1] >= "\u2e80":
            return place if place < len(text) and text.isascii() is False else 0
    return 0


def _domain(domain: str) -> str:
    """Return a domain without the text that follows it directly; empty if it is not valid."""
    labels = domain.split(".")
    last = labels[-1]
    if last[:1].isascii() and last[:1].isalpha() and not last.isascii():
        last = last[:next(place for place, character in enumerate(last) if not character.isascii())]
        if any(not label.isascii() for label in labels[:-1]):
            last = labels[-1]
    labels[-1] = last
    if len(labels) < 2 or any(not label or label.startswith("-") or label.endswith("-") or len(label) > 63
                              for label in labels):
        return ""
    if last.lower().startswith("xn--"):
        return ".".join(labels)
    letters = all(unicodedata.category(character)[0] in "LM" for character in last)
    return ".".join(labels) if letters and 2 <= len(last) <= 24 and last.lower() not in _FILES else ""


def _find(candidate: Candidate) -> Iterator[Span]:
    own, start, before = candidate.own, candidate.start, candidate.text[:candidate.start]
    local, _, rest = own.rpartition("@")
    rest, _, after = rest.partition(":")
    domain = _domain(rest)
    end = start + len(local) + 1 + len(domain)
    if local.startswith('"') and domain:
        yield start, end
        return
    skipped = max(_ascii_end(local), max(local.rfind(mark) + 1 for mark in "=/|{}`?*$"))
    skipped += len(local[skipped:]) - len(local[skipped:].lstrip(_EDGES))
    if not domain or (after and len(domain) == len(rest) and (after in "/~" or local[skipped:] == "git")):
        return  # a place on a server
    scheme = (before + own[:skipped]).rpartition("://")
    if scheme[1] and not any(character in " /?=&#\n\"'" for character in scheme[2]):
        return  # a user in an URL
    if skipped < len(local) and not (skipped == 0 and before[-1:] in (*"@.", *_DIGITS_AND_LETTERS)):
        yield start + skipped, end


ROWS = (Detector("email", _PLAIN, _find, needs="@"), Detector("email", _QUOTED, _find, needs="@", wakes='"'))
