"""Deletes a table, or the copies of a move, and keeps everything else in the folder.

A folder may have other files: notes, exports, even another table. So only data files that
a log refers to are deleted, and in the log's folder only log files. All other files stay,
and their names are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import LakeferryError, ObjectNotFound
from lakeferry.log import file_identity, paths, references
from lakeferry.log.lines import Lines
from lakeferry.log.paths import LogFileKind
from lakeferry.log.rewrite import Adopted, Rewrite
from lakeferry.redirect.enable import log_staging, target_claim
from lakeferry.redirect.own_uploads import END_OF_TIME_MS, drop_own_uploads
from lakeferry.storage import Store
from lakeferry.storage.uris import split
from lakeferry.table import DeltaLog, load

KEPT_SHOWN = 1_000
"""How many names of files that stay are returned."""
_PAGE = 10_000


class FileRemoval:
    """Deletes for good. A dry run has one that deletes in memory."""

    def remove_copies(
        self,
        source: DeltaLog,
        target: DeltaLog,
        still: Callable[[], bool],
        published: Callable[[], bool],
        keep: frozenset[str] = frozenset(),
    ) -> tuple[str, ...]:
        """Delete a move's copies at the target: staged files first, then the log, then the data.

        Returns the names of the files that stay because they aren't the move's. Unless we have
        ``published`` it, a log's beginning isn't ours either; that is asked when nothing more can
        be published. ``still`` is asked before each wave whether the place is ours.
        """
        store = target.store
        log_staging.delete(store, list(log_staging.staged_files(store)), still)
        begins = published()
        openable: list[str] = []
        rest: list[str] = []
        others: list[str] = []
        for name in store.entries(f"{paths.LOG_DIR}/"):
            if name in keep or name.startswith(f"{log_staging.STAGING_FOLDER}/"):
                continue
            opens = _opens(name)
            if not _is_of_log(name) or (opens and not begins):
                others.append(name)
            else:
                (openable if opens else rest).append(name)
        log_staging.delete(store, openable, still)
        log_staging.delete(store, rest, still)
        kept = _delete_data(store, lambda: brought_names(source), still)
        if still():
            self.drop_uploads(source, store, None)
        return (*others[:KEPT_SHOWN], *kept)[:KEPT_SHOWN]

    def remove_table(
        self, target: DeltaLog, source: DeltaLog, move_id: str | None, still: Callable[[], bool]
    ) -> tuple[str, ...]:
        """Delete a locked table; return the names of the files in its folder that aren't its own.

        ``still`` is asked before each wave whether the table is still the locked one.
        What opens it goes first: half a table without its lock would be a trap. The rest of its
        log goes last: the lock in it tells whoever goes on that the table is to be deleted. As
        its log can't be read any more then, the names of its files are written down before.
        """
        store = target.store
        list_of_names = _list_of_names(move_id)
        owned = _written_down(store, list_of_names)
        if owned is None:
            owned = _owned_names(target, source)
            store.put(list_of_names, _encoded(owned))
        # By entries: what a link leads to isn't at the target, even if it is the log's folder.
        inside = list(store.entries(paths.LOG_DIR))
        opens = [name for name in inside if name == paths.LOG_DIR or _opens(name)]
        log_staging.delete(store, opens, still)
        if paths.LOG_DIR in opens:
            # The link to the log is deleted, so the lock can't be looked at any more.
            still = _always
        kept = _delete_data(store, lambda: owned, still)
        log = [name for name in store.entries(f"{paths.LOG_DIR}/") if _is_of_log(name)]
        # The lock is the newest commit, so it goes last of all.
        commits = [
            name for name in log if (file := paths.parse(name)) and file.kind is LogFileKind.COMMIT
        ]
        if not still():
            return ()
        log_staging.delete(store, [*sorted(set(log) - set(commits)), *commits])
        others = islice(store.entries(f"{paths.LOG_DIR}/"), KEPT_SHOWN)
        store.prune("")
        return (*others, *kept)[:KEPT_SHOWN]

    def sweep(self, store: Store) -> None:
        """Delete what a process that was killed has left of files that it was writing."""
        if split(store.uri).scheme == "file":
            log_staging.delete(
                store, (name for name in store.entries("") if log_staging.is_unnamed(name))
            )

    def drop_uploads(self, source: DeltaLog, store: Store, opening: str | None) -> None:
        """Delete the uploads in parts that a move has left at its target, and no other writer's.

        They were begun between the claim of the place and the commit that opened it, which is
        ``opening`` if there is one.
        """

        def window() -> tuple[int | None, int]:
            ends_ms = END_OF_TIME_MS if opening is None else _opened_ms(store, opening)
            return target_claim.claimed_since(store), ends_ms

        def is_of_copied_log(name: str) -> bool:
            return name.startswith(f"{log_staging.STAGING_FOLDER}/") or source.store.exists(name)

        drop_own_uploads(store, lambda: brought_names(source), is_of_copied_log, window)

    def drop_returned_uploads(
        self, source: Store, names: Callable[[], pa.Array], first: int, last: int
    ) -> None:
        """Delete the uploads in parts that a withdrawal has left at the source.

        They have the ``names`` that the target's files get there, and were begun between the
        commits ``first`` and ``last``.
        """

        def window() -> tuple[int, int]:
            began, ended = (source.head(paths.commit(version)) for version in (first, last))
            return began.modified_ms, ended.modified_ms

        drop_own_uploads(source, names, lambda _: False, window)


def other_files(target: DeltaLog, source: DeltaLog, move_id: str | None) -> list[str]:
    """Return the first names in a table's folder that its removal would keep."""
    store = target.store
    owned = _written_down(store, _list_of_names(move_id))
    owned = _owned_names(target, source) if owned is None else owned
    found = [name for name in store.entries(f"{paths.LOG_DIR}/") if not _is_of_log(name)]
    for page in _pages(_outside_log(store)):
        there = pa.array(page, pa.string())
        ours = pc.or_(pc.is_in(there, value_set=owned), _unnamed(there, owned))
        found += there.filter(pc.invert(ours)).to_pylist()
        if found:
            break
    return found


def _list_of_names(move_id: str | None) -> str:
    return f"{log_staging.STAGING_FOLDER}/owned-{move_id}.arrow"


def _always() -> bool:
    return True


def brought_names(source: DeltaLog) -> pa.Array:
    """Return what the files that a source's log refers to are called at the target."""
    return renamed_names(source, Adopted(source.store.uri), source.store.uri)


def renamed_names(log: DeltaLog, rename: Rewrite, uri: str) -> pa.Array:
    """Return what the files that a log refers to are called at another place, after a copy."""
    return file_identity.canonical_paths(rename(files_referred_to(log)), uri)


def files_referred_to(log: DeltaLog) -> pa.Array:
    """Return the paths of the files that any version of a log refers to."""
    return _references(log)["path"].combine_chunks()


def _owned_names(target: DeltaLog, source: DeltaLog) -> pa.Array:
    """Return the names of all files of a table, those that it has removed included."""
    names = [_home_names(target)]
    # Where the source can't be read, the target's own log names nearly all of them.
    with suppress(LakeferryError):
        names.append(brought_names(source))
    return pc.unique(pa.concat_arrays(names))


def _home_names(log: DeltaLog) -> pa.Array:
    found = _references(log, with_removed=True)["path"].combine_chunks()
    return file_identity.canonical_paths(found, log.store.uri)


def _references(log: DeltaLog, *, with_removed: bool = False) -> pa.Table:
    """Return the files that any version of a log refers to."""
    listing = log.listing()
    tables = []
    for file, data in load.contents(log.store, listing.commits.values()):
        tables.append(references.of_lines(data, file.path))
        if with_removed:
            tables.append(references.removed_in_lines(data, file.path))
    wanted = ("sidecar", "add", "remove") if with_removed else ("sidecar", "add")
    begins = listing.earliest_version() or 0
    for checkpoint in listing.checkpoints:
        # One that lies before a gap doesn't say what the commits in the gap have added.
        if checkpoint.complete and checkpoint.version >= begins:
            for rows in load.checkpoint_rows(log.store, checkpoint.files, wanted):
                batches = [*rows.adds, *(rows.removes if with_removed else ())]
                tables += [references.of_adds(pa.Table.from_batches([each])) for each in batches]
            # The oldest has all that the commits after it don't say.
            break
    return references.distinct_references(tables)


def _delete_data(
    store: Store, known: Callable[[], pa.Array], still: Callable[[], bool]
) -> list[str]:
    """Delete the data files with ``known`` names; return what stays."""
    kept: list[str] = []
    names: pa.Array | None = None
    # A folder that is a link may lead to somebody's files of the same names: the source's own.
    for page in _pages(_outside_log(store)):
        names = known() if names is None else names
        there = pa.array(page, pa.string())
        ours = pc.or_(pc.is_in(there, value_set=names), _unnamed(there, names))
        log_staging.delete(store, there.filter(ours).to_pylist(), still)
        if len(kept) < KEPT_SHOWN:
            kept += there.filter(pc.invert(ours)).to_pylist()[: KEPT_SHOWN - len(kept)]
    return kept


def _opened_ms(store: Store, opening: str) -> int:
    # A managed table's commit gets its file later, but says when it was made.
    lines = Lines()
    lines.read(store.get(opening), opening)
    made_ms = lines.commit_info.in_commit_timestamp if lines.commit_info else None
    modified_ms = store.head(opening).modified_ms
    return modified_ms if made_ms is None else min(modified_ms, made_ms)


def _unnamed(there: pa.Array, names: pa.Array) -> pa.Array:
    """Return a mask of the temporary files that were to become one of ``names``."""
    written = [log_staging.is_unnamed(name) for name in there.to_pylist()]
    if not any(written):
        return pa.array(written, pa.bool_())
    folders = pc.unique(_folders(names))
    return pc.and_(pa.array(written), pc.is_in(_folders(there), value_set=folders))


def _folders(names: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(names, "[^/]*$", "")


def _outside_log(store: Store) -> Iterator[str]:
    return (name for name in store.entries("") if not name.startswith(f"{paths.LOG_DIR}/"))


def _pages(names: Iterable[str]) -> Iterator[list[str]]:
    left = iter(names)
    while page := list(islice(left, _PAGE)):
        yield page


def _opens(name: str) -> bool:
    file = paths.parse(name)
    return file is not None and file.opens


def _is_of_log(name: str) -> bool:
    """Return whether a file in a log's folder is one that a log consists of, or ours."""
    if paths.parse(name) is not None or name == paths.LAST_CHECKPOINT:
        return True
    if name.startswith((f"{log_staging.STAGING_FOLDER}/", f"{paths.SIDECAR_DIR}/")):
        return True
    # Hadoop's checksums and temporary files of engines are hidden files.
    return name.startswith(f"{paths.LOG_DIR}/.")


def _written_down(store: Store, path: str) -> pa.Array | None:
    try:
        data = store.get(path)
    except ObjectNotFound:
        return None
    return pa.ipc.open_file(pa.BufferReader(data)).read_all()["path"].combine_chunks()


def _encoded(names: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"path": names.cast(pa.string())})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
