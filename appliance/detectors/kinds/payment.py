"""Numbers of payment: cards (ISO/IEC 7812) by the issuer's range, its lengths and Luhn; accounts
(IBAN, ISO 13616) by the country's length and modulo 97."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from appliance.detectors.candidates import checksums, context, numbers
from appliance.detectors.candidates.row import DIGITS, Candidate, Detector, Span

_ISSUERS = (  # first digits from, to; lengths
    ("4", "4", (13, 16, 19)), ("51", "55", (16,)), ("2221", "2720", (16,)), ("34", "34", (15,)), ("37", "37", (15,)),
    ("300", "305", (14, 16)), ("3095", "3095", (14, 16)), ("36", "36", (14, 16)), ("38", "39", (14, 16)),
    ("6011", "6011", (16, 19)), ("644", "659", (16, 19)), ("622126", "622925", (16, 17, 18, 19)),
    ("62", "62", (16, 17, 18, 19)), ("81", "82", (16, 17, 18, 19)), ("60", "60", (16,)),
    ("3528", "3589", (16, 17, 18, 19)), ("2200", "2204", (16, 17, 18, 19)), ("9792", "9792", (16,)),
    ("50", "50", (12, 13, 14, 15, 16, 17, 18, 19)), ("56", "58", (12, 13, 14, 15, 16, 17, 18, 19)),
    ("63", "63", (12, 13, 14, 15, 16, 17, 18, 19)), ("67", "69", (12, 13, 14, 15, 16, 17, 18, 19)),
    ("1800", "1800", (15,)), ("2131", "2131", (15,)))
_FORMS = numbers.forms("4 4 4 4|- .", "4 6 5|- .", "4 6 4|- .", "4 4 4 4 3|- .", "4 4 4 3|- .", "4 4 4 1|- .",
                       "6 13|- ", "4 4 5|- ", *map(str, range(12, 20)))
_WORDS = context.words(
    "card|credit|debit|visa|mastercard|amex|american express|maestro|payment|pan|cc|kreditkarte|karte|zahlung|"
    "carte|paiement|tarjeta|pago|carta|pagamento|cartao|कार्ड|भुगतान|卡|信用卡|支付")


def _issued(digits: str) -> bool:
    return any(low <= digits[:len(low)] <= high and len(digits) in lengths for low, high, lengths in _ISSUERS)


def _find(candidate: Candidate) -> Iterator[Span]:
    for start, end, text in numbers.windows(candidate, _FORMS):
        digits = numbers.digits_of(text)
        likely = len(digits) > 13  # a shorter number passes by chance too often
        if _issued(digits) and len(set(digits)) > 1 and checksums.luhn(digits) and candidate.holds(
                _WORDS, start, end, alone=likely):
            yield start, end


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


def _find_iban(candidate: Candidate) -> Iterator[Span]:
    text = "".join(filter(str.isalnum, candidate.own)).upper()
    if checksums.mod_97_10(text[4:] + text[:4]) and text[2:4] not in ("00", "01", "99"):
        yield candidate.start, len(candidate.text)


_IBANS = tuple(Detector("iban", _expression(lengths), _find_iban, lead=3, wakes=DIGITS) for lengths in (
    [each for each in _LENGTHS if each <= _SHORT], [each for each in _LENGTHS if each > _SHORT]))
ROWS = (*_IBANS, Detector("credit-card", numbers.RUN, _find, least=numbers.LEAST, lead=numbers.LEAD, wakes=DIGITS))
