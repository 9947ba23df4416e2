"""Dates of birth: a date that exists, beside a word that says what it is."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from appliance.detectors.candidates import context
from appliance.detectors.candidates.row import DIGITS, Candidate, Detector, Span

_MONTHS = (  # en, de, fr, es, it, pt, hi
    "january jan januar janner janvier enero gennaio janeiro जनवरी", "february feb februar fevrier febrero febbraio "
    "fevereiro फरवरी फ़रवरी", "march mar marz maerz mars marzo marco मार्च", "april apr avril abril aprile अप्रैल",
    "may mai mayo maggio maio मई", "june jun juni juin junio giugno junho जून",
    "july jul juli juillet julio luglio julho जुलाई", "august aug aout agosto ago अगस्त",
    "september sep sept septembre septiembre settembre setembro सितंबर सितम्बर",
    "october oct oktober okt octobre octubre ottobre outubro अक्टूबर अक्तूबर",
    "november nov novembre noviembre novembro नवंबर नवम्बर", "december dec dezember dez decembre diciembre dicembre "
    "dezembro दिसंबर दिसम्बर")
_NUMBERS = {context.bare(name): number for number, names in enumerate(_MONTHS, 1) for name in names.split()}
_NAME = r"[A-Za-z\u00c0-\u017f\u0900-\u097f]{2,12}\.?"
_EXPRESSION = (
    r"(?a)\b(?:[0-9]{1,4} ?(?:[./-] ?[0-9]{1,2} ?[./-] ?[0-9]{2,4}\b|"
    r"\u5e74 ?[0-9]{1,2} ?\u6708 ?[0-9]{1,2} ?[\u65e5\u53f7])|"
    rf"[0-9]{{1,2}}(?:\.|st|nd|rd|th|er|\u00ba|o|a)?[ -](?:de |of |di )?{_NAME},?[ -](?:de |del )?[0-9]{{4}}\b|"
    rf"[0-9]{{4}}[ -]{_NAME}[ -][0-9]{{1,2}}\b|"
    r"[A-Z][A-Za-z]{2,9}\.? [0-9]{1,2}(?:st|nd|rd|th)?,? [0-9]{4}\b|[0-9]{8}\b)")
_WORDS = context.words(
    "born|birth|dob|d.o.b|birthday|birthdate|date_of_birth|bday|b.day|nacimiento|nacido|nacida|nacio|naci|cumpleanos|"
    "geboren|geburtsdatum|geburtstag|geb|geb.|geburt|ne le|nee le|naissance|anniversaire|ne(e) le|née|"
    "nato|nata|nascita|compleanno|nascimento|nascido|nascida|nasceu|nasci|aniversario|"
    "जन्म|जन्मतिथि|जन्मदिन|पैदा|出生|生日|生于|出生日期|诞生",
    "signed|expires|expiry|expire|due|issued|updated|deadline|release|released|published|meeting|since|until|valid|"
    "delivery|delivered|created|modified|death|died|unterzeichnet|gultig|frist|fallig|lieferung|gestorben|treffen|"
    "signe|expire|echeance|livraison|publie|reunion|firmado|vence|vencimiento|entrega|publicado|reunion|"
    "firmato|scade|scadenza|consegna|riunione|assinado|validade|vencimento|reuniao|हस्ताक्षर|समाप्त|बैठक|签署|到期|会议|交货|发布")
_DAY = "\u65e5\u53f7"  # ends a date in Chinese
_AWAY = 48  # characters between the word and the date at most


def _parts(text: str) -> list[str]:
    """Return runs of digits and runs of letters in a date."""
    spaced = "".join(character if character.isdecimal() or (character.isalpha() and character < "\u2e80")
                     or "\u0900" <= character <= "\u097f" else " " for character in text)
    found = []
    for word in spaced.split():
        digits = len(word) - len(word.lstrip("0123456789"))
        found += [part for part in (word[:digits], word[digits:]) if part]
    return found


def _exists(year: int, month: int, day: int) -> bool:
    try:
        return 1890 <= datetime.date(year, month, day).year <= 2035
    except ValueError:
        return False


def _date(text: str) -> bool:
    """Whether a text is a day that exists, in any of the usual orders."""
    parts = _parts(text)
    if len(parts) == 1 and len(text) == 8:
        return _exists(int(text[:4]), int(text[4:6]), int(text[6:]))
    numbers = [int(part) for part in parts if part.isdecimal()]
    if len(numbers) == 2:
        month = next((_NUMBERS[name] for part in parts if (name := context.bare(part)) in _NUMBERS), 0)
        return any(_exists(year, month, day) for year, day in (numbers, numbers[::-1]))
    if len(numbers) != 3:
        return False
    if numbers[0] > 31 or len(parts[0]) == 4:
        return _exists(*numbers)
    last = numbers[2]
    years = (last,) if len(parts[2]) == 4 else (1900 + last, 2000 + last) if len(parts[2]) == 2 else ()
    return any(_exists(year, *order) for year in years for order in (numbers[1::-1], numbers[:2]))


def _find(candidate: Candidate) -> Iterator[Span]:
    before, own = candidate.text[:candidate.start], candidate.own
    end = next((place for place in range(len(own), 0, -1) if own[place - 1].isdecimal() or own[place - 1] in _DAY), 0)
    if before[-1:] in ("-", "/", ".", "_") and before[-2:-1].isdecimal():
        return
    least = max(len(before) - len(before.rpartition("\n\n")[2]), len(before) - _AWAY)
    if _date(own[:end]) and candidate.holds(
            _WORDS, candidate.start, candidate.start + end, alone=False, least=least):
        yield candidate.start, candidate.start + end


ROWS = (Detector("date-of-birth", _EXPRESSION, _find, lead=12, wakes=DIGITS),)
