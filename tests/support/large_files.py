"""A table with one data file that is large enough to be copied in parts."""

from __future__ import annotations

from lakeferry.storage import Store
from tests.support.history import Append, History


def put_with_large_file(store: Store, more_bytes: int) -> None:
    """Put a table of two small commits, and append bytes to its first data file."""
    objects = History().then(Append(2), Append(1)).objects(store.uri, with_data=True)
    large = next(name for name in objects if name.endswith(".parquet"))
    size = b'"size":%d' % len(objects[large])
    grown = b'"size":%d' % (len(objects[large]) + more_bytes)
    for name, content in objects.items():
        data = content
        if name == large:
            data = content + bytes(more_bytes)
        elif name.startswith("_delta_log/"):
            lines = content.split(b"\n")
            here = [line.replace(size, grown) if large.encode() in line else line for line in lines]
            data = b"\n".join(here)
        store.put(name, data)
