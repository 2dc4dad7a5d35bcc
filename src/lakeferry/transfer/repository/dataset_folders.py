"""Maps the names of datasets to their folders, so that a rename moves no object.

A dataset's folder has the dataset's name, unless ``.lakeferry/names.json`` says otherwise::

    named     the folders of renamed datasets, and of datasets whose folder was taken
    deleted   the folders of deleted datasets, until garbage collection has emptied them
    held      changes that somebody is making now

The file is only replaced by compare-and-swap. So one write decides a change, and none is ever half
done: until then the dataset has its old name, and from then on the new one.

A change first *holds* names and folders, and then looks for pushes. A push first writes its record,
and then looks for holds (:meth:`DatasetFolders.check_push`). So at least one sees the other: the
change is refused, or the push is. A hold whose process was stopped changes nothing. After
:data:`HOLD_LASTS_MS` anybody removes it, again by compare-and-swap, and a change whose hold was
removed is refused.

Garbage collection holds the folder of a deleted dataset while it empties it, and renews the hold
(:meth:`HeldNames.renew`). So only one process deletes there, and none after the folder's name is
free for a new dataset.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property

import msgspec

from lakeferry.errors import (
    CommitConflict,
    CorruptLog,
    InvalidInput,
    LakeferryError,
    LimitExceeded,
    ObjectNotFound,
    StorageUnavailable,
    TimedOut,
)
from lakeferry.storage import Store, process_identity
from lakeferry.storage.process_identity import this_process
from lakeferry.transfer.repository.dataset_names import OWN_FOLDER, DatasetName
from lakeferry.transfer.repository.last_write import LastWrite

NAMES_FILE = f"{OWN_FOLDER}/names.json"
MOST_RENAMED = 10_000
"""Most entries of the file."""
FOLDERS_KNOWN_FOR_S = 0.5
"""How long a server uses what it read; pushes and changes always read again."""
HOLD_LASTS_MS = 60_000
NAME_HELD = "name_held"
"""The reason in errors that another process's change is in the way, or has come first."""
_ATTEMPTS = 100
_LONGEST_FOLDER = 80


class NamedFolder(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The folder of a dataset; ``was`` is its name before the latest rename."""

    folder: str
    was: str | None = None


class DeletedDataset(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A deleted dataset whose objects are still there."""

    name: str
    deleted_ms: int
    written: LastWrite | None = None
    """Its last write before the deletion, if it was readable."""


class NameHold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change that is being made; nobody else changes these names and folders meanwhile."""

    names: tuple[str, ...]
    folders: tuple[str, ...]
    begun_ms: int
    process: str

    def meets(self, names: Iterable[str], folders: Iterable[str]) -> bool:
        """Return True if it holds one of the folders or names, or a name above or below one."""
        are_near = any(
            f"{mine}/".startswith(f"{name}/") or f"{name}/".startswith(f"{mine}/")
            for name in names
            for mine in self.names
        )
        return are_near or not set(self.folders).isdisjoint(folders)

    def has_ended(self, now_ms: int) -> bool:
        """Return True if its process has ended, or should have ended."""
        is_old = abs(now_ms - self.begun_ms) > HOLD_LASTS_MS
        return is_old or process_identity.has_ended(self.process) is True


class _NamesFile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    named: dict[str, NamedFolder] = {}
    deleted: dict[str, DeletedDataset] = {}
    held: dict[str, NameHold] = {}


_NAMES_FILE_DECODER = msgspec.json.Decoder(_NamesFile)


@dataclass(frozen=True)
class FolderTable:
    """One state of the file. Changes return a new table."""

    named: dict[str, NamedFolder] = field(default_factory=dict)
    deleted: dict[str, DeletedDataset] = field(default_factory=dict)
    held: dict[str, NameHold] = field(default_factory=dict)

    def folder(self, name: DatasetName) -> DatasetName | None:
        """Return the folder that a name leads to; ``None`` if its folder is another dataset's.

        The dataset need not exist.
        """
        entry = self.named.get(name.text)
        if entry is not None:
            return DatasetName.parse(entry.folder)
        return None if self._is_near_another(name) else name

    def is_occupied(self, folder: str) -> bool:
        """Return True if a folder belongs to a dataset with an entry, or to a deleted one."""
        return folder in self._occupied

    @cached_property
    def _occupied(self) -> frozenset[str]:
        return frozenset((*(each.folder for each in self.named.values()), *self.deleted))

    @cached_property
    def _around_occupied(self) -> frozenset[str]:
        return frozenset(each.partition("/")[0] for each in self._occupied if "/" in each)

    def _is_near_another(self, name: DatasetName) -> bool:
        """Return True if the folder with this name is an occupied one, or inside or around one."""
        return (
            name.text in self._occupied
            or name.text in self._around_occupied
            or name.account in self._occupied
        )

    def name_of(self, folder: str) -> str | None:
        """Return the name of the dataset in a folder; ``None`` if no name leads there."""
        for name, entry in self.named.items():
            if entry.folder == folder:
                return name
        same = DatasetName.parse(folder)
        return folder if self.folder(same) == same else None

    def with_name(self, name: DatasetName, folder: str, was: str | None = None) -> FolderTable:
        """Return the table in which a name leads to a folder."""
        return FolderTable(
            {**self.named, name.text: NamedFolder(folder, was)}, self.deleted, self.held
        )

    def renamed(self, old: DatasetName, new: DatasetName, folder: str) -> FolderTable:
        """Return the table in which a folder has a new name."""
        left = {name: entry for name, entry in self.named.items() if name != old.text}
        left[new.text] = NamedFolder(folder, old.text)
        return FolderTable(left, self.deleted, self.held)

    def without(
        self, name: DatasetName, folder: str, now_ms: int, written: LastWrite | None = None
    ) -> FolderTable:
        """Return the table in which a folder's dataset is deleted."""
        left = {each: entry for each, entry in self.named.items() if each != name.text}
        gone = {**self.deleted, folder: DeletedDataset(name.text, now_ms, written)}
        return FolderTable(left, gone, self.held)

    def emptied(self, folder: str) -> FolderTable:
        """Return the table without a deleted dataset, whose folder is empty now."""
        left = {each: dead for each, dead in self.deleted.items() if each != folder}
        return FolderTable(self.named, left, self.held)

    def with_hold(self, key: str, hold: NameHold) -> FolderTable:
        """Return the table with a hold."""
        return FolderTable(self.named, self.deleted, {**self.held, key: hold})

    def without_holds(self, keys: Iterable[str]) -> FolderTable:
        """Return the table without these holds."""
        gone = set(keys)
        left = {key: hold for key, hold in self.held.items() if key not in gone}
        return FolderTable(self.named, self.deleted, left)


class HeldNames:
    """Names and folders that this process holds."""

    def __init__(self, folders: DatasetFolders, key: str, table: FolderTable) -> None:
        """Remember under which key the hold is in the file."""
        self._folders = folders
        self._key = key
        self.table = table
        """The file when the hold was written; what is held hasn't changed since."""

    def renew(self) -> None:
        """Hold for another :data:`HOLD_LASTS_MS`, or raise ``TimedOut`` if the hold was removed."""

        def renewed(table: FolderTable) -> FolderTable:
            mine = table.held.get(self._key)
            if mine is None:
                raise _given_up()
            begun_ms = self._folders.now_ms()
            return table.with_hold(self._key, msgspec.structs.replace(mine, begun_ms=begun_ms))

        self._folders.change(renewed)

    def decide(
        self,
        change: Callable[[FolderTable], FolderTable],
        is_made: Callable[[FolderTable], bool],
    ) -> None:
        """Make the change and end the hold, with one write; the answer of that may be lost."""

        def decided(table: FolderTable) -> FolderTable:
            if self._key not in table.held and is_made(table):
                return table
            if self._key not in table.held:
                raise _given_up()
            return change(table).without_holds([self._key])

        self._folders.change(decided)

    def end(self) -> None:
        """End the hold without a change; nothing happens if it has ended."""
        self._folders.change(lambda table: table.without_holds([self._key]))


def _given_up() -> TimedOut:
    return TimedOut(
        "the dataset wasn't renamed or deleted",
        cause="it took too long, and the reservation of the name expired",
        remedy="run the same command again",
        reason=NAME_HELD,
    )


class DatasetFolders:
    """The folders of a root's datasets. Safe to use from several threads."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use a store; ``ticks`` measures the age of what was read."""
        self._store = store
        self._clock = clock
        self._ticks = ticks
        self._lock = threading.Lock()
        self._known: tuple[float, FolderTable] | None = None

    def now_ms(self) -> int:
        """Return the time of day."""
        return self._clock()

    def known(self) -> FolderTable:
        """Return the table as it was within the last :data:`FOLDERS_KNOWN_FOR_S`."""
        now = self._ticks()
        with self._lock:
            if self._known is not None and now - self._known[0] < FOLDERS_KNOWN_FOR_S:
                return self._known[1]
        return self.read()

    def read(self) -> FolderTable:
        """Return the table as it is now."""
        return self._stored()[1]

    def folder(self, name: DatasetName) -> DatasetName | None:
        """Return the folder that a name leads to, as a reader sees it."""
        return self.known().folder(name)

    def folder_for_push(self, name: DatasetName) -> DatasetName:
        """Return the folder for a push to a name.

        If the folder with this name belongs to a dataset that was renamed or deleted, the name
        gets another one.
        """
        folder = self.read().folder(name)
        if folder is not None:
            return folder
        fresh = f"{name.text.replace('/', '_')[:_LONGEST_FOLDER]}-{secrets.token_hex(4)}"

        def named(table: FolderTable) -> FolderTable:
            return table if table.folder(name) is not None else table.with_name(name, fresh)

        found = self.change(named).folder(name)
        assert found is not None
        return found

    def check_push(self, name: DatasetName, folder: DatasetName) -> None:
        """Refuse a push whose name doesn't lead to its folder, or is just being changed.

        Call it after the push's record is written: from then on, changes see the push.
        """
        while True:
            table = self.read()
            if table.folder(name) != folder:
                raise CommitConflict(
                    f"{name} was renamed or deleted meanwhile",
                    dataset_alias=name.text,
                )
            now_ms = self._clock()
            met = {
                key: hold
                for key, hold in table.held.items()
                if hold.meets([name.text], [folder.text])
            }
            if any(not hold.has_ended(now_ms) for hold in met.values()):
                raise StorageUnavailable(
                    f"another command is renaming or deleting {name}",
                    dataset_alias=name.text,
                )
            if not met:
                return
            self.change(lambda there, met=met: there.without_holds(met))  # type: ignore[misc]

    @contextmanager
    def hold(
        self, names: Iterable[DatasetName], folders: Iterable[DatasetName]
    ) -> Iterator[HeldNames]:
        """Hold names and folders, or raise ``CommitConflict`` if another change holds one.

        The hold ends with the context, if it wasn't ended by :meth:`HeldNames.decide`.
        """
        key, now_ms = secrets.token_hex(8), self._clock()
        texts = tuple(each.text for each in names)
        places = tuple(each.text for each in folders)
        mine = NameHold(texts, places, now_ms, this_process())

        def held(table: FolderTable) -> FolderTable:
            if key in table.held:
                return table
            ended = [each for each, hold in table.held.items() if hold.has_ended(now_ms)]
            left = table.without_holds(ended)
            if any(hold.meets(texts, places) for hold in left.held.values()):
                held_things = texts or places
                raise CommitConflict(
                    f"{' and '.join(held_things)} can't be changed now",
                    cause="another rename or deletion of it is under way",
                    remedy="try again when it has ended, in a minute at the latest",
                    dataset_alias=held_things[0],
                    reason=NAME_HELD,
                )
            return left.with_hold(key, mine)

        holder = HeldNames(self, key, self.change(held))
        try:
            yield holder
        finally:
            # If this fails, the hold expires.
            with suppress(LakeferryError):
                holder.end()

    def change(self, decide: Callable[[FolderTable], FolderTable]) -> FolderTable:
        """Replace the table by what ``decide`` makes of it, and return the new one.

        ``decide`` may be called several times, and may refuse by raising an error.
        """
        written: bytes | None = None
        for _ in range(_ATTEMPTS):
            data, table = self._stored()
            if data is not None and data == written:
                # The store did it, though it said no.
                return table
            new = decide(table)
            if new == table:
                return table
            if len(new.named) + len(new.deleted) > MOST_RENAMED:
                raise LimitExceeded(
                    "too many datasets were renamed or deleted",
                    cause=f"the list has room for {MOST_RENAMED:,}",
                    remedy="delete the objects of deleted datasets with 'lakeferry gc'",
                )
            written = msgspec.json.encode(_NamesFile(new.named, new.deleted, new.held))
            if self._store.swap(NAMES_FILE, data, written):
                self._keep(new)
                return new
        raise StorageUnavailable(
            "the names of datasets can't be changed",
            cause="other commands keep changing them at the same time",
            remedy="run the same command again",
        )

    def _stored(self) -> tuple[bytes | None, FolderTable]:
        try:
            data: bytes | None = self._store.get(NAMES_FILE)
        except ObjectNotFound:
            data, table = None, FolderTable()
        else:
            table = _decoded(data or b"")
        self._keep(table)
        return data, table

    def _keep(self, table: FolderTable) -> None:
        with self._lock:
            self._known = self._ticks(), table


def _decoded(data: bytes) -> FolderTable:
    """Return the table in the file.

    A damaged one is never guessed at, as names would change. Nor is one with fields of a later
    version: the next change would lose them.
    """
    try:
        found = _NAMES_FILE_DECODER.decode(data)
        for text in (*found.named, *(each.folder for each in found.named.values())):
            DatasetName.parse(text)
        for text in found.deleted:
            DatasetName.parse(text)
        _check_folders([each.folder for each in found.named.values()], found.deleted.keys())
    except (msgspec.MsgspecError, InvalidInput) as damaged:
        raise CorruptLog(
            f"{NAMES_FILE} of the server's root can't be read",
            cause=str(damaged),
            remedy="if a later version of Lakeferry wrote the file, use that version; else restore "
            "it from a backup: without it, renamed datasets have their old names, and deleted ones "
            "are there again",
        ) from damaged
    return FolderTable(found.named, found.deleted, found.held)


def _check_folders(named: Sequence[str], deleted: Set[str]) -> None:
    """Refuse a folder of two datasets, and one that garbage collection would delete."""
    for folder, count in Counter(named).items():
        if count > 1 or folder in deleted or folder.partition("/")[0] in deleted:
            raise InvalidInput(f"the folder {folder} is in it twice")
