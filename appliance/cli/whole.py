"""Whole numbers on the command line: plain digits, within bounds.

Python's own `int` reads `1_0` and the digits of every script, and sets no bounds.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

_WHOLE = re.compile(r"-?[0-9]{1,20}")
_SHOWN = 40  # characters of what was found


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return the argument type of whole numbers within bounds."""
    def read(text: str) -> int:
        if _WHOLE.fullmatch(text) is None or not least <= int(text) <= most:
            raise refusal(text, f"a whole number from {least} to {most}")
        return int(text)
    return read


def refusal(text: str, allowed: str) -> argparse.ArgumentTypeError:
    """Return an error that says what was found and what is allowed."""
    found = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return argparse.ArgumentTypeError(f"{found!r}: expected {allowed}")
