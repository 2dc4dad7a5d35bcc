"""Draws the state diagrams of the pages as SVG.

The pages have them as Mermaid's ``stateDiagram-v2``, which code hosts draw, and which tests compare
with the tables in the source. The site has no script for Mermaid: it would be three megabytes, or
a request to somebody else's server. The states are one column in the order of the text. A
transition to the next state is a straight arrow; others run beside the column, down on its right
and up on its left, and those with the same label and the same end share one line.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

_EDGE = re.compile(r"^\s*(\[\*\]|\w+) --> (\w+)(?::\s*(.*?))?\s*$")
_ROW = 76
_BOX = 30
_TOP = 38
_LETTER = 6.7
_BIG_LETTER = 8.2
_GAP = 16
_LABEL_LETTERS = 16


@dataclass(frozen=True, slots=True)
class Transition:
    """From one state to another, by an event. ``source`` is empty for the beginning."""

    source: str
    target: str
    event: str


@dataclass(slots=True)
class _Lane:
    """A line beside the column: several sources, one target, one label."""

    sources: list[int]
    target: int
    label: str
    x: float = 0.0

    @property
    def rows(self) -> tuple[int, int]:
        ends = [*self.sources, self.target]
        return min(ends), max(ends)

    @property
    def width(self) -> float:
        return max(map(len, _lines(self.label))) * _LETTER


def transitions(text: str) -> list[Transition]:
    """Return the transitions of a ``stateDiagram-v2``; refuse lines that aren't any."""
    first, *lines = [line for line in text.splitlines() if line.strip()]
    if first.strip() != "stateDiagram-v2":
        raise ValueError(f"only state diagrams are drawn: {first!r}")
    found = []
    for line in lines:
        edge = _EDGE.match(line)
        if edge is None:
            raise ValueError(f"not a transition: {line!r}")
        found.append(Transition(edge[1].replace("[*]", ""), edge[2], edge[3] or ""))
    return found


def draw(text: str, title: str) -> str:
    """Return a state diagram as an SVG element, with its transitions as a description."""
    edges = transitions(text)
    states = _ordered(edges)
    row = {name: number for number, name in enumerate(states)}
    own = {name: [e.event for e in edges if e.source == e.target == name] for name in states}
    straight: dict[int, list[str]] = {}
    beside: dict[tuple[bool, int, str], _Lane] = {}
    for edge in edges:
        if not edge.source or edge.source == edge.target:
            continue
        source, target = row[edge.source], row[edge.target]
        if target == source + 1:
            straight.setdefault(source, []).append(edge.event)
            continue
        key = (target > source, target, edge.event)
        beside.setdefault(key, _Lane([], target, edge.event)).sources.append(source)
    down = [lane for (is_down, *_), lane in beside.items() if is_down]
    up = [lane for (is_down, *_), lane in beside.items() if not is_down]
    half = max(len(name) for name in states) * _BIG_LETTER / 2 + 16
    loops = max((len(" · ".join(events)) * _LETTER for events in own.values()), default=0.0)
    half = max(half, loops / 2 + 12)
    right, left = _place(down, half, 0), _place(up, half, 1)
    width, height = left + right, _TOP + len(states) * _ROW - (_ROW - _BOX) + 12
    parts = [*_header(width, height, title, edges)]
    parts += [_lane(lane, left, half, 1) for lane in down]
    parts += [_lane(lane, left, half, -1) for lane in up]
    for number, events in straight.items():
        y = _TOP + number * _ROW + _box_height(own[states[number]])
        parts.append(_arrow(f"M{left:.0f},{y}V{_TOP + (number + 1) * _ROW - 2}"))
        middle = (y + _TOP + (number + 1) * _ROW) / 2 + 2
        parts.append(_label(left, middle, " / ".join(events)))
    for edge in edges:
        if not edge.source:
            y = _TOP + row[edge.target] * _ROW
            parts.append(f'<circle class="ink" cx="{left:.0f}" cy="{y - 26}" r="5"/>')
            parts.append(_arrow(f"M{left:.0f},{y - 21}V{y - 2}"))
    for name in states:
        parts += _state(name, own[name], left, half, _TOP + row[name] * _ROW)
    return "".join([*parts, "</svg>"]).replace("#arrow", f"#{_name(title)}-arrow")


def _box_height(own: Sequence[str]) -> int:
    return _BOX + (12 if own else 0)


def _ordered(edges: Sequence[Transition]) -> list[str]:
    """Return the states in the order of the text, but those that nothing leaves at the end."""
    states = list(dict.fromkeys(name for e in edges for name in (e.source, e.target) if name))
    left = {edge.source for edge in edges if edge.source != edge.target}
    return sorted(states, key=lambda name: name not in left)


def _place(lanes: list[_Lane], half: float, apart: int) -> float:
    """Give each line a distance from the column; return how wide that side is.

    Two lines have the same distance if there are ``apart`` states between them.
    """
    columns: list[list[_Lane]] = []
    for lane in sorted(lanes, key=lambda each: (each.rows[1] - each.rows[0], each.rows[0])):
        low, high = lane.rows
        for column in columns:
            if all(high + apart <= o.rows[0] or low >= o.rows[1] + apart for o in column):
                column.append(lane)
                break
        else:
            columns.append([lane])
    x = half + 14
    for column in columns:
        widest = max(lane.width for lane in column)
        for lane in column:
            lane.x = x + widest / 2
        x += widest + _GAP
    return x


def _header(width: float, height: float, title: str, edges: Sequence[Transition]) -> list[str]:
    said = "; ".join(
        f"{e.source} to {e.target} by “{e.event}”" if e.source else f"it begins at {e.target}"
        for e in edges
    )
    name = _name(title)
    return [
        (
            f'<svg class="states" role="img" viewBox="0 0 {width:.0f} {height:.0f}"'
            f' width="{width:.0f}" aria-labelledby="{name}-t {name}-d"'
            ' xmlns="http://www.w3.org/2000/svg">'
        ),
        f'<title id="{name}-t">{html.escape(title)}</title>',
        f'<desc id="{name}-d">{html.escape(said)}.</desc>',
        (
            f'<defs><marker id="{name}-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
            ' markerHeight="7" orient="auto"><path class="ink" d="M0,0L8,4L0,8z"/></marker></defs>'
        ),
    ]


def _name(title: str) -> str:
    """Return a title as the beginning of ids, which are unique in a page."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def _state(name: str, own: Sequence[str], x: float, half: float, y: float) -> list[str]:
    height = _box_height(own)
    parts = [
        (
            f'<rect class="box" x="{x - half:.0f}" y="{y:.0f}" width="{2 * half:.0f}"'
            f' height="{height}" rx="6"/>'
        ),
        f'<text class="name" x="{x:.0f}" y="{y + 20:.0f}">{html.escape(name)}</text>',
    ]
    if own:
        loops = html.escape("↻ " + " · ".join(own))
        parts.append(f'<text class="small" x="{x:.0f}" y="{y + 35:.0f}">{loops}</text>')
    return parts


def _lane(lane: _Lane, centre: float, half: float, side: int) -> str:
    """Draw a line that leaves its sources and ends at its target."""
    x = centre + side * lane.x
    edge = centre + side * half
    # Lines that begin and lines that end at one state are at different heights.
    end = _TOP + lane.target * _ROW + 9
    parts = []
    for source in lane.sources:
        y = _TOP + source * _ROW + 22
        parts.append(f"M{edge:.0f},{y}H{x:.0f}V{end}")
    path = _arrow("".join(parts) + f"M{x:.0f},{end}H{edge + side * 2:.0f}")
    low, high = sorted([_TOP + lane.sources[0] * _ROW + 22, end])
    return path + _label(x, (low + high) / 2 + 4, lane.label)


def _arrow(path: str) -> str:
    return f'<path class="line" d="{path}" marker-end="url(#arrow)"/>'


def _lines(label: str) -> list[str]:
    """Return a label as one line or, if it is long, as several."""
    return textwrap.wrap(label, _LABEL_LETTERS) or [""]


def _label(x: float, y: float, text: str) -> str:
    lines = _lines(text)
    top = y - 6.5 * (len(lines) - 1)
    return "".join(
        f'<text class="label" x="{x:.0f}" y="{top + 13 * number:.0f}">{html.escape(line)}</text>'
        for number, line in enumerate(lines)
        if line
    )
