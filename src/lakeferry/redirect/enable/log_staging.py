"""Copies a table's log to the target, invisible until it is complete.

Commits go to their own names at once, all but the first. What would make the
place a table that can be opened (the first commit, every checkpoint, a compacted
log from the beginning) waits under names that no engine takes for a log's, in
:data:`FOLDER`. :func:`publish` gives them their names, inside the store, when
the lock is in its place: so whoever finds a table there finds a locked one.

Taking the waiting files away makes publishing impossible: that is how a
cancelled move stays cancelled. They wait in a folder of their move's own, so that
whoever sleeps through a cancel can't publish what a later move to the same place
has waiting there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from lakeferry.engine import LogCopy, LogCopyPlan
from lakeferry.errors import (
    CommitConflict,
    LakeferryError,
    ObjectNotFound,
    RedirectTargetNotEmpty,
)
from lakeferry.log import paths
from lakeferry.log.paths import LogFile, LogFileKind
from lakeferry.log.rewrite import Rewrite, rewrite_lines
from lakeferry.log.segment import Listing
from lakeferry.redirect import dialects
from lakeferry.redirect.entry import Data
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store
from lakeferry.storage.local_durability import PARTS_PREFIX, is_temporary
from lakeferry.storage.uris import same_place, shell_safe
from lakeferry.table import DeltaLog

if TYPE_CHECKING:
    from lakeferry.redirect.redirect_context import Setting

FOLDER = paths.OWN_DIR
CLAIM = f"{FOLDER}/claim.json"
RECORD = f"{FOLDER}/move.json"
"""The record of a move, at its source (:mod:`~lakeferry.redirect.enable.move_record`)."""
_STAGED = "staged-"
_PROBE = "probe-"
_DELETED_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Claim:
    """Who moves which table to a place, and how, so that nobody else does.

    A move of the same table in the same way takes the place over: whoever had it
    before finds another claim than its own, and can't rely on what it brought.
    ``cancelled`` tells that what was brought is being taken away.
    """

    move_id: str
    source: str
    table_id: str
    data: Data
    cancelled: bool = False

    def is_of(self, other: Claim) -> bool:
        """Tell whether two claims are of moves of the same table."""
        return self.table_id == other.table_id and same_place(self.source, other.source)


def carried(listing: Listing, before: int) -> tuple[LogFile, ...]:
    """Return the log files that cover only versions before that one, oldest first."""
    complete = [each for each in listing.checkpoints if each.complete]
    found = [
        *listing.commits.values(),
        *listing.checksums.values(),
        *(file for several in listing.compacted.values() for file in several),
        *(file for each in complete for file in each.files),
    ]
    return tuple(
        sorted((file for file in found if file.version < before), key=lambda file: file.path)
    )


def staged_name(path: str, move_id: str) -> str:
    """Return the name under which a log file waits."""
    return f"{FOLDER}/{move_id}/{_STAGED}{path.removeprefix(f'{paths.LOG_DIR}/')}"


def as_staged(file: LogFile, move_id: str) -> LogFile:
    """Return a log file as it is at the target now: under its own name, or waiting."""
    return replace(file, path=staged_name(file.path, move_id)) if _waits(file) else file


def claim(store: Store, wanted: Claim) -> bool:
    """Take a place for a move; tell whether another one of the same table was broken off there."""
    found = check_free(store, wanted)
    if found is None and take(store, wanted):
        try:
            # Between the first look and our claim another move may have come and gone.
            _check_empty(store)
        except RedirectTargetNotEmpty:
            delete(store, [CLAIM])
            raise
        return False
    found = found or check_free(store, wanted)
    replace_claim(store, wanted)
    return found is not None and not found.cancelled


def check_free(store: Store, wanted: Claim) -> Claim | None:
    """Return the claim of the same table's move that was broken off there, if any.

    Refuses a place where anything else is.
    """
    found = read_claim(store)
    if found is None:
        _check_empty(store)
        return None
    if continues(found, wanted):
        return found
    if _is_closed(store):
        raise _closed(store.uri)
    if found.is_of(wanted):
        why = f"a move with --data {found.data.value} has begun there"
    else:
        why = f"a move of {found.source} has begun there"
    raise RedirectTargetNotEmpty(
        f"{store.uri} isn't free",
        cause=why,
        remedy=f"'lakeferry redirect status {shell_safe(found.source)}' shows that move; "
        f"'lakeferry redirect cancel {shell_safe(found.source)}' takes it back, and then the "
        "place is free; or choose another target",
        target=store.uri,
    )


def continues(found: Claim, wanted: Claim) -> bool:
    """Tell whether a move may take over what another one has brought.

    Another table, or another way to bring it, would write other bytes under the same names.
    """
    return found.is_of(wanted) and (found.data is wanted.data or found.cancelled)


def _check_empty(store: Store) -> None:
    others = (entry.path for entry in store.list("") if not entry.path.startswith(FOLDER))
    occupied = next(others, None)
    if occupied is not None:
        if _is_closed(store):
            raise _closed(store.uri)
        raise not_free(store.uri, f"{occupied} is there")


def _is_closed(store: Store) -> bool:
    """Tell whether the table at a place is locked since a redirect to it was withdrawn."""
    try:
        state = DeltaLog(store).state()
        lock = dialects.read(state.protocol, state.metadata, store.uri)
    except LakeferryError:
        return False
    return lock is not None and lock.state is RedirectState.DROPPING and lock.is_target(store.uri)


def is_claimed(store: Store, wanted: Claim) -> bool:
    """Tell whether a place is still claimed by that very claim."""
    return read_claim(store) == wanted


def check_claimed(store: Store, wanted: Claim) -> None:
    """Refuse to go on where a place isn't claimed by that claim any more."""
    if not is_claimed(store, wanted):
        raise not_free(store.uri, "another move has come or gone there meanwhile")


def take(store: Store, wanted: Claim) -> bool:
    """Claim a place for as long as it takes to clean it up; tell whether nobody else has it."""
    return store.put_if_absent(CLAIM, msgspec.json.encode(wanted)) or is_claimed(store, wanted)


def replace_claim(store: Store, wanted: Claim) -> None:
    """Claim a place whoever had it: whoever relies on that asks before each step."""
    store.put(CLAIM, msgspec.json.encode(wanted))


def revoke(store: Store, wanted: Claim) -> Claim:
    """Tell all who rely on what is at a place that it goes; return the claim that says so."""
    revoked = replace(wanted, cancelled=True)
    replace_claim(store, revoked)
    return revoked


def release(store: Store, wanted: Claim) -> None:
    """Let go of a place, unless somebody else has claimed it by now."""
    if is_claimed(store, wanted):
        delete(store, [CLAIM])


def read_claim(store: Store) -> Claim | None:
    """Return who has taken a place."""
    try:
        return msgspec.json.decode(store.get(CLAIM), type=Claim)
    except ObjectNotFound:
        return None
    except msgspec.MsgspecError as broken:
        raise not_free(store.uri, f"{CLAIM} can't be read") from broken


def not_free(uri: str, why: str) -> RedirectTargetNotEmpty:
    """Return what is said to whoever wants a place where something is."""
    return RedirectTargetNotEmpty(
        f"{uri} isn't free",
        cause=why,
        remedy="choose another target, remove what is there, or use --to-existing for a table "
        "that was copied by other means",
        target=uri,
    )


def _closed(uri: str) -> RedirectTargetNotEmpty:
    return RedirectTargetNotEmpty(
        f"{uri} isn't free",
        cause="a table is there that was closed for ever when its redirect was withdrawn",
        remedy="give --replace-closed-target to delete that table first (if it was moved from the "
        "same source, all of it is back there), or choose another target",
        target=uri,
        closed=True,
    )


class StagedLog:
    """The log of one table on its way to another place; remembers what is there already.

    ``rewrites_all`` tells that every path changes; else Parquet files go as they
    are until a path is found that does.
    """

    def __init__(
        self,
        setting: Setting,
        source: Store,
        target: Store,
        move_id: str,
        rewrite: Rewrite,
        *,
        rewrites_all: bool,
    ) -> None:
        """Begin with nothing."""
        self.move_id = move_id
        self.setting = setting
        self.source = source
        self.target = target
        self.rewrite = rewrite
        self.rewrites_all = rewrites_all
        self.urgent = False
        self._done: set[str] = set()
        self._present: frozenset[str] = frozenset()
        self._sidecars: dict[str, tuple[str, int]] = {}

    def look(self) -> None:
        """Refuse a place that somebody made a table of; else all of the log there is ours."""
        self._present = check_unopened(self.target)

    def own(self, path: str) -> bytes | None:
        """Return a commit, compacted log or checksum file as we put it at the target, if we do."""
        try:
            data = self.source.get(path)
        except ObjectNotFound:
            return None
        return rewrite_lines(data, self.rewrite) if path.endswith(".json") else data

    def withdraw(self) -> None:
        """Delete what we have put into a log that has become somebody else's: our very bytes."""
        names = [name for name in _log_names(self.target) if name.endswith((".json", ".crc"))]
        delete(self.target, (name for name in names if self.target.get(name) == self.own(name)))

    def has(self, file: LogFile) -> bool:
        """Tell whether a log file was put at the target, or waits there."""
        return file.path in self._done

    def put(self, files: Iterable[LogFile], *, changed: bool) -> int:
        """Put log files at the target or let them wait there; return how many were new.

        ``changed`` tells that some path so far has another spelling at the target.
        """
        changed = changed or self.rewrites_all
        new = [
            file
            for file in files
            if file.path not in self._done
            # A checksum file may list files; the version can do without it.
            and not (changed and file.kind is LogFileKind.CHECKSUM)
        ]
        if any(file.kind.is_checkpoint for file in new):
            # A checkpoint with a classic name may have sidecars, too.
            self._put_sidecars(rewrite=changed)
        text = [file for file in new if file.path.endswith(".json")]
        rest = [file for file in new if not file.path.endswith(".json")]
        self._copy(text, self.rewrite)
        self._copy(rest, self.rewrite if changed else None)
        self._done.update(file.path for file in new)
        return len(new)

    def _put_sidecars(self, *, rewrite: bool) -> None:
        found = [
            LogFile(LogFileKind.V2, 0, entry.path, 0, size_bytes=entry.size_bytes)
            for entry in self.source.list(f"{paths.SIDECAR_DIR}/")
            # Hadoop leaves a checksum beside every file that it writes to local disk.
            if entry.path.endswith(".parquet") and entry.path not in self._done
        ]
        sizes = self._copy(found, self.rewrite if rewrite else None)
        for file, size in zip(found, sizes, strict=True):
            name = file.path.rpartition("/")[2]
            self._sidecars[name] = (name, size)
            self._done.add(file.path)

    def _copy(self, files: list[LogFile], rewrite: Rewrite | None) -> tuple[int, ...]:
        if not files:
            return ()
        size_bytes = sum(file.size_bytes for file in files)
        engine = self.setting.engine(len(files), size_bytes, self.urgent)
        plan = LogCopyPlan(
            self.source.config,
            self.target.config,
            tuple(
                LogCopy(
                    file.path,
                    as_staged(file, self.move_id).path,
                    file.modified_ms or None,
                    self._is_exclusive(file),
                    size_bytes=file.size_bytes,
                )
                for file in files
            ),
            rewrite,
            self._sidecars if rewrite is not None else None,
        )
        try:
            return engine.copy_log(plan, self.setting.observer)
        except CommitConflict as taken:
            raise not_free(self.target.uri, str(taken)) from taken

    def _is_exclusive(self, file: LogFile) -> bool:
        """Tell whether a file gets its own name at once, where somebody else may have put one."""
        waits = file.opens
        return not waits and file.path not in self._present


def _waits(file: LogFile) -> bool:
    return not file.path.startswith(f"{paths.SIDECAR_DIR}/") and file.opens


def publish(store: Store, files: Iterable[LogFile], move_id: str) -> None:
    """Give the files that wait their names. The first commit comes last."""
    waiting = [file for file in files if _waits(file)]
    waiting.sort(key=lambda file: (file.kind is LogFileKind.COMMIT, file.path))
    for file in waiting:
        store.copy_within(staged_name(file.path, move_id), file.path)


def check_unopened(store: Store) -> frozenset[str]:
    """Refuse a place that has become a table before we made it one; return its log's names."""
    names = frozenset(_log_names(store))
    for name in sorted(names):
        if _opens(name):
            raise not_free(store.uri, f"somebody made a table there meanwhile: {name}")
    return names


def published(store: Store) -> Iterator[str]:
    """Yield the names of all files with which the table at a place can be opened."""
    return (name for name in _log_names(store) if _opens(name))


def _log_names(store: Store) -> Iterator[str]:
    found = store.list(f"{paths.LOG_DIR}/", stop_before=paths.END_OF_VERSIONS)
    return (entry.path for entry in found)


def _opens(name: str) -> bool:
    file = paths.parse(name)
    return file is not None and file.opens


def staged(store: Store, move_id: str | None = None) -> Iterator[str]:
    """Yield the names of all log files that wait at a place, or of one move's."""
    for name in store.entries(f"{FOLDER}/{move_id}/" if move_id else f"{FOLDER}/"):
        # The folder has files of other purposes, too: exports, transfers, a record.
        if name.rpartition("/")[2].startswith((_STAGED, _PROBE)) or is_unnamed(name):
            yield name


def is_unnamed(name: str) -> bool:
    """Tell whether a file is one that was being written, and hasn't got its name yet."""
    last = name.rpartition("/")[2]
    return is_temporary(last) and not last.startswith(PARTS_PREFIX)


def delete(store: Store, names: Iterable[str], still: Callable[[], bool] = lambda: True) -> None:
    """Delete objects in waves of bounded size; ``still`` is asked before each if it may go on."""
    waves = iter(names)
    while wave := list(islice(waves, _DELETED_AT_ONCE)):
        if not still():
            return
        store.delete_many(wave)
