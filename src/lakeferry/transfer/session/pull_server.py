"""The server's state machine of a pull.

::

    REQUEST  ── request ──────────▶ PLANNING
    PLANNING ── accepted ─────────▶ METADATA        ── refuse ──▶ REFUSED
    METADATA ── ask for blocks ───▶ LOADING         ── close ───▶ DONE
    LOADING  ── blocks ready ─────▶ OBJECTS
    OBJECTS  ── ask for objects ──▶ SIGNING         ── close ───▶ DONE
    SIGNING  ── URLs ready ───────▶ OBJECTS

A refused client gets a few seconds to close, and its messages are discarded meanwhile. Whatever
isn't in the table leads to FAILED, with a Close that says why.
"""

from __future__ import annotations

from enum import Enum

from lakeferry.errors import StorageUnavailable
from lakeferry.transfer.session.closing import connection_lost, is_clean
from lakeferry.transfer.session.events import (
    BlocksReady,
    HostEvent,
    LoadBlocks,
    MakePlan,
    PlanReady,
    SignUrls,
    UrlsReady,
    WorkRefused,
)
from lakeferry.transfer.session.machine import OutOfPlace, Pace, SessionStep, with_failures
from lakeferry.transfer.session.server_refusals import ServerSession
from lakeferry.transfer.wire import messages as m
from lakeferry.transfer.wire.codec import LIMITS, MessageLimits
from lakeferry.transfer.wire.failure_messages import Phase
from lakeferry.transfer.wire.messages import Message, MessageDialect, ObjectDownload, ObjectFile


class PullServerState(Enum):
    """Where the server of a pull is; the values complete "the server is …"."""

    REQUEST = "waiting for the request"
    PLANNING = "making a plan"
    METADATA = "waiting for a request for blocks"
    LOADING = "loading blocks"
    OBJECTS = "waiting for a request for objects"
    SIGNING = "signing URLs"
    REFUSED = "waiting for the client to close"
    DONE = "done"
    FAILED = "failed"


_S = PullServerState
PULL_SERVER_TABLE = with_failures(
    {
        (_S.REQUEST, SessionStep.REQUEST): _S.PLANNING,
        (_S.PLANNING, SessionStep.ACCEPTED): _S.METADATA,
        (_S.PLANNING, SessionStep.REFUSE): _S.REFUSED,
        (_S.METADATA, SessionStep.ASK_BLOCKS): _S.LOADING,
        (_S.METADATA, SessionStep.LEAVE): _S.DONE,
        (_S.LOADING, SessionStep.BLOCKS_READY): _S.OBJECTS,
        (_S.OBJECTS, SessionStep.ASK_OBJECTS): _S.SIGNING,
        (_S.OBJECTS, SessionStep.LEAVE): _S.DONE,
        (_S.SIGNING, SessionStep.URLS_READY): _S.OBJECTS,
        (_S.REFUSED, SessionStep.DISCARD): _S.REFUSED,
    },
    _S,
    (_S.DONE, _S.FAILED),
    _S.FAILED,
)
"""Every transition of a pull's server."""

_SERVER_EXPECTS: dict[PullServerState, tuple[type, ...]] = {
    _S.REQUEST: (m.PullRequest,),
    _S.METADATA: (m.PullMetadataRequest,),
    _S.OBJECTS: (m.PullObjectsRequest,),
}
_SERVER_PHASES = {
    _S.REQUEST: Phase.PULL_REQUEST,
    _S.PLANNING: Phase.PULL_REQUEST,
    _S.REFUSED: Phase.PULL_REQUEST,
    _S.METADATA: Phase.PULL_METADATA,
    _S.LOADING: Phase.PULL_METADATA,
}


class PullServer(ServerSession[PullServerState]):
    """The end that has the dataset. It gets the plan, blocks and URLs from its host."""

    def __init__(
        self, dialect: MessageDialect, limits: MessageLimits = LIMITS, pace: Pace | None = None
    ) -> None:
        super().__init__(PULL_SERVER_TABLE, _S.REQUEST, _S.DONE, _S.FAILED, dialect, limits, pace)
        self._objects: tuple[ObjectFile, ...] = ()

    def _wait_ms(self) -> int | None:
        match self.state:
            case _S.REQUEST:
                return self.pace.first_ms
            case _S.METADATA:
                return self.pace.turn_ms
            case _S.OBJECTS:
                return self.pace.idle_ms
            case _S.REFUSED:
                return self.pace.drain_ms
            case _:
                return None

    def _expected(self) -> tuple[type, ...]:
        return _SERVER_EXPECTS.get(self.state, ())

    def _phase(self) -> Phase:
        return _SERVER_PHASES.get(self.state, Phase.PULL_OBJECTS)

    def _on_message(self, said: Message) -> None:
        match said:
            case m.PullRequest():
                self._step(SessionStep.REQUEST)
                self._do(MakePlan(said))
            case m.PullMetadataRequest():
                self._step(SessionStep.ASK_BLOCKS)
                self._do(LoadBlocks())
            case m.PullObjectsRequest(objects):
                self._count_round()
                self._step(SessionStep.ASK_OBJECTS)
                self._objects = objects
                self._do(SignUrls(objects))
            case _:
                raise OutOfPlace(f"the server is {self.state.value}")

    def _on_close(self, code: int, reason: str) -> None:
        if self.state is _S.REFUSED:
            self._finish(SessionStep.FAIL)
        elif is_clean(code) and self.state in (_S.METADATA, _S.OBJECTS):
            self._finish(SessionStep.LEAVE)
        else:
            raise connection_lost("client", self.state, code, reason)

    def _on_command(self, command: HostEvent) -> None:
        match command:
            case PlanReady(plan):
                self._step(SessionStep.ACCEPTED)
                self._say(m.PullPlan(plan))
            case BlocksReady(blocks):
                self._say_and_step(SessionStep.BLOCKS_READY, m.PullMetadata(blocks))
            case UrlsReady(urls) if self.state is _S.SIGNING:
                downloads = tuple(
                    ObjectDownload(one, url)
                    for one, url in zip(self._objects, urls, strict=False)
                    if url is not None
                )
                if not len(downloads) == len(urls) == len(self._objects):
                    raise StorageUnavailable("not every object got a URL")
                self._objects = ()
                self._say_and_step(SessionStep.URLS_READY, m.PullObjects(downloads))
            case WorkRefused(problem):
                self._refuse(problem, at_request=self.state is _S.PLANNING)
            case _:
                raise OutOfPlace(f"the server is {self.state.value}")
