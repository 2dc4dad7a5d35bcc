"""Registers external tables in Unity Catalog, and deletes their names.

* The API can't tell in advance whether a table may be created:
  :meth:`UnityRegistration.try_registration` tries it. Only external tables are created here.
* It has no conditional delete: :meth:`UnityRegistration.unregister` checks first, and once more
  afterwards. If another client gives the name to another table in between, that table loses it,
  and the user is told.

Catalogs and schemas are never created: their owner and storage are for an administrator to
decide.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote

from lakeferry.catalogs.catalog import (
    Catalog,
    CatalogTable,
    check_table_name,
    unless_elsewhere,
)
from lakeferry.catalogs.catalog_rest import Answer, CatalogRest
from lakeferry.catalogs.columns import catalog_columns
from lakeferry.catalogs.unity_listing import canonical, list_tables
from lakeferry.errors import (
    CatalogManaged,
    CatalogUnavailable,
    CommitConflict,
    Forbidden,
    InvalidInput,
    LakeferryError,
)
from lakeferry.log.actions import Metadata
from lakeferry.storage import normalise

_SETTLING_S = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Pauses between checks for a table whose registration got no answer."""

_TRIAL_PAGES = 20
"""How many pages of a schema are searched for leftover trial registrations."""

_MOST_OF_ONE_NAME = 10
"""How many tables of one name are deleted; a race can create several on the server."""


class UnityRegistration:
    """The names that a server gives to external tables. ``catalog`` finds them."""

    def __init__(self, catalog: Catalog, rest: CatalogRest, pause: Callable[[float], None]) -> None:
        """Ask nothing yet."""
        self._catalog = catalog
        self._rest = rest
        self._pause = pause

    def check_schema(self, name: str) -> None:
        """Refuse a name whose schema doesn't exist or may not be used."""
        check_table_name(name)
        catalog, schema, _ = name.split(".")
        try:
            answer = self._rest.ask("GET", f"/schemas/{quote(f'{catalog}.{schema}', safe='')}")
        except Forbidden as forbidden:
            # A user who may create tables in a schema may also read it.
            raise Forbidden(
                f"Unity Catalog doesn't let you use the schema {catalog}.{schema}",
                cause=forbidden.cause,
                remedy=f"ask the catalog's administrator to grant you USE CATALOG on {catalog}, "
                f"and USE SCHEMA and CREATE TABLE on {catalog}.{schema}",
                name=name,
                catalog=self._rest.root,
            ) from forbidden
        if answer.status == 404:
            raise self._missing_parent(catalog, schema)

    def register(self, name: str, location: str, metadata: Metadata | None = None) -> CatalogTable:
        """Register the table at ``location`` as an external table with its columns."""
        place = normalise(location)
        if (found := self._catalog.find(name)) is not None:
            return unless_elsewhere("unity", found, place)
        if metadata is None:
            raise InvalidInput(
                f"unity:{name} can't be registered without the table's metadata",
                cause="Unity Catalog needs the columns of each table",
            )
        answer = self._created(name, place, metadata)
        lost = isinstance(answer, CatalogUnavailable)
        # Another client may have been first, or our own request whose answer was lost. The
        # server may also accept several tables of one name: the one that it shows has won.
        if (found := self._appearing(name) if lost else self._catalog.find(name)) is not None:
            return unless_elsewhere("unity", found, place)
        if isinstance(answer, CatalogUnavailable):
            raise answer
        if isinstance(answer, Answer) and answer.ok:
            raise self._rest.unavailable(f"it registered {name} and doesn't have it")
        raise self._refusal(name, place, answer)

    def try_registration(self, name: str, location: str, metadata: Metadata) -> None:
        """Refuse what :meth:`register` would refuse, by registering the place for a moment.

        The API can't check privileges, overlaps with volumes, and names or columns that the
        server rejects. So the place is registered under a private name in the same schema,
        which is deleted again.
        """
        place = normalise(location)
        private = _private_name(name, place)
        answer = self._created(private, place, metadata)
        if isinstance(answer, CatalogUnavailable):
            # It may have been registered in spite of the error.
            with suppress(LakeferryError):
                if self._appearing(private) is not None:
                    self.unregister(private, place)
            raise answer
        if not isinstance(answer, Answer) or not answer.ok:
            raise self._refusal(name, place, answer)
        self.unregister(private, place)

    def _created(
        self, name: str, place: str, metadata: Metadata
    ) -> Answer | Forbidden | CatalogUnavailable:
        """Send a registration; a refusal or a missing answer is returned and not raised.

        A trial that was left behind by a crash blocks the place, so it is deleted first.
        """
        answer = self._create(name, place, metadata)
        refused = (
            answer.status == 400 if isinstance(answer, Answer) else isinstance(answer, Forbidden)
        )
        if refused and self._forget_trials(name, place):
            return self._create(name, place, metadata)
        return answer

    def _appearing(self, name: str) -> CatalogTable | None:
        """Return the table of that name; wait, as the server may still be registering it.

        The registration must not be retried meanwhile: a server that executes it twice has
        two tables of one name, and then can't even delete their schema.
        """
        for pause_s in _SETTLING_S:
            if (found := self._catalog.find(name)) is not None:
                return found
            self._pause(pause_s)
        return self._catalog.find(name)

    def _forget_trials(self, name: str, place: str) -> bool:
        """Delete leftover trial registrations of a place; return whether there were any."""
        catalog, schema, _ = name.split(".")
        with suppress(LakeferryError):
            listed = list_tables(self._rest, catalog, schema, _TRIAL_PAGES)
            left = [text for info in listed if _mark(place) in (text := str(info.get("name")))]
            gone = [self.unregister(f"{catalog}.{schema}.{text}", place) for text in left]
            return any(gone)
        return False

    def _create(
        self, name: str, place: str, metadata: Metadata
    ) -> Answer | Forbidden | CatalogUnavailable:
        catalog, schema, table = name.split(".")
        request = {
            "name": table,
            "catalog_name": catalog,
            "schema_name": schema,
            "table_type": "EXTERNAL",
            "data_source_format": "DELTA",
            "columns": catalog_columns(metadata),
            "storage_location": place,
            **({"comment": metadata.description} if metadata.description else {}),
        }
        try:
            return self._rest.ask("POST", "/tables", body=request, once=True)
        except (Forbidden, CatalogUnavailable) as none:
            return none

    def _refusal(self, name: str, place: str, answer: Answer | Forbidden) -> LakeferryError:
        """Return the error for a refused registration."""
        if isinstance(answer, Forbidden):
            return self._may_not_create(name, place, answer)
        if answer.status == 404:
            return self._missing_parent(*name.split(".")[:2])
        return self._not_taken(name, place, answer)

    def _may_not_create(self, name: str, place: str, why: Forbidden) -> Forbidden:
        catalog, schema, _ = name.split(".")
        return Forbidden(
            f"Unity Catalog doesn't let you register {place} as {name}",
            cause=why.cause,
            remedy=f"ask the catalog's administrator to grant you USE CATALOG on {catalog}, USE "
            f"SCHEMA and CREATE TABLE on {catalog}.{schema}, and CREATE EXTERNAL TABLE on the "
            "external location; or choose a place that no volume and no other table contains, and "
            "that contains none",
            name=name,
            location=place,
            catalog=self._rest.root,
        )

    def _not_taken(self, name: str, place: str, answer: Answer) -> InvalidInput:
        return InvalidInput(
            f"Unity Catalog refuses to register {place} as {name}",
            cause=answer.problem,
            remedy="remove that column from the table, or redirect to a path instead of a name"
            if "type_json" in answer.problem
            else "choose another name or another place, as the cause says",
            name=name,
            location=place,
        )

    def unregister(
        self, name: str, location: str | None = None, *, table_id: str | None = None
    ) -> bool:
        """Delete a name; return whether it existed. The table's files stay.

        A table with ``table_id`` is unregistered under its current name. The server answers
        in plain text, as any other web server might, so the result is checked afterwards.
        Concurrent registrations may create several tables of one name: all are deleted.
        """
        place = normalise(location) if location is not None else None
        gone: dict[str, str] = {}
        while len(gone) < _MOST_OF_ONE_NAME:
            found = self._current(name, table_id)
            if found is None or place not in (None, found.location):
                return bool(gone)
            if found.managed:
                raise CatalogManaged(
                    f"unity:{found.name} can't be unregistered",
                    cause="it is a managed table: Unity Catalog would delete its files too",
                    remedy="choose another name; or drop the table in the catalog yourself, if "
                    "nobody needs its data",
                    name=found.name,
                    location=found.location,
                )
            if (deleted := gone.get(found.table_id)) == found.name:
                raise self._rest.unavailable(f"it still has {found.name} after it deleted it")
            if deleted is not None:
                raise self._removed_another(deleted, found)
            self._delete(found.name)
            gone[found.table_id] = found.name
        raise self._rest.unavailable(f"it has more than {_MOST_OF_ONE_NAME} tables called {name}")

    def _removed_another(self, deleted: str, meant: CatalogTable) -> CommitConflict:
        """Return the error for a name that led to another table when it was deleted."""
        return CommitConflict(
            f"the wrong table was removed from Unity Catalog: {deleted}",
            cause="another client gave that name to another table just before; your table is "
            f"called {meant.name}",
            remedy=f"tell the owner of {deleted}, who can register an external table again; then "
            f"remove your own table: lakeferry catalog remove unity:{meant.name}",
            name=meant.name,
            table_id=meant.table_id,
            catalog=self._rest.root,
        )

    def _delete(self, name: str) -> None:
        try:
            answer = self._rest.ask("DELETE", f"/tables/{quote(name, safe='')}", plain=True)
        except Forbidden as forbidden:
            raise Forbidden(
                f"Unity Catalog doesn't let you drop {name}",
                cause=forbidden.cause,
                remedy="ask the owner of the table or of its schema to drop it",
                name=name,
                catalog=self._rest.root,
            ) from forbidden
        if answer.status != 404:
            self._rest.body_of(answer)

    def _current(self, name: str, table_id: str | None) -> CatalogTable | None:
        """Return the table with that id, also under another name, or else that of that name.

        Raises if the table with that id exists but its name isn't listed.
        """
        found = self._catalog.find(name)
        if table_id is None or (found is not None and found.table_id == canonical(table_id)):
            return found
        renamed = self._catalog.find_id(table_id, once=name)
        if renamed is None:
            return found
        if renamed.name == renamed.table_id:
            raise self._rest.unavailable(
                f"{name} was renamed, and no listing shows which name it has now",
                f"find the table with the id {table_id} in Unity Catalog, and have it dropped",
            )
        return renamed

    def _missing_parent(self, catalog: str, schema: str) -> InvalidInput:
        missing, create = f"schema {catalog}.{schema}", f"CREATE SCHEMA {catalog}.{schema}"
        with suppress(Forbidden):
            if self._rest.ask("GET", f"/catalogs/{quote(catalog, safe='')}").status == 404:
                missing, create = f"catalog {catalog}", f"CREATE CATALOG {catalog}"
        return InvalidInput(
            f"Unity Catalog at {self._rest.root} has no {missing}",
            remedy=f"ask its administrator to create it ({create}), then run the same command "
            "again",
            catalog=self._rest.root,
        )


def _private_name(name: str, place: str) -> str:
    """Return a private name in the schema of ``name``, for one trial of that place.

    It is unique: two trials with one name could create two tables of one name, which the
    server can't delete any more.
    """
    parent, _, table = name.rpartition(".")
    return f"{parent}.{table[:200]}{_mark(place)}{uuid.uuid4().hex[:12]}"


def _mark(place: str) -> str:
    """Return the part that the private names of all trials of a place have in common."""
    return f"_lakeferry_{hashlib.sha256(place.encode()).hexdigest()[:12]}_"
