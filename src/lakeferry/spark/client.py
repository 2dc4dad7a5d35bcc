"""Where the tables of a Spark session are, and whether it may write them.

A :class:`Client` answers for one session. Whatever isn't redirected comes back
as it was given, to the letter: Spark then does what it would have done. So it
does where there is no table yet, and where we can't look.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakeferry.errors import Forbidden, NotATable, TableNotFound, Unauthorized
from lakeferry.redirect.resolve import Resolution, resolve
from lakeferry.spark import places
from lakeferry.spark.references import references, replaced
from lakeferry.spark.tokens import parse_name, path_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TIME_TRAVEL = re.compile(r"@(?:v\d+|\d{17})$")
_DELTA = ("delta", "org.apache.spark.sql.delta.sources.deltadatasource")


@dataclass(frozen=True, slots=True)
class Client:
    """Follows redirects for a Spark session; ``storage_options`` are for our own look at logs."""

    spark: SparkSession
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def is_delta(self, source: str | None) -> bool:
        """Tell whether a format, or Spark's default, is Delta."""
        if source is None:
            source = self.spark.conf.get("spark.sql.sources.default")
        return source is not None and source.lower() in _DELTA

    def readable(self, path: str) -> str:
        """Return the path at which to read the table at ``path``."""
        return self._place(path, ())

    def writable(self, path: str, *operations: str) -> str:
        """Return the path at which to commit these operations to the table at ``path``.

        Raises :class:`~lakeferry.errors.RedirectInProgress` while nobody may, and
        :class:`~lakeferry.errors.RedirectRuleViolated` where a no-redirect rule
        keeps the session at the source and doesn't allow one of them.
        """
        return self._place(path, operations)

    def table(self, name: str, *operations: str) -> str | None:
        """Return the path that a table moved to; ``None`` where it still is what ``name`` says.

        With ``operations`` it is to be written, as in :meth:`writable`.
        """
        parts = parse_name(name)
        if parts is None:
            return None
        path = path_of(parts)
        if path is None:
            return self._moved(parts, operations)
        place = self._place(path, operations)
        return None if place == path else place

    def sql(self, text: str) -> str:
        """Return a SQL text in which every redirected table is at its new place."""
        moved = []
        for reference in references(text):
            if reference.path is not None:
                place: str | None = self._place(reference.path, reference.operations)
                place = None if place == reference.path else place
            else:
                place = self._moved(reference.name, reference.operations)
            if place is not None:
                moved.append((reference, place))
        return replaced(text, moved)

    def _moved(self, name: Sequence[str], operations: Sequence[str]) -> str | None:
        """Return the new path of a table of the catalog, if it has one."""
        uri = places.location_of(self.spark, name)
        found = None if uri is None else self._resolve(uri, operations)
        if found is None or not found.redirected:
            return None
        return places.spelled(self.spark, found.location)

    def _place(self, path: str, operations: Sequence[str]) -> str:
        spellings = _spellings(path) if not operations else [(path, "")]
        for table, rest in spellings:
            uri = places.uri_of(self.spark, table)
            found = None if uri is None else self._resolve(uri, operations)
            if found is not None:
                if not found.redirected:
                    return path
                return places.spelled(self.spark, found.location) + rest
        return path

    def _resolve(self, uri: str, operations: Sequence[str]) -> Resolution | None:
        try:
            found = resolve(
                uri,
                storage_options=self.storage_options,
                app_name=self.spark.conf.get("spark.app.name", None),
                write=bool(operations),
            )
        except (TableNotFound, NotATable):
            return None
        except (Forbidden, Unauthorized) as refused:
            raise type(refused)(
                refused.message,
                cause=refused.cause,
                remedy="Lakeferry reads the log by itself, with the credentials that it finds in "
                "the environment: give it others with install(spark, storage_options={…})",
                **refused.fields,
            ) from refused
        for operation in operations:
            found.check_operation(operation)
        return found


def _spellings(path: str) -> Iterator[tuple[str, str]]:
    """Yield the tables that a path may be about, and what it says besides.

    Delta takes a version or a time after an ``@``, and a partition's folder for the
    part of the table that is in it.
    """
    yield path, ""
    base, rest = path, ""
    match = _TIME_TRAVEL.search(path)
    if match is not None:
        base, rest = path[: match.start()], match.group()
        yield base, rest
    folder, slash, name = base.rstrip("/").rpartition("/")
    while "=" in name and folder:
        rest = f"{slash}{name}{rest}"
        yield folder, rest
        folder, slash, name = folder.rpartition("/")
