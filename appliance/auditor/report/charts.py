"""Charts as inline SVG, of any width without scaling: text keeps its size on a phone and on paper.

Each is an image with a title for readers who do not see it, and a table of its numbers follows.
"""

from __future__ import annotations

from html import escape

from appliance.auditor.report.figures import Bars

_HEIGHT, _ROW, _FOOT = 120, 34, 18  # pixels: of a chart over time, of a row, of the line under a chart
_WIDEST = 8  # percent of a chart's width that one column takes


def over_time(name: str, title: str, bars: Bars) -> str:
    """Columns from left to right, with the first and the last label below."""
    most = max((count for _, count in bars), default=0)
    if not most:
        return _nothing(title)
    width, parts = 100 / len(bars), list[str]()
    wide = min(width * 0.84, _WIDEST)
    for place, (label, count) in enumerate(bars):
        height = _HEIGHT * count / most
        if count:
            parts.append(f'<rect class="bar" x="{(place + 0.5) * width - wide / 2:.3f}%" y="{_HEIGHT - height:.1f}" '
                         f'width="{wide:.3f}%" height="{height:.1f}"><title>{escape(label)}: {count}</title>'
                         "</rect>")
    foot = _HEIGHT + _FOOT - 3
    parts += [f'<line class="axis" x1="0" y1="{_HEIGHT}" x2="100%" y2="{_HEIGHT}"/>',
              f'<text x="0" y="{foot}">{escape(bars[0][0])}</text>',
              *([f'<text x="100%" y="{foot}" text-anchor="end">{escape(bars[-1][0])}</text>'] if len(bars) > 1 else [])]
    return _figure(name, title, f"most in one bar: {most}", _HEIGHT + _FOOT, parts, [
        (label, count) for label, count in bars if count])


def rows(name: str, title: str, bars: Bars) -> str:
    """One bar below the other, each under its label."""
    most = max((count for _, count in bars), default=0)
    if not most:
        return _nothing(title)
    parts = []
    for place, (label, count) in enumerate(bars):
        top = place * _ROW
        parts += [f'<text x="0" y="{top + 13}">{escape(label)}: {count}</text>',
                  f'<rect class="bar" x="0" y="{top + 18}" width="{max(100 * count / most, 0.2 if count else 0):.3f}%" '
                  'height="9"/>']
    return _figure(name, title, "", _ROW * len(bars), parts, [])


def _figure(name: str, title: str, note: str, height: int, parts: list[str], numbers: list[tuple[str, int]]) -> str:
    table = ""
    if numbers:
        cells = "".join(f"<tr><td>{escape(label)}</td><td>{count}</td></tr>" for label, count in numbers)
        table = (f"<details><summary>Numbers: {escape(title.lower())}</summary><table><thead><tr><th scope=\"col\">from"
                 f"</th><th scope=\"col\">count</th></tr></thead><tbody>{cells}</tbody></table></details>")
    caption = escape(title) + (f" <small>({escape(note)})</small>" if note else "")
    return (f'<figure><figcaption>{caption}</figcaption><svg role="img" aria-labelledby="{name}" width="100%" '
            f'height="{height}"><title id="{name}">{escape(title)}</title>{"".join(parts)}</svg>{table}</figure>')


def _nothing(title: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption><p>None.</p></figure>"
