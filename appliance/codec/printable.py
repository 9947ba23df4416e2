"""Text that may be somebody else's, made safe for a person's terminal and log."""

from __future__ import annotations


def plain(text: str, most: int = 1 << 16, *, instead: str = "?") -> str:
    """The text on one line: no control characters, no line ends, nothing that reorders it; cut
    after `most`."""
    shown = "".join(each if each.isprintable() else instead for each in text[:most])
    return shown + ("…" if len(text) > most else "")


def quantity(count: int, noun: str, nouns: str | None = None) -> str:
    """A count with its noun: "1 record", "2 records". `nouns`: the plural, where it has no "s"."""
    return f"{count} {noun if count == 1 else nouns or noun + 's'}"


def ascii_only(text: str, most: int) -> str:
    """The text as printable ASCII, cut after `most` characters: for a console of any kind."""
    return "".join(each if " " <= each <= "~" else "?" for each in text[:most])
