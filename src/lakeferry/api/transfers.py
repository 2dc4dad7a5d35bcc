"""``Transfers``: push, pull, garbage collection and tokens as Python functions.

The words are the command line's. What has to wait for a network has two forms, a plain one
and one for event loops (``async_…``), which blocks no loop: whatever asks a store, follows a
redirect or starts an engine does so in a thread.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from lakeferry.engine import Observer, unobserved
from lakeferry.engines.engine_choice import Engines as Engines
from lakeferry.engines.engine_choice import opening
from lakeferry.errors import InvalidInput
from lakeferry.log.properties import duration_ms
from lakeferry.storage import Store, open_store
from lakeferry.storage.side_folder import Aside, cache_folder
from lakeferry.transfer.client import parallelism

if TYPE_CHECKING:
    from lakeferry.transfer.client.remote_dataset import Terms
    from lakeferry.transfer.client.session_work import Transferred
    from lakeferry.transfer.datasets.delta.blocks_of_log import Choose
    from lakeferry.transfer.repository.access_tokens import StoredToken, Tokens
    from lakeferry.transfer.repository.garbage_collection import GarbageCollected

TransferSteps = list[dict[str, Any]]
"""The steps that would be done."""
TOKEN_VARIABLE = "LAKEFERRY_TOKEN"
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL", "LAKECTL_SERVER_ENDPOINT_URL")


class TransferOptions(TypedDict, total=False):
    """What the user says of a transfer; ``None`` is the same as leaving an option out."""

    token: str | None
    """Without one it is ``LAKEFERRY_TOKEN``'s; an empty one is none."""
    allowed_hosts: Iterable[str]
    """Hosts besides the server's own at which objects may be."""
    parallel: int | None
    """How many objects travel at once; by default what suits the two ends."""
    force: bool
    visibility: str
    """Of a dataset that a push creates: ``private`` or ``public``."""
    limit_rate: int | None
    """How many bytes of objects may go per second."""


class CollectOptions(TypedDict, total=False):
    """The options of :func:`gc`."""

    storage_options: Mapping[str, str] | None
    grace: str
    unfinished_only: bool
    engine: str | Engines
    observer: Observer
    warn: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Transfers:
    """Pushes and pulls of the dataset at one place; ``find`` returns its store."""

    find: Callable[[], Store]
    engine: str | Engines = "auto"
    observer: Observer = unobserved
    warn: Callable[[str], None] = lambda _: None
    environment: Mapping[str, str] | None = None
    """Where the token is where none is given, instead of the process's own."""

    @overload
    def push(
        self, url: str, *, dry_run: Literal[False] = False, **options: Unpack[TransferOptions]
    ) -> Transferred: ...

    @overload
    def push(
        self, url: str, *, dry_run: Literal[True], **options: Unpack[TransferOptions]
    ) -> TransferSteps: ...

    @overload
    def push(
        self, url: str, *, dry_run: bool, **options: Unpack[TransferOptions]
    ) -> Transferred | TransferSteps: ...

    def push(
        self, url: str, *, dry_run: bool = False, **options: Unpack[TransferOptions]
    ) -> Transferred | TransferSteps:
        """Make the dataset at a URL what the one here is; ``options`` are those of the terms."""
        # Imported late: its HTTP client is of no use to anything else.
        from lakeferry.transfer.client import event_loop
        from lakeferry.transfer.client.push_and_pull import Push

        with self._ready(url, options) as (store, terms, choose):
            push = Push(_with_chain_aside(store), url, terms, self.observer, choose)
            return event_loop.run(push.plan()) if dry_run else event_loop.run(push.run())

    @overload
    def pull(
        self, url: str, *, dry_run: Literal[False] = False, **options: Unpack[TransferOptions]
    ) -> Transferred: ...

    @overload
    def pull(
        self, url: str, *, dry_run: Literal[True], **options: Unpack[TransferOptions]
    ) -> TransferSteps: ...

    @overload
    def pull(
        self, url: str, *, dry_run: bool, **options: Unpack[TransferOptions]
    ) -> Transferred | TransferSteps: ...

    def pull(
        self, url: str, *, dry_run: bool = False, **options: Unpack[TransferOptions]
    ) -> Transferred | TransferSteps:
        """Make the dataset here what the one at a URL is."""
        from lakeferry.transfer.client import event_loop
        from lakeferry.transfer.client.push_and_pull import Pull

        with self._ready(url, options) as (store, terms, choose):
            pull = Pull(url, store, terms, self.observer, choose)
            if dry_run:
                return event_loop.run(pull.plan())
            done = event_loop.run(pull.run())
            self._warn_of_redirect(store, done)
            return done

    @overload
    async def async_push(
        self, url: str, *, dry_run: Literal[False] = False, **options: Unpack[TransferOptions]
    ) -> Transferred: ...

    @overload
    async def async_push(
        self, url: str, *, dry_run: Literal[True], **options: Unpack[TransferOptions]
    ) -> TransferSteps: ...

    @overload
    async def async_push(
        self, url: str, *, dry_run: bool, **options: Unpack[TransferOptions]
    ) -> Transferred | TransferSteps: ...

    async def async_push(
        self, url: str, *, dry_run: bool = False, **options: Unpack[TransferOptions]
    ) -> Transferred | TransferSteps:
        """Do as :meth:`push` does, on an event loop."""
        from lakeferry.transfer.client.push_and_pull import Push

        async with self._async_ready(url, options) as (store, terms, choose):
            store = await asyncio.to_thread(_with_chain_aside, store)
            push = Push(store, url, terms, self.observer, choose)
            return await (push.plan() if dry_run else push.run())

    @overload
    async def async_pull(
        self, url: str, *, dry_run: Literal[False] = False, **options: Unpack[TransferOptions]
    ) -> Transferred: ...

    @overload
    async def async_pull(
        self, url: str, *, dry_run: Literal[True], **options: Unpack[TransferOptions]
    ) -> TransferSteps: ...

    @overload
    async def async_pull(
        self, url: str, *, dry_run: bool, **options: Unpack[TransferOptions]
    ) -> Transferred | TransferSteps: ...

    async def async_pull(
        self, url: str, *, dry_run: bool = False, **options: Unpack[TransferOptions]
    ) -> Transferred | TransferSteps:
        """Do as :meth:`pull` does, on an event loop."""
        from lakeferry.transfer.client.push_and_pull import Pull

        async with self._async_ready(url, options) as (store, terms, choose):
            pull = Pull(url, store, terms, self.observer, choose)
            if dry_run:
                return await pull.plan()
            pulled = await pull.run()
            await asyncio.to_thread(self._warn_of_redirect, store, pulled)
            return pulled

    def _warn_of_redirect(self, store: Store, done: Transferred | None) -> None:
        """Tell of a redirect that has arrived with a table."""
        from lakeferry.transfer.datasets.local_dataset import arrived_entry

        entry = arrived_entry(store) if done is not None and done.changed else None
        if entry is not None:
            self.warn(
                f"the table at {store.uri} came with a redirect ({entry}), which isn't followed: "
                "'redirect disable' takes it away"
            )

    @contextmanager
    def _ready(self, url: str, options: TransferOptions) -> Iterator[tuple[Store, Terms, Choose]]:
        from lakeferry.transfer.client.remote_dataset import Terms, parse_url

        given: dict[str, Any] = {
            name: value for name, value in options.items() if value is not None
        }
        given["allowed_hosts"] = tuple(given.get("allowed_hosts", ()))
        if "token" not in given:
            variables = os.environ if self.environment is None else self.environment
            given["token"] = variables.get(TOKEN_VARIABLE)
        # What makes no sense is refused before anybody is asked.
        terms = Terms(**given | {"token": given["token"] or None})
        host = parse_url(url).host or ""
        with opening(self.engine, self.warn) as engines:
            store = self.find()
            if "parallel" not in given:
                terms = replace(terms, parallel=parallelism.parallel(store.uri, host, _cores()))
            yield store, terms, engines.choose

    @asynccontextmanager
    async def _async_ready(
        self, url: str, options: TransferOptions
    ) -> AsyncIterator[tuple[Store, Terms, Choose]]:
        ready = self._ready(url, options)
        found = await asyncio.to_thread(ready.__enter__)
        try:
            yield found
        finally:
            # To end a JVM takes a while.
            await asyncio.to_thread(ready.__exit__, None, None, None)


def _with_chain_aside(store: Store) -> Store:
    """Have the chain of a table that can only be read kept among the user's cached files."""
    from lakeferry.transfer.datasets.delta.root_checkpoints import FOLDER

    # One name may mean different places, by who is asked for it.
    asked = [value for key, value in sorted(store.config.options.items()) if "endpoint" in key]
    asked += [os.environ.get(name, "") for name in _ENDPOINT_VARIABLES]
    name = hashlib.sha256("\n".join([store.uri, *asked]).encode()).hexdigest()[:32]
    folder = cache_folder(os.environ) / "transfer" / name
    return Aside(store, FOLDER, open_store(folder.absolute().as_uri()))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- A server's root ----------------------------------------------------------------


@overload
def gc(
    root: str, *, dry_run: Literal[False] = False, **options: Unpack[CollectOptions]
) -> GarbageCollected: ...


@overload
def gc(
    root: str, *, dry_run: Literal[True], **options: Unpack[CollectOptions]
) -> TransferSteps: ...


@overload
def gc(
    root: str, *, dry_run: bool, **options: Unpack[CollectOptions]
) -> GarbageCollected | TransferSteps: ...


def gc(
    root: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    grace: str = "24h",
    unfinished_only: bool = False,
    dry_run: bool = False,
    engine: str | Engines = "auto",
    observer: Observer = unobserved,
    warn: Callable[[str], None] = lambda _: None,
) -> GarbageCollected | TransferSteps:
    """Delete what no block of a server's datasets reaches, and what pushes have left.

    ``root`` is the server's, which may be running. What is younger than ``grace`` stays, and
    so does all that a push under way needs. ``unfinished_only`` looks at what is known from
    the records of pushes, and doesn't list the repository.
    """
    from lakeferry.transfer.repository.garbage_collection import GarbageCollected, collect
    from lakeferry.transfer.repository.repository import open_root

    grace_ms = _duration(grace)
    store = open_root(root, storage_options or {})
    with opening(engine, warn) as engines:
        done = collect(
            store,
            engines.choose,
            grace_ms=grace_ms,
            unfinished_only=unfinished_only,
            dry_run=dry_run,
            observer=observer,
        )
    if isinstance(done, GarbageCollected):
        for name in done.damaged:
            warn(f"the chain of {name} can't be followed: nothing of it was deleted")
        return done
    return [each.as_step() for each in done]


@overload
async def async_gc(
    root: str, *, dry_run: Literal[False] = False, **options: Unpack[CollectOptions]
) -> GarbageCollected: ...


@overload
async def async_gc(
    root: str, *, dry_run: Literal[True], **options: Unpack[CollectOptions]
) -> TransferSteps: ...


@overload
async def async_gc(
    root: str, *, dry_run: bool, **options: Unpack[CollectOptions]
) -> GarbageCollected | TransferSteps: ...


async def async_gc(
    root: str, *, dry_run: bool = False, **options: Unpack[CollectOptions]
) -> GarbageCollected | TransferSteps:
    """Do as :func:`gc` does, with its options, in a thread.

    The thread goes on where this is cancelled: it deletes nothing that is needed.
    """
    return await asyncio.to_thread(partial(gc, root, dry_run=dry_run, **options))


@overload
def create_token(
    root: str,
    *,
    dry_run: Literal[False] = False,
    scope: str = ...,
    dataset: str | None = ...,
    expires: str | None = ...,
    storage_options: Mapping[str, str] | None = ...,
) -> str: ...


@overload
def create_token(
    root: str,
    *,
    dry_run: Literal[True],
    scope: str = ...,
    dataset: str | None = ...,
    expires: str | None = ...,
    storage_options: Mapping[str, str] | None = ...,
) -> TransferSteps: ...


@overload
def create_token(
    root: str,
    *,
    dry_run: bool,
    scope: str = ...,
    dataset: str | None = ...,
    expires: str | None = ...,
    storage_options: Mapping[str, str] | None = ...,
) -> str | TransferSteps: ...


def create_token(
    root: str,
    *,
    scope: str = "read",
    dataset: str | None = None,
    expires: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> str | TransferSteps:
    """Make a token for the servers of a root and return it, this once: they keep its hash.

    ``scope`` is ``read``, or ``write`` for both. Without a ``dataset`` it is for all of them,
    without ``expires``, a duration, for ever. A running server knows it within a second.
    """
    from lakeferry.transfer.repository.access_tokens import Scope
    from lakeferry.transfer.repository.dataset_names import DatasetName

    if scope not in {each.value for each in Scope}:
        raise InvalidInput(f"no scope: {scope!r}", remedy="read or write")
    name = None if dataset is None else DatasetName.parse(dataset)
    lasts_ms = None if expires is None else _duration(expires)
    tokens = _tokens(root, storage_options)
    if dry_run:
        return [{"op": "create_token", "scope": scope, "dataset": dataset, "lasts_ms": lasts_ms}]
    return tokens.create(Scope(scope), dataset=name, lasts_ms=lasts_ms)


def list_tokens(
    root: str, *, storage_options: Mapping[str, str] | None = None
) -> list[StoredToken]:
    """Return what is kept of the tokens for the servers of a root, the oldest first."""
    return _tokens(root, storage_options).all()


@overload
def revoke_token(
    root: str,
    token: str,
    *,
    dry_run: Literal[False] = False,
    storage_options: Mapping[str, str] | None = ...,
) -> bool: ...


@overload
def revoke_token(
    root: str,
    token: str,
    *,
    dry_run: Literal[True],
    storage_options: Mapping[str, str] | None = ...,
) -> TransferSteps: ...


@overload
def revoke_token(
    root: str, token: str, *, dry_run: bool, storage_options: Mapping[str, str] | None = ...
) -> bool | TransferSteps: ...


def revoke_token(
    root: str,
    token: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> bool | TransferSteps:
    """Take back a token, named by itself or by its id, and tell whether there was one.

    A running server knows within a second.
    """
    tokens = _tokens(root, storage_options)
    if dry_run:
        found = tokens.find(token)
        return [] if found is None else [{"op": "revoke_token", "id": found.id}]
    return tokens.revoke(token)


def _tokens(root: str, storage_options: Mapping[str, str] | None) -> Tokens:
    from lakeferry.transfer.repository.access_tokens import Tokens
    from lakeferry.transfer.repository.repository import check_root, open_root

    store = open_root(root, storage_options or {})
    # Tokens at a misspelt root would let nobody in, and nobody would know why.
    check_root(store)
    return Tokens(store)


def _duration(text: str) -> int:
    found = duration_ms(text)
    if found is None:
        raise InvalidInput(f"{text!r} is no duration", remedy="write 12h or 7d")
    return found
