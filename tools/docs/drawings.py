"""Draws the pictures of the pages: ``python -m tools.docs.drawings`` writes ``docs/images/*.svg``.

A picture has a title and a description, and colours for light and dark. As a file it follows the
reader's system; on the site it is part of the page and follows the page (``site_hooks.py``).
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "images"

# The same as in docs/stylesheets/site.css, for a code host.
_STYLE = """<style>
svg { --ink: #24323a; --faint: #5b6b74; --box: #eef4f6; --edge: #7f98a3; --paper: #fff;
  --one: #0b6a85; --two: #b3541e }
@media (prefers-color-scheme: dark) {
  svg { --ink: #dfe8ec; --faint: #a3b4bc; --box: #22333b; --edge: #66828e; --paper: #0d1117;
    --one: #74c6dd; --two: #f0a26b }
}
text { fill: var(--ink); font: 12px system-ui, sans-serif }
.name { font-weight: 600; font-size: 12.5px }
.small { fill: var(--faint); font-size: 11px }
.box { fill: var(--box); stroke: var(--edge) }
.line { fill: none; stroke: var(--edge); stroke-width: 1.3 }
.ink { fill: var(--ink) }
.one { fill: var(--one) }
.two { fill: var(--two) }
.line.one { fill: none; stroke: var(--one) }
.line.two { fill: none; stroke: var(--two) }
.hollow { fill: var(--paper); stroke: var(--faint) }
.dashed { stroke-dasharray: 4 4 }
.halo { paint-order: stroke; stroke: var(--paper); stroke-width: 5px; stroke-linejoin: round }
.shade { fill: var(--two); opacity: .14 }
</style>
"""


class Drawing:
    """A picture that is being drawn. Coordinates are pixels from the upper left corner."""

    def __init__(self, name: str, title: str, description: str, width: int, height: int) -> None:
        """Begin a picture; ``name`` is that of its file."""
        self.name = name
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="wide" role="img"'
            f' viewBox="0 0 {width} {height}" width="{width}"'
            f' aria-labelledby="{name}-t {name}-d">\n'
            f'<title id="{name}-t">{html.escape(title)}</title>\n'
            f'<desc id="{name}-d">{html.escape(description)}</desc>\n{_STYLE}'
            f'<defs><marker id="{name}-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
            ' markerHeight="7" orient="auto-start-reverse"><path class="ink" d="M0,0L8,4L0,8z"/>'
            "</marker></defs>\n"
        )
        self._parts: list[str] = []

    def box(self, x: int, y: int, width: int, height: int, name: str, *below: str) -> None:
        """Draw a box with a name, and lines of smaller text below it."""
        self._parts.append(
            f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
        )
        top = y + height // 2 + 4 - 8 * len(below)
        self.text(x + width // 2, top, name, "name", "middle")
        for number, line in enumerate(below, 1):
            self.text(x + width // 2, top + 16 * number, line, "small", "middle")

    def text(self, x: int, y: int, text: str, kind: str = "", anchor: str = "start") -> None:
        """Write a line of text."""
        self._parts.append(
            f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">'
            f"{html.escape(text)}</text>"
        )

    def line(
        self, *points: tuple[int, int], kind: str = "", arrow: bool = True, back: bool = False
    ) -> None:
        """Draw a line through points."""
        path = "M" + "L".join(f"{x},{y}" for x, y in points)
        end = f' marker-end="url(#{self.name}-arrow)"' if arrow else ""
        begin = f' marker-start="url(#{self.name}-arrow)"' if back else ""
        self._parts.append(f'<path class="line {kind}" d="{path}"{end}{begin}/>')

    def dots(self, xs: Iterable[int], y: int, kind: str = "ink") -> None:
        """Draw a dot for each commit."""
        self._parts += [f'<circle class="{kind}" cx="{x}" cy="{y}" r="5"/>' for x in xs]

    def shade(self, x: int, y: int, width: int, height: int) -> None:
        """Mark a stretch of time."""
        self._parts.append(
            f'<rect class="shade" x="{x}" y="{y}" width="{width}" height="{height}"/>'
        )

    def svg(self) -> str:
        """Return the file."""
        return self._head + "\n".join(self._parts) + "\n</svg>\n"


def move() -> Drawing:
    """Draw what happens at both places while a table moves."""
    d = Drawing(
        "move",
        "How a table moves",
        "Three lanes from left to right. Writers append to the source while data and log are "
        "copied to the target in rounds. When the source says ENABLING at version N, writers wait, "
        "for the last few commits only. The target gets N, which locks it; then N+1, which opens "
        "it; then the source says READY at its own N+1, and writers go on at the target.",
        760,
        330,
    )
    d.shade(392, 30, 150, 262)
    d.text(467, 22, "writers wait", "two", "middle")
    for y, name in ((62, "writers"), (142, "source"), (242, "target")):
        d.text(10, y + 4, name, "name")
    d.line((80, 62), (388, 62), kind="one", arrow=False)
    d.text(232, 52, "append by the old path", "small", "middle")
    d.line((546, 62), (738, 62), kind="one")
    d.text(642, 52, "append by the old path", "small", "middle")
    d.line((80, 142), (738, 142), arrow=False)
    d.dots((96, 146, 196, 246, 296, 346), 142)
    d.text(96, 168, "0", "small", "middle")
    d.text(346, 168, "N−1", "small", "middle")
    for x in (96, 146, 196, 246, 296, 346):
        d.line((x, 66), (x, 134), kind="one")
    d.dots((410,), 142, "two")
    d.text(410, 168, "N", "small", "middle")
    d.text(410, 184, "ENABLING", "two", "middle")
    d.dots((530,), 142, "two")
    d.text(548, 168, "N+1", "small")
    d.text(548, 184, "READY", "two")
    d.line((120, 150), (150, 232), kind="dashed")
    d.line((220, 150), (250, 232), kind="dashed")
    d.line((320, 150), (350, 232), kind="dashed")
    d.text(214, 200, "copied in rounds, while writers work", "small halo", "middle")
    d.line((80, 242), (360, 242), kind="dashed", arrow=False)
    d.dots((96, 146, 196, 246, 296, 346), 242, "hollow")
    d.line((360, 242), (738, 242), arrow=False)
    d.dots((440,), 242, "two")
    d.text(440, 268, "N", "small", "middle")
    d.text(440, 284, "a lock", "two", "middle")
    d.dots((490,), 242, "two")
    d.text(490, 268, "N+1", "small", "middle")
    d.text(490, 284, "open", "two", "middle")
    d.dots((610, 660, 710), 242)
    for x in (610, 660, 710):
        d.line((x, 66), (x, 234), kind="one")
    d.line((492, 235), (526, 149), kind="two")
    d.text(10, 320, "time", "small")
    d.line((44, 316), (738, 316))
    return d


def history() -> Drawing:
    """Draw one history at two places, there and back."""
    d = Drawing(
        "history",
        "One history, two places",
        "Versions 0 to 8 are written at the old place and copied to the new one under the same "
        "numbers. Versions 9 and 10 are the move. Versions 11 to 56 are written at the new place. "
        "Versions 57 and 58 are the way back: what came since is copied to the old place under the "
        "same numbers, and from version 59 on everybody writes there again.",
        760,
        210,
    )
    spans = ((150, "0 … 8"), (292, "9 · 10"), (435, "11 … 56"), (578, "57 · 58"), (680, "59 …"))
    for x, text in spans:
        d.text(x, 22, text, "small", "middle")
    d.shade(262, 32, 60, 150)
    d.shade(548, 32, 60, 150)
    d.text(10, 74, "old place", "name")
    d.text(10, 144, "new place", "name")
    d.line((90, 70), (740, 70), arrow=False)
    d.line((90, 140), (640, 140), arrow=False)
    d.dots((110, 150, 190, 230), 70)
    d.dots((277, 307), 70, "two")
    d.dots((110, 150, 190, 230), 140, "hollow")
    d.dots((277, 307), 140, "two")
    d.dots((350, 390, 430, 470, 510), 140)
    d.dots((350, 390, 430, 470, 510), 70, "hollow")
    d.dots((563, 593), 70, "two")
    d.dots((563, 593), 140, "two")
    d.dots((640, 680, 720), 70)
    for x in (110, 150, 190, 230):
        d.line((x, 80), (x, 130), kind="dashed")
    for x in (350, 390, 430, 470, 510):
        d.line((x, 130), (x, 80), kind="dashed")
    d.text(292, 172, "enable", "two", "middle")
    d.text(578, 172, "disable", "two", "middle")
    d.dots((20,), 198)
    d.text(32, 202, "written here", "small")
    d.dots((120,), 198, "hollow")
    d.text(132, 202, "copied here", "small")
    d.dots((220,), 198, "two")
    d.text(232, 202, "commits of the move itself", "small")
    return d


def race() -> Drawing:
    """Draw two writers that want one version, with and without put-if-absent."""
    d = Drawing(
        "race",
        "Two writers, one version",
        "On the left both writers ask the store to create version 7 if it isn't there. One is told "
        "yes, the other no; the loser writes version 8. On the right both look first, both see "
        "that version 7 is free, and both write it: the second one replaces the first, whose rows "
        "are lost although its commit was acknowledged.",
        760,
        250,
    )
    for left, title in ((10, "put-if-absent"), (400, "look first, write later")):
        d.text(left, 20, title, "name")
        d.box(left, 36, 90, 34, "writer A")
        d.box(left, 176, 90, 34, "writer B")
        d.box(left + 230, 96, 110, 54, "the store", "version 7")
    d.line((104, 53), (270, 92), kind="one")
    d.text(182, 58, "create 7", "small")
    d.text(290, 60, "yes", "one", "middle")
    d.line((104, 193), (270, 154), kind="two")
    d.text(182, 196, "create 7", "small")
    d.text(290, 194, "no: it is A's", "two", "middle")
    d.text(10, 236, "B reads A's commit, and writes version 8.", "small")
    d.line((494, 47), (660, 88), kind="dashed", back=True)
    d.line((494, 62), (636, 96), kind="one")
    d.text(600, 58, "1  free?  3  write", "small")
    d.line((494, 199), (660, 158), kind="dashed", back=True)
    d.line((494, 184), (636, 150), kind="two")
    d.text(600, 200, "2  free?  4  write", "small")
    d.text(400, 236, "B replaces A's commit. A was told that it succeeded.", "small")
    return d


def layers() -> Drawing:
    """Draw the layers of the source."""
    d = Drawing(
        "layers",
        "The layers of Lakeferry",
        "From the top: command line, fleet, server and the clients for PySpark; below them the "
        "Python API, which chooses the engine; below it redirect, protection, export, transfer, "
        "catalogs and dataset, beside the engines; then table; then log, which decides and does no "
        "I/O, and storage, which does. Each layer uses those below it.",
        760,
        330,
    )
    tops = ("cli", "command line"), ("fleet", "many tables"), ("server", "lakeferry serve")
    for number, (name, what) in enumerate(tops):
        d.box(10 + 150 * number, 10, 135, 48, name, what)
        d.line((77 + 150 * number, 60), (77 + 150 * number, 82))
    d.box(590, 10, 160, 48, "spark", "PySpark sessions")
    d.line((670, 60), (670, 152))
    d.box(10, 86, 435, 42, "api", "the Python API; chooses the engine")
    d.line((140, 130), (140, 152))
    d.line((400, 130), (475, 152))
    d.box(10, 156, 400, 48, "redirect · protection · export · transfer", "catalogs · dataset")
    d.box(430, 156, 135, 48, "engines", "here, or Spark")
    d.box(590, 156, 160, 48, "dataset, redirect", "where a table is")
    d.line((210, 206), (210, 228))
    d.line((498, 206), (498, 228))
    d.line((670, 206), (670, 228))
    d.box(10, 232, 740, 34, "table: loads, commits, checkpoints")
    d.line((190, 268), (190, 282))
    d.line((570, 268), (570, 282))
    d.box(10, 286, 360, 40, "log", "decides; no I/O, no clock")
    d.box(390, 286, 360, 40, "storage", "does: disk, S3, GCS, Azure, lakeFS")
    return d


def deployment() -> Drawing:
    """Draw a server in production."""
    d = Drawing(
        "deployment",
        "A server in production",
        "Clients reach a proxy by HTTPS and WebSockets; it passes everything but the metrics to "
        "lakeferry serve on port 8470 of the same machine, which systemd runs. The server keeps "
        "datasets, tokens and its queue below its root, on local disk or in an object store. "
        "Where the root is in an object store, clients send objects there directly, by signed "
        "URLs. Prometheus reads the metrics from the server itself; Grafana shows them.",
        760,
        250,
    )
    d.box(10, 70, 130, 56, "clients", "push, pull, ls")
    d.line((142, 98), (226, 98), kind="one")
    d.text(184, 88, "https", "small", "middle")
    d.box(230, 70, 130, 56, "nginx", "TLS")
    d.line((362, 98), (426, 98), kind="one")
    d.text(394, 88, "8470", "small", "middle")
    d.box(430, 70, 140, 56, "lakeferry serve", "under systemd")
    d.line((572, 98), (636, 98), kind="one")
    d.box(640, 60, 110, 76, "root", "datasets,", "tokens, queue")
    d.line((75, 66), (75, 26), (695, 26), (695, 56), kind="dashed")
    d.text(385, 18, "objects, by signed URLs, if the root is in an object store", "small", "middle")
    d.box(430, 180, 140, 48, "Prometheus", "alerts")
    d.line((500, 176), (500, 130))
    d.text(508, 158, "/metrics", "small")
    d.box(230, 180, 130, 48, "Grafana", "dashboard")
    d.line((362, 204), (426, 204))
    return d


DRAWINGS: tuple[Callable[[], Drawing], ...] = (move, history, race, layers, deployment)


def main() -> None:
    """Write all pictures."""
    for draw in DRAWINGS:
        drawing = draw()
        (FOLDER / f"{drawing.name}.svg").write_text(drawing.svg())


if __name__ == "__main__":
    main()
