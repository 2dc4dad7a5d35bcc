"""Opens the source of an export, lakeFS or any table, and the place where it goes.

An :class:`Origin` is one state of a table that doesn't change during an export: a commit in
lakeFS, or what the log of another table shows. An :class:`ExportTarget` is the place to which
the log is written.

A commit in lakeFS is exported to its own place in the repository's storage namespace,
``_lakefs/exported/REF/COMMIT/TABLE``, or to any other place. Beside the exports of a ref, each
table has a pointer to its last export.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import msgspec

from lakeferry.errors import CommitConflict, InvalidInput, ObjectNotFound, TableNotFound
from lakeferry.export import manifest
from lakeferry.export.manifest import Manifest
from lakeferry.export.surveys import Survey, as_spark_spells
from lakeferry.log.rewrite import Listed
from lakeferry.storage import Store, StoreConfig, open_config
from lakeferry.storage.lakefs import LakeFSStore
from lakeferry.storage.uris import (
    UriParts,
    check_object_name,
    encode_name,
    join,
    relative_name,
    split,
)
from lakeferry.table.log_source import KeptReads, LogSource

_EXPORTED = "_lakefs/exported"
GONE = "_lakefs/gone"
"""Files that the log names but that don't exist get paths below this one."""
POINTERS = ".lakeferry"
"""A folder name that is not a valid ref."""
_COMMITTED, _STAGING = "@", "$"
_ASKED_AT_ONCE = 16

OpenUri = Callable[[str], Store]


@dataclass(frozen=True, slots=True)
class Origin:
    """One state of a table. ``source`` names the table, independent of its state.

    ``former`` are the places from which redirects have led to ``source``.
    For a table in lakeFS it also has the commit, the ref under which it is exported, and the
    ``namespace`` where the repository stores its objects.
    """

    store: Store
    source: str
    reads: LogSource
    """Reads the table's log; what was read once is there for the next check."""
    commit: str | None = None
    ref: str | None = None
    namespace: str | None = None
    former: tuple[str, ...] = ()

    @property
    def lakefs(self) -> LakeFSStore | None:
        """The store, if it is in lakeFS."""
        return self.store if isinstance(self.store, LakeFSStore) else None

    def listed(self, survey: Survey) -> Listed:
        """Return the mapping from the log's paths to the URIs in the survey."""
        if survey.addresses is None or self.namespace is None:
            return Listed.below(self.store.uri, survey.names)
        place = split(self.store.uri)
        repository, _ = place.repository_and_ref
        # Clients of lakeFS's S3 gateway see the repository as a bucket and refs as its folders: the
        # same table may have been written under any of them.
        lead = f"^(?:lakefs|s3|s3a|s3n)://{re.escape(repository)}/[^/]+/"
        own, gone = lead, f"{self.namespace}/{GONE}"
        if place.path:
            spellings = {place.path, encode_name(place.path)}
            own = f"{lead}(?:{'|'.join(map(re.escape, sorted(spellings)))})/"
            gone = join(gone, place.path)
        root = StoreConfig(str(UriParts("lakefs", place.authority, "")), self.store.config.options)
        return Listed(
            root=self.store.uri,
            names=survey.names,
            addresses=survey.addresses,
            fallback=gone,
            own=own,
            home=f"s3://{repository}",
            kin=lead,
            ask=partial(_ask, root, lead),
        )


def _ask(root: StoreConfig, lead: str, paths: Sequence[str]) -> list[str | None]:
    """Return the addresses of other tables' files in the same commit, with one request each."""
    store = open_config(root)
    assert isinstance(store, LakeFSStore)

    def address(path: str) -> str | None:
        name = split(f"lakefs://x/y/{re.sub(lead, '', path, count=1)}").path
        try:
            return as_spark_spells(store.entry(name).address)
        except ObjectNotFound:
            return None

    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        return list(pool.map(address, paths))


def origin_in_lakefs(store: LakeFSStore, ref: str | None, open_store: OpenUri) -> Origin:
    """Return the current commit of a ref in lakeFS, exported as ``ref`` or as the commit's id.

    Staged changes on a branch aren't in any commit, so a branch with staged changes of the table
    is refused.
    """
    place = split(store.uri)
    repository, given = place.repository_and_ref
    if given.endswith(_STAGING):
        raise InvalidInput(
            f"{store.uri} names uncommitted changes of a branch",
            cause="uncommitted changes may change again during the export",
            remedy=f"commit them, or export {given.rstrip(_STAGING)}{_COMMITTED}",
            uri=store.uri,
        )
    commit = _found(store.commit_id)
    if given != commit and store.has_uncommitted():
        raise InvalidInput(
            f"{store.uri} has changes that aren't committed",
            cause="an export contains exactly what a commit contains",
            remedy=f"commit them, or export the last commit: {given}{_COMMITTED}",
            uri=store.uri,
        )
    there = open_store(str(UriParts("lakefs", f"{repository}/{commit}", place.path)))
    assert isinstance(there, LakeFSStore)
    named = ref if ref is not None else given.removesuffix(_COMMITTED)
    source = f"lakefs://{repository}/{encode_name(place.path) if place.path else ''}"
    namespace = _found(there.storage_namespace)
    return Origin(there, source, KeptReads(there), commit, _segment(named, "ref"), namespace)


def _found(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except ObjectNotFound as missing:
        # Without a repository, a ref or any object there is no table.
        raise TableNotFound(
            missing.message,
            cause=missing.cause,
            remedy="check the URI: lakefs://repository/ref/path",
            **missing.fields,
        ) from missing


def of_table(store: Store, former: Sequence[str] = (), reads: LogSource | None = None) -> Origin:
    """Return a table that isn't in lakeFS; ``reads`` has what was read of its log."""
    source = KeptReads(store) if reads is None else reads
    return Origin(store, store.uri, source, former=tuple(former))


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """The place of an export. ``shelf`` is the store of all exports of a repository.

    ``folder`` is the place's name there, with a slash at its end. Without a shelf the place
    holds one export, and a later export of the table replaces it.
    """

    place: Store
    shelf: Store | None = None
    folder: str = ""
    pointer: str = ""

    @property
    def location(self) -> str:
        """Where the exported table is."""
        return self.place.uri

    def last(self) -> tuple[Manifest, str] | None:
        """Return the last complete export that this one can continue, and its folder."""
        if self.shelf is None:
            found = manifest.read_manifest(self.place)
            return (found, "") if found is not None and found.complete else None
        try:
            pointed = msgspec.json.decode(self.shelf.get(self.pointer), type=str)
        except (ObjectNotFound, msgspec.MsgspecError):
            return None
        try:
            found = manifest.read_manifest(self.shelf, pointed)
        except CommitConflict:
            # It was written by another version of Lakeferry, so it isn't reused.
            return None
        return (found, pointed) if found is not None and found.complete else None

    def point(self, *, unless_pointed: bool = False) -> None:
        """Set the pointer to this place; with ``unless_pointed`` only if there is no pointer."""
        if self.shelf is None:
            return
        data = msgspec.json.encode(self.folder)
        if unless_pointed:
            self.shelf.put_if_absent(self.pointer, data)
        else:
            self.shelf.put(self.pointer, data)


def target_of(
    origin: Origin, to: str | None, table: str | None, open_store: OpenUri
) -> ExportTarget:
    """Return the target of an origin's export."""
    if to is not None:
        place = open_store(to)
        within = relative_name(origin.store.uri, place.uri) is not None
        if within or place.uri == origin.store.uri:
            raise InvalidInput(
                f"{place.uri} is {'inside of the table' if within else 'the table'} itself",
                cause="VACUUM would delete the export as unused files"
                if within
                else "an export never changes the log of its source",
                remedy="choose a place outside of it",
                location=place.uri,
            )
        return ExportTarget(place)
    if origin.namespace is None or origin.commit is None or origin.ref is None:
        raise InvalidInput(
            f"there is no place to export {origin.source} to",
            cause="only a table in lakeFS has a place of its own for exports",
            remedy="give --to URI",
        )
    name = _segment(table or split(origin.store.uri).path.rpartition("/")[2], "table")
    shelf = f"{origin.namespace}/{_EXPORTED}"
    folder = f"{origin.ref}/{origin.commit}/{name}"
    return ExportTarget(
        open_store(join(shelf, folder)),
        open_store(shelf),
        f"{folder}/",
        f"{origin.ref}/{POINTERS}/{name}.json",
    )


def _segment(name: str, what: str) -> str:
    """Return a name that is valid as a folder name."""
    if not name or "/" in name:
        raise InvalidInput(
            f"{name!r} can't be the name of a {what} in an export",
            remedy="give --table NAME, a name without a slash" if what == "table" else None,
        )
    return check_object_name(name)
