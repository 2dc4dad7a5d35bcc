"""Long listings with several requests at once, on stores in memory that have pages."""

from __future__ import annotations

import builtins
import math
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeferry.errors import StorageUnavailable
from lakeferry.storage import ObjectInfo
from lakeferry.storage import parallel_listing as listing
from lakeferry.storage.folder import FolderStore
from tests.support.stores import DictStore

WAIT_S = 10


class PagedStore(DictStore):
    """A store whose listings have pages; ``before_page`` is called for each request."""

    lists_ranges = True

    def __init__(
        self,
        names: Iterable[str],
        *,
        page: int = 1_000,
        before_page: Callable[[str | None], None] = lambda _: None,
        has_folders: bool = True,
    ) -> None:
        super().__init__()
        self._order = sorted(names)
        self._objects = dict.fromkeys(self._order, (b"", 0))
        self._page = page
        self._before_page = before_page
        self._has_folders = has_folders
        self.asked: builtins.list[str] = []

    def list(
        self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
    ) -> Iterator[ObjectInfo]:
        found = super().list(prefix, start_after=start_after)
        return self._pages(found, start_after, stop_before)

    def _pages(
        self, found: Iterator[ObjectInfo], after: str | None, before: str | None
    ) -> Iterator[ObjectInfo]:
        while True:
            self._before_page(after)
            self.asked.append(after or "")
            page = list(islice(found, self._page))
            for info in page:
                if before is not None and info.path >= before:
                    return
                yield info
            if len(page) < self._page:
                return
            after = page[-1].path

    def folders(self, folder: str) -> Sequence[str] | None:
        if not self._has_folders:
            return None
        self.asked.append(folder)
        below = (name[len(folder) :] for name in self._order if name.startswith(folder))
        return sorted({f"{folder}{name.split('/')[0]}/" for name in below if "/" in name})


def names_of(store: PagedStore, prefix: str = "") -> list[str]:
    return [info.path for info in listing.list_all(store, prefix)]


def log(versions: int = 20) -> list[str]:
    return [f"_delta_log/{version:020d}.json" for version in range(versions)]


def random_uuid(seed: random.Random) -> str:
    return str(uuid.UUID(int=seed.getrandbits(128), version=4))


def parts(count: int, tasks: int = 1, lead: str = "") -> list[str]:
    seed = random.Random(count)
    return [
        f"{lead}part-{n % tasks:05d}-{random_uuid(seed)}-c000.snappy.parquet" for n in range(count)
    ]


def partitioned(folders: int, each: int) -> list[str]:
    return [name for n in range(folders) for name in parts(each, 1, f"day=2024-{n:04d}/")]


SHAPES: dict[str, Callable[[], list[str]]] = {
    "flat": lambda: log() + parts(60_000),
    "many tasks": lambda: log() + parts(60_000, 40),
    "partitions": lambda: log() + partitioned(60, 1_000),
    "small partitions": lambda: log() + partitioned(2_000, 20),
    "one large partition": lambda: (
        log() + partitioned(12, 100) + parts(50_000, 1, "day=2024-0006x/")
    ),
    "two levels": lambda: [
        name
        for year in range(6)
        for month in range(12)
        for name in parts(700, 1, f"year={year}/month={month:02d}/")
    ],
    "random prefixes": lambda: [
        name for n in range(100) for name in parts(400, 1, f"{chr(97 + n % 26)}{n:02d}/")
    ],
    "a long log": lambda: log(12_000) + partitioned(30, 700),
    "other names": lambda: [f"file-{n:07d}" for n in range(20_000)],
    "vectors": lambda: [
        f"deletion_vector_{random_uuid(random.Random(n))}.bin" for n in range(40_000)
    ],
}


@cache
def shaped(shape: str) -> list[str]:
    """Return the names of a shape: as many as that are made only where they are listed."""
    return SHAPES[shape]()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_long_listing_has_all_names_in_order_for_little_more_requests(shape: str) -> None:
    names = shaped(shape)
    store = PagedStore(names)
    assert names_of(store) == sorted(names)
    alone = math.ceil(len(names) / 1_000)
    assert len(store.asked) <= alone * 1.4 + 20


DIVIDED = [shape for shape in SHAPES if shape not in ("other names", "a long log")]


@pytest.mark.parametrize("shape", DIVIDED)
def test_several_requests_run_at_once(shape: str) -> None:
    """The first request of each stretch waits until other stretches are asked for, too."""
    names = set(shaped(shape))
    waiting: set[int] = set()
    met = threading.Condition()

    def before_page(after: str | None) -> None:
        if after is None or after in names:
            return
        with met:
            waiting.add(threading.get_ident())
            met.notify_all()
            assert met.wait_for(lambda: len(waiting) >= 4, WAIT_S)

    store = PagedStore(names, before_page=before_page)
    assert len(names_of(store)) == len(names)
    assert len(waiting) >= 4


def test_a_short_listing_costs_what_it_did() -> None:
    names = log() + parts(4_000)
    store = PagedStore(names)
    assert names_of(store) == sorted(names)
    alone = PagedStore(names)
    assert [info.path for info in alone.list("")] == sorted(names)
    assert store.asked == alone.asked


def test_a_store_without_ranges_is_listed_by_one_request_after_the_other() -> None:
    store = PagedStore(shaped("flat"))
    store.lists_ranges = False
    assert len(names_of(store)) == len(shaped("flat"))
    assert len(store.asked) == 61


@pytest.mark.parametrize("refuses", ["none", "error"])
def test_a_store_that_does_not_list_folders_is_listed_nevertheless(refuses: str) -> None:
    class Refusing(PagedStore):
        def folders(self, folder: str) -> Sequence[str] | None:
            self.asked.append(folder)
            if refuses == "none":
                return None
            raise StorageUnavailable("folders aren't listed here")

    store = Refusing(shaped("two levels"))
    assert names_of(store) == sorted(shaped("two levels"))
    assert store.asked.count("") <= 2
    assert len(store.asked) <= 80


def test_a_boundary_may_be_a_name() -> None:
    plain = sorted(parts(40_000))
    seen: list[str] = []

    class Watching(PagedStore):
        def list(
            self, prefix: str, *, start_after: str | None = None, stop_before: str | None = None
        ) -> Iterator[ObjectInfo]:
            seen.extend(each for each in (start_after,) if each is not None)
            return super().list(prefix, start_after=start_after, stop_before=stop_before)

    names_of(Watching(plain))
    assert seen
    names = [*plain, *seen]
    assert names_of(PagedStore(names)) == sorted(names)


def test_a_folder_that_disappears_ends_nothing() -> None:
    names = shaped("partitions")
    gone = f"day=2024-{30:04d}/"

    class Shrinking(PagedStore):
        def folders(self, folder: str) -> Sequence[str] | None:
            found = super().folders(folder)
            with self._lock:
                self._order = [name for name in self._order if not name.startswith(gone)]
            return found

    assert names_of(Shrinking(names)) == sorted(n for n in names if not n.startswith(gone))


def test_an_error_ends_the_listing_and_its_threads() -> None:
    released = threading.Event()

    def before_page(after: str | None) -> None:
        if after is not None and after.startswith("day=2024-0040"):
            raise StorageUnavailable("the network is gone")
        if after is not None and after > "day=2024-0020/":
            assert released.wait(WAIT_S)

    store = PagedStore(shaped("partitions"), before_page=before_page)
    found = listing.list_all(store)
    list(islice(found, 15_000))
    released.set()
    with pytest.raises(StorageUnavailable):
        list(found)
    assert_ended()


def test_a_caller_that_stops_early_leaves_no_thread_and_no_request() -> None:
    store = PagedStore(shaped("partitions"))
    found = listing.list_all(store)
    assert len(list(islice(found, 7_000))) == 7_000
    found.close()  # type: ignore[attr-defined]
    assert_ended()
    asked = len(store.asked)
    # The pages that are kept are bounded, whoever is slow.
    assert asked <= 7 + listing.AT_ONCE * (listing._AHEAD_PAGES + 1)


def test_an_interrupt_ends_it() -> None:
    blocked = threading.Event()

    def before_page(after: str | None) -> None:
        if after is not None and after > "day=2024-0010/":
            assert blocked.wait(WAIT_S)

    store = PagedStore(shaped("partitions"), before_page=before_page)
    found = listing.list_all(store)
    list(islice(found, 6_000))
    with pytest.raises(KeyboardInterrupt):
        found.throw(KeyboardInterrupt())  # type: ignore[attr-defined]
    blocked.set()
    assert_ended()


def assert_ended() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("list_"):
            thread.join(WAIT_S)
            assert not thread.is_alive()


def test_a_folder_of_a_store_is_divided_too() -> None:
    inside = [f"tables/t/{name}" for name in shaped("partitions")]
    store = PagedStore([*inside, *parts(50, 1, "tables/u/")])
    place = FolderStore(store, "tables/t")
    assert [info.path for info in listing.list_all(place)] == sorted(shaped("partitions"))
    assert "tables/t/" in store.asked


def test_a_prefix_is_kept() -> None:
    names = [*shaped("partitions"), *parts(100, 1, "zz/")]
    store = PagedStore(names)
    assert names_of(store, "day=2024-00") == sorted(n for n in names if n.startswith("day="))
    assert names_of(store, "day=2024-000") == sorted(
        n for n in names if n.startswith("day=2024-000")
    )


PIECES = st.sampled_from(["a=1", "a=2", "b=", "aa", "b", "log", "part-00000", "part-00001"])
PATHS = st.builds(
    lambda folders, name: "/".join([*folders, name]),
    st.lists(PIECES, max_size=3),
    st.one_of(
        st.text("ab0=-", min_size=1, max_size=4),
        st.builds(
            lambda lead, number: f"{lead}{uuid.UUID(int=number)}",
            st.sampled_from(["part-00000-", "part-00007-", "", "x"]),
            st.integers(0, (1 << 128) - 1),
        ),
    ),
)


@given(st.sets(PATHS, max_size=300), st.sampled_from(["", "a", "a=1/", "part"]))
def test_whatever_the_names_are_none_is_lost(names: set[str], prefix: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        sizes = {"_PAGE": 3, "_AHEAD_PAGES": 2, "_STRETCH": 6, "_ALONE": 4, "_SEEN_FIRST": 3}
        for name, size in sizes.items():
            patch.setattr(listing, name, size)
        store = PagedStore(names, page=3)
        assert names_of(store, prefix) == sorted(n for n in names if n.startswith(prefix))
