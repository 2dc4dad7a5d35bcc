"""Carries Lakeferry's errors from an executor to the driver.

Spark returns only the text of an exception. So a task that fails with one of our errors raises
another exception, whose text contains the whole error on one line, and the driver restores our
error from it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from lakeferry import errors
from lakeferry.errors import LakeferryError

_FOUND = re.compile(r"lakeferry-failure<([A-Za-z0-9+/=]*)>")


class TaskFailed(RuntimeError):
    """One of our errors, as text."""


@contextmanager
def telling_the_driver() -> Iterator[None]:
    """In an executor: raise our errors so that :func:`found_in` can restore them."""
    try:
        yield
    except LakeferryError as error:
        fields = {name: _plain(value) for name, value in error.fields.items()}
        told = [_known(type(error)), error.message, error.cause, error.remedy, fields]
        text = base64.b64encode(msgspec.json.encode(told)).decode()
        raise TaskFailed(f"{error} lakeferry-failure<{text}>") from error


def found_in(text: str) -> LakeferryError | None:
    """Return our error from a failed job's text, if there is one."""
    found = _FOUND.search(text)
    if found is None:
        return None
    name, message, cause, remedy, fields = msgspec.json.decode(base64.b64decode(found.group(1)))
    kind = getattr(errors, name, LakeferryError)
    if not (isinstance(kind, type) and issubclass(kind, LakeferryError)):
        kind = LakeferryError
    return kind(message, cause=cause, remedy=remedy, **fields)


def _known(kind: type[LakeferryError]) -> str:
    """Return the name of the class, or of its nearest parent that the driver knows by name."""
    known: list[type] = [
        each for each in kind.__mro__ if getattr(errors, each.__name__, None) is each
    ]
    return known[0].__name__


def _plain(value: object) -> object:
    return value if isinstance(value, str | int | float | bool | None) else str(value)
