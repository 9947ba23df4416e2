"""National numbers with letters in them, and those with marks that no other number has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from appliance.detectors.candidates import context
from appliance.detectors.candidates.row import DIGITS, Candidate, Detector, Find, Span
from appliance.detectors.kinds import national

_CONTROL = "TRWAGMYFPDXBNJZSQVHLCKE"  # of a DNI: the number modulo 23
_ODD = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)
_REPLACED = str.maketrans("LMNPQRSTUV", "0123456789")  # digits of a codice fiscale that two persons would share


def _nino(text: str) -> bool:
    return text[:2] not in ("BG", "GB", "KN", "NK", "NT", "TN", "ZZ")


def _nir(text: str) -> bool:
    number = text[:13].replace("2A", "19").replace("2B", "18") if text[5:7] in ("2A", "2B") else text[:13]
    return number.isdecimal() and 97 - int(number) % 97 == int(text[13:])


def _fiscal(text: str) -> bool:
    values = [ord(each) - 65 if each.isalpha() else int(each) for each in text[:15]]
    total = sum(_ODD[value] if place % 2 == 0 else value for place, value in enumerate(values))
    day = int(text[9:11].translate(_REPLACED))
    return chr(65 + total % 26) == text[15] and (1 <= day <= 31 or 41 <= day <= 71)


def _dni(text: str) -> bool:
    number = text[:-1].replace("X", "0").replace("Y", "1").replace("Z", "2") if text[0] in "XYZ" else text[:-1]
    return number.isdecimal() and _CONTROL[int(number) % 23] == text[-1]


def _pan(text: str) -> bool:
    return text[5:9] != "0000"


def _finder(judge: Callable[[str], bool], words: context.ContextWords, alone: Callable[[str], bool]) -> Find:
    def find(candidate: Candidate) -> Iterator[Span]:
        own, start = candidate.own, candidate.start
        if candidate.before(start) in "-/._" and candidate.before(start - 1).isalnum() and start > 1:
            return
        end = len(candidate.text)
        if judge("".join(filter(str.isalnum, own)).upper()) and candidate.holds(words, start, end, alone=alone(own)):
            yield start, end
    return find


def _row(name: str, expression: str, judge: Callable[[str], bool], words: str,
         alone: Callable[[str], bool] = str.isupper, needs: str = DIGITS, least: int = 1, lead: int = 0,
         opening: str = "") -> Detector:
    """Return a row. Without a word beside them, small letters are not enough, unless the check says
    so."""
    return Detector(name, rf"(?ai)\b(?:{expression})\b", _finder(judge, context.words(words), alone),
                    needs, least, lead, wakes=needs, opening=opening, group=national.GROUP)


def _opening(parts: Sequence[str]) -> str:
    """Return an expression for the first of these parts, and as many after it as there are, at a
    text's end."""
    expression = ""
    for part in reversed(parts):
        expression = f"(?:{part}{expression})?"
    return rf"(?ai)\b{expression[:-1]}\Z"


_S, _N, _L = "[ .-]?", "[0-9LMNP-V]", "[A-Z]"
_FISCAL = (_L, _L, _L, _S, _L, _L, _L, _S, _N, _N, "[ABCDEHLMPRST]", _N, _N, _S, _L, _N, _N, _N, _S, _L)
ROWS = (
    _row("fr-nir", f"[1-478]{_S}[0-9][0-9]{_S}(?:0[1-9]|[1-9][0-9]){_S}(?:[0-9][0-9]|2[AB]){_S}[0-9]{{3}}{_S}"
         f"[0-9]{{3}}{_S}[0-9][0-9]", _nir, "nir|securite sociale|insee|social|sozialversicherung", national.always,
         least=14, lead=1),
    _row("it-codice-fiscale", "".join(_FISCAL), _fiscal, "codice fiscale|fiscale|fiscal|tax", national.always,
         needs="", opening=_opening(_FISCAL)),
    _row("es-dni", f"(?:[0-9]{{8}}|[0-9][0-9]\\.[0-9]{{3}}\\.[0-9]{{3}}|[0-9][0-9] [0-9]{{3}} [0-9]{{3}}|"
         f"[XYZ]{_S}[0-9]{{7}}){_S}[{_CONTROL}]", _dni,
         "dni|nie|nif|documento|identidad|identity|ausweis|identite|identita|identidade|पहचान|身份", least=7,
         lead=2),
    _row("uk-nino", f"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z]{_S}[0-9][0-9]{_S}[0-9][0-9]{_S}[0-9][0-9]{_S}[A-D]", _nino,
         "nino|ni number|ni no|insurance|versicherung|assurance|seguro|assicurazione|seguridad|बीमा|保险", least=6,
         lead=3),
    _row("in-pan", f"[A-Z]{{3}}[ABCFGHJLPT][A-Z]{_S}[0-9]{{4}}{_S}[A-Z]", _pan,
         "pan|permanent account|income tax|tax|steuer|fiscal|impuesto|imposto|पैन|कर|税", least=4,
         lead=6),
    _row("br-cpf", r"[0-9]{3}\.[0-9]{3}\.[0-9]{3}[-/][0-9][0-9]", national.cpf, "cpf", national.always, least=11,
         lead=1),
    _row("br-cnpj", r"[A-Z0-9]{2}\.[A-Z0-9]{3}\.[A-Z0-9]{3}/[A-Z0-9]{4}-[0-9][0-9]", national.cnpj, "cnpj",
         national.always, lead=16),
    _row("br-cnpj", "[0-9A-Z]{12}[0-9][0-9]", national.cnpj, "cnpj|empresa", national.never, lead=12),
)
