"""Numbers on the command line: plain digits, within bounds. An error says what was found and what
is allowed.

Python's own `float` reads `1_0`, `nan` and `1e400`, and sets no bounds. `whole` stands apart: the
image has it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from appliance.cli.whole import refusal, whole

__all__ = ["CPUS", "MEBIBYTES", "SECONDS", "address", "bits", "decimal", "listed", "whole"]

_BITS = re.compile(r"0|[1-9][0-9]{0,19}|0[xX][0-9a-fA-F]{1,16}")
_DECIMAL = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


def decimal(least: float, most: float) -> Callable[[str], float]:
    """Return the argument type of decimal numbers within bounds."""
    def read(text: str) -> float:
        if _DECIMAL.fullmatch(text) is None or not least <= float(text) <= most:
            raise refusal(text, f"a number from {least:.15g} to {most:.15g}")
        return float(text)
    return read


def listed(least: int, most: int, example: str) -> Callable[[str], list[int]]:
    """Return the argument type of lists of whole numbers within bounds; sorted, each once."""
    one = whole(least, most)

    def read(text: str) -> list[int]:
        try:
            return sorted({one(part) for part in text.split(",")})
        except argparse.ArgumentTypeError:
            raise refusal(text, f"a list of whole numbers from {least} to {most}, such as {example}") from None
    return read


def bits(text: str) -> int:
    """Return the argument type of 64 bits, as hex with 0x or as a decimal number."""
    if _BITS.fullmatch(text) is None or int(text, 16 if text[1:2] in ("x", "X") else 10) >> 64:
        raise refusal(text, "a number of 64 bits, such as 0x20000")
    return int(text, 16 if text[1:2] in ("x", "X") else 10)


def address(least_port: int, example: str) -> Callable[[str], tuple[str, int]]:
    """Return the argument type of HOST:PORT."""
    port = whole(least_port, 65535)

    def read(text: str) -> tuple[str, int]:
        host, _, number = text.rpartition(":")
        try:
            if host:
                return host.strip("[]"), port(number)
        except argparse.ArgumentTypeError:
            pass
        raise refusal(text, f"HOST:PORT with a port from {least_port} to 65535, such as {example}")
    return read


MEBIBYTES = whole(1, 1 << 24)  # 16 TiB at most
CPUS = whole(1, 4096)
SECONDS = decimal(0, 31_536_000)  # a year at most
