"""The client's state machine of a push.

::

    START      ── begin ──────────▶ REQUESTED
    REQUESTED  ── accepted ───────▶ LOADING
    LOADING    ── blocks ready ───▶ OFFERED
    OFFERED    ── blocks taken ───▶ CHOOSING        ── no blocks ──▶ CONFIRMING
    CHOOSING   ── ask for objects ▶ ASKED           ── complete (published) ──▶ CONFIRMING
    ASKED      ── URLs ───────────▶ UPLOADING
    UPLOADING  ── page complete ──▶ CHOOSING        ── all moved ──▶ CONFIRMING
    CONFIRMING ── confirmed ──────▶ CHECKING
    CHECKING   ── head matches ───▶ DONE            ── head differs ──▶ CONFIRMING
    CONFIRMING ── look again ─────▶ CHECKING

A page is announced as the last one only if it is small enough for its URLs to be used in time;
otherwise an empty page ends the upload. An object whose URL wasn't used in time goes into the
next page. A request for progress and the confirmation look the same, and the former may still be
on its way when the latter is expected. So a confirmation counts only once the server's head is
ours; until then the head is read again. Anything else, a Close or a lost connection included, is
a failure, and unless the server refused it is unknown whether the push was committed. The table
also has the steps that stay in a state; whatever isn't in it leads to FAILED.
"""

from __future__ import annotations

from enum import Enum

from lakeferry.errors import CommitStateUnknown, InvalidInput, LakeferryError, StorageUnavailable
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.session.client_objects import ClientSession
from lakeferry.transfer.session.closing import NORMAL, connection_lost
from lakeferry.transfer.session.events import (
    Begin,
    BlocksReady,
    CheckHead,
    Close,
    Expired,
    HeadIs,
    HostEvent,
    LoadBlocks,
    NextObjects,
    ObjectsMoved,
    ObjectsWanted,
    Upload,
    WorkRefused,
)
from lakeferry.transfer.session.machine import OutOfPlace, Pace, SessionStep, with_failures
from lakeferry.transfer.session.server_refusals import error_in
from lakeferry.transfer.wire import messages as m
from lakeferry.transfer.wire.codec import LIMITS, MessageLimits, failure_in_close
from lakeferry.transfer.wire.failure_messages import TransferFailure, error_of
from lakeferry.transfer.wire.messages import Message, MessageDialect, ObjectUpload

PUSH_SUCCEEDED = "Client push flow succeeded"
"""The reference client's text when it closes."""


class PushClientState(Enum):
    """Where the client of a push is; the values complete "the client is …"."""

    START = "about to begin"
    REQUESTED = "waiting for access"
    LOADING = "loading blocks"
    OFFERED = "waiting for the blocks to be accepted"
    CHOOSING = "choosing objects"
    ASKED = "waiting for URLs"
    UPLOADING = "uploading"
    CONFIRMING = "waiting for the confirmation"
    CHECKING = "comparing the heads"
    DONE = "done"
    FAILED = "failed"


_C = PushClientState
PUSH_CLIENT_TABLE = with_failures(
    {
        (_C.START, SessionStep.BEGIN): _C.REQUESTED,
        (_C.REQUESTED, SessionStep.ACCEPTED): _C.LOADING,
        (_C.LOADING, SessionStep.BLOCKS_READY): _C.OFFERED,
        (_C.OFFERED, SessionStep.BLOCKS_TAKEN): _C.CHOOSING,
        (_C.OFFERED, SessionStep.NO_BLOCKS): _C.CONFIRMING,
        (_C.CHOOSING, SessionStep.ASK_OBJECTS): _C.ASKED,
        (_C.CHOOSING, SessionStep.COMPLETE): _C.CONFIRMING,
        (_C.CHOOSING, SessionStep.LATE_PROGRESS): _C.CHOOSING,
        (_C.ASKED, SessionStep.LATE_PROGRESS): _C.ASKED,
        (_C.ASKED, SessionStep.URLS): _C.UPLOADING,
        (_C.UPLOADING, SessionStep.MOVED): _C.UPLOADING,
        (_C.UPLOADING, SessionStep.EXPIRED): _C.UPLOADING,
        (_C.UPLOADING, SessionStep.PROGRESS): _C.UPLOADING,
        (_C.UPLOADING, SessionStep.PAGE_COMPLETE): _C.CHOOSING,
        (_C.UPLOADING, SessionStep.ALL_MOVED): _C.CONFIRMING,
        (_C.CONFIRMING, SessionStep.CONFIRMED): _C.CHECKING,
        (_C.CONFIRMING, SessionStep.LOOK_AGAIN): _C.CHECKING,
        (_C.CHECKING, SessionStep.CONFIRMED): _C.CHECKING,
        (_C.CHECKING, SessionStep.CUT): _C.CHECKING,
        (_C.CHECKING, SessionStep.HEAD_DIFFERS): _C.CONFIRMING,
        (_C.CHECKING, SessionStep.HEAD_MATCHES): _C.DONE,
    },
    _C,
    (_C.DONE, _C.FAILED),
    _C.FAILED,
)
"""Every transition of a push's client."""

_CLIENT_EXPECTS: dict[PushClientState, tuple[type, ...]] = {
    _C.REQUESTED: (m.PushAccepted,),
    _C.OFFERED: (m.PushMetadataAccepted,),
    _C.CHOOSING: (m.ProgressRequest,),
    _C.ASKED: (m.PushObjects, m.ProgressRequest),
    _C.UPLOADING: (m.ProgressRequest,),
    _C.CONFIRMING: (m.PushConfirmed,),
    _C.CHECKING: (m.PushConfirmed,),
}
LAST_PAGE_BYTES = 64 << 20


class PushClient(ClientSession[PushClientState]):
    """The end that has the dataset; ``head`` is the head that the server should get.

    A page is announced as the last one only if its objects have no more than
    ``last_page_bytes``: their URLs can't be renewed within the session.
    """

    def __init__(
        self,
        dialect: MessageDialect,
        request: m.PushRequest,
        head: Multihash,
        page: int = 1000,
        last_page_bytes: int = LAST_PAGE_BYTES,
        limits: MessageLimits = LIMITS,
        pace: Pace | None = None,
    ) -> None:
        super().__init__(
            PUSH_CLIENT_TABLE, _C.START, _C.DONE, _C.FAILED, dialect, page, limits, pace
        )
        self.request = request
        self.head = head
        self._last_page_bytes = last_page_bytes
        self._has_blocks = True
        self._is_last = False
        self._pages = 0
        self._uploaded = 0
        self._was_confirmed = False
        self._again_confirmed = False
        self._completed_ms = 0

    def _wait_ms(self) -> int | None:
        match self.state:
            case _C.REQUESTED | _C.OFFERED | _C.ASKED:
                return self.pace.answer_ms
            case _C.CONFIRMING:
                return self.pace.settle_ms if self._was_confirmed else self.pace.commit_ms
            case _:
                return None

    def _expected(self) -> tuple[type, ...]:
        expected = _CLIENT_EXPECTS.get(self.state, ())
        if self.dialect is MessageDialect.PUBLISHED:
            return tuple(kind for kind in expected if kind is not m.ProgressRequest)
        return expected

    def _on_message(self, said: Message) -> None:
        match said:
            case m.PushAccepted():
                self._step(SessionStep.ACCEPTED)
                self._do(LoadBlocks())
            case m.PushMetadataAccepted() if self._has_blocks:
                self._step(SessionStep.BLOCKS_TAKEN)
                self._choose()
            case m.PushMetadataAccepted():
                self._complete(SessionStep.NO_BLOCKS)
            case m.PushObjects(uploads):
                self._take_urls(uploads)
            case m.ProgressRequest() if self.state is _C.UPLOADING:
                self._step(SessionStep.PROGRESS)
                self._say(m.UploadProgress(self._uploaded))
            case m.ProgressRequest() if self._pages > 0:
                # Don't answer: the server sent this before it knew that the page was complete,
                # and expects something else now.
                self._step(SessionStep.LATE_PROGRESS)
            case m.PushConfirmed():
                self._again_confirmed = self.state is _C.CHECKING
                self._step(SessionStep.CONFIRMED)
                if not self._again_confirmed:
                    self._was_confirmed = True
                    self._do(CheckHead())
            case _:
                raise OutOfPlace(f"the client is {self.state.value}")

    def _on_failure(self, failure: TransferFailure) -> None:
        self._fail_for_certain(error_of(failure))

    def _on_close(self, code: int, reason: str) -> None:
        failure = failure_in_close(reason)
        if failure is not None:
            self._fail_for_certain(error_of(failure))
        elif self.state is _C.CHECKING:
            self._step(SessionStep.CUT)
        else:
            raise connection_lost("server", self.state, code, reason)

    def _on_silence(self) -> None:
        waits = self._now_ms < self._completed_ms + self.pace.commit_ms
        if self.state is _C.CONFIRMING and self._was_confirmed and waits:
            self._step(SessionStep.LOOK_AGAIN)
            self._do(CheckHead())
        else:
            super()._on_silence()

    def _on_command(self, command: HostEvent) -> None:
        match command:
            case Begin():
                self._step(SessionStep.BEGIN)
                self._say(self.request)
            case BlocksReady(blocks):
                self._say_and_step(SessionStep.BLOCKS_READY, m.PushMetadata(blocks))
                self._has_blocks = blocks.num_blocks > 0
            case ObjectsWanted(objects, more) if self.state is _C.CHOOSING and self._more:
                self._wanted(objects, self._page - len(self._again), more=more)
                self._again |= {one.key: one for one in objects}
                self._ask()
            case ObjectsMoved(objects):
                self._moved(objects)
                self._uploaded += len(objects)
                self._end_page()
            case Expired(objects):
                self._expired(objects)
                if self._is_last:
                    raise StorageUnavailable(
                        "URLs expired before they could be used",
                        cause="the server was told that no other page follows",
                        remedy="push again: what has arrived isn't transferred again",
                    )
                self._end_page()
            case HeadIs(head):
                self._compare(head)
            case WorkRefused(problem):
                raise error_in(problem)
            case _:
                raise OutOfPlace(f"the client is {self.state.value}")

    def _choose(self) -> None:
        """Begin a page: objects to repeat first, then new ones from the host."""
        room = self._page - len(self._again)
        if self._more and room > 0:
            self._do(NextObjects(room))
        else:
            self._ask()

    def _ask(self) -> None:
        objects = tuple(self._again.values())
        published = self.dialect is MessageDialect.PUBLISHED
        if published and not objects:
            self._complete(SessionStep.COMPLETE)
            return
        self._count_round()
        self._step(SessionStep.ASK_OBJECTS)
        size_bytes = sum(one.size_bytes or 0 for one in objects)
        # A page with objects that weren't uploaded in time before may fail to be in time again.
        fresh = not any(key in self._renewals for key in self._again)
        small = size_bytes <= self._last_page_bytes and fresh
        self._is_last = not published and not self._more and (small or not objects)
        self._asked, self._again, self._uploaded = objects, {}, 0
        self._say(m.PushObjectsRequest(objects, is_truncated=not self._is_last))

    def _take_urls(self, uploads: tuple[ObjectUpload, ...]) -> None:
        objects = self._answered(one.object for one in uploads)
        self._step(SessionStep.URLS)
        pairs = zip(objects, (one.url for one in uploads), strict=True)
        missing = tuple(ObjectUpload(one, url) for one, url in pairs if url is not None)
        self._in_hand = {one.object.key: one.object for one in missing}
        self._uploaded = len(objects) - len(missing)
        if missing:
            self._do(Upload(missing))
        self._end_page()

    def _end_page(self) -> None:
        """Continue with the next page, or end, once no object of this page is being moved."""
        if self._in_hand:
            return
        self._pages += 1
        if self.dialect is MessageDialect.REFERENCE:
            self._say(m.UploadProgress(None))
        if self._is_last:
            self._complete(SessionStep.ALL_MOVED)
        else:
            self._step(SessionStep.PAGE_COMPLETE)
            self._choose()

    def _complete(self, step: SessionStep) -> None:
        self._step(step)
        self._completed_ms = self._now_ms
        self._say(m.PushComplete())

    def _compare(self, head: Multihash | None) -> None:
        if self.state is not _C.CHECKING:
            raise OutOfPlace(f"the client is {self.state.value}")
        if head == self.head:
            if self._peer_is_there:
                self._do(Close(NORMAL, PUSH_SUCCEEDED))
            self._finish(SessionStep.HEAD_MATCHES)
        elif self._again_confirmed:
            self._again_confirmed = False
            self._do(CheckHead())
        elif self._peer_is_there:
            self._step(SessionStep.HEAD_DIFFERS)
        else:
            raise InvalidInput(f"the server's head is {head or 'none'}, not {self.head}")

    def _fail(self, error: LakeferryError) -> None:
        if self.state in (_C.CONFIRMING, _C.CHECKING):
            error = CommitStateUnknown(
                "the server didn't say clearly whether it accepted the push",
                cause=str(error),
                remedy="push again: if it was accepted, there is nothing left to push",
                head=self.head.text,
            )
        self._fail_for_certain(error)

    def _fail_for_certain(self, error: LakeferryError) -> None:
        super()._fail(error)
