"""Runs pushes and pulls over WebSocket.

A session is a machine without I/O (:mod:`lakeferry.transfer.session.machine`) and an object that
executes its actions (:mod:`lakeferry.server.sessions.pull_work`,
:mod:`lakeferry.server.sessions.push_work`). :mod:`lakeferry.server.sessions.conversation` gives
them a socket, a clock and threads. This module decides which sessions begin.

Sessions are bounded in number here, in time by their machine's ``Pace``, and in memory: few large
messages are processed at once, pushes hold blocks against a budget, and there is limited room for
answers (:mod:`lakeferry.server.sessions.answer_room`). If a table's chain has to be made first,
which may take very long, no thread waits for it, and the work after it has threads of its own.

When the server shuts down, clients are told to come again (Close 1012). A commit that has begun
is finished if the time allows; one that is cut off has either moved the head or not.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from lakeferry.errors import Forbidden, InvalidInput, LakeferryError, Unauthorized
from lakeferry.server import metrics as counted
from lakeferry.server.client_identity import holder_of, network_of
from lakeferry.server.http.access import DatasetAccess
from lakeferry.server.http.public_url import reached_at
from lakeferry.server.logs import say
from lakeferry.server.metrics import Metrics
from lakeferry.server.session_seats import Seat, Seats
from lakeferry.server.sessions.answer_room import ANSWERS_BYTES, AnswerRoom
from lakeferry.server.sessions.byte_budget import HELD_BYTES, Budget
from lakeferry.server.sessions.conversation import Conversation, SessionWork, wire_of
from lakeferry.server.sessions.object_name_claims import Promises
from lakeferry.server.sessions.pull_work import Pulling
from lakeferry.server.sessions.push_work import Pushing
from lakeferry.server.sessions.worker_threads import SessionThreads
from lakeferry.server.upload_slots import Slots
from lakeferry.transfer.datasets.dataset import DatasetFormat
from lakeferry.transfer.repository.access_tokens import token_id
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.push_renewal import Heart
from lakeferry.transfer.repository.repository import Repository
from lakeferry.transfer.repository.signed_urls import Links
from lakeferry.transfer.session.closing import has_left
from lakeferry.transfer.session.events import CheckAndCommit, ConsiderPush, MachineAction, MakePlan
from lakeferry.transfer.session.machine import Pace
from lakeferry.transfer.session.pull_server import PullServer
from lakeferry.transfer.session.push_server import PushServer
from lakeferry.transfer.wire import handshake
from lakeferry.transfer.wire.handshake import Agreement, HandshakeRefusal, Operation

MOST_SESSIONS = 256
URLS_LAST_S = 3600
PLANNED_BYTES = 16 << 20
"""Memory for blocks that were packed and haven't been requested yet."""

_LOG = logging.getLogger(__name__)
_RETRY_AFTER_S = "5"
_GOODBYE_S = 0.5  # to end the records of pushes; after a crash their silence has the same effect
_OPERATIONS = {operation.value for operation in Operation}


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a client asked for, and what the handshake agreed on."""

    operation: Operation
    name: DatasetName
    folder: DatasetName
    agreed: Agreement


class Sessions:
    """The WebSocket sessions of a server, for the datasets of a repository."""

    def __init__(
        self,
        repository: Repository,
        access: DatasetAccess,
        links: Links,
        *,
        puts_prove: bool,
        as_reached: bool = False,
        pace: Pace | None = None,
        most: int = MOST_SESSIONS,
        held_bytes: int = HELD_BYTES,
        urls_last_s: int = URLS_LAST_S,
        metrics: Metrics | None = None,
    ) -> None:
        """Serve a repository; for ``puts_prove`` see :class:`Pushing`.

        With ``as_reached``, links use the address by which the client reached the server.
        """
        self._repository = repository
        self._access = access
        self._links = links
        self._puts_prove = puts_prove
        self._as_reached = as_reached
        self._pace = pace
        self._seats = Seats(most)
        self._answers = Slots(ANSWERS_BYTES)
        self._planned = Budget(PLANNED_BYTES)
        self._urls_last_s = urls_last_s
        self._metrics = metrics or Metrics()
        self._budget = Budget(held_bytes)
        self._metrics.watch_held(lambda: self._budget.held)
        self._promises = Promises()
        self._heart = Heart()
        self._threads = SessionThreads()

    def routes(self) -> list[BaseRoute]:
        """Return routes for WebSockets at every path, and for plain requests to these two."""
        plain = [
            Route(f"/{{name:path}}/{operation.value}", self._plain, methods=["GET"])
            for operation in Operation
        ]
        return [WebSocketRoute("/{path:path}", self._open), *plain]

    def stop(self, grace_s: float) -> bool:
        """Start nothing new; return True if running commits ended within ``grace_s``."""
        self._repository.heads.stop()
        have_ended = self._threads.stop(grace_s)
        self._heart.stop(_GOODBYE_S)
        return have_ended

    # --- Before the session ---------------------------------------------------------

    async def _plain(self, request: Request) -> Response:
        """Answer a request that isn't a WebSocket, and say that it has to be one."""
        refused = await self._negotiated(request)
        if isinstance(refused, HandshakeRefusal):
            return _response(refused)
        return Response(status_code=400)

    async def _open(self, socket: WebSocket) -> None:
        agreed = await self._negotiated(socket)
        address = network_of(_client(socket))
        token = handshake.bearer_token(socket.headers.items())
        holder = holder_of(token if isinstance(token, str) else None, address)
        seat = None if isinstance(agreed, HandshakeRefusal) else self._seats.take(holder, address)
        if not isinstance(agreed, HandshakeRefusal) and seat is None:
            say(
                _LOG,
                logging.WARNING,
                "too many sessions: new ones are refused",
                sessions=len(self._seats),
            )
            agreed = HandshakeRefusal(503, headers=(("Retry-After", _RETRY_AFTER_S),))
        if isinstance(agreed, HandshakeRefusal):
            last = socket.scope["path"].rpartition("/")[2]
            op = last if last in _OPERATIONS else "other"
            self._metrics.refused.labels(op, agreed.status).inc()
            await socket.send_denial_response(_response(agreed))
            return
        assert seat is not None
        try:
            await self._run(socket, seat, agreed)
        except asyncio.CancelledError:
            # The server is shutting down; work that runs in a thread continues.
            say(_LOG, logging.WARNING, "a session was ended by the server's stop")
        finally:
            self._seats.leave(seat)

    async def _negotiated(self, asked: HTTPConnection) -> _Asked | HandshakeRefusal:
        path = asked.scope["path"].removeprefix("/")
        before, _, last = path.rpartition("/")
        try:
            operation, name = Operation(last), DatasetName.parse(before)
        except (ValueError, InvalidInput):
            return HandshakeRefusal(404)
        try:
            found = await run_in_threadpool(self._decide, operation, name, asked.headers.items())
        except LakeferryError as failed:
            told = {"op": operation.value, "dataset": name.text, "code": failed.code}
            say(_LOG, logging.ERROR, "handshake failed", **told, error=str(failed))
            return HandshakeRefusal(503, headers=(("Retry-After", _RETRY_AFTER_S),))
        except Exception:  # noqa: BLE001 - the server has to answer the other requests
            _LOG.exception("%s of %s can't be decided", operation.value, name)
            return HandshakeRefusal(500)
        if isinstance(found, HandshakeRefusal):
            say(
                _LOG,
                logging.INFO,
                "handshake refused",
                op=operation.value,
                dataset=name.text,
                client=_client(asked),
                status=found.status,
            )
        return found

    def _decide(
        self, operation: Operation, name: DatasetName, headers: Sequence[tuple[str, str]]
    ) -> _Asked | HandshakeRefusal:
        found = handshake.negotiate(operation, headers, self._access.standing(headers, name))
        if isinstance(found, HandshakeRefusal):
            return found
        if operation is Operation.PUSH:
            return _Asked(operation, name, self._repository.folders.folder_for_push(name), found)
        # Not earlier: the handshake defines the order of refusals.
        folder = self._repository.folders.folder(name)
        if folder is None or self._repository.kind(folder) is None:
            return HandshakeRefusal(404)
        return _Asked(operation, name, folder, found)

    # --- The session ----------------------------------------------------------------

    async def _run(self, socket: WebSocket, seat: Seat, asked: _Asked) -> None:
        name, folder, op = asked.name, asked.folder, asked.operation.value
        kind = await run_in_threadpool(self._repository.kind, folder)
        machine, work = self._begun(socket, seat, asked, kind)
        label = {"session": uuid.uuid4().hex[:12], "op": op, "dataset": name.text}
        began = time.monotonic()
        say(_LOG, logging.INFO, "session begins", **label, client=_client(socket))
        await socket.accept(subprotocol=asked.agreed.subprotocol)
        answer = counted.counting(self._metrics, op, work.answer)
        with self._metrics.sessions.labels(op).track_inprogress():
            try:
                seat.sitting = conversation = Conversation(
                    socket,
                    machine,
                    work,
                    answer,
                    self._threads,
                    label,
                    lambda action: self._first(action, folder, kind),
                    AnswerRoom(self._answers, seat.holder, wire_of(socket), self._threads.tidy),
                )
                await conversation.run()
            finally:
                self._say_ended(
                    machine,
                    label,
                    time.monotonic() - began,
                    client=_client(socket),
                    **work.amount,
                )

    def _begun(
        self, socket: WebSocket, seat: Seat, asked: _Asked, kind: DatasetFormat | None
    ) -> tuple[PullServer | PushServer, SessionWork]:
        """Return the machine of a session, and what executes its actions."""
        authorization = socket.headers.getlist("authorization")
        name, agreed = asked.name, asked.agreed
        is_push = asked.operation is Operation.PUSH

        def check() -> None:
            refusal = self._access.refusal(authorization, name, write=is_push, folder=asked.folder)
            if refusal is not None:
                refused = Unauthorized if refusal.status == 401 else Forbidden
                raise refused("the token isn't good any more")

        reached = reached_at(socket) if self._as_reached else None
        links = self._links if reached is None else self._links.at(reached)
        links = links.for_holder(seat.holder)
        if is_push:
            token = handshake.bearer_token(socket.headers.items())
            return PushServer(agreed.dialect, pace=self._pace), Pushing(
                self._repository,
                name,
                links,
                self._budget,
                puts_prove=self._puts_prove,
                urls_last_s=self._urls_last_s,
                check=check,
                extended=agreed.extended,
                promises=self._promises,
                heart=self._heart,
                session=seat,
                folder=asked.folder,
                token_id=token_id(token) if isinstance(token, str) else None,
            )
        return PullServer(agreed.dialect, pace=self._pace), Pulling(
            self._repository.dataset(asked.folder, kind or DatasetFormat.ODF),
            links,
            urls_last_s=self._urls_last_s,
            check=check,
            kept=self._planned,
        )

    def _say_ended(
        self,
        machine: PullServer | PushServer,
        label: Mapping[str, str],
        seconds: float,
        **described: object,
    ) -> None:
        """Count a session that has ended, and log how."""
        error = machine.error
        is_done = error is None and machine.is_over
        left = has_left(error)
        outcome = counted.DONE if is_done else error.code if error else counted.FAILED
        outcome = counted.LEFT if left else outcome
        self._metrics.ended.labels(label["op"], outcome).inc()
        self._metrics.session_seconds.labels(label["op"]).observe(seconds)
        self._threads.tidy()
        say(
            _LOG,
            logging.INFO,
            "session done" if is_done else "client left" if left else "session failed",
            **label,
            **described,
            seconds=round(seconds, 3),
            code=counted.LEFT if left else error and error.code,
            error=error and str(error),
        )

    def _first(
        self, action: MachineAction, folder: DatasetName, kind: DatasetFormat | None
    ) -> Future[Any] | None:
        """Return what has to finish before an action: making the head, if it isn't made yet."""
        match action:
            case MakePlan(request):
                is_needed = request.stop_at is None
            case _:
                is_needed = isinstance(action, ConsiderPush | CheckAndCommit)
        return (
            self._repository.heads.of(folder) if is_needed and kind is DatasetFormat.DELTA else None
        )


def _client(connection: HTTPConnection) -> str | None:
    return connection.client.host if connection.client else None


def _response(refusal: HandshakeRefusal) -> Response:
    headers = dict(refusal.headers)
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(refusal.body or None, refusal.status, headers, refusal.content_type)
