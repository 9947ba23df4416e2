"""Check digits. Digits are text of 0 to 9."""

from __future__ import annotations

from collections.abc import Sequence

_MULTIPLY = (  # of the dihedral group D5
    "0123456789", "1234067895", "2340178956", "3401289567", "4012395678",
    "5987604321", "6598710432", "7659821043", "8765932104", "9876543210")
_PERMUTE = ("0123456789", "1576283094", "5803796142", "8916043527", "9453126870", "4286573901", "2793806415",
            "7046913258")


def luhn(digits: str) -> bool:
    """Whether the last digit is that of Luhn (ISO/IEC 7812-1, annex B)."""
    doubled = sum(sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (doubled + sum(map(int, digits[-1::-2]))) % 10 == 0


def mod_97_10(text: str) -> bool:
    """Whether letters (10 to 35) and digits are 1 modulo 97 (ISO/IEC 7064)."""
    return int("".join(str(int(character, 36)) for character in text)) % 97 == 1


def mod_11_10(digits: str) -> bool:
    """Whether the last digit is that of ISO/IEC 7064, MOD 11,10."""
    product = 10
    for digit in digits[:-1]:
        product = (((product + int(digit)) % 10 or 10) * 2) % 11
    return (11 - product) % 10 == int(digits[-1])


def mod_11_2(text: str) -> bool:
    """Whether the last character, a digit or X, is that of ISO/IEC 7064, MOD 11-2."""
    return sum((10 if character in "Xx" else int(character)) * pow(2, place, 11)
               for place, character in enumerate(reversed(text))) % 11 == 1


def verhoeff(digits: str) -> bool:
    """Whether the last digit is that of Verhoeff."""
    check = 0
    for place, digit in enumerate(reversed(digits)):
        check = int(_MULTIPLY[check][int(_PERMUTE[place % 8][int(digit)])])
    return check == 0


def weighted(values: Sequence[int], weights: Sequence[int]) -> int:
    """Return 11 less the weighted sum modulo 11: 1 to 11."""
    return 11 - sum(value * weight for value, weight in zip(values, weights, strict=False)) % 11
