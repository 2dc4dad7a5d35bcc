"""The methods of ``lakeferry.Table`` that push and pull.

Names are those of the command line. Each has two forms: a plain one and one for event loops
(``async_…``). The latter doesn't block the loop: store requests, redirects and the start of an
engine run in a thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack, overload

from lakeferry.api import remotes
from lakeferry.api.located_table import LocatedTable, Plan
from lakeferry.api.notebook_progress import progress_in_notebook
from lakeferry.catalogs import split_name
from lakeferry.engine import Observer, unobserved
from lakeferry.engines.engine_choice import Engines as Engines
from lakeferry.engines.engine_choice import opening
from lakeferry.errors import CatalogManaged, InvalidInput
from lakeferry.log.features import MANAGED
from lakeferry.storage import Store, open_store
from lakeferry.storage.side_folder import Aside, cache_folder
from lakeferry.table.outer_table import outer_table
from lakeferry.transfer.client import parallelism

if TYPE_CHECKING:
    from lakeferry.transfer.client.remote_dataset import Terms
    from lakeferry.transfer.client.transfer_progress import Transferred
    from lakeferry.transfer.datasets.delta.blocks_of_log import Choose

_Ready: TypeAlias = "tuple[str, Store, Terms, Choose]"
"""The dataset's URL, the store of the table here, the options, and what chooses the engine."""
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL", "LAKECTL_SERVER_ENDPOINT_URL")


class TransferOptions(TypedDict, total=False):
    """The user's options for a transfer; ``None`` is the same as leaving an option out."""

    token: str | None
    """Default: ``LAKEFERRY_TOKEN``; an empty one means none."""
    allowed_hosts: Iterable[str]
    """Hosts, besides the server's own, that objects may be on."""
    parallel: int | None
    """How many objects to transfer at a time; the default depends on the two ends."""
    force: bool
    visibility: str
    """Visibility of a dataset that a push creates: ``private`` or ``public``."""
    limit_rate: int | None
    """Limit in bytes of objects per second."""


class TableTransferOptions(TransferOptions, total=False):
    """The options of :meth:`Table.push` and :meth:`Table.pull`."""

    follow: bool
    engine: str | Engines
    observer: Observer


class TransferMethods(LocatedTable):
    """Push and pull, for the dataset at the place that was named."""

    @overload
    def push(
        self, url: str, *, dry_run: Literal[False] = False, **options: Unpack[TableTransferOptions]
    ) -> Transferred: ...

    @overload
    def push(
        self, url: str, *, dry_run: Literal[True], **options: Unpack[TableTransferOptions]
    ) -> Plan: ...

    @overload
    def push(
        self, url: str, *, dry_run: bool, **options: Unpack[TableTransferOptions]
    ) -> Transferred | Plan: ...

    def push(
        self,
        url: str,
        *,
        follow: bool = True,
        engine: str | Engines = "auto",
        dry_run: bool = False,
        observer: Observer = unobserved,
        **options: Unpack[TransferOptions],
    ) -> Transferred | Plan:
        """Push the dataset at this place, a Delta table or an ODF dataset, to a URL.

        ``options`` are those of :class:`~lakeferry.transfer.client.remote_dataset.Terms`:
        ``token`` (default: ``LAKEFERRY_TOKEN``; an empty one means none), ``allowed_hosts``,
        ``parallel`` (the default depends on the two ends), ``force``, ``visibility``,
        ``limit_rate``. If the table is redirected, its target is pushed, unless ``follow`` is
        false. With the Spark engine, or if there is much to move, executors move the objects.
        """
        # Imported late, because only transfers need its HTTP client.
        from lakeferry.transfer.client import event_loop
        from lakeferry.transfer.client.push_and_pull import Push

        with (
            progress_in_notebook(observer) as observer,
            self._ready(url, follow, engine, options) as (url, store, terms, choose),
        ):
            push = Push(_with_chain_aside(store), url, terms, observer, choose)
            if dry_run:
                return Plan(event_loop.run_in_loop(push.plan()))
            return event_loop.run_in_loop(push.run())

    @overload
    def pull(
        self, url: str, *, dry_run: Literal[False] = False, **options: Unpack[TableTransferOptions]
    ) -> Transferred: ...

    @overload
    def pull(
        self, url: str, *, dry_run: Literal[True], **options: Unpack[TableTransferOptions]
    ) -> Plan: ...

    @overload
    def pull(
        self, url: str, *, dry_run: bool, **options: Unpack[TableTransferOptions]
    ) -> Transferred | Plan: ...

    def pull(
        self,
        url: str,
        *,
        follow: bool = True,
        engine: str | Engines = "auto",
        dry_run: bool = False,
        observer: Observer = unobserved,
        **options: Unpack[TransferOptions],
    ) -> Transferred | Plan:
        """Pull the dataset at a URL to this place; ``options`` as in ``push``."""
        from lakeferry.transfer.client import event_loop
        from lakeferry.transfer.client.push_and_pull import Pull

        with (
            progress_in_notebook(observer) as observer,
            self._ready(url, follow, engine, options) as (url, store, terms, choose),
        ):
            self._check_receives(store)
            pull = Pull(url, store, terms, observer, choose)
            if dry_run:
                return Plan(event_loop.run_in_loop(pull.plan()))
            done = event_loop.run_in_loop(pull.run())
            self._warn_after(store, done)
            return done

    @overload
    async def async_push(
        self, url: str, *, dry_run: Literal[False] = False, **options: Unpack[TableTransferOptions]
    ) -> Transferred: ...

    @overload
    async def async_push(
        self, url: str, *, dry_run: Literal[True], **options: Unpack[TableTransferOptions]
    ) -> Plan: ...

    @overload
    async def async_push(
        self, url: str, *, dry_run: bool, **options: Unpack[TableTransferOptions]
    ) -> Transferred | Plan: ...

    async def async_push(
        self,
        url: str,
        *,
        follow: bool = True,
        engine: str | Engines = "auto",
        dry_run: bool = False,
        observer: Observer = unobserved,
        **options: Unpack[TransferOptions],
    ) -> Transferred | Plan:
        """Do the same as :meth:`push`, without blocking the event loop."""
        from lakeferry.transfer.client.push_and_pull import Push

        ready = self._async_ready(url, follow, engine, options)
        with progress_in_notebook(observer) as observer:
            async with ready as (url, store, terms, choose):
                store = await asyncio.to_thread(_with_chain_aside, store)
                push = Push(store, url, terms, observer, choose)
                return Plan(await push.plan()) if dry_run else await push.run()

    @overload
    async def async_pull(
        self, url: str, *, dry_run: Literal[False] = False, **options: Unpack[TableTransferOptions]
    ) -> Transferred: ...

    @overload
    async def async_pull(
        self, url: str, *, dry_run: Literal[True], **options: Unpack[TableTransferOptions]
    ) -> Plan: ...

    @overload
    async def async_pull(
        self, url: str, *, dry_run: bool, **options: Unpack[TableTransferOptions]
    ) -> Transferred | Plan: ...

    async def async_pull(
        self,
        url: str,
        *,
        follow: bool = True,
        engine: str | Engines = "auto",
        dry_run: bool = False,
        observer: Observer = unobserved,
        **options: Unpack[TransferOptions],
    ) -> Transferred | Plan:
        """Do the same as :meth:`pull`, without blocking the event loop."""
        from lakeferry.transfer.client.push_and_pull import Pull

        ready = self._async_ready(url, follow, engine, options)
        with progress_in_notebook(observer) as observer:
            async with ready as (url, store, terms, choose):
                await asyncio.to_thread(self._check_receives, store)
                pull = Pull(url, store, terms, observer, choose)
                if dry_run:
                    return Plan(await pull.plan())
                pulled = await pull.run()
                await asyncio.to_thread(self._warn_after, store, pulled)
                return pulled

    def _warn_after(self, store: Store, done: Transferred) -> None:
        """Warn of what a pull has left unfinished, and of a redirect that arrived with a table."""
        from lakeferry.transfer.datasets.local_dataset import arrived_entry

        if done.unfinished is not None:
            self._warn(
                f"all versions have arrived at {store.uri}, but what is kept beside them couldn't "
                f"be updated ({done.unfinished}): the next push or pull of this table does it"
            )
        entry = arrived_entry(store) if done.changed else None
        if entry is not None:
            self._warn(
                f"the table at {store.uri} came with a redirect ({entry}), which isn't "
                "followed: 'redirect disable' removes it"
            )

    @contextmanager
    def _ready(
        self, url: str, follow: bool, engine: str | Engines, options: TransferOptions
    ) -> Iterator[_Ready]:
        from lakeferry.transfer.client.dataset_urls import parse_url
        from lakeferry.transfer.client.remote_dataset import Terms

        given: dict[str, Any] = {
            name: value for name, value in options.items() if value is not None
        }
        given["allowed_hosts"] = tuple(given.get("allowed_hosts", ()))
        found = remotes.find_remote(url, self._environment, token=given.get("token"))
        given["token"] = remotes.token_for(found, given.get("token"), self._environment)
        # Refuse invalid options before any request.
        terms = Terms(**given)
        host = parse_url(found.url).host or ""
        with opening(engine, self._warn) as engines:
            store = self._meant(follow=follow)
            if "parallel" not in given:
                terms = replace(terms, parallel=parallelism.parallel(store.uri, host, _cores()))
            yield found.url, store, terms, engines.choose

    @asynccontextmanager
    async def _async_ready(
        self, url: str, follow: bool, engine: str | Engines, options: TransferOptions
    ) -> AsyncIterator[_Ready]:
        ready = self._ready(url, follow, engine, options)
        found = await asyncio.to_thread(ready.__enter__)
        try:
            yield found
        finally:
            # Stopping a JVM takes a while.
            await asyncio.to_thread(ready.__exit__, None, None, None)

    def _check_receives(self, store: Store) -> None:
        """Refuse to pull into a managed table, or a new dataset into the folder of a table."""
        if not store.asks_catalog:
            outer = None if store.is_occupied() else outer_table(store.config)
            if outer is not None:
                raise InvalidInput(
                    "a dataset can't be inside a table",
                    cause=f"{store.uri} is in the folder of {outer}, whose VACUUM would delete its "
                    "files",
                    remedy="pull into a folder that isn't in a table's folder",
                    location=store.uri,
                )
            return
        known = split_name(self.followed_name or self._name)
        raise CatalogManaged(
            f"can't pull into {self.followed_name or self._name}",
            cause="it is a managed table: its catalog decides about its commits, and a pull brings "
            "commits that are decided already",
            remedy="pull into a folder, and move that table to a new name of the catalog: "
            "lakeferry redirect enable FOLDER unity:catalog.schema.table --managed",
            name=known[1] if known is not None else None,
            location=store.uri,
            features=[MANAGED],
        )

    def _meant(self, *, follow: bool) -> Store:
        """Return the store of this place, or of the target of its redirect."""
        # Check for a log with versions: an interrupted first pull leaves its mark there, and is
        # resumed.
        is_table = next(self._store.list("_delta_log/0"), None) is not None
        return self._opened(follow=True)[0].store if follow and is_table else self._store


def _with_chain_aside(store: Store) -> Store:
    """Return a store that keeps the chain of a read-only table in the user's cache."""
    from lakeferry.transfer.datasets.delta.root_checkpoints import CHAIN_FOLDER

    # The same name may mean different places at different endpoints.
    asked = [value for key, value in sorted(store.config.options.items()) if "endpoint" in key]
    asked += [os.environ.get(name, "") for name in _ENDPOINT_VARIABLES]
    name = hashlib.sha256("\n".join([store.uri, *asked]).encode()).hexdigest()[:32]
    folder = cache_folder(os.environ) / "transfer" / name
    return Aside(store, CHAIN_FOLDER, open_store(folder.absolute().as_uri()))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
