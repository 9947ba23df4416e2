"""Turn rows into a table, a JSON document, and a chart (SVG)."""

from __future__ import annotations

import platform
import statistics
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from appliance.boot.planning import inspection
from benchmarks.measure import Row

_BAR, _LEFT, _WIDTH = 18, 330, 460  # of the chart, in pixels


def sizes(path: Path) -> tuple[int, int]:
    """Bytes of weights that one token reads, and weights that take part in products with it
    (embedding left out)."""
    file = inspection.header(path)
    tied = "output.weight" not in file.tensors
    used = [info for name, info in file.tensors.items() if tied or name != "token_embd.weight"]
    matrices = [info for info in used if len(info.shape) == 2]
    return sum(info.nbytes for info in used), sum(info.shape[0] * info.shape[1] for info in matrices)


def share(row: Row, facts: dict[str, Any], size: tuple[int, int]) -> float | None:
    """Our speed as a part of the hardware's limit: read bandwidth for decode, integer peak for
    prefill."""
    nbytes, weights = size
    if row.kind == "decode" and row.limits and row.speeds[row.own]:
        return statistics.median(speed * nbytes / limit
                                 for speed, limit in zip(row.speeds[row.own], row.limits, strict=False))
    if row.kind == "prefill" and facts.get("dot_peak"):
        return row.median * 2 * weights / float(facts["dot_peak"])
    return None


def entry(row: Row, facts: dict[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    """One row for the JSON document. Speeds are tokens a second; `ratio` is ours over the best
    peer."""
    ratios = sorted(row.ratios)
    return {
        "model": row.model, "threads": row.threads, "kind": row.kind, "size": row.size, "peer": row.peer,
        "median": {name: statistics.median(speeds) for name, speeds in row.speeds.items() if speeds},
        "ratio": statistics.median(ratios) if ratios else None,
        "ratio_low": ratios[0] if ratios else None, "ratio_high": ratios[-1] if ratios else None,
        "share_of_limit": share(row, facts, size),
        "read_bandwidth": statistics.median(row.limits) if row.limits else None, "speeds": row.speeds,
        "line_seconds": row.lines,
    }


def machine() -> dict[str, Any]:
    """The machine that was measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {"cpu": model, "cpus": sum(line.startswith("processor") for line in lines), "linux": platform.release()}


def line(item: dict[str, Any]) -> str:
    """One row of the printed table."""
    medians = list(item["median"].items())
    ours = f"{medians[0][1]:9.1f}" if medians else "     none"
    theirs = f"{item['median'][item['peer']]:9.1f}" if item["peer"] else "     none"
    ratio = f"{item['ratio']:5.2f} ({item['ratio_low']:.2f}..{item['ratio_high']:.2f})" if item["ratio"] else "-"
    part = f"{100 * item['share_of_limit']:4.0f}%" if item["share_of_limit"] else "    -"
    lines = item.get("line_seconds")
    apart = f", {min(lines) * 1e9:.0f}..{max(lines) * 1e9:.0f} ns apart" if lines else ""
    what = f"{item['model'][:24]:24s} {item['threads']}t {item['kind']:7s} {item['size']:5d}"
    return f"{what} {ours} {theirs}  {ratio:20s} {part}  {item['peer'] or ''}{apart}"


HEADING = (f"{'model':24s} th {'what':7s} {'size':>5s} {'ours':>9s} {'llama.cpp':>9s}  {'ratio (low..high)':20s} limit"
           "  best peer   (tokens/s)")


def chart(items: list[dict[str, Any]]) -> str:
    """Ratios as bars with their spread, a line at 1.0; scalable vector graphics."""
    shown = [item for item in items if item["ratio"]]
    most = max([item["ratio_high"] for item in shown], default=1.0)
    scale = _WIDTH / max(most, 1.5)
    height = _BAR * (len(shown) + 3)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 70}" height="{height}" '
             'font-family="sans-serif" font-size="12">',
             f'<rect width="100%" height="100%" fill="white"/><text x="8" y="{_BAR}" font-weight="bold">'
             "Speed relative to the best llama.cpp build (median, low to high of rounds)</text>"]
    for index, item in enumerate(shown):
        top = _BAR * (index + 1.5)
        label = f"{item['model']} {item['threads']}t {item['kind']} {item['size']}"
        colour = "#2b7a4b" if item["ratio"] >= 1 else "#b3402a"
        low, high = (_LEFT + scale * item[key] for key in ("ratio_low", "ratio_high"))
        middle = top + _BAR / 2
        parts += [
            f'<text x="{_LEFT - 6}" y="{middle + 4}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{_LEFT}" y="{top + 3}" width="{scale * item["ratio"]:.1f}" height="{_BAR - 6}" '
            f'fill="{colour}"/>',
            f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="black"/>',
            f'<text x="{high + 5:.1f}" y="{middle + 4}">{item["ratio"]:.2f}</text>']
    one = _LEFT + scale
    parts.append(f'<path d="M{one:.1f} {_BAR * 1.4}V{height - _BAR}" stroke="black" stroke-dasharray="4 3"/></svg>')
    return "\n".join(parts) + "\n"
