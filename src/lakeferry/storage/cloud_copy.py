"""Copies that cloud stores make themselves between two places of one service.

Inside one bucket or container obstore asks the store. For what obstore can't do on S3 (another
bucket, large objects in parts) the requests are made in :mod:`lakeferry.storage.s3_copy`.

A store may refuse to copy, for example from another account's bucket, or because it is a gateway
without such requests. So the first copy into a bucket from another one is made alone and checked.
If it is refused, nothing more is asked, and the caller streams all objects. After a first success a
refusal is about one object.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import obstore
from obstore.exceptions import NotFoundError

from lakeferry.storage.cloud_clients import Clients
from lakeferry.storage.cloud_errors import RAISED, http_status
from lakeferry.storage.copy_way import CopyRoute, CopyWay
from lakeferry.storage.multipart import S3Uploads
from lakeferry.storage.s3_copy import LARGE_BYTES, CopyRefused, Moved, S3Source, copy_object

_NOT_IMPLEMENTED = 501
_SERVER_ERROR = 500

UploadsOf = Callable[[str], S3Uploads | None]
"""Returns what makes signed requests about a key; ``None`` if this process can't sign."""


class CloudCopies:
    """Copies objects into the place that ``clients`` lead to."""

    def __init__(self, clients: Clients, uploads_of: UploadsOf) -> None:
        """Make copies for a store; nothing is asked before the first."""
        self._clients = clients
        self._uploads_of = uploads_of
        self._pairs: dict[tuple[str, bool], _Pair] = {}
        self._lock = threading.Lock()

    def route(self, source: Clients) -> CopyRoute:
        """Return how objects of another place get here; no request is sent."""

        def can_sign() -> bool:
            try:
                return self._signs()
            except RAISED:
                # Without credentials nothing is copied at all.
                return False

        small, large = (
            way_between(source, self._clients, size, can_sign)
            for size in (LARGE_BYTES, LARGE_BYTES + 1)
        )
        is_certain = small is CopyWay.STREAM or _is_within(source, self._clients)
        return CopyRoute(small, large, LARGE_BYTES, is_certain=is_certain)

    def _signs(self) -> bool:
        """Return whether this process can sign requests to S3, with any name."""
        return self._uploads_of("x") is not None

    def copy(self, source: Clients, key: str, new_key: str, moved: Moved) -> int | None:
        """Copy an object of another place, and return its size.

        Returns ``None`` if the store doesn't copy it or doesn't have it.
        """
        if not _is_one_service(source, self._clients):
            return None
        name = source.place.authority, _is_within(source, self._clients)
        with self._lock:
            pair = self._pairs.setdefault(name, _Pair())
        if pair.works is None:
            with pair.lock:
                if pair.works is None:
                    return self._probe(pair, source, key, new_key, moved)
        if not pair.works:
            return None
        try:
            return self._copied(source, key, new_key, moved)
        except (CopyRefused, NotFoundError, FileNotFoundError):
            return None

    def _probe(
        self, pair: _Pair, source: Clients, key: str, new_key: str, moved: Moved
    ) -> int | None:
        """Make the first copy, and remember whether the store can."""
        try:
            size = self._copied(source, key, new_key, moved)
        except (NotFoundError, FileNotFoundError):
            return None
        except CopyRefused:
            pair.works = False
            return None
        if size is not None:
            pair.works = True
        return size

    def _copied(self, source: Clients, key: str, new_key: str, moved: Moved) -> int | None:
        """Copy an object, check the copy's size, and return it; ``None`` if it is streamed."""
        if way_between(source, self._clients, 0, self._signs) is CopyWay.STREAM:
            raise CopyRefused("this process can't sign a request for the copy")
        meta = obstore.head(source.quick, key)
        size, etag = meta["size"], meta["e_tag"]
        way = way_between(source, self._clients, size, self._signs)
        if way is CopyWay.STREAM:
            # It is too large to be copied without our own requests; smaller ones may not be.
            return None
        if way is CopyWay.ASKED:
            try:
                obstore.copy(self._clients.patient, key, new_key)
            except RAISED as error:
                if isinstance(error, NotFoundError | FileNotFoundError) or not _is_refusal(error):
                    raise
                raise CopyRefused(str(error)) from error
        else:
            uploads = self._uploads_of(new_key) if etag else None
            if uploads is None or etag is None:
                raise CopyRefused("the source has no ETag")
            copy_object(uploads, S3Source(source.place.container, key, size, etag), moved)
            # Not every gateway respects the condition that each part is sent with.
            if size > LARGE_BYTES and obstore.head(source.quick, key)["e_tag"] != etag:
                raise CopyRefused("another object has replaced the source")
        self._check_size(new_key, size)
        return size

    def _check_size(self, new_key: str, size: int) -> None:
        """Refuse a copy that isn't complete, though the store reported success.

        S3 may send the status 200 before it fails, of which obstore recognises some cases. Azure
        may copy later: until then the object is empty.
        """
        try:
            there = obstore.head(self._clients.quick, new_key)["size"]
        except (NotFoundError, FileNotFoundError):
            raise CopyRefused("there is no copy") from None
        if there != size:
            raise CopyRefused("the copy has another size")


@dataclass(slots=True)
class _Pair:
    """Whether the store copies from another place; ``None`` until the first copy."""

    works: bool | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


def way_between(
    source: Clients, target: Clients, size_bytes: int, can_sign: Callable[[], bool]
) -> CopyWay:
    """Return how an object of that size gets from one place to another.

    ``can_sign`` returns whether this process can sign requests to S3.
    """
    if not _is_one_service(source, target):
        return CopyWay.STREAM
    is_s3 = target.place.scheme == "s3"
    if _is_within(source, target) and not (is_s3 and size_bytes > LARGE_BYTES):
        return CopyWay.ASKED
    return CopyWay.SIGNED if is_s3 and can_sign() else CopyWay.STREAM


def _is_within(source: Clients, target: Clients) -> bool:
    """Return whether both places are in one bucket or container."""
    return source.place.authority == target.place.authority and source.is_set_like(target)


def _is_one_service(source: Clients, target: Clients) -> bool:
    """Return whether a store can find the source's objects by their names.

    Two services may have buckets of one name, so their addresses must be the same. On S3 an
    object is also asked for by its ETag if the options differ.
    """
    one, other = source.place, target.place
    if one.scheme != other.scheme:
        return False
    if one.scheme == "s3":
        return source.endpoint == target.endpoint
    return _is_within(source, target)


def _is_refusal(error: Exception) -> bool:
    status = http_status(error)
    return status is not None and (status < _SERVER_ERROR or status == _NOT_IMPLEMENTED)
