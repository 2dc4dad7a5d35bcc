"""The server's state machine of a push.

::

    REQUEST     ── request ─────────▶ CONSIDERING
    CONSIDERING ── accepted ────────▶ METADATA      ── refuse ──▶ REFUSED
    METADATA    ── blocks ──────────▶ TAKING
    TAKING      ── blocks taken ────▶ ENSURING
    ENSURING    ── dataset ready ───▶ OBJECTS       ── no blocks ──▶ COMPLETE
    OBJECTS     ── ask for objects ─▶ SIGNING
    SIGNING     ── URLs ready ──────▶ UPLOADING
    UPLOADING   ── page complete ───▶ OBJECTS       ── all moved ──▶ COMPLETE
    COMPLETE    ── complete ────────▶ COMMITTING
    COMMITTING  ── committed ───────▶ CONFIRMED     ── close (the client is gone) ──▶ DONE
    CONFIRMED   ── close ───────────▶ DONE

In the published dialect no page is the last one, and nobody is asked for progress::

    ENSURING, SIGNING ── pages without a known last one ──▶ PAGES
    PAGES ── ask for objects ──▶ SIGNING            ── complete ──▶ COMMITTING

The dataset is created after the client was told that its blocks could be read, so the client's
next message may come early, and is held. During the upload the client is asked for its progress
every ten seconds, and not after it said that the page is complete; an answer that was on its way
then is ignored. A client that was refused, or told that all is done, gets a few seconds to close,
and its messages are discarded meanwhile. The table also has the steps that stay in a state;
whatever isn't in it leads to FAILED, with a Close that says why.
"""

from __future__ import annotations

from enum import Enum

from lakeferry.errors import InvalidInput, StorageUnavailable
from lakeferry.transfer.session.closing import NORMAL, connection_lost
from lakeferry.transfer.session.events import (
    BlocksTaken,
    CheckAndCommit,
    Close,
    ConsiderPush,
    DatasetReady,
    EnsureDataset,
    HostEvent,
    PushConsidered,
    Received,
    RunCommitted,
    SignUrls,
    TakeBlocks,
    UrlsReady,
    WorkRefused,
)
from lakeferry.transfer.session.machine import OutOfPlace, Pace, SessionStep, with_failures
from lakeferry.transfer.session.server_refusals import ServerSession
from lakeferry.transfer.wire import messages as m
from lakeferry.transfer.wire.codec import LIMITS, MessageLimits
from lakeferry.transfer.wire.failure_messages import Phase
from lakeferry.transfer.wire.json_values import Text
from lakeferry.transfer.wire.messages import Message, MessageDialect, ObjectFile, ObjectUpload


class PushServerState(Enum):
    """Where the server of a push is; the values complete "the server is …"."""

    REQUEST = "waiting for the request"
    CONSIDERING = "considering the request"
    METADATA = "waiting for blocks"
    TAKING = "taking blocks"
    ENSURING = "making the dataset"
    OBJECTS = "waiting for a request for URLs"
    PAGES = "waiting for a request for URLs, or for the end"
    SIGNING = "signing URLs"
    UPLOADING = "waiting for uploads"
    COMPLETE = "waiting for the end"
    COMMITTING = "committing"
    CONFIRMED = "waiting for the client to close, having committed"
    REFUSED = "waiting for the client to close"
    DONE = "done"
    FAILED = "failed"


_S = PushServerState
PUSH_SERVER_TABLE = with_failures(
    {
        (_S.REQUEST, SessionStep.REQUEST): _S.CONSIDERING,
        (_S.CONSIDERING, SessionStep.ACCEPTED): _S.METADATA,
        (_S.CONSIDERING, SessionStep.REFUSE): _S.REFUSED,
        (_S.METADATA, SessionStep.BLOCKS): _S.TAKING,
        (_S.TAKING, SessionStep.BLOCKS_TAKEN): _S.ENSURING,
        (_S.ENSURING, SessionStep.EARLY): _S.ENSURING,
        (_S.ENSURING, SessionStep.DATASET_READY): _S.OBJECTS,
        (_S.ENSURING, SessionStep.NO_BLOCKS): _S.COMPLETE,
        (_S.ENSURING, SessionStep.OPEN_END): _S.PAGES,
        (_S.OBJECTS, SessionStep.ASK_OBJECTS): _S.SIGNING,
        (_S.PAGES, SessionStep.ASK_OBJECTS): _S.SIGNING,
        (_S.PAGES, SessionStep.COMPLETE): _S.COMMITTING,
        (_S.SIGNING, SessionStep.URLS_READY): _S.UPLOADING,
        (_S.SIGNING, SessionStep.OPEN_END): _S.PAGES,
        (_S.UPLOADING, SessionStep.PROGRESS): _S.UPLOADING,
        (_S.UPLOADING, SessionStep.PAGE_COMPLETE): _S.OBJECTS,
        (_S.UPLOADING, SessionStep.ALL_MOVED): _S.COMPLETE,
        (_S.COMPLETE, SessionStep.COMPLETE): _S.COMMITTING,
        **{
            (at, SessionStep.LATE_PROGRESS): at
            for at in (_S.OBJECTS, _S.SIGNING, _S.COMPLETE, _S.COMMITTING)
        },
        (_S.COMMITTING, SessionStep.CUT): _S.COMMITTING,
        (_S.COMMITTING, SessionStep.COMMITTED): _S.CONFIRMED,
        (_S.COMMITTING, SessionStep.LEAVE): _S.DONE,
        (_S.CONFIRMED, SessionStep.DISCARD): _S.CONFIRMED,
        (_S.CONFIRMED, SessionStep.LEAVE): _S.DONE,
        (_S.REFUSED, SessionStep.DISCARD): _S.REFUSED,
    },
    _S,
    (_S.DONE, _S.FAILED),
    _S.FAILED,
)
"""Every transition of a push's server."""

_SERVER_EXPECTS: dict[PushServerState, tuple[type, ...]] = {
    _S.REQUEST: (m.PushRequest,),
    _S.METADATA: (m.PushMetadata,),
    _S.OBJECTS: (m.PushObjectsRequest, m.UploadProgress),
    _S.PAGES: (m.PushObjectsRequest, m.PushComplete),
    _S.SIGNING: (m.UploadProgress,),
    _S.UPLOADING: (m.UploadProgress,),
    _S.COMPLETE: (m.PushComplete, m.UploadProgress),
    _S.COMMITTING: (m.UploadProgress,),
}
_SERVER_PHASES = {
    _S.REQUEST: Phase.PUSH_REQUEST,
    _S.CONSIDERING: Phase.PUSH_REQUEST,
    _S.REFUSED: Phase.PUSH_REQUEST,
    _S.METADATA: Phase.PUSH_METADATA,
    _S.TAKING: Phase.PUSH_METADATA,
    _S.ENSURING: Phase.PUSH_ENSURING,
    _S.OBJECTS: Phase.PUSH_OBJECTS,
    _S.PAGES: Phase.PUSH_OBJECTS,
    _S.SIGNING: Phase.PUSH_OBJECTS,
    _S.UPLOADING: Phase.PUSH_PROGRESS,
}


class PushServer(ServerSession[PushServerState]):
    """The end that gets the dataset. It commits only after its host has checked every object."""

    def __init__(
        self, dialect: MessageDialect, limits: MessageLimits = LIMITS, pace: Pace | None = None
    ) -> None:
        super().__init__(PUSH_SERVER_TABLE, _S.REQUEST, _S.DONE, _S.FAILED, dialect, limits, pace)
        self._objects: tuple[ObjectFile, ...] = ()
        self._is_truncated = False
        self._has_blocks = True
        self._early: Text | None = None
        self._unanswered = 0
        self._asked_ms = 0

    @property
    def wake_ms(self) -> int | None:
        """The latest time for the next ``Tick``."""
        due = super().wake_ms
        if due is None or self.state is not _S.UPLOADING:
            return due
        return min(due, self._asked_ms + self.pace.keep_alive_ms)

    def _wait_ms(self) -> int | None:
        match self.state:
            case _S.REQUEST:
                return self.pace.first_ms
            case _S.METADATA | _S.OBJECTS | _S.UPLOADING | _S.COMPLETE:
                return self.pace.answer_ms
            case _S.PAGES:
                return self.pace.idle_ms
            case _S.REFUSED | _S.CONFIRMED:
                return self.pace.drain_ms
            case _:
                return None

    def _expected(self) -> tuple[type, ...]:
        expected = _SERVER_EXPECTS.get(self.state, ())
        if self.dialect is MessageDialect.PUBLISHED:
            return tuple(kind for kind in expected if kind is not m.UploadProgress)
        return expected

    def _phase(self) -> Phase:
        return _SERVER_PHASES.get(self.state, Phase.PUSH_COMPLETE)

    @property
    def most_bytes(self) -> int:
        """The maximum size of a client's next message, also if it is on its way already."""
        is_early = self.state is _S.ENSURING and self._early is None
        # The end of a page and the request for the next one may come in one packet.
        is_next_page_near = self.state is _S.UPLOADING and self._is_truncated
        if is_early or is_next_page_near:
            return self.limits.objects_message_bytes
        return super().most_bytes

    def _hear(self, text: Text) -> None:
        if self.state is _S.ENSURING and self._early is None:
            if len(text) > self.limits.objects_message_bytes:
                raise InvalidInput("the peer sent a message out of turn", cause=self.state.value)
            self._step(SessionStep.EARLY)
            self._early = text
        else:
            super()._hear(text)

    def _on_message(self, said: Message) -> None:
        match said:
            case m.PushRequest():
                self._step(SessionStep.REQUEST)
                self._do(ConsiderPush(said))
            case m.PushMetadata(blocks):
                self._step(SessionStep.BLOCKS)
                self._has_blocks = blocks.num_blocks > 0
                self._do(TakeBlocks(blocks))
            case m.PushObjectsRequest(objects, is_truncated):
                self._count_round()
                self._step(SessionStep.ASK_OBJECTS)
                self._objects, self._is_truncated = objects, is_truncated
                self._do(SignUrls(objects))
            case m.UploadProgress(uploaded):
                self._on_progress(uploaded)
            case m.PushComplete():
                self._step(SessionStep.COMPLETE)
                self._do(CheckAndCommit())
            case _:
                raise OutOfPlace(f"the server is {self.state.value}")

    def _on_progress(self, uploaded: int | None) -> None:
        if self.state is not _S.UPLOADING:
            # It answers a request from before the page was complete.
            if uploaded is None or self._unanswered == 0:
                raise OutOfPlace(f"progress, while {self.state.value}")
            self._step(SessionStep.LATE_PROGRESS)
        elif uploaded is None:
            self._step(SessionStep.PAGE_COMPLETE if self._is_truncated else SessionStep.ALL_MOVED)
            return
        else:
            self._step(SessionStep.PROGRESS)
        self._unanswered = max(0, self._unanswered - 1)

    def _on_close(self, code: int, reason: str) -> None:
        match self.state:
            case _S.CONFIRMED:
                self._finish(SessionStep.LEAVE)
            case _S.COMMITTING:
                # The commit is finished, and the client finds out from the head.
                self._step(SessionStep.CUT)
            case _S.REFUSED:
                self._finish(SessionStep.FAIL)
            case _:
                raise connection_lost("client", self.state, code, reason)

    def _on_tick(self) -> None:
        super()._on_tick()
        if self.state is _S.UPLOADING and self._now_ms >= self._asked_ms + self.pace.keep_alive_ms:
            self._asked_ms = self._now_ms
            self._unanswered += 1
            self._say(m.ProgressRequest())

    def _on_silence(self) -> None:
        if self.state is _S.CONFIRMED:
            self._leave()
        else:
            super()._on_silence()

    def _on_flood(self) -> None:
        if self.state is _S.CONFIRMED:
            self._leave()
        else:
            super()._on_flood()

    def _leave(self) -> None:
        self._do(Close(NORMAL))
        self._finish(SessionStep.LEAVE)

    def _on_command(self, command: HostEvent) -> None:
        match command:
            case PushConsidered():
                self._step(SessionStep.ACCEPTED)
                self._say(m.PushAccepted())
            case BlocksTaken():
                self._step(SessionStep.BLOCKS_TAKEN)
                self._say(m.PushMetadataAccepted())
                self._do(EnsureDataset())
            case DatasetReady():
                self._begin_objects()
            case UrlsReady(urls):
                self._hand_out(urls)
            case RunCommitted() if self._peer_is_there:
                self._step(SessionStep.COMMITTED)
                self._say(m.PushConfirmed())
            case RunCommitted() if self.state is _S.COMMITTING:
                self._finish(SessionStep.LEAVE)
            case WorkRefused(problem) if self.state is not _S.CONFIRMED:
                self._refuse(problem, at_request=self.state is _S.CONSIDERING)
            case _:
                raise OutOfPlace(f"the server is {self.state.value}")

    def _begin_objects(self) -> None:
        if self.dialect is MessageDialect.PUBLISHED:
            self._step(SessionStep.OPEN_END)
        else:
            self._step(SessionStep.DATASET_READY if self._has_blocks else SessionStep.NO_BLOCKS)
        if self._early is not None:
            text, self._early = self._early, None
            self._guard(Received(text))

    def _hand_out(self, urls: tuple[m.TransferUrl | None, ...]) -> None:
        if self.state is not _S.SIGNING:
            raise OutOfPlace(f"the server is {self.state.value}")
        if len(urls) != len(self._objects):
            raise StorageUnavailable("not every object got an answer")
        uploads = tuple(map(ObjectUpload, self._objects, urls))
        self._objects = ()
        self._asked_ms = self._now_ms
        step = (
            SessionStep.OPEN_END
            if self.dialect is MessageDialect.PUBLISHED
            else SessionStep.URLS_READY
        )
        self._say_and_step(step, m.PushObjects(uploads))
