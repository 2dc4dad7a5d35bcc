"""What the server of a pull has to do: find blocks, pack them, and hand out addresses.

All of it asks the store, so that it runs in threads (:mod:`lakeferry.server.sessions`).
"""

from __future__ import annotations

from collections.abc import Callable

from lakeferry.errors import Diverged, LimitExceeded, ObjectNotFound
from lakeferry.transfer import delta_blocks, parts, tarball
from lakeferry.transfer.blocks import ObjectKind, ObjectRef
from lakeferry.transfer.dataset import Kind
from lakeferry.transfer.delta_dataset import DeltaDataset
from lakeferry.transfer.dialects import LIMITS
from lakeferry.transfer.events import (
    Action,
    BlocksReady,
    Command,
    LoadBlocks,
    MakePlan,
    PlanReady,
    Refused,
    SignUrls,
    UrlsReady,
)
from lakeferry.transfer.failures import InvalidInterval
from lakeferry.transfer.intervals import Interval
from lakeferry.transfer.messages import BlocksBatch, ObjectFile, PullRequest, TransferUrl
from lakeferry.transfer.odf_dataset import OdfDataset
from lakeferry.transfer.signing import Links


class Pulling:
    """One pull of a dataset, at the end that has it.

    What was planned is what is packed: a head that moves on meanwhile is for the next pull.
    Of a history that is too long for one message the oldest part is planned, and the client
    gets a head that is older than the dataset's; the next pull begins there.
    """

    def __init__(
        self,
        dataset: OdfDataset | DeltaDataset,
        links: Links,
        *,
        urls_last_s: int,
        check: Callable[[], None],
    ) -> None:
        """Serve a dataset; ``check`` raises once the client isn't allowed to read any more."""
        self._dataset = dataset
        self._links = links
        self._urls_last_s = urls_last_s
        self._check = check
        self._interval: Interval | None = None
        self._batch: BlocksBatch | None = None
        self._blocks = self._objects = 0

    @property
    def amount(self) -> dict[str, int]:
        """How much was asked for so far, for the log."""
        return {"blocks": self._blocks, "objects": self._objects}

    def answer(self, action: Action) -> Command:
        """Do what the session wants done."""
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

    def close(self) -> None:
        """Let go of what is held."""
        self._interval = self._batch = None

    def _plan(self, request: PullRequest) -> Command:
        upper = request.stop_at or self._dataset.current()
        if upper is None:
            raise ObjectNotFound("the dataset isn't there any more")
        try:
            self._interval = self._dataset.interval(
                upper, request.begin_after, ignore_missing_tail=request.force
            )
        except Diverged:
            if request.begin_after is None:
                raise
            return Refused(InvalidInterval(upper, request.begin_after))
        plan = self._interval.plan
        if not parts.PULLED.surely_hold(plan) and not self._is_whole(request, self._interval):
            part = parts.pack_part(self._dataset, self._interval, parts.PULLED)
            self._batch, plan = part.batch, part.plan
        self._blocks = plan.num_blocks
        return PlanReady(plan)

    def _is_whole(self, request: PullRequest, interval: Interval) -> bool:
        """Tell whether the client can't take a part: a table replaces another in one version."""
        if self._dataset.kind is not Kind.DELTA or request.begin_after is None:
            return False
        return parts.begins_anew(self._dataset, interval)

    def _load(self) -> BlocksBatch:
        assert self._interval is not None
        if self._batch is not None:
            return self._batch
        payload = bytearray()
        blocks = self._dataset.read(self._interval)
        for piece in tarball.pack(parts.with_beside(self._dataset, blocks)):
            payload += piece
            # No dialect makes less of it on the wire than it is.
            if len(payload) > LIMITS.blocks_message_bytes:
                raise LimitExceeded(
                    "the blocks don't fit into one message",
                    cause=f"{len(self._interval):,} blocks",
                    remedy="pull into an empty place, where they come in parts",
                )
        return BlocksBatch(len(self._interval), bytes(payload))

    def _url(self, one: ObjectFile) -> TransferUrl:
        kind = ObjectKind(one.kind.value)
        ref = ObjectRef(kind, one.physical_hash, one.size_bytes or 0, one.path)
        if one.path is not None:
            # It comes from the peer, and a table's objects are nowhere but in the table.
            delta_blocks.check_path(one.path)
        return self._links.get(
            self._dataset.place(ref),
            lasts_s=self._urls_last_s,
            shown=self._dataset.address(ref),
        )
