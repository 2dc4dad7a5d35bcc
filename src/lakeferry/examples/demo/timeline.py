"""Draws the report's timeline of commits."""

from __future__ import annotations

from html import escape

from lakeferry.examples.demo.findings import Findings, TimeSpan

_WIDTH, _HEIGHT = 1000, 222
_LEFT, _RIGHT = 96, 980
_TOP, _BOTTOM = 34, 168
_LANES = {"old": 74, "new": 130}
_REFUSED = 102
_LEAST_WIDTH = 3.0
_TICKS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300)
_MOST_TICKS = 14


def drawing(found: Findings) -> str:
    """Return the picture as SVG; colours are the page's."""
    axis = _Axis(found)
    parts = [_band(axis, span, _label(found, span)) for span in found.spans]
    for name, y in _LANES.items():
        parts.append(_text(0, y + 5, f"{name} place", f"var(--{name})", size=15, weight=600))
        parts.append(f'<line x1="{_LEFT}" y1="{y}" x2="{_RIGHT}" y2="{y}" stroke="var(--line)"/>')
    for each in found.acknowledged:
        lane = "new" if found.at_target(each) else "old"
        parts.append(
            f'<circle cx="{axis.x(each.at_ms):.1f}" cy="{_LANES[lane]}" r="4.5" '
            f'fill="var(--{lane})"/>'
        )
    parts += [
        f'<circle cx="{axis.x(each.at_ms):.1f}" cy="{_REFUSED}" r="3.5" fill="var(--bad)">'
        f"<title>{escape(each.why)}</title></circle>"
        for each in found.refused
    ]
    parts += axis.ticks()
    name = f"{len(found.acknowledged)} commits over time"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}">'
        f"{''.join(parts)}</svg>"
    )


class _Axis:
    """Time from the first commit to the last, from left to right."""

    def __init__(self, found: Findings) -> None:
        self.from_ms = found.acknowledged[0].at_ms - 500
        self.to_ms = found.acknowledged[-1].at_ms + 500

    def x(self, at_ms: int) -> float:
        share = (at_ms - self.from_ms) / (self.to_ms - self.from_ms)
        return _LEFT + share * (_RIGHT - _LEFT)

    def ticks(self) -> list[str]:
        seconds = (self.to_ms - self.from_ms) / 1000
        step = next((each for each in _TICKS_S if seconds / each <= _MOST_TICKS), _TICKS_S[-1])
        parts = []
        for second in range(0, int(seconds) + 1, step):
            x = self.x(self.from_ms + second * 1000)
            parts.append(
                f'<line x1="{x:.1f}" y1="{_BOTTOM}" x2="{x:.1f}" y2="{_BOTTOM + 6}" '
                'stroke="var(--quiet)"/>'
            )
            parts.append(_text(x, _BOTTOM + 22, f"{second} s", "var(--quiet)", anchor="middle"))
        parts.append(
            f'<line x1="{_LEFT}" y1="{_BOTTOM}" x2="{_RIGHT}" y2="{_BOTTOM}" '
            'stroke="var(--quiet)"/>'
        )
        return parts


def _label(found: Findings, span: TimeSpan) -> str:
    match span.name:
        case "enable":
            return f"enable: {found.there.blocked_ms} ms"
        case "disable":
            return f"disable: {found.back.blocked_ms} ms"
    return "Spark writes by the old path"


def _band(axis: _Axis, span: TimeSpan, label: str) -> str:
    left, right = axis.x(span.from_ms), axis.x(span.to_ms)
    quiet = span.name == "held"
    width = max(right - left, _LEAST_WIDTH)
    colour = "var(--quiet)" if quiet else "var(--ink)"
    # Apart from each other: Spark may be at work shortly before the table comes back.
    y = _BOTTOM + 44 if quiet else _TOP - 12
    return (
        f'<rect x="{left:.1f}" y="{_TOP}" width="{width:.1f}" height="{_BOTTOM - _TOP}" '
        f'fill="{colour}" fill-opacity="{0.15 if quiet else 0.4}"/>'
        + _text(left + width / 2, y, label, colour, anchor="middle")
    )


def _text(
    x: float,
    y: float,
    words: str,
    fill: str,
    *,
    size: int = 14,
    weight: int = 400,
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" font-size="{size}" '
        f'font-weight="{weight}" text-anchor="{anchor}">{escape(words)}</text>'
    )
