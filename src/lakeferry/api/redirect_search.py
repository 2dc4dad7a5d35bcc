"""Lists the redirects of all tables below a prefix, or in a catalog.

A table or a folder that can't be read doesn't stop the list: it is in ``unreadable``.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from lakeferry.api.notebook_progress import progress_in_notebook
from lakeferry.api.redirects import Redirects
from lakeferry.catalogs import names
from lakeferry.catalogs.names import CatalogEntry
from lakeferry.catalogs.places import Places
from lakeferry.engine import Observer, unobserved
from lakeferry.errors import LakeferryError, NotATable, ObjectNotFound, TableNotFound
from lakeferry.readable import counted
from lakeferry.redirect.states import RedirectState
from lakeferry.redirect.status import Status
from lakeferry.storage import normalise
from lakeferry.storage.uris import join
from lakeferry.table.table_search import find_and_read

LOOKED_AT_ONCE = 16
_SHOWN_REDIRECTS = 50
_CATALOGS = ("sql:", "unity:")


@dataclass(frozen=True, slots=True)
class ListedRedirect:
    """A table with a redirect, a frozen one, or one with an unfinished move."""

    source: str
    state: str
    mode: str | None
    target: str | None
    name: str | None
    """The target's name in its catalog."""
    frozen: bool
    unfinished: dict[str, Any] | None
    """A move that was interrupted before ENABLING, as in ``redirect status``."""

    @property
    def shown_state(self) -> str:
        """What people read."""
        if self.frozen:
            return "FROZEN"
        return f"{self.state}, with an unfinished move" if self.unfinished else self.state

    def as_document(self) -> dict[str, Any]:
        """Return one element of ``redirects`` in the JSON document."""
        return {
            "source": self.source,
            "state": self.state,
            "mode": self.mode,
            "target": self.target,
            "name": self.name,
            "frozen": self.frozen,
            "unfinished": self.unfinished,
        }


@dataclass(frozen=True, slots=True)
class RedirectList:
    """What was found; ``tables`` is the number of tables that could be read."""

    redirects: tuple[ListedRedirect, ...]
    unreadable: tuple[tuple[str, LakeferryError], ...]
    tables: int

    def as_document(self) -> dict[str, Any]:
        """Return the JSON document of the command."""
        unreadable = [
            {"source": source, "error": error.as_document()} for source, error in self.unreadable
        ]
        return {
            "redirects": [each.as_document() for each in self.redirects],
            "unreadable": unreadable,
            "tables": self.tables,
        }

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from lakeferry.html_tables import first_rows, notebook_view, warning_list

        rows = (
            (each.source, each.shown_state, each.mode, each.name or each.target)
            for each in self.redirects
        )
        columns = ("source", "state", "mode", "target")
        return notebook_view(
            f"{counted(len(self.redirects), 'redirect')} of {counted(self.tables, 'table')}",
            first_rows(columns, rows, len(self.redirects), "redirect", shown=_SHOWN_REDIRECTS),
            warning_list(f"{source}: {error}" for source, error in self.unreadable),
        )


def list_redirects(
    where: str,
    places: Places | None = None,
    *,
    parallel: int = LOOKED_AT_ONCE,
    observer: Observer = unobserved,
) -> RedirectList:
    """Return the redirects of the tables at a prefix, or of a catalog's: ``sql:``, ``unity:c.s``.

    ``parallel`` is how many folders and tables are looked at at once.
    """
    places = places or Places()
    found: list[ListedRedirect] = []
    unreadable: list[tuple[str, LakeferryError]] = []
    tables = 0
    with progress_in_notebook(observer) as observer, Redirects(places) as redirects:
        in_catalog = where.startswith(_CATALOGS)
        search = _in_catalog if in_catalog else _below
        for source, status in search(redirects, places, where, parallel):
            if status is None:
                continue
            if isinstance(status, LakeferryError):
                unreadable.append((source, status))
                continue
            tables += 1
            observer("looking for tables", tables, tables)
            if status.state is not RedirectState.NORMAL or status.unfinished is not None:
                found.append(_listed(source, status))
    found.sort(key=lambda each: each.source)
    unreadable.sort(key=lambda each: each[0])
    return RedirectList(tuple(found), tuple(unreadable), tables)


_Found = Iterator[tuple[str, Status | LakeferryError | None]]


def _below(redirects: Redirects, places: Places, where: str, parallel: int) -> _Found:
    uri = normalise(where)
    store = places.open(uri)
    try:
        is_there = store.is_occupied()
    except ObjectNotFound:
        # There is no such bucket.
        is_there = False
    if not is_there:
        raise TableNotFound(
            f"there is nothing at {uri}",
            remedy="check the path; it has to have tables below it",
            location=uri,
        )

    def read(folder: str) -> Status | LakeferryError | None:
        return _status(redirects, join(uri, folder) if folder else uri, is_known=False)

    def refused(error: LakeferryError) -> Status | LakeferryError | None:
        return error

    for folder, status in find_and_read(store, read, refused, parallel):
        yield join(uri, folder) if folder else uri, status


def _in_catalog(redirects: Redirects, places: Places, where: str, parallel: int) -> _Found:
    def read(entry: CatalogEntry) -> tuple[str, Status | LakeferryError | None]:
        return entry.location or entry.name, _status(redirects, entry.name, is_known=True)

    entries = names.list_entries(where, places.environment)
    with ThreadPoolExecutor(parallel, thread_name_prefix="tables") as pool:
        yield from pool.map(read, entries)


def _status(redirects: Redirects, table: str, *, is_known: bool) -> Status | LakeferryError | None:
    """Return a table's status, or why it can't be read; ``None`` for a folder that is no table."""
    try:
        return redirects.status(table)
    except (TableNotFound, NotATable) as missing:
        return missing if is_known else None
    except LakeferryError as unreadable:
        return unreadable


def _listed(source: str, status: Status) -> ListedRedirect:
    unfinished = status.unfinished
    return ListedRedirect(
        source,
        status.state.value,
        status.mode,
        status.target,
        status.name,
        status.frozen,
        None if unfinished is None else unfinished.as_document(),
    )
