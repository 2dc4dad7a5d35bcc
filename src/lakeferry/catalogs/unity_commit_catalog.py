"""Unity Catalog as the catalog that decides about a managed table's commits.

A table is called by its name, and each request says which id it must have. If the name leads to
another table or to none, the table was renamed or dropped: its present name is found by its id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from lakeferry.catalogs import unity_limits
from lakeferry.catalogs.unity_delta import UnityDelta, UpdateRefusal
from lakeferry.catalogs.unity_delta_messages import (
    AddCommit,
    LoadedTable,
    SentCommit,
    SetLatestBackfilledVersion,
    Update,
    updates_of,
)
from lakeferry.errors import Forbidden, LakeferryError, NotATable, TableNotFound
from lakeferry.log.catalog_changes import CatalogChanges
from lakeferry.table.managed import CatalogHead, CommitCatalog, Proposal, Verdict

_MOST_RENAMES = 4
"""How many times in a row a table is looked for, as it may be renamed meanwhile."""

_FRESH_S = 2.0
"""How long the description with which a table was found answers for the table's state, once."""

_ANSWERS = {UpdateRefusal.CONFLICT: Verdict.CONFLICT, UpdateRefusal.FULL: Verdict.FULL}


class UnityCommitCatalog(CommitCatalog):
    """The table with ``table_id``, which was called ``table_name`` (``catalog.schema.table``).

    ``renamed`` is told each new name that the table is found under. ``found`` is the description
    with which the table has just been found: it spares the first request. It is used once, and for
    the call that has found the table (:meth:`forget`).
    """

    def __init__(
        self,
        api: UnityDelta,
        table_name: str,
        table_id: str,
        *,
        renamed: Callable[[str], None] = lambda _: None,
        found: LoadedTable | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask nothing yet."""
        self._api = api
        self._found = found
        self._found_s = monotonic()
        self._monotonic = monotonic
        self._last: CatalogHead | None = None
        self._renamed = renamed
        self.table_id = table_id
        self.table_name = table_name
        self.name = f"unity:{table_name}"

    def head(self) -> CatalogHead:
        """Return what the catalog says of the table now."""
        found, self._found = self._found, None
        if found is None or self._monotonic() > self._found_s + _FRESH_S:
            found = self.load()
        self._last = self._checked(found)
        return self._last

    def _checked(self, found: LoadedTable) -> CatalogHead:
        head = found.as_head()
        if head.decides and found.latest_table_version is None:
            raise self._api.rest.unavailable(f"it doesn't say the latest version of {self.name}")
        return head

    def last_head(self) -> CatalogHead:
        """Return what the catalog said last, whichever store has asked."""
        if self._last is None and self._found is not None:
            self._last = self._checked(self._found)
        return self._last or self.head()

    def forget(self) -> None:
        """Ask for the next head, whatever the table was found with."""
        self._found = None

    def load(self) -> LoadedTable:
        """Return the whole description that the catalog has of the table now."""
        for _ in range(_MOST_RENAMES):
            hidden: Forbidden | None = None
            found: LoadedTable | None = None
            try:
                found = self._api.find(self.table_name)
            except NotATable:
                # A table of another format has that name by now.
                pass
            except Forbidden as other:
                # Perhaps a table of somebody else has it.
                hidden = other
            if found is not None and found.metadata.table_uuid == self.table_id:
                return found
            self._follow(hidden)
        raise self._changing()

    def check(self, changes: CatalogChanges) -> None:
        """Refuse what the server's database has no room for."""
        unity_limits.check(self.name, changes)

    def propose(self, proposal: Proposal) -> Verdict:
        """Propose a commit, with what it changes of the catalog's own description."""
        commit = AddCommit(commit=SentCommit.of(proposal.commit))
        said = self._update([commit, *updates_of(proposal.changes)])
        return _ANSWERS[said] if isinstance(said, UpdateRefusal) else Verdict.RATIFIED

    def report_published(self, version: int) -> None:
        """Tell the catalog that all commits up to ``version`` are durably published."""
        said = self._update([SetLatestBackfilledVersion(latest_published_version=version)])
        if isinstance(said, UpdateRefusal):
            raise self._api.rest.unavailable(
                f"it doesn't accept that version {version} of {self.name} is published"
            )

    def _update(self, updates: Sequence[Update]) -> LoadedTable | UpdateRefusal:
        self.forget()
        for _ in range(_MOST_RENAMES):
            former = self.table_name
            try:
                said = self._api.update(former, self.table_id, updates)
            except (Forbidden, NotATable):
                with suppress(LakeferryError):
                    self.load()
                if self.table_name == former:
                    raise
                continue
            if said is not UpdateRefusal.OTHER_TABLE:
                return said
            # It also says so if another client has locked the table for too long.
            self.load()
        raise self._changing()

    def _follow(self, hidden: Forbidden | None = None) -> None:
        """Find the name that the table has now.

        ``hidden`` is why the table of the known name can't be looked at: it may be this one.
        """
        for _ in range(2):
            # A listing may miss a table that is renamed while its pages are read.
            name = self._api.find_name(self.table_id, self.table_name)
            if name is not None:
                break
        else:
            raise hidden or TableNotFound(
                f"{self.name} doesn't exist any more",
                cause=f"no table in Unity Catalog at {self._api.place} has its id {self.table_id}",
                remedy="ask who dropped it, or who took the privileges on it from you",
                name=self.table_name,
                table_id=self.table_id,
                catalog=self._api.place,
            )
        if hidden is not None and name == self.table_name:
            raise hidden
        if name != self.table_name:
            self.table_name, self.name = name, f"unity:{name}"
            self._renamed(name)

    def _changing(self) -> LakeferryError:
        return self._api.rest.unavailable(
            f"it refuses to change the table {self.table_id}, or the table's name keeps changing",
            "try again, and see the server's own log",
        )
