"""Finds which right on which folder is missing, and how to get it."""

from __future__ import annotations

import errno
import os
import pwd
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_NAMES = {os.R_OK: ("r", "read"), os.W_OK: ("w", "write"), os.X_OK: ("x", "enter")}


@dataclass(frozen=True, slots=True)
class Lacking:
    """What is missing, as the cause and the remedy of an error."""

    cause: str
    remedy: str


def lacking(path: str, number: int, *, writing: bool) -> Lacking:
    """Explain why the system refused ``path`` with the error ``number``.

    Whoever only reads is asked for no right to write.
    """
    there = _nearest(path)
    if number == errno.EROFS:
        return Lacking(
            f"the file system of {there} can only be read",
            "choose a place on another file system, or mount this one for writing",
        )
    for place, wanted in _needed(path, writing):
        missing = [right for right in wanted if not os.access(place, right, effective_ids=True)]
        if missing:
            return _without(place, missing)
    return Lacking(
        f"the system protects {there}",
        f"ask {_owner(there)}, who owns {there}, or choose another place",
    )


def _needed(path: str, writing: bool) -> Iterator[tuple[Path, tuple[int, ...]]]:
    """Yield each existing place on the way to ``path`` with the rights that may be needed."""
    there, place = _nearest(path), Path(path).absolute()
    for folder in reversed(there.parents):
        yield folder, (os.X_OK,)
    if not there.is_dir():
        yield there, (os.R_OK,)
        if writing:
            # A file gets another name, or goes, by a change of its folder.
            yield there.parent, (os.W_OK, os.X_OK)
    elif writing:
        yield there, (os.R_OK, os.W_OK, os.X_OK)
    else:
        # What is on the way is entered; what is listed is read, too.
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
