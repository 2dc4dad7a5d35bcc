"""Both ends of a transfer in one process: real machines, hosts in memory, a wire that can be cut.

Who is next is decided by whoever drives it: every text under way, every piece of work of a
host and the passing of time is one choice, so that any interleaving can be had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.session import events as e
from lakeferry.transfer.session.machine import Machine, Pace
from lakeferry.transfer.session.pull_client import PullClient
from lakeferry.transfer.session.pull_server import PullServer
from lakeferry.transfer.session.push_client import PushClient
from lakeferry.transfer.session.push_server import PushServer
from lakeferry.transfer.wire.failure_messages import InvalidHead, InvalidInterval, TransferFailure
from lakeferry.transfer.wire.messages import (
    BlocksBatch,
    MessageDialect,
    ObjectFile,
    PullRequest,
    PushRequest,
    TransferPlan,
    TransferUrl,
    WireObjectKind,
)

DATASET_ID = "did:odf:fed01" + "ab" * 32


def name_of(number: int) -> Multihash:
    return Multihash.sha3_256(str(number).encode())


def object_of(number: int, size_bytes: int = 10) -> ObjectFile:
    return ObjectFile(WireObjectKind.DATA_SLICE, name_of(number), size_bytes)


class Repository:
    """A chain of hashes, and the objects that are there."""

    def __init__(self, blocks: int, objects: int = 0) -> None:
        self.chain = [name_of(-1 - number) for number in range(blocks)]
        self.objects = [object_of(number) for number in range(objects)]
        self.stored = set(self.objects)

    @property
    def head(self) -> Multihash | None:
        return self.chain[-1] if self.chain else None

    def after(self, tail: Multihash | None, *, force: bool) -> int | None:
        """Return how many blocks follow one, ``None`` if it isn't there."""
        if tail is None:
            return len(self.chain)
        if tail in self.chain:
            return len(self.chain) - 1 - self.chain.index(tail)
        return len(self.chain) if force else None


class End:
    """A machine, what its host has to do, and what the peer sent."""

    def __init__(self, machine: Machine[Any], repository: Repository) -> None:
        self.machine = machine
        self.repository = repository
        self.inbox: deque[e.Received | e.PeerClosed] = deque()
        self.work: list[Callable[[], e.HostEvent]] = []
        self.finished: list[e.Finished] = []
        self.heads_then: tuple[Multihash | None, Multihash | None] = (None, None)
        """Its own head and the other's at the moment when it was over."""
        self.sent: list[str] = []
        self.wanted: list[ObjectFile] = []
        self.objects: tuple[ObjectFile, ...] = ()
        self.expiring = 0
        """How many URLs will turn out to be of no use."""

    def answer(self, action: e.MachineAction, other: End) -> None:
        """Take an action's work upon the list; it is done when it is chosen."""
        mine, theirs = self.repository, other.repository
        match action:
            case e.MakePlan(request):
                self.work.append(lambda: plan(mine, request))
            case e.ConsiderPush(pushed):
                fits = pushed.current_head == mine.head
                failure = InvalidHead(pushed.current_head, mine.head)
                self.work.append(lambda: e.PushConsidered() if fits else e.WorkRefused(failure))
            case e.LoadBlocks():
                self.work.append(lambda: e.BlocksReady(BlocksBatch(1, b"blocks")))
            case e.TakeBlocks():
                self.work.append(e.BlocksTaken)
            case e.EnsureDataset():
                self.work.append(e.DatasetReady)
            case e.SignUrls(objects):
                push = isinstance(self.machine, PushServer)
                self.work.append(lambda: sign(mine, objects, push=push))
            case e.NextObjects(limit):
                self.work.append(lambda: self.next_objects(limit))
            case e.Download(downloads):
                self.work += [partial(self.move, one.object, mine) for one in downloads]
            case e.Upload(uploads):
                self.work += [partial(self.move, one.object, theirs) for one in uploads]
            case e.CheckAndCommit():
                self.work.append(lambda: commit(mine, theirs))
            case e.CheckHead():
                self.work.append(lambda: e.HeadIs(theirs.head))
            case _:
                raise AssertionError(action)

    def next_objects(self, limit: int) -> e.HostEvent:
        page, self.wanted = self.wanted[:limit], self.wanted[limit:]
        return e.ObjectsWanted(tuple(page), more=bool(self.wanted))

    def move(self, one: ObjectFile, to: Repository) -> e.HostEvent:
        if self.expiring > 0:
            self.expiring -= 1
            return e.Expired((one,))
        to.stored.add(one)
        return e.ObjectsMoved((one,))


def plan(mine: Repository, request: PullRequest) -> e.HostEvent:
    count = mine.after(request.begin_after, force=request.force)
    if count is None:
        assert mine.head is not None
        assert request.begin_after is not None
        failure: TransferFailure = InvalidInterval(mine.head, request.begin_after)
        return e.WorkRefused(failure)
    return e.PlanReady(TransferPlan(count, len(mine.objects)))


def sign(mine: Repository, objects: tuple[ObjectFile, ...], *, push: bool) -> e.HostEvent:
    urls = (
        None if push and one in mine.stored else TransferUrl(f"https://store/{one.physical_hash}")
        for one in objects
    )
    return e.UrlsReady(tuple(urls))


def commit(mine: Repository, source: Repository) -> e.HostEvent:
    assert set(source.objects) <= mine.stored, "committed without its objects"
    mine.chain, mine.objects = list(source.chain), list(source.objects)
    return e.RunCommitted()


class Dialogue:
    """Two ends and what is between them."""

    def __init__(self, client: End, server: End) -> None:
        self.client, self.server = client, server
        self.now_ms = 0
        self.tell(client, e.Begin())

    def other(self, end: End) -> End:
        return self.server if end is self.client else self.client

    def tell(self, end: End, event: e.MachineEvent) -> None:
        """Give a machine an event, and see to what it wants done."""
        other = self.other(end)
        for action in end.machine.receive(event, self.now_ms):
            match action:
                case e.Send(text):
                    end.sent.append(text)
                    other.inbox.append(e.Received(text))
                case e.Close(code, reason):
                    assert len(reason.encode()) <= 123
                    other.inbox.append(e.PeerClosed(code, reason))
                    end.inbox.clear()
                case e.Finished():
                    end.finished.append(action)
                    end.heads_then = (end.repository.head, other.repository.head)
                case _:
                    end.answer(action, other)
        if end.machine.is_over:
            end.inbox.clear()

    def choices(self) -> list[Callable[[], None]]:
        """Return everything that may happen next, but for time and cuts."""
        found: list[Callable[[], None]] = []
        for end in (self.client, self.server):
            if end.inbox:
                found.append(partial(self.hear, end))
            if not end.machine.is_over:
                found += [partial(self.work, end, number) for number in range(len(end.work))]
        return found

    def hear(self, end: End) -> None:
        """Let a machine have the next text that is under way to it."""
        self.tell(end, end.inbox.popleft())

    def work(self, end: End, number: int) -> None:
        """Let a host do one of the things that it was asked for."""
        self.tell(end, end.work.pop(number)())

    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        for end in (self.client, self.server):
            self.tell(end, e.Tick())

    def cut(self, keep: int = 0) -> None:
        """End the connection; the first few of what is under way still arrive."""
        for end in (self.client, self.server):
            kept = list(end.inbox)[:keep]
            end.inbox = deque(kept)
            if not any(isinstance(one, e.PeerClosed) for one in kept):
                end.inbox.append(e.PeerClosed())

    def run(
        self,
        choose: Callable[[int], int] = lambda _: 0,
        meanwhile: Callable[[], None] = lambda: None,
        steps: int = 10_000,
    ) -> None:
        """Go on until both are over, always with the choice that is made."""
        for _ in range(steps):
            # What may happen is known only after this, for it can end a session.
            meanwhile()
            if self.client.machine.is_over and self.server.machine.is_over:
                return
            choices = self.choices()
            if choices:
                choices[choose(len(choices))]()
            else:
                self.wait()
        raise AssertionError(f"{self.client.machine.state}, {self.server.machine.state}")

    def wait(self) -> None:
        """Let as much time pass as somebody waits for."""
        machines = (self.client.machine, self.server.machine)
        wakes = [one.wake_ms for one in machines if one.wake_ms is not None]
        self.pass_time(max(1, min(wakes) - self.now_ms))


def pull(
    dialect: MessageDialect,
    source: Repository,
    target: Repository,
    *,
    force: bool = False,
    page: int = 3,
    pace: Pace | None = None,
) -> Dialogue:
    """Return a pull that has just begun."""
    request = PullRequest(target.head, force=force, dataset_id=DATASET_ID)
    client = End(PullClient(dialect, request, page=page, pace=pace), target)
    client.wanted = [one for one in source.objects if one not in target.stored]
    return Dialogue(client, End(PullServer(dialect, pace=pace), source))


def push(
    dialect: MessageDialect,
    source: Repository,
    target: Repository,
    *,
    believed_head: Multihash | None = None,
    page: int = 3,
    last_page_bytes: int = 1000,
    pace: Pace | None = None,
) -> Dialogue:
    """Return a push that has just begun."""
    assert source.head is not None
    known = believed_head or target.head
    request = PushRequest(known, TransferPlan(1), dataset_id=DATASET_ID)
    machine = PushClient(
        dialect, request, source.head, page=page, last_page_bytes=last_page_bytes, pace=pace
    )
    client = End(machine, source)
    client.wanted = list(source.objects)
    return Dialogue(client, End(PushServer(dialect, pace=pace), target))
