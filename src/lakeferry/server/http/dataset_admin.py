"""Lists, renames and deletes datasets over HTTP, and sets who may read them.

=====================  ==================================================================
``GET /``              the datasets that the client may read, as JSON, a page at a time;
                       for clients that accept ``application/json``
``PATCH /NAME``        ``{"name": NEW}`` renames the dataset, ``{"visibility": …}`` sets
                       who may read it
``DELETE /NAME``       deletes it; ``?force=true`` also if a redirect leads to it
=====================  ==================================================================

Changes need a token to write that covers the dataset; a rename needs one that covers both names.
``?dry_run=true`` changes nothing. Refusals are ``{"error": {"code", "message", …}}``. As for all
requests, a dataset that the token doesn't cover doesn't exist.

Without a token, the list has the public datasets, or all with ``--anonymous-read``. If that is
none at all, the answer is 401. Few lists are made at a time, only one of them for clients without
a token, and each is bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from lakeferry.errors import (
    CommitConflict,
    CorruptLog,
    Forbidden,
    InvalidInput,
    LakeferryError,
    LimitExceeded,
    ObjectNotFound,
    RedirectError,
    StorageError,
    TimedOut,
    Unauthorized,
)
from lakeferry.server.http.access import ANONYMOUS, DatasetAccess, HttpRefusal
from lakeferry.server.http.dataset_routes import RequestTarget
from lakeferry.transfer.repository.dataset_changes import (
    DatasetChanged,
    DatasetChanges,
    no_dataset,
)
from lakeferry.transfer.repository.dataset_list import (
    PAGE_DATASETS,
    DatasetPage,
    list_datasets,
    one_dataset,
)
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.repository import Repository, Visibility

LISTS_AT_ONCE = 4
_LARGEST_REQUEST_BYTES = 4096
_BODY_READ_WITHIN_S = 15.0
_JSON = "application/json"
_LOG = logging.getLogger(__name__)


class _Patch(msgspec.Struct, forbid_unknown_fields=True):
    name: str | None = None
    visibility: str | None = None


_PATCH_DECODER = msgspec.json.Decoder(_Patch)


class DatasetAdmin:
    """The endpoints that list and change datasets."""

    def __init__(
        self, repository: Repository, access: DatasetAccess, changes: DatasetChanges
    ) -> None:
        """Answer for a repository, by its rules of access."""
        self._repository = repository
        self._access = access
        self._changes = changes
        self._lists: dict[bool, anyio.CapacityLimiter] = {}
        """Places for making lists, for clients with a token and for those without."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes; they must come before the one that matches every path."""
        return [
            Route("/", self._list, methods=["GET"]),
            Route("/{path:path}", self._patch, methods=["PATCH"]),
            Route("/{path:path}", self._delete, methods=["DELETE"]),
        ]

    # --- The list -------------------------------------------------------------------

    async def _list(self, request: Request) -> Response:
        if _JSON not in request.headers.get("accept", ""):
            return Response(status_code=404)
        has_token = "authorization" in request.headers
        places = LISTS_AT_ONCE if has_token else 1
        limiter = self._lists.setdefault(has_token, anyio.CapacityLimiter(places))

        async def answer() -> Response:
            page = await anyio.to_thread.run_sync(self._page, request, limiter=limiter)
            datasets = [each.as_document() for each in page.datasets]
            return _document({"datasets": datasets, "next": page.next})

        return await _answered(request, answer)

    def _page(self, request: Request) -> DatasetPage:
        grant = self._access.grant_of(request.headers.getlist("authorization"))
        if isinstance(grant, HttpRefusal):
            raise _error_of(grant)
        after = request.query_params.get("after")
        limit = _limit(request.query_params.get("limit", str(PAGE_DATASETS)))
        if after is not None:
            DatasetName.parse(after)
        if self._access.anonymous_read or (grant is not None and grant.dataset is None):
            return list_datasets(self._repository, after=after, limit=limit)

        if grant is not None and grant.dataset is not None:
            # A token for one dataset shows that one. The public ones are listed without a token.
            own = one_dataset(self._repository, DatasetName.parse(grant.dataset))
            return DatasetPage(() if own is None or after is not None else (own,), None)

        def sees(_: DatasetName, visibility: Visibility) -> bool:
            return visibility is Visibility.PUBLIC

        page = list_datasets(self._repository, after=after, limit=limit, sees=sees)
        if not page.datasets and after is None:
            raise _error_of(HttpRefusal(401))
        return page

    # --- Changes --------------------------------------------------------------------

    async def _patch(self, request: Request) -> Response:
        async def answer() -> Response:
            name = _name(request)
            await run_in_threadpool(self._check_may_write, request, name)
            wanted = _decoded(await _body(request))
            return await self._changed(
                request, lambda dry: self._patched(request, name, wanted, dry)
            )

        return await _answered(request, answer)

    def _patched(
        self, request: Request, name: DatasetName, wanted: _Patch, dry_run: bool
    ) -> DatasetChanged:
        if wanted.name is not None:
            new = DatasetName.parse(wanted.name)
            if self._refusal(request, new) is not None:
                raise Forbidden(f"the token isn't for the name {new}")
            return self._changes.rename(name, new, dry_run=dry_run)
        try:
            visibility = Visibility(wanted.visibility)
        except ValueError as wrong:
            raise _not_understood("a visibility is private or public") from wrong
        return self._changes.set_visibility(name, visibility, dry_run=dry_run)

    async def _delete(self, request: Request) -> Response:
        async def answer() -> Response:
            name = _name(request)
            await run_in_threadpool(self._check_may_write, request, name)
            force = _flag(request, "force")
            return await self._changed(
                request, lambda dry: self._changes.delete(name, force=force, dry_run=dry)
            )

        return await _answered(request, answer)

    async def _changed(
        self, request: Request, change: Callable[[bool], DatasetChanged]
    ) -> Response:
        dry_run = _flag(request, "dry_run")
        done = await run_in_threadpool(change, dry_run)
        if done.changed and not dry_run:
            host = request.client.host if request.client is not None else None
            _LOG.info("%s %s from %s: done", request.method, request.url.path, host)
        return _document(done.as_document())

    def _check_may_write(self, request: Request, name: DatasetName) -> None:
        refusal = self._refusal(request, name)
        if refusal is None:
            return
        if refusal.status == 404:
            raise no_dataset(name)
        raise _error_of(refusal)

    def _refusal(self, request: Request, name: DatasetName) -> HttpRefusal | None:
        sent = request.headers.getlist("authorization")
        return self._access.refusal(sent, name, write=True)


async def _answered(request: Request, answer: Callable[[], Any]) -> Response:
    """Return an answer, or the refusal that an error means."""
    if RequestTarget.of(request.scope["path"]) is not None:
        # An object of a dataset, and no dataset.
        return Response(None, 405, {"Allow": "GET, HEAD, PUT"})
    try:
        response: Response = await answer()
        return response
    except ClientDisconnect:
        return Response(status_code=400)
    except LakeferryError as refused:
        return _refused(request, refused)
    except Exception:  # noqa: BLE001 - the server has to answer the other requests
        _LOG.exception("%s %s failed", request.method, request.url.path)
        return Response(status_code=500)


def _refused(request: Request, error: LakeferryError) -> Response:
    headers: dict[str, str] = {}
    match error:
        case InvalidInput():
            status = 400
        case Unauthorized() if error.fields.get("by_server"):
            status, headers = 401, {"WWW-Authenticate": "Bearer"}
        case Forbidden() if not error.fields.get("uri"):
            status = 403
        case ObjectNotFound() if error.fields.get("dataset_alias"):
            status = 404
        case CommitConflict() | RedirectError():
            status = 409
        case LimitExceeded():
            status = 413
        case StorageError() | TimedOut():
            # What the store says isn't for clients.
            _LOG.error("%s %s failed: %s", request.method, request.url.path, error)
            return Response(None, 503, {"Retry-After": "5"})
        case _:
            _LOG.error("%s %s failed: %s", request.method, request.url.path, error)
            code = CorruptLog.code if isinstance(error, CorruptLog) else "internal_error"
            failed = {"code": code, "message": "the server failed: its log has the reason"}
            return _document({"error": {**failed, "remedy": None}}, 500)
    return _document({"error": error.as_document()}, status, headers)


def _error_of(refusal: HttpRefusal) -> LakeferryError:
    if refusal.status == 401:
        return Unauthorized(refusal.text or ANONYMOUS, by_server=True)
    if refusal.status == 400:
        return InvalidInput(refusal.text or "the request can't be understood")
    return Forbidden("the token is only for reading")


def _name(request: Request) -> DatasetName:
    return DatasetName.parse(request.path_params["path"])


def _flag(request: Request, name: str) -> bool:
    given = request.query_params.get(name, "false")
    if given not in ("true", "false"):
        # Whoever writes dry_run=1 must not find that the dataset is gone.
        raise _not_understood(f"{name} is true or false")
    return given == "true"


def _limit(text: str) -> int:
    if not text.isdecimal() or not text.isascii() or not 1 <= int(text[:9]) <= PAGE_DATASETS:
        raise _not_understood(f"the limit of a page is 1 to {PAGE_DATASETS}")
    return int(text)


def _decoded(body: bytes) -> _Patch:
    try:
        wanted = _PATCH_DECODER.decode(body)
    except msgspec.MsgspecError as wrong:
        raise _not_understood(str(wrong)) from wrong
    if (wanted.name is None) == (wanted.visibility is None):
        raise _not_understood("it has to have either a name or a visibility")
    return wanted


def _not_understood(cause: str) -> InvalidInput:
    return InvalidInput("the request can't be understood", cause=cause)


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_READ_WITHIN_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _LARGEST_REQUEST_BYTES:
                    raise LimitExceeded(f"the body has more than {_LARGEST_REQUEST_BYTES:,} bytes")
    except TimeoutError as late:
        raise TimedOut("the body didn't arrive in time") from late
    return bytes(body)


def _document(
    content: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    data = msgspec.json.encode(content, enc_hook=str)
    return Response(data, status, headers, media_type=_JSON)
