"""The client: a dataset pulled from a URL into a store, or pushed from a store to a URL.

A pull speaks the Smart Transfer Protocol; where the server has only files, it reads those
(``simple.py``). A push needs a server. Both are made of sessions: one that breaks is followed
by another, which finds what has arrived already, as often as there is hope
(``remote.Patience``); a session that moved something gives new hope. What the user gets to
see is either that the head is there, or one error.

Nothing of the peer's is believed: blocks are checked against their hashes and their chain
before any of their objects is asked for, objects while they stream, URLs before they are
used (``remote.py``), sizes before they are read; and that a push was taken is looked up. A
pull stores its objects, then its blocks, and then moves the head (``OdfDataset.commit``), so
that it may stop anywhere.

:func:`async_pull` and :func:`async_push` are for event loops, :func:`pull` and :func:`push`
for everybody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from lakeferry.engine import Observer, unobserved
from lakeferry.errors import (
    CommitStateUnknown,
    Interrupted,
    InvalidInput,
    LakeferryError,
    NotATable,
    ObjectNotFound,
    TableNotFound,
    UnsupportedFeature,
)
from lakeferry.storage import Store
from lakeferry.transfer import blocks, handshake, simple
from lakeferry.transfer.blocks import ObjectRef
from lakeferry.transfer.conversation import converse
from lakeferry.transfer.downloads import Downloads, Threads
from lakeferry.transfer.handshake import Operation
from lakeferry.transfer.hashes import Multihash
from lakeferry.transfer.messages import Dialect, PullRequest, PushRequest, Visibility
from lakeferry.transfer.moving import (
    Plan,
    Progress,
    PullHost,
    PushHost,
    Transferred,
    load_part,
    step,
)
from lakeferry.transfer.odf_dataset import FOLDERS, Interval, OdfDataset
from lakeferry.transfer.pull_client import PullClient
from lakeferry.transfer.push_client import PushClient
from lakeferry.transfer.remote import NoWebSocket, Remote, Terms, is_passing, parse_url
from lakeferry.transfer.uploads import Uploads

_MORE_THREADS = 8
_OURS = {"blocks", "refs", "info", *FOLDERS.values()}


def pull(
    url: str, store: Store, terms: Terms | None = None, observer: Observer = unobserved
) -> Transferred:
    """Make the dataset at a store's root what the one at a URL is."""
    return asyncio.run(async_pull(url, store, terms, observer))


def push(
    store: Store, url: str, terms: Terms | None = None, observer: Observer = unobserved
) -> Transferred:
    """Make the dataset at a URL what the one at a store's root is."""
    return asyncio.run(async_push(store, url, terms, observer))


async def async_pull(
    url: str, store: Store, terms: Terms | None = None, observer: Observer = unobserved
) -> Transferred:
    """Make the dataset at a store's root what the one at a URL is.

    ``Diverged`` where the two have different histories, or ours is ahead, unless
    ``terms.force``; ``Forbidden`` where objects are at a host that isn't allowed.
    """
    async with _opened(url, terms) as (remote, threads):
        await threads.run(lambda: _check_place(store, must_exist=False))
        return await _Pull(remote, store, threads, Progress(observer, "pulling")).run()


async def async_push(
    store: Store, url: str, terms: Terms | None = None, observer: Observer = unobserved
) -> Transferred:
    """Make the dataset at a URL what the one at a store's root is, and look that it is.

    ``Diverged`` where the two have different histories, or the server's is ahead, unless
    ``terms.force``; ``CommitStateUnknown`` where the server neither confirms nor refuses.
    """
    async with _opened(url, terms) as (remote, threads):
        await threads.run(lambda: _check_place(store, must_exist=True))
        return await _Push(remote, store, threads, Progress(observer, "pushing")).run()


def plan_pull(url: str, store: Store, terms: Terms | None = None) -> Plan:
    """Return what :func:`pull` would do; blocks are fetched and checked, nothing is stored."""

    async def plan() -> Plan:
        async with _opened(url, terms) as (remote, threads):
            await threads.run(lambda: _check_place(store, must_exist=False))
            return await _Pull(remote, store, threads, Progress(unobserved, "pulling")).plan()

    return asyncio.run(plan())


def plan_push(store: Store, url: str, terms: Terms | None = None) -> Plan:
    """Return what :func:`push` would do; of the objects some may be there already."""

    async def plan() -> Plan:
        async with _opened(url, terms) as (remote, threads):
            await threads.run(lambda: _check_place(store, must_exist=True))
            return await _Push(remote, store, threads, Progress(unobserved, "pushing")).plan()

    return asyncio.run(plan())


@asynccontextmanager
async def _opened(url: str, terms: Terms | None) -> AsyncIterator[tuple[Remote, Threads]]:
    terms = terms or Terms()
    parse_url(url)
    handshake.client_headers(Dialect.REFERENCE, terms.token)
    threads = Threads(terms.parallel + _MORE_THREADS)
    try:
        async with Remote.open(url, terms) as remote:
            yield remote, threads
    except InvalidInput as error:
        # What the user said was looked at before: this is nonsense of the server's.
        error.fields["of_peer"] = True
        raise
    finally:
        threads.close()


async def _until_done(
    remote: Remote, progress: Progress, session: Callable[[], Awaitable[Transferred]]
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


class _Pull:
    def __init__(self, remote: Remote, store: Store, threads: Threads, progress: Progress) -> None:
        self._remote = remote
        self._dataset = OdfDataset(store, "")
        self._threads = threads
        self._progress = progress
        self._downloads = Downloads(remote, store, self._dataset, threads)
        self._files = simple.Files(remote, self._dataset, threads, self._downloads)
        self._dry_run = False
        self._foreseen: Plan | None = None

    async def run(self) -> Transferred:
        try:
            return await _until_done(self._remote, self._progress, self._session)
        except NoWebSocket as refused:
            head = await self._head_without(refused.error)
            return await self._files.pull(head, self._progress)

    async def plan(self) -> Plan:
        try:
            self._dry_run = True
            await _until_done(self._remote, self._progress, self._session)
        except NoWebSocket as refused:
            head = await self._head_without(refused.error)
            return await self._files.plan(head, self._progress)
        except Interrupted:
            if self._foreseen is None:
                raise
        return self._foreseen or []

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
        socket = await self._remote.connect(Operation.PULL)
        head = await self._threads.run(self._dataset.head)
        host = PullHost(
            self._remote,
            self._dataset,
            head,
            self._threads,
            self._downloads,
            self._progress,
            dry_run=self._dry_run,
        )
        request = PullRequest(begin_after=head, force=terms.force)
        machine = PullClient(Dialect.REFERENCE, request, terms.page, pace=terms.pace)
        try:
            await converse(socket, machine, host)
        finally:
            self._foreseen = host.foreseen
        new_head = host.head or head
        if new_head is None:
            raise ObjectNotFound(
                f"the dataset at {self._remote.url} is empty", remedy="pull it when it has a head"
            )
        return self._progress.result(new_head, host.blocks, changed=host.head is not None)


class _Push:
    def __init__(self, remote: Remote, store: Store, threads: Threads, progress: Progress) -> None:
        self._remote = remote
        self._dataset = OdfDataset(store, "")
        self._threads = threads
        self._progress = progress
        self._uploads = Uploads(remote, store, self._dataset, threads)
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
        head = await run(self._dataset.head)
        assert head is not None
        there = await self._remote.head()
        if there == head:
            self._more = False
            return self._progress.result(head, self._blocks, changed=bool(self._tried))
        interval = await run(lambda: self._interval(head, there))
        part = await run(lambda: load_part(self._dataset, interval))
        request = PushRequest(there, part.plan, terms.force, Visibility(terms.visibility.title()))
        socket = await self._remote.connect(Operation.PUSH)
        host = PushHost(self._remote, part, self._uploads, self._progress)
        machine = PushClient(Dialect.REFERENCE, request, part.head, terms.page, pace=terms.pace)
        if part.head not in self._tried:
            self._tried.add(part.head)
            self._blocks += part.plan.num_blocks
        await converse(socket, machine, host)
        self._more = part.head != head
        return self._progress.result(part.head, self._blocks, changed=True)

    async def plan(self) -> Plan:
        run = self._threads.run
        head = await run(self._dataset.head)
        assert head is not None
        there = await self._remote.head()
        if there == head:
            return []
        interval = await run(lambda: self._interval(head, there))

        def named() -> list[ObjectRef]:
            found = (blocks.parse(data, name) for name, data in self._dataset.read(interval))
            return list(dict.fromkeys(blocks.objects_of(found)))

        return step("push", head, len(interval), await run(named))

    def _interval(self, head: Multihash, there: Multihash | None) -> Interval:
        force = self._remote.terms.force
        return self._dataset.interval(head, there, ignore_missing_tail=force)


def _check_place(store: Store, *, must_exist: bool) -> None:
    """Refuse a place with something else than an ODF dataset; or with none, if it must be."""
    if next(store.list("_delta_log/"), None) is not None:
        raise UnsupportedFeature(
            f"{store.uri} is a Delta table",
            cause="only ODF datasets are transferred",
            remedy="move a Delta table with 'lakeferry redirect enable'",
        )
    dataset = OdfDataset(store, "")
    if dataset.head() is not None:
        return
    first = next(store.list(""), None)
    if first is None and not must_exist:
        return
    if first is None and not store.is_occupied():
        raise TableNotFound(f"nothing is at {store.uri}", remedy="compare the name")
    if must_exist or first is None or first.path.partition("/")[0] not in _OURS:
        raise NotATable(
            f"{store.uri} isn't an ODF dataset",
            cause="it has no refs/head",
            remedy="name the folder that holds blocks/, data/ and refs/",
        )
