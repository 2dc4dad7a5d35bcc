"""Decides when two file actions mean the same file, and which place a path leads to.

The identity of a logical file is its path and the unique id of its deletion vector. Paths are
compared as in delta-spark 4.4.0, which compares ``new Path(new URI(path)).toUri``
(``DeltaLog.CanonicalPathFunction``, then ``InMemoryLogReplay``). :func:`identity` does the same:

* segments are normalised: ``./a``, ``a``, ``b/../a`` are the same path, and so are ``x//a`` and
  ``x/a`` as a file's path;
* a local table's ``/x`` is ``file:/x``; an empty authority is ignored: ``file:///x`` is
  ``file:/x``; letter case of a scheme is ignored;
* nothing is decoded: ``%61`` and ``a`` differ, and so do ``%C3`` and ``%c3``, though they lead
  to one object. ``s3a:`` and ``s3:`` differ, too. In a store, ``/x`` equals only itself: Spark
  looks for it on its default file system, which may be any.

No engine decodes: delta-rs 1.6.6 and Kernel in Rust compare the text, Kernel in Java compares
URIs. If we took two paths for one that others distinguish, we would silently drop a live file
from every copy of the table. If we distinguish paths that others take for one, we show a file
that these engines show as well, except for spellings that no engine writes. So in doubt two
paths are different.

The place that a path leads to is a different question, needed to find files and to compare
tables: :func:`canonical_path` decodes, and treats ``s3a:`` as ``s3:``. Paths with the same
identity have the same place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

ABSOLUTE_PATTERN = r"^(/|[A-Za-z][A-Za-z0-9+.\-]*:/)"
"""How an absolute path in a log begins, as a pattern for Arrow."""
_ABSOLUTE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
# If a path matches none of these, its text is its identity. Each pattern begins with one character,
# which makes the search very fast.
_COLON, _SEGMENT, _PERCENT = re.compile(b":"), re.compile(b"/[/.]"), re.compile(b"%")
_RESPELLED_AT_ONCE = 16_384
_UNUSUAL = r":/|^/|//|(?:^|/)\.\.?/|/\.\.?$"
_ALIASES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasbs": "wasb"}


def is_absolute_path(path: str) -> bool:
    """Tell whether a path of the log is absolute: it has a scheme, or begins with a slash."""
    return path.startswith("/") or _ABSOLUTE.match(path) is not None


def identity(path: str, root: str) -> str:
    """Return the spelling of ``path`` that identifies a logical file in a log.

    ``root`` is the URI of the log's table.
    """
    match = _ABSOLUTE.match(path)
    scheme = match.group(1).lower() if match else ""
    below = path[match.end() - 1 :] if match else path
    authority = ""
    if below.startswith("//"):
        authority, slash, below = below[2:].partition("/")
        below = slash + below
    if not scheme and not authority and below.startswith("/") and root.startswith("file:"):
        scheme = "file"
    lead = (f"{scheme}:" if scheme else "") + (f"//{authority}" if authority else "")
    return lead + _normalised(below)


def _normalised(path: str) -> str:
    """Return a path as ``java.net.URI.normalize`` does, with its query unchanged."""
    if "/" not in path or not ("//" in path or "/." in path or path.startswith(".")):
        return path
    path, mark, query = path.partition("?")
    kept: list[str] = []
    is_folder = False
    for segment in path.split("/"):
        is_folder = True
        if segment == ".." and kept and kept[-1] != "..":
            kept.pop()
        elif segment not in ("", "."):
            kept.append(segment)
            is_folder = False
    lead = "/" if path.startswith("/") else ""
    return lead + "/".join(kept) + ("/" if kept and is_folder else "") + mark + query


def identities(paths: pa.Array, root: str) -> pa.Array:
    """Return the identity of each path; fast if all are spelled as engines spell them."""
    if _are_plain(paths):
        return paths
    return _respelled(paths, pc.match_substring_regex(paths, _UNUSUAL), identity, root)


def canonical_path(path: str, root: str) -> str:
    """Return the one decoded spelling of the place that ``path`` leads to.

    ``root`` is the table's URI; a path that begins with ``/`` is in the same store.
    """
    if path.startswith("/"):
        base = urlsplit(root)
        path = f"{base.scheme}://{base.netloc}{path}"
    match = _ABSOLUTE.match(path)
    if match is None:
        return _decoded(_normalised(path))
    scheme = match.group(1).lower()
    scheme = _ALIASES.get(scheme, scheme)
    below = path[match.end() :]
    authority = ""
    if below.startswith("/"):
        authority, _, below = below[1:].partition("/")
    if scheme == "file":
        # file:/x, file:///x and file://localhost/x are the same place.
        authority = "" if authority == "localhost" else authority
    return f"{scheme}://{authority}/{_decoded(_normalised(f'/{below}').lstrip('/'))}"


def _decoded(path: str) -> str:
    """Decode percent-encoded text; other octets, and line feeds, stay encoded."""
    if "%" not in path:
        return path
    folder, slash, name = path.rpartition("/")
    # A million files of a partitioned table share a few folders.
    return _decoded_part(folder) + slash + (_decoded_part(name) if "%" in name else name)


@lru_cache(maxsize=4096)
def _decoded_part(text: str) -> str:
    try:
        return unquote(text, errors="strict").replace("\n", "%0A")
    except UnicodeDecodeError:
        return text


def canonical_paths(paths: pa.Array, root: str) -> pa.Array:
    """Return the canonical spelling of each path's place; fast if no path needs a change."""
    if _are_plain(paths, _PERCENT):
        return paths
    unusual = pc.or_(pc.match_substring(paths, "%"), pc.match_substring_regex(paths, _UNUSUAL))
    return _respelled(paths, unusual, canonical_path, root)


def _respelled(
    paths: pa.Array, unusual: pa.Array, spell: Callable[[str, str], str], root: str
) -> pa.Array:
    if not pc.any(unusual).as_py():
        return paths
    changed = paths.filter(unusual)
    # Python objects exist for some of the paths at a time.
    starts = range(0, len(changed), _RESPELLED_AT_ONCE)
    slices = (changed.slice(start, _RESPELLED_AT_ONCE) for start in starts)
    respelled = [
        pa.array([spell(path, root) for path in each.to_pylist()], pa.string()) for each in slices
    ]
    return pc.replace_with_mask(paths, unusual, pa.concat_arrays(respelled))


def _are_plain(paths: pa.Array, *further: re.Pattern[bytes]) -> bool:
    """Return True if no path has a colon, slash or dot that could matter, or one of ``further``.

    Searching the bytes of all paths at once is much faster than testing each path.
    """
    if not len(paths):
        return True
    _, offsets, data = paths.buffers()
    if data is None:
        return True
    first, last = (
        int.from_bytes(offsets[4 * at : 4 * at + 4].to_pybytes(), "little")
        for at in (paths.offset, paths.offset + len(paths))
    )
    text = memoryview(data.slice(first, last - first))
    if any(mark.search(text) for mark in (_COLON, _SEGMENT, *further)):
        return False
    return not any(pc.any(pc.starts_with(paths, mark)).as_py() for mark in "/.")


# Typed scalars: for plain text, Arrow would try each time to import optional packages.
_BARE, _AT, _LINE = (pa.scalar(mark, pa.string()) for mark in ("", "@", "\n"))


def vector_ids(vectors: pa.StructArray) -> pa.Array:
    """Return each vector's unique id, or null where a file has none."""
    kind = pc.struct_field(vectors, "storageType")
    where = pc.struct_field(vectors, "pathOrInlineDv")
    offset = pc.cast(pc.struct_field(vectors, "offset"), pa.string())
    bare = pc.binary_join_element_wise(kind, where, _BARE)
    at_offset = pc.binary_join_element_wise(bare, offset, _AT)
    return pc.coalesce(at_offset, bare)


def keys(paths: pa.Array, vectors: pa.StructArray | None, root: str) -> pa.Array:
    """Return one string for each row; two are equal only if the logical files are the same."""
    return keys_of(identities(paths, root), vectors)


def table_keys(table: pa.Table, root: str) -> pa.Array:
    """Return the :func:`keys` of a table of file actions."""
    return keys(table["path"].combine_chunks(), table["deletionVector"].combine_chunks(), root)


def place_keys(table: pa.Table, root: str) -> pa.Array:
    """Return one string for each row; two are equal if place and vector are the same.

    Several spellings of one place, which may be several logical files, have one key.
    """
    spelled = table["path"].combine_chunks()
    found = canonical_paths(spelled, root)
    folder = canonical_path(root, root).rstrip("/")
    below = pc.binary_join_element_wise(folder, found, "/")
    places = pc.if_else(pc.match_substring_regex(spelled, ABSOLUTE_PATTERN), found, below)
    return keys_of(places, table["deletionVector"].combine_chunks())


def keys_of(spelled: pa.Array, vectors: pa.StructArray | None) -> pa.Array:
    """Return the keys of files whose paths are spelled as by :func:`identities`."""
    if vectors is None or vectors.null_count == len(vectors):
        return spelled
    with_vector = pc.binary_join_element_wise(spelled, vector_ids(vectors), _LINE)
    return pc.coalesce(with_vector, spelled)
