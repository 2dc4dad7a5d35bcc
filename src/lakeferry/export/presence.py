"""Checks that all live files of the newest version are there.

The version's live files and their deletion vectors are compared with the listing. Files in
places that weren't listed are checked one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from lakeferry.errors import MissingFile, ObjectNotFound
from lakeferry.log import references
from lakeferry.log.rewrite import Listed
from lakeferry.storage import Store
from lakeferry.table.live_files import place_of

_LOOKED_FOR_AT_ONCE = 16
_NAMED = 10


def check_live_files(
    batches: Iterable[pa.RecordBatch], listed: Listed, open_store: Callable[[str], Store]
) -> None:
    """Raise :class:`~lakeferry.errors.MissingFile` if a live file is missing.

    ``batches`` are live files with the columns of :data:`lakeferry.log.file_actions.ADD`.
    """
    missing: list[str] = []
    count = 0
    for path in _missing(batches, listed, open_store):
        count += 1
        if len(missing) < _NAMED:
            missing.append(path)
    if count:
        others = f" and {count - 1} more" if count > 1 else ""
        raise MissingFile(
            f"{missing[0]}{others} of {listed.root} can't be found",
            cause="the newest version has it, but the object is missing",
            remedy="restore it, or remove it from the table (deltalake's DeltaTable.repair(), "
            "or a DELETE), and export again; nothing was published",
            path=missing[0],
            paths=missing,
            count=count,
        )


def _missing(
    batches: Iterable[pa.RecordBatch], listed: Listed, open_store: Callable[[str], Store]
) -> Iterator[str]:
    with ThreadPoolExecutor(_LOOKED_FOR_AT_ONCE) as pool:
        for batch in batches:
            paths = references.of_adds(pa.Table.from_batches([batch]))["path"].combine_chunks()
            found = listed.resolve(paths)
            yield from paths.filter(found.unlisted).to_pylist()
            elsewhere = paths.filter(found.elsewhere).to_pylist()
            uris = found.uris.filter(found.elsewhere).to_pylist()
            there = pool.map(lambda uri: _is_there(uri, listed.root, open_store), uris)
            for path, is_there in zip(elsewhere, there, strict=True):
                if not is_there:
                    yield path


def _is_there(uri: str, root: str, open_store: Callable[[str], Store]) -> bool:
    container, name = place_of(root, uri)
    try:
        open_store(container).head(name)
    except ObjectNotFound:
        return False
    return True
