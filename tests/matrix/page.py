"""Writes the table of ``docs/compatibility.md`` from the runs that are kept.

The block between two comments is replaced, everything else of the page stays. Rows of a group
with the same cells are one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tests.matrix.cells import Cell, MatrixRun, Outcome, read_runs

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
BEGIN = "<!-- make matrix: begin -->"
END = "<!-- make matrix: end -->"
_NOT_TRIED = "–"
_TEXTS = {
    Outcome.WORKS: "works",
    Outcome.FROZEN: "**frozen**",
    Outcome.REFUSED: "refused: `{}`",
    Outcome.BROKEN: "**broken**: `{}`",
}


def table(runs: Sequence[MatrixRun]) -> str:
    """Return the table: a column for each Spark, a row for whatever has the same cells."""
    heads = [f"{run.spark} / {run.delta}" if run.delta else run.spark for run in runs]
    lines = [
        f"| caller | does | {' | '.join(heads)} |",
        f"|{'---|' * (2 + len(runs))}",
    ]
    for group, whats in groupby(_rows(runs), key=lambda row: row[0]):
        first = group
        for cells, names in _alike([(what, cells) for _, what, cells in whats]):
            lines.append(f"| {first} | {', '.join(names)} | {' | '.join(cells)} |")
            first = ""
    return "\n".join(lines)


def block(runs: Sequence[MatrixRun]) -> str:
    """Return what is between the comments."""
    days = sorted({run.day for run in runs})
    tried = " to ".join(dict.fromkeys([days[0], days[-1]]))
    pythons = sorted({f"Python {run.python} and pyarrow {run.pyarrow}" for run in runs})
    return f"{table(runs)}\n\nTried on {tried}, with {'; '.join(pythons)}."


def replaced(page: str, runs: Sequence[MatrixRun]) -> str:
    """Return the page with the block of these runs."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{block(runs)}\n{END}{after}"


def write_page() -> None:
    """Write the block anew."""
    PAGE.write_text(replaced(PAGE.read_text(), read_runs()))


def _rows(runs: Sequence[MatrixRun]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return group, name and cells of each row, in the order in which the runs have them."""
    found = [{(cell.group, cell.what): cell for cell in run.cells} for run in runs]
    keys = list(dict.fromkeys(key for cells in found for key in cells))
    groups = list(dict.fromkeys(group for group, _ in keys))
    keys.sort(key=lambda key: groups.index(key[0]))
    return [(*key, tuple(_text(cells.get(key)) for cells in found)) for key in keys]


def _text(cell: Cell | None) -> str:
    return _NOT_TRIED if cell is None else _TEXTS[cell.outcome].format(cell.detail)


def _alike(
    rows: Sequence[tuple[str, tuple[str, ...]]],
) -> list[tuple[tuple[str, ...], list[str]]]:
    """Join the rows that have the same cells."""
    found: dict[tuple[str, ...], list[str]] = {}
    for what, cells in rows:
        found.setdefault(cells, []).append(what)
    return list(found.items())
