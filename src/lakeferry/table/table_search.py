"""Finds the tables below a prefix without listing their files.

A folder that has a log is a table, and isn't entered. Folders whose names begin with ``_`` or ``.``
aren't entered either. Each folder costs a listing of its log and one of its folders, several at a
time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from lakeferry.errors import LakeferryError, LimitExceeded
from lakeferry.log import paths
from lakeferry.storage import Store

DEEPEST_TABLE = 32
"""How many folders deep a table may be."""
_T = TypeVar("_T")


def find_and_read(
    store: Store,
    read: Callable[[str], _T],
    refused: Callable[[LakeferryError], _T],
    at_once: int,
    known: Callable[[str], bool] = lambda _: False,
) -> Iterator[tuple[str, _T]]:
    """Yield each table's folder, and what ``read`` returns for it, in any order.

    The root is the empty text. ``read`` is called in threads; what it raises is raised here. For a
    folder that can't be listed, what ``refused`` returns is yielded; if it is the root, the error
    is raised. A folder that is ``known`` as a table is read without a look at its log; if ``read``
    returns ``None``, it is none any more, and is searched like others.
    """
    waiting: deque[tuple[str, int]] = deque([("", 0)])
    running: dict[Future[list[str] | tuple[_T]], tuple[str, int]] = {}

    def look(folder: str, depth: int) -> list[str] | tuple[_T]:
        """Return what was read of a table, or the folders in a folder that isn't one."""
        lead = f"{folder}/" if folder else ""
        if known(folder) and (found := read(folder)) is not None:
            return (found,)
        try:
            is_table = next(store.list(f"{lead}{paths.LOG_DIR}/"), None) is not None
            below = () if is_table else _folders_in(store, lead)
            more = [each for each in below if _is_entered(each)]
            if more and depth == DEEPEST_TABLE:
                raise LimitExceeded(
                    f"{folder} in {store.uri} isn't searched for tables",
                    cause=f"it is {DEEPEST_TABLE} folders deep",
                    remedy="give a prefix that is nearer to the tables",
                )
        except LakeferryError as error:
            if not folder:
                raise
            return (refused(error),)
        return (read(folder),) if is_table else more

    pool = ThreadPoolExecutor(at_once, thread_name_prefix="tables")
    try:
        while waiting or running:
            while waiting and len(running) < 2 * at_once:
                at = waiting.popleft()
                running[pool.submit(look, *at)] = at
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                folder, depth = running.pop(ended)
                found = ended.result()
                if isinstance(found, tuple):
                    yield folder, found[0]
                else:
                    waiting.extend((each, depth + 1) for each in found)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _is_entered(folder: str) -> bool:
    name = folder.rpartition("/")[2]
    return bool(name) and not name.startswith(("_", "."))


def _folders_in(store: Store, lead: str) -> Iterator[str]:
    """Yield the folders directly below a folder, where a store can't list them one by one."""
    listed = store.folders(lead)
    if listed is not None:
        yield from (each.rstrip("/") for each in listed)
        return
    after: str | None = None
    while (info := next(store.list(lead, start_after=after), None)) is not None:
        name, slash, _ = info.path[len(lead) :].partition("/")
        after = info.path
        if slash:
            yield f"{lead}{name}"
            # Behind everything in the folder: no name goes on with the last character.
            after = f"{lead}{name}/\U0010ffff"
