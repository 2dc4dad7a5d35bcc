"""``Transfers``: push, pull, garbage collection and tokens as Python functions.

Names are those of the command line. Functions that wait for a network have two forms: a plain
one and one for event loops (``async_…``). The latter doesn't block the loop: store requests,
redirects and the start of an engine run in a thread.
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
"""The steps that a dry run returns."""
TOKEN_VARIABLE = "LAKEFERRY_TOKEN"
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
    """Replaces the process's environment as the source of the default token."""

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
        """Push the dataset at this place to a URL; ``options`` are those of the terms."""
        # Imported late, because only transfers need its HTTP client.
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
        """Pull the dataset at a URL to this place."""
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
        """Do the same as :meth:`push`, on an event loop."""
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
        """Do the same as :meth:`pull`, on an event loop."""
        from lakeferry.transfer.client.push_and_pull import Pull

        async with self._async_ready(url, options) as (store, terms, choose):
            pull = Pull(url, store, terms, self.observer, choose)
            if dry_run:
                return await pull.plan()
            pulled = await pull.run()
            await asyncio.to_thread(self._warn_of_redirect, store, pulled)
            return pulled

    def _warn_of_redirect(self, store: Store, done: Transferred | None) -> None:
        """Warn if a redirect has arrived with a table."""
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
        # Refuse invalid options before any request.
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
            # Stopping a JVM takes a while.
            await asyncio.to_thread(ready.__exit__, None, None, None)


def _with_chain_aside(store: Store) -> Store:
    """Return a store that keeps the chain of a read-only table in the user's cache."""
    from lakeferry.transfer.datasets.delta.root_checkpoints import FOLDER

    # The same name may mean different places at different endpoints.
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
    """Delete objects that no block of a server's datasets refers to, and leftovers of pushes.

    ``root`` is the server's root; the server may be running. Objects younger than ``grace`` are
    kept, and so are all that a running push needs. ``unfinished_only`` uses only the records of
    pushes, and doesn't list the repository.
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
    """Do the same as :func:`gc`, with its options, in a thread.

    The thread continues after a cancellation: it deletes nothing that is needed.
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
    """Create a token for the servers of a root and return it. Only its hash is stored.

    ``scope`` is ``read``, or ``write`` for both. Without ``dataset`` the token is for all
    datasets; without ``expires``, a duration, it never expires. A running server accepts it
    within a second.
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
    """Return the stored data of the tokens for the servers of a root, oldest first."""
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
    """Revoke a token, given the token or its id; return False if there was none.

    A running server rejects it within a second.
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
    # Tokens at a misspelt root would have no effect, and the reason would be hard to find.
    check_root(store)
    return Tokens(store)


def _duration(text: str) -> int:
    found = duration_ms(text)
    if found is None:
        raise InvalidInput(f"{text!r} is no duration", remedy="write 12h or 7d")
    return found
