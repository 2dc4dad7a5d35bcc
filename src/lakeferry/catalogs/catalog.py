"""The port ``Catalog``, which every catalog implements, and the form of table names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from lakeferry.errors import InvalidInput, TableNotFound
from lakeferry.log.actions import Metadata
from lakeferry.storage.uris import shell_safe

CatalogKind = Literal["sql", "unity"]
KINDS: tuple[CatalogKind, ...] = ("sql", "unity")
VARIABLES: dict[CatalogKind, str] = {"sql": "LAKEFERRY_SQL_URL", "unity": "UC_URL"}
"""The environment's variable that says where the catalog of a kind is."""
_LONGEST_PART = 255


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """What a catalog knows of a table. ``location`` is a normalised URI."""

    name: str
    location: str
    table_id: str
    """The catalog's own id of it, which a rename or a move leaves as it is."""
    metastore_id: str | None = None
    managed: bool = False
    """Whether the catalog owns the table's files, and deletes them with its name."""

    def is_same(self, table_id: str, metastore_id: str | None) -> bool:
        """Tell whether it is the table with that id, in that metastore where one is given."""
        mine = (self.metastore_id or metastore_id or "").lower()
        return self.table_id == table_id.lower() and mine == (metastore_id or mine).lower()


GrantOptions = Callable[[str, Mapping[str, str]], None]
"""Is told the storage options that a catalog hands out for a place."""


def ungranted(place: str, options: Mapping[str, str]) -> None:
    """Leave what a catalog hands out: whoever opens the place has options of their own."""


class Catalog(ABC):
    """A catalog. Names have three parts: ``catalog.schema.table``.

    A name that isn't of that form is :class:`~lakeferry.errors.InvalidInput`
    everywhere. Locations may be given in any spelling.
    """

    kind: CatalogKind

    @property
    def place(self) -> str:
        """Where the catalog is, for messages; never with a secret in it."""
        return self.kind

    def get(self, name: str) -> CatalogTable:
        """Return the table of that name; one that isn't there is ``TableNotFound``."""
        if (found := self.find(name)) is not None:
            return found
        raise self.missing(name)

    def missing(self, name: str) -> TableNotFound:
        """Return the error for a name that the catalog doesn't have."""
        return TableNotFound(
            f"the {self.kind} catalog at {self.place} has no table {name}",
            remedy=f"check the name and {VARIABLES[self.kind]}, or give a table that name: "
            f"lakeferry catalog register {self.kind}:{name} LOCATION",
            name=name,
            catalog=self.place,
        )

    @abstractmethod
    def find(self, name: str) -> CatalogTable | None:
        """Return the table of that name, or ``None`` where the catalog says there is none."""

    @abstractmethod
    def find_id(self, table_id: str, metastore_id: str | None = None) -> CatalogTable | None:
        """Return the table with that id, or ``None`` where the catalog says there is none."""

    def locate_id(self, table_id: str, metastore_id: str | None = None) -> str | None:
        """Return the place of the table with that id, for less than :meth:`find_id` may cost."""
        found = self.find_id(table_id, metastore_id)
        return found.location if found is not None else None

    def check_schema(self, name: str) -> None:
        """Refuse a name whose catalog or schema has to be there first and isn't."""
        check_name(name)

    def try_registration(  # noqa: B027
        self, name: str, location: str, metadata: Metadata
    ) -> None:
        """Refuse what :meth:`register` would refuse; afterwards everything is as it was."""

    @abstractmethod
    def register(self, name: str, location: str, metadata: Metadata | None = None) -> CatalogTable:
        """Give the table at ``location`` a name; fine where it has it already.

        Raises :class:`~lakeferry.errors.InvalidInput` where the name leads
        elsewhere. ``metadata`` is the table's, for catalogs that keep columns.
        """

    @abstractmethod
    def move(self, name: str, location: str) -> CatalogTable:
        """Let a name that is there lead to another place; its id stays.

        Raises :class:`~lakeferry.errors.TableNotFound` where there is no such name.
        """

    @abstractmethod
    def unregister(
        self, name: str, location: str | None = None, *, table_id: str | None = None
    ) -> bool:
        """Take a name away, and tell whether it was there.

        With ``location`` only where it leads there: a name that somebody moved
        on is left alone. ``table_id`` finds a table that was renamed since.
        """

    def credentials(self, table: CatalogTable) -> Mapping[str, str]:  # noqa: ARG002
        """Return storage options for the table's place, where the catalog hands out any."""
        return {}


def split_name(table: str) -> tuple[CatalogKind, str] | None:
    """Return kind and name of ``sql:cat.schema.t`` or ``unity:cat.schema.t``; else ``None``."""
    for kind in KINDS:
        if table.startswith(f"{kind}:"):
            name = table.removeprefix(f"{kind}:")
            check_name(name)
            return kind, name
    return None


def check_name(name: str) -> None:
    """Refuse what isn't ``catalog.schema.table``."""
    parts = name.split(".")
    if len(parts) != 3 or not all(map(_is_part, parts)):
        raise InvalidInput(
            f"{name!r} is no name of a table in a catalog",
            remedy="write catalog.schema.table",
            name=name,
        )


def _is_part(part: str) -> bool:
    # A colon or a slash is a kind that was misspelt, or a path that was meant as one.
    fits = part.isprintable() and ":" not in part and "/" not in part
    return 0 < len(part) <= _LONGEST_PART and part == part.strip() and fits


def unless_elsewhere(kind: CatalogKind, found: CatalogTable, location: str) -> CatalogTable:
    """Return what was found where it is at ``location``; otherwise refuse to register it."""
    if found.location == location:
        return found
    # Unity Catalog can't move a table, so there the name has to become free.
    change = (
        f"run: lakeferry catalog move {kind}:{found.name} {shell_safe(location)}"
        if kind == "sql"
        else f"have its owner drop the table {found.name} in the catalog first, if nobody needs it"
    )
    raise InvalidInput(
        f"the name {kind}:{found.name} leads elsewhere",
        cause=f"it leads to {found.location}, not to {location}",
        remedy=f"choose another name, or {change}",
        name=found.name,
        location=found.location,
    )
