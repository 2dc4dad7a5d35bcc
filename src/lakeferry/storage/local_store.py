"""Local disk as a store.

**Whole or not at all.** Bytes are written to a file that has no name yet
(``O_TMPFILE``) or a hidden one, synced, and only then given their name by one
system call: ``link`` for put-if-absent, ``rename`` for a replacement. Then the
folder is synced. After a crash ``O_TMPFILE`` leaves nothing behind; otherwise a
hidden file stays, which listings omit and Delta engines ignore, until somebody
removes it (``local_leftovers.py``).

**One winner.** ``link`` fails if the name is taken, by us, Spark or delta-rs. If a
file system has no hard links (FAT, some network and FUSE mounts), ``renameat2`` with
``RENAME_NOREPLACE`` gives the same guarantee. If it has neither, put-if-absent
refuses. Creating the file with ``O_EXCL`` would show an empty object to readers. A lock
file would only stop programs that know it, and another engine's commit could be lost.

**Swaps** are made only by us. So a lock on the folder itself (``flock``) is enough. It
leaves nothing behind, and the system releases it when the process ends, also after a
crash. If a folder can't be locked, ``swap`` refuses.

**Durable.** A folder made on the way is synced into its parent; a wave of
deletions ends with a sync of every folder it touched.

**Hadoop's checksums.** Spark's local file system keeps ``.NAME.crc`` beside
``NAME`` and refuses to read ``NAME`` when the two don't match; it accepts a file
without one. So the checksum is removed *before* a replacement, a new object or a
deletion becomes visible: a crash in between can leave an object without a checksum,
but never one with a wrong checksum.

**Partial objects** are hidden files, too, named after their final object, and locked
(``flock``) by their writer. They stay until the object is complete.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from lakeferry.errors import (
    InvalidInput,
    ObjectNotFound,
    StorageUnavailable,
)
from lakeferry.storage.call_counts import Calls
from lakeferry.storage.copy_way import ON_DISK, STREAMED, CopyRoute
from lakeferry.storage.direct_writes import DIRECT_BYTES, write_bytes, write_directly
from lakeferry.storage.local_durability import (
    KeptFile,
    OpenFolder,
    StagedFiles,
    remove_if_empty,
    sync_folder,
)
from lakeferry.storage.local_errors import ABSENT_ERRORS, LocalErrors
from lakeferry.storage.local_leftovers import drop_leftovers
from lakeferry.storage.local_listing import LocalListing
from lakeferry.storage.local_reading import LocalReader, OpenedFile
from lakeferry.storage.object_parts import LocalPartsUpload, drop_local, part_bytes
from lakeferry.storage.store import (
    ObjectInfo,
    OpenedObject,
    Partial,
    PartsUpload,
    Store,
    StoreConfig,
    StreamChunk,
    exactly,
)
from lakeferry.storage.uris import check_object_name, local_path

_OPEN_FOLDERS = 32
_CHUNK_BYTES = 8 * 1024 * 1024
_TIME_STAYS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of a file whose time we can't set: it is another user's, or the file system can't."""


class LocalStore(Store):
    """Files below one folder, which need not exist yet."""

    writes_together = True

    def __init__(self, config: StoreConfig) -> None:
        """Set the folder from ``config``; nothing is accessed before the first verb."""
        self.config = config
        self.calls = Calls()
        self._root = local_path(config.uri)
        self._errors = LocalErrors(self._root, config.uri)
        self._reader = LocalReader(self._errors, self.calls)
        self._listing = LocalListing(self._errors)

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        """Walk the folders in the order of whole names, entering only those in range.

        Links to folders are followed; one that leads back to a folder above it is not.
        """
        self.calls.add("LIST", prefix)
        return self._listing.objects(prefix, start_after, stop_before)

    def folders(self, folder: str) -> Sequence[str]:
        """Read the folder; links to folders aren't among them."""
        self.calls.add("LIST", folder)
        return self._listing.folders(folder)

    def entries(self, prefix: str) -> Iterator[str]:
        """Walk without following links, and yield all that isn't a folder.

        The root, and the folder that the prefix names, are entered even through a link.
        """
        self.calls.add("LIST", prefix)
        return self._listing.entries(prefix)

    def is_occupied(self) -> bool:
        """Return whether a file or a folder exists; an empty folder counts, too."""
        self.calls.add("HEAD", "")
        return os.path.lexists(self._root)

    def head(self, path: str) -> ObjectInfo:
        """Ask the file system; only a regular file is an object."""
        self.calls.add("HEAD", path)
        try:
            found = os.stat(self._checked(path) if path else self._root)
        except OSError as error:
            self._errors.refuse(error, path)
        if not stat.S_ISREG(found.st_mode):
            raise self._errors.no_file(path)
        return ObjectInfo(path, found.st_size, found.st_mtime_ns // 1_000_000)

    def get(self, path: str) -> bytes:
        """Read the whole file."""
        self.calls.add("GET", path)
        return self._reader.read(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Read a part of the file."""
        if start < 0 or length < 0:
            raise InvalidInput("a range can't have a negative start or length")
        self.calls.add("RANGE", path)
        return self._reader.read(path, start, length)

    def open(self, path: str) -> OpenedObject:
        """Open the file, which stays the same file if another one takes its name."""
        self.calls.add("HEAD", path)
        return self._held(path)

    def get_many(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """Read one file after the other; threads would be slower for cached files."""
        return [self.get(path) for path in paths]

    def put(self, path: str, data: bytes) -> None:
        """Write beside the name, sync, and rename over it."""
        self.calls.add("PUT", path)
        self._replace(path, lambda folder: folder.write_named((data,), len(data)))

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        """Write beside the names, sync once, and rename over them."""
        for paths in _in_few_folders(objects):
            with StagedFiles() as staged:
                for path in paths:
                    self.calls.add("PUT", path)
                    with self._errors.writing(path):
                        staged.add(self._checked(path), partial(_write_to, objects[path]))
                self._publish(staged, paths[0])

    def put_stream(self, path: str, chunks: Iterator[StreamChunk], size_bytes: int) -> None:
        """Write chunk by chunk beside the name, sync, and rename over it."""
        self.calls.add("PUT", path)
        whole = exactly(chunks, size_bytes, path)
        self._replace(path, lambda folder: folder.write_named(whole, size_bytes))

    def put_stream_if_absent(
        self, path: str, chunks: Iterator[StreamChunk], size_bytes: int
    ) -> bool:
        """Write chunk by chunk beside the name, sync, and take the name unless it is taken."""
        self.calls.add("PUT_IF_ABSENT", path)
        target = self._checked(path)
        parent, _, name = target.rpartition("/")
        if self._is_taken(path):
            return False
        with self._errors.writing(path), OpenFolder(parent) as folder:
            temporary = folder.write_named(exactly(chunks, size_bytes, path), size_bytes)
            try:
                folder.remove(_checksum_of(name), only_beside_nothing=name)
                if not folder.claim(temporary, name):
                    self._settle(folder, path, existing=name)
                    return False
            finally:
                folder.remove(temporary)
            self._settle(folder, path)
            return True

    def partial(self, path: str) -> Partial | None:
        """Keep a hidden file beside the name, locked while somebody writes it."""
        parent, _, name = self._checked(path).rpartition("/")
        with self._errors.writing(path), OpenFolder(parent) as folder:
            kept = KeptFile.open(folder, name)
        return None if kept is None else _LocalPartial(self, path, kept)

    def copy_within(self, path: str, new_path: str) -> None:
        """Link the file beside the new name and rename over it; where links don't work, copy."""
        self.calls.add("COPY", path)
        source = self._checked(path)
        with self._reader.opened(path) as fd:
            with self._errors.writing(path):
                # Its writer may not have synced it.
                os.fsync(fd)
            self._replace(
                new_path,
                lambda folder: folder.link_named(source) or folder.write_named(_chunks_of(fd)),
            )

    def direct_route(self, source: Store) -> CopyRoute:
        """Return whether both are on local disk."""
        return ON_DISK if isinstance(source, LocalStore) else STREAMED

    def copy_from(
        self, source: Store, path: str, new_path: str, moved: Callable[[int], None]
    ) -> int | None:
        """Let the system copy another file on local disk, and share its blocks if it can."""
        found, name = source.locate(path)
        if not isinstance(found, LocalStore):
            return None
        self.calls.add("COPY", new_path)
        try:
            with found._held(name) as opened:
                self._replace(
                    new_path, lambda folder: folder.fill_named(partial(opened.copy, moved))
                )
                return opened.size_bytes
        except ObjectNotFound:
            return None

    def copy_many_from(
        self, source: Store, objects: Mapping[str, str], most_bytes: int | None = None
    ) -> dict[str, int]:
        """Copy files beside the names, sync once, and rename over them."""
        sizes: dict[str, int] = {}
        for new_paths in _in_few_folders(objects):
            with StagedFiles() as staged:
                for new_path in new_paths:
                    found, name = source.locate(objects[new_path])
                    if not isinstance(found, LocalStore):
                        continue
                    with contextlib.suppress(ObjectNotFound), found._held(name) as opened:
                        if most_bytes is not None and opened.size_bytes > most_bytes:
                            continue
                        self.calls.add("COPY", new_path)
                        with self._errors.writing(new_path):
                            fill = partial(opened.copy, lambda _: None)
                            staged.add(self._checked(new_path), fill)
                        sizes[new_path] = opened.size_bytes
                self._publish(staged, new_paths[0])
        return sizes

    def _publish(self, staged: StagedFiles, path: str) -> None:
        with self._errors.writing(path):
            for folder in staged.publish(_checksum_of):
                self._settle(folder, path)

    def _replace(self, path: str, make: Callable[[OpenFolder], str]) -> None:
        """Rename a file over a name; ``make`` makes it beside that name, hidden and synced."""
        parent, _, name = self._checked(path).rpartition("/")
        with self._errors.writing(path), OpenFolder(parent) as folder:
            temporary = make(folder)
            try:
                folder.remove(_checksum_of(name))
            except BaseException:
                folder.remove(temporary)
                raise
            folder.rename_over(temporary, name)
            self._settle(folder, path)

    def restore_time(self, path: str, modified_ms: int) -> None:
        """Set the file's time of modification; only its owner can, and not everywhere."""
        self.calls.add("UTIME", path)
        time_ns = modified_ms * 1_000_000
        try:
            os.utime(self._checked(path), ns=(time_ns, time_ns))
        except OSError as error:
            if error.errno not in _TIME_STAYS:
                self._errors.refuse(error, path, writing=True)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write without a name, sync, and take the name unless it is taken."""
        self.calls.add("PUT_IF_ABSENT", path)
        target = self._checked(path)
        parent, _, name = target.rpartition("/")
        # Checked early, so that most losers write nothing and remove no checksum.
        if self._is_taken(path):
            return False
        with self._errors.writing(path), OpenFolder(parent) as folder:
            folder.remove(_checksum_of(name), only_beside_nothing=name)
            if not folder.write_and_claim(data, name):
                self._settle(folder, path, existing=name)
                return False
            self._settle(folder, path)
            return True

    def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
        """Compare and rename over the name while the folder is locked."""
        self.calls.add("SWAP", path)
        parent, _, name = self._checked(path).rpartition("/")
        # Checked early, so that most losers make no folder and don't wait for the lock.
        if not self._is(path, expected):
            return False
        with self._errors.writing(path), OpenFolder(parent) as folder, folder.locked():
            if not self._is(path, expected):
                return False
            folder.remove(_checksum_of(name))
            if expected is not None:
                folder.rename_over(folder.write_named((data,)), name)
            elif not folder.write_and_claim(data, name):
                # Another writer put a new object, which needs no lock.
                return False
            self._settle(folder, path)
            return True

    def _is(self, path: str, expected: bytes | None) -> bool:
        """Return whether an object equals ``expected``; ``None`` means that it is missing."""
        if expected is None:
            return not os.path.lexists(self._checked(path))
        try:
            return self._reader.read(path, 0, len(expected) + 1) == expected
        except ObjectNotFound:
            return False

    def delete_many(self, paths: Sequence[str]) -> None:
        """Remove the files and their checksums, then sync each folder once."""
        targets = [self._checked(path) for path in paths]
        touched: set[str] = set()
        for path, target in zip(paths, targets, strict=True):
            self.calls.add("DELETE", path)
            folder, _, name = target.rpartition("/")
            with self._errors.writing(path):
                for gone in (f"{folder}/{_checksum_of(name)}", target):
                    try:
                        os.unlink(gone)
                        touched.add(folder)
                    except OSError as error:
                        if error.errno not in ABSENT_ERRORS:
                            raise
        for folder in touched:
            # If the folder was deleted meanwhile, its entries were too.
            with self._errors.writing(folder), contextlib.suppress(FileNotFoundError):
                sync_folder(folder)

    def prune(self, prefix: str) -> None:
        """Remove empty folders, the innermost first; one that isn't empty, or is locked, stays."""
        top = self._root if not prefix else self._checked(prefix.rstrip("/"))
        for folder, _, files in os.walk(top, topdown=False):
            if not files:
                remove_if_empty(folder)

    def parts_upload(self, path: str, size_bytes: int, *, begin: bool) -> PartsUpload | None:
        """Keep parts as hidden files beside the name."""
        size = part_bytes(size_bytes)
        if size is None:
            return None
        upload = LocalPartsUpload(self, path, size_bytes, size)
        return upload if begin or upload.begun else None

    def drop_parts(self, is_ours: Callable[[str, int], bool]) -> int:
        """Remove parts; each is asked for by its own hidden name and its time."""
        return drop_local(self._root, is_ours)

    def drop_leftovers(self) -> int:
        """Remove the hidden files of processes that have ended."""
        return drop_leftovers(self._root)

    def sign(self, method: str, path: str, expires_s: int) -> str:  # noqa: ARG002
        """Refuse: a file has no URL that another machine could use."""
        raise InvalidInput(
            f"objects in {self.uri} can't have signed URLs",
            cause="they are files on this machine",
            remedy="use 'lakeferry serve', which makes URLs for them",
        )

    def _held(self, path: str) -> OpenedFile:
        return OpenedFile(self._reader, path)

    def _checked(self, path: str) -> str:
        return f"{self._root}/{check_object_name(path)}"

    def _is_taken(self, path: str) -> bool:
        """Return whether a name is taken; then its object survives a crash."""
        target = self._checked(path)
        if not os.path.lexists(target):
            return False
        parent, _, name = target.rpartition("/")
        with self._errors.writing(path), OpenFolder(parent) as folder:
            self._settle(folder, path, existing=name)
        return True

    def _settle(self, folder: OpenFolder, path: str, *, existing: str | None = None) -> None:
        """Sync the folder, and a file that another writer has put there.

        The object has its name already, so after a failure it may exist.
        """
        try:
            if existing is None:
                os.fsync(folder.fd)
            else:
                folder.sync_existing(existing)
        except OSError as error:
            raise StorageUnavailable(
                f"can't tell whether {path!r} in {self.uri} will survive a crash",
                cause=os.strerror(error.errno or errno.EIO),
                path=path,
                outcome_unknown=True,
            ) from error


class _LocalPartial(Partial):
    """The received part of a file."""

    def __init__(self, store: LocalStore, path: str, kept: KeptFile) -> None:
        self._store = store
        self._path = path
        self._kept = kept

    def read(self) -> Iterator[bytes]:
        with self._store._errors.writing(self._path):
            yield from _chunks_of(self._kept.fd)

    def append(self, data: bytes | bytearray) -> None:
        with self._store._errors.writing(self._path):
            self._kept.write(data)

    def publish(self) -> None:
        self._store.calls.add("PUT", self._path)
        with self._store._errors.writing(self._path):
            os.fsync(self._kept.fd)
        self._store._replace(self._path, lambda _: self._kept.name)

    def discard(self) -> None:
        with self._store._errors.writing(self._path):
            os.ftruncate(self._kept.fd, 0)

    def close(self) -> None:
        self._kept.close()


def _chunks_of(fd: int) -> Iterator[bytes]:
    start = 0
    while chunk := os.pread(fd, _CHUNK_BYTES, start):
        yield chunk
        start += len(chunk)


def _write_to(data: bytes, fd: int) -> None:
    if len(data) >= DIRECT_BYTES:
        write_directly(fd, (data,))
    else:
        write_bytes(fd, data)


def _in_few_folders(paths: Iterable[str]) -> Iterator[list[str]]:
    """Divide paths into runs of which all folders can be open at once, in several threads."""
    run: list[str] = []
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        if len(folders) == _OPEN_FOLDERS and folder not in folders:
            yield run
            run, folders = [], set()
        run.append(path)
        folders.add(folder)
    if run:
        yield run


def _checksum_of(name: str) -> str:
    return f".{name}.crc"
