"""Files that a table names by absolute URI as files of its own, and exactly back.

A table that was cloned shallowly names another table's files. When it moves with
its data, those files come along, and its log names them by relative paths that
still tell where they came from::

    s3://lake/t/part-1.parquet   <->   _adopted/s3/lake/t/part-1.parquet
    file:///lake/part-1.parquet  <->   _adopted/file/-/lake/part-1.parquet
    file:/lake/part-1.parquet    <->   _adopted/file/~/lake/part-1.parquet
    /lake/part-1.parquet         <->   _adopted/~/lake/part-1.parquet

The way back matters: a ``remove`` that is brought home cancels its ``add`` only
by the path that the ``add`` has there.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

FOLDER = "_adopted"
_WITH_AUTHORITY = r"^([A-Za-z][A-Za-z0-9+.\-]*)://([^/]+)/"
_EMPTY_AUTHORITY = r"^([A-Za-z][A-Za-z0-9+.\-]*):///"
_NO_AUTHORITY = r"^([A-Za-z][A-Za-z0-9+.\-]*):/"
# In this order: each pattern would also match some of what the ones before it match.
_IN = (
    (_WITH_AUTHORITY, rf"{FOLDER}/\1/\2/"),
    (_EMPTY_AUTHORITY, rf"{FOLDER}/\1/-/"),
    (_NO_AUTHORITY, rf"{FOLDER}/\1/~/"),
    (r"^/", f"{FOLDER}/~/"),
)
_OUT = (
    (rf"^{FOLDER}/~/", "/"),
    (rf"^{FOLDER}/([A-Za-z][A-Za-z0-9+.\-]*)/~/", r"\1:/"),
    (rf"^{FOLDER}/([A-Za-z][A-Za-z0-9+.\-]*)/-/", r"\1:///"),
    (rf"^{FOLDER}/([A-Za-z][A-Za-z0-9+.\-]*)/([^/]+)/", r"\1://\2/"),
)


@dataclass(frozen=True, slots=True)
class Adopted:
    """Gives absolute paths a relative name; relative ones stay."""

    def __call__(self, paths: pa.Array) -> pa.Array:
        """Return the paths as the log of the table that moves shall have them."""
        return _replaced(paths, _IN)


@dataclass(frozen=True, slots=True)
class Returned:
    """Gives adopted paths their absolute spelling back: the exact inverse of :class:`Adopted`."""

    def __call__(self, paths: pa.Array) -> pa.Array:
        """Return the paths as the log of the table at home has them."""
        return _replaced(paths, _OUT)


def _replaced(paths: pa.Array, rules: tuple[tuple[str, str], ...]) -> pa.Array:
    done = pa.nulls(len(paths), pa.string())
    for pattern, text in rules:
        here = pc.and_(pc.is_null(done), pc.match_substring_regex(paths, pattern))
        if pc.any(here).as_py():
            new = pc.replace_substring_regex(paths, pattern, text, max_replacements=1)
            done = pc.if_else(here, new, done)
    return pc.coalesce(done, paths)
