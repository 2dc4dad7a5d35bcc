"""What the four state machines share.

A machine is one end of one session. The host, which owns the socket, passes it events with the
time, and executes the actions that it returns::

    actions = machine.receive(Received(text), now_ms)

An event is a text, a frame or a Close of the peer, a ``Tick`` of the clock, or the host's result
of an action. The machine returns a tuple of actions: texts to send, a Close, or work that only
the host can do, such as packing blocks or signing URLs. ``Finished`` is the last action, and
comes exactly once.

Each machine has one enum of states and one table: from a state, by a step, to a state. A step
that isn't in the table is refused: if it is the peer's, the session fails with a clear error at
this end and a Close for the other; if it is the host's, ``InvalidInput`` is raised and nothing
changes. Every state that isn't final has ``FAIL`` in its table. Where a server has sent
everything and the client may still be sending, the table has ``DISCARD``. After the end every
event is ignored, because hosts still finish running work. Nothing blocks, and memory doesn't
grow with the dataset: see ``dialects.Limits`` and :class:`Pace`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from lakeferry.errors import (
    InvalidInput,
    LakeferryError,
    LimitExceeded,
    TimedOut,
)
from lakeferry.transfer.session.events import (
    Finished,
    FrameKind,
    HostEvent,
    MachineAction,
    MachineEvent,
    PeerClosed,
    PeerEvent,
    Received,
    ReceivedFrame,
    Send,
    Tick,
    TooLarge,
)
from lakeferry.transfer.wire import codec
from lakeferry.transfer.wire.codec import LIMITS, MessageLimits
from lakeferry.transfer.wire.failure_messages import TransferFailure
from lakeferry.transfer.wire.json_values import Text
from lakeferry.transfer.wire.messages import Message, MessageDialect


@dataclass(frozen=True, slots=True)
class Pace:
    """Time limits. The peer's silence is bounded; the host bounds its own work."""

    keep_alive_ms: int = 10_000
    """Interval between two requests for progress while a client uploads."""
    first_ms: int = 15_000
    """Limit for a client's first message, which is ready when it connects."""
    turn_ms: int = 60_000
    """Limit for a message that needs no work of the client."""
    answer_ms: int = 300_000
    """Limit for an answer of the peer."""
    commit_ms: int = 3_600_000
    """Limit for the confirmation of a commit, before which the server checks every object."""
    idle_ms: int = 6 * 3_600_000
    """Limit for a peer that moves objects and sends no messages meanwhile."""
    settle_ms: int = 15_000
    """Limit for a second confirmation, if the first may have been a request for progress."""
    drain_ms: int = 5_000
    """Limit for the peer's Close, after the last message."""
    session_ms: int = 24 * 3_600_000
    """Limit for the whole session."""


class SessionStep(Enum):
    """The steps of a session, at either end; the values are for the diagrams."""

    BEGIN = "begin"
    REQUEST = "request"
    ACCEPTED = "accepted"
    UP_TO_DATE = "up to date"
    ASK_BLOCKS = "ask for blocks"
    BLOCKS = "blocks"
    BLOCKS_READY = "blocks ready"
    BLOCKS_TAKEN = "blocks taken"
    NO_BLOCKS = "no blocks"
    EARLY = "a message that came early is kept"
    DATASET_READY = "dataset ready"
    OPEN_END = "pages without a known last one"
    CHOOSE = "more are needed"
    NEXT = "next objects"
    ASK_OBJECTS = "ask for objects"
    URLS_READY = "URLs ready"
    URLS = "URLs"
    MOVED = "moved"
    EXPIRED = "expired"
    PROGRESS = "progress"
    LATE_PROGRESS = "late progress"
    PAGE_COMPLETE = "page complete"
    ALL_MOVED = "all moved"
    COMPLETE = "complete"
    COMMITTED = "committed"
    CONFIRMED = "confirmed"
    HEAD_MATCHES = "head matches"
    HEAD_DIFFERS = "head differs"
    LOOK_AGAIN = "look again"
    REFUSE = "refuse"
    DISCARD = "discard"
    CUT = "cut"
    LEAVE = "close"
    FAIL = "fail"


S = TypeVar("S", bound=Enum)


class OutOfPlace(Exception):
    """A step that isn't in the table; never leaves a machine."""


class Machine(ABC, Generic[S]):
    """One end of a session. Subclasses define what each event does; this class dispatches events.

    ``state`` is always one of the table's; ``done`` and ``failed`` are its final ones.
    """

    def __init__(
        self,
        table: Mapping[tuple[S, SessionStep], S],
        start: S,
        done: S,
        failed: S,
        dialect: MessageDialect,
        limits: MessageLimits = LIMITS,
        pace: Pace | None = None,
    ) -> None:
        self.state = start
        self.dialect = dialect
        self.limits = limits
        self.pace = pace or Pace()
        self.error: LakeferryError | None = None
        self._table = table
        self._done, self._failed = done, failed
        self._actions: list[MachineAction] = []
        self._now_ms = 0
        self._since_ms: int | None = None
        self._began_ms: int | None = None
        self._texts = 0
        self._rounds = 0
        self._discarded = 0
        self._peer_is_there = True

    @property
    def is_over(self) -> bool:
        """Return True if the session has ended."""
        return self.state in (self._done, self._failed)

    @property
    def wake_ms(self) -> int | None:
        """The latest time for the next ``Tick``; ``None`` before the start and after the end."""
        return self._deadline_ms

    @property
    def _deadline_ms(self) -> int | None:
        if self.is_over or self._began_ms is None or self._since_ms is None:
            return None
        wait = self._wait_ms()
        end = self._began_ms + self.pace.session_ms
        return end if wait is None else min(end, self._since_ms + wait)

    def receive(self, event: MachineEvent, now_ms: int) -> tuple[MachineAction, ...]:
        """Process an event, and return the actions to execute, in that order.

        ``InvalidInput`` is raised for a command that isn't possible in this state; the machine is
        unchanged then.
        """
        if self.is_over:
            return ()
        # If the clock was set back, no time limit is reached twice.
        self._now_ms = max(self._now_ms, now_ms)
        if self._began_ms is None:
            self._began_ms = self._since_ms = self._now_ms
        self._actions = []
        match event:
            case Received() | ReceivedFrame() | TooLarge() | PeerClosed() | Tick():
                self._guard(event)
            case _:
                self._obey(event)
        # Don't keep the actions: a text may be large, and the next event may take long.
        actions, self._actions = self._actions, []
        return tuple(actions)

    def _guard(self, event: PeerEvent) -> None:
        """Process an event of the peer; an error in it ends the session and raises nothing."""
        try:
            match event:
                case Received() | ReceivedFrame() | TooLarge() if self._discards:
                    self._discard(event)
                case Received(text):
                    self._hear(text)
                case ReceivedFrame(FrameKind.BINARY):
                    raise InvalidInput("the peer sent a binary frame", cause="only texts are used")
                case ReceivedFrame():
                    return
                case TooLarge(size_bytes):
                    self._refuse_size(size_bytes)
                case PeerClosed(code, reason):
                    self._peer_is_there = False
                    self._on_close(code, reason)
                case Tick():
                    self._on_tick()
        except OutOfPlace as misplaced:
            self._fail(InvalidInput("the peer sent a message out of turn", cause=str(misplaced)))
        except LakeferryError as error:
            self._fail(error)

    def _obey(self, command: HostEvent) -> None:
        try:
            self._on_command(command)
        except OutOfPlace as misplaced:
            name = type(command).__name__
            raise InvalidInput(f"{name} isn't expected here", cause=str(misplaced)) from None
        except LakeferryError as error:
            self._fail(error)

    @property
    def most_bytes(self) -> int:
        """The maximum size of a message of the peer in this state."""
        return max(map(self.limits.bytes_of, self._expected()), default=self.limits.message_bytes)

    def _refuse_size(self, size_bytes: int) -> None:
        expected = self._expected()
        if not expected:
            raise OutOfPlace(f"{self.state.value}, and nothing of the peer is expected")
        codec.check_message_size(size_bytes, expected, self.limits)
        raise LimitExceeded("a message is too large", cause=f"{size_bytes:,} bytes")

    def _hear(self, text: Text) -> None:
        self._texts += 1
        if self._texts > self.limits.texts:
            raise LimitExceeded("the peer sent too many messages", cause=f"{self._texts:,}")
        expected = self._expected()
        if not expected:
            raise OutOfPlace(f"{self.state.value}, and nothing of the peer is expected")
        said = codec.decode_message(self.dialect, expected, text, self.limits)
        self._since_ms = self._now_ms
        if isinstance(said, TransferFailure):
            self._on_failure(said)
        else:
            self._on_message(said)

    @property
    def _discards(self) -> bool:
        return (self.state, SessionStep.DISCARD) in self._table

    def _discard(self, event: Received | ReceivedFrame | TooLarge) -> None:
        """Ignore a message that comes after the last one: the peer may have sent it before.

        The time limit stays, and all such messages together may be as large as one message.
        """
        self._step(SessionStep.DISCARD)
        if isinstance(event, Received):
            self._discarded += len(event.text)
        if isinstance(event, TooLarge):
            # After a message that is too large nothing is read.
            self._on_flood()
        elif self._discarded > self.limits.blocks_message_bytes:
            self._on_flood()

    def _next(self, step: SessionStep) -> S:
        """Return the state that a step leads to."""
        found = self._table.get((self.state, step))
        if found is None:
            raise OutOfPlace(f"{step.value!r} isn't possible while {self.state.value!r}")
        return found

    def _step(self, step: SessionStep) -> None:
        """Change to the state that a step leads to."""
        found = self._next(step)
        if found is not self.state:
            self.state = found
            self._since_ms = self._now_ms

    def _do(self, *actions: MachineAction) -> None:
        self._actions += actions

    def _say(self, message: Message) -> None:
        self._do(Send(codec.encode_message(self.dialect, message, self.limits)))

    def _say_and_step(self, step: SessionStep, message: Message) -> None:
        """Send a message, then step; if it is too large, the state stays the old one."""
        self._next(step)
        self._say(message)
        self._step(step)

    def _count_round(self) -> None:
        self._rounds += 1
        if self._rounds > self.limits.rounds:
            raise LimitExceeded("too many requests for objects", cause=f"{self._rounds:,}")

    def _finish(self, step: SessionStep) -> None:
        self._step(step)
        self._do(Finished(self.error))

    def _fail(self, error: LakeferryError) -> None:
        """End the session with an error; tell the peer if it is connected."""
        if self.is_over:
            return
        if self._peer_is_there:
            self._say_why(error)
        self.error = self.error or error
        self._finish(SessionStep.FAIL)

    def _on_tick(self) -> None:
        due = self._deadline_ms
        if due is not None and self._now_ms >= due:
            self._on_silence()

    def _on_silence(self) -> None:
        """Raise: the peer was silent for longer than this state allows."""
        raise TimedOut(
            "the transfer took too long",
            cause=f"{self.state.value}, and the peer said nothing for too long",
            remedy="run the same command again: what has arrived isn't transferred again",
        )

    def _on_flood(self) -> None:
        """Raise: the peer continued to send after the last message."""
        raise LimitExceeded(
            "the peer doesn't close the connection", cause=f"it sent {self._discarded:,} bytes"
        )

    @abstractmethod
    def _wait_ms(self) -> int | None:
        """Return how long this state may last without a message of the peer."""

    @abstractmethod
    def _expected(self) -> tuple[type, ...]:
        """Return the kinds of messages that the peer may send in this state."""

    @abstractmethod
    def _on_message(self, said: Message) -> None:
        """Process an expected message."""

    @abstractmethod
    def _on_failure(self, failure: TransferFailure) -> None:
        """Process a refusal that came instead of a message."""

    @abstractmethod
    def _on_close(self, code: int, reason: str) -> None:
        """Process a Close of the peer."""

    @abstractmethod
    def _on_command(self, command: HostEvent) -> None:
        """Process the result of an action, from the host."""

    @abstractmethod
    def _say_why(self, error: LakeferryError) -> None:
        """Close with the part of the error that the peer may learn."""


def with_failures(
    table: dict[tuple[S, SessionStep], S], states: type[S], final: tuple[S, ...], failed: S
) -> dict[tuple[S, SessionStep], S]:
    """Return a table in which every state that isn't final can fail."""
    return table | {(state, SessionStep.FAIL): failed for state in states if state not in final}


def machine_diagram(table: Mapping[tuple[S, SessionStep], S], start: S) -> str:
    """Return a table as a Mermaid state diagram, for the documentation."""
    lines = ["stateDiagram-v2", f"    [*] --> {start.name}"]
    lines += [
        f"    {begin.name} --> {end.name}: {step.value}"
        for (begin, step), end in table.items()
        if step is not SessionStep.FAIL
    ]
    return "\n".join(lines)
