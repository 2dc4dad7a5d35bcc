"""Unity Catalog as the owner of tables: its API for managed tables behind the port of a move."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lakeferry.catalogs import unity_limits, unity_privileges, unity_users
from lakeferry.catalogs.catalog import NO_ACCESS, CatalogAccess
from lakeferry.catalogs.managed_tables import ManagedTables, StagedTable, TableToCreate
from lakeferry.catalogs.unity_commit_catalog import UnityCommitCatalog
from lakeferry.catalogs.unity_credentials import (
    StagingCredentialSource,
    explicit_token,
    issues_credentials,
)
from lakeferry.catalogs.unity_delta import UnityDelta
from lakeferry.catalogs.unity_delta_messages import NewTable
from lakeferry.errors import (
    Forbidden,
    InvalidInput,
    NotATable,
    TableNotFound,
    Unauthorized,
)
from lakeferry.log.actions import Metadata
from lakeferry.log.catalog_changes import changes_of
from lakeferry.log.latest_actions import LatestActions
from lakeferry.table.managed import CommitCatalog

_NAME = re.compile(r"[A-Za-z0-9_@-]{1,255}")
_API = "/api/2.1/unity-catalog"
_taken: dict[str, frozenset[str]] = {}
"""What servers were found to take, by their addresses."""


class UnityManagedTables(ManagedTables):
    """The managed tables of a server."""

    def __init__(self, url: str, token: str | None, *, metastore_id: str | None) -> None:
        """Ask nothing yet."""
        self._url = url
        self._token = token
        self._metastore = metastore_id
        self._api = UnityDelta(url, token)

    @property
    def taken(self) -> frozenset[str]:
        """The keys of the tables that this server was found to take, in this process."""
        return _taken.get(self._api.place, frozenset())

    @taken.setter
    def taken(self, keys: frozenset[str]) -> None:
        _taken[self._api.place] = keys

    def check(self, name: str) -> None:
        """Refuse a server without the API, and a name that it doesn't take."""
        catalog, _, table = name.split(".")
        if not _NAME.fullmatch(table):
            raise InvalidInput(
                f"{name} can't be the name of a managed table",
                cause="Unity Catalog takes letters, digits, '_', '@' and '-'",
                remedy="choose another name",
                name=name,
            )
        with self._explained(name):
            self._api.config(catalog)

    def check_table(self, name: str, metadata: Metadata) -> None:
        """Refuse an invalid schema, and texts that are too long for the server."""
        unity_limits.check(name, changes_of(LatestActions(metadata=metadata), None))

    def principal(self) -> str | None:
        """Return the name of the user whose token we have; ``None`` without authorization."""
        return unity_users.principal(self._api.place.removesuffix(_API), self._token)

    def metastore_id(self) -> str | None:
        """Return the id of the server's metastore."""
        return self._metastore

    def stage(self, name: str) -> StagedTable:
        """Allocate an id and a place for a new table."""
        try:
            with self._explained(name):
                found = self._api.create_staging_table(name)
        except InvalidInput as refused:
            # The name is ours and fits. As it is installed, a server has no place for such tables.
            raise self._api.rest.without_place(name, refused.cause) from refused
        required = found.required_protocol
        # A required property without a value may have any.
        properties = found.required_properties.items()
        return StagedTable(
            found.table_id,
            found.location,
            required.reader_features,
            required.writer_features,
            {key: value for key, value in properties if value is not None},
        )

    def place_access(self, table_id: str, location: str) -> CatalogAccess:
        """Return the credentials that are issued to who allocated the place, if there are any."""
        source = StagingCredentialSource(
            self._url, location, table_id, token=explicit_token(self._token)
        )
        is_issued = issues_credentials(source, unless=(TableNotFound, Unauthorized))
        return CatalogAccess(renewal=source) if is_issued else NO_ACCESS

    def create(self, table: TableToCreate) -> None:
        """Create the table of an allocated place."""
        short = table.name.rpartition(".")[2]
        new = NewTable.of(short, table.location, table.description, table.timestamp_ms)
        self._api.create_table(table.name, table.table_id, new)

    def name_of(self, table_id: str, former: str) -> str | None:
        """Return the present name of a table, by its former name or by listing."""
        with self._explained(former):
            return self._api.name_of(table_id, former)

    def is_free(self, name: str) -> bool:
        """Return whether no table has that name, also none that we may not see."""
        with self._explained(name):
            self._api.config(name.split(".")[0])
        try:
            return self._api.find(name) is None
        except (Forbidden, NotATable):
            return False

    def rename(self, table_id: str, name: str, new_name: str) -> bool:
        """Give a table another name; the name has to lead to it afterwards."""
        try:
            with self._explained(name):
                self._api.rename(name, new_name, table_id)
        except InvalidInput:
            if self.is_free(new_name):
                raise
            return False
        return True

    def drop(self, table_id: str, former: str) -> bool:
        """Drop a table, whatever it is called now."""
        name = self.name_of(table_id, former)
        return name is not None and self._api.delete(name, table_id)

    def drop_named(self, table_id: str, name: str) -> bool:
        """Drop a table by this name alone."""
        return self._api.delete(name, table_id)

    def commits(self, table_id: str, name: str) -> CommitCatalog:
        """Return the table as the catalog of its own commits."""
        return UnityCommitCatalog(self._api, name, table_id)

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Say in a refusal which privileges we lack to create a table, if that can be known."""
        try:
            yield
        except Forbidden as refused:
            server = self._api.place.removesuffix(_API)
            if missing := unity_privileges.lacking(self._api.rest, server, self._token, name):
                refused.remedy = (
                    f"ask the catalog's administrator to grant you {', '.join(missing)}"
                )
            raise
