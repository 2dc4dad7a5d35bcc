"""Unity Catalog's REST API (``/api/2.1/unity-catalog``), as of version 0.7.

``UC_URL`` is its address, ``UC_TOKEN`` our token. The API has these limits:

* it can't look up a table by its id. A request for credentials by id returns the
  place, or 404 for an unknown id; the name is found by listing;
* it can't change a table's location. A table that is deleted and created again has
  another id, so links to the old id would break: :meth:`UnityCatalog.move` refuses;
* it can't tell in advance whether a table may be created, and has no conditional delete:
  :mod:`.unity_registration` says what follows from that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lakeferry.catalogs import private_names
from lakeferry.catalogs.catalog import (
    NO_ACCESS,
    CatalogAccess,
    CatalogTable,
    EditableCatalog,
    check_table_name,
)
from lakeferry.catalogs.catalog_rest import TIMEOUT_S, CatalogRest
from lakeferry.catalogs.fitting_credentials import issued_for
from lakeferry.catalogs.unity_address import UNITY_TOKEN, UNITY_URL, unity_from, unity_root
from lakeferry.catalogs.unity_commit_catalog import UnityCommitCatalog
from lakeferry.catalogs.unity_credentials import (
    ExternalCredentialSource,
    PathCredentialSource,
    TableCredentialSource,
    explicit_token,
    issues_credentials,
)
from lakeferry.catalogs.unity_delta import UnityDelta
from lakeferry.catalogs.unity_delta_messages import LoadedTable
from lakeferry.catalogs.unity_listing import canonical, find_listed, list_below
from lakeferry.catalogs.unity_registration import UnityRegistration
from lakeferry.errors import (
    CatalogManaged,
    CatalogUnavailable,
    Forbidden,
    InvalidInput,
    LakeferryError,
    NotATable,
    TableNotFound,
    Unauthorized,
)
from lakeferry.log.actions import Metadata
from lakeferry.storage import normalise
from lakeferry.storage.uris import split

if TYPE_CHECKING:
    from lakeferry.catalogs.unity_managed_tables import UnityManagedTables

LISTING_REQUESTS = 500
"""How many pages are searched for an id before we give up."""


class UnityCatalog(EditableCatalog):
    """A Unity Catalog server with one metastore. Sends no request before the first call."""

    kind = "unity"

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        pause: Callable[[float], None] = time.sleep,
        listing_requests: int = LISTING_REQUESTS,
    ) -> None:
        """Set the server's address, with or without the path of the API."""
        self._rest = CatalogRest(
            "Unity Catalog",
            unity_root(url),
            token,
            settings=(UNITY_URL, UNITY_TOKEN),
            timeout_s=timeout_s,
            pause=pause,
        )
        self._listing_requests = listing_requests
        self._url, self._token = url, token
        self._metastore: str | None = None
        self._names: dict[str, str] = {}
        self._delta = UnityDelta(
            url, token, timeout_s=timeout_s, pause=pause, listing_requests=listing_requests
        )
        self._has_delta = True
        self._loaded: dict[str, LoadedTable] = {}
        self._registration = UnityRegistration(self, self._rest, pause)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> UnityCatalog:
        """Return the catalog that ``UC_URL`` names."""
        return cls(*unity_from(environment))

    @property
    def place(self) -> str:
        """The address of the API."""
        return self._rest.root

    def find(self, name: str) -> CatalogTable | None:
        """Return the table of that name."""
        check_table_name(name)
        try:
            answer = self._rest.ask("GET", f"/tables/{quote(name, safe='')}")
        except Forbidden as forbidden:
            catalog, schema, _ = name.split(".")
            raise Forbidden(
                f"Unity Catalog doesn't let you see the table {name}",
                cause=forbidden.cause,
                remedy=f"ask the catalog's administrator to grant you USE CATALOG on {catalog}, "
                f"USE SCHEMA on {catalog}.{schema}, and SELECT on {name}",
                name=name,
                catalog=self._rest.root,
            ) from forbidden
        return None if answer.status == 404 else self._table(self._rest.body_of(answer))

    def find_to_open(self, name: str) -> CatalogTable | None:
        """Return the table of that name, in one request to a server that has managed tables.

        The answer also tells which commits a managed table has.
        """
        check_table_name(name)
        if not self._has_delta:
            return self.find(name)
        try:
            loaded = self._delta.find(name)
        except CatalogManaged:
            # A server of before, which has external tables only.
            self._has_delta = False
            return self.find(name)
        if loaded is None:
            return None
        described = loaded.metadata
        table_id = canonical(described.table_uuid) or described.table_uuid
        managed = described.table_type == "MANAGED"
        if managed:
            self._loaded[table_id] = loaded
        place = self._rest.location(described.location)
        return CatalogTable(name, place, table_id, self._metastore, managed)

    def find_id(
        self, table_id: str, metastore_id: str | None = None, once: str | None = None
    ) -> CatalogTable | None:
        """Return the table with that id; search its former schema, then all, for its name.

        If there are too many, or it isn't listed, its id is used as the name.
        Raises ``CatalogUnavailable`` if the server has another metastore.
        """
        self._check_metastore(metastore_id)
        if (wanted := canonical(table_id)) is None:
            return None
        if (known := self._names.get(wanted)) is not None:
            found = self.find(known)
            if found is not None and found.table_id == wanted:
                return found
        told = self._place_of(wanted)
        if told is None:
            return None
        if (info := find_listed(self._rest, wanted, self._listing_requests, once)) is not None:
            found = self._table(info)
            self._names[wanted] = found.name
            return found
        if isinstance(told, LakeferryError):
            raise told
        return CatalogTable(wanted, told, wanted, self._metastore_id())

    def locate_id(self, table_id: str, metastore_id: str | None = None) -> str | None:
        """Return the place of the table with that id, in one request if the server allows it."""
        self._check_metastore(metastore_id)
        wanted = canonical(table_id)
        told = self._place_of(wanted) if wanted is not None else None
        if isinstance(told, LakeferryError):
            return super().locate_id(table_id, metastore_id)
        return told

    def check_schema(self, name: str) -> None:
        """Refuse a name whose schema doesn't exist or may not be used."""
        self._registration.check_schema(name)

    def try_registration(self, name: str, location: str, metadata: Metadata) -> None:
        """Refuse what :meth:`register` would refuse, by registering the place for a moment."""
        self._registration.try_registration(name, location, metadata)

    def register(self, name: str, location: str, metadata: Metadata | None = None) -> CatalogTable:
        """Register the table at ``location`` as an external table with its columns."""
        return self._registration.register(name, location, metadata)

    def unregister(
        self, name: str, location: str | None = None, *, table_id: str | None = None
    ) -> bool:
        """Delete a name; return whether it existed. The table's files stay."""
        return self._registration.unregister(name, location, table_id=table_id)

    def move(self, name: str, location: str, was: str | None = None) -> CatalogTable:  # noqa: ARG002
        """Refuse, unless the table is already there: this catalog can't move a table."""
        place = normalise(location)
        found = self.get(name)
        if found.location == place:
            return found
        raise InvalidInput(
            f"unity:{name} can't be moved",
            cause="Unity Catalog's API can't change a table's location; if the table were "
            "deleted and created again, it would have another id, and redirects to the old id "
            "would no longer work",
            remedy="register the new place under a new name, and redirect to that name",
            name=name,
            location=found.location,
        )

    def tables(self, prefix: str) -> list[CatalogTable]:
        """Return the Delta tables whose name begins with a text, as far as we may see them."""
        found = []
        for info in list_below(self._rest, prefix, self._listing_requests):
            with suppress(NotATable):
                found.append(self._table(info))
        return sorted(found, key=lambda table: table.name)

    def check_rename(self, table: CatalogTable, new_name: str) -> None:
        """Refuse a name in another schema, or that another table has."""
        if new_name.rpartition(".")[0] != table.name.rpartition(".")[0]:
            raise InvalidInput(
                f"unity:{table.name} can't be moved to another schema",
                cause="Unity Catalog renames a table within its schema",
                remedy="give it a name in the same schema",
                name=table.name,
            )
        super().check_rename(table, new_name)

    def rename(self, table: CatalogTable, new_name: str) -> CatalogTable:
        """Give a table another name in its schema.

        Two clients may give one name to two tables, and both requests succeed. So the name has to
        lead to this table afterwards.
        """
        self._delta.rename(table.name, new_name, table.table_id)
        return replace(table, name=new_name)

    def remove(self, table: CatalogTable) -> bool:
        """Delete a table's name; the server deletes the files of a managed table, too."""
        if table.managed:
            return self.managed_tables().drop(table.table_id, table.name)
        return self.unregister(table.name, table.location, table_id=table.table_id)

    def half_removed(self, name: str) -> CatalogTable | None:
        """Return a managed table that was to be dropped, and has kept its private name."""
        parent, _, table = name.rpartition(".")
        with suppress(LakeferryError):
            for found in self.tables(f"{parent}.{private_names.DROP_LEAD}"):
                if found.managed and private_names.is_of(found.name.rpartition(".")[2], table):
                    return found
        return None

    def access(self, table: CatalogTable) -> CatalogAccess:
        """Return how a table is opened: a managed one with the catalog, which decides its commits.

        Credentials that expire are asked for again before that, also by executors.
        """
        if not table.managed:
            return self._external_access(table)
        loaded = self._loaded.pop(table.table_id, None)
        commits = UnityCommitCatalog(self._delta, table.name, table.table_id, found=loaded)
        source = TableCredentialSource(
            self._url,
            table.location,
            table.name,
            table.table_id,
            token=explicit_token(self._token),
        )
        is_issued = issues_credentials(source, unless=(Forbidden, TableNotFound, Unauthorized))
        return CatalogAccess(commits=commits, renewal=source if is_issued else None)

    def _external_access(self, table: CatalogTable) -> CatalogAccess:
        """Return the options that the server issues, for writing or else for reading.

        There are none for local disk, and none if the server isn't configured to issue any: then
        the user's own options are used.
        """
        if split(table.location).scheme == "file":
            return CatalogAccess()
        try:
            issued = self._delta.issued.for_external_table(table.location, table.table_id)
        except Forbidden:
            return CatalogAccess()
        found = issued_for(table.location, issued)
        if found is None or not found.options or found.expires_ms is None:
            return CatalogAccess(found.options if found is not None else {})
        source = ExternalCredentialSource(
            self._url, table.location, table.table_id, token=explicit_token(self._token)
        )
        return CatalogAccess(found.options, renewal=source)

    def place_access(self, location: str) -> CatalogAccess:
        """Return credentials for a place where an external table is to be, if there are any."""
        source = PathCredentialSource(self._url, location, token=explicit_token(self._token))
        refusals = (CatalogUnavailable, Forbidden, TableNotFound, Unauthorized)
        if not issues_credentials(source, unless=refusals):
            return NO_ACCESS
        return CatalogAccess(renewal=source, is_fallback=True)

    def _place_of(self, table_id: str) -> str | LakeferryError | None:
        """Return a table's place by its id, ``None`` if it doesn't exist, or the server's error.

        A server that knows the table may still refuse: because of this user, or because it
        has no credentials to issue.
        """
        try:
            request = {"table_id": table_id, "operation": "READ"}
            answer = self._rest.ask("POST", "/temporary-table-credentials", body=request)
        except Forbidden as forbidden:
            return forbidden
        if answer.status == 404:
            return None
        if not answer.ok:
            return self._rest.unavailable(answer.problem)
        return self._rest.location(answer.body.get("url"))

    def _table(self, info: Mapping[str, Any]) -> CatalogTable:
        """Return a table as the server describes it; refuse one that isn't a Delta table."""
        parts = [info.get(key) for key in ("catalog_name", "schema_name", "name")]
        table_id = info.get("table_id")
        if not isinstance(table_id, str) or not all(isinstance(part, str) for part in parts):
            raise self._rest.unavailable("it describes a table without its name and its id")
        name = ".".join(map(str, parts))
        form = info.get("data_source_format")
        if form != "DELTA" or not info.get("storage_location"):
            raise NotATable(
                f"unity:{name} isn't a Delta table",
                cause=f"its format is {form or info.get('table_type') or 'unknown'}",
                name=name,
            )
        metastore = info.get("metastore_id") or self._metastore_id()
        place = self._rest.location(info["storage_location"])
        managed = info.get("table_type") == "MANAGED"
        return CatalogTable(name, place, canonical(table_id) or table_id, metastore, managed)

    def managed_tables(self) -> UnityManagedTables:
        """Return the server as the owner of tables."""
        from lakeferry.catalogs.unity_managed_tables import UnityManagedTables

        return UnityManagedTables(self._url, self._token, metastore_id=self._metastore_id())

    def _metastore_id(self) -> str | None:
        """Return the id of the server's metastore; ``None`` if an old server doesn't tell it."""
        if self._metastore is None:
            answer = self._rest.ask("GET", "/metastore_summary")
            told = None if answer.status == 404 else self._rest.body_of(answer).get("metastore_id")
            self._metastore = told if isinstance(told, str) else None
        return self._metastore

    def _check_metastore(self, wanted: str | None) -> None:
        if wanted is None or (mine := self._metastore_id()) is None:
            return
        if mine.lower() != wanted.lower():
            # Not "no such table": it may exist on the server with that metastore.
            raise CatalogUnavailable(
                f"Unity Catalog at {self._rest.root} serves another metastore",
                cause=f"its metastore is {mine}, and the table is in {wanted}",
                remedy=f"set {UNITY_URL} to the server of that metastore",
                metastore_id=mine,
            )
