"""Any version of any history is the same, whatever it is read from and whoever reads it."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakeferry.errors import VersionNotAvailable
from lakeferry.table import DeltaLog
from tests.support import history, naive
from tests.support.history import Checkpoint, Clean, Commit, Create, History, Kind, dated
from tests.support.invariants import metadata_row, protocol_row, reading_of, whichever_base


def read(objects: dict[str, bytes], version: int | None) -> naive.Reading:
    return reading_of(DeltaLog(dated(objects)).snapshot(version))


@given(history.histories())
@settings(max_examples=150)
def test_every_version_equals_naive_replay(past: History) -> None:
    objects = past.objects()
    for version in [None, *range(past.newest_version + 1)]:
        expected = naive.replay(objects, version)
        found = read(objects, version)
        assert found == expected
        from_commits = naive.replay(objects, version, base=(), compacted=False)
        # Who reads around a compacted log that says nothing finds what the commit says.
        assert found.commit_info in (None, from_commits.commit_info)
        assert whichever_base(found) == whichever_base(from_commits)


@given(history.histories(with_checkpoints=False, max_steps=6), st.data())
@settings(max_examples=60)
def test_every_kind_of_checkpoint_at_every_place_says_what_the_commits_say(
    past: History, data: st.DataObject
) -> None:
    commits = tuple(step for step in past.steps if isinstance(step, Commit))
    newest = past.newest_version
    for v2, kinds in groupby(Kind, key=lambda kind: kind.is_v2):
        alone = replace(past, steps=commits, layout=replace(past.layout, v2_checkpoints=v2))
        objects = alone.objects()
        truth = [
            whichever_base(naive.replay(objects, version, base=(), compacted=False))
            for version in range(newest + 1)
        ]
        for kind in kinds:
            place = data.draw(st.integers(1, newest + 1), label=f"where {kind.value}")
            checkpoint = data.draw(history.checkpoints([kind]))
            steps = (*commits[:place], checkpoint, *commits[place:])
            with_checkpoint = replace(alone, steps=steps).objects()
            for version in range(newest + 1):
                assert whichever_base(read(with_checkpoint, version)) == truth[version]


@given(history.histories())
@settings(max_examples=60)
def test_protocol_metadata_and_small_snapshots_are_those_of_the_whole(past: History) -> None:
    log = DeltaLog(past.store())
    for version in [None, *range(past.newest_version + 1)]:
        whole, state, small = log.snapshot(version), log.state(version), log.small_snapshot(version)
        assert state.version == small.version == whole.version
        assert (small.protocol, small.metadata) == (whole.protocol, whole.metadata)
        assert (small.txns, small.domains) == (whole.txns, whole.domains)
        assert small.num_files == 0
        # A checksum file may lack fields that only a later protocol has.
        assert known(protocol_row(state.protocol)) == known(protocol_row(whole.protocol))
        assert known(metadata_row(state.metadata)) == known(metadata_row(whole.metadata))


def known(row: naive.Row) -> naive.Row:
    return {name: value for name, value in row.items() if name != "ofTheFuture"}


@given(history.histories(), st.data(), st.lists(history.commits(), max_size=3))
@settings(max_examples=60)
def test_after_cleanup_what_is_left_is_the_same_and_the_rest_is_an_error(
    past: History, data: st.DataObject, later: list[Commit]
) -> None:
    checkpoint = data.draw(history.checkpoints(history.kinds_for(past.layout)))
    whole = past.then(checkpoint, *later)
    objects, left = whole.objects(), whole.then(Clean()).objects()
    oldest = past.newest_version
    for version in range(whole.newest_version + 1):
        if version < oldest:
            with pytest.raises(VersionNotAvailable):
                read(left, version)
            continue
        found = read(left, version)
        assert found == naive.replay(left, version)
        expected = naive.replay(objects, version, base=(), compacted=False)
        assert whichever_base(found) == whichever_base(expected)


def test_a_log_with_everything_at_once_says_one_thing() -> None:
    layout = history.Layout(
        True, "u", "name", True, True, True, True, v2_checkpoints=True, absolute_paths=True
    )
    for dialect in history.DIALECTS:
        past = History(layout, (Create(),), dialect).then(
            history.Append(5),
            history.DeleteRows(2),
            history.Delete(1, respell=True),
            *(Checkpoint(kind) for kind in Kind),
            history.Clutter(),
            history.Restore(1),
            history.Compact(2),
            history.Checksum(full=True),
        )
        objects = past.objects()
        assert len(naive.bases(objects)) == len(Kind)  # two of them share one name
        readings = [naive.replay(objects, base=base) for base in naive.bases(objects)]
        assert all(whichever_base(r) == whichever_base(readings[0]) for r in readings)
        assert len(readings[0].files) == 5
