"""Sources of the credentials that Unity Catalog issues, for stores that renew them.

A source is a frozen value and travels to executors. The token is the one in ``UC_TOKEN`` of the
process in which the source runs; a token that was given explicitly travels inside the value, as
the user's other options do.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from lakeferry.catalogs.fitting_credentials import issued_for
from lakeferry.catalogs.unity_address import UNITY_TOKEN
from lakeferry.catalogs.unity_delta import UnityDelta
from lakeferry.catalogs.unity_delta_messages import StorageCredential
from lakeferry.errors import (
    Forbidden,
    LakeferryError,
    TableNotFound,
    Unauthorized,
)
from lakeferry.storage.credential_renewal import VendedCredentials, renewed
from lakeferry.storage.uris import split


def explicit_token(token: str | None) -> str | None:
    """Return a token that a source has to carry; executors find the usual one themselves."""
    return None if token == os.environ.get(UNITY_TOKEN) else token


def issues_credentials(
    source: UnityCredentialSource, *, unless: tuple[type[LakeferryError], ...]
) -> bool:
    """Return whether the server issues credentials for a source's place.

    It issues none for local disk. An error in ``unless`` means that it issues none, either. An
    answer with credentials is kept for the stores that will use the source.
    """
    if split(source.location).scheme == "file":
        return False
    try:
        renewed(source).current()
    except unless:
        return False
    return True


@dataclass(frozen=True, slots=True)
class UnityCredentialSource(ABC):
    """What all sources have: the server, the place, and a token that was given explicitly."""

    url: str
    location: str
    token: str | None = field(default=None, repr=False, kw_only=True)

    def __call__(self) -> VendedCredentials:
        """Ask the catalog for new credentials."""
        token = self.token if self.token is not None else os.environ.get(UNITY_TOKEN)
        found = self._ask(UnityDelta(self.url, token))
        if found is None or not found.options:
            raise Unauthorized(
                f"Unity Catalog issues no credentials for {self.location}",
                remedy="give your own storage options for that place",
                uri=self.location,
            )
        return found

    @abstractmethod
    def _ask(self, api: UnityDelta) -> VendedCredentials | None:
        """Return credentials for the place."""


@dataclass(frozen=True, slots=True)
class StagingCredentialSource(UnityCredentialSource):
    """Credentials for a staging table's place, for the user who allocated it.

    They are issued after the table was created too, whatever it is called by then.
    """

    table_id: str

    def _ask(self, api: UnityDelta) -> VendedCredentials | None:
        return issued_for(self.location, api.issued.for_staging_table(self.table_id))


@dataclass(frozen=True, slots=True)
class TableCredentialSource(UnityCredentialSource):
    """Credentials for a table's place; if the table was renamed, its name is found by its id."""

    table_name: str
    table_id: str
    write: bool = True

    def _ask(self, api: UnityDelta) -> VendedCredentials | None:
        found: tuple[StorageCredential, ...] = ()
        forbidden: Forbidden | None = None
        try:
            found = api.issued.for_table(self.table_name, write=self.write)
        except TableNotFound:
            pass
        except Forbidden as hidden:
            # Somebody else's table may have that name by now.
            forbidden = hidden
        fitting = issued_for(self.location, found)
        if fitting is None and (name := self._name(api)) is not None:
            return issued_for(self.location, api.issued.for_table(name, write=self.write))
        if forbidden is not None:
            raise forbidden
        return fitting

    def _name(self, api: UnityDelta) -> str | None:
        name = api.find_name(self.table_id, self.table_name)
        return None if name == self.table_name else name


@dataclass(frozen=True, slots=True)
class ExternalCredentialSource(UnityCredentialSource):
    """Credentials for the place of an external table, whatever it is called now."""

    table_id: str

    def _ask(self, api: UnityDelta) -> VendedCredentials | None:
        return issued_for(
            self.location, api.issued.for_external_table(self.location, self.table_id)
        )


@dataclass(frozen=True, slots=True)
class PathCredentialSource(UnityCredentialSource):
    """Credentials for any place that the catalog knows."""

    write: bool = True

    def _ask(self, api: UnityDelta) -> VendedCredentials | None:
        return issued_for(self.location, api.issued.for_path(self.location, write=self.write))
