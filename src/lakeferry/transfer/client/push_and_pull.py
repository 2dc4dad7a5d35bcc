"""Pushes and pulls a dataset: sessions, retries, and the result.

A pull speaks the Smart Transfer Protocol; where the server has only files, it reads those
(``simple_pull.py``). A push needs a server. Both are made of sessions: one that breaks is followed
by another, which finds what has arrived already, as often as there is hope
(``remote_dataset.Patience``); a session that moved something gives new hope. What the user gets to
see is either that the head is there, or one error.

Nothing of the peer's is believed: blocks are checked against their hashes and their chain
before any of their objects is asked for, objects while they stream, URLs before they are
used (``remote_dataset.py``), sizes before they are read; and that a push was taken is looked up. A
pull stores its objects, then its blocks, and then moves the head (``OdfDataset.commit``), so
that it may stop anywhere.

:func:`async_pull` and :func:`async_push` are for event loops, :func:`pull` and :func:`push`
for everybody else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from lakeferry.engine import Observer, unobserved
from lakeferry.errors import (
    CommitStateUnknown,
    Diverged,
    Interrupted,
    InvalidInput,
    LakeferryError,
    ObjectNotFound,
    TableNotFound,
)
from lakeferry.storage import Store
from lakeferry.storage.overlay import Overlay
from lakeferry.storage.side_folder import Aside
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectRef
from lakeferry.transfer.client import event_loop, simple_pull
from lakeferry.transfer.client.downloads import Downloads
from lakeferry.transfer.client.large_downloads import UnderWay
from lakeferry.transfer.client.objects_by_engine import Carrying
from lakeferry.transfer.client.remote_dataset import (
    NoWebSocket,
    Remote,
    Terms,
    is_passing,
    parse_url,
)
from lakeferry.transfer.client.session_work import (
    ChooseCarrier,
    PullHost,
    PushHost,
    TransferPlan,
    TransferProgress,
    Transferred,
    nobody_else,
    step,
)
from lakeferry.transfer.client.shared_limits import StoreThreads
from lakeferry.transfer.client.uploads import Uploads
from lakeferry.transfer.client.websocket_session import converse
from lakeferry.transfer.datasets import message_parts
from lakeferry.transfer.datasets.block_ranges import Interval
from lakeferry.transfer.datasets.dataset import DatasetFormat, OtherDataset
from lakeferry.transfer.datasets.delta import version_blocks
from lakeferry.transfer.datasets.delta.blocks_of_log import Choose
from lakeferry.transfer.datasets.delta.version_blocks import LARGEST_BLOCK_BYTES
from lakeferry.transfer.datasets.local_dataset import Here
from lakeferry.transfer.datasets.message_parts import begins_anew, load_part
from lakeferry.transfer.session.pull_client import PullClient
from lakeferry.transfer.session.push_client import PushClient
from lakeferry.transfer.wire import handshake
from lakeferry.transfer.wire.handshake import Operation
from lakeferry.transfer.wire.messages import (
    MessageDialect,
    PullRequest,
    PushRequest,
    PushVisibility,
)

_MORE_THREADS = 8


def pull(
    url: str,
    store: Store,
    terms: Terms | None = None,
    observer: Observer = unobserved,
    choose: Choose | None = None,
) -> Transferred:
    """Make the dataset at a store's root what the one at a URL is."""
    return event_loop.run(async_pull(url, store, terms, observer, choose))


def push(
    store: Store,
    url: str,
    terms: Terms | None = None,
    observer: Observer = unobserved,
    choose: Choose | None = None,
) -> Transferred:
    """Make the dataset at a URL what the one at a store's root is."""
    return event_loop.run(async_push(store, url, terms, observer, choose))


async def async_pull(
    url: str,
    store: Store,
    terms: Terms | None = None,
    observer: Observer = unobserved,
    choose: Choose | None = None,
) -> Transferred:
    """Make the dataset at a store's root what the one at a URL is.

    ``Diverged`` where the two have different histories, or ours is ahead, unless
    ``terms.force``; ``Forbidden`` where objects are at a host that isn't allowed. Objects
    are moved by the engine that ``choose`` gives, in this process without it.
    """
    here = Here(store, choose, observer)
    async with _opened(url, terms, here, must_exist=False) as (remote, threads):
        return await _Pull(
            remote, here, threads, TransferProgress(observer, "pulling"), choose
        ).run()


async def async_push(
    store: Store,
    url: str,
    terms: Terms | None = None,
    observer: Observer = unobserved,
    choose: Choose | None = None,
) -> Transferred:
    """Make the dataset at a URL what the one at a store's root is, and look that it is.

    ``Diverged`` where the two have different histories, or the server's is ahead, unless
    ``terms.force``; ``CommitStateUnknown`` where the server neither confirms nor refuses.
    """
    here = Here(store, choose, observer)
    async with _opened(url, terms, here, must_exist=True) as (remote, threads):
        return await _Push(
            remote, here, threads, TransferProgress(observer, "pushing"), choose
        ).run()


def plan_pull(
    url: str,
    store: Store,
    terms: Terms | None = None,
    observer: Observer = unobserved,
    choose: Choose | None = None,
) -> TransferPlan:
    """Return what :func:`pull` would do; blocks are fetched and checked, nothing is stored."""
    return event_loop.run(async_plan_pull(url, store, terms, observer, choose))


def plan_push(
    store: Store,
    url: str,
    terms: Terms | None = None,
    observer: Observer = unobserved,
    choose: Choose | None = None,
) -> TransferPlan:
    """Return what :func:`push` would do; of the objects some may be there already."""
    return event_loop.run(async_plan_push(store, url, terms, observer, choose))


async def async_plan_pull(
    url: str,
    store: Store,
    terms: Terms | None = None,
    observer: Observer = unobserved,
    choose: Choose | None = None,
) -> TransferPlan:
    """Return what :func:`async_pull` would do; a table's digests are made as it makes them."""
    here = Here(Overlay(store), choose, observer)
    async with _opened(url, terms, here, must_exist=False) as (remote, threads):
        return await _Pull(remote, here, threads, TransferProgress(unobserved, "pulling")).plan()


async def async_plan_push(
    store: Store,
    url: str,
    terms: Terms | None = None,
    observer: Observer = unobserved,
    choose: Choose | None = None,
) -> TransferPlan:
    """Return what :func:`async_push` would do; a table's digests are made as it makes them."""
    here = Here(Overlay(store), choose, observer)
    async with _opened(url, terms, here, must_exist=True) as (remote, threads):
        return await _Push(remote, here, threads, TransferProgress(unobserved, "pushing")).plan()


@asynccontextmanager
async def _opened(
    url: str, terms: Terms | None, here: Here, *, must_exist: bool
) -> AsyncIterator[tuple[Remote, StoreThreads]]:
    """Give what a transfer needs, once what is here was looked at."""
    terms = terms or Terms()
    parse_url(url)
    handshake.client_headers(MessageDialect.REFERENCE, terms.token)
    threads = StoreThreads(terms.parallel + _MORE_THREADS)
    try:
        async with Remote.open(url, terms) as remote:
            await threads.run(lambda: here.look(must_exist=must_exist))
            yield remote, threads
    except InvalidInput as error:
        # What the user said was looked at before: this is nonsense of the server's.
        error.fields["of_peer"] = True
        raise
    finally:
        await threads.end()


async def _until_done(
    remote: Remote, progress: TransferProgress, session: Callable[[], Awaitable[Transferred]]
) -> Transferred:
    """Hold sessions until one ends well, or there is no hope that the next one does."""
    patience, failures, unknown = remote.terms.patience, 0, 0
    while True:
        moved = progress.objects
        try:
            return await session()
        except LakeferryError as error:
            # The next session finds out by itself whether a push was taken. A server that
            # doesn't say so twice isn't asked a third time.
            unknown += isinstance(error, CommitStateUnknown)
            hopeful = is_passing(error) or (isinstance(error, CommitStateUnknown) and unknown < 2)
            failures = 1 if progress.objects > moved else failures + 1
            if not hopeful or error is progress.given_up or failures >= patience.attempts:
                raise
        await patience.wait(failures)


async def _differing(
    remote: Remote, here: Here, threads: StoreThreads, ours: Multihash | None, error: Diverged
) -> Diverged:
    """Return the error for ends that differ: of another table nobody is to try force."""
    if (
        ours is None
        or isinstance(error, OtherDataset)
        or here.dataset.kind is not DatasetFormat.DELTA
    ):
        return error
    try:
        theirs = await remote.head()
        data = b"" if theirs is None else await remote.block(theirs, LARGEST_BLOCK_BYTES)
        if not version_blocks.is_delta(data):
            return error
        there = version_blocks.parse(data, theirs).table_id
        mine = await threads.run(lambda: version_blocks.parse(here.dataset.block(ours)).table_id)
    except LakeferryError:
        return error
    if there == mine:
        return error
    return OtherDataset(
        "the two ends have different tables",
        cause=f"the one here has the id {mine}, the one there {there}",
        remedy="choose another name or another place: one table is never replaced by another",
        dataset_id=there,
    )


def _engines_of(
    choose: Choose | None, remote: Remote, store: Store, threads: StoreThreads, *, is_push: bool
) -> ChooseCarrier:
    """Return who says whether an engine in other processes moves the objects."""
    if choose is None:
        return nobody_else

    async def engines(objects: int, size_bytes: int) -> Carrying | None:
        if isinstance(store, Aside) and store.is_used:
            # Other processes don't have what is kept aside.
            return None
        engine = await threads.run(lambda: choose(objects, size_bytes))
        if engine.name == "local":
            return None
        return Carrying(engine, store.config, remote, threads, is_push=is_push)

    return engines


class _Pull:
    def __init__(
        self,
        remote: Remote,
        here: Here,
        threads: StoreThreads,
        progress: TransferProgress,
        choose: Choose | None = None,
    ) -> None:
        self._engines = _engines_of(choose, remote, here.store, threads, is_push=False)
        self._remote = remote
        self._here = here
        self._threads = threads
        self._progress = progress
        downloads = Downloads(remote, here.store, here, threads)
        self._under_way = UnderWay(downloads)
        self._files = simple_pull.Files(remote, here, threads, downloads)
        self._dry_run = False
        self._foreseen: list[tuple[Multihash, int, list[ObjectRef]]] = []
        self._more = True
        self._blocks = 0

    async def run(self) -> Transferred:
        try:
            try:
                # A history too long for one message comes in several sessions.
                while self._more:
                    done = await _until_done(self._remote, self._progress, self._session)
                return done
            finally:
                await self._under_way.end()
        except NoWebSocket as refused:
            head = await self._head_without(refused.error)
            return await self._files.pull(head, self._progress)

    async def plan(self) -> TransferPlan:
        self._dry_run = True
        while self._more:
            parts_before = len(self._foreseen)
            try:
                await _until_done(self._remote, self._progress, self._session)
            except NoWebSocket as refused:
                head = await self._head_without(refused.error)
                return await self._files.plan(head, self._progress)
            except Interrupted:
                if len(self._foreseen) == parts_before:
                    raise
        if not self._foreseen:
            return []
        refs = dict.fromkeys(ref for _, _, missing in self._foreseen for ref in missing)
        count = sum(blocks for _, blocks, _ in self._foreseen)
        return step("pull", self._foreseen[-1][0], count, list(refs))

    async def _head_without(self, refusal: LakeferryError) -> Multihash:
        """Return the head of a server that has only files; else why it let nobody in."""
        try:
            head = await self._remote.head()
        except LakeferryError as error:
            raise refusal from error
        if head is None:
            raise ObjectNotFound(
                f"there is no dataset at {self._remote.url}",
                cause=refusal.cause,
                remedy="compare the URL and what the token covers",
            ) from refusal
        return head

    async def _session(self) -> Transferred:
        terms = self._remote.terms
        # Before the server is there to wait: of a table it may take long.
        head = await self._threads.run(self._here.current)
        if self._foreseen:
            head = self._foreseen[-1][0]
        if head is not None and await self._is_made_of_theirs(head):
            self._more = False
            return self._progress.result(head, self._blocks, changed=self._blocks > 0)
        socket = await self._remote.connect(Operation.PULL)
        host = PullHost(
            self._remote,
            self._here,
            head,
            self._threads,
            self._under_way,
            self._progress,
            dry_run=self._dry_run,
            engines=self._engines,
        )
        request = PullRequest(begin_after=head, force=terms.force)
        machine = PullClient(MessageDialect.REFERENCE, request, terms.page, pace=terms.pace)
        try:
            await converse(socket, machine, host)
        except Diverged as error:
            raise await _differing(self._remote, self._here, self._threads, head, error) from error
        finally:
            self._foreseen += [host.foreseen] if host.foreseen is not None else []
            self._blocks += host.blocks
            self._more = host.may_be_a_part
        new_head = host.head or head
        if new_head is None:
            raise ObjectNotFound(
                f"the dataset at {self._remote.url} is empty", remedy="pull it when it has a head"
            )
        return self._progress.result(new_head, self._blocks, changed=self._blocks > 0)

    async def _is_made_of_theirs(self, head: Multihash) -> bool:
        """Tell whether our table was replaced by what the server has now."""
        origin = await self._threads.run(lambda: self._here.dataset.origin(head))
        return origin is not None and await self._remote.head() == origin


class _Push:
    def __init__(
        self,
        remote: Remote,
        here: Here,
        threads: StoreThreads,
        progress: TransferProgress,
        choose: Choose | None = None,
    ) -> None:
        self._engines = _engines_of(choose, remote, here.store, threads, is_push=True)
        self._remote = remote
        self._here = here
        self._threads = threads
        self._progress = progress
        self._uploads = Uploads(remote, here.store, here, threads)
        self._more = True
        self._blocks = 0
        self._tried: set[Multihash] = set()

    async def run(self) -> Transferred:
        try:
            # A history too long for one message goes in several sessions, each with a head
            # of its own that is one of the dataset's.
            while self._more:
                done = await _until_done(self._remote, self._progress, self._session)
            return done
        except NoWebSocket as refused:
            raise refused.error from refused

    async def _session(self) -> Transferred:
        terms, run = self._remote.terms, self._threads.run
        head, there = await self._ends()
        if there is not None and (there == head or await self._is_made_of(head, there)):
            self._more = False
            return self._progress.result(there, self._blocks, changed=bool(self._tried))
        try:
            interval = await run(lambda: self._interval(head, there))
        except Diverged as error:
            raise await _differing(self._remote, self._here, self._threads, head, error) from error
        part = await run(lambda: self._part(interval, there))
        request = PushRequest(
            there, part.plan, terms.force, PushVisibility(terms.visibility.title())
        )
        socket = await self._remote.connect(Operation.PUSH)
        made_of = partial(self._is_made_of, part.head)
        host = PushHost(
            self._remote,
            part,
            self._uploads,
            self._progress,
            made_of,
            self._here,
            self._engines,
        )
        machine = PushClient(
            MessageDialect.REFERENCE, request, part.head, terms.page, pace=terms.pace
        )
        if part.head not in self._tried:
            self._tried.add(part.head)
            self._blocks += part.plan.num_blocks
        await converse(socket, machine, host)
        self._more = part.head != head
        return self._progress.result(host.head, self._blocks, changed=True)

    def _part(self, interval: Interval, there: Multihash | None) -> message_parts.Part:
        dataset = self._here.dataset
        # A table that begins anew becomes one more version of the other, and so comes at once.
        is_table = dataset.kind is DatasetFormat.DELTA
        whole = is_table and there is not None and begins_anew(dataset, interval)
        return load_part(dataset, interval, message_parts.PUSHED, whole=whole)

    async def _ends(self) -> tuple[Multihash, Multihash | None]:
        """Return our head, up to date, and theirs."""
        head = await self._threads.run(self._here.current)
        if head is None:
            raise TableNotFound(
                f"there is no table at {self._here.store.uri}",
                cause="its log has no version",
                remedy="compare the name; what a pull left in the middle, the same pull completes",
            )
        return head, await self._remote.head()

    async def _is_made_of(self, ours: Multihash, theirs: Multihash) -> bool:
        """Tell whether a head of the server's is the root that it made of ours by force."""
        dataset = self._here.dataset
        if dataset.kind is not DatasetFormat.DELTA:
            return False
        try:
            data = await self._remote.block(theirs, dataset.largest_block_bytes)
        except ObjectNotFound:
            return False
        block = version_blocks.parse(data, theirs) if version_blocks.is_delta(data) else None
        return block is not None and block.root is not None and block.root.origin == ours

    async def plan(self) -> TransferPlan:
        dataset = self._here.dataset
        head, there = await self._ends()
        if there is not None and (there == head or await self._is_made_of(head, there)):
            return []

        def named() -> tuple[int, list[ObjectRef]]:
            interval = self._interval(head, there)
            found = (dataset.parse(data, name) for name, data in dataset.read(interval))
            return len(interval), list(dict.fromkeys(ref for one in found for ref in one.objects))

        return step("push", head, *await self._threads.run(named))

    def _interval(self, head: Multihash, there: Multihash | None) -> Interval:
        force = self._remote.terms.force
        return self._here.dataset.interval(head, there, ignore_missing_tail=force)
