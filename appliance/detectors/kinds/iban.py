"""International bank account numbers (ISO 13616): the country's length, and modulo 97."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from appliance.detectors import checksums
from appliance.detectors.row import Candidate, Detector, Span

_LENGTHS = {  # of the registry of SWIFT, release 99, by length
    15: "NO", 16: "BE", 18: "DK FK FI FO GL NL SD", 19: "MK SI", 20: "AT BA EE KZ LT LU MN XK",
    21: "CH HR LI LV", 22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL",
    24: "AD CZ ES MD PK RO SA SE SK TN VG", 25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM",
    28: "AL AZ BY CY DO GT HN HU LB NI PL SV", 29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC", 32: "LC", 33: "RU"}
_SHORT = 23  # characters; an expression has room for about half of the lengths


def _expression(lengths: Iterable[int]) -> str:
    """Return an expression for the countries of some lengths."""
    return r"(?ai)\b(?:" + "|".join(
        f"(?:{'|'.join(_LENGTHS[length].split())})[ .-]?[0-9][0-9](?:[A-Z0-9]|[ .-][A-Z0-9]){{{length - 4}}}"
        for length in lengths) + r")\b"


def _find(candidate: Candidate) -> Iterator[Span]:
    text = "".join(filter(str.isalnum, candidate.own)).upper()
    if checksums.mod_97_10(text[4:] + text[:4]) and text[2:4] not in ("00", "01", "99"):
        yield candidate.start, len(candidate.text)


ROWS = tuple(Detector("iban", _expression(lengths), _find) for lengths in (
    [each for each in _LENGTHS if each <= _SHORT], [each for each in _LENGTHS if each > _SHORT]))
