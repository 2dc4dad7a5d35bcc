"""Renames and deletes the datasets of a root, and sets who may read them.

Renaming and deleting is one write to the list of names
(:mod:`lakeferry.transfer.repository.dataset_folders`); no object is moved. Garbage collection
deletes the objects of a deleted dataset when it was deleted longer ago than the grace period, so
readers that have begun can finish.

A push under way to the dataset, or to its new name, refuses the change; so does another change. A
push that looks dead is taken over as garbage collection does it, and can't commit any more. A pull
that has begun isn't affected: it reads the folder, whatever its name is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from lakeferry.errors import CommitConflict, ObjectNotFound
from lakeferry.transfer.datasets.dataset import DatasetFormat
from lakeferry.transfer.repository.dataset_folders import FolderTable
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.last_write import last_write
from lakeferry.transfer.repository.push_liveness import PushState
from lakeferry.transfer.repository.push_records import Records
from lakeferry.transfer.repository.repository import Repository, Visibility

CheckUnused = Callable[[str], None]
"""Refuses a Delta table, given its URI, if an old path leads to it or it leads elsewhere."""


@dataclass(frozen=True, slots=True)
class DatasetChanged:
    """What became of a dataset."""

    name: str
    changed: bool
    was: str | None = None
    """Its name before, if it was renamed."""
    visibility: str | None = None
    """Who may read it, if that was set."""

    def as_document(self) -> dict[str, Any]:
        """Return what the command prints as JSON."""
        told = {"name": self.name, "was": self.was, "visibility": self.visibility}
        return {**told, "changed": self.changed}


# For those who convert a server's answer to one: see tests/unit/test_decoders.py.
_PREPARED = msgspec.json.Decoder(DatasetChanged)


class DatasetChanges:
    """Changes the datasets of one root."""

    def __init__(
        self,
        repository: Repository,
        check_unused: CheckUnused,
        *,
        clock: Callable[[], int],
    ) -> None:
        """Use a repository; ``check_unused`` is asked before a Delta table is deleted."""
        self._repository = repository
        self._check_unused = check_unused
        self._clock = clock

    def rename(
        self, old: DatasetName, new: DatasetName, *, dry_run: bool = False
    ) -> DatasetChanged:
        """Give a dataset another name; nothing changes if that was done before."""
        folders = self._repository.folders
        table = folders.read()
        if self._existing(table, old) is None:
            entry = table.named.get(new.text)
            if entry is None or entry.was != old.text or self._existing(table, new) is None:
                raise no_dataset(old)
            return DatasetChanged(new.text, changed=False, was=old.text)
        if old == new:
            return DatasetChanged(new.text, changed=False, was=old.text)
        check_name_free(self._repository, new)
        if dry_run:
            return DatasetChanged(new.text, changed=True, was=old.text)
        concerned = (table.folder(old), table.folder(new))
        with folders.hold((old, new), _present(concerned)) as held:
            folder = self._held_folder(held.table, old)
            self._refuse_pushes(_present((folder, held.table.folder(new))))
            check_name_free(self._repository, new)
            held.decide(
                lambda now: now.renamed(old, new, folder.text),
                lambda now: now.folder(new) == folder,
            )
        return DatasetChanged(new.text, changed=True, was=old.text)

    def delete(
        self, name: DatasetName, *, force: bool = False, dry_run: bool = False
    ) -> DatasetChanged:
        """Delete a dataset; nothing changes if there is none.

        ``force`` deletes a table that a redirect leads to, or that has a redirect, too.
        """
        folders, store = self._repository.folders, self._repository.store
        found = self._existing(folders.read(), name)
        if found is None:
            return DatasetChanged(name.text, changed=False)
        self._refuse_inner(name, found)
        if not force and self._repository.kind(found) is DatasetFormat.DELTA:
            self._check_unused(f"{store.uri}/{found}")
        if dry_run:
            return DatasetChanged(name.text, changed=True)
        with folders.hold((name,), (found,)) as held:
            folder = self._held_folder(held.table, name)
            self._refuse_pushes((folder,))
            # A pull to a folder below the root has no record, and a first push hasn't at first.
            if (claim := self._repository.claim_of(folder)) is not None:
                raise _under_way("the first push or pull to this dataset", claim.lasts_ms)
            now_ms, written = self._clock(), last_write(store, folder.text)
            held.decide(
                lambda now: now.without(name, folder.text, now_ms, written),
                lambda now: folder.text in now.deleted,
            )
        return DatasetChanged(name.text, changed=True)

    def set_visibility(
        self, name: DatasetName, visibility: Visibility, *, dry_run: bool = False
    ) -> DatasetChanged:
        """Set who may read a dataset."""
        folder = self._existing(self._repository.folders.read(), name)
        if folder is None:
            raise no_dataset(name)
        changed = self._repository.visibility(folder) is not visibility
        if changed and not dry_run:
            self._repository.set_visibility(folder, visibility)
        return DatasetChanged(name.text, changed, visibility=visibility.value)

    def _existing(self, table: FolderTable, name: DatasetName) -> DatasetName | None:
        """Return the folder of an existing dataset."""
        folder = table.folder(name)
        return None if folder is None or self._repository.kind(folder) is None else folder

    def _held_folder(self, table: FolderTable, name: DatasetName) -> DatasetName:
        """Return the folder of a dataset whose name is held."""
        folder = self._existing(table, name)
        if folder is None:
            raise no_dataset(name)
        return folder

    def _refuse_pushes(self, folders: Iterable[DatasetName]) -> None:
        """Raise if a push to one of the folders may still commit; take over dead ones."""
        records, now_ms = Records(self._repository.store), self._clock()
        concerned = {each.text for each in folders}
        for found in records.found():
            if found.note is None or found.note.dataset not in concerned:
                continue
            if found.note.state not in (PushState.OPEN, PushState.COMMITTING):
                continue
            if found.is_alive(now_ms) or records.take(found) is None:
                raise _under_way(
                    "a push to this dataset, or to its new name,", found.left_ms(now_ms)
                )

    def _refuse_inner(self, name: DatasetName, folder: DatasetName) -> None:
        """Refuse to delete a folder in which somebody has put another dataset."""
        if folder.account is not None:
            return
        for inside in self._repository.datasets_below(folder):
            raise CommitConflict(
                f"{name} can't be deleted",
                cause=f"the folder of another dataset, {inside}, is inside its own",
                remedy="move that folder to another place below the root first",
                other=inside.text,
            )


def check_name_free(repository: Repository, name: DatasetName) -> None:
    """Raise ``CommitConflict`` if a dataset has a name, or a name above or below it."""
    folder = repository.folders.read().folder(name)
    if folder is not None and repository.kind(folder) is not None:
        raise _name_taken(name, name)
    check_names_around(repository, name)


def check_names_around(repository: Repository, name: DatasetName) -> None:
    """Raise ``CommitConflict`` if a dataset has a name above or below this one."""
    table = repository.folders.read()
    if name.account is not None:
        near = [DatasetName(name.account)]
    else:
        near = [DatasetName(each) for each in table.named if each.startswith(f"{name}/")]
    for each in near:
        folder = table.folder(each)
        if folder is not None and repository.kind(folder) is not None:
            raise _name_taken(name, each)
    if name.account is None and not table.is_occupied(name.text):
        for inside in repository.datasets_below(name):
            if table.folder(inside) == inside:
                raise _name_taken(name, inside)


def _under_way(transfer: str, left_ms: int) -> CommitConflict:
    held_s = max(1, -(-left_ms // 1000))
    return CommitConflict(
        f"{transfer} is under way",
        cause=f"it expires in {held_s:,} s if its server doesn't renew it",
        remedy=f"run the command again when it has ended, or in {held_s:,} s",
        held_s=held_s,
    )


def no_dataset(name: DatasetName) -> ObjectNotFound:
    """Return the error for a name that no dataset has."""
    return ObjectNotFound(
        f"there is no dataset named {name}",
        remedy="'lakeferry ls' shows the datasets",
        dataset_alias=name.text,
    )


def _name_taken(name: DatasetName, other: DatasetName) -> CommitConflict:
    return CommitConflict(
        f"there can't be a dataset named {name}",
        cause=f"there is a dataset named {other}",
        remedy="choose another name",
        dataset_alias=name.text,
        other=other.text,
    )


def _present(folders: Iterable[DatasetName | None]) -> tuple[DatasetName, ...]:
    return tuple(each for each in folders if each is not None)
