"""Guesses which table was meant when a path isn't one.

People name ``t/_delta_log``, a partition's folder or a data file instead of the table's own
folder. Only such names are followed upwards, so that a wrong name costs a few requests at most.
"""

from __future__ import annotations

from urllib.parse import unquote

from lakeferry.errors import LakeferryError, ObjectNotFound
from lakeferry.log import paths
from lakeferry.storage import Store, open_store
from lakeferry.storage.uris import split

_MOST_LEVELS = 8
"""How many folders upwards a table is looked for."""


def table_above(store: Store) -> str | None:
    """Return the URI of the table that a store's root is a part of, or ``None``."""
    uri = store.uri
    for level in range(_MOST_LEVELS):
        above, _, encoded = uri.rpartition("/")
        name = unquote(encoded)
        is_part = name == paths.LOG_DIR or "=" in name or (level == 0 and "." in name)
        if not is_part or not split(uri).path:
            return None
        if _is_table(above, store):
            return above
        uri = above
    return None


def _is_table(uri: str, store: Store) -> bool:
    try:
        found = open_store(uri, store.config.options)
        return next(iter(found.list(f"{paths.LOG_DIR}/")), None) is not None
    except LakeferryError:
        return False


def is_file(store: Store) -> bool:
    """Return True if a store's root is an object itself, and no folder."""
    try:
        store.head("")
    except ObjectNotFound:
        return False
    return True
