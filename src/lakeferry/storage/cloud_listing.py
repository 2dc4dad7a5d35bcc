"""Lists the objects below a prefix of a cloud store, in the order of names.

S3 and Google list by the bytes of names, a page of 1,000 at a time; a page is asked for when its
first name is. Azure's hierarchical accounts and S3's directory buckets list in another order:
there a listing is read whole and sorted. A store that breaks its promise of order is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

import obstore

from lakeferry.errors import InvalidInput, StorageUnavailable
from lakeferry.storage.call_counts import Calls
from lakeferry.storage.cloud_clients import Clients
from lakeferry.storage.store import ObjectInfo
from lakeferry.storage.uris import check_object_name

UNHEARD_OF = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
"""The characters that no name in a cloud store has: they would not come back from a listing."""

_PAGE = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class CloudListing:
    r"""The listings of one place. \`\`translated\`\` converts errors of the client."""

    def __init__(
        self,
        clients: Clients,
        uri: str,
        calls: Calls,
        translated: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        """Ask nothing yet."""
        place = clients.place
        self._clients = clients
        self._uri = uri
        self._calls = calls
        self._translated = translated
        self._root = f"{place.path}/" if place.path else ""
        self.sorts = place.scheme in ("s3", "gs", "memory") and not place.container.endswith(
            "--x-s3"
        )

    def objects(
        self, prefix: str, start_after: str | None, stop_before: str | None
    ) -> Iterator[ObjectInfo]:
        """List page by page; each page is counted when it is asked for."""
        folder = prefix.rpartition("/")[0]
        if folder:
            check_object_name(folder)
        after = b"" if start_after is None else start_after.encode()
        end = None if stop_before is None else stop_before.encode()
        pages = self._pages(prefix, folder, start_after)
        if not self.sorts:
            whole = [found for page in pages for found in page]
            pages = iter([sorted(whole, key=lambda found: found.path.encode())])
        return self._selected(pages, prefix, after, end)

    def folders(self, folder: str) -> Sequence[str] | None:
        """Return the folders directly below a folder.

        One call asks for all pages, and objects in the folder fill pages, too. So callers ask only
        where they expect folders.
        """
        if not self.sorts:
            return None
        self._calls.add("LIST", folder)
        with self._translated(folder):
            found = obstore.list_with_delimiter(
                self._clients.quick, f"{self._root}{folder}".rstrip("/") or None
            )
        return [f"{each[len(self._root) :]}/" for each in found["common_prefixes"]]

    def _selected(
        self,
        pages: Iterator[Sequence[ObjectInfo]],
        prefix: str,
        after: bytes,
        end: bytes | None,
    ) -> Iterator[ObjectInfo]:
        begin, last = prefix.encode(), b""
        for page in pages:
            for found in page:
                key = found.path.encode()
                if key < last:
                    raise StorageUnavailable(
                        f"{self._uri} lists its objects out of order",
                        cause=f"{found.path!r} comes after {last.decode()!r}",
                        remedy="use another store: Lakeferry needs one that lists objects in order",
                    )
                last = key
                if (end is not None and key >= end) or (key > begin and not key.startswith(begin)):
                    return
                if key > after and key.startswith(begin):
                    yield found

    def _pages(
        self, prefix: str, folder: str, start_after: str | None
    ) -> Iterator[Sequence[ObjectInfo]]:
        # obstore's prefix is a folder; for a prefix that ends within a name, the listing starts
        # just before that name.
        bounds = [_usable(start_after), _just_before(prefix)]
        offset = max((bound for bound in bounds if bound), key=str.encode, default=None)
        skip = len(self._root)
        with self._translated(prefix):
            stream = obstore.list(
                self._clients.quick,
                f"{self._root}{folder}".rstrip("/") or None,
                offset=f"{self._root}{offset}" if offset and self.sorts else None,
                chunk_size=_PAGE,
            )
        self._calls.add("LIST", prefix)
        with self._translated(prefix):
            page = next(stream, [])
        while page:
            yield [
                ObjectInfo(
                    meta["path"][skip:], meta["size"], milliseconds_of(meta["last_modified"])
                )
                for meta in page
            ]
            with self._translated(prefix):
                page = next(stream, [])
            # The end of the pages is known without a request.
            if page:
                self._calls.add("LIST", prefix)


def _usable(bound: str | None) -> str | None:
    """Return ``bound`` if obstore can begin a listing there; listed names are checked anyway."""
    if not bound or UNHEARD_OF.search(bound):
        return None
    bound = bound.rstrip("/")
    try:
        return check_object_name(bound)
    except InvalidInput:
        return None


def _just_before(prefix: str) -> str | None:
    """Return a name before everything that begins with ``prefix``, and close to it."""
    if not prefix or prefix.endswith("/"):
        return None
    return _usable(f"{prefix[:-1]}{chr(max(ord(prefix[-1]) - 1, 0))}/~".replace("//", "/"))


def milliseconds_of(time: datetime) -> int:
    """Return a time in milliseconds since 1970."""
    return (time - _EPOCH) // _MILLISECOND
