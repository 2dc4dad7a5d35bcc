"""A catalog that decides about commits, kept as one object of a store.

Every call of it is a call of the store, so that a :class:`~tests.support.stores.FaultyStore` or a
simulation makes it fail, lose its answer, or end its caller, like any other call. It answers as
the real Unity Catalog does: a repeated proposal is accepted, the first one may have any version,
and no more than ten commits may be unpublished.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import msgspec

from lakeferry.errors import CatalogUnavailable, StorageUnavailable, TableNotFound
from lakeferry.storage import Store
from lakeferry.table.managed import (
    CatalogHead,
    CommitCatalog,
    ManagedStore,
    Proposal,
    RatifiedCommit,
    Verdict,
)

STATE = ".catalog/table.json"
MOST_UNPUBLISHED = 10


@dataclass(frozen=True, kw_only=True)
class RatifiedTable:
    """A table as its catalog knows it: all ratified commits, and how many of them are published."""

    commits: tuple[RatifiedCommit, ...] = ()
    published: int = -1
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def latest(self) -> int:
        """The latest version; 0 before the first commit is ratified."""
        return self.commits[-1].version if self.commits else 0

    def head(self, table_id: str) -> CatalogHead:
        """Return what the catalog says of the table."""
        unpublished = tuple(one for one in self.commits if one.version > self.published)
        return CatalogHead(table_id, self.latest, unpublished, self.properties)

    def ratify(self, proposal: Proposal) -> tuple[Self, Verdict]:
        """Return the table with a commit, unless another one has its version."""
        commit, changes = proposal.commit, proposal.changes
        if commit in self.commits:
            return self, Verdict.RATIFIED
        if self.commits and commit.version != self.latest + 1:
            return self, Verdict.CONFLICT
        if sum(one.version > self.published for one in self.commits) >= MOST_UNPUBLISHED:
            return self, Verdict.FULL
        properties = {
            key: value
            for key, value in {**self.properties, **changes.properties}.items()
            if key not in changes.removed_properties
        }
        after = replace(self, commits=(*self.commits, commit), properties=properties)
        return after, Verdict.RATIFIED

    def with_published(self, version: int) -> Self:
        """Keep the number; a lower one than before changes nothing."""
        return replace(self, published=max(version, self.published))


@dataclass(frozen=True)
class Kept(RatifiedTable):
    """The only table of a catalog."""

    table_id: str


class StoredCatalog(CommitCatalog):
    """A catalog with one table, in ``store``."""

    name = "unity:main.sales.orders"

    def __init__(self, store: Store, table_id: str = "7c0e") -> None:
        """Ask nothing yet."""
        self._store = store
        self.table_id = table_id

    def create(self, properties: dict[str, str] | None = None) -> None:
        """Create the table; its history stays as it is."""
        kept = Kept(self.table_id, properties=properties or {})
        self._store.put(STATE, msgspec.json.encode(kept))

    def kept(self) -> Kept:
        """Return what the catalog knows."""
        return self._read()[1]

    def head(self) -> CatalogHead:
        """Return what the catalog says now."""
        kept = self.kept()
        return kept.head(kept.table_id)

    def propose(self, proposal: Proposal) -> Verdict:
        """Ratify a commit, unless another one has its version."""
        while True:
            before, kept = self._read()
            after, verdict = kept.ratify(proposal)
            if after is kept or self._swap(before, after):
                return verdict

    def report_published(self, version: int) -> None:
        """Keep the number; a lower one than before changes nothing."""
        while True:
            before, kept = self._read()
            after = kept.with_published(version)
            if after == kept or self._swap(before, after):
                return

    def _read(self) -> tuple[bytes, Kept]:
        try:
            body = self._store.get(STATE)
        except StorageUnavailable as down:
            raise CatalogUnavailable("the catalog doesn't answer", cause=str(down)) from down
        kept = msgspec.json.decode(body, type=Kept)
        if kept.table_id != self.table_id:
            raise TableNotFound(f"{self.name} is another table")
        return body, kept

    def _swap(self, before: bytes, after: Kept) -> bool:
        try:
            return self._store.swap(STATE, before, msgspec.json.encode(after))
        except StorageUnavailable as down:
            raise CatalogUnavailable("the catalog doesn't answer", cause=str(down)) from down


def managed(store: Store, *, onboarding: int | None = None) -> ManagedStore:
    """Return a table's store, whose catalog is in the same store."""
    return ManagedStore(store, StoredCatalog(store), onboarding=onboarding)
