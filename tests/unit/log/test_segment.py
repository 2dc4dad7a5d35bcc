"""From a listing to the files of a version."""

from __future__ import annotations

import pytest

from lakeferry.errors import CorruptLog, VersionNotAvailable
from lakeferry.log import paths
from lakeferry.log.paths import LogFileKind
from lakeferry.log.segment import Listing, Segment, arrange

ONE = "3a0d65cd-4056-49b8-937b-95f9e3ee90e5"
TWO = "7d17ac10-5cc3-401b-bd1a-9c82dd2ea032"


def listing(*names: str, since: int = 0) -> Listing:
    found = [paths.parse(name, 10, 5) for name in names]
    return arrange([file for file in found if file is not None], since)


def commits(first: int, last: int) -> list[str]:
    return [paths.commit(version) for version in range(first, last + 1)]


def deltas(segment: Segment) -> list[str]:
    return [file.path for file in segment.deltas]


def test_commits_alone() -> None:
    found = listing(*commits(0, 3)).segment()
    assert (found.version, found.checkpoint, deltas(found)) == (3, None, commits(0, 3))
    assert found.commit is not None
    assert found.commit.path == paths.commit(3)
    assert deltas(listing(*commits(0, 3)).segment(1)) == commits(0, 1)


def test_the_newest_checkpoint_that_is_not_too_new() -> None:
    log = listing(*commits(0, 9), paths.classic_checkpoint(3), paths.classic_checkpoint(7))
    assert deltas(log.segment()) == commits(8, 9)
    assert deltas(log.segment(7)) == []
    assert deltas(log.segment(6)) == commits(4, 6)
    assert deltas(log.segment(2)) == commits(0, 2)


def test_an_incomplete_checkpoint_is_none() -> None:
    parts = [paths.multi_part_checkpoint(2, part, 3) for part in (1, 3)]
    log = listing(*commits(0, 3), *parts)
    assert log.segment().checkpoint is None
    assert [checkpoint.complete for checkpoint in log.checkpoints] == [False]
    whole = listing(*commits(0, 3), *parts, paths.multi_part_checkpoint(2, 2, 3)).segment()
    assert whole.checkpoint is not None
    assert [file.part for file in whole.checkpoint.files] == [1, 2, 3]
    assert whole.checkpoint.size_bytes == 30


def test_parts_of_two_checkpoints_don_t_make_one() -> None:
    mixed = [paths.multi_part_checkpoint(2, 1, 2), paths.multi_part_checkpoint(2, 2, 3)]
    assert listing(*commits(0, 3), *mixed).segment().checkpoint is None


def test_of_several_checkpoints_of_one_version_the_same_is_taken_each_time() -> None:
    names = [
        paths.classic_checkpoint(2),
        paths.multi_part_checkpoint(2, 1, 1),
        paths.v2_checkpoint(2, ONE),
        paths.v2_checkpoint(2, TWO, "json"),
    ]
    for order in (names, names[::-1]):
        chosen = listing(*commits(0, 2), *order).segment().checkpoint
        assert chosen is not None
        assert chosen.files[0].path == paths.v2_checkpoint(2, TWO, "json")
    chosen = listing(*commits(0, 2), *names).segment(without=frozenset(names[2:])).checkpoint
    assert chosen is not None
    assert chosen.kind is LogFileKind.MULTI_PART


def test_compacted_logs_stand_for_their_commits() -> None:
    log = listing(
        *commits(0, 6), paths.compacted(1, 2), paths.compacted(1, 4), paths.compacted(3, 5)
    )
    assert deltas(log.segment()) == [
        paths.commit(0),
        paths.compacted(1, 4),
        *commits(5, 6),
    ]
    assert deltas(log.segment(3)) == [paths.commit(0), paths.compacted(1, 2), paths.commit(3)]


def test_a_log_that_was_cleaned_up() -> None:
    log = listing(*commits(5, 9), paths.classic_checkpoint(5))
    assert deltas(log.segment()) == commits(6, 9)
    assert log.earliest_version() == 5
    with pytest.raises(VersionNotAvailable) as gone:
        log.segment(4)
    assert gone.value.fields["earliest_version"] == 5


@pytest.mark.parametrize("version", [-1, 4, 100])
def test_versions_that_never_were(version: int) -> None:
    with pytest.raises(VersionNotAvailable) as never:
        listing(*commits(0, 3)).segment(version)
    assert never.value.fields["newest_version"] == 3


def test_a_gap_is_a_corrupt_log() -> None:
    log = listing(*commits(0, 2), *commits(4, 5))
    with pytest.raises(CorruptLog) as gap:
        log.segment()
    assert gap.value.fields["missing_version"] == 3
    assert deltas(log.segment(2)) == commits(0, 2)
    with pytest.raises(VersionNotAvailable):
        log.segment(3)


def test_a_checkpoint_bridges_a_gap() -> None:
    log = listing(*commits(0, 2), *commits(5, 6), paths.classic_checkpoint(4))
    assert deltas(log.segment()) == commits(5, 6)
    assert deltas(log.segment(1)) == commits(0, 1)
    assert log.earliest_version() == 4


def test_a_log_without_its_beginning_is_corrupt() -> None:
    with pytest.raises(CorruptLog):
        listing(*commits(1, 3)).segment()
    assert listing(*commits(1, 3)).earliest_version() is None


def test_a_checkpoint_alone_is_a_version() -> None:
    found = listing(paths.classic_checkpoint(5)).segment()
    assert (found.version, found.deltas, found.commit) == (5, (), None)


def test_an_empty_log() -> None:
    assert listing().is_empty
    assert listing(paths.checksum(1), paths.multi_part_checkpoint(1, 1, 2)).is_empty
    assert not listing(paths.commit(0)).is_empty


def test_checksums_and_staged_commits_are_kept_apart() -> None:
    staged = f"_delta_log/_staged_commits/{4:020d}.{ONE}.json"
    log = listing(*commits(0, 3), paths.checksum(3), paths.checksum(1), staged)
    assert [file.path for file in log.staged] == [staged]
    found = log.segment()
    assert found.version == 3
    assert found.checksum is not None
    assert log.segment(2).checksum is None
