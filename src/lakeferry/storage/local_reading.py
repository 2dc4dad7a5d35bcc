"""Reads files on local disk: whole, a part of one, or one that is held open."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator

from lakeferry.storage.call_counts import Calls
from lakeferry.storage.local_durability import copy_bytes
from lakeferry.storage.local_errors import LocalErrors
from lakeferry.storage.store import OpenedObject, replaced_meanwhile
from lakeferry.storage.uris import check_object_name


class LocalReader:
    """Reads the files below one folder, and counts the bytes."""

    def __init__(self, errors: LocalErrors, calls: Calls) -> None:
        """Access nothing yet."""
        self.errors = errors
        self.calls = calls

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Return a part of a file, or all from ``start`` on."""
        fd = self._open(path)
        try:
            return self.read_open(fd, path, start, length)
        finally:
            os.close(fd)

    def read_open(self, fd: int, path: str, start: int, length: int | None) -> bytes:
        """Return a part of an open file, or all from ``start`` on."""
        try:
            if length is None:
                length = os.fstat(fd).st_size
            data = os.pread(fd, length, start)
            # The file ends before the range does, or one read was not enough for it
            # (Linux returns at most 2 GiB at a time).
            while len(data) < length:
                more = os.pread(fd, length - len(data), start + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            self.errors.refuse(error, path)
        self.calls.add_bytes(len(data))
        return data

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[int]:
        """Open a regular file to read it."""
        fd = self._open(path)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise self.errors.no_file(path)
            yield fd
        finally:
            os.close(fd)

    def _open(self, path: str) -> int:
        try:
            return _open_to_read(f"{self.errors.root}/{check_object_name(path)}")
        except OSError as error:
            self.errors.refuse(error, path)


class OpenedFile(OpenedObject):
    """A file that is open; some programs change files in place."""

    def __init__(self, reader: LocalReader, path: str) -> None:
        self._reader = reader
        self._path = path
        self._held = contextlib.ExitStack()
        self._fd = self._held.enter_context(reader.opened(path))
        self._before = self._state()
        self.size_bytes = self._before[0]

    def read(self, start: int, length: int) -> bytes:
        """Return a part of the file; refuse if it has become shorter."""
        self._reader.calls.add("RANGE", self._path)
        data = self._reader.read_open(self._fd, self._path, start, length)
        if start + len(data) < min(start + length, self.size_bytes):
            raise replaced_meanwhile(self._reader.errors.uri, self._path)
        return data

    def check(self) -> None:
        """Refuse if the file was changed since it was opened."""
        if self._state() != self._before:
            raise replaced_meanwhile(self._reader.errors.uri, self._path)

    def copy(self, moved: Callable[[int], None], fd: int) -> None:
        """Copy the file to another one, and :meth:`check`."""
        try:
            copy_bytes(self._fd, fd, self.size_bytes, moved)
        except OSError:
            self.check()
            raise
        self.check()

    def close(self) -> None:
        """Close the file."""
        self._held.close()

    def _state(self) -> tuple[int, int]:
        found = os.fstat(self._fd)
        return found.st_size, found.st_mtime_ns


def _open_to_read(file: str) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        # To open a pipe would wait for a writer.
        return os.open(file, flags | os.O_NONBLOCK)
    except BlockingIOError:
        # A file server lets others wait until its client has written what it holds.
        return os.open(file, flags)
