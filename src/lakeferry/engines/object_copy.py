"""Copies one object; used by both engines.

Engines differ in where they run and how they divide the work, but share this module. Everything
here is idempotent: each write of an object has the same name and bytes, and the object appears
completely or not at all. So a task that is repeated, or that still runs after its driver was
killed, does no harm.

A small object takes one GET and one PUT. For a large one several ranges are fetched at a time
and sent to the target in order, as one stream; its digest is computed meanwhile. Each process
copies only a few large objects at a time, so memory is bounded, whatever their sizes: with
:data:`CHUNK_BYTES` of 8 MiB, at most 64 MiB of large and 128 MiB of small objects for each
:class:`Hands`, of which a Spark task has one. A store that gets a stream in parts holds six of
them (16 MiB each, up to 156 GiB) for each of two objects; local disk takes one MiB for each object
that is written. No size in the log is relied on.

Under a limit of bytes per second, all bytes that this machine moves are waited for before they are
read, in pieces of a second's worth. What the store copies itself isn't limited. Local files then
pass through this process too, as the system's own copy can't be slowed down.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Self, TypeVar

from lakeferry.engines.file_passes import FilePasses
from lakeferry.errors import (
    CorruptLog,
    InvalidInput,
    ObjectNotFound,
    StorageUnavailable,
    UnsupportedFeature,
)
from lakeferry.log import file_identity
from lakeferry.storage import OpenedObject, Store, StoreConfig
from lakeferry.storage.byte_rate import ByteRate
from lakeferry.storage.copy_way import CopyWay
from lakeferry.storage.store import REPLACED, StreamChunk
from lakeferry.storage.uris import (
    container_and_name,
    decode_name,
    is_absolute_uri,
    leads_outside,
    relative_name,
    resolve_path,
)

SMALL_COPY_BYTES = 8 * 1024 * 1024
"""Objects up to this size are read in one request."""
CHUNK_BYTES = 8 * 1024 * 1024
CHUNKS_AT_ONCE = 4
_LARGE_AT_ONCE = 2
_LARGE_RANGES = _LARGE_AT_ONCE * CHUNKS_AT_ONCE
OBJECTS_AT_ONCE = 16


OpenConfig = Callable[[StoreConfig], Store]
_Item = TypeVar("_Item")
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Copied:
    """One object that was copied; ``by_store`` if its bytes didn't pass through this process."""

    size_bytes: int
    by_store: bool = False


def small_bytes(rate: ByteRate | None) -> int:
    """Return up to which size objects are moved in one piece; larger ones report progress."""
    return SMALL_COPY_BYTES if rate is None else min(SMALL_COPY_BYTES, rate.piece_bytes)


class Gone(Exception):
    """The source doesn't have the object. ``ObjectNotFound`` may come from the target, too."""


class CopyPlaces:
    """The stores of the objects that a table's log names, inside the table or elsewhere.

    Safe to use from several threads.
    """

    def __init__(self, table: StoreConfig, open_store: OpenConfig) -> None:
        """Open the table's own store; others are opened when needed, with its options."""
        self.table = open_store(table)
        self._options = table.options
        self._open = open_store
        self._elsewhere: dict[str, Store] = {}
        self._lock = threading.Lock()

    def find(self, path: str) -> tuple[Store, str]:
        """Return the store that has the object at a path of the log, and its name there."""
        if not is_absolute_uri(path) and not leads_outside(
            file_identity.identity(path, self.table.uri)
        ):
            return self.table, name_of(path, self.table.uri)
        uri = self.uri(path)
        name = relative_name(self.table.uri, uri)
        if name is not None:
            return self.table, name
        container, name = container_and_name(uri)
        with self._lock:
            if container not in self._elsewhere:
                self._elsewhere[container] = self._open(StoreConfig(container, self._options))
            return self._elsewhere[container], name

    def uri(self, path: str) -> str:
        """Return the absolute URI of the object at a path of the log."""
        root = self.table.uri
        try:
            return resolve_path(root, file_identity.identity(path, root))
        except InvalidInput as bad:
            raise _nowhere(path) from bad


def name_of(path: str, root: str) -> str:
    """Return an object's name in its store, given a relative path of a log.

    Raises ``UnsupportedFeature`` for a path that leads out of the table's folder: we never
    replace such a file.
    """
    spelled = file_identity.identity(path, root)
    if leads_outside(spelled):
        raise UnsupportedFeature(
            "the table can't be rewritten",
            cause=f"it has a file outside of its folder, by a relative path: {path!r}",
            remedy="write that file's rows into the table with an OPTIMIZE or a REORG TABLE of "
            "your engine, and run the same command again",
            path=path,
        )
    try:
        return decode_name(spelled)
    except InvalidInput as bad:
        raise _nowhere(path) from bad


def _nowhere(path: str) -> CorruptLog:
    return CorruptLog(
        "the log has a path that can't be the path of a file", cause=repr(path), path=path
    )


class Hands:
    """Works on a bounded number of objects at a time.

    With ``parallel=1`` the calling thread does all the work, as simulations need: there, each
    call of a store is one turn.
    """

    def __init__(
        self,
        parallel: int = OBJECTS_AT_ONCE,
        moved: Callable[[int], None] = lambda _: None,
        rate: ByteRate | None = None,
    ) -> None:
        """Process ``parallel`` objects at a time; threads live as long as the context.

        ``moved`` is called with the size of each piece of a large object that was copied or
        read for a digest, from any thread. A large log file that is rewritten counts once,
        over all three passes. ``rate`` limits the bytes that pass through this process.
        """
        self.parallel = parallel
        self.small_bytes = small_bytes(rate)
        self._moved = moved
        self._rate = rate
        self._chunk_bytes = CHUNK_BYTES if rate is None else min(CHUNK_BYTES, rate.piece_bytes)
        self._large = threading.Semaphore(_LARGE_AT_ONCE)
        self._objects: ThreadPoolExecutor | None = None
        self._fetches: ThreadPoolExecutor | None = None
        self._stack = ExitStack()
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._ended.clear()
        if self.parallel > 1:
            self._objects = self._pool(self.parallel, "lakeferry-object")
            self._fetches = self._pool(max(self.parallel, _LARGE_RANGES), "lakeferry-fetch")
        return self

    def _pool(self, width: int, name: str) -> ThreadPoolExecutor:
        pool = ThreadPoolExecutor(width, thread_name_prefix=name)
        self._stack.callback(pool.shutdown, cancel_futures=True)
        return pool

    def __exit__(self, *_: object) -> None:
        # After a failure, or Ctrl-C, a store may still copy a large object, which takes hours.
        self._ended.set()
        self._stack.close()
        self._objects = self._fetches = None

    def each(self, act: Callable[[_Item], Done], items: Iterable[_Item]) -> Iterator[Done]:
        """Yield the result of ``act`` for each item, in order; the first failure ends it."""
        return _ahead(self._objects, 4 * self.parallel, act, items)

    def copy(
        self, source: Store, name: str, target: Store, new_name: str, size_bytes: int | None
    ) -> Copied:
        """Copy one object; ``size_bytes`` is its size in the log, if known.

        The log may be wrong: the object is copied as it is. Raises :class:`Gone`.
        """
        if not self._is_limited(source, target):
            pieces = _Pieces(self._moved, self._ended, self.small_bytes)
            size = target.copy_from(source, name, new_name, pieces.add)
            if size is not None:
                pieces.end(size)
                return Copied(size, by_store=True)
            pieces.take_back()
        if size_bytes is None or size_bytes <= self.small_bytes:
            data = self.fetch_small(source, name, size_bytes)
            if data is not None:
                target.put(new_name, data)
                return Copied(len(data))
        with self._large, _asked(lambda: source.open(name)) as opened:
            target.put_stream(new_name, self._pieces(opened, self._moved), opened.size_bytes)
            return Copied(opened.size_bytes)

    def _is_limited(self, source: Store, target: Store) -> bool:
        """Return True if a limit is for local files that the system could copy."""
        return self._rate is not None and target.copy_route(source).small is CopyWay.SYSTEM

    def _take(self, size_bytes: int) -> None:
        """Wait until that many bytes may be moved; raise if nobody waits for them any more."""
        if self._rate is None or size_bytes <= 0:
            return
        if not self._rate.take(size_bytes, self._ended):
            raise CancelledError

    def copy_together(
        self,
        source: Store,
        target: Store,
        objects: Mapping[str, str],
        sizes: Mapping[str, int],
    ) -> dict[str, Copied]:
        """Copy small objects by few calls, given their names by their new names.

        ``sizes`` are those in the log, by the new names. Returns the objects that were copied; the
        others have to be copied one by one: they are missing, or larger than the log says.
        """
        limited = self._is_limited(source, target)
        most_bytes = self.small_bytes
        done = {} if limited else target.copy_many_from(source, objects, most_bytes)
        copied = {name: Copied(size, by_store=True) for name, size in done.items()}
        # What one store has but doesn't copy is missing, or another place's.
        if copied:
            return copied
        self._take(sum(sizes[name] for name in objects))

        def fetch(name: str) -> bytes | None:
            # One byte more shows that the object is larger.
            try:
                data = source.get_range(objects[name], 0, sizes[name] + 1)
            except ObjectNotFound:
                return None
            return data if len(data) <= sizes[name] else None

        names = list(objects)
        # One pool for all groups: else each would make its own connections to the source.
        found = zip(names, _ahead(self._fetches, len(names), fetch, names), strict=True)
        fetched = {name: data for name, data in found if data is not None}
        target.put_many(fetched)
        return {name: Copied(len(data)) for name, data in fetched.items()}

    def digest_of(
        self, source: Store, name: str, size_bytes: int | None, *, told: bool = True
    ) -> tuple[int, bytes] | None:
        """Return the size and the SHA-256 of an object; ``None`` if it is missing.

        Unlike :meth:`fingerprint` it reports the bytes of small objects, too, or none at all.
        """
        moved = self._moved if told else _unmoved
        try:
            size, digest = self.fingerprint(source, name, size_bytes, hashlib.sha256, moved)
        except Gone:
            return None
        if size <= self.small_bytes:
            moved(size)
        return size, digest

    def fingerprint(
        self,
        source: Store,
        name: str,
        size_bytes: int | None,
        algorithm: Callable[[], hashlib._Hash],
        moved: Callable[[int], None] | None = None,
    ) -> tuple[int, bytes]:
        """Return the size and the digest of an object of about that size. Raises :class:`Gone`.

        ``moved`` is called with the sizes of a large object's pieces.
        """
        digest = algorithm()
        if size_bytes is None or size_bytes <= self.small_bytes:
            data = self.fetch_small(source, name, size_bytes)
            if data is not None:
                digest.update(data)
                return len(data), digest.digest()
        with self._large, _asked(lambda: source.open(name)) as opened:
            for piece in self._pieces(opened, moved or self._moved):
                digest.update(piece)
            return opened.size_bytes, digest.digest()

    def _pieces(self, opened: OpenedObject, moved: Callable[[int], None]) -> Iterator[StreamChunk]:
        """Yield an object's bytes in order, fetched a few ranges ahead; ``moved`` gets their sizes.

        Fails at the end at the latest if another object has taken the name meanwhile.
        """

        def fetch(start: int) -> StreamChunk:
            length = min(self._chunk_bytes, opened.size_bytes - start)
            self._take(length)
            return _asked(lambda: opened.read(start, length))

        starts = range(0, opened.size_bytes, self._chunk_bytes)
        for piece in _ahead(self._fetches, CHUNKS_AT_ONCE, fetch, starts):
            moved(len(piece))
            yield piece
        _asked(opened.check)

    @contextmanager
    def held(
        self,
        source: Store,
        name: str,
        size_bytes: int | None,
        passes: int,
        began: Callable[[int], None] = lambda _: None,
    ) -> Iterator[tuple[bytes, FilePasses]]:
        """Yield a whole object of about that size; few large ones are in memory at a time.

        To fetch it is the first of several passes; the caller reports the others to the second
        value. ``began`` is called with the object's size before a piece is reported.
        """
        if size_bytes is None or size_bytes <= self.small_bytes:
            data = self.fetch_small(source, name, size_bytes)
            if data is not None:
                began(len(data))
                yield data, FilePasses(lambda _: None, len(data), passes)
                return
        with self._large:
            with _asked(lambda: source.open(name)) as opened:
                began(opened.size_bytes)
                counted = FilePasses(self._moved, opened.size_bytes, passes)
                pieces = self._pieces(opened, lambda _: None)
                whole = io.BytesIO()
                try:
                    for piece in counted.over(0, pieces, opened.size_bytes):
                        whole.write(piece)
                    data = whole.getvalue()
                except StorageUnavailable as failed:
                    if failed.fields.get("reason") != REPLACED:
                        raise
                    # An engine may replace a checkpoint by an equal one.
                    data = _asked(lambda: source.get(name))
                    self._take(len(data))
            yield data, counted

    def fetch_small(self, source: Store, name: str, size_bytes: int | None) -> bytes | None:
        """Fetch an object in one request; ``None`` if it isn't small, whatever a log says."""
        said = size_bytes or 0
        self._take(said)
        data = _asked(lambda: source.get_range(name, 0, self.small_bytes + 1))
        self._take(len(data) - said)
        return data if len(data) <= self.small_bytes else None


def _unmoved(size_bytes: int) -> None:
    """Report nothing."""


class _Pieces:
    """Reports the pieces of one object if it is large; safe to use from several threads.

    Raises ``CancelledError`` instead when nobody waits for the object any more.
    """

    def __init__(
        self, moved: Callable[[int], None], ended: threading.Event, small_bytes: int
    ) -> None:
        self._moved = moved
        self._ended = ended
        self._small_bytes = small_bytes
        self._lock = threading.Lock()
        self._bytes = self._told_bytes = 0

    def add(self, size_bytes: int) -> None:
        """Count a piece."""
        if self._ended.is_set():
            raise CancelledError
        with self._lock:
            self._bytes += size_bytes
            if self._bytes > self._small_bytes:
                self._moved(self._bytes - self._told_bytes)
                self._told_bytes = self._bytes

    def end(self, size_bytes: int) -> None:
        """Count what nobody has reported of a complete object."""
        if size_bytes != self._bytes:
            self.add(size_bytes - self._bytes)

    def take_back(self) -> None:
        """Report that all pieces have to be copied again."""
        if self._told_bytes:
            self._moved(-self._told_bytes)


def _asked(ask: Callable[[], Done]) -> Done:
    try:
        return ask()
    except ObjectNotFound as gone:
        raise Gone(str(gone)) from gone


def _ahead(
    pool: ThreadPoolExecutor | None,
    ahead: int,
    act: Callable[[_Item], Done],
    items: Iterable[_Item],
) -> Iterator[Done]:
    if pool is None:
        yield from map(act, items)
        return
    waiting: deque[Future[Done]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(act, item))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for each in waiting:
            each.cancel()
