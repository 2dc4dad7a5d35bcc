"""The copy of a table whose log is cleaned up meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lakeferry
from lakeferry.log import paths
from lakeferry.redirect.enable import enabling_commit
from lakeferry.redirect.enable.precopy import Crossing
from tests.unit.redirect.enable.test_enabling_unreadable_log_files import add, lines, make


def cleaned(folder: Path) -> None:
    """Commit four versions, write a checkpoint of the last but one, and delete what is older."""
    for version in range(3, 7):
        body = lines(add(folder, f"{version}.parquet"))
        (folder / paths.commit(version)).write_bytes(body)
    lakeferry.Table(str(folder)).checkpoint(5)
    for version in range(6):
        (folder / paths.commit(version)).unlink()


def after_the_first_round(act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    copied, rounds = Crossing.round, 0

    def then(self: Crossing, *given: Any, **more: Any) -> None:
        nonlocal rounds
        copied(self, *given, **more)
        rounds += 1
        if rounds == 1:
            act()

    monkeypatch.setattr(Crossing, "round", then)


def before_writers_wait(act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    commit: Callable[..., Any] = enabling_commit.commit_enabling

    def first(*given: Any) -> Any:
        # The newest state that the caller knows is an older one now, as with any other writer.
        act()
        return commit(*given[:-1], None)

    monkeypatch.setattr(enabling_commit, "commit_enabling", first)


@pytest.mark.parametrize("when", [after_the_first_round, before_writers_wait])
@pytest.mark.parametrize("data", ["copy", "reference"])
def test_files_of_commits_that_are_cleaned_up_meanwhile_are_copied(
    tmp_path: Path,
    data: str,
    when: Callable[[Callable[[], None], pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make(tmp_path / "t")
    when(lambda: cleaned(tmp_path / "t"), monkeypatch)

    table = lakeferry.Table(str(tmp_path / "t"))
    done = table.redirect(str(tmp_path / "new"), data=data, engine="local")

    # Those that were copied before the cleanup aren't copied again.
    assert done.files_copied == (7 if data == "copy" else 0)
    here, there = (
        lakeferry.open(str(tmp_path / name), follow=False).to_table() for name in ("t", "new")
    )
    assert there.num_rows == here.num_rows == 12
