"""Names files outside of a table's folder as the table's own files, and back.

A table that was cloned shallowly names another table's files, by absolute URI or by a
relative path that leads out of its folder. When it moves with its data, those files come
along, and its log names them by relative paths that still tell where they came from, by
scheme and authority (``~`` where there is none), or by how many folders up::

    s3://lake/t/part-1.parquet   <->   _adopted/s3/lake/t/part-1.parquet
    file:/lake/part-1.parquet    <->   _adopted/file/~/lake/part-1.parquet
    /lake/part-1.parquet         <->   _adopted/~/~/lake/part-1.parquet
    ../../t/part-1.parquet       <->   _adopted/~2/t/part-1.parquet
    _adopted/s3/lake/part-1      <->   _adopted/_adopted/s3/lake/part-1

The last one is for tables that move twice. What cancels what stays as it is:

* Data files are one exactly where :func:`lakeferry.log.files.identity` says so, at
  the old place and at the new one. So the name is made of the identity:
  ``file:///x``, and ``/x`` in a local table, are called what ``file:/x`` is called.
  The way back gives the identity, which is how Spark spells it: a ``remove`` that
  is brought home cancels the ``add`` that is there, however that is spelled.
* Deletion vectors are one where their descriptors are, letter by letter. So the
  name of a vector's file keeps the spelling (``-`` is an authority that is empty),
  and the way back restores it.

Where a name can't show all of that in plain text (``s3://b/%7e/x``, as a vector's
folder), it has the text itself in hexadecimal digits, behind ``_adopted/=/``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.log import deletion_vectors, files
from lakeferry.log.rewrite.path_rewrite import PlacedPaths

FOLDER = "_adopted"
_ABSENT, _EMPTY, _IN_DIGITS = "~", "-", "="
_SCHEME = r"[a-z][a-z0-9+.\-]*"
# Names of folders and files that no normalising takes away.
_SEGMENTS = r"(?:/[^/.][^/]*)+"
# The common spellings, which are their own identity; of those there may be a million.
_IN = (
    (rf"^({_SCHEME})://([A-Za-z0-9][^/]*)({_SEGMENTS})$", rf"{FOLDER}/\1/\2\3"),
    (rf"^({_SCHEME}):({_SEGMENTS})$", rf"{FOLDER}/\1/{_ABSENT}\2"),
    (rf"^{FOLDER}({_SEGMENTS})$", rf"{FOLDER}/{FOLDER}\1"),
)
_OUT = (
    (rf"^{FOLDER}/{FOLDER}/", f"{FOLDER}/"),
    (rf"^{FOLDER}/{_ABSENT}/{_ABSENT}/", "/"),
    (rf"^{FOLDER}/{_ABSENT}/{_EMPTY}/", "///"),
    (rf"^{FOLDER}/{_ABSENT}/([^/]+)/", r"//\1/"),
    (rf"^{FOLDER}/({_SCHEME})/{_ABSENT}/", r"\1:/"),
    (rf"^{FOLDER}/({_SCHEME})/{_EMPTY}/", r"\1:///"),
    (rf"^{FOLDER}/({_SCHEME})/([^/]+)/", r"\1://\2/"),
)
_PARTS = re.compile(rf"(?:({_SCHEME}):)?(?://([^/]*))?(/.*)", re.DOTALL)
_USUAL_AUTHORITY = re.compile(r"[A-Za-z0-9]")
_VECTOR = r"(?:^|/)deletion_vector_[0-9a-f\-]{36}\.bin$"
_VECTOR_NAME = re.compile(r"/deletion_vector_[0-9a-f-]{36}\.bin\Z")
_UP = "../"
_BESIDE = re.compile(rf"{FOLDER}/{_ABSENT}([1-9][0-9]{{0,3}})/(.+)", re.DOTALL)
_DIGITS_IN_ONE_NAME = 200


@dataclass(frozen=True, slots=True)
class Adopted:
    """Gives paths that lead elsewhere a name inside; others stay, but for adopted ones.

    ``root`` is the URI of the table whose log has the paths: in a local table
    ``/x`` is ``file:/x``, in others it is not.
    """

    root: str

    def __call__(self, paths: pa.Array) -> pa.Array:
        """Return the paths as the log of the table that moves shall have them."""
        absolute = pc.match_substring_regex(paths, files.ABSOLUTE_PATTERN)
        concerned = pc.or_(absolute, pc.match_substring(paths, f"{FOLDER}/"))
        concerned = pc.or_(concerned, pc.match_substring(paths, _UP))
        if not pc.any(concerned).as_py():
            return paths
        usual = pc.invert(pc.match_substring_regex(paths, _VECTOR))
        return _replaced(paths, _IN, usual, concerned, self._name)

    def _name(self, path: str) -> str:
        vector = _VECTOR_NAME.search(path)
        spelled = path if vector else files.identity(path, self.root)
        beside = files.identity(path, self.root).startswith(_UP)
        if not files.is_absolute(path) and not beside:
            if f"{FOLDER}/" not in path:
                return path
            return f"{FOLDER}/{spelled}" if spelled.startswith(f"{FOLDER}/") else spelled
        plain = _name_beside(spelled) if beside else _plain_name(spelled)
        if plain and (not vector or deletion_vectors.relative_descriptor(plain) is not None):
            return plain
        # A vector's file keeps its own name: no descriptor could tell it otherwise.
        return _in_digits(spelled[: vector.start()]) + vector[0] if vector else _in_digits(spelled)


@dataclass(frozen=True, slots=True)
class Returned:
    """Gives adopted paths their own spelling back: the inverse of :class:`Adopted`.

    ``away`` is the URI of the table whose log has the paths: a file beside it, which came
    since, stays there.
    """

    away: str

    def __call__(self, paths: pa.Array) -> pa.Array:
        """Return the paths as the log of the table at home has them."""
        paths = PlacedPaths(self.away)(paths)
        adopted = pc.starts_with(paths, f"{FOLDER}/")
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
    """Apply to each of the ``usual`` paths the rule that fits, and ``otherwise`` to the rest."""
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
    name = f"{FOLDER}/{scheme or _ABSENT}/{place}{below}"
    # One that normalising would change could come to be another file's.
    return name if files.identity(name, "") == name else None


def _name_beside(spelled: str) -> str | None:
    """Return the name of a file that a relative path leads to, so many folders up."""
    below = spelled
    while below.startswith(_UP):
        below = below.removeprefix(_UP)
    name = f"{FOLDER}/{_ABSENT}{(len(spelled) - len(below)) // len(_UP)}/{below}"
    return name if files.identity(name, "") == name and _from_name(name) == spelled else None


def _from_name(name: str) -> str:
    match = _BESIDE.fullmatch(name)
    return _UP * int(match[1]) + match[2] if match else _from_digits(name)


def _in_digits(text: str) -> str:
    digits = text.encode().hex()
    cut = range(0, len(digits), _DIGITS_IN_ONE_NAME)
    parts = [digits[start : start + _DIGITS_IN_ONE_NAME] for start in cut]
    return "/".join([FOLDER, _IN_DIGITS, *parts])


def _from_digits(name: str) -> str:
    text = name.removeprefix(f"{FOLDER}/{_IN_DIGITS}/")
    vector = _VECTOR_NAME.search(text)
    try:
        digits = text[: vector.start()] if vector else text
        return bytes.fromhex(digits.replace("/", "")).decode() + (vector[0] if vector else "")
    except ValueError:
        # Not a name of ours.
        return name
