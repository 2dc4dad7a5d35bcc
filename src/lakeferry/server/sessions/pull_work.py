"""The server's work in a pull: finds blocks, packs them, makes URLs.

All of it sends requests to the store, so it runs in threads
(:mod:`lakeferry.server.sessions.websocket_sessions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from lakeferry.errors import Diverged, InvalidInput, LimitExceeded, ObjectNotFound
from lakeferry.server.session_seats import Seat
from lakeferry.server.sessions.byte_budget import Budget
from lakeferry.server.sessions.named_objects import ObjectKeys
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectKind, ObjectRef
from lakeferry.transfer.datasets import message_parts
from lakeferry.transfer.datasets.block_ranges import AnyBlock, Interval
from lakeferry.transfer.datasets.delta.delta_dataset import DeltaDataset
from lakeferry.transfer.datasets.odf import OdfDataset
from lakeferry.transfer.repository.signed_urls import URL_BYTES, Links
from lakeferry.transfer.session.events import (
    BlocksReady,
    HostEvent,
    LoadBlocks,
    MachineAction,
    MakePlan,
    PlanReady,
    SignUrls,
    UrlsReady,
    WorkRefused,
)
from lakeferry.transfer.wire import tarball
from lakeferry.transfer.wire.codec import LIMITS
from lakeferry.transfer.wire.failure_messages import InvalidInterval
from lakeferry.transfer.wire.messages import BlocksBatch, ObjectFile, PullRequest, TransferUrl

BYTES_OF_A_BYTE = 3.6
"""Characters per byte in a message of the reference dialect, on average."""


class Pulling:
    """The server's end of one pull.

    The planned blocks are sent even if the head moves meanwhile; the next pull gets the rest. If
    a history is too long for one message, its oldest part is planned, and the client gets an
    older head than the dataset's; the next pull begins there.
    """

    def __init__(
        self,
        dataset: OdfDataset | DeltaDataset,
        links: Links,
        *,
        urls_last_s: int,
        check: Callable[[], None],
        kept: Budget | None = None,
    ) -> None:
        """Serve a dataset; ``check`` raises as soon as the client has lost the right to read.

        ``kept`` is a buffer for blocks that were packed to make a plan. If it is full, they are
        packed again when the client requests them.
        """
        self._dataset = dataset
        self._links = links
        self._urls_last_s = urls_last_s
        self._check = check
        self._interval: Interval | None = None
        self._packed: tuple[BlocksBatch, Seat] | None = None
        self._kept = kept or Budget()
        self._most_bytes = 0
        self._blocks = self._objects = 0
        self._named = ObjectKeys()

    @property
    def amount(self) -> dict[str, int]:
        """The size of what was requested so far, for the log."""
        return {"blocks": self._blocks, "objects": self._objects}

    def answer(self, action: MachineAction) -> HostEvent:
        """Execute an action of the session and return the result."""
        match action:
            case MakePlan(request):
                return self._plan(request)
            case LoadBlocks():
                return BlocksReady(self._load())
            case SignUrls(objects):
                self._check()
                self._objects += len(objects)
                return UrlsReady(tuple(map(self._url, objects)))
        raise AssertionError(action)

    def answer_bytes(self, action: MachineAction) -> int:
        """Return the maximum size of the text that the client gets for an action."""
        match action:
            case LoadBlocks():
                size = int(BYTES_OF_A_BYTE * self._most_bytes)
            case SignUrls(objects):
                return min(len(objects) * URL_BYTES, LIMITS.urls_message_bytes)
            case _:
                return 0
        return min(size, LIMITS.blocks_message_bytes)

    def close(self) -> None:
        """Release what is held."""
        self._interval = None
        self._let_go()

    def _let_go(self) -> BlocksBatch | None:
        """Return the packed blocks, if they are buffered, and remove them from the buffer."""
        packed, self._packed = self._packed, None
        if packed is None:
            return None
        batch, seat = packed
        self._kept.give_back(seat)
        return batch

    def _plan(self, request: PullRequest) -> HostEvent:
        upper = request.stop_at or self._dataset.current()
        if upper is None:
            raise ObjectNotFound("the dataset was removed")
        try:
            self._interval = self._dataset.interval(
                upper, request.begin_after, ignore_missing_tail=request.force
            )
        except Diverged:
            if request.begin_after is None:
                raise
            return WorkRefused(InvalidInterval(upper, request.begin_after))
        plan = self._interval.plan
        self._most_bytes = plan.bytes_in_raw_blocks
        if not message_parts.PULLED.surely_hold(plan) and not self._is_whole(
            request, self._interval
        ):
            with self._kept.unpacking:
                part = message_parts.pack_part(
                    self._dataset, self._interval, message_parts.PULLED, note=self._note
                )
            plan = part.plan
            self._most_bytes = len(part.batch.payload)
            self._keep(part, request)
        self._blocks = plan.num_blocks
        return PlanReady(plan)

    def _keep(self, part: message_parts.Packed, request: PullRequest) -> None:
        try:
            seat = self._kept.take(len(part.batch.payload))
        except LimitExceeded:
            self._interval = self._dataset.interval(
                part.head, request.begin_after, ignore_missing_tail=request.force
            )
        else:
            self._packed = part.batch, seat

    def _is_whole(self, request: PullRequest, interval: Interval) -> bool:
        """Return True if the client can't take a part: force replaces a table in one version."""
        if not self._dataset.is_replaced_at_once or request.begin_after is None:
            return False
        return message_parts.begins_anew(self._dataset, interval)

    def _load(self) -> BlocksBatch:
        assert self._interval is not None
        batch = self._let_go()
        if batch is not None:
            return batch
        payload = bytearray()
        blocks = self._noted(self._dataset.read(self._interval))
        for piece in tarball.pack_blocks(message_parts.with_beside(self._dataset, blocks)):
            payload += piece
            # In every dialect the message is at least as large as the blocks.
            if len(payload) > LIMITS.blocks_message_bytes:
                raise LimitExceeded(
                    "the blocks don't fit into one message",
                    cause=f"{len(self._interval):,} blocks",
                )
        return BlocksBatch(len(self._interval), bytes(payload))

    def _noted(
        self, blocks: Iterable[tuple[Multihash, bytes]]
    ) -> Iterator[tuple[Multihash, bytes]]:
        """Yield blocks; for a table, record the objects that they name."""
        for name, data in blocks:
            if not self._dataset.places_prove_objects:
                self._named.take(self._dataset.parse(data))
            yield name, data

    def _note(self, block: AnyBlock) -> None:
        if not self._dataset.places_prove_objects:
            self._named.take(block)

    def _url(self, one: ObjectFile) -> TransferUrl:
        kind = ObjectKind(one.kind.value)
        ref = ObjectRef(kind, one.physical_hash, one.size_bytes or 0, one.path)
        # The path comes from the peer, and the table's folder may have other files.
        if not self._dataset.places_prove_objects and ref not in self._named:
            raise InvalidInput(
                "the client asked for an object that none of the blocks names",
                cause=repr(one.path)[:200],
            )
        return self._links.get(
            self._dataset.place(ref),
            lasts_s=self._urls_last_s,
            shown=self._dataset.address(ref),
        )
