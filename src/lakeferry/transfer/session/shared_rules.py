"""What both server machines share, and what both client machines share.

A server refuses the first request by a message instead of the answer, and everything else by
closing. A client handles objects in pages: requested ones, ones that its host is moving, and ones
that have to be requested again because their URLs weren't used in time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeAlias

from lakeferry.errors import InvalidInput, LakeferryError, LimitExceeded, StorageUnavailable
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.session.events import Close, Send
from lakeferry.transfer.session.machine import Machine, OutOfPlace, Pace, S, SessionStep
from lakeferry.transfer.wire import codec
from lakeferry.transfer.wire.codec import CLOSE_REASON_BYTES, MessageLimits
from lakeferry.transfer.wire.failure_messages import Phase, TransferFailure, error_of, failure_of
from lakeferry.transfer.wire.messages import MessageDialect, ObjectFile, WireObjectKind

NORMAL = 1000
GOING_AWAY = 1001
PROTOCOL_ERROR = 1002
NO_STATUS = 1005
TOO_BIG = 1009
INTERNAL = 1011

ObjectKey: TypeAlias = tuple[WireObjectKind, Multihash, str | None]


class ServerSession(Machine[S]):
    """Rules of both servers: how to refuse, and how to tell the client why."""

    @abstractmethod
    def _phase(self) -> Phase:
        """Return the protocol's phase for an error in this state."""

    def _fail(self, error: LakeferryError) -> None:
        """End the session; keep the error without its tracebacks."""
        super()._fail(without_tracebacks(error))

    def _on_failure(self, failure: TransferFailure) -> None:
        raise InvalidInput("the client sent a refusal", cause=type(failure).__name__)

    def _refuse(self, problem: TransferFailure | LakeferryError, *, at_request: bool) -> None:
        """Refuse: the first request by a message, anything later by closing."""
        if isinstance(problem, LakeferryError):
            failure: TransferFailure = failure_of(problem, self._phase())
        else:
            failure = problem
        self.error = error_in(problem)
        if at_request:
            self._do(Send(codec.encode_failure(self.dialect, failure)))
            self._step(SessionStep.REFUSE)
            return
        if self._peer_is_there:
            self._close_with(failure)
        self._finish(SessionStep.FAIL)

    def _say_why(self, error: LakeferryError) -> None:
        self._close_with(failure_of(error, self._phase()))

    def _close_with(self, failure: TransferFailure) -> None:
        if self.dialect is MessageDialect.PUBLISHED:
            self._do(Send(codec.encode_failure(self.dialect, failure)))
        self._do(Close(INTERNAL, codec.close_reason(self.dialect, failure, self._phase())))


class ClientSession(Machine[S]):
    """Rules of both clients: objects in pages, those being moved, and those to request again."""

    def __init__(
        self,
        table: Mapping[tuple[S, SessionStep], S],
        start: S,
        done: S,
        failed: S,
        dialect: MessageDialect,
        page: int,
        limits: MessageLimits,
        pace: Pace | None,
    ) -> None:
        super().__init__(table, start, done, failed, dialect, limits, pace)
        if not 1 <= page <= limits.objects:
            raise InvalidInput(f"pages of {page:,} objects", cause=f"1 to {limits.objects:,} fit")
        self._page = page
        self._more = True
        self._asked: tuple[ObjectFile, ...] = ()
        self._in_hand: dict[ObjectKey, ObjectFile] = {}
        self._again: dict[ObjectKey, ObjectFile] = {}
        self._renewals: dict[ObjectKey, int] = {}

    def _on_failure(self, failure: TransferFailure) -> None:
        raise error_of(failure)

    def _answered(self, objects: Iterable[ObjectFile]) -> list[ObjectFile]:
        """Return the requested objects in the answer's order; it must have each exactly once.

        Other members that the peer sends for an object are ignored.
        """
        asked = {one.key: one for one in self._asked}
        found = [asked.pop(one.key, None) for one in objects]
        if asked or None in found:
            raise InvalidInput(
                "the server's URLs aren't for the requested objects",
                cause=f"{len(self._asked):,} were requested, {len(found):,} were answered, "
                f"{len(asked):,} are missing",
            )
        self._asked = ()
        return [one for one in found if one is not None]

    def _wanted(self, objects: tuple[ObjectFile, ...], limit: int, *, more: bool) -> None:
        if len(objects) > limit or (more and not objects):
            raise OutOfPlace(f"{len(objects):,} objects, where 1 to {limit:,} were wanted")
        self._more = more

    def _check_in_hand(self, objects: tuple[ObjectFile, ...]) -> None:
        keys = {one.key for one in objects}
        if len(keys) < len(objects) or not keys <= self._in_hand.keys():
            raise OutOfPlace("an object that wasn't handed out, or not any more")

    def _moved(self, objects: tuple[ObjectFile, ...]) -> None:
        self._check_in_hand(objects)
        self._step(SessionStep.MOVED)
        for one in objects:
            del self._in_hand[one.key]
            self._renewals.pop(one.key, None)

    def _expired(self, objects: tuple[ObjectFile, ...]) -> None:
        self._check_in_hand(objects)
        self._step(SessionStep.EXPIRED)
        for one in objects:
            self._again[one.key] = self._in_hand.pop(one.key)
            count = self._renewals[one.key] = self._renewals.get(one.key, 0) + 1
            if count > self.limits.renewals:
                raise LimitExceeded(
                    f"{one.physical_hash} can't be transferred",
                    cause=f"its URL was renewed {count - 1} times and never used in time",
                    remedy="compare the clocks of both machines, or transfer fewer objects at a "
                    "time",
                )

    def _say_why(self, error: LakeferryError) -> None:
        code = {InvalidInput: PROTOCOL_ERROR, LimitExceeded: TOO_BIG}.get(type(error), GOING_AWAY)
        self._do(Close(code, codec.close_text(error.message)))


def error_in(problem: TransferFailure | LakeferryError) -> LakeferryError:
    """Return a problem as an error."""
    return problem if isinstance(problem, LakeferryError) else error_of(problem)


def without_tracebacks(error: LakeferryError) -> LakeferryError:
    """Return an error without its tracebacks, and without those of its causes.

    Their frames refer to the message or the blocks, which may be large. The machine keeps the
    error, in a reference cycle that would stay until Python's garbage collector finds it.
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += [each.__context__, each.__cause__]
    return error


def is_clean(code: int) -> bool:
    """Return True if a Close reports success."""
    return code in (NORMAL, NO_STATUS)


def connection_lost(peer: str, state: Enum, code: int, reason: str) -> StorageUnavailable:
    """Return the error for a connection that ended too early."""
    said = f"it closed with {code} {reason[:CLOSE_REASON_BYTES]}".rstrip()
    return StorageUnavailable(
        f"the connection to the {peer} ended too early",
        cause=f"while {state.value}; {said}",
        remedy="run the same command again: what has arrived isn't transferred again",
        peer_left=True,
    )


def has_left(error: LakeferryError | None) -> bool:
    """Return True if the error is that the peer went away, which isn't our failure."""
    return error is not None and bool(error.fields.get("peer_left"))
