"""Defines a redirect entry, independent of its dialect.

``dialects`` writes entries into table properties, ``read_entry`` reads them; ``states``
defines the transitions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from urllib.parse import unquote, urlsplit

from lakeferry.errors import RedirectSpecInvalid
from lakeferry.redirect.managed_target import ManagedTarget
from lakeferry.redirect.no_redirect_rules import Rule, matching_rule
from lakeferry.redirect.states import RedirectState
from lakeferry.storage.uris import same_place, shell_safe


class Mode(Enum):
    """Which clients without redirect support are blocked: all of them, or only writers."""

    READER_WRITER = "reader-writer"
    WRITER_ONLY = "writer-only"


class Dialect(Enum):
    """The format of an entry."""

    RFC = "rfc"
    CATALOG = "catalog"
    DELTA_SPARK = "delta-spark"


class Data(Enum):
    """Where the target's data files are."""

    COPY = "copy"
    REFERENCE = "reference"
    EXISTING = "existing"
    """The target existed before the redirect, created by other means."""


class TargetKind(Enum):
    """The kind of a redirect's target. The values are those used in entries."""

    OBJECT_STORE = "Object Store"
    UNITY = "Unity Catalog"
    SQL = "SQL Catalog"

    @property
    def catalog(self) -> str | None:
        """The kind of catalog to ask, if any."""
        return {TargetKind.UNITY: "unity", TargetKind.SQL: "sql"}.get(self)


_FEATURES = {
    (Dialect.RFC, Mode.READER_WRITER): "redirectReaderWriter",
    (Dialect.RFC, Mode.WRITER_ONLY): "redirectWriterOnly",
    (Dialect.CATALOG, Mode.READER_WRITER): "redirectReaderWriter",
    (Dialect.CATALOG, Mode.WRITER_ONLY): "redirectWriterOnly",
    (Dialect.DELTA_SPARK, Mode.READER_WRITER): "redirectReaderWriter-preview",
    (Dialect.DELTA_SPARK, Mode.WRITER_ONLY): "redirectWriterOnly-preview",
}


def feature_of(dialect: Dialect, mode: Mode) -> str:
    """Return the table feature for a mode in a dialect."""
    return _FEATURES[dialect, mode]


@dataclass(frozen=True, slots=True)
class RedirectTarget:
    """A redirect's target: a place, or a table in a catalog by its name or by its id.

    With an id, the name is the last known one; the table may have been renamed since.
    """

    kind: TargetKind
    location: str | None = None
    name: str | None = None
    metastore_id: str | None = None
    table_id: str | None = None

    def spec(self) -> dict[str, Any]:
        """Return it as the RFC's ``Spec``."""
        if self.kind is TargetKind.OBJECT_STORE:
            return {"Location": self.location}
        if self.table_id is not None:
            return {"Table": {"MetastoreId": self.metastore_id, "TableId": self.table_id}}
        return {"Table": self.name}

    def __str__(self) -> str:
        """Show it as the command line takes it."""
        if self.location is not None:
            return self.location
        return f"{self.kind.catalog}:{self.name or self.table_id}"


@dataclass(frozen=True, slots=True)
class TargetCommit:
    """The newest commit of an existing target when the redirect to it became READY.

    ``sha256`` is the digest of the commit's bytes, ``None`` where the commit was cleaned
    up; ``table_id`` is the target's id at that version.
    """

    version: int
    table_id: str
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Journal:
    """What ``resume`` has to know about a move, in addition to the entry.

    ``protocol`` has the version numbers of the table before the redirect,
    ``location`` is where a catalog's table is created, ``catalog_name`` its name there,
    ``ready_version`` the version at which source and target became READY.
    """

    data: Data = Data.COPY
    protocol: tuple[int, int] | None = None
    location: str | None = None
    catalog_name: str | None = None
    ready_version: int | None = None
    dropping: bool = False
    move_id: str | None = None
    """Identifies this move among others of the same table to the same place."""
    rules: tuple[Rule, ...] = ()
    """The rules that the entry's dialect can't express."""
    verified: bool = True
    """Whether an existing target must have the same content as the source."""
    returns: Data | None = None
    """In a lock: how files that are only at the target get back to the source. At a source whose
    target was there before: the withdrawal that has begun brings changes back."""
    removes_target: bool = False
    """In a lock: whether the target is deleted after everything was copied back."""
    source: str | None = None
    """The full URI of the source, if the entry's dialect stores only its path."""
    traced: bool = False
    """Whether the commit that opens the target has a ``txn`` action that names this move."""
    target_commit: TargetCommit | None = None
    """Identifies a target that existed before the redirect."""
    abandoned: bool = False
    """In DROPPING: the target was given up; what was written there wasn't copied back."""
    managed: ManagedTarget | None = None
    """The target's staging table, if its catalog owns it."""
    compares: bool = False
    """Whether every file that is copied is read at both ends."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """The redirect that a table carries. Without a target the table is frozen.

    ``source`` is the table for which the entry says it was written; a delta-spark entry
    without a journal has only its path. ``journal`` is ``None`` if another program made
    the redirect. ``doubled``: the table has entries for both modes. Then this is the
    reader-writer one, and changes are refused.
    """

    mode: Mode
    state: RedirectState
    kind: TargetKind = TargetKind.OBJECT_STORE
    target: RedirectTarget | None = None
    dialects: tuple[Dialect, ...] = (Dialect.RFC,)
    source: str | None = None
    rules: tuple[Rule, ...] = ()
    journal: Journal | None = None
    doubled: bool = False

    @property
    def is_frozen(self) -> bool:
        """Whether the table is read-only without a target."""
        return self.state is RedirectState.ENABLING and self.target is None

    @property
    def features(self) -> tuple[str, ...]:
        """The table features of this redirect."""
        return tuple(dict.fromkeys(feature_of(dialect, self.mode) for dialect in self.dialects))

    def rule_for(self, app_name: str | None) -> Rule | None:
        """Return the rule that applies to a session while the redirect is READY, if any."""
        if self.state is not RedirectState.READY:
            return None
        return matching_rule(self.rules, app_name)

    def in_state(self, state: RedirectState, **changes: Any) -> Redirect:
        """Return a copy in another state, with other ``changes``."""
        moved = replace(self, state=state, **changes)
        if moved.journal is None:
            return moved
        return replace(
            moved, journal=replace(moved.journal, dropping=state is RedirectState.DROPPING)
        )

    def is_target(self, location: str) -> bool:
        """Return whether the table at ``location`` is the target of this entry."""
        place = self.target.location if self.target else None
        place = place or (self.journal.location if self.journal else None)
        return place is not None and same_place(place, location)


def check_single(redirect: Redirect, table: str) -> None:
    """Refuse to change a table that has redirects of both modes."""
    if redirect.doubled:
        raise RedirectSpecInvalid(
            f"{table} has redirects of both modes",
            remedy="remove the table property and the table feature of one of the two redirects",
            location=table,
            value="redirectReaderWriter, redirectWriterOnly",
        )


def check_own_redirect(redirect: Redirect, table: str) -> None:
    """Refuse to change a redirect whose entry was written for another table than this one.

    A copy of a redirected table has the entry too; a change there would affect the target
    of the original. A table with redirects of both modes is refused as well.
    """
    check_single(redirect, table)
    source = redirect.source
    if source is None:
        return
    own = same_place(source, table) if ":" in source else source == plain_path(table)
    if not own:
        raise RedirectSpecInvalid(
            f"the redirect in {table} was made for {source}",
            cause=f"{table} is a copy of {source}, or its target, or the same place under "
            "another URI",
            remedy=f"run the command with {shell_safe(source)} instead; if the table's folder was "
            "moved by hand, first move it back there",
            location=table,
            value=source,
        )


def plain_path(uri: str) -> str:
    """Return the decoded path of a URI, which is what delta-spark compares."""
    return unquote(urlsplit(uri).path) if uri else ""
