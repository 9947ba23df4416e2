"""Numbers on the command line: plain digits, within bounds, or one error that says what was found
and what is allowed.

Python's own `int` and `float` read `1_0`, the digits of every script, `nan` and `1e400`, and set no
bounds.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

_WHOLE = re.compile(r"-?[0-9]{1,20}")
_BITS = re.compile(r"0|[1-9][0-9]{0,19}|0[xX][0-9a-fA-F]{1,16}")
_DECIMAL = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_SHOWN = 40  # characters of what was found


def _refusal(text: str, allowed: str) -> argparse.ArgumentTypeError:
    found = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return argparse.ArgumentTypeError(f"{found!r}: expected {allowed}")


def whole(least: int, most: int) -> Callable[[str], int]:
    """The argument type of whole numbers within bounds."""
    def read(text: str) -> int:
        if _WHOLE.fullmatch(text) is None or not least <= int(text) <= most:
            raise _refusal(text, f"a whole number from {least} to {most}")
        return int(text)
    return read


def decimal(least: float, most: float) -> Callable[[str], float]:
    """The argument type of decimal numbers within bounds."""
    def read(text: str) -> float:
        if _DECIMAL.fullmatch(text) is None or not least <= float(text) <= most:
            raise _refusal(text, f"a number from {least:.15g} to {most:.15g}")
        return float(text)
    return read


def listed(least: int, most: int, example: str) -> Callable[[str], list[int]]:
    """The argument type of lists of whole numbers within bounds; sorted, each once."""
    one = whole(least, most)

    def read(text: str) -> list[int]:
        try:
            return sorted({one(part) for part in text.split(",")})
        except argparse.ArgumentTypeError:
            raise _refusal(text, f"a list of whole numbers from {least} to {most}, such as {example}") from None
    return read


def bits(text: str) -> int:
    """The argument type of 64 bits, as hex with 0x or as a decimal number."""
    if _BITS.fullmatch(text) is None or int(text, 16 if text[1:2] in ("x", "X") else 10) >> 64:
        raise _refusal(text, "a number of 64 bits, such as 0x20000")
    return int(text, 16 if text[1:2] in ("x", "X") else 10)


def address(least_port: int, example: str) -> Callable[[str], tuple[str, int]]:
    """The argument type of HOST:PORT."""
    port = whole(least_port, 65535)

    def read(text: str) -> tuple[str, int]:
        host, _, number = text.rpartition(":")
        try:
            if host:
                return host.strip("[]"), port(number)
        except argparse.ArgumentTypeError:
            pass
        raise _refusal(text, f"HOST:PORT with a port from {least_port} to 65535, such as {example}")
    return read


MEBIBYTES = whole(1, 1 << 24)  # 16 TiB at most
CPUS = whole(1, 4096)
SECONDS = decimal(0, 31_536_000)  # a year at most
