"""Datasets over REST: reads, and PUT for objects.

==============================  =====================================================
``GET refs/head``               the hash of the last block, as text
``GET blocks/HASH``             a block, as it is stored
``GET data/HASH``               a data slice; ranges, streamed
``GET checkpoints/HASH``        a checkpoint; ranges, streamed
``PUT data/HASH``               an object whose bytes have that hash; needs a
``PUT checkpoints/HASH``        Content-Length; what is there already is 200
``GET …/HASH/PATH``             the same of a Delta table, whose objects have paths; PUT
``PUT …/HASH/PATH``             only by a signed URL, and nothing is replaced
==============================  =====================================================

All are below ``/name`` or ``/account/name``, and HEAD works wherever GET does.
:mod:`lakeferry.server.http.access` or a signed URL
(:mod:`lakeferry.transfer.repository.signed_urls`) decides who is allowed. A refusal before the
dataset was reached has a text or an empty body, one by the dataset has ``{"message": …}``; a
server error, 500 or 503, tells nothing about the server's internals.

Bodies are never held whole: an upload is hashed on its way into the store and becomes visible
only if the hash was right; a download is read a chunk at a time. Uploads have threads of
their own, so that slow ones don't delay other requests.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import anyio.from_thread
import anyio.to_thread
import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from lakeferry.errors import (
    Forbidden,
    HashMismatch,
    InvalidInput,
    LakeferryError,
    LimitExceeded,
    ObjectNotFound,
    StorageUnavailable,
    TimedOut,
)
from lakeferry.server.client_identity import holder_of
from lakeferry.server.http.access import DatasetAccess, HttpRefusal
from lakeferry.server.http.file_hashes import FileHashes
from lakeferry.server.http.object_body import CLIENT_LEFT, SILENT_FOR_S, ObjectBody
from lakeferry.server.upload_slots import Slots
from lakeferry.transfer.chain.hashes import Algorithm, Multihash, hash_stream
from lakeferry.transfer.chain.odf_blocks import ObjectRef
from lakeferry.transfer.datasets.dataset import DATASET_CHUNK_BYTES, DatasetFormat
from lakeferry.transfer.datasets.delta import named_files
from lakeferry.transfer.datasets.odf import FOLDERS
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.repository import Repository
from lakeferry.transfer.repository.signed_urls import Permit, Signer
from lakeferry.transfer.wire import handshake

_LARGEST_OBJECT_BYTES = 1 << 40
UPLOADS_AT_ONCE = 16
UPLOADS_WAITING = 128
"""How many uploads may wait for a place; each has received a few hundred kilobytes by then."""
TOKEN_CHECK = "/platform/token/validate"
"""Where the reference client asks whether its token is valid."""
UNREAD_BYTES = 32 << 20
"""About how many written bytes all connections together may leave unread."""
SMALLEST_CHUNK_BYTES = 32 << 10
_SMALL_BYTES = 64 << 10
"""A body up to this size is read before it needs a place among the uploads."""
_HEAD_WITHIN_S = 60.0
"""How long a request waits until a head is computed; after that the client must retry."""

_LOG = logging.getLogger(__name__)
_RETRY_AFTER_S = "5"
_OCTETS = "application/octet-stream"
_KINDS = {folder: kind for kind, folder in FOLDERS.items()}
_BEHIND = frozenset({"refs", "blocks", *_KINDS})
_NUMBER = re.compile(r"[0-9]{1,18}")
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """What the path of a request names: a file or the head of one dataset."""

    dataset: DatasetName
    folder: str
    leaf: str
    path: str | None = None
    """The path in a Delta table."""

    @classmethod
    def of(cls, path: str) -> RequestTarget | None:
        """Return what a decoded path names, or ``None`` if it can't be part of a dataset."""
        segments = path.removeprefix("/").split("/")
        # A dataset's own name has none of these words after its first segment.
        at = 1 if segments[1:2] and segments[1] in _BEHIND else 2
        folder, leaf, *rest = [*segments[at:], "", ""][: max(2, len(segments) - at)]
        if folder not in _BEHIND or not leaf or (rest and folder not in _KINDS):
            return None
        try:
            if rest:
                named_files.check_path("/".join(rest))
            name = DatasetName.parse("/".join(segments[:at]))
            return cls(name, folder, leaf, "/".join(rest) if rest else None)
        except InvalidInput:
            return None

    @property
    def kind(self) -> DatasetFormat:
        """The kind of dataset that the object belongs to."""
        return DatasetFormat.ODF if self.path is None else DatasetFormat.DELTA

    def ref(self) -> ObjectRef:
        """Return the object that the path names; its size is unknown, so it is 0."""
        return ObjectRef(_KINDS[self.folder], Multihash.parse(self.leaf), 0, self.path)


class Datasets:
    """The endpoints of all datasets of a repository."""

    def __init__(
        self,
        repository: Repository,
        access: DatasetAccess,
        signer: Signer | None = None,
        *,
        largest_object_bytes: int = _LARGEST_OBJECT_BYTES,
        silent_for_s: float = SILENT_FOR_S,
        head_within_s: float = _HEAD_WITHIN_S,
        connections: Callable[[], int] = lambda: 0,
    ) -> None:
        """Serve a repository; without a ``signer`` no signed URL is accepted.

        ``connections`` returns their number: a chunk per connection may be in memory.
        """
        self._repository = repository
        self._store = repository.store
        self._access = access
        self._signer = signer
        self._largest_object_bytes = largest_object_bytes
        self._silent_for_s = silent_for_s
        self._head_within_s = head_within_s
        self._uploads: anyio.CapacityLimiter | None = None
        self._slots = Slots(UPLOADS_AT_ONCE, UPLOADS_WAITING)
        self._file_hashes = FileHashes(self._store)
        self._connections = connections

    def routes(self) -> list[BaseRoute]:
        """Return routes that match every path; so they must come last."""
        return [
            Route(TOKEN_CHECK, self._check_token, methods=["GET"]),
            Route("/{path:path}", self._answer, methods=["GET", "HEAD", "PUT"]),
        ]

    async def _check_token(self, request: Request) -> Response:
        """Return 200 if a token is valid, for the reference client's ``login --check``."""
        sent = request.headers.getlist("authorization")
        refusal = await run_in_threadpool(self._access.token_refusal, sent)
        return Response(status_code=200) if refusal is None else _refused(refusal)

    async def _answer(self, request: Request) -> Response:
        try:
            return await self._routed(request)
        except ClientDisconnect:
            return Response(status_code=400)
        except LakeferryError as refused:
            if getattr(request.state, CLIENT_LEFT, False):
                # The client left in the middle of a body; the store's error isn't a failure.
                _LOG.info("%s %s: the client left", request.method, request.url.path)
                return Response(status_code=400)
            return _refusal(refused, request)
        except Exception:  # noqa: BLE001 - the server has to answer the other requests
            _LOG.exception("%s %s failed", request.method, request.url.path)
            return Response(status_code=500)

    async def _routed(self, request: Request) -> Response:
        target = RequestTarget.of(request.scope["path"])
        if target is None:
            return Response(status_code=404)
        allowed = await run_in_threadpool(self._allowed, request, target)
        if isinstance(allowed, HttpRefusal):
            return _refused(allowed)
        if allowed is None:
            # A signed URL names the folder itself: it is good for one folder, whatever its name.
            folder = await run_in_threadpool(self._repository.folders.folder, target.dataset)
            if folder is None:
                return Response(status_code=404)
            target = replace(target, dataset=folder)
        try:
            if request.method == "PUT":
                return await self._put(request, target, allowed)
            return await self._get(request, target, allowed)
        except (ObjectNotFound, InvalidInput) as refused:
            # Tell nothing about a dataset that doesn't exist.
            if await run_in_threadpool(self._repository.kind, target.dataset) is None:
                return Response(status_code=404)
            if isinstance(refused, InvalidInput):
                raise
            return _message(404, f"no {target.folder}/{target.leaf[:100]} here")

    def _allowed(self, request: Request, target: RequestTarget) -> HttpRefusal | Permit | None:
        if self._signer is not None and "signature" in request.query_params:
            query = dict(request.query_params)
            if len(query) != len(request.query_params.multi_items()):
                return HttpRefusal(403)
            try:
                key = request.scope["path"].removeprefix("/")
                return self._signer.check(request.method, key, query)
            except Forbidden as refused:
                return HttpRefusal(403, str(refused))
        return self._access.refusal(
            request.headers.getlist("authorization"),
            target.dataset,
            write=request.method == "PUT",
        )

    # --- GET ------------------------------------------------------------------------

    async def _get(
        self, request: Request, target: RequestTarget, permit: Permit | None
    ) -> Response:
        if target.folder == "refs":
            head = await self._head(target.dataset) if target.leaf == "head" else None
            if head is None:
                raise ObjectNotFound(f"no ref {target.leaf!r}")
            return Response(head.text, media_type="text/plain; charset=utf-8")
        name = Multihash.parse(target.leaf)
        if target.folder == "blocks":
            return await self._block(request, target.dataset, name)
        # Exactly the objects of Delta tables have paths. A folder that isn't a table may contain
        # datasets of others.
        if target.kind is DatasetFormat.DELTA and permit is None:
            kind = await run_in_threadpool(self._repository.kind, target.dataset)
            if kind is not DatasetFormat.DELTA:
                raise ObjectNotFound("no such object")
        path = self._repository.dataset(target.dataset, target.kind).place(target.ref())
        if target.kind is DatasetFormat.DELTA and permit is None:
            await self._file_hashes.check(path, name)
        return await self._object(request, path, name)

    async def _head(self, name: DatasetName) -> Multihash | None:
        found = await run_in_threadpool(self._repository.odf(name).head)
        if found is not None:
            return found
        if await run_in_threadpool(self._repository.kind, name) is not DatasetFormat.DELTA:
            return None
        try:
            async with asyncio.timeout(self._head_within_s):
                return await asyncio.wrap_future(self._repository.heads.of(name))
        except TimeoutError as late:
            raise StorageUnavailable(
                "the chain of a table isn't complete yet",
                cause=f"{self._head_within_s:g} seconds passed",
            ) from late

    async def _block(self, request: Request, name: DatasetName, block: Multihash) -> Response:
        # A block may be as large as an object, and its reader as slow.
        try:
            path = self._repository.odf(name).block_path(block)
            return await self._object(request, path, block)
        except ObjectNotFound:
            path = self._repository.delta(name).block_path(block)
            return await self._object(request, path, block)

    async def _object(self, request: Request, path: str, name: Multihash) -> Response:
        headers = {"Accept-Ranges": "bytes", "ETag": f'"{name}"'}
        first = b""
        if "range" not in request.headers and request.method == "GET":
            chunk_bytes = self._chunk_bytes
            first = await run_in_threadpool(self._store.get_range, path, 0, chunk_bytes)
            if len(first) < chunk_bytes:
                return Response(first, headers=headers, media_type=_OCTETS)
        size = (await run_in_threadpool(self._store.head, path)).size_bytes
        wanted = _wanted(request, size, headers["ETag"])
        status = 200
        if wanted is None:
            wanted = range(size)
        elif wanted:
            status = 206
            headers["Content-Range"] = f"bytes {wanted.start}-{wanted.stop - 1}/{size}"
        else:
            return Response(None, 416, {"Content-Range": f"bytes */{size}"})
        headers["Content-Length"] = str(len(wanted))
        if request.method == "HEAD":
            return Response(None, status, headers, _OCTETS)
        return StreamingResponse(self._chunks(path, wanted, first), status, headers, _OCTETS)

    @property
    def _chunk_bytes(self) -> int:
        each = UNREAD_BYTES // max(1, self._connections())
        return max(SMALLEST_CHUNK_BYTES, min(DATASET_CHUNK_BYTES, each))

    async def _chunks(self, path: str, wanted: range, first: bytes) -> AsyncIterator[bytes]:
        at = wanted.start + len(first)
        if first:
            yield first
        # Don't keep the first chunk in memory during the rest of the download.
        del first
        while at < wanted.stop:
            length = min(self._chunk_bytes, wanted.stop - at)
            chunk = await run_in_threadpool(self._store.get_range, path, at, length)
            if not chunk:
                raise StorageUnavailable("an object was shorter than announced", path=path)
            yield chunk
            at += len(chunk)

    # --- PUT ------------------------------------------------------------------------

    async def _put(
        self, request: Request, target: RequestTarget, permit: Permit | None
    ) -> Response:
        kind = _KINDS.get(target.folder)
        if kind is None:
            return Response(None, 405, {"Allow": "GET, HEAD"})
        name = Multihash.parse(target.leaf)
        if name.algorithm is not Algorithm.SHA3_256:
            raise InvalidInput("an object's name has to be its sha3-256")
        length = request.headers.get("content-length", "")
        if not _NUMBER.fullmatch(length):
            return _message(400, "a Content-Length is needed")
        size = int(length)
        if size > self._largest_object_bytes:
            raise LimitExceeded(f"an object has at most {self._largest_object_bytes:,} bytes")
        if permit is not None and permit.size_bytes is not None and size > permit.size_bytes:
            return Response(status_code=403)
        if target.path is not None and permit is None:
            return Response(status_code=403)
        of = target.kind
        path = self._repository.dataset(target.dataset, of).place(target.ref())
        whole = size if permit is None or permit.whole_bytes is None else permit.whole_bytes
        state = await run_in_threadpool(self._before, target.dataset, of, path, whole, permit)
        if state is None:
            return Response(status_code=404)
        body = ObjectBody(request, self._silent_for_s)
        if state:
            # A client that waits for "100 Continue" needn't send the body.
            if request.headers.get("expect", "").lower() != "100-continue":
                await body.pass_over()
            return Response(status_code=200)
        if size <= _SMALL_BYTES:
            await body.fetch()
        async with self._slots.slot(_holder(request, permit)) as slot:
            body.limit_to(slot)
            return await self._store_body(body, target, path, name, size, permit)

    async def _store_body(
        self,
        body: ObjectBody,
        target: RequestTarget,
        path: str,
        name: Multihash,
        size: int,
        permit: Permit | None,
    ) -> Response:
        if self._uploads is None:
            self._uploads = anyio.CapacityLimiter(UPLOADS_AT_ONCE)
        if permit is not None and permit.part is not None and permit.whole_bytes is not None:
            upload = self._store.parts_upload(path, permit.whole_bytes, begin=True)
            if upload is None:
                return Response(status_code=404)
            await anyio.to_thread.run_sync(
                upload.put, permit.part, body.pieces(), size, limiter=self._uploads
            )
            return Response(status_code=200)
        hashed = body.hashed(name)
        if target.kind is DatasetFormat.ODF:
            # An object with this name has these bytes.
            await anyio.to_thread.run_sync(
                self._store.put_stream, path, hashed, size, limiter=self._uploads
            )
            return Response(status_code=200)
        is_written = await anyio.to_thread.run_sync(
            self._store.put_stream_if_absent, path, hashed, size, limiter=self._uploads
        )
        if not is_written:
            await body.pass_over()
            if not await anyio.to_thread.run_sync(self._is, path, name, limiter=self._uploads):
                return _message(409, "another file took the name meanwhile")
        return Response(status_code=200)

    def _is(self, path: str, name: Multihash) -> bool:
        """Return True if the file at a path has this hash."""
        size = self._store.head(path).size_bytes
        starts = range(0, size, DATASET_CHUNK_BYTES)
        chunks = (self._store.get_range(path, start, DATASET_CHUNK_BYTES) for start in starts)
        return hash_stream(chunks) == name

    def _before(
        self, name: DatasetName, of: DatasetFormat, path: str, size: int, permit: Permit | None
    ) -> bool | None:
        """Return True if an object exists already; ``None`` if its dataset doesn't exist.

        A client with a permit may be creating the dataset: it exists after its objects do.
        """
        kind = self._repository.kind(name)
        if kind is not of and (kind is not None or permit is None):
            return None
        try:
            there = self._store.head(path).size_bytes
        except ObjectNotFound:
            return False
        # A table's file is never replaced; the commit checks whether it is the right one.
        return there == size or of is DatasetFormat.DELTA


def _holder(request: Request, permit: Permit | None) -> str:
    """Return the name that an upload is counted under."""
    if permit is not None and permit.holder is not None:
        return permit.holder
    token = handshake.bearer_token(request.headers.items())
    address = request.client.host if request.client is not None else None
    return holder_of(token if isinstance(token, str) else None, address)


def _wanted(request: Request, size: int, etag: str) -> range | None:
    """Return the requested bytes: ``None`` for the whole file, empty if the range has none.

    A header that isn't a single byte range means the whole file, as HTTP allows.
    """
    match = _RANGE.fullmatch(request.headers.get("range", ""))
    if match is None or request.headers.get("if-range", etag) != etag:
        return None
    match match[1], match[2]:
        case "", "":
            return None
        case "", last:
            return range(max(0, size - int(last)), size)
        case first, "":
            return range(int(first), size)
        case first, last if int(first) <= int(last):
            return range(int(first), min(size, int(last) + 1))
    return None


def _refusal(error: LakeferryError, request: Request) -> Response:
    match error:
        case InvalidInput() | HashMismatch():
            return _message(400, str(error))
        case ObjectNotFound():
            return Response(status_code=404)
        case TimedOut():
            return _message(408, str(error))
        case LimitExceeded():
            return _message(413, str(error))
    _LOG.error("%s %s failed: %s", request.method, request.url.path, error)
    if isinstance(error, StorageUnavailable):
        return Response(None, 503, {"Retry-After": _RETRY_AFTER_S})
    return Response(status_code=500)


def _refused(refusal: HttpRefusal) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else None
    return Response(refusal.text or None, refusal.status, headers, "text/plain")


def _message(status: int, text: str) -> Response:
    content = msgspec.json.encode({"message": text})
    return Response(content, status, media_type="application/json")
