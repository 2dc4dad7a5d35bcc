"""Writes files atomically and durably on local disk; locks folders.

Implements the promises of :mod:`lakeferry.storage.local_store` with POSIX and Linux calls:
``O_TMPFILE``, ``linkat``, ``renameat2``, ``flock`` of folders, ``fsync`` of files and of
folders.

An object store has no folders: here they are created with their objects, and empty ones
are removed, by us and by others. So an empty folder may disappear at any moment; a writer
then creates it again and retries.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator

from lakeferry.errors import StorageUnavailable
from lakeferry.storage.direct_writes import DIRECT_BYTES, write_bytes, write_directly
from lakeferry.storage.process_identity import this_process
from lakeferry.storage.store import StreamChunk

_TEMPORARY_PREFIX = ".lakeferry-"
TEMPORARY_SUFFIX = ".tmp"
PARTS_PREFIX = f"{_TEMPORARY_PREFIX}part-"

# The kernel's answers if a file system doesn't support an operation. EPERM is what
# FAT says to link(2).
_NOT_OFFERED = frozenset(
    {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EXDEV}
)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_RENAME_NOREPLACE = 1
_READ_AT_ONCE = 8 << 20
_COPIED_AT_ONCE = 64 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)
_SYNC: Callable[[int], int] | None = getattr(_LIBC, "syncfs", None)
_SYNC_TELLS_SINCE = (5, 8)
"""The version of Linux since which ``syncfs`` reports that data couldn't be written."""
_SYNCED_TYPES = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994})
"""ext2 to ext4, XFS, Btrfs, F2FS, tmpfs. Of others, as FUSE, not all pass a ``syncfs`` on."""

LOCKED_WITHIN_S = 10.0
"""Timeout for a folder's lock, which is held for a few writes to disk."""
_TICK_S = 0.002
_NEVER_SYNCED = frozenset({errno.EROFS, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors where nothing can be synced: nobody can change it, or it isn't a file on a disk."""
_TRIES = 20
"""How many times a folder that others remove meanwhile is created or locked again."""


class OpenFolder:
    """An open folder that objects are written into, made with its parents if need be."""

    def __init__(self, path: str) -> None:
        """Name the folder; it is opened, and made, on entering the context."""
        self._path = path
        self.fd = -1

    def __enter__(self) -> OpenFolder:
        self.fd = self._open()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def _open(self) -> int:
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError):
                return os.open(self._path, _FOLDER)
            with contextlib.suppress(FileNotFoundError):
                _make_folders(self._path)
        return os.open(self._path, _FOLDER)

    def _open_again(self) -> None:
        fd = self._open()
        os.close(self.fd)
        self.fd = fd

    def open_hidden(self, name: str, flags: int) -> int:
        """Open or create a hidden file, which also keeps its folder from being removed."""
        flags |= os.O_CREAT | os.O_CLOEXEC
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError):
                return os.open(name, flags, 0o666, dir_fd=self.fd)
            self._open_again()
        return os.open(name, flags, 0o666, dir_fd=self.fd)

    def write_and_claim(self, data: bytes, name: str) -> bool:
        """Write ``data`` under ``name`` unless that is taken; return whether it was written."""
        fd = self._open_nameless()
        if fd is not None:
            try:
                _write_synced(fd, (data,))
                # With a folder's descriptor Python calls linkat(2), the only link that
                # follows the link which /proc has for a file without a name.
                os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=self.fd, follow_symlinks=True)
                return True
            except FileExistsError:
                return False
            except OSError as error:
                # ENOENT: there is no /proc here, or the folder is gone.
                if error.errno not in _NOT_OFFERED and error.errno != errno.ENOENT:
                    raise
            finally:
                os.close(fd)
        temporary = self.write_named((data,))
        try:
            return self.claim(temporary, name)
        finally:
            self.remove(temporary)

    def _open_nameless(self) -> int | None:
        # Only Linux has it, and there not every file system.
        nameless: int | None = getattr(os, "O_TMPFILE", None)
        if nameless is None:
            return None
        try:
            return os.open(self._path, os.O_WRONLY | nameless | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno not in _NOT_OFFERED and error.errno != errno.ENOENT:
                raise
            return None

    def claim(self, temporary: str, name: str) -> bool:
        """Rename a hidden file unless the name is taken; return whether it was renamed.

        The hidden name may be left, for the caller to remove.
        """
        try:
            os.link(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            return True
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NOT_OFFERED:
                raise
        return _rename_unless_taken(self.fd, temporary, name)

    def write_named(self, chunks: Iterable[StreamChunk], size_bytes: int = 0) -> str:
        """Write chunks to a new hidden file, sync it, and return its name.

        With ``size_bytes``, large files are written directly to disk.
        """
        name = _temporary_name()
        fd = self.open_hidden(name, os.O_WRONLY | os.O_EXCL)
        try:
            if size_bytes >= DIRECT_BYTES:
                write_directly(fd, chunks)
                os.fsync(fd)
            else:
                _write_synced(fd, chunks)
        except BaseException:
            self.remove(name)
            raise
        finally:
            os.close(fd)
        return name

    def fill_named(self, fill: Callable[[int], None]) -> str:
        """Let ``fill`` write to a new hidden file, sync it, and return its name."""
        name = _temporary_name()
        new_fd = self.open_hidden(name, os.O_WRONLY | os.O_EXCL)
        try:
            fill(new_fd)
            os.fsync(new_fd)
        except BaseException:
            self.remove(name)
            raise
        finally:
            os.close(new_fd)
        return name

    def link_named(self, path: str) -> str | None:
        """Give a synced file a hidden name here, too; return it, or ``None`` if impossible."""
        name = _temporary_name()
        try:
            os.link(path, name, dst_dir_fd=self.fd, follow_symlinks=True)
        except OSError as error:
            # EMLINK: the file has as many names as it may have. ENOENT: it lost its own
            # just now, or the folder is gone; whoever has it open can still copy it.
            if error.errno not in _NOT_OFFERED | {errno.EMLINK, errno.ENOENT}:
                raise
            return None
        return name

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock, which excludes all other holders, also in this process.

        While it is held, :func:`remove_if_empty` doesn't remove the folder. Closing the folder
        releases the lock, and so does the end of the process.
        """
        deadline = time.monotonic() + LOCKED_WITHIN_S
        while not self._try_lock():
            if time.monotonic() > deadline:
                raise self._unlocked("somebody holds it")
            time.sleep(_TICK_S)
        try:
            yield
        finally:
            fcntl.flock(self.fd, fcntl.LOCK_UN)

    def _try_lock(self) -> bool:
        """Take the lock of the folder that has the name now, if that is free."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._unlocked(os.strerror(error.errno or errno.ENOLCK)) from error
        if _has_name(self.fd, self._path):
            return True
        self._open_again()
        return False

    def _unlocked(self, cause: str) -> StorageUnavailable:
        return StorageUnavailable(
            f"can't lock {self._path!r} so that only one writer wins",
            cause=cause,
            remedy="try again; if it keeps failing, use a file system whose folders can be locked",
            outcome_unknown=False,
        )

    def sync_existing(self, name: str) -> None:
        """Sync a file and its name, as others write without it, or end before they come to it."""
        try:
            # A pipe must not make us wait for its other end.
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self.fd)
        except OSError:
            # It is gone again, or we may not read it.
            return
        try:
            for each in (fd, self.fd):
                os.fsync(each)
        except OSError as error:
            if error.errno not in _NEVER_SYNCED:
                raise
        finally:
            os.close(fd)

    def rename_over(self, temporary: str, name: str) -> None:
        """Give a hidden file its name, replacing any other file; no hidden file remains."""
        try:
            os.rename(temporary, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        finally:
            # Also after success: between two names of one file rename(2) does nothing.
            self.remove(temporary)

    def remove(self, name: str, *, only_beside_nothing: str | None = None) -> None:
        """Remove a file that may not be there (and, if asked, only while another isn't)."""
        with contextlib.suppress(FileNotFoundError):
            if only_beside_nothing is not None:
                os.stat(name, dir_fd=self.fd, follow_symlinks=False)
                with contextlib.suppress(FileNotFoundError):
                    os.stat(only_beside_nothing, dir_fd=self.fd, follow_symlinks=False)
                    return
            os.unlink(name, dir_fd=self.fd)


class StagedFiles:
    """Small files that are written under hidden names, synced together, and then given their names.

    One sync of the whole file system is cheaper than an fsync of each file. Where it may not be
    enough, each file is synced. Each folder is open until the end.
    """

    def __init__(self) -> None:
        self._held = contextlib.ExitStack()
        self._folders: dict[str, OpenFolder] = {}
        self._synced_whole: dict[int, OpenFolder] = {}
        self._hidden: list[tuple[OpenFolder, str, str]] = []
        self._token = secrets.token_hex(8)

    def __enter__(self) -> StagedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for folder, temporary, _name in self._hidden:
            folder.remove(temporary)
        self._held.close()

    def add(self, path: str, fill: Callable[[int], None]) -> None:
        """Make the file that will be at a path; ``fill`` writes to its descriptor."""
        parent, _, name = path.rpartition("/")
        folder = self._folders.get(parent)
        if folder is None:
            folder = self._folders[parent] = self._held.enter_context(OpenFolder(parent))
        temporary = _temporary_name(f"{self._token}-{len(self._hidden)}")
        fd = folder.open_hidden(temporary, os.O_WRONLY | os.O_EXCL)
        self._hidden.append((folder, temporary, name))
        try:
            fill(fd)
            # A folder may be on another file system than its parent.
            if _is_synced_whole(fd):
                self._synced_whole.setdefault(os.fstat(fd).st_dev, folder)
            else:
                os.fsync(fd)
        finally:
            os.close(fd)

    def publish(self, checksum_of: Callable[[str], str]) -> list[OpenFolder]:
        """Sync all, remove old checksums, give the names; return the folders, to be synced."""
        for folder in self._synced_whole.values():
            assert _SYNC is not None
            if _SYNC(folder.fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
        while self._hidden:
            folder, temporary, name = self._hidden[-1]
            folder.remove(checksum_of(name))
            folder.rename_over(temporary, name)
            self._hidden.pop()
        return list(self._folders.values())


class KeptFile:
    """A hidden file beside a name, locked by one writer; it stays until it is renamed."""

    def __init__(self, fd: int, name: str) -> None:
        self.fd = fd
        self.name = name

    @classmethod
    def open(cls, folder: OpenFolder, beside: str) -> KeptFile | None:
        """Open or create the hidden file of a name; ``None`` if another writer has it."""
        digest = hashlib.sha256(os.fsencode(beside)).hexdigest()[:32]
        name = f"{_TEMPORARY_PREFIX}{digest}{TEMPORARY_SUFFIX}"
        fd = folder.open_hidden(name, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last writer may have renamed or deleted it.
            found, mine = os.stat(name, dir_fd=folder.fd), os.fstat(fd)
            if (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino):
                return cls(fd, name)
        except OSError as error:
            if error.errno not in _NOT_OFFERED | {errno.EWOULDBLOCK, errno.ENOENT, errno.ENOLCK}:
                os.close(fd)
                raise
        os.close(fd)
        return None

    def write(self, data: bytes | bytearray) -> None:
        """Write at the end, directly to disk where that works."""
        write_directly(self.fd, (memoryview(data),), os.lseek(self.fd, 0, os.SEEK_END))

    def close(self) -> None:
        """Close and unlock the file, and keep it."""
        os.close(self.fd)


def _rename_unless_taken(folder_fd: int, source: str, target: str) -> bool:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is not None:
        names = (folder_fd, os.fsencode(source), folder_fd, os.fsencode(target))
        if rename(*names, _RENAME_NOREPLACE) == 0:
            return True
        code = ctypes.get_errno()
        if code == errno.EEXIST:
            return False
        if code not in _NOT_OFFERED:
            raise OSError(code, os.strerror(code), target)
    raise StorageUnavailable(
        f"can't write {target!r} so that only one writer wins",
        cause="this file system has neither hard links nor an exclusive rename",
        remedy="move the table to another file system",
    )


def _temporary_name(unique: str | None = None) -> str:
    # With the writer's name, others can tell later whether anybody still needs the file.
    unique = unique or secrets.token_hex(8)
    return f"{_TEMPORARY_PREFIX}{this_process()}-{unique}{TEMPORARY_SUFFIX}"


def _write_synced(fd: int, chunks: Iterable[StreamChunk]) -> None:
    for chunk in chunks:
        write_bytes(fd, chunk)
    os.fsync(fd)


def copy_bytes(fd: int, new_fd: int, size_bytes: int, moved: Callable[[int], None]) -> None:
    """Copy bytes between two files in the kernel, which may share them instead of copying."""
    done = 0
    while done < size_bytes:
        length = min(_COPIED_AT_ONCE, size_bytes - done)
        count = 0
        try:
            count = os.copy_file_range(fd, new_fd, length, done, done)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
        except AttributeError:
            # Only Linux has it.
            pass
        # File systems refuse with errors of all kinds, and some copy nothing.
        if not count:
            os.lseek(new_fd, done, os.SEEK_SET)
            chunk = os.pread(fd, min(_READ_AT_ONCE, length), done)
            write_bytes(new_fd, chunk)
            count = len(chunk)
        if not count:
            raise OSError(errno.EIO, "the file became shorter while it was copied")
        done += count
        moved(count)


def _is_synced_whole(fd: int) -> bool:
    """Return whether a sync of the file system syncs this file, and reports if that fails."""
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if _SYNC is None or version is None:
        return False
    if (int(version[1]), int(version[2])) < _SYNC_TELLS_SINCE:
        return False
    # The type is the first member of the answer.
    answer = (ctypes.c_long * 64)()
    return _LIBC.fstatfs(fd, answer) == 0 and answer[0] & 0xFFFFFFFF in _SYNCED_TYPES


def _make_folders(path: str) -> None:
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = path.rpartition("/")[0] or "/"
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        # Synced also if another writer made it just now: ours must not be lost with it.
        sync_folder(folder.rpartition("/")[0] or "/")


def remove_if_empty(path: str) -> None:
    """Remove a folder, unless it isn't empty or its lock stays taken."""
    with contextlib.suppress(OSError):
        fd = os.open(path, _FOLDER | os.O_NOFOLLOW)
        try:
            # With the lock held, the name stays this folder's until we are done.
            if _is_locked_soon(fd) and _has_name(fd, path):
                os.rmdir(path)
        finally:
            # Unlock explicitly: a process that was forked meanwhile has it open, too.
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


def _is_locked_soon(folder_fd: int) -> bool:
    """Take a folder's lock, which others may hold for a moment; return whether that worked.

    Also True on file systems without folder locks, where no lock is used.
    """
    for _ in range(_TRIES):
        try:
            fcntl.flock(folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(_TICK_S)
        except OSError:
            return True
    return False


def _has_name(folder_fd: int, path: str) -> bool:
    """Return whether an open folder still has its name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(folder_fd))
    except FileNotFoundError:
        return False


def sync_folder(path: str) -> None:
    """Make the entries of a folder survive a crash."""
    fd = os.open(path, _FOLDER)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_temporary(name: str) -> bool:
    """Return whether a name is that of one of our temporary files."""
    return name.startswith(_TEMPORARY_PREFIX) and name.endswith(TEMPORARY_SUFFIX)
