"""What pushes and pulls share: one session after the other until one ends well.

After a broken session another one follows, which finds what has arrived already. The number of
retries is limited (``remote_dataset.Patience``); a session that moved an object resets the count.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from lakeferry.errors import CommitStateUnknown, Diverged, InvalidInput, LakeferryError
from lakeferry.storage import Store
from lakeferry.storage.side_folder import Aside
from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.client.dataset_urls import parse_url
from lakeferry.transfer.client.objects_by_engine import Carrying
from lakeferry.transfer.client.remote_dataset import Remote, Terms, is_passing
from lakeferry.transfer.client.session_work import ChooseCarrier, nobody_else
from lakeferry.transfer.client.shared_limits import StoreThreads
from lakeferry.transfer.client.transfer_progress import TransferProgress, Transferred
from lakeferry.transfer.datasets.dataset import OtherDataset
from lakeferry.transfer.datasets.delta.blocks_of_log import Choose
from lakeferry.transfer.datasets.local_dataset import Here
from lakeferry.transfer.wire import handshake
from lakeferry.transfer.wire.messages import MessageDialect

_MORE_THREADS = 8


@asynccontextmanager
async def opened(
    url: str, terms: Terms, here: Here, *, must_exist: bool
) -> AsyncIterator[tuple[Remote, StoreThreads]]:
    """Yield the remote end and the store's threads, after looking at the local dataset."""
    parse_url(url)
    handshake.client_headers(MessageDialect.REFERENCE, terms.token)
    threads = StoreThreads(terms.parallel + _MORE_THREADS)
    try:
        async with Remote.open(url, terms) as remote:
            await threads.run(lambda: here.look(must_exist=must_exist))
            yield remote, threads
    except InvalidInput as error:
        # The user's input was checked before, so the server sent this.
        error.fields["of_peer"] = True
        raise
    finally:
        await threads.end()


async def until_done(
    remote: Remote, progress: TransferProgress, session: Callable[[], Awaitable[Transferred]]
) -> Transferred:
    """Run sessions until one succeeds, or a retry is pointless."""
    patience, failures, unknown = remote.terms.patience, 0, 0
    while True:
        moved = progress.objects
        try:
            return await session()
        except LakeferryError as error:
            # The next session finds out whether a push was committed. After two unknown
            # results no third session is tried.
            unknown += isinstance(error, CommitStateUnknown)
            hopeful = is_passing(error) or (isinstance(error, CommitStateUnknown) and unknown < 2)
            failures = 1 if progress.objects > moved else failures + 1
            if not hopeful or error is progress.given_up or failures >= patience.attempts:
                raise
        await patience.wait(failures)


async def differing(
    remote: Remote, here: Here, threads: StoreThreads, ours: Multihash | None, error: Diverged
) -> Diverged:
    """Return the error for ends that differ; for another table it doesn't suggest force."""
    if ours is None or isinstance(error, OtherDataset) or not here.dataset.is_replaced_at_once:
        return error
    try:
        theirs = await remote.head()
        if theirs is None:
            return error
        data = await remote.block(theirs, here.dataset.largest_block_bytes)
        there = here.dataset.identity(data)
        mine = await threads.run(lambda: here.dataset.identity(here.dataset.block(ours)))
    except LakeferryError:
        return error
    if there is None or there == mine:
        return error
    return OtherDataset(
        "the two ends have different tables",
        cause=f"the local table has the id {mine}, the remote one {there}",
        remedy="choose another name or another place: a table is never replaced by a different "
        "table",
        dataset_id=there,
    )


def engines_of(
    choose: Choose | None, remote: Remote, store: Store, threads: StoreThreads, *, is_push: bool
) -> ChooseCarrier:
    """Return a function that chooses an engine in other processes to move the objects, if any."""
    if choose is None:
        return nobody_else

    async def engines(objects: int, size_bytes: int) -> Carrying | None:
        if isinstance(store, Aside) and store.is_used:
            # Other processes don't have the files of the side folder.
            return None
        engine = await threads.run(lambda: choose(objects, size_bytes))
        if engine.name == "local":
            return None
        return Carrying(engine, store.config, remote, threads, is_push=is_push)

    return engines
