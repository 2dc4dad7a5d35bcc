"""Finds which right on which folder is missing, and how to get it."""

from __future__ import annotations

import errno
import os
import pwd
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lakeferry.errors import Forbidden

_NAMES = {os.R_OK: ("r", "read"), os.W_OK: ("w", "write"), os.X_OK: ("x", "enter")}


@dataclass(frozen=True, slots=True)
class Lacking:
    """What is missing, as the cause and the remedy of an error."""

    cause: str
    remedy: str


DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""The numbers of system errors whose cause is a missing right."""


@contextmanager
def writing(path: Path | str, what: str) -> Iterator[None]:
    """Raise ``Forbidden``, with the missing right, if a place can't be written.

    For Lakeferry's own folders outside of stores, such as the cache; ``what`` names it.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DENIED:
            raise
        raise forbidden(path, what, error) from error


def forbidden(path: Path | str, what: str, error: OSError) -> Forbidden:
    """Return the error for a place that the system doesn't allow us to write or read."""
    number = error.errno or errno.EACCES
    lack = lacking_right(str(path), number, writing=True)
    cause = f"{os.strerror(number)}: {lack.cause}"
    return Forbidden(f"access to {what} is denied", cause=cause, remedy=lack.remedy, path=str(path))


def lacking_right(path: str, number: int, *, writing: bool) -> Lacking:
    """Explain why the system refused ``path`` with the error ``number``.

    A caller that only reads needs no right to write.
    """
    there = _nearest(path)
    if number == errno.EROFS:
        return Lacking(
            f"the file system of {there} can only be read",
            "choose a place on another file system, or mount this one for writing",
        )
    return missing(path, writing=writing) or Lacking(
        f"the system protects {there}",
        f"ask {_owner(there)}, who owns {there}, or choose another place",
    )


def missing(path: str, *, writing: bool, in_place: bool = False) -> Lacking | None:
    """Return the first right that is missing on the way to ``path``, if one is.

    A file that is written ``in_place`` is opened for writing itself; others are replaced.
    """
    for place, wanted in _needed(path, writing, in_place):
        lack = [right for right in wanted if not os.access(place, right, effective_ids=True)]
        if lack:
            return _without(place, lack)
    return None


def _needed(path: str, writing: bool, in_place: bool) -> Iterator[tuple[Path, tuple[int, ...]]]:
    """Yield each existing place on the way to ``path`` with the rights that may be needed."""
    there, place = _nearest(path), Path(path).absolute()
    for folder in reversed(there.parents):
        yield folder, (os.X_OK,)
    if not there.is_dir():
        yield there, (os.R_OK, os.W_OK) if writing and in_place else (os.R_OK,)
        if writing:
            # Renaming or deleting a file changes its folder.
            yield there.parent, (os.W_OK, os.X_OK)
    elif writing:
        yield there, (os.R_OK, os.W_OK, os.X_OK)
    else:
        # Folders on the way are entered; listed folders are read, too.
        yield there, (os.R_OK, os.X_OK) if there == place else (os.X_OK,)


def _nearest(path: str) -> Path:
    place = Path(path).absolute()
    return next(each for each in (place, *place.parents) if os.path.lexists(each))


def _without(place: Path, missing: list[int]) -> Lacking:
    letters = "".join(_NAMES[right][0] for right in missing)
    verbs = _joined([_NAMES[right][1] for right in missing])
    kind = "folder" if place.is_dir() else "file"
    cause = f"user {_name(os.geteuid())} may not {verbs} the {kind} {place}"
    if place.stat().st_uid == os.geteuid():
        return Lacking(cause, f"run: chmod u+{letters} {shlex.quote(str(place))}")
    return Lacking(
        cause, f"ask {_owner(place)}, who owns {place}, for the right to {verbs} it ({letters})"
    )


def _joined(verbs: list[str]) -> str:
    *others, last = verbs
    return f"{', '.join(others)} and {last}" if others else last


def _owner(place: Path) -> str:
    return _name(place.lstat().st_uid)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
