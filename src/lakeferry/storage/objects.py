"""S3, Google Cloud Storage, Azure and memory as stores, on obstore.

**One winner.** Put-if-absent is the store's own: ``If-None-Match: *`` and its
likes. obstore repeats a request whose answer was lost, so the second attempt may
be told that the name is taken by the first: see
:meth:`~lakeferry.storage.store.Store.put_if_absent`.

A swap reads the object and replaces it on the condition that it is still that version,
by its ETag (``If-Match``) or its generation. Callers check that a store respects such conditions
before they rely on it.

**Names** go through as they are, except those that don't come back: object_store
has no control characters, and the XML of a listing can't hold U+FFFE and U+FFFF.
Such names are refused.

**Integrity.** Each request to S3 is signed together with the SHA-256 of what it
carries, a part of a large upload like anything else, and the store refuses bytes
that don't match.

**Times.** A listing of S3 has milliseconds, ``head`` whole seconds.

Clients don't survive ``fork``: a child process opens its own store from the
configuration.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import MemoryStore

from lakeferry.errors import InvalidInput, ObjectNotFound, StorageUnavailable
from lakeferry.storage.call_counts import Calls
from lakeferry.storage.cloud_clients import Clients, CloudClient
from lakeferry.storage.cloud_copy import CloudCopies
from lakeferry.storage.cloud_errors import RAISED, as_ours, http_status
from lakeferry.storage.cloud_listing import UNHEARD_OF, CloudListing, milliseconds_of
from lakeferry.storage.copy_way import (
    STREAMED,
    UPLOADED_PART_BYTES,
    WHOLE_UPLOAD_BYTES,
    CopyRoute,
)
from lakeferry.storage.multipart import S3PartsUpload, S3Uploads
from lakeferry.storage.object_parts import MOST_PARTS
from lakeferry.storage.parallel_calls import concurrently, relay_chunks
from lakeferry.storage.response_body import body_of
from lakeferry.storage.sigv4 import key_of, signed_anew
from lakeferry.storage.store import (
    ObjectInfo,
    OpenedObject,
    PartsUpload,
    SignedPut,
    Store,
    StoreConfig,
    StreamChunk,
    exactly,
    replaced_meanwhile,
)
from lakeferry.storage.uris import check_object_name

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, PutMode, UpdateVersion

_LARGE_BYTES = 4 * 1024 * 1024
_MULTIPART_BYTES = 64 * 1024 * 1024
_UPLOADS_AT_ONCE = 4


class ObjectStore(Store):
    """Objects below one prefix of a bucket, a container or a named piece of memory."""

    def __init__(self, config: StoreConfig) -> None:
        """Make the client; no request is sent before the first verb."""
        self.config = config
        self.calls = Calls()
        self._clients = Clients(config)
        place = self._clients.place
        self.service = self._clients.service
        self._root = f"{place.path}/" if place.path else ""
        self._copies = CloudCopies(self._clients, self._copying_uploads, _signed_requests)
        self._listing = CloudListing(self._clients, config.uri, self.calls, self._translated)
        self.lists_ranges = self._listing.sorts
        # Google and Azure call it an error to delete what isn't there, and obstore
        # would stop at the first.
        self._deletes_in_bulk = place.scheme in ("s3", "memory")

    @property
    def _client(self) -> CloudClient:
        return self._clients.quick

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        """List page by page; each page is counted when it is asked for."""
        return self._listing.objects(prefix, start_after, stop_before)

    def folders(self, folder: str) -> Sequence[str] | None:
        """Ask for the folders directly below a folder."""
        return self._listing.folders(folder)

    def head(self, path: str) -> ObjectInfo:
        """Ask for size and time."""
        self.calls.add("HEAD", path)
        key = self._key(path) if path else self._root.rstrip("/")
        if not key:
            raise ObjectNotFound(f"{self.uri} isn't an object", path=path, uri=self.uri)
        with self._translated(path):
            meta = obstore.head(self._client, key)
        return ObjectInfo(path, meta["size"], milliseconds_of(meta["last_modified"]))

    def get(self, path: str) -> bytes:
        """Fetch the object."""
        self.calls.add("GET", path)
        with self._translated(path):
            data = bytes(body_of(obstore.get(self._client, self._key(path))))
        self.calls.add_bytes(len(data))
        return data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Fetch a part of the object."""
        if start < 0 or length < 0:
            raise InvalidInput("a range can't have a negative start or length")
        self.calls.add("RANGE", path)
        key = self._key(path)
        with self._translated(path):
            # A request can't ask for zero bytes, and for a range beyond the end the memory store
            # raises a generic error; in both cases only the object's existence is checked.
            if length == 0 or isinstance(self._client, MemoryStore):
                size = obstore.head(self._client, key)["size"]
                if length == 0 or start >= size:
                    return b""
            try:
                part: GetOptions = {"range": (start, start + length)}
                data = bytes(body_of(obstore.get(self._client, key, options=part)))
            except RAISED as error:
                if http_status(error) != 416:
                    raise
                return b""
        self.calls.add_bytes(len(data))
        return data

    def open(self, path: str) -> OpenedObject:
        """Open the object that has the name now, by its ETag."""
        self.calls.add("HEAD", path)
        key = self._key(path)
        with self._translated(path):
            meta = obstore.head(self._client, key)
        etag = meta["e_tag"]
        if etag is None or isinstance(self._client, MemoryStore):
            return super().open(path)

        def read(start: int, length: int) -> StreamChunk:
            self.calls.add("RANGE", path)
            options: GetOptions = {"range": (start, start + length), "if_match": etag}
            with self._translated(path):
                try:
                    found = obstore.get(self._client, key, options=options)
                    # A copy of so many bytes takes longer than to receive them.
                    data = memoryview(body_of(found))
                except PreconditionError as error:
                    raise replaced_meanwhile(self.uri, path) from error
            # Not every gateway respects the condition.
            if found.meta["e_tag"] != etag:
                raise replaced_meanwhile(self.uri, path)
            self.calls.add_bytes(len(data))
            return data

        return _ByETag(meta["size"], read)

    def get_many(self, paths: Sequence[str]) -> builtins.list[bytes]:
        """Fetch with a bounded number of requests at a time."""
        return concurrently(self.get, paths)

    def put(self, path: str, data: bytes) -> None:
        """Write in one request, or in parts that become one object at the end."""
        self.calls.add("PUT", path)
        with self._translated(path, changes=True):
            obstore.put(
                self._uploader(data),
                self._key(path),
                data,
                use_multipart=len(data) > _MULTIPART_BYTES,
                chunk_size=UPLOADED_PART_BYTES,
                max_concurrency=_UPLOADS_AT_ONCE,
            )

    def put_many(self, objects: Mapping[str, bytes]) -> None:
        """Put small objects concurrently."""
        concurrently(lambda path: self.put(path, objects[path]), list(objects))

    def put_stream(self, path: str, chunks: Iterator[StreamChunk], size_bytes: int) -> None:
        """Write as :meth:`put` does; parts are sent while the chunks still come."""
        whole = exactly(chunks, size_bytes, path)
        if size_bytes <= WHOLE_UPLOAD_BYTES:
            self.put(path, b"".join(whole))
            return
        self.calls.add("PUT", path)

        def upload(relayed: Iterator[StreamChunk]) -> None:
            obstore.put(
                self._clients.patient,
                key,
                relayed,
                use_multipart=True,
                chunk_size=max(UPLOADED_PART_BYTES, -(-size_bytes // MOST_PARTS)),
                max_concurrency=_UPLOADS_AT_ONCE,
            )

        key = self._key(path)
        with self._translated(path, changes=True):
            relay_chunks(whole, upload)

    def put_stream_if_absent(
        self, path: str, chunks: Iterator[StreamChunk], size_bytes: int
    ) -> bool:
        """Write a small object conditionally, a larger one in parts if the name is free.

        The parts are joined without a condition, so two concurrent calls may both win.
        """
        if size_bytes > WHOLE_UPLOAD_BYTES:
            return super().put_stream_if_absent(path, chunks, size_bytes)
        return self.put_if_absent(path, b"".join(exactly(chunks, size_bytes, path)))

    def copy_within(self, path: str, new_path: str) -> None:
        """Let the store copy it; S3 does so up to 5 GB."""
        self.calls.add("COPY", path)
        source, target = self._key(path), self._key(new_path)
        with self._translated(path, changes=True):
            obstore.copy(self._client, source, target)

    def direct_route(self, source: Store) -> CopyRoute:
        """Return whether the service copies, by the settings of both."""
        if not isinstance(source, ObjectStore):
            return STREAMED
        with self._translated(""):
            return self._copies.route(source._clients)

    def copy_from(
        self, source: Store, path: str, new_path: str, moved: Callable[[int], None]
    ) -> int | None:
        """Let the store copy an object of the same service."""
        found, name = source.locate(path)
        if not isinstance(found, ObjectStore):
            return None
        key, new_key = found._key(name), self._key(new_path)
        with self._translated(new_path, changes=True):
            size = self._copies.copy(found._clients, key, new_key, moved)
        if size is not None:
            self.calls.add("COPY", new_path)
        return size

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write in one request that the store refuses if the name is taken."""
        self.calls.add("PUT_IF_ABSENT", path)
        with self._translated(path, changes=True):
            try:
                obstore.put(
                    self._uploader(data),
                    self._key(path),
                    data,
                    mode="create",
                    use_multipart=False,
                )
            except AlreadyExistsError:
                return False
        return True

    def swap(self, path: str, expected: bytes | None, data: bytes) -> bool:
        """Read, and write in one request that the store refuses if another version is there."""
        self.calls.add("SWAP", path)
        key = self._key(path)
        with self._translated(path, changes=True):
            try:
                mode: PutMode = "create"
                if expected is not None:
                    found = obstore.get(self._client, key)
                    if found.meta["size"] != len(expected) or bytes(body_of(found)) != expected:
                        return False
                    mode = self._only(found.meta)
                obstore.put(self._client, key, data, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            except FileNotFoundError as error:
                # Without a bucket there are no objects, and none was removed by others.
                missing = as_ours(error, path, self.uri)
                if expected is None or missing.fields.get("bucket_missing"):
                    raise
                return False
        return True

    def _only(self, meta: ObjectMeta) -> UpdateVersion:
        """Return the condition that an object is still the version that was read."""
        condition: UpdateVersion = {}
        # obstore doesn't accept None in it.
        if (e_tag := meta["e_tag"]) is not None:
            condition["e_tag"] = e_tag
        if (version := meta["version"]) is not None:
            condition["version"] = version
        if not condition:
            raise StorageUnavailable(
                f"{self.uri} has no conditional overwrite",
                cause="its objects have neither an ETag nor a version",
                remedy="use a store with conditional puts",
                outcome_unknown=False,
            )
        return condition

    def delete_many(self, paths: Sequence[str]) -> None:
        """Delete a thousand per request where the store can, else one each, concurrently."""
        keys = [self._key(path) for path in paths]
        for path in paths:
            self.calls.add("DELETE", path)
        if not keys:
            return
        if not self._deletes_in_bulk:
            concurrently(self._delete, keys)
            return
        with self._translated(paths[0], changes=True):
            obstore.delete(self._client, keys)

    def _delete(self, key: str) -> None:
        try:
            with self._translated(key, changes=True):
                obstore.delete(self._client, key)
        except ObjectNotFound as error:
            if error.fields.get("bucket_missing"):
                raise

    def sign(self, method: str, path: str, expires_s: int) -> str:
        """Let the client sign; no request is sent."""
        if isinstance(self._client, MemoryStore):
            raise InvalidInput(f"objects in {self.uri} can't have signed URLs")
        if method not in ("GET", "PUT"):
            raise InvalidInput(f"only GET and PUT can be signed, not {method!r}")
        self.calls.add("SIGN", path)
        with self._translated(path):
            return obstore.sign(
                self._client,
                "GET" if method == "GET" else "PUT",
                self._key(path),
                timedelta(seconds=expires_s),
            )

    def sign_put(self, path: str, size_bytes: int, expires_s: int) -> SignedPut:
        """Sign for that size and a free name, if the key's secret is known: on S3 only.

        The length isn't among the returned headers, because clients always send it.
        """
        url = self.sign("PUT", path, expires_s)
        secret = self._clients.secret_of(key_of(url) or "")
        if secret is None:
            return SignedPut(url)
        absent = {"if-none-match": "*"}
        bound = {**absent, "content-length": str(size_bytes)}
        return SignedPut(signed_anew(url, secret, "PUT", headers=bound), tuple(absent.items()))

    def parts_upload(self, path: str, size_bytes: int, *, begin: bool) -> PartsUpload | None:
        """Find it or begin it, on S3 and with a key whose secret is known."""
        uploads = self._uploads_of(path)
        return None if uploads is None else S3PartsUpload.of(uploads, size_bytes, begin=begin)

    def drop_parts(self, is_ours: Callable[[str, int], bool]) -> int:
        """Abort uploads below the root, where uploads may be listed."""
        # Any name works for a request about the bucket.
        uploads = self._uploads_of("x")
        if uploads is None:
            return 0
        skip = len(self._root)
        below = [*uploads.below(self._root)]
        ours = [(key, upload) for key, upload, begun_ms in below if is_ours(key[skip:], begun_ms)]
        for key, upload in ours:
            with self._translated(key):
                dropped = self._uploads_of_key(key)
            assert dropped is not None
            dropped.abort(upload)
        return len(ours)

    def _uploads_of(self, path: str) -> S3Uploads | None:
        return self._uploads_of_key(self._key(path))

    def _uploads_of_key(self, key: str) -> S3Uploads | None:
        return _signed_requests(self._clients, key)

    def _copying_uploads(self, key: str) -> S3Uploads | None:
        # Our own requests don't ask for the encryption that the options ask for.
        return None if self._clients.encrypts else self._uploads_of_key(key)

    def _key(self, path: str) -> str:
        if UNHEARD_OF.search(check_object_name(path)):
            raise InvalidInput(f"{self.uri} can't hold an object named {path!r}", path=path)
        return self._root + path

    def _uploader(self, data: bytes) -> CloudClient:
        return self._clients.patient if len(data) > _LARGE_BYTES else self._clients.quick

    @contextmanager
    def _translated(self, path: str, *, changes: bool = False) -> Iterator[None]:
        try:
            yield
        except RAISED as error:
            refused = self._clients.failed_renewal(error)
            raise refused or as_ours(error, path, self.uri, changes=changes) from error


def _signed_requests(clients: Clients, key: str) -> S3Uploads | None:
    """Return what makes signed requests about a key; ``None`` if this process can't sign."""
    client = clients.quick
    if isinstance(client, MemoryStore):
        return None

    def sign(lasts_s: int) -> str:
        return obstore.sign(client, "PUT", key, timedelta(seconds=lasts_s))

    secret_of = clients.secret_of
    return None if secret_of(key_of(sign(1)) or "") is None else S3Uploads(sign, secret_of, key)


@dataclass(frozen=True, slots=True)
class _ByETag(OpenedObject):
    """An object whose every request names its ETag."""

    size_bytes: int
    fetch: Callable[[int, int], StreamChunk]

    def read(self, start: int, length: int) -> StreamChunk:
        return self.fetch(start, length)

    def check(self) -> None:
        """Do nothing: the store has checked each request."""
