"""Telephone numbers: international (E.164), and national with a word that says so, or in a form
that little else has."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.detectors.candidates import context, numbers
from appliance.detectors.candidates.row import DIGITS, SKELETON, Candidate, Detector, Span

_LENGTHS = {  # digits after the country code, from and to (ITU-T E.164 and its national plans)
    "1": (10, 10), "7": (10, 10), "20": (8, 10), "27": (9, 9), "30": (10, 10), "31": (9, 9), "32": (8, 9),
    "33": (9, 9), "34": (9, 9), "36": (8, 9), "39": (8, 11), "40": (9, 9), "41": (9, 9), "43": (7, 13), "44": (9, 10),
    "45": (8, 8), "46": (7, 10), "47": (8, 8), "48": (9, 9), "49": (6, 12), "51": (8, 9), "52": (10, 11),
    "53": (6, 8), "54": (10, 11), "55": (10, 11), "56": (9, 9), "57": (8, 10), "58": (10, 10), "60": (7, 10),
    "61": (9, 9), "62": (8, 12), "63": (8, 10), "64": (8, 10), "65": (8, 8), "66": (8, 9), "81": (9, 10),
    "82": (8, 10), "84": (9, 10), "86": (9, 11), "90": (10, 10), "91": (10, 10), "92": (9, 10), "93": (9, 9),
    "94": (9, 9), "95": (7, 10), "98": (10, 10)}
_LONGER = ("21", "22", "23", "24", "25", "26", "29", "35", "37", "38", "42", "50", "59", "67", "68", "69", "80", "85",
           "87", "88", "96", "97", "99")  # country codes of three digits begin so
_WORDS = context.words(
    "phone|telephone|tel|call|calls|cell|cellphone|mobile|fax|sms|whatsapp|contact|ring|dial|hotline|landline|handset|"
    "text me|texted|reach|reached|number is|my number|voicemail|ph|mob|signal|telegram|pager|"
    "telefon|handy|mobil|mobilnummer|rufnummer|anruf|anrufen|ruf|rufen|erreichbar|erreichen|durchwahl|festnetz|"
    "telephone|portable|appelez|appeler|appelle|joindre|joignable|numero est|"
    "telefono|movil|celular|llama|llame|llamar|llamame|contacto|mi numero|"
    "cellulare|chiama|chiamare|chiamami|chiami|telefonare|recapito|mio numero|"
    "telefone|celular|telemovel|ligue|ligar|liga|contato|meu numero|zap|"
    "फ़ोन|फोन|मोबाइल|दूरभाष|टेलीफोन|संपर्क|कॉल|नंबर|电话|手机|致电|拨打|联系|号码|热线|传真|座机|微信|電話|手機",
    "aadhaar|ssn|nhs|cpf|cnpj|iban|card|karte|account|konto|compte|cuenta|conto|conta|passport|postal|zip|"
    "आधार|खाता|身份证|账号|银行")
_BEHIND = context.words(  # verbs behind a number make it a count
    "phone|telephone|cellphone|mobile number|fax|whatsapp|hotline|landline|voicemail|telefon|handy|mobilnummer|"
    "rufnummer|durchwahl|festnetz|numero de portable|movil|celular|cellulare|recapito|telefone|telemovel|फ़ोन|फोन|"
    "मोबाइल|दूरभाष|टेलीफोन|电话|手机|热线|传真|座机|電話|手機",
    "aadhaar|ssn|nhs|cpf|cnpj|iban|passport|users|app|apps|model")
_LONGEST = 32  # characters of a number
_NATIONAL = numbers.forms("3 3 4|-.", "2 2 2 2 2|- .")  # of North America and France, without a word


def _american(digits: str) -> bool:
    """Whether ten digits are a number of the North American plan."""
    return len(digits) == 10 and digits[0] in "23456789" and digits[3] in "23456789" and digits[1:3] != "11" and (
        digits[4:6] != "11")


def _international(digits: str) -> bool:
    """Whether digits begin with a country code, and are as many as it has."""
    if digits.startswith(_LONGER):
        return 9 <= len(digits) <= 14
    code = digits[:1] if digits[:1] in ("1", "7") else digits[:2]
    low, high = _LENGTHS.get(code, (99, 99))
    return low <= len(digits) - len(code) <= high and (code != "1" or _american(digits[1:]))


def _dated(text: str) -> bool:
    """Whether a text has the form of a date or of an address of IPv4."""
    shape = text.translate(SKELETON)
    parts = text.split(".")
    four = len(parts) == 4 and all(part.isdecimal() and int(part) < 256 for part in parts)
    years = shape == "0000-0000" and text[:2] in ("19", "20") and text[5:7] in ("19", "20")
    return four or years or shape[:10] in (
        "0000-00-00", "0000/00/00", "0000.00.00", "00.00.0000", "00/00/0000", "00-00-0000")


def _ends(text: str, start: int) -> list[int]:
    """Return where groups of digits end, as far as a number may reach."""
    return [place for place in range(start + 1, min(len(text), start + _LONGEST) + 1)
            if text[place - 1].isdecimal() and not text[place:place + 1].isdecimal()]


def _best(text: str, start: int, good: object) -> int:
    """Return the last end of a group up to which the digits are `good`; 0: there is none."""
    for end in reversed(_ends(text, start)[:8]):
        if callable(good) and good(text[start:end]):
            return end
    return 0


def _abroad(text: str) -> bool:
    digits = numbers.digits_of(text.replace("(0)", ""))
    return _international(digits)


def _at_home(text: str) -> bool:
    digits = numbers.digits_of(text)
    if digits.startswith("00"):
        return _international(digits[2:])
    most = 12 if digits.startswith("0") else 11
    return 7 <= len(digits) <= most and len(set(digits)) > 1 and not _dated(text)


def _without_words(text: str) -> bool:
    """Whether the form of a national number speaks for itself."""
    digits, shape = numbers.digits_of(text), text.translate(SKELETON)
    if shape.startswith("(") and not text.startswith("(+"):
        return _american(digits) if shape[4:5] == ")" else len(digits) in (10, 11) and shape[3:4] == ")"
    if shape in _NATIONAL.get(len(shape), ()):
        return _american(digits) if (len(digits) == 10 and shape[3] == "0") or shape[3] in "-." else (
            digits[0] == "0" and digits[1] != "0")
    if digits[:1] == "1" and len(digits) == 11 and shape[1:2] == "-":
        return _american(digits[1:])
    return digits[:1] == "0" and digits[1:2] not in ("", "0") and 9 <= len(digits) <= 12 and (
        3 <= shape.find("00 ") + 2 <= 5 or 3 <= shape.find("/") <= 5) and not _dated(text)


def _find(candidate: Candidate) -> Iterator[Span]:
    text, place = candidate.text, candidate.start
    settled = place  # digits between here and a number would be a part of it
    while place < len(text):
        if not (text[place].isdecimal() or text[place] in "+("):
            place += 1
            continue
        end = _number(candidate, place, whole=not any(map(str.isdecimal, text[settled:place])))
        if end:
            settled = end
            yield place, end
        place = end or (place + 1 if text[place] in "+(" else next(iter(_ends(text, place)), place + _LONGEST))


def _number(candidate: Candidate, start: int, *, whole: bool) -> int:
    """Return where a telephone's number that begins here ends; 0: none does. `whole`: no digits of
    the same run stand before it."""
    text, before = candidate.text, candidate.before(start)
    if (before.isascii() and before.isalnum()) or (before in "-./_#" and candidate.before(start - 1).isalnum()):
        return 0
    if text[start] == "+" or text.startswith("(+", start):
        return _closed(text, start, _best(text, start, _abroad))
    words = candidate.nearest(_WORDS, start)
    if words > 0:
        return _closed(text, start, _best(text, start, _at_home))
    end = 0 if words < 0 or not whole else _alone(text, _best(text, start, _without_words))
    if end or not whole:
        return end
    end = _alone(text, _closed(text, start, _best(text, start, _at_home)))
    return end if end and candidate.holds(_BEHIND, start, end, alone=False) else 0


def _alone(text: str, end: int) -> int:
    return end if end and not text[end:end + 2].strip("-./ ").isdecimal() else 0


def _closed(text: str, start: int, end: int) -> int:
    return end if end == 0 or text[start] != "(" or ")" in text[start:end] else 0


ROWS = (Detector("phone", numbers.RUN, _find, least=numbers.LEAST, lead=numbers.LEAD, wakes=DIGITS),)
