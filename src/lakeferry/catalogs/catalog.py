"""The port ``Catalog``, which every catalog implements, and the form of table names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from lakeferry.errors import CommitConflict, InvalidInput, TableNotFound
from lakeferry.log.actions import Metadata
from lakeferry.storage import Store
from lakeferry.storage.credential_renewal import CredentialSource
from lakeferry.storage.option_spellings import StorageOptions
from lakeferry.storage.uris import shell_safe
from lakeferry.table.managed import CommitCatalog, ManagedStore

if TYPE_CHECKING:
    from lakeferry.catalogs.managed_tables import ManagedTables

CatalogKind = Literal["sql", "unity"]
KINDS: tuple[CatalogKind, ...] = ("sql", "unity")
VARIABLES: dict[CatalogKind, str] = {"sql": "LAKEFERRY_SQL_URL", "unity": "UC_URL"}
"""The environment variable with the address of each kind of catalog."""
_LONGEST_PART = 255


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table as its catalog describes it. ``location`` is a normalised URI."""

    name: str
    location: str
    table_id: str
    """The catalog's own id of the table; a rename or a move doesn't change it."""
    metastore_id: str | None = None
    managed: bool = False
    """Whether the catalog owns the table's files, and deletes them with its name."""

    def is_same(self, table_id: str, metastore_id: str | None) -> bool:
        """Return whether it has that id, and that metastore if one is given."""
        mine = (self.metastore_id or metastore_id or "").lower()
        return self.table_id == table_id.lower() and mine == (metastore_id or mine).lower()


@dataclass(frozen=True, slots=True)
class CatalogAccess:
    """How a catalog lets its clients open a table's place.

    ``options`` are the storage options that it issued. ``renewal`` issues credentials again
    before they expire. ``commits`` is there for a managed table, whose commits the catalog
    decides about. ``is_fallback``: it is for users who have no credentials of their own.
    """

    options: StorageOptions = field(default_factory=dict, repr=False)
    commits: CommitCatalog | None = None
    renewal: CredentialSource | None = field(default=None, repr=False)
    is_fallback: bool = False

    def over(self, place: Store, warn: Callable[[str], None] = lambda _: None) -> Store:
        """Return the store of a place as the catalog's clients see it."""
        return place if self.commits is None else ManagedStore(place, self.commits, warn=warn)


NO_ACCESS = CatalogAccess()
"""For places that no catalog was asked about."""
GrantAccess = Callable[[str, CatalogAccess], None]
"""Is called with a place, and how its catalog lets it be opened."""


def ungranted(place: str, access: CatalogAccess) -> None:
    """Ignore a catalog's access: the caller opens the place with its own options."""


class Catalog(ABC):
    """A catalog. Names have three parts: ``catalog.schema.table``.

    Every method raises :class:`~lakeferry.errors.InvalidInput` for a name of another
    form. Locations may be given in any spelling.
    """

    kind: CatalogKind

    @property
    def place(self) -> str:
        """Where the catalog is, for messages; never with a secret in it."""
        return self.kind

    def get(self, name: str) -> CatalogTable:
        """Return the table of that name, or raise ``TableNotFound``."""
        if (found := self.find(name)) is not None:
            return found
        raise self.missing(name)

    def find_to_open(self, name: str) -> CatalogTable | None:
        """Return the table of that name as :meth:`find` does, if it is about to be opened.

        A catalog may learn here what :meth:`access` would ask for. The metastore's id may be
        missing.
        """
        return self.find(name)

    def get_to_open(self, name: str) -> CatalogTable:
        """Return the table of that name, which is about to be opened; or ``TableNotFound``."""
        if (found := self.find_to_open(name)) is not None:
            return found
        raise self.missing(name)

    def missing(self, name: str) -> TableNotFound:
        """Return the error for a name that the catalog doesn't have."""
        schema = name.rpartition(".")[0]
        return TableNotFound(
            f"the {self.kind} catalog at {self.place} has no table {name}",
            remedy=f"check the name and {VARIABLES[self.kind]} ('lakeferry catalog list "
            f"{self.kind}:{schema}' shows what is there), or give a table that name: "
            f"lakeferry catalog register {self.kind}:{name} LOCATION",
            name=name,
            catalog=self.place,
        )

    @abstractmethod
    def find(self, name: str) -> CatalogTable | None:
        """Return the table of that name, or ``None`` if the catalog says there is none."""

    @abstractmethod
    def find_id(
        self, table_id: str, metastore_id: str | None = None, once: str | None = None
    ) -> CatalogTable | None:
        """Return the table with that id, or ``None`` if the catalog says there is none.

        ``once`` is a name that the table had: a catalog that has to search begins there.
        """

    def locate_id(self, table_id: str, metastore_id: str | None = None) -> str | None:
        """Return the place of the table with that id; often cheaper than :meth:`find_id`."""
        found = self.find_id(table_id, metastore_id)
        return found.location if found is not None else None

    def check_schema(self, name: str) -> None:
        """Refuse a name whose catalog or schema must exist first and doesn't."""
        check_table_name(name)

    def try_registration(  # noqa: B027
        self, name: str, location: str, metadata: Metadata
    ) -> None:
        """Refuse what :meth:`register` would refuse, and leave the catalog unchanged."""

    @abstractmethod
    def register(self, name: str, location: str, metadata: Metadata | None = None) -> CatalogTable:
        """Register the table at ``location`` under a name; succeed if it has the name already.

        Raises :class:`~lakeferry.errors.InvalidInput` if the name leads elsewhere.
        ``metadata`` is the table's, for catalogs that store columns.
        """

    @abstractmethod
    def move(self, name: str, location: str, was: str | None = None) -> CatalogTable:
        """Change the place of an existing name; its id stays.

        Raises :class:`~lakeferry.errors.TableNotFound` if the name doesn't exist. With ``was``, a
        name that doesn't lead there any more stays, and :class:`~lakeferry.errors.CommitConflict`
        is raised.
        """

    @abstractmethod
    def unregister(
        self, name: str, location: str | None = None, *, table_id: str | None = None
    ) -> bool:
        """Delete a name; return whether it existed.

        With ``location``, only if the name leads there: a name that was moved
        meanwhile stays. ``table_id`` finds a table that was renamed since.
        """

    def access(self, table: CatalogTable) -> CatalogAccess:  # noqa: ARG002
        """Return how the catalog lets the table's place be opened; may ask for credentials."""
        return CatalogAccess()

    def place_access(self, location: str) -> CatalogAccess:  # noqa: ARG002
        """Return how a place is opened that no table has yet; may ask for credentials."""
        return NO_ACCESS

    def managed_tables(self) -> ManagedTables | None:
        """Return the catalog as the owner of tables, or ``None`` if it can't own any."""
        return None


class EditableCatalog(Catalog):
    """A catalog whose names can be listed, changed and removed by a command."""

    @abstractmethod
    def tables(self, prefix: str) -> list[CatalogTable]:
        """Return the Delta tables whose name begins with a text, by name."""

    def check_rename(self, table: CatalogTable, new_name: str) -> None:
        """Refuse a new name that can't be given, or that another table has."""
        found = self.find(new_name)
        if found is not None and found.table_id != table.table_id:
            raise taken(self.kind, new_name, found)

    @abstractmethod
    def rename(self, table: CatalogTable, new_name: str) -> CatalogTable:
        """Give a table another name; its id and its place stay.

        Raises :class:`~lakeferry.errors.InvalidInput` if another table has got it meanwhile.
        """

    @abstractmethod
    def remove(self, table: CatalogTable) -> bool:
        """Delete a table's name, whatever it is called now; return whether it was there.

        Its files stay, unless the catalog owns them.
        """

    def half_removed(self, name: str) -> CatalogTable | None:  # noqa: ARG002
        """Return a table of that name whose removal was broken off, if the catalog has one."""
        return None


def taken(kind: CatalogKind, name: str, found: CatalogTable) -> InvalidInput:
    """Return the error for a new name that another table has."""
    return InvalidInput(
        f"the name {kind}:{name} is taken",
        cause=f"it leads to {found.location}",
        remedy="choose another name",
        name=name,
        location=found.location,
    )


def moved_meanwhile(kind: CatalogKind, found: CatalogTable) -> CommitConflict:
    """Return the error for a name that another process has moved just before."""
    return CommitConflict(
        f"the name {kind}:{found.name} was moved by somebody else",
        cause=f"it leads to {found.location} now",
        remedy="run the same command again",
        name=found.name,
        location=found.location,
    )


def split_name(table: str) -> tuple[CatalogKind, str] | None:
    """Return kind and name of ``sql:cat.schema.t`` or ``unity:cat.schema.t``; else ``None``."""
    for kind in KINDS:
        if table.startswith(f"{kind}:"):
            name = table.removeprefix(f"{kind}:")
            check_table_name(name)
            return kind, name
    return None


def check_table_name(name: str) -> None:
    """Refuse what isn't ``catalog.schema.table``."""
    parts = name.split(".")
    if len(parts) != 3 or not all(map(_is_part, parts)):
        raise InvalidInput(
            f"{name!r} isn't the name of a table in a catalog",
            remedy="write catalog.schema.table",
            name=name,
        )


def _is_part(part: str) -> bool:
    # A colon or a slash means that the kind was misspelt, or that a path was meant.
    fits = part.isprintable() and ":" not in part and "/" not in part
    return 0 < len(part) <= _LONGEST_PART and part == part.strip() and fits


def unless_elsewhere(kind: CatalogKind, found: CatalogTable, location: str) -> CatalogTable:
    """Return ``found`` if it is at ``location``; otherwise refuse to register the name."""
    if found.location == location:
        return found
    # Unity Catalog can't move a table, so there the name has to become free.
    change = (
        f"run: lakeferry catalog move {kind}:{found.name} {shell_safe(location)}"
        if kind == "sql"
        else f"ask its owner to drop the table {found.name} in the catalog, if nobody needs it"
    )
    raise InvalidInput(
        f"the name {kind}:{found.name} belongs to a table at another place",
        cause=f"it leads to {found.location}, not to {location}",
        remedy=f"choose another name, or {change}",
        name=found.name,
        location=found.location,
    )
