"""The chart of `benchmarks.streaming`: tokens a second against the share of the model that is
resident (SVG)."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

_LEFT, _TOP, _WIDTH, _HEIGHT = 70, 40, 560, 320
_COLOURS = ("#2b7a4b", "#2b4f9b", "#9b2b6f", "#8a6d1f", "#b3402a")


FROM_DISK = " from disk"
"""Ends the name of an engine that reads from the disk what is not resident."""


def points(row: dict[str, Any], ending: str = "") -> list[tuple[float, float]]:
    """(percent resident, tokens a second), sorted; of the engines whose names end with `ending`."""
    return sorted((float(name[:-len("%" + ending)]), speed) for name, speed in row["median"].items()
                  if name.endswith("%" + ending))


def chart(document: dict[str, Any]) -> str:
    """Lines for each number of requests, dashed ones for llama.cpp with the plain file in memory.
    """
    rows = [row for row in document["rows"] if row["kind"] == "batch"]
    most = max((speed for row in rows for speed in row["median"].values()), default=1.0)

    def at(percent: float, speed: float) -> str:
        return f"{_LEFT + _WIDTH * percent / 100:.1f} {_TOP + _HEIGHT * (1 - speed / most):.1f}"

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 150}" height="{_TOP + _HEIGHT + 50}" '
             'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>',
             f'<text x="{_LEFT}" y="20" font-weight="bold">{escape(document["model"])}, sealed, {document["threads"]} '
             "threads: tokens/s by the share of weights kept resident</text>",
             f'<path d="M{at(0, most)}L{at(0, 0)}L{at(100, 0)}" stroke="black" fill="none"/>']
    for percent in range(0, 101, 25):
        x, y = at(percent, 0).split()
        parts.append(f'<text x="{x}" y="{float(y) + 18:.1f}" text-anchor="middle">{percent}%</text>')
    for quarter in range(1, 5):
        x, y = at(0, most * quarter / 4).split()
        parts.append(f'<text x="{float(x) - 6:.1f}" y="{y}" text-anchor="end">{most * quarter / 4:.0f}</text>')
    for row, colour in zip(rows, _COLOURS, strict=False):
        found = points(row)
        if not found:
            continue
        parts.append(f'<path d="M{"L".join(at(*point) for point in found)}" stroke="{colour}" fill="none" '
                     'stroke-width="2"/>')
        x, y = at(*found[-1]).split()
        parts.append(f'<text x="{float(x) + 6:.1f}" y="{y}" fill="{colour}">{row["size"]} requests</text>')
        if disk := points(row, FROM_DISK):
            parts.append(f'<path d="M{"L".join(at(*point) for point in disk)}" stroke="{colour}" fill="none"/>')
            x, y = (float(word) for word in at(*disk[0]).split())
            parts.append(f'<text x="{x + 4:.1f}" y="{y - 8:.1f}" fill="{colour}">the rest from disk</text>')
        if row.get("rival"):
            speed = row["median"][row["rival"]]
            parts.append(f'<path d="M{at(0, speed)}L{at(100, speed)}" stroke="{colour}" stroke-dasharray="4 4"/>')
            x, y = at(100, speed).split()
            parts.append(f'<text x="{float(x) + 6:.1f}" y="{y}" fill="{colour}">llama.cpp, {row["size"]}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
