"""Finds the table in whose folder a place is: that table's VACUUM would delete what is there."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from lakeferry.errors import LakeferryError
from lakeferry.log import paths
from lakeferry.storage import Store, StoreConfig, open_config
from lakeferry.storage.uris import split, without_links


@dataclass(frozen=True, slots=True)
class OuterTable:
    """A table around a place, or the place to which a table is moving."""

    uri: str
    is_moving: bool

    def __str__(self) -> str:
        """Return it for a sentence about what is in its folder."""
        what = "a table that is moving to" if self.is_moving else "the table at"
        return f"{what} {self.uri}"


def outer_table(config: StoreConfig) -> OuterTable | None:
    """Return the innermost table in whose folder a place is, or ``None``.

    The folders above the place are opened as the place is. Who may write to a place need not be
    allowed to list them: then nothing is found there.
    """
    parts = split(without_links(config.uri))
    folder = parts.path
    while folder:
        folder = folder.rpartition("/")[0]
        uri = str(replace(parts, path=folder))
        with suppress(LakeferryError):
            store = open_config(replace(config, uri=uri))
            if _has_log(store):
                return OuterTable(uri, is_moving=False)
            # While its files are copied, a table has no log there yet.
            if store.exists(paths.MOVE_CLAIM):
                return OuterTable(uri, is_moving=True)
    return None


def _has_log(store: Store) -> bool:
    # Commits and checkpoints begin with twenty digits; another folder may have the log's name.
    first = next(iter(store.list(f"{paths.LOG_DIR}/0")), None)
    return first is not None and first.path[len(paths.LOG_DIR) + 1 :][:20].isdecimal()
