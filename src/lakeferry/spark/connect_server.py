"""Asks the server of a Spark Connect session what Lakeferry needs to know, in SQL.

A Connect session has no JVM in this process. What the client for PySpark asks the JVM, the server
answers to statements: where a table of the catalog is, what a view's text is, what a path without
a scheme means. The questions go through the session itself, past the client that follows
redirects (:func:`unfollowed`).
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pyspark.errors import AnalysisException, PySparkException

from lakeferry.errors import InvalidInput, RedirectNotFollowed
from lakeferry.spark.sql_tokens import CATALOG, parse_name, spell_path, spell_string
from lakeferry.spark.stored_sql import StoredSql
from lakeferry.spark.table_locations import VIEWS, in_session_catalog
from lakeferry.storage import normalise

_Name = tuple[str, ...]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(.*)", re.DOTALL)
_FIELD = re.compile(r"^(Type|Provider|Location|View Catalog and Namespace): (.*)$", re.MULTILINE)
_VIEW_TEXT = re.compile(r"^View Text: (.*?)\nView (?=[A-Z])", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(r"^Function:\s+(.*)$", re.MULTILINE)
_BODY = re.compile(r"^Body:\s+(.*)", re.MULTILINE | re.DOTALL)
_SAFE_IN_URI = "/!$&'()*+,;=:@~-._"
_TEMPORARY = "global_temp"
_HERE = "SELECT current_catalog() AS catalog, current_database() AS namespace"
"""In Spark 3.5 ``SHOW CURRENT NAMESPACE`` fails after a table was cached."""
_NO_SUCH_FILE = ".lakeferry-no-such-file"
_MISSING = re.compile(rf"does not exist: (.*/{re.escape(_NO_SUCH_FILE)})\.")
_LOGGER = "SQLQueryContextLogger"
"""PySpark writes every error of a server to this logger."""
_OPERATORS = frozenset(
    ["and", "or", "not", "in", "between", "like", "isnull", "isnotnull", "negative", "positive"]
)
"""Functions that Connect calls by the names of operators."""

_thread = threading.local()
_spark_functions: weakref.WeakKeyDictionary[Any, frozenset[str]] = weakref.WeakKeyDictionary()
"""The functions that the server of a session brings."""


@contextmanager
def unfollowed() -> Iterator[None]:
    """Have the requests of this thread reach the server unchanged: they are our own questions."""
    before = is_unfollowed()
    _thread.unfollowed = True
    try:
        yield
    finally:
        _thread.unfollowed = before


def is_unfollowed() -> bool:
    """Return True if a request of this thread is one of our own questions."""
    return getattr(_thread, "unfollowed", False)


def _is_of_the_user(_: logging.LogRecord) -> bool:
    """Keep errors that answer our own questions out of the log."""
    return not is_unfollowed()


try:
    from pyspark.logger import PySparkLogger
except ModuleNotFoundError:
    # PySpark 3.5 doesn't log them.
    pass
else:
    PySparkLogger.getLogger(_LOGGER).addFilter(_is_of_the_user)


@dataclass(frozen=True, slots=True)
class SparkEntry:
    """A table or a view of Spark's own catalog."""

    kind: str
    provider: str | None = None
    location: str | None = None
    text: str | None = None
    namespace: _Name = ()
    is_temporary: bool = False

    @property
    def is_view(self) -> bool:
        """Whether it is a view, temporary or permanent."""
        return self.is_temporary or self.kind in VIEWS


class ConnectServer:
    """What a session's server answers; each answer is kept as long as this object."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self._entries: dict[_Name, SparkEntry | None] = {}
        self._settings: dict[str, str | None] = {}
        self._hadoop: dict[str, str | None] = {}
        self._functions: dict[str, bool] = {}
        self._here: _Name = ()

    def ask(self, text: str, args: Any = None) -> list[Any]:
        """Return the rows of a statement."""
        with unfollowed():
            rows: list[Any] = self.session.sql(text, args).collect()
            return rows

    def setting(self, name: str) -> str | None:
        """Return a setting of the session; ``None`` if it has its default, or isn't shown.

        Serverless compute shows few settings.
        """
        if name not in self._settings:
            with unfollowed(), contextlib.suppress(AnalysisException):
                self._settings[name] = self.session.conf.get(name, None)
        return self._settings.setdefault(name, None)

    def registered(self, name: str, otherwise: str) -> str:
        """Return a setting that the server knows: its own default counts, too."""
        if self._settings.get(name) is None:
            self._settings[name] = otherwise
            with unfollowed(), contextlib.suppress(AnalysisException):
                self._settings[name] = str(self.session.conf.get(name))
        return self._settings[name] or otherwise

    def hadoop(self, name: str) -> str | None:
        """Return a setting of the server's Hadoop; ``None`` if there is none, or it isn't shown."""
        if name not in self._hadoop:
            with contextlib.suppress(AnalysisException):
                value = self.ask(f"SET {name}")[0]["value"]
                self._hadoop[name] = None if value == "<undefined>" else value
        return self._hadoop.setdefault(name, None)

    def here(self) -> _Name:
        """Return the session's current catalog and schema."""
        if not self._here:
            (row,) = self.ask(_HERE)
            self._here = (row["catalog"], *(parse_name(row["namespace"]) or ()))
        return self._here

    def qualified(self, name: Sequence[str]) -> _Name:
        """Return a name of Spark's own catalog with its catalog and schema."""
        parts = tuple(name)
        if len(parts) == 1:
            parts = (*self.here()[1:], *parts)
        return parts if len(parts) > 2 else (CATALOG, *parts)

    # --- Paths ---

    def uri_of(self, path: str) -> str | None:
        """Return the URI that a path means to the server; ``None`` if we can't look there."""
        if _SCHEME.match(path):
            return uri_of_spelling(path)
        root = self.hadoop("fs.defaultFS") if path.startswith("/") else None
        if root is not None:
            return uri_of_spelling(f"{root.rstrip('/')}{path}")
        return uri_of_spelling(self._absolute(path))

    def _absolute(self, path: str) -> str:
        """Return what a relative path means to the server, as it says when nothing is there."""
        found = None
        try:
            with unfollowed():
                _ = self.session.read.format("text").load(f"{path}/{_NO_SUCH_FILE}").schema
        except AnalysisException as missing:
            found = (missing.getMessageParameters() or {}).get("path")
            if found is None and (said := _MISSING.search(str(missing))):
                # PySpark 3.5 has no parameters of errors.
                found = said.group(1)
        if not found or not found.endswith(f"/{_NO_SUCH_FILE}"):
            raise RedirectNotFollowed(
                f"the table at {path} may have moved, and its place isn't known",
                cause="a relative path depends on the folder in which the Connect server runs",
                remedy="write the whole path, with its scheme",
                table=path,
            )
        return found.removesuffix(f"/{_NO_SUCH_FILE}")

    # --- The catalog ---

    def entry(self, name: Sequence[str]) -> SparkEntry | None:
        """Return what the catalog has by a name; ``None`` for other catalogs, too."""
        self.look_up([tuple(name)])
        return self._entries[_lower(name)]

    def look_up(self, names: Iterable[_Name]) -> None:
        """Ask about all names that weren't asked about yet: one question for each schema."""
        unknown = {_lower(name): name for name in names if _lower(name) not in self._entries}
        self._entries |= dict.fromkeys(unknown)
        by_schema: dict[str, dict[str, list[_Name]]] = {}
        for key, name in unknown.items():
            schema, table = self._schema_and_table(name)
            if schema is not None and table:
                by_schema.setdefault(schema, {}).setdefault(table.lower(), []).append(key)
        for schema in self._existing(by_schema):
            wanted = by_schema[schema]
            place = spell_path(schema)
            if schema != _TEMPORARY:
                place = f"{CATALOG}.{place}"
            for row in self._listed(f"SHOW TABLE EXTENDED IN {place} LIKE {_patterns(wanted)}"):
                for key in wanted.get(str(row["tableName"]).lower(), ()):
                    self._remember(key, row, schema)

    def _listed(self, text: str) -> list[Any]:
        """Return what Spark's own catalog lists; nothing if the server has no such catalog."""
        try:
            return self.ask(text)
        except AnalysisException:
            if self.here()[0] == CATALOG:
                raise
            return []

    def _remember(self, key: _Name, row: Any, schema: str) -> None:
        is_temporary = bool(row["isTemporary"])
        if is_temporary and len(key) > 1 and schema != _TEMPORARY and key[-2] != "session":
            # The temporary views are listed with the tables of every schema.
            return
        if not is_temporary and len(key) == 1 and self.here()[0] != CATALOG:
            return
        if is_temporary or self._entries[key] is None:
            self._entries[key] = _entry_of(str(row["information"]), is_temporary)

    def _schema_and_table(self, name: _Name) -> tuple[str | None, str]:
        """Return where to look for a name; no schema if it isn't one of Spark's own catalog."""
        parts = in_session_catalog(name)
        if len(name) == 3 and parts[0].lower() == "session":
            parts = parts[1:]
        catalog, *namespace = self.here()
        if len(parts) == 1:
            schema = namespace[0] if catalog == CATALOG and len(namespace) == 1 else "default"
            return schema, parts[0]
        is_here = catalog == CATALOG or len(name) == 3 or parts[0].lower() == _TEMPORARY
        return (parts[0], parts[1]) if len(parts) == 2 and is_here else (None, "")

    def _existing(self, schemas: Iterable[str]) -> list[str]:
        """Return those of the schemas that exist: the first part of a name may be an alias."""
        certain: list[str] = []
        others: list[str] = []
        for each in schemas:
            is_certain = (each,) == self.here()[1:] or each == _TEMPORARY
            (certain if is_certain else others).append(each)
        if others:
            rows = self._listed(f"SHOW DATABASES IN {CATALOG} LIKE {_patterns(others)}")
            there = {str(row[0]).strip("`").lower() for row in rows}
            certain += [each for each in others if each.lower() in there]
        return certain

    # --- Functions ---

    def function_bodies(self, names: Iterable[str]) -> Iterator[StoredSql]:
        """Yield the queries of those of the functions that users wrote in SQL.

        The server doesn't say in which schema a function was written. So its query may come
        twice: with the function's own schema, and with the current one.
        """
        for name in self._defined(names):
            described = "\n".join(
                str(row[0]) for row in self.ask(f"DESCRIBE FUNCTION EXTENDED {name}")
            )
            body, whole = _BODY.search(described), _FUNCTION.search(described)
            if body is not None:
                own = (parse_name(whole.group(1)) or ())[:-1] if whole else ()
                for namespace in sorted({own, self.here()} - {()}):
                    yield StoredSql(body.group(1), namespace)

    def _defined(self, names: Iterable[str]) -> list[str]:
        """Return those of the functions that users have defined, as SQL names them."""
        asked = sorted({name for name in names if self._may_be_of_a_user(name)})
        new: dict[str, dict[str, str]] = {}
        for name in (each for each in asked if each not in self._functions):
            self._functions[name] = False
            *schema, last = name.split(".")
            if schema[:1] == [CATALOG]:
                schema = schema[1:]
            place = schema[0] if len(schema) == 1 and schema != ["session"] else ""
            new.setdefault(place, {})[last] = name
        for schema_name in self._existing([each for each in new if each]):
            self._note_functions(f"IN {CATALOG}.{spell_path(schema_name)} ", new[schema_name])
        if "" in new:
            self._note_functions("", new[""])
        return [
            ".".join(map(spell_path, name.split("."))) for name in asked if self._functions[name]
        ]

    def _may_be_of_a_user(self, function: str) -> bool:
        """Return False for functions that Spark brings: others must be called by a schema."""
        if function in _OPERATORS or re.fullmatch(r"\w+(\.\w+)*", function) is None:
            return False
        known = _spark_functions.get(self.session)
        if known is None:
            rows = self._listed("SHOW SYSTEM FUNCTIONS")
            known = _spark_functions[self.session] = frozenset(str(row[0]).lower() for row in rows)
        return function not in known

    def _note_functions(self, place: str, wanted: Mapping[str, str]) -> None:
        for row in self._listed(f"SHOW USER FUNCTIONS {place}LIKE {_patterns(wanted)}"):
            last = (parse_name(str(row[0])) or ("",))[-1].lower()
            if last in wanted:
                self._functions[wanted[last]] = True

    # --- The parser ---

    def explanation(self, text: str, parameters: int) -> str:
        """Return what the server says about a statement; empty if it says nothing."""
        try:
            rows = self.ask(f"EXPLAIN EXTENDED {text}", [None] * parameters or None)
        except PySparkException:
            return ""
        return "\n".join(str(row[0]) for row in rows)


def uri_of_spelling(path: str) -> str | None:
    """Return a path that Spark takes literally as a URI; ``None`` if we can't look there."""
    match = _SCHEME.match(path)
    if match is None or match.group(1).lower() == "lakefs":
        # Spark accesses lakeFS in its own way, with settings that we don't have.
        return None
    scheme, authority, rest = match.groups()
    try:
        return normalise(f"{scheme}://{authority or ''}{quote(rest, safe=_SAFE_IN_URI)}")
    except InvalidInput:
        return None


def _entry_of(information: str, is_temporary: bool) -> SparkEntry:
    """Return what ``SHOW TABLE EXTENDED`` says about a table."""
    # Of fields that occur twice the last counts: a comment, which may have any text, comes first.
    said = dict(_FIELD.findall(information))
    text = _VIEW_TEXT.search(information)
    return SparkEntry(
        said.get("Type", ""),
        said.get("Provider"),
        said.get("Location"),
        None if text is None else text.group(1),
        parse_name(said.get("View Catalog and Namespace", "")) or (),
        is_temporary,
    )


def _lower(name: Sequence[str]) -> _Name:
    return tuple(part.lower() for part in name)


def _patterns(names: Iterable[str]) -> str:
    """Return a pattern of SHOW for some names, as a string of SQL; it may match others too."""
    return spell_string("|".join(re.sub(r"\W", "*", name) for name in names))
