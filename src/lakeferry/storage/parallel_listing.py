"""Lists many names with several requests at once, in the order of one listing.

A listing begins as always. If it turns out to be long, the names that are still to come are divided
at boundaries, and each stretch between two boundaries is listed by itself. A boundary is a guess,
and need not be the name of anything: each name is in one stretch only, wherever the boundaries are.
So a folder that disappears, or a wrong guess, costs a request and no name is lost.

There are two kinds of guesses: partition folders, which the store lists (:meth:`Store.folders`),
and within a folder the random part of the names that writers of Delta tables give to files.

At most :data:`AT_ONCE` stretches are listed at a time, and for each at most
:data:`_AHEAD_PAGES` pages are kept. A listing of up to :data:`_ALONE` names costs what it costs
without this module.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Generic, TypeVar

from lakeferry.errors import StorageError
from lakeferry.storage.store import ObjectInfo, Store

AT_ONCE = 8
_PAGE = 1_000
"""As many names as the stores give by one request."""
_AHEAD_PAGES = 8
_STRETCH = _AHEAD_PAGES * _PAGE
"""How many names a stretch should have; its last page may reach beyond its end."""
_ALONE = 5 * _PAGE
_SEEN_FIRST = 2 * _PAGE
"""How many names of a stretch must be known before the rest of it is divided."""
_PARTITION = re.compile(r"[^/]*=[^/]*|[0-9A-Za-z]{2,3}")
"""Folders that probably have others beside them: partitions, and random prefixes."""
_RANDOM = re.compile(r"(?s)(.*?)([0-9]{5}-)?([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[^/]*")
"""A name with a UUID, as in ``part-00017-1b9d6bcd-…``: what is before it, and its first half."""
_ALL = 1 << 32
_MOST_TASKS = 100_000

_Listed = TypeVar("_Listed")
ListRange = Callable[[str | None, str | None], Iterator[_Listed]]
"""Lists the names after the first argument and before the second."""


def list_all(store: Store, prefix: str = "") -> Iterator[ObjectInfo]:
    """Yield the same as ``store.list(prefix)``, with several requests at once if it is long."""
    if not store.lists_ranges:
        return store.list(prefix)
    return list_stretches(
        lambda after, before: store.list(prefix, start_after=after, stop_before=before),
        lambda info: info.path,
        store.folders,
        prefix,
    )


def list_stretches(
    list_range: ListRange[_Listed],
    name_of: Callable[[_Listed], str],
    folders: Callable[[str], Sequence[str] | None],
    prefix: str = "",
) -> Iterator[_Listed]:
    """Yield what ``list_range(None, None)`` does, with several requests at once if it is long.

    ``folders`` returns the folders directly below a folder, as :meth:`Store.folders` does.
    """
    names = list_range(None, None)
    first = last = None
    for number, found in enumerate(names, 1):
        yield found
        last = name_of(found)
        first = first or last
        if number == _ALONE:
            break
    else:
        return
    whole = _Stretch(lambda: names, None, first, last or "", _ALONE)
    pool = ThreadPoolExecutor(AT_ONCE, "list")
    try:
        yield from _Division(pool, list_range, name_of, folders, prefix, whole).names()
    finally:
        # Nobody waits for requests whose answers aren't needed: they end by their time limits.
        pool.shutdown(wait=False, cancel_futures=True)


@dataclass(slots=True)
class _Stretch(Generic[_Listed]):
    """Names in a row, which are listed by one request after the other."""

    begin: Callable[[], Iterator[_Listed]]
    until: str | None
    """The last name that may be in it."""
    first: str | None = None
    last: str = ""
    """The first and the last name that were listed, if any were."""
    count: int = 0
    in_folder: int = 0
    """How many of the last names are in one folder."""
    pages: deque[list[_Listed]] = field(default_factory=deque)
    coming: Future[list[_Listed]] | None = None
    is_ended: bool = False
    _names: Iterator[_Listed] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether it goes on and no page of it is being asked for."""
        return self.coming is None and not self.is_ended

    def page(self) -> list[_Listed]:
        """Return the next page; run in a thread."""
        if self._names is None:
            self._names = self.begin()
        return list(islice(self._names, _PAGE))


class _Division(Generic[_Listed]):
    """A long listing, divided into stretches. One thread decides, others make the requests."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        list_range: ListRange[_Listed],
        name_of: Callable[[_Listed], str],
        folders: Callable[[str], Sequence[str] | None],
        prefix: str,
        whole: _Stretch[_Listed],
    ) -> None:
        self._pool = pool
        self._list_range = list_range
        self._name_of = name_of
        self._folders = folders
        self._lead = prefix[: prefix.rfind("/") + 1]
        self._stretches = deque([whole])
        self._known: dict[str, Sequence[str]] = {}
        """The folders below a folder, by its name."""
        self._guesses = True

    def names(self) -> Iterator[_Listed]:
        """Yield all names, in order."""
        while self._stretches:
            self._request()
            head = self._stretches[0]
            if head.pages:
                yield from head.pages.popleft()
            elif head.is_ended:
                self._stretches.popleft()
            else:
                coming = [each.coming for each in self._running() if each.coming is not None]
                wait(coming, return_when=FIRST_COMPLETED)

    def _running(self) -> list[_Stretch[_Listed]]:
        return list(islice(self._stretches, AT_ONCE))

    def _request(self) -> None:
        """Take the pages that have arrived, and ask for more."""
        for stretch in self._running():
            if stretch.coming is not None and stretch.coming.done():
                self._take(stretch, stretch.coming.result())
        for stretch in self._running():
            is_long = stretch.count >= 2 * _STRETCH
            few = len(self._stretches) < AT_ONCE
            if stretch.is_idle and (is_long or (few and stretch.count >= _SEEN_FIRST)):
                self._divide(stretch)
        for stretch in self._running():
            if stretch.is_idle and len(stretch.pages) < _AHEAD_PAGES:
                stretch.coming = self._pool.submit(stretch.page)

    def _take(self, stretch: _Stretch[_Listed], page: list[_Listed]) -> None:
        stretch.coming = None
        stretch.is_ended = len(page) < _PAGE
        until = stretch.until
        if page and until is not None and self._name_of(page[-1]) > until:
            # It was divided after it had begun.
            page = page[: bisect_right(page, until, key=self._name_of)]
            stretch.is_ended = True
        if not page:
            # A guess at names that don't exist: guess no more.
            self._guesses = self._guesses and stretch.count > 0
            return
        last = self._name_of(page[-1])
        folder = last[: last.rfind("/") + 1]
        others = bisect_left(page, folder, key=self._name_of)
        if others or not stretch.last.startswith(folder):
            stretch.in_folder = 0
        stretch.in_folder += len(page) - others
        stretch.first = stretch.first or self._name_of(page[0])
        stretch.last = last
        stretch.count += len(page)
        stretch.pages.append(page)

    def _divide(self, stretch: _Stretch[_Listed]) -> None:
        """End a stretch earlier, and add others for the rest of its names."""
        ends: list[str | None] = [*self._boundaries(stretch), stretch.until]
        new = []
        for after, until in pairwise(ends):
            new.append(_Stretch[_Listed](self._begin(after, until), until))
        stretch.until = ends[0]
        position = self._stretches.index(stretch)
        for each in reversed(new):
            self._stretches.insert(position + 1, each)

    def _begin(self, after: str | None, until: str | None) -> Callable[[], Iterator[_Listed]]:
        # The boundary itself may be a name. The zero makes the first text after it.
        before = None if until is None else f"{until}\0"
        return lambda: self._list_range(after, before)

    def _boundaries(self, stretch: _Stretch[_Listed]) -> list[str]:
        """Return texts between a stretch's last name and its end, in order; none if unknown."""
        folder = self._lead
        while (end := stretch.last.find("/", len(folder))) >= 0:
            child = stretch.last[: end + 1]
            if _PARTITION.fullmatch(child[len(folder) : -1]):
                beside = self._below(folder)
                later = bisect_right(beside, child)
                stop = len(beside)
                if stretch.until is not None:
                    stop = bisect_left(beside, stretch.until)
                begun = bisect_left(beside, stretch.first or "")
                each = max(1, _STRETCH * max(1, later - begun) // stretch.count)
                if stop - later >= each + each // 2:
                    return list(beside[later + each - 1 : stop : each])
            folder = child
        return self._guessed(stretch) if self._guesses else []

    def _below(self, folder: str) -> Sequence[str]:
        """Return the folders directly below a folder; the store is asked once for each."""
        if folder not in self._known:
            try:
                found = self._folders(folder)
            except StorageError:
                # Some services can't do that, or don't allow it.
                found = None
            if found is None:
                self._folders = lambda _: ()
            self._known[folder] = sorted(found or ())
        return self._known[folder]

    def _guessed(self, stretch: _Stretch[_Listed]) -> list[str]:
        """Return boundaries from the names on a stretch's last page, whose UUIDs are random."""
        if not stretch.pages or stretch.in_folder < _SEEN_FIRST:
            return []
        page = stretch.pages[-1]
        match = _RANDOM.fullmatch(stretch.last)
        if match is None:
            return []
        lead, task, digits = match[1], match[2] or "", int(match[3], 16)
        group = lead + task
        begun = bisect_left(page, group, key=self._name_of)
        before = _RANDOM.fullmatch(self._name_of(page[begun]))
        if not group or before is None:
            return []
        since = int(before[3], 16) if begun == 0 else 0
        share = (digits - since) / _ALL
        if share <= 0:
            return []
        whole = (len(page) - begun) / share
        left = whole * (_ALL - digits) / _ALL
        found = []
        if left >= 2 * _STRETCH:
            step = max(1, int(_STRETCH / whole * _ALL))
            found = [f"{group}{each:08x}" for each in range(digits + step, _ALL, step)]
        elif task and stretch.in_folder >= _ALONE:
            number, step = int(task[:-1]), max(1, int(_STRETCH / whole))
            found = [f"{lead}{each:05d}-" for each in range(number + step, _MOST_TASKS, step)]
        until = stretch.until
        return [each for each in found[: AT_ONCE - 1] if until is None or each < until]
