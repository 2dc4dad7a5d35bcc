"""Which staged files have lost their version."""

from __future__ import annotations

from lakeferry.log import paths
from lakeferry.table.managed import CatalogHead, RatifiedCommit
from lakeferry.table.managed.publish_commits import losers
from tests.support.stores import DictStore

HEAD = CatalogHead("7c0e", 4, (RatifiedCommit(4, "x", 1, 1, 1),))


def staged(version: int, number: int) -> str:
    unique = f"00000000-0000-0000-0000-{number:012d}"
    return f"{paths.STAGED_DIR}/{version:020d}.{unique}.json"


def test_a_staged_file_has_lost_if_another_one_is_that_version() -> None:
    store = DictStore()
    store.put(paths.commit(3), b"winner")
    for number, body in enumerate((b"winner", b"losers", b"shorter")):
        store.put(staged(3, number), body)
    assert losers(store, HEAD, 2**62) == (staged(3, 1), staged(3, 2))


def test_of_an_unpublished_version_the_file_that_the_catalog_names_has_won() -> None:
    store = DictStore()
    for number in range(2):
        store.put(staged(4, number), b"same bytes")
    name = staged(4, 0).rpartition("/")[2]
    head = CatalogHead("7c0e", 4, (RatifiedCommit(4, name, 1, 1, 1),))
    assert losers(store, head, 2**62) == (staged(4, 1),)


def test_young_files_and_undecided_versions_are_not_named() -> None:
    store = DictStore()
    store.put(paths.commit(3), b"winner")
    store.put(staged(3, 1), b"loser")
    store.put(staged(5, 1), b"maybe")
    written_ms = store.head(staged(3, 1)).modified_ms
    assert losers(store, HEAD, written_ms) == ()
    assert losers(store, HEAD, written_ms + 1) == (staged(3, 1),)


def test_a_version_whose_commit_was_cleaned_up_proves_nothing() -> None:
    store = DictStore()
    store.put(staged(2, 1), b"perhaps the winner")
    assert losers(store, HEAD, 2**62) == ()
