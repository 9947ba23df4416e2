"""National numbers of persons and companies that are digits only, each with its own check."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator

from appliance.detectors.candidates import checksums, context, numbers
from appliance.detectors.candidates.row import DIGITS, Candidate, Detector, Find, Span

GROUP = "national-id"
_CODES = "11 12 13 14 15 21 22 23 31 32 33 34 35 36 37 41 42 43 44 45 46 50 51 52 53 54 61 62 63 64 65 71 81 82 83"
_PROVINCES = frozenset(_CODES.split())  # the first two digits (GB/T 2260)
_GENERAL = ("national id|identity|identification|id number|tax id|taxpayer|social|ausweis|identite|identidad|identita|"
            "identidade|पहचान|身份")


def _ssn(digits: str) -> bool:
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    return area not in ("000", "666") and area[0] != "9" and group != "00" and serial != "0000" and (
        digits not in ("078051120", "219099999"))


def _itin(digits: str) -> bool:
    group = int(digits[3:5])
    return digits[0] == "9" and (50 <= group <= 65 or 70 <= group <= 88 or 90 <= group <= 92 or 94 <= group <= 99)


def _nhs(digits: str) -> bool:
    check = checksums.weighted([*map(int, digits)], range(10, 1, -1))
    return check % 11 == int(digits[-1]) and check != 10 and len(set(digits)) > 1


def _steuer_id(digits: str) -> bool:
    counts = sorted(Counter(digits[:10]).values(), reverse=True)
    return counts[0] in (2, 3) and counts[1] == 1 and checksums.mod_11_10(digits)


def _aadhaar(digits: str) -> bool:
    return digits[0] not in "01" and digits != digits[::-1] and checksums.verhoeff(digits)


def _brazilian(digits: str, count: int, high: int) -> bool:
    """Whether both check digits after `count` are right; weights go from 2 to `high`, from the
    right, and begin again."""
    for end in (count, count + 1):
        weights = [2 + place % (high - 1) for place in range(end)][::-1]
        check = checksums.weighted([ord(each) - 48 for each in digits[:end]], weights)
        if str(check if check < 10 else 0) != digits[end]:
            return False
    return len(set(digits)) > 1


def cpf(digits: str) -> bool:
    """Whether 11 digits are a CPF."""
    return _brazilian(digits, 9, 11)


def cnpj(text: str) -> bool:
    """Whether 14 digits, or since 2026 letters before two digits, are a CNPJ."""
    return _brazilian(text, 12, 9)


def _resident(text: str) -> bool:
    try:
        born = datetime.date(int(text[6:10]), int(text[10:12]), int(text[12:14]))
    except ValueError:
        return False
    return text[:2] in _PROVINCES and 1890 <= born.year <= 2035 and checksums.mod_11_2(text)


def _finder(known: dict[int, frozenset[str]], judge: Callable[[str], bool], words: context.ContextWords,
            alone: Callable[[str], bool]) -> Find:
    """Return a function that finds numbers of some forms. `alone`: whether a form needs no word
    beside it."""
    def find(candidate: Candidate) -> Iterator[Span]:
        for start, end, text in numbers.windows(candidate, known):
            if judge("".join(filter(str.isalnum, text)).upper()) and candidate.holds(
                    words, start, end, alone=alone(text)):
                yield start, end
    return find


def _row(name: str, forms: tuple[str, ...], judge: Callable[[str], bool], words: str,
         alone: Callable[[str], bool]) -> Detector:
    found = numbers.forms(*forms)
    return Detector(name, numbers.RUN, _finder(found, judge, context.words(f"{words}|{_GENERAL}", "phone|tel|fax"),
                                               alone), least=numbers.LEAST, lead=numbers.LEAD, wakes=DIGITS,
                    group=GROUP)


def always(_text: str) -> bool:
    """Let a form stand without a word beside it."""
    return True


def never(_text: str) -> bool:
    """Ask for a word beside each form."""
    return False


def _dashed(text: str) -> bool:
    return "-" in text


def _parted(text: str) -> bool:
    return not text.isdecimal()


_SOCIAL = ("ssn|social security|sozialversicherung|securite sociale|seguridad social|seguro social|previdenza sociale|"
           "sicurezza sociale|seguridade social|seguranca social|सामाजिक सुरक्षा|社会安全|社会保障|社保")

ROWS = (
    _row("us-ssn", ("3 2 4|- .", "9"), _ssn, _SOCIAL, _dashed),
    _row("us-itin", ("3 2 4|- .", "9"), _itin, "itin|steuernummer|fiscal|fiscale|contribuinte|contribuyente|"
         f"contribuable|कर|纳税|{_SOCIAL}", _dashed),
    _row("cn-resident-id", ("17X", "18", "6 8 4| -", "6 8 3X| -"), _resident, "身份证|居民|resident|shenfenzheng",
         always),
    _row("br-cnpj", ("14",), cnpj, "cnpj|empresa|company|firma|कंपनी|公司", always),
    _row("br-cpf", ("11", "9 2|-"), cpf, "cpf|cadastro|contribuinte", always),
    _row("de-steuer-id", ("11", "2 3 3 3| -.", "2 3 3 3|/"), _steuer_id,
         "steuer|steuer-id|steueridentifikation|steuerliche|idnr|identifikationsnummer|fiscal|imposto|कर|税", always),
    _row("in-aadhaar", ("12", "4 4 4| -"), _aadhaar, "aadhaar|aadhar|adhaar|uidai|uid|आधार", _parted),
    _row("uk-nhs", ("10", "3 3 4| -"), _nhs, "nhs|patient|health service|health number|gesundheit|sante|salud|salute|"
         "sanitario|saude|स्वास्थ्य|रोगी|医疗|患者|病人", never),
)
