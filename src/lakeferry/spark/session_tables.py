"""Finds where a table of a Spark session is now, and whether it may be written.

A name or path that isn't redirected is returned unchanged, so Spark does what it would have done
without us. The same holds if there is no table yet, or if we can't look there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakeferry.errors import Forbidden, NotATable, TableNotFound, Unauthorized
from lakeferry.redirect.resolve import Resolution, resolve_table
from lakeferry.spark import table_locations
from lakeferry.spark.redirected_path import NewPlace, at_name, name_parts, split_time_travel
from lakeferry.spark.session_catalogs import check_session_catalog
from lakeferry.spark.sql_tokens import is_delta_format, parse_name, path_of, with_backquotes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUOTED_NAMES = ("spark.sql.ansi.enabled", "spark.sql.ansi.doubleQuotedIdentifiers")
"""The settings that must be "true" for names between double quotes."""


@dataclass(frozen=True, slots=True)
class SessionTables:
    r"""The tables of a Spark session; \`\`storage_options\`\` are for reading logs."""

    spark: SparkSession
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def is_delta(self, source: str | None) -> bool:
        """Tell whether a format, or Spark's default, is Delta."""
        if source is None:
            source = self.spark.conf.get("spark.sql.sources.default")
        return source is not None and is_delta_format(source)

    def moved_path(self, path: str, *operations: str) -> NewPlace | None:
        """Return where the table at ``path`` is now; ``None`` if it is still there.

        With ``operations`` the table is checked for these commits. Raises
        :class:`~lakeferry.errors.RedirectInProgress` while a redirect blocks all writers,
        and :class:`~lakeferry.errors.RedirectRuleViolated` if a no-redirect rule keeps the
        session at the source but doesn't allow one of the operations.
        """
        return self._place(path, operations)

    def moved_table(self, name: str, *operations: str) -> NewPlace | None:
        """Return where a table is now; ``None`` if ``name`` still leads to it.

        With ``operations`` the table is checked for these commits, as in :meth:`moved_path`.
        """
        parts = self.parts_of(name)
        if parts is None:
            return None
        path = path_of(parts)
        return self._moved(parts, operations) if path is None else self._place(path, operations)

    def parts_of(self, name: str) -> tuple[str, ...] | None:
        """Return the parts of a table name as users write it, or ``None`` if it isn't a name."""
        return parse_name(self._with_backquotes(name))

    def _with_backquotes(self, text: str) -> str:
        """Return a text whose quoted names have backquotes, whatever this session's settings."""
        is_changed = '"' in text and self._has_quoted_names()
        return with_backquotes(text) if is_changed else text

    def _moved(
        self, name: Sequence[str], operations: Sequence[str], known: set[str] | None = None
    ) -> NewPlace | None:
        """Return the new place of a table of the catalog, if it has moved."""
        uri = self._location_of(name)
        found = None if uri is None else self._resolve(uri, operations)
        if found is None:
            return None
        _remember(found, known)
        return self._new_place(found, ".".join(name)) if found.redirected else None

    def _place(
        self, path: str, operations: Sequence[str], known: set[str] | None = None
    ) -> NewPlace | None:
        spellings = _spellings(path) if not operations else [(path, "")]
        for table, rest in spellings:
            uri = self._uri_of(table)
            found = None if uri is None else self._resolve(uri, operations)
            if found is not None:
                _remember(found, known)
                place = self._new_place(found, path, rest) if found.redirected else None
                return None if place is not None and place == NewPlace(path) else place
        return None

    def _new_place(self, found: Resolution, asked: str, rest: str = "") -> NewPlace:
        """Return where Spark finds a table that moved; ``rest`` followed its path.

        Raises :class:`~lakeferry.errors.CatalogManaged` if it has to be opened by its name, and
        this session can't do that.
        """
        path = self._spelled(found.location)
        if not found.managed:
            return NewPlace(path + rest)
        name = name_parts(found.name)
        if name is None:
            raise found.only_by_name()
        place = at_name(path, name, rest, asked)
        self._check_catalog(place, found.location)
        return place

    def _resolve(self, uri: str, operations: Sequence[str]) -> Resolution | None:
        try:
            found = resolve_table(
                uri,
                storage_options=self.storage_options,
                app_name=self._app_name(),
                write=bool(operations),
                allow_managed=True,
            )
            if found.managed and not found.redirected:
                raise found.only_by_name()
        except (TableNotFound, NotATable):
            return None
        except (Forbidden, Unauthorized) as refused:
            raise type(refused)(
                refused.message,
                cause=refused.cause,
                remedy="Lakeferry reads the log itself, with credentials from the environment: "
                "give it other credentials with install(spark, storage_options={…})",
                **refused.fields,
            ) from refused
        for operation in operations:
            found.check_operation(operation)
        return found

    # --- What a session of another kind is asked in another way (spark/connect_client.py) ---

    def _has_quoted_names(self) -> bool:
        """Return True if double quotes are around names in this session, not around strings."""
        return all(self.spark.conf.get(name) == "true" for name in QUOTED_NAMES)

    def _location_of(self, name: Sequence[str]) -> str | None:
        """Return where a Delta table of Spark's own catalog is."""
        return table_locations.location_of(self.spark, name)

    def _uri_of(self, path: str) -> str | None:
        """Return the URI that a path means to Spark; ``None`` if we can't look there."""
        return table_locations.uri_of_location(self.spark, path)

    def _spelled(self, uri: str) -> str:
        """Return our URI as a path for Spark."""
        return table_locations.spelled(self.spark, uri)

    def _check_catalog(self, place: NewPlace, location: str) -> None:
        """Raise an error unless the session finds the table at ``location`` by its name."""
        check_session_catalog(self.spark, place, location)

    def _app_name(self) -> str | None:
        return self.spark.conf.get("spark.app.name", None)


def _spellings(path: str) -> Iterator[tuple[str, str]]:
    """Yield the tables that a path may mean, each with the rest of the path.

    Delta accepts a version or a time after an ``@``, and a partition's folder to select that
    part of the table.
    """
    yield path, ""
    base, rest = split_time_travel(path)
    if rest:
        yield base, rest
    folder, slash, name = base.rstrip("/").rpartition("/")
    while "=" in name and folder:
        rest = f"{slash}{name}{rest}"
        yield folder, rest
        folder, slash, name = folder.rpartition("/")


def _remember(found: Resolution, known: set[str] | None) -> None:
    if known is not None:
        # If the table moved, only its new place is known: its old one must not be read anywhere.
        known.add(found.location)
