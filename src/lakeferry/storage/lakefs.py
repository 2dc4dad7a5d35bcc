"""A ref of a lakeFS repository as a read-only store.

lakeFS knows names, sizes and the address of each object's bytes. The bytes are read
directly from the blockstore, by the store that its URI opens, with the same options and
environment. So reading a table costs only the requests of a listing to lakeFS, a thousand
objects to a page: a listed object is read at the address in the listing, as it was then.
A name that wasn't listed costs one request to lakeFS.

If the blockstore denies access, or isn't the one that the address means
(``AWS_ENDPOINT_URL`` may lead to lakeFS's own gateway), lakeFS itself sends the bytes.

A branch shows what is staged on it, too. Times are whole seconds, those at which
lakeFS was given the object.

Names that no store of ours can have, such as the empty objects with which some
writers mark a folder, are left out.
"""

from __future__ import annotations

import builtins
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from lakeferry.errors import (
    Forbidden,
    InvalidInput,
    ObjectNotFound,
    StorageUnavailable,
    Unauthorized,
)
from lakeferry.storage.call_counts import Calls
from lakeferry.storage.lakefs_addresses import physical_uri
from lakeferry.storage.lakefs_api import LakeFSAccess, LakeFSObject, LakeFSRef
from lakeferry.storage.rest_request import TIMEOUT_S
from lakeferry.storage.store import ObjectInfo, Store, StoreConfig, StreamChunk
from lakeferry.storage.uris import UriParts, check_object_name, container_and_name, split

_REMEMBERED = 100_000
"""How many addresses are cached; the oldest are dropped first."""


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """A changed object: ``added``, ``removed`` or ``changed``."""

    kind: str
    path: str


class ObjectPage(NamedTuple):
    """Objects by their names, the last name that was looked at, and whether more come after it."""

    entries: builtins.list[tuple[str, LakeFSObject]]
    last: str
    more: bool


class LakeFSStore(Store):
    """Objects below one path of a ref. See the module for where their bytes come from."""

    service = "lakeFS"
    lists_ranges = True

    def __init__(
        self,
        config: StoreConfig,
        open_config: Callable[[StoreConfig], Store],
        *,
        timeout_s: float = TIMEOUT_S,
        pause: Callable[[float], None] = time.sleep,
        remembered: int = _REMEMBERED,
    ) -> None:
        """Read the configuration; no request is sent before the first verb.

        ``open_config`` opens the store behind lakeFS that has the objects' bytes.
        """
        place = split(config.uri)
        repository, ref = place.repository_and_ref
        if not ref:
            raise InvalidInput(
                f"{config.uri} names a lakeFS repository, but no ref",
                remedy="write lakefs://repository/ref/path; a ref is a branch, a tag or a commit",
                uri=config.uri,
            )
        self.config = config
        self._open = open_config
        self.calls = Calls()
        self._api = LakeFSRef(
            LakeFSAccess.find(config.options), repository, ref, timeout_s=timeout_s, pause=pause
        )
        self._root = f"{place.path}/" if place.path else ""
        self._addresses: dict[str, str] = {}
        self._remembered = remembered
        self._blockstores: dict[str, Store] = {}
        self._closed: set[str] = set()
        """The roots of blockstores that deny access."""
        self._lock = threading.Lock()

    # --- What lakeFS knows ----------------------------------------------------------

    def commit_id(self) -> str:
        """Return the commit that the ref means now; for a branch, without staged changes."""
        return self._api.commit_id()

    def has_uncommitted(self, prefix: str = "") -> bool:
        """Return whether there are uncommitted changes below ``prefix``."""
        return self._api.has_uncommitted(f"{self._root}{prefix}")

    def storage_namespace(self) -> str:
        """Return where the repository stores its data, as a URI without a trailing slash.

        For local disk lakeFS gives only the name of its folder. The rest is taken from the
        address of an object: ``ObjectNotFound`` if there is none.
        """
        said = self._api.storage_namespace().rstrip("/")
        scheme, _, below = said.partition("://")
        if scheme != "local":
            return physical_uri(said)
        self.calls.add("LIST", "")
        for entry in self._api.page("", "")[0]:
            if entry.address.startswith("file:"):
                lead, found, _ = split(entry.address).path.rpartition(f"/{below.strip('/')}/data/")
                if found:
                    return str(UriParts("file", "", f"{lead}/{below.strip('/')}"))
        raise ObjectNotFound(
            f"Lakeferry can't find the local folder in which lakeFS keeps {said}",
            cause=f"no object in {self._api.uri} has a file address that shows the folder",
            uri=self.uri,
        )

    def page(self, after: str = "", prefix: str = "") -> ObjectPage:
        """Return one page of the objects below ``prefix`` that come after a name."""
        self.calls.add("LIST", prefix)
        root = self._root
        start = f"{root}{after}" if after else ""
        found, more = self._api.page(f"{root}{prefix}", start)
        if more and not found:
            raise self._unreliable("there are more objects, and none is shown")
        last = start
        for entry in found:
            if last and entry.path.encode() <= last.encode():
                raise self._unreliable(f"{entry.path!r} comes after {last!r}")
            last = entry.path
        named = ((entry.path.removeprefix(root), entry) for entry in found)
        return ObjectPage(
            [each for each in named if _is_name(each[0])], last.removeprefix(root), more
        )

    def entry(self, path: str) -> LakeFSObject:
        """Return one object, or raise ``ObjectNotFound``."""
        return self._stat(path)

    def changes(self, since: str, prefix: str = "", *, limit: int) -> builtins.list[ObjectChange]:
        """Return the objects below ``prefix`` that changed since the commit ``since``.

        Returns at most ``limit`` objects; if there are that many, others may be missing.
        """
        found: builtins.list[ObjectChange] = []
        after, more = "", True
        while more and len(found) < limit:
            page, more = self._api.changes(since, f"{self._root}{prefix}", after)
            if more and not page:
                raise self._unreliable("more has changed, and nothing is shown")
            for kind, path in page:
                found.append(ObjectChange(kind, path.removeprefix(self._root)))
                after = path
        return found[:limit]

    # --- Reading --------------------------------------------------------------------

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        """List page by page, and cache the address of each object."""
        folder = prefix.rpartition("/")[0]
        if folder:
            check_object_name(folder)
        return self._listed(prefix, start_after or "", stop_before)

    def folders(self, folder: str) -> Sequence[str] | None:
        """List page by page what is directly below a folder.

        Gives up after a page without folders: the rest are probably files, too.
        """
        found: builtins.list[str] = []
        after, more = "", True
        while more:
            self.calls.add("LIST", folder)
            page, last, more = self._api.folders(f"{self._root}{folder}", after)
            if last.encode() <= after.encode() and more:
                raise self._unreliable(f"{last!r} comes after {after!r}")
            after = last
            found += [each.removeprefix(self._root) for each in page]
            if not page:
                break
        return found

    def objects(
        self, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[tuple[str, LakeFSObject]]:
        """Yield all objects between two names, with what lakeFS knows of each."""
        return self._entries("", start_after or "", stop_before)

    def _listed(
        self, prefix: str, start_after: str, stop_before: str | None
    ) -> Iterator[ObjectInfo]:
        for name, entry in self._entries(prefix, start_after, stop_before):
            self.learn(name, entry.address)
            yield ObjectInfo(name, entry.size_bytes, entry.modified_ms)

    def _entries(
        self, prefix: str, start_after: str, stop_before: str | None
    ) -> Iterator[tuple[str, LakeFSObject]]:
        """Yield names and objects; a page is requested only when it is needed."""
        end = None if stop_before is None else stop_before.encode()
        after, more = start_after, True
        while more:
            page = self.page(after, prefix)
            for name, entry in page.entries:
                if end is not None and name.encode() >= end:
                    return
                yield name, entry
            after, more = page.last, page.more
            if end is not None and after.encode() >= end:
                return

    def head(self, path: str) -> ObjectInfo:
        """Return an object's size and time as lakeFS has them."""
        entry = self._stat(path)
        return ObjectInfo(path, entry.size_bytes, entry.modified_ms)

    def get(self, path: str) -> bytes:
        """Fetch the object from where its bytes are."""
        self.calls.add("GET", path)
        # An unlisted address isn't cached: the next call must see the object as it is then.
        address = self._addresses.get(path) or self._stat(path).address
        return self._read(path, address, 0, None)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Fetch a part of the object from where its bytes are."""
        if start < 0 or length < 0:
            raise InvalidInput("a range can't have a negative start or length")
        self.calls.add("RANGE", path)
        address = self._addresses.get(path)
        if address is None:
            entry = self._stat(path)
            # Cached, as the next range of the same file is likely to be read soon.
            self.learn(path, entry.address)
            address = entry.address
        return self._read(path, address, start, length)

    def get_many(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """Fetch objects with a bounded number of concurrent requests."""
        from lakeferry.storage.parallel_calls import concurrently

        return concurrently(self.get, paths)

    def sign(self, method: str, path: str, expires_s: int) -> str:
        """Return a URL signed by the blockstore; only ``GET`` is allowed."""
        if method != "GET":
            self._refuse(path)
        self.calls.add("SIGN", path)
        address = self._addresses.get(path) or self._stat(path).address
        if (place := _place(address)) is None:
            raise InvalidInput(f"Lakeferry can't sign an address such as {address}", path=path)
        return self._blockstore(place[0]).sign(method, place[1], expires_s)

    def _read(self, path: str, address: str, start: int, length: int | None) -> bytes:
        data = self._read_there(address, start, length)
        if data is None:
            data = self._read_through_lakefs(path, start, length)
        self.calls.add_bytes(len(data))
        return data

    def _read_there(self, address: str, start: int, length: int | None) -> bytes | None:
        """Return bytes from the blockstore, or ``None`` if lakeFS has to send them."""
        place = _place(address)
        if place is None or place[0] in self._closed:
            return None
        root, name = place
        store = self._blockstore(root)
        try:
            return store.get(name) if length is None else store.get_range(name, start, length)
        except ObjectNotFound as missing:
            if not missing.fields.get("bucket_missing"):
                # It was replaced and its bytes were deleted, or they are on another machine.
                return None
        except (Forbidden, Unauthorized):
            pass
        except StorageUnavailable as failed:
            # Fall back after answers such as "wrong region"; not after silence or a status >= 500.
            status = failed.fields.get("status")
            if not isinstance(status, int) or status >= 500:
                raise
        with self._lock:
            self._closed.add(root)
        return None

    def _read_through_lakefs(self, path: str, start: int, length: int | None) -> bytes:
        key = f"{self._root}{path}"
        if length is not None and length > 0:
            return self._api.content(key, start, length, limit_bytes=length)
        size = self._stat(path).size_bytes
        if length == 0:
            return b""
        data = self._api.content(key, limit_bytes=size)
        if len(data) != size:
            raise StorageUnavailable(
                f"lakeFS sent {len(data)} bytes of {path!r} in {self.uri}, but its size is {size}",
                remedy="try again: the object may have been replaced meanwhile",
                path=path,
                uri=self.uri,
            )
        return data

    def _blockstore(self, root: str) -> Store:
        with self._lock:
            if root not in self._blockstores:
                self._blockstores[root] = self._open(StoreConfig(root, self.config.options))
            return self._blockstores[root]

    def _stat(self, path: str) -> LakeFSObject:
        self.calls.add("HEAD", path)
        key = f"{self._root}{check_object_name(path)}" if path else self._root.rstrip("/")
        if not key:
            raise ObjectNotFound(f"{self.uri} isn't an object", path=path, uri=self.uri)
        try:
            return self._api.stat(key)
        except ObjectNotFound as missing:
            if missing.fields.get("missing") == "path":
                missing.fields.update(path=path, uri=self.uri)
            raise

    def learn(self, path: str, uri: str) -> None:
        """Cache the address of an object's bytes."""
        with self._lock:
            # Removed first, so that the newest addresses are dropped last.
            self._addresses.pop(path, None)
            while len(self._addresses) >= self._remembered:
                del self._addresses[next(iter(self._addresses))]
            self._addresses[path] = uri

    # --- What isn't done here -------------------------------------------------------

    def put(self, path: str, data: bytes) -> None:  # noqa: ARG002
        """Refuse."""
        self._refuse(path)

    def put_if_absent(self, path: str, data: bytes) -> bool:  # noqa: ARG002
        """Refuse."""
        self._refuse(path)

    def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:  # noqa: ARG002
        """Refuse."""
        self._refuse(path)

    def put_stream(self, path: str, chunks: Iterator[StreamChunk], size_bytes: int) -> None:  # noqa: ARG002
        """Refuse."""
        self._refuse(path)

    def put_stream_if_absent(
        self,
        path: str,
        chunks: Iterator[StreamChunk],  # noqa: ARG002
        size_bytes: int,  # noqa: ARG002
    ) -> bool:
        """Refuse."""
        self._refuse(path)

    def copy_within(self, path: str, new_path: str) -> None:  # noqa: ARG002
        """Refuse."""
        self._refuse(new_path)

    def delete_many(self, paths: Sequence[str]) -> None:
        """Refuse, unless ``paths`` is empty."""
        if paths:
            self._refuse(paths[0])

    def _unreliable(self, cause: str) -> StorageUnavailable:
        return StorageUnavailable(
            f"{self.uri} doesn't list its objects in order",
            cause=cause,
            remedy="ask the owner of lakeFS: Lakeferry needs a server that lists objects in order",
            uri=self.uri,
        )

    def _refuse(self, path: str) -> NoReturn:
        repository = self._api.repository
        raise Forbidden(
            f"{self.uri} can only be read",
            cause="tables in lakeFS are written through its S3 gateway, and committed there",
            remedy=f"use s3://{repository}/BRANCH/… with lakeFS as the endpoint "
            "(--storage-option aws_endpoint=…) and its key",
            path=path,
            uri=self.uri,
        )


def _place(address: str) -> tuple[str, str] | None:
    """Return the store and the name of an address, or ``None`` if our stores can't read it.

    Objects that were imported into lakeFS may have names that our stores don't support.
    """
    try:
        return container_and_name(address) if str(split(address)) == address else None
    except InvalidInput:
        return None


def _is_name(name: str) -> bool:
    try:
        check_object_name(name)
    except InvalidInput:
        return False
    return True
