"""Words before a candidate: they tell a telephone's number from an order's.

Words are compared without case and accents. One of up to four letters must stand as a whole word; a
longer one may go on, as "telefon" in "Telefonnummer" does. Scripts without spaces have no such
rule.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

_WHOLE = 4  # letters of the longest word that must stand by itself

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


def _last(text: str, word: str) -> int:
    """Return where a word ends in a bare text, the last time that it stands there; 0: it does not.
    """
    end = len(text)
    while (place := text.rfind(word, 0, end)) >= 0:
        after = place + len(word)
        if ord(word[0]) >= 0x2E80:
            return after
        begins = place == 0 or not text[place - 1].isalpha() or ord(text[place - 1]) >= 0x2E80
        if begins and (len(word) > _WHOLE or not text[after:after + 1].isalpha() or not word[-1].isalpha()
                       or ord(text[after]) >= 0x2E80):
            return after
        end = after - 1
    return 0


@dataclass(frozen=True)
class ContextWords:
    """Words for a kind of candidate, and words against it."""

    own: tuple[str, ...]
    against: tuple[str, ...]

    def nearest(self, text: str) -> int:
        """Return 1, -1 or 0: which words stand last in a text."""
        plain = bare(text)
        mine = max((_last(plain, word) for word in self.own if word in plain), default=0)
        other = max((_last(plain, word) for word in self.against if word in plain), default=0)
        return (mine > other) - (mine < other)


def words(own: str, against: str = "") -> ContextWords:
    """Return words from texts with bars between them. Words for numbers of other things are against
    every detector."""
    mine = tuple(dict.fromkeys(bare(word) for word in own.split("|")))
    others = f"{_AGAINST}|{against}".strip("|").split("|")
    return ContextWords(mine, tuple(word for word in dict.fromkeys(map(bare, others)) if word not in mine))
