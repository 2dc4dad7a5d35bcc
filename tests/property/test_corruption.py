"""Damaged logs are refused with a code, or read exactly as their bytes say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakeferry.log.replay import Snapshot
from tests.support import corruption
from tests.support.history import (
    Append,
    Checkpoint,
    Compact,
    Delete,
    Hint,
    HintState,
    History,
    hint,
)
from tests.support.invariants import reading_of
from tests.support.naive import Reading
from tests.support.shares import TAKEN

CASES = 10_000
"""How many there are for all shares together."""
CHUNK = 500
"""How many run in one process, which takes a second to start."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Divide this run's share among tests, so that workers can share the work."""
    if "damages" in metafunc.fixturenames:
        taken = metafunc.config.stash[TAKEN].block(CASES)
        chunks = [taken[first : first + CHUNK] for first in range(0, len(taken), CHUNK)]
        ids = [f"{chunk.start} to {chunk.stop - 1}" for chunk in chunks]
        metafunc.parametrize("damages", chunks, ids=ids)


def test_damage_is_refused_or_read_as_it_is(damages: range) -> None:
    failures = corruption.run(damages.start, len(damages))
    assert not failures, "\n\n".join(failures)


def test_a_case_is_its_number() -> None:
    first, second = corruption.damaged(4), corruption.damaged(4)
    assert first == second
    assert first.objects != corruption.damaged(4 + len(corruption.tables())).objects


def test_every_kind_of_file_and_every_damage_is_among_the_cases() -> None:
    cases = [corruption.damaged(seed) for seed in range(600)]
    touched = {name for case in cases for name in case.touched}
    for kind in (".json", ".crc", "_last_checkpoint", "_sidecars/", ".compacted.json"):
        assert any(kind in name for name in touched)
    for kind in (".checkpoint.parquet", "0000000002.0000000003.parquet", ".checkpoint.6"):
        assert any(kind in name for name in touched)


def test_the_verdict_notices_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = corruption.Damage(dict(corruption.tables()[0]), "nothing", ())
    assert corruption.verdict(whole, 0) is None

    def forgetful(snapshot: Snapshot) -> Reading:
        reading = reading_of(snapshot)
        return replace(reading, files=reading.files[1:])

    monkeypatch.setattr(corruption, "reading_of", forgetful)
    assert "files is" in (corruption.verdict(whole, 0) or "")


COMPACTED = f"_delta_log/{1:020d}.{3:020d}.compacted.json"


def test_the_verdict_on_a_broken_compacted_log(monkeypatch: pytest.MonkeyPatch) -> None:
    past = History().then(Append(1), Append(2), Delete(1), Compact(3), Append(1))
    objects = past.objects()
    assert COMPACTED in objects
    case = corruption.Damage(objects | {COMPACTED: b"{"}, "cut", (COMPACTED,))
    assert corruption.judge_snapshot(case, None) is None
    # To skip one that nobody touched, or one twice, is wrong.
    untouched = corruption.Damage(case.objects, "nothing", ())
    assert "skipped" in (corruption.judge_snapshot(untouched, None) or "")
    monkeypatch.setattr(corruption, "skipped", lambda _: [COMPACTED, COMPACTED])
    assert "skipped" in (corruption.judge_snapshot(case, None) or "")


PAST = History().then(
    *(Append(1), Append(1), Checkpoint(), Append(1)),
    *(Append(1), Append(1), Checkpoint(), Append(1)),
)


@pytest.mark.parametrize("named", range(12))
def test_whichever_version_a_hint_names_every_version_is_read(named: int) -> None:
    objects = PAST.objects() | {corruption.HINT: hint(named, 4)}
    assert_harmless(objects)


@pytest.mark.parametrize("state", HintState)
def test_whatever_is_wrong_with_a_hint_every_version_is_read(state: HintState) -> None:
    assert_harmless(PAST.then(Hint(state)).objects())


def assert_harmless(objects: dict[str, bytes]) -> None:
    case = corruption.Damage(objects, "the hint is another", (corruption.HINT,))
    for version in (None, *range(PAST.newest_version + 1)):
        assert corruption.judge_snapshot(case, version) is None
