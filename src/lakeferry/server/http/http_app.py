"""The HTTP application: its routes, and the status of each error.

=============================  ====================================================
``GET /healthz``               200 while the server works, 503 otherwise
``GET /metrics``               numbers for Prometheus (:mod:`lakeferry.server.metrics`)
``POST /.lakeferry/lakefs``    an event of lakeFS's; 202 and ``{"job": id}`` at once,
                               401 for who doesn't know the secret, 400 for what is
                               no event, 409 for one that was here before or is old,
                               413 for too much, 503 where it can't be kept now
=============================  ====================================================

All other paths are datasets' (:mod:`lakeferry.server.http.dataset_routes`), and so are all
WebSockets (:mod:`lakeferry.server.sessions.websocket_sessions`).

A refusal here is ``{"error": {"code", "message", "remedy", …}}``, as on the command line.
An accepted event is in the store before the answer is sent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from lakeferry.errors import (
    CommitConflict,
    InvalidInput,
    LakeferryError,
    LimitExceeded,
    StorageUnavailable,
    TimedOut,
    Unauthorized,
)
from lakeferry.export import webhook
from lakeferry.export.job_queue import Queue
from lakeferry.server.client_identity import holder_of
from lakeferry.server.lakefs.action_file import WEBHOOK
from lakeferry.server.metrics import ROUTE, CountedRequests, Metrics
from lakeferry.server.upload_slots import Slot, Slots

BODY_WITHIN_S = 15.0
"""How long a sender may take for a body, including its waiting time."""
BODIES_AT_ONCE = 16
"""How many bodies of events are in memory at a time."""
MOST_WAITING = 64
"""How many senders may wait for their turn."""

_LOG = logging.getLogger(__name__)
_RETRY_AFTER_S = "30"
_KNOWN = "knows the secret"


def create_app(
    queue: Queue,
    secret: str | None,
    *,
    wake: Callable[[], None],
    is_healthy: Callable[[], bool],
    datasets: Sequence[BaseRoute] = (),
    metrics: Metrics | None = None,
    clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> Starlette:
    """Return the application; ``wake`` is called when a job was stored.

    ``datasets`` are the routes of the datasets; they get every path that no other route matches.
    Without a ``secret`` the webhook refuses everything. Requests are counted in ``metrics``.
    """
    counted = metrics or Metrics()
    bodies = Slots(BODIES_AT_ONCE, MOST_WAITING)

    async def health(_: Request) -> Response:
        fine = is_healthy()
        return _json({"status": "ok" if fine else "failed"}, 200 if fine else 503)

    async def lakefs(request: Request) -> Response:
        try:
            # Refuse by the headers if possible, before the body is sent.
            is_known = webhook.is_known_by_head(secret, request.headers)
            holder = _KNOWN if is_known else holder_of(None, _sender(request))
            body = await _body(request, webhook.LARGEST_BODY_BYTES, bodies, holder)
            # The store is synchronous.
            job = await run_in_threadpool(_accept, queue, secret, request.headers, body, clock)
        except LakeferryError as refused:
            _LOG.warning("refused what %s sent: %s", _sender(request), refused)
            return _refusal(refused)
        except ClientDisconnect:
            return Response(status_code=400)
        wake()
        return _json({"job": job}, 202)

    return Starlette(
        routes=[
            Route("/healthz", health, methods=["GET"]),
            Route(ROUTE, counted.answer, methods=["GET"]),
            Route(WEBHOOK, lakefs, methods=["POST"]),
            *datasets,
        ],
        middleware=[Middleware(CountedRequests, counted)],
    )


def _accept(
    queue: Queue, secret: str | None, headers: Any, body: bytes, clock: Callable[[], int]
) -> str:
    """Put the event of a request into the queue and return its job."""
    now_ms = clock()
    webhook.authenticate(secret, headers, body, now_ms)
    event = webhook.parse_event(body)
    if not event.is_current(now_ms):
        raise CommitConflict(
            "the event is too old or too new",
            cause=f"its time is {event.time_ms}, and the server's time is {now_ms}",
            remedy="check both clocks; recorded events aren't accepted",
            identity=event.identity,
        )
    job = queue.accept(event)
    if job is None:
        raise CommitConflict(
            "the event has arrived before",
            remedy="there is nothing to do: its export was requested then",
            identity=event.identity,
        )
    return job.id


async def _body(request: Request, limit_bytes: int, bodies: Slots, holder: str) -> bytes:
    """Return the body of a request; its size, its time and the number of bodies are bounded."""
    body = bytearray()
    loop = asyncio.get_running_loop()
    slot: Slot | None = None
    try:
        async with asyncio.timeout(BODY_WITHIN_S) as timer, bodies.slot(holder) as slot:
            slot.interrupt = lambda: timer.reschedule(loop.time())
            async for chunk in request.stream():
                body += chunk
                slot.received_bytes = len(body)
                if len(body) > limit_bytes:
                    raise LimitExceeded(f"the body has more than {limit_bytes:,} bytes")
    except TimeoutError as late:
        if slot is not None and slot.is_withdrawn:
            raise StorageUnavailable(
                "other clients are waiting, and this body was too slow"
            ) from late
        raise TimedOut(f"the body didn't arrive within {BODY_WITHIN_S:g} seconds") from late
    return bytes(body)


def _refusal(error: LakeferryError) -> Response:
    headers: dict[str, str] = {}
    match error:
        case Unauthorized():
            status = 401
            headers["WWW-Authenticate"] = "Lakeferry"
        case InvalidInput():
            status = 400
        case CommitConflict():
            status = 409
        case TimedOut():
            status = 408
        case LimitExceeded() if error.fields.get("jobs") is None:
            status = 413
        case _:
            status = 503
            headers["Retry-After"] = _RETRY_AFTER_S
    return _json({"error": error.as_document()}, status, headers)


def _sender(request: Request) -> str:
    return request.client.host if request.client is not None else "somebody"


def _json(document: object, status: int, headers: dict[str, str] | None = None) -> Response:
    content = msgspec.json.encode(document, enc_hook=str)
    return Response(content, status, headers, media_type="application/json")
