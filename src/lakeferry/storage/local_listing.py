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
            entries = self._entries(folder, window, _is_folder)
        except OSError as error:
            if error.errno in ABSENT_ERRORS:
                return
            self.errors.refuse(error, folder)
        for key, entry, is_folder in entries:
            if is_temporary(entry.name):
                continue
            if window.is_past(key):
                return
            if is_folder:
                yield from self._walk(f"{folder}{entry.name}/", window, (*above, identity))
                continue
            try:
                found = entry.stat()
            except OSError as error:
                # Deleted since the folder was read, or a link to nothing.
                if error.errno in ABSENT_ERRORS or error.errno == errno.ELOOP:
                    continue
                self.errors.refuse(error, folder + entry.name)
            if stat.S_ISREG(found.st_mode):
                yield ObjectInfo(folder + entry.name, found.st_size, found.st_mtime_ns // 1_000_000)

    def entries(self, prefix: str) -> Iterator[str]:
        """Walk without following links, and yield all that isn't a folder.

        The root, and the folder that the prefix names, are entered even through a link.
        """
        return self._held(_folder_of(prefix), _Window(os.fsencode(prefix), None, None))

    def _held(self, folder: str, window: _Window) -> Iterator[str]:
        try:
            entries = self._entries(folder, window, _is_real_folder)
        except OSError as error:
            if error.errno in ABSENT_ERRORS:
                return
            self.errors.refuse(error, folder)
        for _, entry, is_folder in entries:
            if is_folder:
                yield from self._held(f"{folder}{entry.name}/", window)
            else:
                yield folder + entry.name

    def _entries(
        self, folder: str, window: _Window, is_folder: Callable[[os.DirEntry[str]], bool]
    ) -> list[tuple[bytes, os.DirEntry[str], bool]]:
        """Return the entries of a folder within a window, in the order of whole names.

        Each with its whole name, to which a folder has a slash added, and whether it is a folder.
        """
        with os.scandir(self._file(folder)) as found:
            return sorted(
                (key, entry, is_one)
                for entry in found
                for is_one in (is_folder(entry),)
                for key in (os.fsencode(f"{folder}{entry.name}{'/' if is_one else ''}"),)
                if window.meets(key)
            )

    def _file(self, path: str) -> str:
        return f"{self.errors.root}/{path}"


class _Window:
    """The names that a listing asks for, as bytes; a key that ends with ``/`` is a folder."""

    def __init__(self, prefix: bytes, start_after: bytes | None, stop_before: bytes | None) -> None:
        self._prefix = prefix
        self._start_after = start_after
        self._stop_before = stop_before

    def meets(self, key: bytes) -> bool:
        """Return whether the object, or something below the folder, may be within the window."""
        is_folder = key.endswith(b"/")
        if not key.startswith(self._prefix) and not (is_folder and self._prefix.startswith(key)):
            return False
        if self.is_past(key):
            return False
        after = self._start_after
        return after is None or key > after or (is_folder and after.startswith(key))

    def is_past(self, key: bytes) -> bool:
        """Return whether this and everything after it is beyond the end."""
        return self._stop_before is not None and key >= self._stop_before


def _folder_of(prefix: str) -> str:
    """Return the folder in which all names with that prefix are, with a slash at its end."""
    folder = prefix.rpartition("/")[0]
    if not folder:
        return ""
    check_object_name(folder)
    return f"{folder}/"


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A link that leads to itself.
        return False


def _is_real_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)
