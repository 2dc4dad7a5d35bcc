"""Unity Catalog's API for managed tables (``/api/2.1/unity-catalog/delta/v1``), as of version 0.7.

The limits of the server, and what follows from them here:

* a name isn't unique in a race, and then no request for it is answered any more: after a table
  is created or renamed, the name has to lead to it (:meth:`UnityDelta.create_table`,
  :meth:`UnityDelta.rename`);
* a table can't be looked up by its id; a renamed table is found by listing
  (:meth:`UnityDelta.find_name`);
* a repeated request may be refused though the first one succeeded, so what happened is decided
  by the table's id and never by a status;
* staging tables can't be listed or deleted, and only who made one may finish it;
* a table is renamed and dropped by its name, without a condition. Another client may give the name
  to another table just before. So the name is looked at just before and just after, a rename that
  hit another table is undone, and a table is dropped under a random name
  (:meth:`UnityDelta.rename`, :meth:`UnityDelta.delete`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum

import msgspec

from lakeferry.catalogs import private_names
from lakeferry.catalogs.catalog_rest import TIMEOUT_S, Answer
from lakeferry.catalogs.managed_tables import PRIVATE_LEAD
from lakeferry.catalogs.unity_address import UNITY_TOKEN, UNITY_URL, unity_from, unity_root
from lakeferry.catalogs.unity_delta_credentials import UnityDeltaCredentials
from lakeferry.catalogs.unity_delta_messages import (
    ApiConfig,
    LoadedTable,
    NewTable,
    StagingTable,
    Update,
)
from lakeferry.catalogs.unity_delta_rest import (
    CONFLICT,
    EXHAUSTED,
    LEAD,
    MISSING,
    MISSING_PARENT,
    OTHER_TABLE,
    DeltaRest,
    error_type,
    name_parts_of,
    privileges_to_use,
    schema_path,
    table_path,
)
from lakeferry.catalogs.unity_listing import find_name
from lakeferry.errors import (
    CatalogUnavailable,
    CommitConflict,
    Forbidden,
    InvalidInput,
    LakeferryError,
    NotATable,
    TableNotFound,
)

_LISTING_REQUESTS = 500
"""How many pages are searched for a renamed table before we give up."""

_SETTLING_S = (0.5, 1.0, 2.0, 4.0)
"""Pauses between looks at a table whose creation or renaming got no answer."""


class UpdateRefusal(Enum):
    """Why a table wasn't updated."""

    CONFLICT = "another commit has that version"
    FULL = "more commits have to be published first"
    OTHER_TABLE = "the name doesn't lead to the table"


class UnityDelta:
    """A Unity Catalog server. Sends no request before the first call."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        pause: Callable[[float], None] = time.sleep,
        listing_requests: int = _LISTING_REQUESTS,
    ) -> None:
        """Set the server's address, with or without the path of the API."""
        self.rest = DeltaRest(
            "Unity Catalog",
            unity_root(url),
            token,
            settings=(UNITY_URL, UNITY_TOKEN),
            timeout_s=timeout_s,
            pause=pause,
        )
        self.issued = UnityDeltaCredentials(self.rest)
        self._pause = pause
        self._listing_requests = listing_requests
        self._configs: dict[str, ApiConfig] = {}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> UnityDelta:
        """Return the server that ``UC_URL`` names."""
        return cls(*unity_from(environment))

    @property
    def place(self) -> str:
        """The address of the API."""
        return self.rest.root

    def config(self, catalog: str) -> ApiConfig:
        """Return what the server says it can do; ask only once.

        Raises :class:`~lakeferry.errors.CatalogManaged` if it has no API for managed tables.
        """
        if (known := self._configs.get(catalog)) is not None:
            return known
        query = {"catalog": catalog, "protocol-versions": "1.0"}
        with self.rest.privileges(
            f"use the catalog {catalog}", f"USE CATALOG on {catalog}", catalog
        ):
            answer = self.rest.ask("GET", f"{LEAD}/config", query=query)
        if error_type(answer) in MISSING:
            raise self.rest.missing(catalog)
        self._configs[catalog] = self.rest.content_of(answer, ApiConfig, catalog)
        return self._configs[catalog]

    def create_staging_table(self, name: str) -> StagingTable:
        """Allocate an id and a place for a new table. Each call allocates another one."""
        catalog, schema, table = name_parts_of(name)
        self.config(catalog)
        needed = f"{privileges_to_use(name)}, and CREATE TABLE on {catalog}.{schema}"
        with self.rest.privileges(f"allocate a place for {name}", needed, name):
            path = f"{schema_path(name)}/staging-tables"
            answer = self.rest.ask("POST", path, body={"name": table})
        if error_type(answer) in MISSING:
            raise self._no_schema(catalog, schema)
        return self.rest.content_of(answer, StagingTable, name)

    def create_table(self, name: str, table_id: str, table: NewTable) -> LoadedTable:
        """Create a managed table on its staging table; succeed if it was created already."""
        catalog, schema, _ = name_parts_of(name)
        self.config(catalog)
        lost: CatalogUnavailable | None = None
        answer: Answer | None = None
        try:
            needed = f"{privileges_to_use(name)}, and CREATE TABLE on {catalog}.{schema}"
            with self.rest.as_allocator(table_id, f" That user needs {needed}."):
                path = f"{schema_path(name)}/tables"
                body = msgspec.to_builtins(table)
                answer = self.rest.ask("POST", path, body=body, once=True)
        except CatalogUnavailable as silent:
            lost = silent
        found = self._settled(name, table_id, is_lost=lost is not None)
        if found is not None:
            return found
        if lost is not None:
            raise lost
        assert answer is not None
        if answer.ok:
            raise self.rest.unavailable(f"it created {name}, and the name leads elsewhere")
        if error_type(answer) in MISSING_PARENT:
            raise self._no_schema(catalog, schema)
        raise self.rest.refused_call(answer, name)

    def find(self, name: str) -> LoadedTable | None:
        """Return the table of that name, or ``None`` if the catalog says there is none."""
        needed = f"{privileges_to_use(name)}, and SELECT on {name}"
        with self.rest.privileges(f"look at the table {name}", needed, name):
            answer = self.rest.ask("GET", table_path(name))
        if error_type(answer) in MISSING:
            return None
        return self.rest.content_of(answer, LoadedTable, name)

    def load(self, name: str) -> LoadedTable:
        """Return the table of that name, or raise ``TableNotFound``."""
        if (found := self.find(name)) is not None:
            return found
        raise self.rest.missing(name)

    def find_name(self, table_id: str, former: str) -> str | None:
        """Return the name that the table with that id has now, by listing."""
        return find_name(self.rest, table_id, former, self._listing_requests)

    def name_of(self, table_id: str, former: str) -> str | None:
        """Return the name that a table has now: ``former``, or one that is found by listing."""
        hidden: Forbidden | None = None
        found: LoadedTable | None = None
        try:
            found = self.find(former)
        except NotATable:
            # A table of another format has that name by now.
            pass
        except Forbidden as other:
            # Perhaps a table of somebody else has it.
            hidden = other
        if found is not None and found.metadata.table_uuid == table_id:
            return former
        name = self.find_name(table_id, former)
        if hidden is not None and name in (None, former):
            raise hidden
        return name

    def update(
        self, name: str, table_id: str, updates: Iterable[Update]
    ) -> LoadedTable | UpdateRefusal:
        """Change a table if the name still leads to it. A repeated commit changes nothing."""
        body = {
            "requirements": [{"type": "assert-table-uuid", "uuid": table_id}],
            "updates": [msgspec.to_builtins(update) for update in updates],
        }
        needed = f"{privileges_to_use(name)}, and MODIFY on {name}"
        with self.rest.privileges(f"commit to the table {name}", needed, name):
            answer = self.rest.ask("POST", table_path(name), body=body)
        kind = error_type(answer)
        if kind == CONFLICT:
            return UpdateRefusal.CONFLICT
        if kind == EXHAUSTED:
            return UpdateRefusal.FULL
        if kind == OTHER_TABLE or kind in MISSING:
            return UpdateRefusal.OTHER_TABLE
        return self.rest.content_of(answer, LoadedTable, name)

    def rename(self, name: str, new_name: str, table_id: str) -> LoadedTable:
        """Give a table another name in its schema; succeed if it has that name already.

        Raises :class:`~lakeferry.errors.CommitConflict` if the name leads to another table. If that
        one was renamed in place of ours, it has its name again.
        """
        if not self._leads_to(name, table_id):
            there = self._settled(new_name, table_id, is_lost=False)
            if there is not None:
                return there
            raise self._other_table(name, table_id)
        lost: CatalogUnavailable | None = None
        answer: Answer | None = None
        try:
            answer = self._ask_rename(name, new_name)
        except CatalogUnavailable as silent:
            lost = silent
        found = self._settled(new_name, table_id, is_lost=lost is not None)
        if found is not None:
            return found
        if lost is not None:
            raise lost
        assert answer is not None
        if answer.ok:
            raise self._given_back(name, new_name, table_id)
        missing = error_type(answer) in MISSING
        raise self.rest.refused_call(answer, name if missing else new_name)

    def _ask_rename(self, name: str, new_name: str) -> Answer:
        """Have the server rename whatever table the name leads to."""
        catalog, schema, _ = name_parts_of(name)
        needed = (
            f"{privileges_to_use(name)}, CREATE TABLE on {catalog}.{schema}, and the ownership "
            f"of {name} or of {catalog}.{schema}"
        )
        with self.rest.privileges(f"rename {name}", needed, name):
            body = {"new-name": name_parts_of(new_name)[2]}
            return self.rest.ask("POST", f"{table_path(name)}/rename", body=body)

    def _leads_to(self, name: str, table_id: str) -> bool:
        """Return whether a name leads to the table with that id."""
        try:
            found = self.find(name)
        except NotATable:
            return False
        return found is not None and found.metadata.table_uuid == table_id

    def _other_table(self, name: str, table_id: str) -> LakeferryError:
        """Return the error for a name that doesn't lead to the table with that id any more."""
        with suppress(NotATable):
            if self.find(name) is None:
                return self.rest.missing(name)
        return CommitConflict(
            f"the name {name} now belongs to another table",
            cause=f"another client has renamed tables; your table has the id {table_id}",
            remedy=_by_id(table_id),
            name=name,
            table_id=table_id,
            catalog=self.place,
        )

    def _given_back(self, name: str, new_name: str, table_id: str) -> LakeferryError:
        """Give a table that was renamed in place of ours its name again; return the error."""
        try:
            stranger = self.load(new_name).metadata.table_uuid
        except LakeferryError:
            return self.rest.unavailable(f"it renamed {name}, and {new_name} leads elsewhere")
        with suppress(LakeferryError):
            self._ask_rename(new_name, name)
        with suppress(LakeferryError):
            if self._leads_to(name, stranger):
                return self._other_table(name, table_id)
        return CommitConflict(
            f"the wrong table was renamed to {new_name}",
            cause=f"another client gave the name {name} to the table with the id {stranger} just "
            "before the rename, and Lakeferry couldn't rename that table back",
            remedy="ask the owner of that table to rename it back: lakeferry catalog rename "
            f"unity:{stranger} {name}; {_by_id(table_id)}",
            name=new_name,
            table_id=stranger,
            catalog=self.place,
        )

    def delete(self, name: str, table_id: str) -> bool:
        """Drop a table and its files if the name leads to it; return whether it did.

        It gets a random name first, which no other client gives to another table. A user who may
        drop tables but create none can't rename it; then it is dropped by its name.
        """
        if not self._leads_to(name, table_id):
            return False
        parent, _, table = name.rpartition(".")
        if table.startswith(PRIVATE_LEAD):
            return self._drop(name)
        private = f"{parent}.{private_names.to_drop(table)}"
        try:
            self.rename(name, private, table_id)
        except Forbidden:
            return self._dropped_by_name(name, table_id)
        except TableNotFound:
            return False
        except LakeferryError as failed:
            self._keep(name, private, table_id, failed)
            raise
        try:
            return self._drop(private)
        except LakeferryError as failed:
            with suppress(LakeferryError):
                if self.find(private) is None:
                    return True
            self._keep(name, private, table_id, failed)
            raise

    def _keep(self, name: str, private: str, table_id: str, failed: LakeferryError) -> None:
        """Give a table that wasn't dropped its name again; else add to the error what helps."""
        try:
            if self._leads_to(private, table_id):
                self.rename(private, name, table_id)
        except LakeferryError:
            left = private_names.after_broken_drop(private, name, table_id)
            failed.remedy = f"{failed.remedy}; {left}" if failed.remedy else left

    def _drop(self, name: str) -> bool:
        """Drop whatever table the name leads to; return whether there was one."""
        needed = f"{privileges_to_use(name)}, and the ownership of {name} or of its schema"
        with self.rest.privileges(f"drop {name}", needed, name):
            answer = self.rest.ask("DELETE", table_path(name), once=True)
        if error_type(answer) in MISSING:
            return False
        if not answer.ok:
            raise self.rest.refused_call(answer, name)
        return True

    def _dropped_by_name(self, name: str, table_id: str) -> bool:
        """Drop a table by a name that another client may give away; say if it hit another one."""
        dropped = self._drop(name)
        left = self.find_name(table_id, name) if dropped else None
        if left is None:
            return dropped
        raise CommitConflict(
            f"the wrong table was dropped: {name}",
            cause=f"another client gave that name to another table just before; your table is "
            f"called {left}",
            remedy=f"tell the owner of {name}, who may be able to restore it; {_by_id(table_id)}",
            name=left,
            table_id=table_id,
            catalog=self.place,
        )

    def _settled(self, name: str, table_id: str, *, is_lost: bool) -> LoadedTable | None:
        """Return the table with that id if the name leads to it; wait if an answer was lost."""
        for pause_s in (*(_SETTLING_S if is_lost else ()), None):
            try:
                found = self.find(name)
            except (Forbidden, NotATable):
                # Somebody else's table has the name, or one of another format.
                found = None
            if found is not None and found.metadata.table_uuid == table_id:
                return found
            if pause_s is not None:
                self._pause(pause_s)
        return None

    def _no_schema(self, catalog: str, schema: str) -> InvalidInput:
        return InvalidInput(
            f"Unity Catalog at {self.place} has no schema {catalog}.{schema}",
            remedy=f"ask its administrator to create it (CREATE SCHEMA {catalog}.{schema}), then "
            "try again",
            catalog=self.place,
        )


def _by_id(table_id: str) -> str:
    return f"'lakeferry catalog show unity:{table_id}' shows the present name of your table"
