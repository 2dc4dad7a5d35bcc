"""Copies that S3 makes itself, so that the bytes don't pass through this process.

S3 copies an object of up to 5 GiB in one request, completely or not at all. Objects larger than
:data:`LARGE_BYTES` are copied in parts, several at a time, so that it goes faster and shows
progress. Each part names the ETag of the source: if another object replaces the source meanwhile,
S3 refuses the part, so no copy is a mixture of two objects.

A store may refuse to copy: the source is in another account's bucket, or the gateway has no such
requests. Then the caller streams the object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import quote

from lakeferry.errors import LakeferryError, StorageUnavailable
from lakeferry.storage.copy_way import COPIED_PART_BYTES
from lakeferry.storage.multipart import S3Uploads, text_of
from lakeferry.storage.object_parts import MOST_PARTS

LARGE_BYTES = 256 << 20
_PART_BYTES = COPIED_PART_BYTES
_PARTS_AT_ONCE = 4
_COPY_WAIT_S = 600.0
_BUSY_FROM = 500
_NOT_IMPLEMENTED = 501
_MISSING = 404
_REPLACED = 412

Moved = Callable[[int], None]
"""Receives the size of each part when it is copied, from any thread."""


class CopyRefused(Exception):
    """The store doesn't copy this object; nothing was written under the new name."""


class ObjectNotCopied(CopyRefused):
    """The same, for a reason that says nothing about other objects."""


@dataclass(frozen=True, slots=True)
class S3Source:
    """An object to copy, with the size and the ETag that it has now.

    ``is_same`` asks the store whether the object still has this ETag.
    """

    bucket: str
    key: str
    size_bytes: int
    etag: str
    is_same: Callable[[], bool]

    @property
    def headers(self) -> dict[str, str]:
        """The headers that name the object, as it is now, in a request."""
        return {
            "x-amz-copy-source": quote(f"{self.bucket}/{self.key}", safe="/-_.~"),
            "x-amz-copy-source-if-match": self.etag,
        }


def copy_object(target: S3Uploads, source: S3Source, moved: Moved) -> None:
    """Copy an object to the target's key, replacing an older object there.

    Raises :class:`CopyRefused` if the store refuses, or if the source isn't the same object any
    more.
    """
    if source.size_bytes <= LARGE_BYTES:
        _ask(target, {}, source.headers)
        return
    with _refusals(is_first=True):
        upload = target.begin()
    try:
        tags = _copied_parts(target, upload, source, moved)
        # Not every gateway respects the condition that each part is sent with.
        if not source.is_same():
            raise ObjectNotCopied("another object has replaced the source")
        with _refusals():
            target.complete(upload, tags, if_absent=False)
    except BaseException:
        # An upload that stays is found by ``Store.drop_parts``.
        with suppress(LakeferryError):
            target.abort(upload)
        raise


def _copied_parts(target: S3Uploads, upload: str, source: S3Source, moved: Moved) -> dict[int, str]:
    """Copy all parts, and return the ETag of each."""
    size = max(_PART_BYTES, -(-source.size_bytes // MOST_PARTS))
    starts = range(0, source.size_bytes, size)

    def copy(start: int) -> str:
        end = min(start + size, source.size_bytes)
        query = {"partNumber": str(start // size + 1), "uploadId": upload}
        range_ = {"x-amz-copy-source-range": f"bytes={start}-{end - 1}"}
        tag = _ask(target, query, source.headers | range_)
        moved(end - start)
        return tag

    with ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="lakeferry-part") as pool:
        try:
            return dict(enumerate(pool.map(copy, starts), start=1))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _ask(target: S3Uploads, query: dict[str, str], headers: dict[str, str]) -> str:
    """Send a request that copies, and return the ETag of what it made."""
    with _refusals(is_first=not query):
        answer = target.ask("PUT", query, headers=headers, body=b"", wait_s=_COPY_WAIT_S)
    tag = text_of(answer, "ETag")
    if not tag:
        raise CopyRefused("the store's answer doesn't say what it made")
    return tag


@contextmanager
def _refusals(*, is_first: bool = False) -> Iterator[None]:
    try:
        yield
    except StorageUnavailable as failed:
        status = failed.fields.get("status")
        if not isinstance(status, int):
            # Proxies and certificates may be set up for obstore's connections only.
            if is_first:
                raise CopyRefused(str(failed)) from failed
            raise
        if status in (_MISSING, _REPLACED):
            raise ObjectNotCopied(str(failed)) from failed
        # 200 with an error in its content, a wrong request, or one that the store doesn't know.
        if status < _BUSY_FROM or status == _NOT_IMPLEMENTED:
            raise CopyRefused(str(failed)) from failed
        raise
