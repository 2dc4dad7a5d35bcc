"""Tells a move's uploads in parts from those of other writers to the same folder.

A process that was killed leaves its uploads, and so does a request whose answer was lost. S3 tells
only the name of an upload and when it was begun, in whole seconds. An upload is the move's if it
has the name of a file that the move copies, and was begun while the move could copy.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import LakeferryError
from lakeferry.log import paths
from lakeferry.storage import Store
from lakeferry.storage.uris import split

END_OF_TIME_MS = 1 << 53

Window = Callable[[], tuple[int | None, int]]
"""Returns the first and the last time at which a move may have begun uploads."""


def drop_own_uploads(
    store: Store,
    copied: Callable[[], pa.Array],
    is_of_copied_log: Callable[[str], bool],
    window: Window,
) -> None:
    """Delete the uploads of ``copied`` data files, and of a copied log, that began in a window.

    Nothing is asked for unless there are uploads.
    """
    if split(store.uri).scheme == "file":
        # Parts on local disk are those of transfers.
        return
    # Listing uploads may be forbidden, and they aren't objects yet.
    with suppress(LakeferryError):
        store.drop_parts(_OwnUploads(copied, is_of_copied_log, window).has)


class _OwnUploads:
    def __init__(
        self,
        copied: Callable[[], pa.Array],
        is_of_copied_log: Callable[[str], bool],
        window: Window,
    ) -> None:
        self._copied = copied
        self._is_of_copied_log = is_of_copied_log
        self._window = window

    def has(self, name: str, begun_ms: int) -> bool:
        """Return whether an upload is the move's."""
        first, last = self._seconds
        if not first <= begun_ms // 1000 <= last:
            return False
        if name.startswith(f"{paths.LOG_DIR}/"):
            return self._is_of_copied_log(name)
        return bool(pc.index(self._names, name).as_py() >= 0)

    @cached_property
    def _seconds(self) -> tuple[int, int]:
        first_ms, last_ms = self._window()
        return (1, 0) if first_ms is None else (first_ms // 1000, last_ms // 1000)

    @cached_property
    def _names(self) -> pa.Array:
        return self._copied()
