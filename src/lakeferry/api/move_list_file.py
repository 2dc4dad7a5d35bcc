"""Reads the list of moves, a CSV file, and reports every wrong line before anything begins.

An invalid line, or two lines in conflict, cause the whole list to be refused, with line numbers:
half a list would be worse than none.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakeferry.catalogs import split_name
from lakeferry.engine import VERIFY
from lakeferry.errors import InvalidInput
from lakeferry.redirect import no_redirect_rules
from lakeferry.redirect.entry import Data, Dialect, Mode
from lakeferry.storage import normalise

OPTIONAL = (
    "mode",
    "data",
    "dialect",
    "location",
    "rule",
    "to_existing",
    "unverified",
    "managed",
    "verify",
)
"""The optional columns of a list, named like the options."""
_REQUIRED = ("source", "target")
_KEYWORDS = {"dialect": "dialects", "rule": "rules"}
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_SHOWN = 10

Problem = tuple[int, str]
"""A line's number and its error."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One line of a list.

    ``options`` are those of :meth:`lakeferry.api.redirects.Redirects.enable`.
    """

    line: int
    source: str
    target: str
    options: Mapping[str, Any] = field(default_factory=dict)


def _spelled(table: str) -> str:
    """Return the canonical spelling of a table's name: a name in a catalog, or a URI."""
    return table if split_name(table) is not None else normalise(table)


def read_moves(
    lines: Iterable[str], name: str, defaults: Mapping[str, Any] | None = None
) -> tuple[Wanted, ...]:
    """Return the moves of a list; ``defaults`` are for empty or missing cells.

    Raises :class:`~lakeferry.errors.InvalidInput` with the invalid lines of the file ``name``.
    """
    reader = csv.reader(lines, strict=True)
    problems: list[Problem] = []
    wanted: list[Wanted] = []
    try:
        header = [cell.strip().lower() for cell in next(reader, [])]
        if (wrong := _about_header(header)) is not None:
            raise _refused(name, [(1, wrong)])
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            try:
                wanted.append(_wanted(reader.line_num, header, cells, defaults or {}))
            except InvalidInput as bad:
                problems.append((reader.line_num, str(bad)))
    except (csv.Error, UnicodeDecodeError) as broken:
        problems.append((reader.line_num, str(broken)))
    problems += _clashes(wanted)
    if problems:
        raise _refused(name, problems)
    return tuple(wanted)


def _about_header(header: Sequence[str]) -> str | None:
    for column in _REQUIRED:
        if column not in header:
            return f"the column {column!r} is missing"
    for column in header:
        if column not in _REQUIRED and column not in OPTIONAL:
            return f"there is no column {column!r}"
        if header.count(column) > 1:
            return f"the column {column!r} is given twice"
    return None


def _wanted(
    line: int, header: Sequence[str], cells: Sequence[str], defaults: Mapping[str, Any]
) -> Wanted:
    if len(cells) > len(header):
        raise InvalidInput(f"it has {len(cells)} cells, but there are {len(header)} columns")
    row = {name: cell.strip() for name, cell in zip(header, cells, strict=False)}
    for name in _REQUIRED:
        if not row.get(name):
            raise InvalidInput(f"it has no {name}")
    given = {name: _value(name, row[name]) for name in OPTIONAL if row.get(name)}
    options = {**defaults, **{_KEYWORDS.get(name, name): each for name, each in given.items()}}
    if options.get("unverified") and not options.get("to_existing"):
        raise InvalidInput("unverified is true, but to_existing isn't")
    if options.get("location") is not None:
        normalise(options["location"])
    return Wanted(line, _spelled(row["source"]), _spelled(row["target"]), options)


def _value(column: str, text: str) -> Any:
    """Return a cell's value in the form that :meth:`Redirects.enable` takes."""
    match column:
        case "mode":
            return _one_of(text, [mode.value for mode in Mode])
        case "data":
            return _one_of(text, [Data.COPY.value, Data.REFERENCE.value])
        case "verify":
            return _one_of(text, VERIFY)
        case "dialect":
            known = [dialect.value for dialect in Dialect]
            return tuple(_one_of(each.strip(), known) for each in text.split(","))
        case "rule":
            rules = tuple(each.strip() for each in text.split(";") if each.strip())
            no_redirect_rules.parse_rules(rules)
            return rules
        case "to_existing" | "unverified" | "managed":
            return _TRUTHS[_one_of(text.lower(), list(_TRUTHS))]
    return text


def _one_of(text: str, known: Sequence[str]) -> str:
    if text not in known:
        raise InvalidInput(f"{text!r} isn't one of {', '.join(known)}")
    return text


def _clashes(wanted: Sequence[Wanted]) -> list[Problem]:
    """Return the lines that move a table again, or a second table to the same place."""
    found: list[Problem] = []
    sources: dict[str, int] = {}
    targets: dict[str, int] = {}
    for each in wanted:
        ends = [("source", each.source, sources), ("target", each.target, targets)]
        if each.options.get("location") is not None:
            ends.append(("location", normalise(each.options["location"]), targets))
        for what, place, seen in ends:
            first = seen.setdefault(place, each.line)
            if first != each.line:
                found.append((each.line, f"it has the same {what} as line {first}: {place}"))
    return found


def _refused(name: str, problems: Sequence[Problem]) -> InvalidInput:
    told = [f"line {line}: {why}" for line, why in sorted(problems)]
    more = [f"and {len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
    return InvalidInput(
        f"{name} can't be used, and nothing was changed",
        cause="; ".join(told[:_SHOWN] + more),
        remedy=f"correct the file; its columns are source, target and any of {', '.join(OPTIONAL)}",
        file=name,
        lines=sorted({line for line, _ in problems}),
    )
