"""Names files outside of a table's folder as the table's own files, and back.

A shallow clone names another table's files, by absolute URI or by a relative path that leads out
of its folder. If the clone moves with its data, those files are copied too. Its log then names
them by relative paths that contain their origin: scheme and authority (``~`` if there is none),
or the number of folders up::

    s3://lake/t/part-1.parquet   <->   _adopted/s3/lake/t/part-1.parquet
    file:/lake/part-1.parquet    <->   _adopted/file/~/lake/part-1.parquet
    /lake/part-1.parquet         <->   _adopted/~/~/lake/part-1.parquet
    ../../t/part-1.parquet       <->   _adopted/~2/t/part-1.parquet
    _adopted/s3/lake/part-1      <->   _adopted/_adopted/s3/lake/part-1

The last form is for tables that move twice. Actions that cancel each other still do so:

* Data files are the same exactly if :func:`~lakeferry.log.file_identity.identity` says so, at the
  old place and at the new one. So the name is made from the identity: ``file:///x``, and ``/x`` in
  a local table, get the same name as ``file:/x``. The way back returns the identity, which is
  Spark's spelling: a ``remove`` that is brought back cancels the original ``add``, whatever its
  spelling.
* Deletion vectors are the same if their descriptors are equal as text. So the name of a vector's
  file keeps the spelling (``-`` stands for an empty authority), and the way back restores it.

If a plain name can't express the path (``s3://b/%7e/x``, as a vector's folder), the name has the
path in hexadecimal digits, after ``_adopted/=/``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.log import deletion_vectors, file_identity
from lakeferry.log.rewrite.path_rewrite import PlacedPaths

ADOPTED_FOLDER = "_adopted"
_ABSENT, _EMPTY, _IN_DIGITS = "~", "-", "="
_SCHEME = r"[a-z][a-z0-9+.\-]*"
# Names of folders and files that normalising doesn't remove.
_SEGMENTS = r"(?:/[^/.][^/]*)+"
# Common spellings, which are their own identity; there may be a million of these.
_IN = (
    (rf"^({_SCHEME})://([A-Za-z0-9][^/]*)({_SEGMENTS})$", rf"{ADOPTED_FOLDER}/\1/\2\3"),
    (rf"^({_SCHEME}):({_SEGMENTS})$", rf"{ADOPTED_FOLDER}/\1/{_ABSENT}\2"),
    (rf"^{ADOPTED_FOLDER}({_SEGMENTS})$", rf"{ADOPTED_FOLDER}/{ADOPTED_FOLDER}\1"),
)
_OUT = (
    (rf"^{ADOPTED_FOLDER}/{ADOPTED_FOLDER}/", f"{ADOPTED_FOLDER}/"),
    (rf"^{ADOPTED_FOLDER}/{_ABSENT}/{_ABSENT}/", "/"),
    (rf"^{ADOPTED_FOLDER}/{_ABSENT}/{_EMPTY}/", "///"),
    (rf"^{ADOPTED_FOLDER}/{_ABSENT}/([^/]+)/", r"//\1/"),
    (rf"^{ADOPTED_FOLDER}/({_SCHEME})/{_ABSENT}/", r"\1:/"),
    (rf"^{ADOPTED_FOLDER}/({_SCHEME})/{_EMPTY}/", r"\1:///"),
    (rf"^{ADOPTED_FOLDER}/({_SCHEME})/([^/]+)/", r"\1://\2/"),
)
_PARTS = re.compile(rf"(?:({_SCHEME}):)?(?://([^/]*))?(/.*)", re.DOTALL)
_USUAL_AUTHORITY = re.compile(r"[A-Za-z0-9]")
_VECTOR = r"(?:^|/)deletion_vector_[0-9a-f\-]{36}\.bin$"
_VECTOR_NAME = re.compile(r"/deletion_vector_[0-9a-f-]{36}\.bin\Z")
_UP = "../"
_BESIDE = re.compile(rf"{ADOPTED_FOLDER}/{_ABSENT}([1-9][0-9]{{0,3}})/(.+)", re.DOTALL)
_DIGITS_IN_ONE_NAME = 200


@dataclass(frozen=True, slots=True)
class Adopted:
    """Gives paths outside of the table a name inside; other paths stay, except adopted ones.

    ``root`` is the URI of the table whose log has the paths: ``/x`` is ``file:/x`` in a local
    table, but not in others.
    """

    root: str

    def __call__(self, paths: pa.Array) -> pa.Array:
        """Return the paths for the log of the table that moves."""
        absolute = pc.match_substring_regex(paths, file_identity.ABSOLUTE_PATTERN)
        concerned = pc.or_(absolute, pc.match_substring(paths, f"{ADOPTED_FOLDER}/"))
        concerned = pc.or_(concerned, pc.match_substring(paths, _UP))
        if not pc.any(concerned).as_py():
            return paths
        usual = pc.invert(pc.match_substring_regex(paths, _VECTOR))
        return _replaced(paths, _IN, usual, concerned, self._name)

    def _name(self, path: str) -> str:
        vector = _VECTOR_NAME.search(path)
        spelled = path if vector else file_identity.identity(path, self.root)
        beside = file_identity.identity(path, self.root).startswith(_UP)
        if not file_identity.is_absolute_path(path) and not beside:
            if f"{ADOPTED_FOLDER}/" not in path:
                return path
            return (
                f"{ADOPTED_FOLDER}/{spelled}"
                if spelled.startswith(f"{ADOPTED_FOLDER}/")
                else spelled
            )
        plain = _name_beside(spelled) if beside else _plain_name(spelled)
        if plain and (not vector or deletion_vectors.relative_descriptor(plain) is not None):
            return plain
        # A vector's file keeps its own name, because a descriptor can't express another one.
        return _in_digits(spelled[: vector.start()]) + vector[0] if vector else _in_digits(spelled)


@dataclass(frozen=True, slots=True)
class Returned:
    """Restores the original spelling of adopted paths: the inverse of :class:`Adopted`.

    ``away`` is the URI of the table whose log has the paths: a file beside that table, added
    since, stays there.
    """

    away: str

    def __call__(self, paths: pa.Array) -> pa.Array:
        """Return the paths for the log of the table at home."""
        paths = PlacedPaths(self.away)(paths)
        adopted = pc.starts_with(paths, f"{ADOPTED_FOLDER}/")
        if not pc.any(adopted).as_py():
            return paths
        return _replaced(paths, _OUT, adopted, adopted, _from_name)


def _replaced(
    paths: pa.Array,
    rules: tuple[tuple[str, str], ...],
    usual: pa.Array,
    concerned: pa.Array,
    otherwise: Callable[[str], str],
) -> pa.Array:
    """Apply the matching rule to each of the ``usual`` paths, and ``otherwise`` to the rest."""
    done = pa.nulls(len(paths), pa.string())
    for pattern, text in rules:
        here = pc.and_(pc.is_null(done), pc.match_substring_regex(paths, pattern))
        here = pc.and_(here, usual)
        if pc.any(here).as_py():
            new = pc.replace_substring_regex(paths, pattern, text, max_replacements=1)
            done = pc.if_else(here, new, done)
    rest = pc.fill_null(pc.and_(pc.is_null(done), concerned), False)
    if pc.any(rest).as_py():
        new = [otherwise(path) for path in paths.filter(rest).to_pylist()]
        done = pc.replace_with_mask(done, rest, pa.array(new, pa.string()))
    return pc.coalesce(done, paths)


def _plain_name(spelled: str) -> str | None:
    match = _PARTS.fullmatch(spelled)
    if match is None:
        return None
    scheme, authority, below = match.groups()
    if authority and not _USUAL_AUTHORITY.match(authority):
        return None
    place = _ABSENT if authority is None else authority or _EMPTY
    name = f"{ADOPTED_FOLDER}/{scheme or _ABSENT}/{place}{below}"
    # A path that normalising changes could get another file's name.
    return name if file_identity.identity(name, "") == name else None


def _name_beside(spelled: str) -> str | None:
    """Return the name for a file that a relative path reaches through parent folders."""
    below = spelled
    while below.startswith(_UP):
        below = below.removeprefix(_UP)
    name = f"{ADOPTED_FOLDER}/{_ABSENT}{(len(spelled) - len(below)) // len(_UP)}/{below}"
    if file_identity.identity(name, "") != name or _from_name(name) != spelled:
        return None
    return name


def _from_name(name: str) -> str:
    match = _BESIDE.fullmatch(name)
    return _UP * int(match[1]) + match[2] if match else _from_digits(name)


def _in_digits(text: str) -> str:
    digits = text.encode().hex()
    cut = range(0, len(digits), _DIGITS_IN_ONE_NAME)
    parts = [digits[start : start + _DIGITS_IN_ONE_NAME] for start in cut]
    return "/".join([ADOPTED_FOLDER, _IN_DIGITS, *parts])


def _from_digits(name: str) -> str:
    text = name.removeprefix(f"{ADOPTED_FOLDER}/{_IN_DIGITS}/")
    vector = _VECTOR_NAME.search(text)
    try:
        digits = text[: vector.start()] if vector else text
        return bytes.fromhex(digits.replace("/", "")).decode() + (vector[0] if vector else "")
    except ValueError:
        # It isn't one of our names.
        return name
