"""A server's root, as Python functions: garbage collection and tokens.

:func:`gc` has a form for event loops, :func:`async_gc`, which runs it in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, overload

from lakeferry.api.located_table import Plan
from lakeferry.api.notebook_progress import progress_in_notebook
from lakeferry.engine import Observer, unobserved
from lakeferry.engines.engine_choice import Engines, opening
from lakeferry.errors import InvalidInput
from lakeferry.log.properties import duration_ms

if TYPE_CHECKING:
    from lakeferry.transfer.repository.access_tokens import StoredToken, Tokens
    from lakeferry.transfer.repository.garbage_collection import GarbageCollected


class CollectOptions(TypedDict, total=False):
    """The options of :func:`gc`."""

    storage_options: Mapping[str, str] | None
    grace: str
    unfinished_only: bool
    engine: str | Engines
    observer: Observer
    warn: Callable[[str], None]


@overload
def gc(
    root: str, *, dry_run: Literal[False] = False, **options: Unpack[CollectOptions]
) -> GarbageCollected: ...


@overload
def gc(root: str, *, dry_run: Literal[True], **options: Unpack[CollectOptions]) -> Plan: ...


@overload
def gc(
    root: str, *, dry_run: bool, **options: Unpack[CollectOptions]
) -> GarbageCollected | Plan: ...


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
) -> GarbageCollected | Plan:
    """Delete objects that no block of a server's datasets refers to, and leftovers of pushes.

    ``root`` is the server's root; the server may be running. Objects younger than ``grace`` are
    kept, and so are all that a running push needs. ``unfinished_only`` uses only the records of
    pushes, and doesn't list the repository.
    """
    from lakeferry.transfer.repository.garbage_collection import GarbageCollected, collect
    from lakeferry.transfer.repository.repository import open_root

    grace_ms = _duration(grace)
    store = open_root(root, storage_options or {})
    with opening(engine, warn) as engines, progress_in_notebook(observer) as observer:
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
            warn(f"the chain of {name} can't be followed: none of its objects was deleted")
        for folder in done.written:
            warn(
                f"somebody has written to {folder} after its dataset was deleted, so nothing in it "
                "was deleted: move the folder to another place, or delete it yourself"
            )
        return done
    return Plan(each.as_step() for each in done)


@overload
async def async_gc(
    root: str, *, dry_run: Literal[False] = False, **options: Unpack[CollectOptions]
) -> GarbageCollected: ...


@overload
async def async_gc(
    root: str, *, dry_run: Literal[True], **options: Unpack[CollectOptions]
) -> Plan: ...


@overload
async def async_gc(
    root: str, *, dry_run: bool, **options: Unpack[CollectOptions]
) -> GarbageCollected | Plan: ...


async def async_gc(
    root: str, *, dry_run: bool = False, **options: Unpack[CollectOptions]
) -> GarbageCollected | Plan:
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
    name: str | None = ...,
    note: str | None = ...,
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
    name: str | None = ...,
    note: str | None = ...,
    storage_options: Mapping[str, str] | None = ...,
) -> Plan: ...


@overload
def create_token(
    root: str,
    *,
    dry_run: bool,
    scope: str = ...,
    dataset: str | None = ...,
    expires: str | None = ...,
    name: str | None = ...,
    note: str | None = ...,
    storage_options: Mapping[str, str] | None = ...,
) -> str | Plan: ...


def create_token(
    root: str,
    *,
    scope: str = "read",
    dataset: str | None = None,
    expires: str | None = None,
    name: str | None = None,
    note: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> str | Plan:
    """Create a token for the servers of a root and return it. Only its hash is stored.

    ``scope`` is ``read``, or ``write`` for both. Without ``dataset`` the token is for all
    datasets; without ``expires``, a duration, it never expires. ``name`` and ``note`` are shown
    by :func:`list_tokens`. A running server accepts the token within a second.
    """
    from lakeferry.transfer.repository.access_tokens import Scope, check_label
    from lakeferry.transfer.repository.dataset_names import DatasetName

    if scope not in {each.value for each in Scope}:
        raise InvalidInput(f"{scope!r} isn't a scope", remedy="use read or write")
    check_label(name, note)
    covered = None if dataset is None else DatasetName.parse(dataset)
    lasts_ms = None if expires is None else _duration(expires)
    tokens = _tokens(root, storage_options)
    if dry_run:
        allows = {"scope": scope, "dataset": dataset, "lasts_ms": lasts_ms}
        return Plan([{"op": "create_token", **allows, "name": name, "note": note}])
    return tokens.create(Scope(scope), dataset=covered, lasts_ms=lasts_ms, name=name, note=note)


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
) -> Plan: ...


@overload
def revoke_token(
    root: str, token: str, *, dry_run: bool, storage_options: Mapping[str, str] | None = ...
) -> bool | Plan: ...


def revoke_token(
    root: str,
    token: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> bool | Plan:
    """Revoke a token, given the token or its id; return False if there was none.

    A running server rejects it within a second.
    """
    tokens = _tokens(root, storage_options)
    if dry_run:
        found = tokens.find(token)
        return Plan([] if found is None else [{"op": "revoke_token", "id": found.id}])
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
        raise InvalidInput(
            f"{text!r} isn't a duration", remedy="write a number and a unit, such as 12h or 7d"
        )
    return found
