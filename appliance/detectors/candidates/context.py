"""Words before and after a candidate: they tell a telephone's number from an order's.

Words after it count in the same part of a sentence, up to the next number or name of a value. Words
are compared without case and accents. One of up to four letters must stand as a whole word; a
longer one may go on, as "telefon" in "Telefonnummer" does. Scripts without spaces have no such
rule.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

_WHOLE = 4  # letters of the longest word that must stand by itself
_JOINED = 0x2E80  # scripts from here on have no spaces between words
_ENDS = "\n,?!;\u3001\u3002\u0964"  # of a sentence or a part of it, in folded text
_GOES_ON = ("]", "}", "\"", "'", "`")  # behind values of programs and tables

# Words for numbers of other things: en, de, fr, es, it, pt, hi, zh
_AGAINST = (
    "order|ord|invoice|inv|rma|po|pn|sn|sku|isbn|issn|ean|upc|gtin|version|ver|v|release|build|firmware|serial|part|ticket|"
    "tracking|parcel|shipment|commit|hash|sha|batch|lot|issue|ref|reference|section|chapter|article|asin|imei|iccid|"
    "barcode|item|product|model|case no|case number|transaction|timestamp|epoch|pid|port|checksum|uuid|guid|revision|"
    "coupon|bestellung|bestellnummer|rechnung|artikel|seriennummer|sendung|paket|vorgang|auftrag|kapitel|abschnitt|"
    "produkt|commande|facture|suivi|colis|reference|numero de serie|chapitre|produit|pedido|factura|referencia|"
    "seguimiento|lote|capitulo|articulo|producto|ordine|fattura|riferimento|spedizione|lotto|capitolo|articolo|prodotto|"
    "numero di serie|fatura|rastreio|rastreamento|encomenda|artigo|produto|nota fiscal|ऑर्डर|आदेश|चालान|इनवॉइस|संस्करण|"
    "ट्रैकिंग|क्रमांक|उत्पाद|订单|发票|版本|序列号|快递|运单|货号|批号|商品|编号|章节")


def bare(text: str) -> str:
    """Return a text without case and accents."""
    if text.isascii():
        return text.lower()
    return "".join(c for c in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(c))


def _stands(text: str, place: int, word: str) -> bool:
    """Whether a word that begins at a place of a bare text is a word there, or begins one."""
    after = place + len(word)
    if ord(word[0]) >= _JOINED:
        return True
    begins = place == 0 or not text[place - 1].isalpha() or ord(text[place - 1]) >= _JOINED
    return begins and (len(word) > _WHOLE or not text[after:after + 1].isalpha() or not word[-1].isalpha()
                       or ord(text[after]) >= _JOINED)


def _last(text: str, word: str) -> int:
    """Return where a word ends in a bare text, the last time that it stands there; 0: it does not.
    """
    end = len(text)
    while (place := text.rfind(word, 0, end)) >= 0:
        if _stands(text, place, word):
            return place + len(word)
        end = place + len(word) - 1
    return 0


def _first(text: str, word: str) -> int:
    """Return where a word begins in a bare text, the first time that it stands there; the text's
    length: it does not."""
    place = text.find(word)
    while place >= 0 and not _stands(text, place, word):
        place = text.find(word, place + 1)
    return len(text) if place < 0 else place


def following(text: str) -> tuple[str, bool]:
    """Return the part of the text after a candidate that may speak of it, and whether more text
    cannot change that. The end of a sentence, or of a part of it, ends it. Words before a number,
    or before the value that a sign gives a name, speak of that one."""
    if text.startswith(_GOES_ON):
        return "", True
    for place, character in enumerate(text):
        if character in _ENDS or (character == "." and text[place + 1:place + 2] in (" ", "\n", "\t")
                                  and place + 1 < len(text)):
            return text[:place], True
        if character.isdecimal() or character in ":=":
            return text[:max(text.rfind("(", 0, place), text.rfind(")", 0, place)) + 1], True
    return text, False


@dataclass(frozen=True)
class ContextWords:
    """Words for a kind of candidate, and words against it."""

    own: tuple[str, ...]
    against: tuple[str, ...]

    def before(self, text: str) -> tuple[int, int]:
        """Return 1, -1 or 0: which words stand last in a text; and how far from its end."""
        plain = bare(text)
        mine = max((_last(plain, word) for word in self.own if word in plain), default=0)
        other = max((_last(plain, word) for word in self.against if word in plain), default=0)
        return (mine > other) - (mine < other), len(plain) - max(mine, other)

    def after(self, text: str, most: int) -> bool:
        """Return whether one of the own words begins in the first `most` characters of a text, and
        none against them before it."""
        plain = bare(text)
        mine = min((_first(plain, word) for word in self.own if word in plain), default=len(plain))
        return mine < min(most, len(plain)) and all(
            _first(plain, word) >= mine for word in self.against if word in plain)


def words(own: str, against: str = "") -> ContextWords:
    """Return words from texts with bars between them. Words for numbers of other things are against
    every detector."""
    mine = tuple(dict.fromkeys(bare(word) for word in own.split("|")))
    others = f"{_AGAINST}|{against}".strip("|").split("|")
    return ContextWords(mine, tuple(word for word in dict.fromkeys(map(bare, others)) if word not in mine))
