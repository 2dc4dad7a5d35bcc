"""The client's state machine of a pull.

::

    START      ── begin ──────────▶ REQUESTED
    REQUESTED  ── accepted ───────▶ WAITING         ── up to date ──▶ DONE
    WAITING    ── blocks ─────────▶ TAKING
    TAKING     ── blocks taken ───▶ CHOOSING
    CHOOSING   ── next objects ───▶ FETCHING
    FETCHING   ── ask for objects ▶ ASKED           ── more are needed ──▶ CHOOSING
    ASKED      ── URLs ───────────▶ FETCHING
    FETCHING   ── all moved ──────▶ COMMITTING      ── cut ──▶ ALONE
    ALONE      ── all moved ──────▶ COMMITTING
    COMMITTING ── committed ──────▶ DONE

Objects are requested a page at a time, and the next page while the last one is still being
fetched, so that at most two pages are being processed. An object whose URL wasn't used in time is
requested again, before new ones. Once nothing more is needed from the server, a lost connection
doesn't matter: the hashes decide. The table also has the steps that stay in a state; whatever
isn't in it leads to FAILED.
"""

from __future__ import annotations

from enum import Enum

from lakeferry.transfer.session.client_objects import ClientSession
from lakeferry.transfer.session.closing import NORMAL, connection_lost
from lakeferry.transfer.session.events import (
    Begin,
    BlocksTaken,
    CheckAndCommit,
    Close,
    Download,
    Expired,
    HostEvent,
    NextObjects,
    ObjectsMoved,
    ObjectsWanted,
    RunCommitted,
    TakeBlocks,
    WorkRefused,
)
from lakeferry.transfer.session.machine import OutOfPlace, Pace, SessionStep, with_failures
from lakeferry.transfer.session.server_refusals import error_in
from lakeferry.transfer.wire import messages as m
from lakeferry.transfer.wire.codec import LIMITS, MessageLimits, failure_in_close
from lakeferry.transfer.wire.failure_messages import error_of
from lakeferry.transfer.wire.messages import Message, MessageDialect, ObjectDownload, ObjectFile

PULL_SUCCEEDED = "Client pull flow succeeded"
"""The reference client's text when it closes."""


class PullClientState(Enum):
    """Where the client of a pull is; the values complete "the client is …"."""

    START = "about to begin"
    REQUESTED = "waiting for the plan"
    WAITING = "waiting for blocks"
    TAKING = "taking blocks"
    CHOOSING = "choosing objects"
    ASKED = "waiting for URLs"
    FETCHING = "fetching objects"
    ALONE = "fetching objects without the server"
    COMMITTING = "committing"
    DONE = "done"
    FAILED = "failed"


_C = PullClientState
_WITH_OBJECTS = (_C.CHOOSING, _C.ASKED, _C.FETCHING)
PULL_CLIENT_TABLE = with_failures(
    {
        (_C.START, SessionStep.BEGIN): _C.REQUESTED,
        (_C.REQUESTED, SessionStep.UP_TO_DATE): _C.DONE,
        (_C.REQUESTED, SessionStep.ACCEPTED): _C.WAITING,
        (_C.WAITING, SessionStep.BLOCKS): _C.TAKING,
        (_C.TAKING, SessionStep.BLOCKS_TAKEN): _C.CHOOSING,
        (_C.CHOOSING, SessionStep.NEXT): _C.FETCHING,
        (_C.FETCHING, SessionStep.CHOOSE): _C.CHOOSING,
        (_C.FETCHING, SessionStep.ASK_OBJECTS): _C.ASKED,
        (_C.ASKED, SessionStep.URLS): _C.FETCHING,
        **{(state, SessionStep.MOVED): state for state in (*_WITH_OBJECTS, _C.ALONE)},
        **{(state, SessionStep.EXPIRED): state for state in _WITH_OBJECTS},
        (_C.FETCHING, SessionStep.CUT): _C.ALONE,
        (_C.FETCHING, SessionStep.ALL_MOVED): _C.COMMITTING,
        (_C.ALONE, SessionStep.ALL_MOVED): _C.COMMITTING,
        (_C.COMMITTING, SessionStep.CUT): _C.COMMITTING,
        (_C.COMMITTING, SessionStep.COMMITTED): _C.DONE,
    },
    _C,
    (_C.DONE, _C.FAILED),
    _C.FAILED,
)
"""Every transition of a pull's client."""

_CLIENT_EXPECTS: dict[PullClientState, tuple[type, ...]] = {
    _C.REQUESTED: (m.PullPlan,),
    _C.WAITING: (m.PullMetadata,),
    _C.ASKED: (m.PullObjects,),
}


class PullClient(ClientSession[PullClientState]):
    """The end that wants the dataset.

    ``plan`` is the server's plan; if it has no blocks and the session succeeds, there was nothing
    to pull.
    """

    def __init__(
        self,
        dialect: MessageDialect,
        request: m.PullRequest,
        page: int = 1000,
        limits: MessageLimits = LIMITS,
        pace: Pace | None = None,
    ) -> None:
        super().__init__(
            PULL_CLIENT_TABLE, _C.START, _C.DONE, _C.FAILED, dialect, page, limits, pace
        )
        self.request = request
        self.plan: m.TransferPlan | None = None

    def _wait_ms(self) -> int | None:
        return self.pace.answer_ms if self.state in _CLIENT_EXPECTS else None

    def _expected(self) -> tuple[type, ...]:
        return _CLIENT_EXPECTS.get(self.state, ())

    def _on_message(self, said: Message) -> None:
        match said:
            case m.PullPlan(plan):
                self._take_plan(plan)
            case m.PullMetadata(blocks):
                self._step(SessionStep.BLOCKS)
                self._do(TakeBlocks(blocks))
            case m.PullObjects(downloads):
                objects = self._answered(one.object for one in downloads)
                self._step(SessionStep.URLS)
                self._in_hand |= {one.key: one for one in objects}
                urls = (one.url for one in downloads)
                self._do(Download(tuple(map(ObjectDownload, objects, urls))))
                self._advance()
            case _:
                raise OutOfPlace(f"the client is {self.state.value}")

    def _take_plan(self, plan: m.TransferPlan) -> None:
        self.plan = plan
        if plan.num_blocks == 0:
            self._do(Close(NORMAL, PULL_SUCCEEDED))
            self._finish(SessionStep.UP_TO_DATE)
        else:
            self._step(SessionStep.ACCEPTED)
            self._say(m.PullMetadataRequest())

    def _on_close(self, code: int, reason: str) -> None:
        if self.state is _C.COMMITTING or (self.state is _C.FETCHING and not self._needs_server):
            self._step(SessionStep.CUT)
            return
        failure = failure_in_close(reason)
        if failure is not None:
            raise error_of(failure)
        raise connection_lost("server", self.state, code, reason)

    def _on_command(self, command: HostEvent) -> None:
        match command:
            case Begin():
                self._step(SessionStep.BEGIN)
                self._say(self.request)
            case BlocksTaken():
                self._step(SessionStep.BLOCKS_TAKEN)
                self._do(NextObjects(self._page))
            case ObjectsWanted(objects, more) if self.state is _C.CHOOSING:
                self._wanted(objects, self._page, more=more)
                self._step(SessionStep.NEXT)
                # Objects that are being moved needn't be fetched a second time.
                new = {one.key: one for one in objects if one.key not in self._in_hand}
                self._again |= new
                self._advance()
            case ObjectsMoved(objects):
                self._moved(objects)
                self._advance()
            case Expired(objects):
                self._expired_or_lost(objects)
                self._advance()
            case RunCommitted():
                if self._peer_is_there:
                    self._do(Close(NORMAL, PULL_SUCCEEDED))
                self._finish(SessionStep.COMMITTED)
            case WorkRefused(problem):
                raise error_in(problem)
            case _:
                raise OutOfPlace(f"the client is {self.state.value}")

    def _expired_or_lost(self, objects: tuple[ObjectFile, ...]) -> None:
        if self.state is _C.ALONE:
            raise connection_lost("server", self.state, 1006, "and URLs have to be renewed")
        self._expired(objects)

    @property
    def _needs_server(self) -> bool:
        return self._more or bool(self._again)

    def _advance(self) -> None:
        """Do the next step that is due: request URLs, request objects, or commit."""
        if self.state is _C.FETCHING and self._again:
            self._ask()
        elif self.state is _C.FETCHING and self._more:
            if len(self._in_hand) <= self._page:
                self._step(SessionStep.CHOOSE)
                self._do(NextObjects(self._page))
        elif self.state in (_C.FETCHING, _C.ALONE) and not self._in_hand:
            self._step(SessionStep.ALL_MOVED)
            self._do(CheckAndCommit())

    def _ask(self) -> None:
        self._count_round()
        self._step(SessionStep.ASK_OBJECTS)
        keys = list(self._again)[: self._page]
        self._asked = tuple(self._again.pop(key) for key in keys)
        self._say(m.PullObjectsRequest(self._asked))
