"""Follows redirects in the statements of a Spark Connect session.

The server answers what the client for PySpark asks the JVM
(:mod:`lakeferry.spark.connect_server`), and the tables of a statement are found in its tokens
(:mod:`lakeferry.spark.connect_sql`). A server shows nobody the places in a plan that it analysed.
So a view or a function over a table that moved is refused, unless the server says that it reads
the new place itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import yaml
from pyspark.errors import PySparkException

from lakeferry.errors import CatalogManaged, RedirectNotFollowed
from lakeferry.redirect.resolve import Resolution
from lakeferry.spark.client import Client, Followed
from lakeferry.spark.connect_server import ConnectServer, uri_of_spelling
from lakeferry.spark.connect_sql import TokenParsed, names_in_explanation, token_statement
from lakeferry.spark.redirected_path import NewPlace, computed_when_it_runs, not_followed
from lakeferry.spark.session_tables import QUOTED_NAMES
from lakeferry.spark.sql_tokens import is_delta_format, parse_name, spell_path
from lakeferry.spark.stored_sql import StoredSql
from lakeferry.spark.table_locations import METRIC_VIEW
from lakeferry.storage.uris import split

FOLLOW_ON_SERVER = "spark.databricks.delta.enableTableRedirectFeature"
"""Makes the server's delta-spark follow writer-only redirects in its own dialect."""

_Name = tuple[str, ...]

_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_MOST_NESTED = 40
_OF_THE_JVM = ("env:", "system:")
_OF_THE_SESSION = ("spark:", "sparkconf:", "hivevar:", "hiveconf:")


class ConnectClient(Client):
    """Follows redirects in one request of a Connect session; a table may move before the next.

    ``views`` are the places that views of this session read, by their names: the server doesn't
    show the texts of all views.
    """

    __slots__ = ("_parsed_texts", "read", "server", "views")

    server: ConnectServer
    views: Mapping[str, Set[str]]
    read: set[str]
    """The places of the tables that were resolved."""
    _parsed_texts: dict[tuple[str, bool], TokenParsed | None]

    def __init__(
        self,
        session: Any,
        storage_options: Mapping[str, str],
        views: Mapping[str, Set[str]] | None = None,
    ) -> None:
        Client.__init__(self, session, storage_options)
        # The session's tables are frozen.
        for name, value in {
            "server": ConnectServer(session),
            "views": views or {},
            "read": set(),
            "_parsed_texts": {},
        }.items():
            object.__setattr__(self, name, value)

    # --- What a plan asks ---

    def check_view_of_name(self, name: str) -> None:
        """Refuse a view that reads a redirected table at its old place."""
        parts = self.parts_of(name)
        if parts is not None and self._is_view(parts):
            self._check_view(parts)

    def check_functions(self, names: Iterable[str]) -> None:
        """Refuse functions in SQL that read a redirected table at its old place."""
        for body in self.server.function_bodies(names):
            self._check_stored(body)

    def check_stream_by_name(self, place: NewPlace) -> None:
        """Refuse a stream into a table by its name, if the server would open it by its path."""
        if self.server.setting(FOLLOW_ON_SERVER) == "true":
            raise RedirectNotFollowed(
                f"this session can't start a stream that writes to {place.identifier}",
                cause=f"with {FOLLOW_ON_SERVER}, delta-spark opens the sink of a stream by its "
                "path, and refuses the path of a table that its catalog manages",
                remedy=f'spark.conf.set("{FOLLOW_ON_SERVER}", "false"), then start it again',
                table=place.path,
                target=place.identifier,
            )

    def views_created(self, text: str) -> list[str]:
        """Return the views that a statement creates, in lower case.

        Those with USING have no text that the server could show later.
        """
        parsed = self._parsed(text)
        return [] if parsed is None else sorted(parsed.statement.views)

    def is_delta(self, source: str | None) -> bool:
        """Tell whether a format, or the server's default, is Delta."""
        return is_delta_format(source or self._default_source())

    # --- Statements ---

    def _followed(
        self,
        text: str,
        args: Any,
        script: Any,
        *,
        is_checked_later: bool = False,
        is_inner: bool = False,
    ) -> Followed:
        parsed = self._parsed(text, args)
        if parsed is not None and parsed.computed_paths:
            raise computed_when_it_runs(parsed.computed_paths[0])
        followed = Client._followed(
            self, text, args, script, is_checked_later=is_checked_later, is_inner=is_inner
        )
        if parsed is not None:
            if is_checked_later and parsed.statement.is_query:
                # Nothing can be checked later here.
                for relation in parsed.statement.computed_functions:
                    self._check_computed_function(parsed, relation, args, script)
            if parsed.others:
                self._check_others(parsed, followed)
        return followed

    def _check_others(self, parsed: TokenParsed, followed: Followed) -> None:
        """Refuse a table that moved, if the server's parser sees it where our words don't.

        The name may also be that of a column.
        """
        moved: dict[_Name, RedirectNotFollowed] = {}
        for name in parsed.others:
            try:
                place = self._moved(name, ())
                if place is not None:
                    raise not_followed(".".join(name), place)
                self._check_views((name,), is_text_only=True)
            except RedirectNotFollowed as refused:
                moved[name] = refused
        if not moved:
            return
        seen = None
        if not parsed.statement.is_script:
            told = self.server.explanation(followed.text, len(parsed.statement.parameters))
            seen = names_in_explanation(told)
        for name, error in moved.items():
            if seen is None or ", ".join(name).lower() in seen:
                raise error

    def _bound(self, text: str, args: Any) -> str | None:
        del text, args  # Parameters are tokens, with their values.
        return None

    def _parsed(self, text: str, args: Any = None) -> TokenParsed | None:
        known, key = self._parsed_texts, (text, bool(args))
        if key not in known:
            whole = self._with_backquotes(self._substituted(text))
            words = whole.upper()
            is_case_sensitive = False
            if "WITH" in words:
                is_case_sensitive = (
                    self.server.registered("spark.sql.caseSensitive", "false") == "true"
                )
            is_created = "LOCATION" in words or "OPTIONS" in words
            default = self._default_source() if is_created else ""
            known[key] = parsed = token_statement(
                whole, default=default, is_case_sensitive=is_case_sensitive, args=args
            )
            if parsed is not None:
                named = [name for each in parsed.statement.relations for name in each.names]
                self.server.look_up([*named, *parsed.others])
        return known[key]

    def _default_source(self) -> str:
        return self.server.registered("spark.sql.sources.default", "delta")

    def _substituted(self, text: str) -> str:
        """Return a text with the values of its variables, which may have variables in them."""
        for _ in range(_MOST_NESTED):
            before, text = text, _VARIABLE.sub(self._variable, text)
            if text == before:
                break
        return text

    def _variable(self, match: re.Match[str]) -> str:
        """Return the value of ``${name}``, as the server will replace it."""
        name = match.group(1)
        if name.startswith(_OF_THE_JVM):
            raise computed_when_it_runs(match.group())
        for prefix in _OF_THE_SESSION:
            name = name.removeprefix(prefix)
        value = self.server.setting(name)
        return match.group() if value is None else value

    def _value_of(self, expression: str, named: Any) -> Any:
        try:
            return self.server.ask(f"SELECT {expression}", named or None)[0][0]
        except PySparkException as failed:
            raise computed_when_it_runs(expression) from failed

    # --- Views and functions ---

    def _is_view(self, name: Sequence[str]) -> bool:
        entry = self.server.entry(name)
        return entry is not None and entry.is_view

    def _check_view(self, name: _Name) -> None:
        Client._check_view(self, name)
        entry = self.server.entry(name)
        if entry is None or entry.text:
            return
        for uri in self.views.get(name[-1].lower(), ()):
            found = self._resolve(uri, ())
            if found is not None and found.redirected:
                raise not_followed(uri, self._new_place(found, uri))

    def _stored_view(self, name: Sequence[str]) -> StoredSql | None:
        entry = self.server.entry(name)
        if entry is None or not entry.text:
            return None
        query = _metric_source(entry.text) if entry.kind == METRIC_VIEW else entry.text
        return StoredSql(query, entry.namespace)

    def _check_functions(self, functions: Set[str], known: Set[str], *, is_text_only: bool) -> None:
        del known, is_text_only  # The texts are all that can be checked.
        self.check_functions(functions)

    def _check_stored_name(self, name: str, names: tuple[_Name, ...], place: NewPlace) -> None:
        """Refuse a table that moved, unless the server reads its new place by the old name."""
        parts = next((each for each in names if ".".join(each) == name), None)
        asked = f"delta.{spell_path(name)}" if parts is None else ".".join(map(spell_path, parts))
        try:
            read = self.server.ask(f"DESCRIBE DETAIL {asked}")[0]["location"]
        except PySparkException:
            read = None
        if read is None or uri_of_spelling(read) != uri_of_spelling(place.path):
            raise not_followed(name, place)

    def _check_analysed(self, query: str, known: Set[str]) -> None:
        """Do nothing: the texts of views and functions were checked."""

    # --- Places ---

    def _resolve(self, uri: str, operations: Sequence[str]) -> Resolution | None:
        found = Client._resolve(self, uri, operations)
        if found is not None:
            self.read.add(found.location)
        return found

    def _has_quoted_names(self) -> bool:
        # Older lines of Spark have the default "false" for the first; they say so.
        return all(
            self.server.registered(name, otherwise) == "true"
            for name, otherwise in zip(QUOTED_NAMES, ("true", "false"), strict=True)
        )

    def _location_of(self, name: Sequence[str]) -> str | None:
        entry = self.server.entry(name)
        if entry is None or entry.is_view or entry.location is None:
            return None
        return uri_of_spelling(entry.location) if is_delta_format(entry.provider or "") else None

    def _uri_of(self, path: str) -> str | None:
        return self.server.uri_of(path)

    def _spelled(self, uri: str) -> str:
        place = split(uri)
        scheme = place.scheme
        if scheme == "s3" and self.server.hadoop("fs.s3.impl") is None:
            scheme = "s3a"
        return f"{scheme}://{place.authority}/{place.path}"

    def _qualified(self, name: Sequence[str]) -> _Name:
        return self.server.qualified(name)

    def _app_name(self) -> str | None:
        return self.server.setting("spark.app.name")

    def _check_catalog(self, place: NewPlace, location: str) -> None:
        try:
            there = self.server.ask(f"DESCRIBE DETAIL {place.identifier}")[0]["location"]
        except PySparkException as failed:
            raise CatalogManaged(
                f"this session can't open {place.identifier}, a table that its catalog manages",
                cause=str(failed).splitlines()[0],
                remedy="give the server a catalog of that name, or ask the catalog's administrator "
                "to grant SELECT on the table to the user of this session",
                name=".".join(place.name),
                location=location,
            ) from failed
        if uri_of_spelling(str(there)) != location:
            raise RedirectNotFollowed(
                f"{place.identifier} on this server isn't the table that moved",
                cause=f"the redirect leads to {location}, and the server has another table of "
                f"that name, at {there}",
                remedy="connect to a server that has the catalog to which the table moved",
                table=place.identifier,
                target=location,
            )


def _metric_source(text: str) -> str:
    """Return a query of a metric view's source; the view's text is YAML."""
    try:
        source = str(yaml.safe_load(text)["source"])
    except (yaml.YAMLError, KeyError, TypeError) as failed:
        raise computed_when_it_runs(text) from failed
    return source if parse_name(source) is None else f"TABLE {source}"
