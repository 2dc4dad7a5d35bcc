"""Copies a table's log to the target, invisible until it is complete.

All commits except the first get their final names at once. Files with which the place
could be opened as a table (the first commit, every checkpoint, a compacted log from
the beginning) are staged under names that no engine reads, in :data:`STAGING_FOLDER`.
:func:`publish_staged` copies them to their final names, inside the store, after the lock was
put: so a client that finds a table there finds a locked one.

A cancel deletes the staged files, which makes publishing impossible. Each move has its
own folder for them, so that a process that was paused during a cancel can't publish
the files that a later move to the same place has staged.
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
from lakeferry.redirect import read_entry
from lakeferry.redirect.entry import Data
from lakeferry.redirect.states import RedirectState
from lakeferry.storage import Store
from lakeferry.storage.local_durability import PARTS_PREFIX, is_temporary
from lakeferry.storage.uris import same_place, shell_safe
from lakeferry.table import DeltaLog

if TYPE_CHECKING:
    from lakeferry.redirect.redirect_context import Setting

STAGING_FOLDER = paths.OWN_DIR
CLAIM_FILE = f"{STAGING_FOLDER}/claim.json"
RECORD_FILE = f"{STAGING_FOLDER}/move.json"
"""The record of a move, at its source (:mod:`~lakeferry.redirect.enable.move_record`)."""
_STAGED = "staged-"
_PROBE = "probe-"
_DELETED_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Claim:
    """Reserves a place for one move: which table moves there, and how.

    A move of the same table in the same way may take the place over. The earlier process
    then finds a claim that isn't its own, and can't rely on its copies any more.
    ``cancelled``: the copies are being deleted.
    """

    move_id: str
    source: str
    table_id: str
    data: Data
    cancelled: bool = False

    def is_of(self, other: Claim) -> bool:
        """Return whether two claims are of moves of the same table."""
        return self.table_id == other.table_id and same_place(self.source, other.source)


def carried(listing: Listing, before: int) -> tuple[LogFile, ...]:
    """Return the log files that cover only versions before ``before``, oldest first."""
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
    """Return the name under which a log file is staged."""
    return f"{STAGING_FOLDER}/{move_id}/{_STAGED}{path.removeprefix(f'{paths.LOG_DIR}/')}"


def as_staged(file: LogFile, move_id: str) -> LogFile:
    """Return a log file with its name at the target before publishing: its own, or staged."""
    return replace(file, path=staged_name(file.path, move_id)) if _waits(file) else file


def claim(store: Store, wanted: Claim) -> bool:
    """Claim a place; return whether an unfinished move of the same table left copies there."""
    found = check_place_free(store, wanted)
    if found is None and take_claim(store, wanted):
        try:
            # Between the first look and our claim another move may have come and gone.
            _check_empty(store)
        except RedirectTargetNotEmpty:
            delete(store, [CLAIM_FILE])
            raise
        return False
    found = found or check_place_free(store, wanted)
    replace_claim(store, wanted)
    return found is not None and not found.cancelled


def check_place_free(store: Store, wanted: Claim) -> Claim | None:
    """Return the claim of an unfinished move of the same table, or ``None`` for a free place.

    Refuses a place that is used otherwise.
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
        f"'lakeferry redirect cancel {shell_safe(found.source)}' undoes it, and then the place "
        "is free; or choose another target",
        target=store.uri,
    )


def continues(found: Claim, wanted: Claim) -> bool:
    """Return whether a move may reuse the copies of another one.

    Another table or another ``--data`` would write other bytes under the same names.
    """
    return found.is_of(wanted) and (found.data is wanted.data or found.cancelled)


def _check_empty(store: Store) -> None:
    others = (entry.path for entry in store.list("") if not entry.path.startswith(STAGING_FOLDER))
    occupied = next(others, None)
    if occupied is not None:
        if _is_closed(store):
            raise _closed(store.uri)
        raise not_free(store.uri, f"{occupied} is there")


def _is_closed(store: Store) -> bool:
    """Return whether the table at a place is a closed target."""
    try:
        state = DeltaLog(store).state()
        lock = read_entry.read(state.protocol, state.metadata, store.uri)
    except LakeferryError:
        return False
    return lock is not None and lock.state is RedirectState.DROPPING and lock.is_target(store.uri)


def is_place_claimed(store: Store, wanted: Claim) -> bool:
    """Return whether a place still has exactly that claim."""
    return read_claim(store) == wanted


def check_claimed(store: Store, wanted: Claim) -> None:
    """Refuse to go on if a place doesn't have that claim any more."""
    if not is_place_claimed(store, wanted):
        raise not_free(store.uri, "another move has come or gone there meanwhile")


def take_claim(store: Store, wanted: Claim) -> bool:
    """Claim a place in order to clean it up; return ``False`` if another process has it."""
    return store.put_if_absent(CLAIM_FILE, msgspec.json.encode(wanted)) or is_place_claimed(
        store, wanted
    )


def replace_claim(store: Store, wanted: Claim) -> None:
    """Replace any claim at a place. Holders of a claim therefore check it before each step."""
    store.put(CLAIM_FILE, msgspec.json.encode(wanted))


def revoke_claim(store: Store, wanted: Claim) -> Claim:
    """Mark a place as being cleaned up; return the cancelled claim that says so."""
    revoked = replace(wanted, cancelled=True)
    replace_claim(store, revoked)
    return revoked


def release(store: Store, wanted: Claim) -> None:
    """Delete a claim, unless another process has replaced it."""
    if is_place_claimed(store, wanted):
        delete(store, [CLAIM_FILE])


def read_claim(store: Store) -> Claim | None:
    """Return the claim at a place, if there is one."""
    try:
        return msgspec.json.decode(store.get(CLAIM_FILE), type=Claim)
    except ObjectNotFound:
        return None
    except msgspec.MsgspecError as broken:
        raise not_free(store.uri, f"{CLAIM_FILE} can't be read") from broken


def not_free(uri: str, why: str) -> RedirectTargetNotEmpty:
    """Return the error for a target that is in use."""
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
        cause="a table is there that was closed permanently when its redirect was withdrawn",
        remedy="give --replace-closed-target to delete that table first (if it was moved from the "
        "same source, all of it is back there), or choose another target",
        target=uri,
        closed=True,
    )


class StagedLog:
    """Copies the log of one table to its target; remembers which files are there already.

    ``rewrites_all``: every path changes. Otherwise Parquet files are copied unchanged
    until a path is found that changes.
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
        """Start with no files copied."""
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
        """List the target's log, all of which is ours; refuse if it can be opened as a table."""
        self._present = check_unopened(self.target)

    def own(self, path: str) -> bytes | None:
        """Return the bytes of a text log file as we copy it, or ``None`` if the source lacks it."""
        try:
            data = self.source.get(path)
        except ObjectNotFound:
            return None
        return rewrite_lines(data, self.rewrite) if path.endswith(".json") else data

    def withdraw(self) -> None:
        """Delete our files from another table's log: those with exactly the bytes that we wrote."""
        names = [name for name in _log_names(self.target) if name.endswith((".json", ".crc"))]
        delete(self.target, (name for name in names if self.target.get(name) == self.own(name)))

    def has(self, file: LogFile) -> bool:
        """Return whether a log file was copied to the target, staged or not."""
        return file.path in self._done

    def put(self, files: Iterable[LogFile], *, changed: bool) -> int:
        """Copy log files to the target, staged where needed; return how many were new.

        ``changed``: some path so far is spelled differently at the target.
        """
        changed = changed or self.rewrites_all
        new = [
            file
            for file in files
            if file.path not in self._done
            # A checksum file may contain paths; it is optional, so it is left out.
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
            # Skip the checksum files that Hadoop writes beside each file on local disk.
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
        """Return whether to use put-if-absent: the file isn't staged and wasn't there before."""
        waits = file.opens
        return not waits and file.path not in self._present


def _waits(file: LogFile) -> bool:
    return not file.path.startswith(f"{paths.SIDECAR_DIR}/") and file.opens


def publish_staged(store: Store, files: Iterable[LogFile], move_id: str) -> None:
    """Copy the staged files to their final names, the first commit last."""
    waiting = [file for file in files if _waits(file)]
    waiting.sort(key=lambda file: (file.kind is LogFileKind.COMMIT, file.path))
    for file in waiting:
        store.copy_within(staged_name(file.path, move_id), file.path)


def check_unopened(store: Store) -> frozenset[str]:
    """Return the names in a place's log; refuse if it can already be opened as a table."""
    names = frozenset(_log_names(store))
    for name in sorted(names):
        if _opens(name):
            raise not_free(store.uri, f"another process made a table there meanwhile: {name}")
    return names


def published_files(store: Store) -> Iterator[str]:
    """Yield the names of all log files with which the table at a place can be opened."""
    return (name for name in _log_names(store) if _opens(name))


def _log_names(store: Store) -> Iterator[str]:
    found = store.list(f"{paths.LOG_DIR}/", stop_before=paths.END_OF_VERSIONS)
    return (entry.path for entry in found)


def _opens(name: str) -> bool:
    file = paths.parse(name)
    return file is not None and file.opens


def staged_files(store: Store, move_id: str | None = None) -> Iterator[str]:
    """Yield the names of all staged log files at a place, or only those of one move."""
    for name in store.entries(f"{STAGING_FOLDER}/{move_id}/" if move_id else f"{STAGING_FOLDER}/"):
        # The folder is also used for exports, transfers and the move's record.
        if name.rpartition("/")[2].startswith((_STAGED, _PROBE)) or is_unnamed(name):
            yield name


def is_unnamed(name: str) -> bool:
    """Return whether a file is a temporary one, left by an interrupted write."""
    last = name.rpartition("/")[2]
    return is_temporary(last) and not last.startswith(PARTS_PREFIX)


def delete(store: Store, names: Iterable[str], still: Callable[[], bool] = lambda: True) -> None:
    """Delete objects in waves of bounded size; stop when ``still`` returns ``False``."""
    waves = iter(names)
    while wave := list(islice(waves, _DELETED_AT_ONCE)):
        if not still():
            return
        store.delete_many(wave)
