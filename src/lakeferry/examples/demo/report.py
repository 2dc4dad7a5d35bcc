"""Writes the demo's report, one HTML file.

Strings from tables or other engines are escaped. The page follows the reader's light or dark
setting, has no script, and loads nothing from a server.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from html import escape

from lakeferry.cli import render
from lakeferry.examples.demo.findings import Findings
from lakeferry.examples.demo.spark import FOLLOW_OPTION, HELD
from lakeferry.examples.demo.timeline import drawing
from lakeferry.examples.demo.writer import ROWS_PER_COMMIT
from lakeferry.version import LAKEFERRY_VERSION

_STYLE = """
:root { color-scheme: light dark; --ink: #1b2733; --quiet: #5b6b7b; --paper: #fff;
  --card: #f4f7fa; --line: #dbe3ea; --old: #b3541e; --new: #0b7a75; --bad: #b3261e;
  --good: #1a7f4b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --quiet: #9aa9b8;
  --paper: #12181f; --card: #1b242e; --line: #2d3a47; --old: #f0a36b; --new: #4fd1c5;
  --bad: #ff8a80; --good: #6fdc9f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 2.75rem 0 .6rem; }
p { margin: .4rem 0; max-width: 46rem; }
.quiet, figcaption { color: var(--quiet); font-size: .9rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr));
  gap: .75rem; margin: 1.75rem 0 0; padding: 0; list-style: none; }
.tiles li { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: .8rem 1rem; }
.tiles b { display: block; font-size: 1.55rem; line-height: 1.25; font-weight: 650;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.tiles span { color: var(--quiet); font-size: .85rem; }
.good b, .ok { color: var(--good); } .bad b, .wrong { color: var(--bad); font-weight: 650; }
figure { margin: 1rem 0 0; overflow-x: auto; }
svg { display: block; width: 100%; min-width: 44rem; height: auto; }
figcaption { margin-top: .5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .93rem; }
th { text-align: left; color: var(--quiet); font-weight: 500; font-size: .85rem; }
th, td { padding: .45rem .9rem .45rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
code, pre { font: .87em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono",
  monospace; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: .8rem 1rem; margin: .8rem 0 0; overflow-x: auto; }
td code { white-space: nowrap; }
"""


_STORY = """A process appended orders about twice a second, by the old path, while
Lakeferry moved the table to another place and brought it back. Every append that was
acknowledged was looked for afterwards."""


def summary(found: Findings) -> list[tuple[str, str]]:
    """Return what a person wants to know in the end, as names and values."""
    there, back = found.there, found.back
    versions = found.versions
    return [
        ("rows acknowledged to the writer", f"{found.rows_acknowledged:,}"),
        ("lost", f"{found.lost:,}"),
        ("there twice", f"{found.doubled:,}"),
        ("refused, and retried", _retried(found)),
        ("writers blocked by the move", f"{there.blocked_ms} ms"),
        ("writers blocked by the return", f"{back.blocked_ms} ms"),
        ("copied there", _copied(there.files_copied, there.bytes_copied)),
        ("copied back", _copied(back.files_copied, back.bytes_copied)),
        ("versions before the move", f"0 to {versions['enabling'] - 1}"),
        ("versions of the redirect", f"{versions['enabling']} to {versions['normal']}"),
        ("last version", f"{versions['last']}, with {found.rows:,} rows"),
        ("checks passed", f"{len(found.checks) - len(found.failed)} of {len(found.checks)}"),
    ]


def report_page(found: Findings) -> str:
    """Return the report."""
    title = (
        "The demo found a problem"
        if found.failed
        else "A table moved and came back, and nobody lost a row"
    )
    seconds = round((found.ended_ms - found.began_ms) / 1000)
    when = f"{render.moment(found.began_ms)} · {seconds} seconds on this machine’s disk"
    numbers = ((escape(name), escape(value)) for name, value in summary(found))
    body = "\n".join(
        [
            f"<h1>{title}</h1>",
            f"<p>{_STORY}</p>",
            f'<p class="quiet">Lakeferry {LAKEFERRY_VERSION} · {when}</p>',
            _tiles(found),
            "<h2>The writer’s commits</h2>",
            _timeline(found),
            "<h2>The commands</h2>",
            _commands(found),
            "<h2>What each client saw while the table was redirected</h2>",
            _clients(found),
            "<h2>One history, two places</h2>",
            _versions(found),
            "<h2>What was checked</h2>",
            _checks(found),
            "<h2>All numbers</h2>",
            _table(("", ""), numbers),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Lakeferry: {title}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _tiles(found: Findings) -> str:
    there, back = found.there, found.back
    tiles = [
        (f"{found.rows_acknowledged:,}", "rows acknowledged", ""),
        (f"{found.lost:,}", "lost", "bad" if found.lost else "good"),
        (f"{found.doubled:,}", "there twice", "bad" if found.doubled else "good"),
        (f"{there.blocked_ms} ms", "writers blocked by the move", ""),
        (f"{back.blocked_ms} ms", "writers blocked by the return", ""),
        (render.size(there.bytes_copied), f"copied in {there.files_copied:,} files", ""),
    ]
    shown = (
        f'<li class="{kind}"><b>{escape(number)}</b><span>{escape(name)}</span></li>'
        for number, name, kind in tiles
    )
    return f'<ul class="tiles">{"".join(shown)}</ul>'


def _timeline(found: Findings) -> str:
    words = (
        f"Each dot is a commit of {ROWS_PER_COMMIT} rows that was acknowledged, at the place "
        f"that got it. A red one is an attempt that was refused. Retried: {_retried(found)}. {HELD}"
    )
    return f"<figure>{drawing(found)}<figcaption>{words}</figcaption></figure>"


def _commands(found: Findings) -> str:
    old, new = (escape(shlex.quote(str(place))) for place in (found.old, found.new))
    return (
        f"<pre>$ lakeferry redirect enable {old} \\\n    {new} --mode writer-only\n"
        f"$ lakeferry redirect status {old}\n$ lakeferry redirect disable {old}</pre>"
    )


def _clients(found: Findings) -> str:
    rows = (
        (
            escape(each.client),
            f"<code>{escape(each.path)}</code>",
            f"{each.version:,}",
            f"{each.rows:,}",
            escape(each.writes),
        )
        for each in found.sights
    )
    heads = ("client", "path that it was given", "version", "rows", "may write")
    return _table(heads, rows, numbers=(2, 3)) + (
        '<p class="quiet">Rows differ from line to line because the writer continued. Spark’s '
        f"option is <code>{FOLLOW_OPTION}=true</code>; nothing of Lakeferry ran in its process.</p>"
    )


def _versions(found: Findings) -> str:
    at = found.versions
    rows = [
        (f"0 to {at['enabling'] - 1}", "before the move; the same at both places"),
        (f"{at['enabling']}", "ENABLING: writers wait"),
        (f"{at['ready']}", "READY: clients that follow the redirect use the new place"),
        (
            f"{at['ready'] + 1} to {at['dropping'] - 1}",
            "written at the new place, and brought back under the same numbers",
        ),
        (f"{at['dropping']}", "DROPPING: the new place is locked"),
        (f"{at['normal']}", "NORMAL: an ordinary table at the old place again"),
        (f"{at['normal'] + 1} to {at['last']}", "written at the old place after that"),
    ]
    return _table(("versions", "what they are"), rows)


def _checks(found: Findings) -> str:
    rows = (
        (
            '<span class="ok">holds</span>' if each.ok else '<span class="wrong">WRONG</span>',
            escape(each.what),
            escape(each.detail),
        )
        for each in found.checks
    )
    return _table(("", "what", "found"), rows)


def _table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()
) -> str:
    """Return a table; cells are HTML already."""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f'<{tag} class="number">{cell}</{tag}>'
            if index in numbers
            else f"<{tag}>{cell}</{tag}>"
            for index, cell in enumerate(row)
        )

    head = f"<tr>{cells('th', heads)}</tr>" if any(heads) else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f'<div class="scroll"><table>{head}{body}</table></div>'


def _copied(files: int, size_bytes: int) -> str:
    return f"{render.counted(files, 'file')}, {render.size(size_bytes)}"


def _retried(found: Findings) -> str:
    if not found.retried:
        return "none"
    commits = render.counted(found.retried, "commit")
    return f"{commits}, for {found.longest_wait_ms} ms at most"
