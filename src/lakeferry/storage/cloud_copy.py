"""Copies that cloud stores make themselves between two places of one service.

Inside one bucket or container obstore asks the store. For what obstore can't do on S3 (another
bucket, large objects in parts) the requests are made in :mod:`lakeferry.storage.s3_copy`.

A store may refuse to copy, for example from another account's bucket, or because it is a gateway
without such requests. The first copy from one bucket into another that ends decides: if it is
refused, nothing more is asked, and the caller streams all objects. After a success a refusal is
about one object. Copies never wait for each other, because the first object may take an hour.

What concerns one object only decides nothing: it is missing, or was replaced, or its copy isn't
what the store says the source is (:mod:`lakeferry.storage.copy_check`). A wrong copy is replaced by
streaming the object.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import obstore
from obstore.exceptions import NotFoundError

from lakeferry.errors import StorageUnavailable
from lakeferry.storage.cloud_clients import Clients
from lakeferry.storage.cloud_errors import RAISED, http_status
from lakeferry.storage.copy_check import ObjectMarks, difference, marks_of, same_md5
from lakeferry.storage.copy_way import CopyRoute, CopyWay
from lakeferry.storage.multipart import S3Uploads
from lakeferry.storage.s3_copy import (
    LARGE_BYTES,
    CopyRefused,
    Moved,
    ObjectNotCopied,
    S3Source,
    copy_object,
)

_OK = 200
_NOT_IMPLEMENTED = 501
_SERVER_ERROR = 500
_MOST_UNANSWERED = 3

UploadsOf = Callable[[str], S3Uploads | None]
"""Returns what makes signed requests about a key; ``None`` if this process can't sign."""
SignedRequests = Callable[[Clients, str], S3Uploads | None]
"""The same for a key of any place."""


class CloudCopies:
    """Copies objects into the place that ``clients`` lead to."""

    def __init__(
        self, clients: Clients, uploads_of: UploadsOf, requests_of: SignedRequests
    ) -> None:
        """Make copies for a store; nothing is asked before the first.

        ``uploads_of`` writes as the store's options say, ``requests_of`` only asks.
        """
        self._clients = clients
        self._uploads_of = uploads_of
        self._requests_of = requests_of
        self._unanswered = 0
        """How often in a row a request for an object's checksums wasn't answered."""
        # Whether the store copies from another place, once that is known.
        self._works: dict[tuple[str, bool], bool] = {}

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
        if self._works.get(name) is False:
            return None
        try:
            size = self._copied(source, key, new_key, moved)
        except (NotFoundError, FileNotFoundError, ObjectNotCopied):
            return None
        except CopyRefused:
            # Some copies were begun before the first has ended, and one may have succeeded.
            self._works.setdefault(name, False)
            return None
        if size is not None:
            self._works[name] = True
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
                raise ObjectNotCopied("the source has no ETag")

            def is_same() -> bool:
                return obstore.head(source.quick, key)["e_tag"] == etag

            found = S3Source(source.place.container, key, size, etag, is_same)
            copy_object(uploads, found, moved)
        self._check(source, key, new_key, ObjectMarks(size, etag))
        return size

    def _check(self, source: Clients, key: str, new_key: str, original: ObjectMarks) -> None:
        """Refuse a copy that isn't the source, though the store reported success.

        S3 may send the status 200 before it fails, of which obstore recognises some cases. Azure
        may copy later: until then the object is empty. Where equal ETags don't show that the bytes
        are equal, S3 is asked for checksums.
        """
        try:
            meta = obstore.head(self._clients.quick, new_key)
        except (NotFoundError, FileNotFoundError):
            raise ObjectNotCopied("there is no copy") from None
        copy = ObjectMarks(meta["size"], meta["e_tag"])
        wrong = difference(original, copy)
        if wrong is None and self._clients.place.scheme == "s3" and not same_md5(original, copy):
            wrong = difference(self._marks(source, key), self._marks(self._clients, new_key))
        if wrong is not None:
            raise ObjectNotCopied(wrong)

    def _marks(self, clients: Clients, key: str) -> ObjectMarks:
        """Return what a store says about an object, in one request if it answers ours."""
        asks = None
        if self._unanswered < _MOST_UNANSWERED:
            asks = self._requests_of(clients, key)
        if asks is not None:
            with suppress(StorageUnavailable):
                answer = asks.head()
                if answer.status == _OK and "content-length" in answer.headers:
                    self._unanswered = 0
                    return marks_of(answer.headers)
        meta = obstore.head(clients.quick, key)
        if asks is not None:
            # The object is there, but gateways and proxies may not let our own request through.
            self._unanswered += 1
        return ObjectMarks(meta["size"], meta["e_tag"])


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
