"""Counts what the server does, and serves ``GET /metrics``.

Labels have few values, all defined here: kinds of requests, statuses, codes of errors. Names
from peers, above all of datasets, are never labels: their number is unlimited, and a reader of
the metrics may not be allowed to see them. So the metrics are public, as ``/healthz`` is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from lakeferry.errors import LakeferryError
from lakeferry.transfer.session.events import (
    BlocksReady,
    BlocksTaken,
    CheckAndCommit,
    HostEvent,
    MachineAction,
    SignUrls,
    TakeBlocks,
    UrlsReady,
    WorkRefused,
)

ROUTE = "/metrics"
DONE = "done"
FAILED = "failed"
LEFT = "client_left"
"""The outcome of a session whose client went away."""

_METHODS = frozenset({"GET", "HEAD", "PUT", "POST"})
_PLAIN = {"healthz": "healthz", "metrics": "metrics", ".lakeferry": "webhook"}
_BEHIND = frozenset({"refs", "blocks", "data", "checkpoints", "pull", "push", "_delta_log"})
_OTHER = "other"
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3600)


class Metrics:
    """The numbers of one server. Safe to use from several threads."""

    def __init__(self) -> None:
        """Start at zero."""
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.sessions = Gauge(
            "lakeferry_sessions", "Pulls and pushes that are running.", ["op"], registry=registry
        )
        self.ended = Counter(
            "lakeferry_sessions_ended",
            "Pulls and pushes that ended; the outcome is done, or the error's code.",
            ["op", "outcome"],
            registry=registry,
        )
        self.session_seconds = Histogram(
            "lakeferry_session_seconds",
            "How long pulls and pushes took.",
            ["op"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.refused = Counter(
            "lakeferry_handshakes_refused",
            "Pulls and pushes that didn't begin, by the status of the answer.",
            ["op", "status"],
            registry=registry,
        )
        self.objects = Counter(
            "lakeferry_objects_granted",
            "Objects for which URLs were handed out.",
            ["op"],
            registry=registry,
        )
        self.object_bytes = Counter(
            "lakeferry_object_bytes_granted",
            "Bytes of these objects, as far as clients say.",
            ["op"],
            registry=registry,
        )
        self.blocks = Counter(
            "lakeferry_blocks",
            "Blocks that went to clients by pulls, and came by pushes.",
            ["op"],
            registry=registry,
        )
        self.commits = Counter(
            "lakeferry_commits",
            "Attempts to commit; the outcome is done, or the error's code.",
            ["outcome"],
            registry=registry,
        )
        self.commit_seconds = Histogram(
            "lakeferry_commit_seconds",
            "How long these took, with the look at every object.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.requests = Counter(
            "lakeferry_http_requests",
            "Requests other than sessions, by what they are for and the status of the answer.",
            ["route", "method", "status"],
            registry=registry,
        )
        self._held = Gauge(
            "lakeferry_held_bytes", "Bytes that pushes hold in memory.", registry=registry
        )

    def watch_held(self, held: Callable[[], int]) -> None:
        """Report the held bytes, read whenever the metrics are requested."""
        self._held.set_function(held)

    def shown(self) -> bytes:
        """Return all numbers in Prometheus's format."""
        return generate_latest(self._registry)

    async def answer(self, _: Request) -> Response:
        """Answer ``GET /metrics``."""
        content = await run_in_threadpool(self.shown)
        return Response(content, media_type=CONTENT_TYPE_PLAIN_0_0_4)


def counting(
    metrics: Metrics, op: str, answer: Callable[[MachineAction], HostEvent]
) -> Callable[[MachineAction], HostEvent]:
    """Return a function that executes actions as ``answer`` does, and counts them."""

    def counted(action: MachineAction) -> HostEvent:
        began = time.monotonic()
        try:
            command = answer(action)
        except LakeferryError as failed:
            if isinstance(action, CheckAndCommit):
                _committed(metrics, failed.code, began)
            raise
        match action, command:
            case SignUrls(objects), UrlsReady(urls):
                granted = [one for one, url in zip(objects, urls, strict=True) if url is not None]
                metrics.objects.labels(op).inc(len(granted))
                metrics.object_bytes.labels(op).inc(sum(one.size_bytes or 0 for one in granted))
            case TakeBlocks(batch), BlocksTaken():
                metrics.blocks.labels(op).inc(batch.num_blocks)
            case _, BlocksReady(batch):
                metrics.blocks.labels(op).inc(batch.num_blocks)
            case CheckAndCommit(), WorkRefused(problem):
                _committed(metrics, getattr(problem, "code", FAILED), began)
            case CheckAndCommit(), _:
                _committed(metrics, DONE, began)
        return command

    return counted


def _committed(metrics: Metrics, outcome: str, began: float) -> None:
    metrics.commits.labels(outcome).inc()
    metrics.commit_seconds.observe(time.monotonic() - began)


class CountedRequests:
    """Wraps an application and counts its plain HTTP requests."""

    def __init__(self, app: Any, metrics: Metrics) -> None:
        """Count the requests to ``app``."""
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        async def seen(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, seen)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else _OTHER
            # A request that was cut off before its answer has no status.
            with suppress(ValueError):
                self._metrics.requests.labels(route_of(scope["path"]), method, status).inc()


def route_of(path: str) -> str:
    """Return the route of a path, as one of our own words; ``other`` for an unknown path."""
    first, *rest = path.removeprefix("/").split("/")
    if first in _PLAIN:
        return _PLAIN[first]
    # After a dataset's name of one or two segments.
    return next((part for part in rest[:2] if part in _BEHIND), _OTHER)
