"""Lists the files below a folder on local disk, in the order of whole names."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lakeferry.storage.local_durability import is_temporary
from lakeferry.storage.local_errors import ABSENT_ERRORS, LocalErrors
from lakeferry.storage.store import ObjectInfo
from lakeferry.storage.uris import check_object_name


@dataclass(frozen=True, slots=True)
class LocalListing:
    """Listings of one folder. A name that can't be listed is refused at once."""

    errors: LocalErrors

    def objects(
        self, prefix: str, start_after: str | None, stop_before: str | None
    ) -> Iterator[ObjectInfo]:
        """Walk the folders, entering only those in range.

        Links to folders are followed; one that leads back to a folder above it is not.
        """
        window = _Window(
            os.fsencode(prefix),
            None if start_after is None else os.fsencode(start_after),
            None if stop_before is None else os.fsencode(stop_before),
        )
        return self._walk(_folder_of(prefix), window, ())

    def _walk(
        self, folder: str, window: _Window, above: tuple[tuple[int, int], ...]
    ) -> Iterator[ObjectInfo]:
        try:
            where = os.stat(self._file(folder))
            identity = (where.st_dev, where.st_ino)
            if identity in above:
                return
            names = self._names(folder, window, _followed)
        except OSError as error:
            if error.errno in ABSENT_ERRORS:
                return
            self.errors.refuse(error, folder)
        for name in names:
            path = folder + name
            if name.endswith("/"):
                yield from self._walk(path, window, (*above, identity))
                continue
            try:
                found = os.stat(self._file(path))
            except OSError as error:
                # Deleted since the folder was read, or a link to nothing.
                if error.errno in ABSENT_ERRORS or error.errno == errno.ELOOP:
                    continue
                self.errors.refuse(error, path)
            if stat.S_ISREG(found.st_mode):
                yield ObjectInfo(path, found.st_size, found.st_mtime_ns // 1_000_000)

    def entries(self, prefix: str) -> Iterator[str]:
        """Walk without following links, and yield all that isn't a folder.

        The root, and the folder that the prefix names, are entered even through a link.
        """
        return self._held(_folder_of(prefix), _Window(os.fsencode(prefix), None, None))

    def folders(self, folder: str) -> list[str]:
        """Return the folders directly below a folder, in their order; links aren't followed."""
        try:
            with os.scandir(self._file(folder)) as found:
                return sorted(
                    f"{folder}{each.name}/" for each in found if each.is_dir(follow_symlinks=False)
                )
        except OSError as error:
            if error.errno in ABSENT_ERRORS:
                return []
            self.errors.refuse(error, folder)

    def _held(self, folder: str, window: _Window) -> Iterator[str]:
        try:
            names = self._names(folder, window, _as_stored)
        except OSError as error:
            if error.errno in ABSENT_ERRORS:
                return
            self.errors.refuse(error, folder)
        for name in names:
            if name.endswith("/"):
                yield from self._held(folder + name, window)
            else:
                yield folder + name

    def _names(
        self, folder: str, window: _Window, named: Callable[[os.DirEntry[str]], str | None]
    ) -> list[str]:
        """Return the names in a folder within a window, in the order of whole names.

        ``named`` returns an entry's name, a folder's with a slash added, or ``None``. A folder may
        have a million files, so nothing else is kept of them.
        """
        with os.scandir(self._file(folder)) as found:
            names = [name for name in map(named, found) if name is not None]
        lead = os.fsencode(folder)
        if not window.has_all_below(lead):
            names = [name for name in names if window.meets(lead + os.fsencode(name))]
        # ASCII text sorts as its bytes do.
        names.sort(key=None if all(map(str.isascii, names)) else os.fsencode)
        return names

    def _file(self, path: str) -> str:
        return f"{self.errors.root}/{path}"


class _Window:
    """The names that a listing asks for, as bytes; a key that ends with ``/`` is a folder."""

    def __init__(self, prefix: bytes, start_after: bytes | None, stop_before: bytes | None) -> None:
        self._prefix = prefix
        self._start_after = start_after
        self._stop_before = stop_before

    def has_all_below(self, folder: bytes) -> bool:
        """Return whether everything below a folder is within the window."""
        after, stop = self._start_after, self._stop_before
        return (
            folder.startswith(self._prefix)
            and (after is None or folder > after)
            and (stop is None or (folder < stop and not stop.startswith(folder)))
        )

    def meets(self, key: bytes) -> bool:
        """Return whether the object, or something below the folder, may be within the window."""
        is_folder = key.endswith(b"/")
        if not key.startswith(self._prefix) and not (is_folder and self._prefix.startswith(key)):
            return False
        if self._stop_before is not None and key >= self._stop_before:
            return False
        after = self._start_after
        return after is None or key > after or (is_folder and after.startswith(key))


def _folder_of(prefix: str) -> str:
    """Return the folder in which all names with that prefix are, with a slash at its end."""
    folder = prefix.rpartition("/")[0]
    if not folder:
        return ""
    check_object_name(folder)
    return f"{folder}/"


def _followed(entry: os.DirEntry[str]) -> str | None:
    """Return an entry's name for a listing: links are followed, temporary files left out."""
    name = entry.name
    if is_temporary(name):
        return None
    try:
        return f"{name}/" if entry.is_dir() else name
    except OSError:
        # A link that leads to itself.
        return name


def _as_stored(entry: os.DirEntry[str]) -> str:
    return f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
