"""Stores a listing as an object, so that executors can read it.

The listing of a million files is too large to send with each task. It is stored where all
executors can read it, and each process fetches it once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from lakeferry.log.rewrite import Listed
from lakeferry.log.rewrite.listed_uris import LISTED_NAMES
from lakeferry.storage import Store, StoreConfig, open_config

SENT_ALONG_BYTES = 1024 * 1024
"""Listings up to this size are sent with the tasks."""
_CHUNK_BYTES = 8 * 1024 * 1024
_SCHEMA = pa.schema([pa.field("name", LISTED_NAMES), pa.field("address", LISTED_NAMES)])


@dataclass(frozen=True, slots=True)
class StoredListing:
    """A listing in a store; ``empty`` is the same listing without names and addresses."""

    store: StoreConfig
    path: str
    empty: Listed

    def opened(self) -> Listed:
        """Fetch the listing, once in each process."""
        names, addresses = _fetched(self.store.uri, self.path, tuple(self.store.options.items()))
        with_addresses = self.empty.addresses is not None
        return replace(self.empty, names=names, addresses=addresses if with_addresses else None)


@lru_cache(maxsize=2)
def _fetched(
    uri: str, path: str, options: tuple[tuple[str, str], ...]
) -> tuple[pa.Array, pa.Array]:
    data = open_config(StoreConfig(uri, dict(options))).get(path)
    table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
    return tuple(table[name].combine_chunks() for name in _SCHEMA.names)


def shelve(listed: Listed, store: Store, path: str) -> Listed | StoredListing:
    """Write a listing to a store, unless it is small."""
    addresses = listed.addresses
    size_bytes = listed.names.nbytes + (0 if addresses is None else addresses.nbytes)
    if size_bytes <= SENT_ALONG_BYTES:
        return listed
    empty = pa.array([], LISTED_NAMES)
    with tempfile.TemporaryDirectory(prefix="lakeferry-") as folder:
        file = Path(folder) / "listed.arrow"
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
            columns = [
                listed.names,
                pa.nulls(len(listed.names), LISTED_NAMES) if addresses is None else addresses,
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA))
        store.put_stream(path, _chunks(file), file.stat().st_size)
    kept = replace(listed, names=empty, addresses=None if addresses is None else empty)
    return StoredListing(store.config, path, kept)


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            yield chunk
