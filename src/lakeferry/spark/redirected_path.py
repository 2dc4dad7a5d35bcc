"""Decides what an old path becomes: a new path, or a table's name with a version.

A table that Unity Catalog manages is opened by its name alone: delta-spark refuses its path. So
what was said about the old path has to be said about the name. A path may also have a version or
a time (``path@v3``), which a name can't have: it becomes a reader's option, or a clause in SQL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lakeferry.errors import RedirectNotFollowed
from lakeferry.spark.sql_tokens import spell_path, spell_string, spell_table

_NAME_IN_UNITY = re.compile(r"unity:([^.]+)\.([^.]+)\.([^.]+)")
_TIME_TRAVEL = re.compile(r"@(?:[vV](\d+)|(\d{17}))$")
_MOMENT = re.compile(r"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)(\d{3})")


@dataclass(frozen=True, slots=True)
class NewPlace:
    """Where a table is now. With ``name``, it can't be opened by its path.

    ``version`` or ``moment`` is the older version that a path asked for, if it has a name.
    """

    path: str
    name: tuple[str, ...] = ()
    version: str | None = None
    moment: str | None = None

    @property
    def identifier(self) -> str:
        """The table's name in SQL, and in Spark's methods."""
        return ".".join(map(spell_path, self.name)) if self.name else spell_table(self.path)

    def newest(self, asked: str) -> str:
        """Return the identifier, for a call that can't say which version it means.

        ``asked`` is the old path or name that the call was given.
        """
        if self.travels:
            raise RedirectNotFollowed(
                f"{asked} is an older version of a table that can be opened by its name only",
                cause=f"the table moved to {self.identifier}, which its catalog manages, and this "
                "call takes a name without a version",
                remedy=f"use {self.identifier}; an older version can be read with spark.read or "
                "in SQL",
                table=asked,
                target=self.identifier,
            )
        return self.identifier

    @property
    def travels(self) -> bool:
        """Whether an older version was asked for."""
        return self.version is not None or self.moment is not None

    @property
    def in_query(self) -> str:
        """The table in a query, with the older version that was asked for."""
        if self.version is not None:
            return f"{self.identifier} VERSION AS OF {self.version}"
        if self.moment is not None:
            return f"{self.identifier} TIMESTAMP AS OF {spell_string(self.moment)}"
        return self.identifier

    @property
    def read_options(self) -> dict[str, str]:
        """The options with which a reader finds the older version that was asked for."""
        asked = {"versionAsOf": self.version, "timestampAsOf": self.moment}
        return {key: value for key, value in asked.items() if value is not None}


def name_parts(name: str | None) -> tuple[str, ...] | None:
    """Return catalog, schema and table of a name such as ``unity:cat.schema.t``."""
    found = _NAME_IN_UNITY.fullmatch(name or "")
    return None if found is None else found.groups()


def split_time_travel(path: str) -> tuple[str, str]:
    """Return a path and the version or time behind it: ``@v3``, or empty."""
    match = _TIME_TRAVEL.search(path)
    return (path, "") if match is None else (path[: match.start()], match.group())


def at_name(path: str, name: Sequence[str], rest: str, asked: str) -> NewPlace:
    """Return the place of a table that is opened by its name.

    ``asked`` is the path that was asked for. ``rest`` is what followed the table's own path
    in it: a version or a time, or the folder of a partition, which a name can't express.
    """
    folder, travel = split_time_travel(rest)
    place = NewPlace(path, tuple(name))
    if folder:
        column, _, value = folder.strip("/").rpartition("/")[2].partition("=")
        raise RedirectNotFollowed(
            f"{asked} is a part of a table that can be opened by its name only",
            cause=f"the table moved to {place.identifier}, which its catalog manages, and a name "
            "can't be followed by the folder of a partition",
            remedy=f"read {place.identifier} with a condition on its columns, such as "
            f"{column} = '{value}'",
            table=asked,
            target=place.identifier,
        )
    match = _TIME_TRAVEL.fullmatch(travel)
    if match is None:
        return place
    version, digits = match.groups()
    moment = None
    if digits is not None:
        moment = _MOMENT.sub(r"\1-\2-\3 \4:\5:\6.\7", digits)
    return NewPlace(path, tuple(name), version, moment)


def needs_a_path(source: str, place: NewPlace, call: str) -> RedirectNotFollowed:
    """Return the error for a call that takes a path, where the table has only a name."""
    return RedirectNotFollowed(
        f"{call} can't be given the name of the table that {source} moved to",
        cause=f"the table is {place.identifier} now, which its catalog manages, so no path leads "
        "to it",
        remedy=f"leave out the path, and use the table that is there: {place.identifier}",
        table=source,
        target=place.identifier,
    )


def only_path(place: NewPlace | None, source: str, call: str) -> str:
    """Return the path to use in ``call`` for ``source``; raise an error if there is none."""
    if place is None:
        return source
    if place.name:
        raise needs_a_path(source, place, call)
    return place.path


def not_followed(table: str, place: NewPlace) -> RedirectNotFollowed:
    """Return the error for a statement that would read a table at its old place."""
    shown = place.identifier if place.name else place.path
    return RedirectNotFollowed(
        f"this statement would read {table} at its old place",
        cause=f"the table moved to {shown}, and a view, a function or this form of statement "
        "names the old place in a way that Lakeferry can't replace",
        remedy=f"use {place.identifier} instead of the old name in the statement; if a view "
        "or function has the old name, create it again with the new one",
        table=table,
        target=shown,
    )


def computed_when_it_runs(expression: str) -> RedirectNotFollowed:
    """Return the error for a statement whose tables can't be found before it runs."""
    return RedirectNotFollowed(
        f"the tables that this statement reads are known only when it runs: {expression}",
        cause="its text or the name of a table is computed, so the tables can't be found before "
        "it runs",
        remedy="write the statement or the name itself, or give the computed text to spark.sql",
        expression=expression,
    )
