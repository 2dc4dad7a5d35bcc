"""Finds the live files that a table names outside of its folder and that are missing there.

A shallow clone names another table's files. They are looked for in listings, one of each folder
that has any of them: folders of partitions count as the folder that they are in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.engine import ReplayPlan
from lakeferry.errors import InvalidInput, ObjectNotFound
from lakeferry.log import file_identity, references
from lakeferry.log.rewrite import Rewrite
from lakeferry.log.segment import Segment
from lakeferry.redirect.redirect_context import Setting
from lakeferry.storage import Store
from lakeferry.storage.parallel_listing import list_all
from lakeferry.storage.uris import (
    container_and_name,
    decode_name,
    join,
    relative_name,
    resolve_path,
)
from lakeferry.table import DeltaLog

_WANTED = pa.schema([("path", pa.string()), ("size", pa.int64())])
_LISTED = pa.schema([("name", pa.string()), ("size", pa.int64())])
_PAGE = 131_072
"""Looking for a page among a million wanted names costs the same for a small page."""
_PARTITIONS = re.compile(r"(?:(?:^|/)[^/=]+=[^/]*)+\Z")
_LAST = "x"
"""A placeholder for a file's name if only its folder matters."""


class _Folder(NamedTuple):
    """Where files are: the URI that is listed, and what their names begin with in its listing."""

    listed: str
    lead: str


def any_lead_outside(paths: pa.Array) -> bool:
    """Return whether any path of a log may lead out of the table's folder."""
    return bool(pc.any(_may_lead_outside(paths)).as_py())


def gone(setting: Setting, log: DeltaLog, segment: Segment, rename: Rewrite, home: str) -> pa.Array:
    """Return the paths of live files outside of ``home`` that aren't there, or not whole.

    Paths are as ``rename`` gives them. What no store can have isn't looked for: nobody could
    copy it.
    """
    wanted = _wanted(setting, log, segment, rename)
    split = pc.replace_substring_regex(wanted["path"], "[^/]*$", "").combine_chunks()
    encoded = split.dictionary_encode()
    folders = [_folder(text, home) for text in encoded.dictionary.to_pylist()]
    missing = [pa.array([], pa.string())]
    for listed in _outermost({each.listed for each in folders if each is not None}):
        leads = [None if each is None else _lead(each, listed) for each in folders]
        known = pa.array(leads, pa.string()).take(encoded.indices)
        there = pc.is_valid(known)
        missing.append(_absent(setting.open_store(listed), wanted.filter(there), known.drop_null()))
    return pc.unique(pa.concat_arrays(missing))


def _wanted(setting: Setting, log: DeltaLog, segment: Segment, rename: Rewrite) -> pa.Table:
    """Return the files of a version that may be outside, and those of their vectors."""
    engine = setting.engine(segment.size_bytes // 1_000, 0)
    found = [_WANTED.empty_table()]
    with engine.replay(ReplayPlan(log.store.config, segment), setting.observer) as replayed:
        for batch in replayed.files():
            vectors = references.vector_paths(batch.column("deletionVector"))
            for paths, sizes in (
                (batch.column("path").cast(pa.string()), batch.column("size")),
                (vectors, pa.nulls(len(vectors), pa.int64())),
            ):
                rows = pa.Table.from_arrays([rename(paths), sizes], schema=_WANTED)
                found.append(rows.filter(_may_lead_outside(rows["path"])))
    return pa.concat_tables(found).combine_chunks()


def _may_lead_outside(paths: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    absolute = pc.match_substring_regex(paths, file_identity.ABSOLUTE_PATTERN)
    return pc.or_(absolute, pc.match_substring(paths, "../"))


def _folder(text: str, home: str) -> _Folder | None:
    """Return the folder that a path of a log begins with, unless it is below ``home``."""
    try:
        uri = resolve_path(home, file_identity.identity(f"{text}{_LAST}", home))
        container, name = container_and_name(uri)
    except InvalidInput:
        return None
    if not file_identity.is_absolute_path(text) and relative_name(home, uri) is not None:
        return None
    folder = name.removesuffix(_LAST).rstrip("/")
    top = _PARTITIONS.sub("", folder)
    listed = join(container, top) if top else container
    return _Folder(listed, f"{folder[len(top) :].lstrip('/')}/".lstrip("/"))


def _outermost(listed: set[str]) -> Iterator[str]:
    """Yield the URIs of folders that aren't in another one of them."""
    last: str | None = None
    for uri in sorted(listed, key=lambda uri: uri.rstrip("/").split("/")):
        if last is None or relative_name(last, uri) is None:
            last = uri
            yield uri


def _lead(folder: _Folder, listed: str) -> str | None:
    """Return what names in a folder begin with in the listing of ``listed``, if it has them."""
    if folder.listed == listed:
        return folder.lead
    name = relative_name(listed, folder.listed)
    return None if name is None else f"{name}/{folder.lead}"


def _absent(store: Store, wanted: pa.Table, leads: pa.Array) -> pa.Array:
    """Return the paths of those that a listing doesn't have with the size that the log states."""
    last = pc.replace_substring_regex(wanted["path"], "(?s)^.*/", "").combine_chunks()
    names = pc.binary_join_element_wise(leads, _decoded(last), "")
    # Of a listing, which may be of any length, only what is looked for is kept.
    kept = [page.filter(pc.is_in(page["name"], value_set=names)) for page in _pages(store)]
    there = pa.concat_tables([_LISTED.empty_table(), *kept]).combine_chunks()
    found = pc.index_in(names, value_set=there["name"])
    sizes = there["size"].combine_chunks().take(found)
    differ = pc.fill_null(pc.not_equal(sizes, wanted["size"].combine_chunks()), False)
    return wanted["path"].filter(pc.or_(pc.is_null(found), differ)).combine_chunks()


def _decoded(names: pa.Array) -> pa.Array:
    encoded = pc.match_substring(names, "%")
    if not pc.any(encoded).as_py():
        return names
    decoded = [_decoded_name(name) for name in names.filter(encoded).to_pylist()]
    return pc.replace_with_mask(names, encoded, pa.array(decoded, pa.string()))


def _decoded_name(name: str) -> str:
    try:
        return decode_name(name)
    except InvalidInput:
        # No object has such a name, and none has the text as it stands.
        return name


def _pages(store: Store) -> Iterator[pa.Table]:
    entries = list_all(store)
    while True:
        try:
            page = list(islice(entries, _PAGE))
        except ObjectNotFound:
            # The bucket is gone.
            return
        if not page:
            return
        names, sizes = [each.path for each in page], [each.size_bytes for each in page]
        yield pa.Table.from_arrays([pa.array(names, pa.string()), pa.array(sizes)], schema=_LISTED)
