"""Storage: one small interface; local disk, clouds, memory and lakeFS behind it.

:func:`open_store` opens a place that a person or a log names. A
:class:`StoreConfig` is what travels to executors, which open their own store with
:func:`open_config`. It holds the place and the options that the user gave
explicitly, never anything found in the environment: credentials are looked up again wherever the
store is opened. If the user's own options hold a secret, the configuration contains it too (it
travels inside a task's closure, never in Spark's configuration, which its pages show); its ``repr``
leaves options out, so that no log line and no traceback repeats one. Credentials that a catalog
issues for a while are asked for again by its ``renewal``, wherever the store is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lakeferry.packages import naming_missing_packages
from lakeferry.storage.call_counts import Calls
from lakeferry.storage.store import (
    ObjectInfo,
    OpenedObject,
    Partial,
    PartsUpload,
    SignedPut,
    Store,
    StoreConfig,
)
from lakeferry.storage.uris import normalise, split

__all__ = [
    "Calls",
    "ObjectInfo",
    "OpenedObject",
    "Partial",
    "PartsUpload",
    "SignedPut",
    "Store",
    "StoreConfig",
    "normalise",
    "open_config",
    "open_store",
]


def open_store(table: str, options: Mapping[str, str] | None = None) -> Store:
    """Return the store whose root is ``table``: a local path or a URI, in any spelling.

    Raises :class:`~lakeferry.errors.InvalidInput` for a text that isn't a place in a store, and for
    invalid options. No request is sent yet.
    """
    return open_config(StoreConfig(normalise(table), dict(options or {})))


def open_config(config: StoreConfig) -> Store:
    """Return a store of this process for ``config``, which may come from another one."""
    if config.aliases is not None:
        from lakeferry.storage.aliases import AliasStore

        return AliasStore(open_config(replace(config, aliases=None)), dict(config.aliases))
    scheme = split(config.uri).scheme
    if scheme == "file":
        from lakeferry.storage.local_store import LocalStore

        return LocalStore(config)
    if scheme == "lakefs":
        from lakeferry.storage.lakefs import LakeFSStore

        return LakeFSStore(config, open_config)
    # Imported late: a command that stays on local disk needn't load the cloud clients.
    with naming_missing_packages():
        from lakeferry.storage.objects import ObjectStore

    return ObjectStore(config)
