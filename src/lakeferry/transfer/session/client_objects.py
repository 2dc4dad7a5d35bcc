"""The objects of a client's session, in pages.

Some are requested, some are being moved by the client's host, and some have to be requested again,
because their URLs weren't used in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from lakeferry.errors import InvalidInput, LakeferryError, LimitExceeded
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.session.closing import GOING_AWAY, PROTOCOL_ERROR, TOO_BIG
from lakeferry.transfer.session.events import Close
from lakeferry.transfer.session.machine import Machine, OutOfPlace, Pace, S, SessionStep
from lakeferry.transfer.wire import codec
from lakeferry.transfer.wire.codec import MessageLimits
from lakeferry.transfer.wire.failure_messages import TransferFailure, error_of
from lakeferry.transfer.wire.messages import MessageDialect, ObjectFile, WireObjectKind

ObjectKey: TypeAlias = tuple[WireObjectKind, Multihash, str | None]


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
