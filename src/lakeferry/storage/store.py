"""The interface ``Store``: a root, and named objects below it.

A :class:`Store` is synchronous. Verbs that take many names (``get_many``,
``delete_many``) hide their concurrency inside, so that callers stay ordinary
sequential code and every call is a point where a simulation can switch actors.

Names are relative to the root, with ``/`` as separator and no leading slash:
``_delta_log/00000000000000000000.json``. They are not percent-encoded;
:mod:`lakeferry.storage.uris` decodes URIs.

Invariants that every implementation keeps:

* listings are sorted by the UTF-8 bytes of the name;
* ``put_if_absent`` has exactly one winner, also against other programs that write;
* ``swap`` has exactly one winner, also against other processes that swap;
* an object appears whole or not at all;
* confirmed writes survive a crash of the machine, as far as the store can promise it;
* every failure of the store is a :class:`~lakeferry.errors.StorageError`, raised from
  a listing when it is iterated; a failure after which the request may have been
  carried out has ``outcome_unknown=True`` in its fields. A name that no object can
  have is :class:`~lakeferry.errors.InvalidInput`.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeAlias

from lakeferry.errors import ObjectNotFound, StorageUnavailable
from lakeferry.storage.call_counts import Calls
from lakeferry.storage.copy_way import STREAMED, CopyRoute
from lakeferry.storage.credential_renewal import CredentialSource

StreamChunk: TypeAlias = bytes | memoryview
"""Some bytes of an object that is read or written piece by piece."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object of a listing: its name, size and time."""

    path: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Serializable configuration of a store, for executors too, which look up credentials again.

    ``uri`` is the root, normalised. ``options`` are those that the user gave
    explicitly; everything else comes from the environment of the process that
    opens the store.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    aliases: tuple[tuple[str, str], ...] | None = None
    """For a table whose catalog decides about its commits: names in its log that stand for
    other objects, with the names of those objects. ``None`` for all other places."""
    renewal: CredentialSource | None = field(default=None, repr=False)
    """Asks a catalog for credentials; the user's own options replace them."""


@dataclass(frozen=True, slots=True)
class SignedPut:
    """A URL for a ``PUT`` of an object, and the headers that the client has to send."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()


class PartsUpload(ABC):
    """The upload of an object in numbered parts, each with its own URL.

    All parts except the last have ``part_bytes`` bytes; the first is number 1.
    """

    part_bytes: int

    @abstractmethod
    def missing(self) -> list[int]:
        """Return the numbers of the parts that haven't arrived."""

    @abstractmethod
    def sign(self, numbers: Sequence[int], expires_s: int) -> tuple[str, builtins.list[str]]:
        """Return a URL, and for each part the text to append to its query.

        Raises ``InvalidInput`` if the store has no such URLs; then use :meth:`put`.
        """

    @abstractmethod
    def put(self, number: int, chunks: Iterator[StreamChunk], size_bytes: int) -> None:
        """Write a part of ``size_bytes`` bytes, replacing an earlier one."""

    @abstractmethod
    def join(self, checked: Callable[[Iterator[bytes]], Iterator[bytes]]) -> None:
        """Make one object of the parts, none of which may be missing; never replace an object.

        If the bytes are read here, they pass through ``checked``; if that raises, neither the
        object nor the parts are kept.
        """


class OpenedObject(ABC):
    """An object that is read in several requests, all of which see the same bytes."""

    size_bytes: int

    @abstractmethod
    def read(self, start: int, length: int) -> StreamChunk:
        """Return ``length`` bytes from ``start``; safe to call from several threads.

        Raises ``StorageUnavailable`` if another object has the name by now.
        """

    @abstractmethod
    def check(self) -> None:
        """Raise as :meth:`read` does if earlier reads may have seen another object."""

    def close(self) -> None:  # noqa: B027
        """Release what reading needs."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Partial(ABC):
    """A partly received object, kept where no listing shows it.

    It has one writer at a time. It stays after the writer has gone, and the next download of
    the same object resumes from it. Check its content before :meth:`publish`, as some bytes
    may be from an earlier attempt.
    """

    @abstractmethod
    def read(self) -> Iterator[bytes]:
        """Yield the bytes received so far, in chunks."""

    @abstractmethod
    def append(self, data: bytes | bytearray) -> None:
        """Add bytes."""

    @abstractmethod
    def publish(self) -> None:
        """Turn the partial object into an object with its name, as :meth:`Store.put` does."""

    @abstractmethod
    def discard(self) -> None:
        """Delete the bytes and start with none."""

    @abstractmethod
    def close(self) -> None:
        """Release it and keep its bytes for the next writer."""


AMAZON_S3 = "Amazon S3"
"""The service of Amazon's own S3, whose prices are known."""


class Store(ABC):
    """Objects below one root. The module's docstring lists the invariants."""

    config: StoreConfig
    calls: Calls
    writes_together: bool = False
    """Whether many small objects are written much faster by one call than one by one."""
    service: str | None = None
    """Name of the service that answers (and charges for) each request; ``None`` for local disk."""
    lists_ranges: bool = False
    """Whether a listing between two names asks for little more than what is between them."""

    @property
    def uri(self) -> str:
        """The root as a normalised URI without a trailing slash."""
        return self.config.uri

    @property
    def asks_catalog(self) -> bool:
        """Whether the names in ``_delta_log`` are those that the table's catalog has accepted."""
        return False

    @abstractmethod
    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        """Yield every object whose name begins with ``prefix``, at any depth, sorted.

        ``start_after`` and ``stop_before`` are whole names that need not exist;
        names up to and including the first, and from the second on, are left
        out, and pages beyond ``stop_before`` are not asked for. Nothing below
        the prefix is an empty iteration, not an error; a bucket that does not
        exist is :class:`~lakeferry.errors.ObjectNotFound`.
        """

    def folders(self, folder: str) -> Sequence[str] | None:  # noqa: ARG002
        """Return the folders directly below a folder, whose names, too, end with a slash.

        The empty name is the root. Returns ``None`` if that would cost as much as :meth:`list`.
        """
        return None

    def entries(self, prefix: str) -> Iterator[str]:
        """Yield all names that must be deleted to leave ``prefix`` empty, sorted.

        On a file system a link is an entry itself, and its destination isn't one. Entries
        that aren't objects, such as special files, are included.
        """
        return (found.path for found in self.list(prefix))

    def is_occupied(self) -> bool:
        """Return whether the root has objects below it, or is an object itself."""
        return next(self.list(""), None) is not None or self.exists("")

    def exists(self, path: str) -> bool:
        """Return whether an object has that name; costs one :meth:`head`."""
        try:
            self.head(path)
        except ObjectNotFound:
            return False
        return True

    @abstractmethod
    def head(self, path: str) -> ObjectInfo:
        """Return name, size and time of one object, or raise ``ObjectNotFound``.

        The empty name asks for an object at the root itself: a file, not a folder.
        """

    @abstractmethod
    def get(self, path: str) -> bytes:
        """Return the whole object, or raise ``ObjectNotFound``."""

    @abstractmethod
    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start``; fewer only where the object ends."""

    def open(self, path: str) -> OpenedObject:
        """Open an object to read it in several requests; ``ObjectNotFound`` if it is missing.

        This default implementation compares size and time at the end with those at the beginning.
        """
        return _Compared(self, path)

    @abstractmethod
    def get_many(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """Return whole objects in the order asked for, fetched concurrently."""

    def learn(self, path: str, uri: str) -> None:  # noqa: B027
        """Remember the address of an object's bytes, which may save the store a request."""

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write an object, atomically replacing an older one."""

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        """Write small objects as :meth:`put` does, in any order.

        When it returns, all are written; when it raises, some of them may be.
        """
        for path, data in objects.items():
            self.put(path, data)

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write an object unless the name is taken; return whether it was written.

        ``False`` means that the name is taken *now*, by an object that survives a crash,
        whoever wrote it. If the underlying client retries by itself, the existing object
        may be our own: callers that need to know compare the bytes.
        """

    @abstractmethod
    def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
        """Replace a small object atomically if it equals ``expected``; return whether it did.

        ``None`` expects that the name isn't taken. ``False`` means that the object is
        different *now*, or missing. As with :meth:`put_if_absent`, if the underlying client
        retries by itself, it may be our own: callers that need to know compare the bytes.
        A store that can't promise one winner raises an error.
        """

    @abstractmethod
    def put_stream(self, path: str, chunks: Iterator[StreamChunk], size_bytes: int) -> None:
        """Write an object of ``size_bytes`` bytes from chunks, atomically replacing an older one.

        A stream that fails, or has another length, changes nothing.
        """

    def put_stream_if_absent(
        self, path: str, chunks: Iterator[StreamChunk], size_bytes: int
    ) -> bool:
        """Write as :meth:`put_stream` does, unless the name is taken; return whether it wrote.

        If the name is taken at the start, the stream isn't read. As with
        :meth:`put_if_absent`, the existing object may be our own. This default
        implementation checks before it writes, so that two concurrent calls may both win;
        stores that can do it atomically override it.
        """
        if self.exists(path):
            return False
        self.put_stream(path, chunks, size_bytes)
        return True

    def partial(self, path: str) -> Partial | None:  # noqa: ARG002
        """Open a partly received object, to resume or to begin its download.

        Returns ``None`` if another process is writing it, or if the store has no partial
        objects; :meth:`put_stream` always works.
        """
        return None

    @abstractmethod
    def copy_within(self, path: str, new_path: str) -> None:
        """Copy an object to another name, atomically and inside the store.

        An object with the new name is replaced. Raises ``ObjectNotFound`` if ``path``
        doesn't exist; then nothing is written.
        """

    def locate(self, path: str) -> tuple[Store, str]:
        """Return the store that really has an object, and the object's name there."""
        return self, path

    def copy_route(self, source: Store) -> CopyRoute:
        """Return how :meth:`copy_from` gets objects here from another store; sends no request."""
        here, there = self.locate("")[0], source.locate("")[0]
        return here.direct_route(there)

    def direct_route(self, source: Store) -> CopyRoute:  # noqa: ARG002
        """Return the same for stores that both have their objects themselves."""
        return STREAMED

    def copy_from(
        self,
        source: Store,  # noqa: ARG002
        path: str,  # noqa: ARG002
        new_path: str,  # noqa: ARG002
        moved: Callable[[int], None],  # noqa: ARG002
    ) -> int | None:
        """Copy another store's object without reading it here, and return its size.

        An object with the new name is replaced, atomically, by the whole object. ``moved``
        receives the sizes of the pieces of a large object, from any thread. Returns ``None`` if
        the two stores can't do that with this object, or if the object is missing; then nothing
        was written, and the caller reads and writes the object.
        """
        return None

    def copy_many_from(
        self,
        source: Store,  # noqa: ARG002
        objects: Mapping[str, str],  # noqa: ARG002
        most_bytes: int | None = None,  # noqa: ARG002
    ) -> dict[str, int]:
        """Copy small objects as :meth:`copy_from` does, in any order.

        ``objects`` maps new names to names in the other store. Returns the sizes of those that
        were copied by their new names; an object of more than ``most_bytes`` isn't. When it
        raises, some of them may have been copied.
        """
        return {}

    def restore_time(self, path: str, modified_ms: int) -> None:  # noqa: B027
        """Set a copy's modification time to that of the original, if the store can.

        Object stores can't; there the object keeps the time of the copy.
        """

    @abstractmethod
    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete objects in any order, concurrently; a missing name is no error.

        One call is one wave: when it returns, all are deleted; when it raises, some
        of them may be.
        """

    def prune(self, prefix: str) -> None:  # noqa: B027
        """Remove empty folders at and below ``prefix``, if the store has folders.

        This only tidies up: an empty folder is no object, and a writer that needs it
        creates it again.
        """

    @abstractmethod
    def sign(self, method: str, path: str, expires_s: int) -> str:
        """Return a URL that allows a ``GET`` or ``PUT`` of an object for ``expires_s`` seconds."""

    def sign_put(self, path: str, size_bytes: int, expires_s: int) -> SignedPut:  # noqa: ARG002
        """Return a URL for a ``PUT`` of an object of that size, if possible only if absent.

        Not every store can enforce size and absence, so the caller has to check the object.
        """
        return SignedPut(self.sign("PUT", path, expires_s))

    def parts_upload(
        self,
        path: str,  # noqa: ARG002
        size_bytes: int,  # noqa: ARG002
        *,
        begin: bool,  # noqa: ARG002
    ) -> PartsUpload | None:
        """Return the unfinished upload in parts of an object, or ``begin`` one.

        Returns ``None`` if there is none, or if the store has no uploads in parts.
        """
        return None

    def drop_parts(self, is_ours: Callable[[str, int], bool]) -> int:  # noqa: ARG002
        """Delete uploads in parts that nobody will complete; return their number.

        ``is_ours`` gets each upload's name and the time when it was begun: other programs may
        upload to the same place.
        """
        return 0

    def drop_leftovers(self) -> int:
        """Delete what writers that were killed have left; return the number of files.

        Nothing of a running writer is touched. Partly received objects (:meth:`partial`) go, too,
        so call it when no download is to be resumed.
        """
        return 0


REPLACED = "replaced"
"""The reason in the error of an object that was replaced while it was read."""


class _Compared(OpenedObject):
    """Compares an object's size and time before and after."""

    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self._before = store.head(path)
        self.size_bytes = self._before.size_bytes

    def read(self, start: int, length: int) -> StreamChunk:
        return self._store.get_range(self._before.path, start, length)

    def check(self) -> None:
        if self._store.head(self._before.path) != self._before:
            raise replaced_meanwhile(self._store.uri, self._before.path)


def replaced_meanwhile(uri: str, path: str) -> StorageUnavailable:
    """Return the error of an object that was replaced while it was read."""
    return StorageUnavailable(
        f"can't read {path!r} in {uri}",
        cause="another object took its name meanwhile",
        remedy="try again; if it happens again, find out which program replaces this file",
        path=path,
        uri=uri,
        reason=REPLACED,
        outcome_unknown=False,
    )


def in_order(info: ObjectInfo) -> bytes:
    """Return the sort key of listings."""
    return info.path.encode()


def within(path: str, prefix: str, start_after: str | None, stop_before: str | None) -> bool:
    """Return whether a listing with these bounds has a name."""
    name = path.encode()
    return (
        path.startswith(prefix)
        and (start_after is None or name > start_after.encode())
        and (stop_before is None or name < stop_before.encode())
    )


def exactly(chunks: Iterable[StreamChunk], size_bytes: int, path: str) -> Iterator[StreamChunk]:
    """Yield the chunks of a stream; raise if its length isn't ``size_bytes``."""
    seen = 0
    for chunk in chunks:
        seen += len(chunk)
        if seen > size_bytes:
            break
        yield chunk
    if seen != size_bytes:
        raise StorageUnavailable(
            f"can't write {path!r}",
            cause=f"{size_bytes} bytes were expected, but "
            + ("more came" if seen > size_bytes else f"only {seen} came"),
            remedy="try again: the object that is read may have been replaced meanwhile",
            path=path,
            outcome_unknown=False,
        )
