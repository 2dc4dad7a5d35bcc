"""The interface ``Store``: a root, and named objects below it.

A :class:`Store` is synchronous. Verbs that take many names (``get_many``,
``delete_many``) hide their concurrency inside, so that callers stay ordinary
sequential code and every call is a point where a simulation can hand over.

Names are decoded, relative to the root, separated by ``/``, without a leading
one: ``_delta_log/00000000000000000000.json``. What a URI's percent-encoding
means is settled before a name gets here (:mod:`lakeferry.storage.uris`).

Invariants that every implementation keeps:

* listings are sorted by the UTF-8 bytes of the name;
* ``put_if_absent`` has exactly one winner, whoever else writes;
* ``swap`` has exactly one winner, whoever else swaps;
* an object appears whole or not at all;
* what was confirmed survives a crash of the machine as far as the store can promise it;
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

from lakeferry.errors import ObjectNotFound, StorageUnavailable
from lakeferry.storage.calls import Calls


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing says about one object."""

    path: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """All it takes to make a store anywhere, an executor included, but no secret found anew there.

    ``uri`` is the root, normalised. ``options`` are those that the user gave
    explicitly; everything else comes from the environment of the process that
    opens the store.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class SignedPut:
    """A URL to put an object to, and the headers that whoever uses it has to send along."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()


class PartsUpload(ABC):
    """An object that arrives in numbered parts, each at a URL of its own.

    All parts have ``part_bytes``, but for the last one; the first is number 1.
    """

    part_bytes: int

    @abstractmethod
    def missing(self) -> list[int]:
        """Return the numbers of the parts that haven't arrived."""

    @abstractmethod
    def sign(self, numbers: Sequence[int], expires_s: int) -> tuple[str, builtins.list[str]]:
        """Return a URL, and for each part what is to be added to its query to put it there.

        ``InvalidInput`` where there are no such URLs, and :meth:`put` is what there is.
        """

    @abstractmethod
    def put(self, number: int, chunks: Iterator[bytes], size_bytes: int) -> None:
        """Write a part of that many bytes, in place of what was there."""

    @abstractmethod
    def join(self, checked: Callable[[Iterator[bytes]], Iterator[bytes]]) -> None:
        """Make one object of the parts, none of which was :meth:`missing`; never replace one.

        Where the bytes come by here, they go through ``checked``; what that raises leaves no
        object, and no parts.
        """


class Partial(ABC):
    """What has arrived of an object so far, kept where no listing shows it.

    It has one writer at a time, and outlives it: whoever wants the same object next goes on
    where it was left. What it holds is to be checked before :meth:`publish`, for it may be
    of an earlier time.
    """

    @abstractmethod
    def read(self) -> Iterator[bytes]:
        """Yield what is there, in chunks."""

    @abstractmethod
    def append(self, data: bytes | bytearray) -> None:
        """Add bytes."""

    @abstractmethod
    def publish(self) -> None:
        """Give the object its name, as :meth:`Store.put` would; then it is no partial one."""

    @abstractmethod
    def discard(self) -> None:
        """Begin anew, with nothing."""

    @abstractmethod
    def close(self) -> None:
        """Leave it as it is to whoever comes next."""


class Store(ABC):
    """Objects below one root. See the module for what every implementation promises."""

    config: StoreConfig
    calls: Calls

    @property
    def uri(self) -> str:
        """The root as a normalised URI without a trailing slash."""
        return self.config.uri

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

    def entries(self, prefix: str) -> Iterator[str]:
        """Yield the names whose deletion leaves nothing below ``prefix``, sorted.

        For whoever empties a place. Where there are links, a link is an entry itself,
        and what it leads to isn't one; what is there and is no object is an entry, too.
        """
        return (found.path for found in self.list(prefix))

    def is_occupied(self) -> bool:
        """Tell whether anything is at the root: objects below it, or the root as an object."""
        return next(self.list(""), None) is not None or self.exists("")

    def exists(self, path: str) -> bool:
        """Tell whether there is an object of that name; costs one :meth:`head`."""
        try:
            self.head(path)
        except ObjectNotFound:
            return False
        return True

    @abstractmethod
    def head(self, path: str) -> ObjectInfo:
        """Return what is known of one object, or raise ``ObjectNotFound``.

        The empty name asks for an object at the root itself: a file, not a folder.
        """

    @abstractmethod
    def get(self, path: str) -> bytes:
        """Return the whole object, or raise ``ObjectNotFound``."""

    @abstractmethod
    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return ``length`` bytes from ``start``; fewer only where the object ends."""

    @abstractmethod
    def get_many(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """Return whole objects in the order asked for, fetched concurrently."""

    def learn(self, path: str, uri: str) -> None:  # noqa: B027
        """Be told where the bytes of an object are, which saves a store that would have to ask."""

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write an object, replacing what was there in one step."""

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        """Write small objects as :meth:`put` does, in any order; when it returns, all are there.

        When it raises, any part of them may be.
        """
        for path, data in objects.items():
            self.put(path, data)

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write an object unless the name is taken; say whether it was written.

        ``False`` means that the name is taken *now*. Where the client below
        retries by itself, the object that is there may be our own: whoever needs
        to know compares the bytes.
        """

    @abstractmethod
    def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
        """Replace a small object if it is ``expected``, in one step; say whether it was replaced.

        ``None`` expects that the name isn't taken. ``False`` means that something else is
        there *now*, or nothing. As with :meth:`put_if_absent`, where the client below
        retries by itself, that may be our own: whoever needs to know compares the bytes.
        A store that can't promise one winner refuses.
        """

    @abstractmethod
    def put_stream(self, path: str, chunks: Iterator[bytes], size_bytes: int) -> None:
        """Write an object of that many bytes from its chunks, replacing what was there in one step.

        A stream that fails, or that ends early or late, leaves the name as it was.
        """

    def put_stream_if_absent(self, path: str, chunks: Iterator[bytes], size_bytes: int) -> bool:
        """Write as :meth:`put_stream` does, unless the name is taken; say whether it was written.

        Where the name is taken from the beginning the stream isn't read. As with
        :meth:`put_if_absent`, what is there may be our own. This way of doing it looks
        before it writes, so that of two who do it at once both may win: stores that know
        better have a better one.
        """
        if self.exists(path):
            return False
        self.put_stream(path, chunks, size_bytes)
        return True

    def partial(self, path: str) -> Partial | None:  # noqa: ARG002
        """Return what there is of an object that is being received, to go on with it.

        ``None`` where somebody else is at it, or where the store can't keep such a thing:
        :meth:`put_stream` always works.
        """
        return None

    @abstractmethod
    def copy_within(self, path: str, new_path: str) -> None:
        """Give an object's bytes a second name, in one step and by the store itself.

        What has the new name is replaced. Raises ``ObjectNotFound`` where the
        first name is gone: nothing appears under the second then.
        """

    def restore_time(self, path: str, modified_ms: int) -> None:  # noqa: B027
        """Give an object the time of the one that it is a copy of, where the store can be told.

        Object stores can't; there the time stays that of the copy.
        """

    @abstractmethod
    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete objects in any order, concurrently; a name that isn't there is no error.

        One call is one wave: when it returns, all are gone; when it raises, any
        part of them may be.
        """

    def prune(self, prefix: str) -> None:  # noqa: B027
        """Take away the folders at and below ``prefix`` that hold nothing, where there are folders.

        For a name's last sake only: an empty folder is no object, and a writer who
        is about to use it makes it again.
        """

    @abstractmethod
    def sign(self, method: str, path: str, expires_s: int) -> str:
        """Return a URL with which whoever has it may ``GET`` or ``PUT`` that object for a while."""

    def sign_put(self, path: str, size_bytes: int, expires_s: int) -> SignedPut:  # noqa: ARG002
        """Return a URL to put an object of that size to, where the store can, and only if absent.

        What a store can't bind isn't bound: an object that is there has to be looked at.
        """
        return SignedPut(self.sign("PUT", path, expires_s))

    def parts_upload(
        self,
        path: str,  # noqa: ARG002
        size_bytes: int,  # noqa: ARG002
        *,
        begin: bool,  # noqa: ARG002
    ) -> PartsUpload | None:
        """Return the upload in parts that is under way for an object, or ``begin`` one.

        ``None`` where there is none, or where objects can't be put in parts by others.
        """
        return None

    def drop_parts(self, before_ms: int) -> int:  # noqa: ARG002
        """Drop the uploads in parts that were begun before a time, and say how many those were."""
        return 0


def in_order(info: ObjectInfo) -> bytes:
    """Return what listings are ordered by."""
    return info.path.encode()


def exactly(chunks: Iterable[bytes], size_bytes: int, path: str) -> Iterator[bytes]:
    """Yield the chunks of a stream, and fail rather than let it end early or late."""
    seen = 0
    for chunk in chunks:
        seen += len(chunk)
        if seen > size_bytes:
            break
        yield chunk
    if seen != size_bytes:
        raise StorageUnavailable(
            f"can't write {path!r}",
            cause=f"{size_bytes} bytes were to come, and "
            + ("more came" if seen > size_bytes else f"only {seen} came"),
            remedy="try again: what is read may have been replaced meanwhile",
            path=path,
            outcome_unknown=False,
        )
