"""Decides how a server refuses: the first request by a message, anything later by closing."""

from __future__ import annotations

from abc import abstractmethod

from lakeferry.errors import InvalidInput, LakeferryError
from lakeferry.transfer.session.closing import INTERNAL
from lakeferry.transfer.session.events import Close, Send
from lakeferry.transfer.session.machine import Machine, S, SessionStep
from lakeferry.transfer.wire import codec
from lakeferry.transfer.wire.failure_messages import Phase, TransferFailure, error_of, failure_of
from lakeferry.transfer.wire.messages import MessageDialect


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
