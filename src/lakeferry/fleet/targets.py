"""Chooses the target of each table, and finds targets that are in each other's way. Pure.

A prefix keeps the path that a table has below the prefix that was scanned. A template has
``{name}``, the last part of the table's path or name, or ``{path}``, all parts joined by ``_``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lakeferry.catalogs import KINDS, split_name
from lakeferry.errors import InvalidInput
from lakeferry.fleet.inventory import FleetProblem, FleetTable
from lakeferry.storage import normalise
from lakeferry.storage.uris import encode_name, join, relative_name

TAKEN, NESTED = "target_taken_twice", "target_in_a_table"
_FIELD = re.compile(r"\{[^{}]*\}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True, slots=True)
class TargetRule:
    """How targets are named: ``to`` is a prefix or a template.

    ``location`` is the prefix of the places of targets that are new names in a catalog.
    """

    to: str
    location: str | None = None

    def target(self, table: FleetTable) -> str:
        """Return the target of a table: a URI, or a name in a catalog."""
        path = path_below_root(table)
        if "{" not in self.to and self.to.partition(":")[0] not in KINDS:
            return join(normalise(self.to), path)
        values = {"{name}": path.rpartition("/")[2], "{path}": path.replace("/", "_")}
        found = _FIELD.findall(self.to)
        if not found or set(found) - values.keys():
            raise InvalidInput(
                f"{self.to!r} doesn't give each target a name of its own",
                remedy="put {name} or {path} into it, as in 'sql:sales.new.{name}'",
            )
        # A URI is decoded once more: a table's name must not become a path by that.
        is_encoded = self.to.partition(":")[0] not in KINDS and _SCHEME.match(self.to) is not None

        def value(match: re.Match[str]) -> str:
            text = values[match.group()]
            return encode_name(text) if is_encoded else text

        target = _FIELD.sub(value, self.to)
        if split_name(target) is not None:
            return target
        place = normalise(target)
        if relative_name(normalise(outer_place(self.to)), place) is None:
            raise InvalidInput(
                f"{self.to!r} leads out of {outer_place(self.to)}",
                cause=f"the target of {table.uri} would be {place}",
                remedy="don't write '..' after {name} or {path}",
            )
        return place

    def place(self, table: FleetTable) -> str | None:
        """Return where the files of a new name in a catalog go."""
        return (
            None
            if self.location is None
            else join(normalise(self.location), path_below_root(table))
        )


def outer_place(to: str) -> str:
    """Return the folder, or the part of a catalog, that has all targets of a rule in it."""
    if "{" not in to:
        return to
    lead = to.partition("{")[0]
    if to.partition(":")[0] in KINDS:
        kind, _, name = lead.partition(":")
        return f"{kind}:{name.rpartition('.')[0]}"
    return lead[: lead.rfind("/") + 1] or "."


def path_below_root(table: FleetTable) -> str:
    """Return the path that a table has below what was scanned, or the end of its name."""
    if table.name is not None and table.root.partition(":")[0] in KINDS:
        name = table.name.partition(":")[2]
        prefix = table.root.partition(":")[2]
        inner = name.removeprefix(f"{prefix}.") if prefix and name != prefix else name
        return inner.replace(".", "/")
    return relative_name(table.root, table.uri) or table.uri.rpartition("/")[2]


def target_problems(
    targets: Mapping[str, Iterable[str]], tables: Iterable[str]
) -> dict[str, FleetProblem]:
    """Return a problem for each table whose target is in the way of another.

    ``targets`` has the targets, and places, of each table by its URI; ``tables`` are all places
    where tables are known to be.
    """
    owners: dict[str, list[str]] = {}
    for uri, places in targets.items():
        for place in dict.fromkeys(places):
            owners.setdefault(place, []).append(uri)
    occupied = {*tables, *owners}
    found: dict[str, FleetProblem] = {}
    for place, uris in owners.items():
        for uri in uris:
            if uri == place:
                found[uri] = FleetProblem(TAKEN, "its target is its present place", _OTHER)
            elif len(uris) > 1:
                others = ", ".join(each for each in uris if each != uri)
                message = f"{place} is also the target of {others}"
                found[uri] = FleetProblem(TAKEN, message, _OTHER)
            elif (outer := _outer(place, occupied)) is not None:
                message = f"its target {place} is inside of the table at {outer}"
                found[uri] = FleetProblem(NESTED, message, _OTHER)
    return found


_OTHER = "choose another target: lakeferry fleet plan --to, or a list with --from-file"


def _outer(place: str, occupied: set[str]) -> str | None:
    """Return the table in whose folder a place is."""
    while "/" in place.partition("://")[2]:
        place = place.rpartition("/")[0]
        if place in occupied:
            return place
    return None
