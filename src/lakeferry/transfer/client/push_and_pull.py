"""Pushes and pulls a dataset: the result is that the head is there, or one error.

A pull uses the Smart Transfer Protocol; if the server has only files, it reads those
(``simple_pull.py``). A push needs a server. Both consist of sessions
(``session_retries.py``).

The peer isn't trusted: blocks are checked against their hashes and their chain before any of
their objects is requested, objects while they stream, URLs before they are used
(``remote_dataset.py``), sizes before content is read; and after a push the server's head is
read. A pull stores its objects, then its blocks, and then moves the head (``Dataset.commit``),
so that it can be interrupted anywhere.

:class:`Pull` and :class:`Push` are the two entry points. Callers without an event loop run them
with ``event_loop.run_in_loop``.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from lakeferry.engine import Observer, unobserved
from lakeferry.errors import (
    Diverged,
    Interrupted,
    LakeferryError,
    ObjectNotFound,
    StorageError,
    TableNotFound,
)
from lakeferry.storage import Store
from lakeferry.storage.overlay import Overlay
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.chain.odf_blocks import ObjectRef
from lakeferry.transfer.client import simple_pull
from lakeferry.transfer.client.downloads import Downloads
from lakeferry.transfer.client.large_downloads import UnderWay
from lakeferry.transfer.client.remote_dataset import NoWebSocket, Remote, Terms
from lakeferry.transfer.client.session_retries import differing, engines_of, opened, until_done
from lakeferry.transfer.client.session_work import PullHost, PushHost, TransferSteps, step
from lakeferry.transfer.client.shared_limits import StoreThreads
from lakeferry.transfer.client.transfer_progress import TransferProgress, Transferred
from lakeferry.transfer.client.uploads import Uploads
from lakeferry.transfer.client.websocket_session import converse
from lakeferry.transfer.datasets import message_parts
from lakeferry.transfer.datasets.block_ranges import Interval
from lakeferry.transfer.datasets.delta.blocks_of_log import Choose
from lakeferry.transfer.datasets.local_dataset import Here
from lakeferry.transfer.datasets.message_parts import begins_anew, load_part
from lakeferry.transfer.session.pull_client import PullClient
from lakeferry.transfer.session.push_client import PushClient
from lakeferry.transfer.wire.handshake import Operation
from lakeferry.transfer.wire.messages import (
    MessageDialect,
    PullRequest,
    PushRequest,
    PushVisibility,
)


class Pull:
    """Makes the dataset at a store's root equal to the one at a URL."""

    def __init__(
        self,
        url: str,
        store: Store,
        terms: Terms | None = None,
        observer: Observer = unobserved,
        choose: Choose | None = None,
    ) -> None:
        """Set the two ends; the engine that ``choose`` returns moves objects, or this process."""
        self._url = url
        self._store = store
        self._terms = terms or Terms()
        self._observer = observer
        self._choose = choose

    async def run(self) -> Transferred:
        """Pull.

        ``Diverged`` if the two have different histories, or ours is ahead, unless
        ``terms.force``; ``Forbidden`` if objects are at a host that isn't allowed.
        """
        here = Here(self._store, self._choose, self._observer)
        progress = TransferProgress(self._observer, "pulling")
        async with opened(self._url, self._terms, here, must_exist=False) as (remote, threads):
            done = await _PullSessions(remote, here, threads, progress, self._choose).run()
            # All objects are there, so nothing has to be resumed any more.
            with suppress(StorageError):
                await threads.run(self._store.drop_leftovers)
            return done

    async def plan(self) -> TransferSteps:
        """Return what :meth:`run` would do; blocks are fetched and checked, nothing is stored."""
        here = Here(Overlay(self._store), self._choose, self._observer)
        progress = TransferProgress(unobserved, "pulling")
        async with opened(self._url, self._terms, here, must_exist=False) as (remote, threads):
            return await _PullSessions(remote, here, threads, progress).plan()


class Push:
    """Makes the dataset at a URL equal to the one at a store's root, and verifies it."""

    def __init__(
        self,
        store: Store,
        url: str,
        terms: Terms | None = None,
        observer: Observer = unobserved,
        choose: Choose | None = None,
    ) -> None:
        """Set the two ends; the engine that ``choose`` returns moves objects, or this process."""
        self._store = store
        self._url = url
        self._terms = terms or Terms()
        self._observer = observer
        self._choose = choose

    async def run(self) -> Transferred:
        """Push.

        ``Diverged`` if the two have different histories, or the server's is ahead, unless
        ``terms.force``; ``CommitStateUnknown`` if the server neither confirms nor refuses.
        """
        here = Here(self._store, self._choose, self._observer)
        progress = TransferProgress(self._observer, "pushing")
        async with opened(self._url, self._terms, here, must_exist=True) as (remote, threads):
            return await _PushSessions(remote, here, threads, progress, self._choose).run()

    async def plan(self) -> TransferSteps:
        """Return what :meth:`run` would do; the server may have some of the objects already."""
        here = Here(Overlay(self._store), self._choose, self._observer)
        progress = TransferProgress(unobserved, "pushing")
        async with opened(self._url, self._terms, here, must_exist=True) as (remote, threads):
            return await _PushSessions(remote, here, threads, progress).plan()


class _PullSessions:
    def __init__(
        self,
        remote: Remote,
        here: Here,
        threads: StoreThreads,
        progress: TransferProgress,
        choose: Choose | None = None,
    ) -> None:
        self._engines = engines_of(choose, remote, here.store, threads, is_push=False)
        self._remote = remote
        self._here = here
        self._threads = threads
        self._progress = progress
        downloads = Downloads(remote, here.store, here, threads, progress.within, progress.checked)
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
                    done = await until_done(self._remote, self._progress, self._session)
                return done
            finally:
                await self._under_way.end()
        except NoWebSocket as refused:
            head = await self._head_without(refused.error)
            return await self._files.pull(head, self._progress)

    async def plan(self) -> TransferSteps:
        self._dry_run = True
        while self._more:
            parts_before = len(self._foreseen)
            try:
                await until_done(self._remote, self._progress, self._session)
            except NoWebSocket as refused:
                head = await self._head_without(refused.error)
                return await self._files.plan(head, self._progress)
            except Interrupted:
                if len(self._foreseen) == parts_before:
                    raise
        if not self._foreseen:
            left = self._here.finished
            return [] if left is None else step("pull", left.head, left.blocks, [])
        refs = dict.fromkeys(ref for _, _, missing in self._foreseen for ref in missing)
        count = sum(blocks for _, blocks, _ in self._foreseen)
        return step("pull", self._foreseen[-1][0], count, list(refs))

    async def _head_without(self, refusal: LakeferryError) -> Multihash:
        """Return the head of a server that has only files; else raise why it refused."""
        try:
            head = await self._remote.head()
        except LakeferryError as error:
            raise refusal from error
        if head is None:
            raise ObjectNotFound(
                f"there is no dataset at {self._remote.url}",
                cause=refusal.cause,
                remedy="check the URL, and which datasets the token is for",
            ) from refusal
        return head

    async def _session(self) -> Transferred:
        terms = self._remote.terms
        # Before connecting, so that the server doesn't wait: for a table it may take long.
        head = await self._threads.run(self._here.current)
        if (left := self._here.finished) is not None:
            self._progress.expect(left.refs, left.before)
        if self._foreseen:
            head = self._foreseen[-1][0]
        if head is not None and await self._is_made_of_theirs(head):
            self._more = False
            return self._result(head)
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
            raise await differing(self._remote, self._here, self._threads, head, error) from error
        except LakeferryError:
            # After our commit it doesn't matter what the server says or does.
            if host.head is None:
                raise
        finally:
            self._foreseen += [host.foreseen] if host.foreseen is not None else []
            self._blocks += host.blocks
            self._more = host.may_be_a_part
        new_head = host.head or head
        if new_head is None:
            raise ObjectNotFound(
                f"the dataset at {self._remote.url} is empty",
                remedy="pull it after something was pushed to it",
            )
        return self._result(new_head)

    def _result(self, head: Multihash) -> Transferred:
        left = self._here.finished
        blocks = self._blocks + (0 if left is None else left.blocks)
        unfinished = self._here.dataset.unfinished
        return self._progress.result(head, blocks, changed=blocks > 0, unfinished=unfinished)

    async def _is_made_of_theirs(self, head: Multihash) -> bool:
        """Return True if our table's content was replaced by the server's current one."""
        origin = await self._threads.run(lambda: self._here.dataset.origin(head))
        return origin is not None and await self._remote.head() == origin


class _PushSessions:
    def __init__(
        self,
        remote: Remote,
        here: Here,
        threads: StoreThreads,
        progress: TransferProgress,
        choose: Choose | None = None,
    ) -> None:
        self._engines = engines_of(choose, remote, here.store, threads, is_push=True)
        self._remote = remote
        self._here = here
        self._threads = threads
        self._progress = progress
        self._uploads = Uploads(remote, here.store, here, threads, progress.within)
        self._more = True
        self._blocks = 0
        self._tried: set[Multihash] = set()

    async def run(self) -> Transferred:
        try:
            # A history too long for one message is sent in several sessions; each part ends
            # with a block of the dataset as its head.
            while self._more:
                done = await until_done(self._remote, self._progress, self._session)
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
            raise await differing(self._remote, self._here, self._threads, head, error) from error
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
        # A new chain becomes one version of an existing table, so it must be sent at once.
        at_once = dataset.is_replaced_at_once and there is not None
        whole = at_once and begins_anew(dataset, interval)
        return load_part(dataset, interval, message_parts.PUSHED, whole=whole)

    async def _ends(self) -> tuple[Multihash, Multihash | None]:
        """Return our head, up to date, and theirs."""
        head = await self._threads.run(self._here.current)
        if head is None:
            raise TableNotFound(
                f"there is no table at {self._here.store.uri}",
                cause="its log has no version",
                remedy="check the path; if a pull was interrupted, run the same pull again to "
                "complete it",
            )
        return head, await self._remote.head()

    async def _is_made_of(self, ours: Multihash, theirs: Multihash) -> bool:
        """Return True if the server's head is the root that force made from our head."""
        dataset = self._here.dataset
        if not dataset.is_replaced_at_once:
            return False
        try:
            data = await self._remote.block(theirs, dataset.largest_block_bytes)
        except ObjectNotFound:
            return False
        return dataset.is_made_of(data, theirs, ours)

    async def plan(self) -> TransferSteps:
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
