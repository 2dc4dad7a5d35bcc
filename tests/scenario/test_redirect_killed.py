"""Real processes, really killed: whatever is left, the table is whole and the move can go on.

There are some dozens of moments to be killed at. A run takes its share of them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakeferry.api.redirects import Redirects
from lakeferry.errors import RedirectIllegalTransition
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.states import RedirectState
from tests.support.forked import ForkedRun
from tests.support.shares import Share

COMMITS = 4
CHANGES = ("PUT", "PUT_IF_ABSENT", "COPY", "UTIME", "DELETE")


def make_table(place: Path) -> None:
    for number in range(COMMITS):
        rows = pa.table({"id": [number * 2, number * 2 + 1], "part": ["a b", "c"]})
        write_deltalake(str(place), rows, mode="append", partition_by=["part"])
        if number == 1:
            DeltaTable(str(place)).create_checkpoint()


def run(verb: str, folder: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Run the program that may be killed, in a process of its own."""
    places = str(folder / "old"), str(folder / "new")
    with ForkedRun(
        ["killed_move", verb, *places, *options],
        cwd=folder,
        env={**os.environ, "PYTHONWARNINGS": "error"},
        module="tests.support.killed_move",
    ) as process:
        return process.wait(120.0)


def moments_of(verb: str, folder: Path) -> list[str]:
    """Return before and after every kind of call in every phase of a run that nobody disturbs.

    After a call that changes nothing is before the next one.
    """
    done = run(verb, folder)
    assert done.returncode == 0, done.stderr.decode()
    seen = done.stdout.decode().split()
    changes = [moment for moment in seen if moment.rpartition("/")[2] in CHANGES]
    return [f"{moment}/before" for moment in seen] + [f"{moment}/after" for moment in changes]


def ids(place: Path) -> list[int]:
    return sorted(DeltaTable(str(place)).to_pyarrow_table()["id"].to_pylist())


def tree(place: Path) -> dict[str, bytes]:
    return {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*") if p.is_file()}


def outcome(found: object) -> Outcome:
    assert isinstance(found, Outcome)
    return found


def kill(verb: str, folder: Path, moment: str) -> None:
    killed = run(verb, folder, "--at", moment)
    assert killed.returncode == -signal.SIGKILL, f"{moment}: {killed.stderr.decode()}"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    make_table(folder / "old")
    return folder


def copy_of(folder: Path, place: Path) -> Path:
    shutil.copytree(folder, place, symlinks=True)
    return place


def test_a_killed_enable_is_resumed_and_a_killed_enable_is_cancelled(
    original: Path, tmp_path: Path, share: Share
) -> None:
    wanted = ids(original / "old")
    moments = moments_of("enable", copy_of(original, tmp_path / "clean"))
    assert {moment.split("/")[0] for moment in moments} >= {"precopy", "tail", "locked", "decided"}
    # A redirect knows its places by their addresses, so all of them take turns at one.
    folder, left = tmp_path / "here", tmp_path / "left"
    for moment in share.each(moments):
        copy_of(original, folder)
        kill("enable", folder, moment)
        copy_of(folder, left)
        _go_on(folder, wanted, moment)
        shutil.rmtree(folder)
        left.rename(folder)
        _go_back(folder, wanted, moment)
        shutil.rmtree(folder)


def _go_on(folder: Path, wanted: list[int], moment: str) -> None:
    redirects = Redirects()
    source, target = str(folder / "old"), str(folder / "new")
    found = redirects.status(source)
    if found.state is RedirectState.NORMAL and found.unfinished is None:
        assert outcome(redirects.enable(source, target)).state is RedirectState.READY, moment
    else:
        assert outcome(redirects.resume(source)).state is RedirectState.READY, moment
    assert ids(folder / "new") == wanted, moment
    for version in range(COMMITS):
        travelled = DeltaTable(target, version=version).to_pyarrow_table()
        assert travelled.num_rows == 2 * (version + 1), moment
    before = tree(folder)
    assert outcome(redirects.resume(source)).changed is False, moment
    assert tree(folder) == before, moment
    # Every writer goes on at the target.
    write_deltalake(
        redirects.resolve(source, write=True).location,
        pa.table({"id": [99], "part": ["c"]}),
        mode="append",
    )
    assert ids(folder / "new") == [*wanted, 99], moment


def _go_back(folder: Path, wanted: list[int], moment: str) -> None:
    redirects = Redirects()
    source = str(folder / "old")
    try:
        redirects.cancel(source)
    except RedirectIllegalTransition:
        assert moment.startswith(("locked/target/PUT_IF_ABSENT/after", "decided", "after")), moment
        return
    assert redirects.status(source).state is RedirectState.NORMAL, moment
    assert ids(folder / "old") == wanted, moment
    before = tree(folder)
    assert outcome(redirects.cancel(source)).changed is False, moment
    assert tree(folder) == before, moment
    write_deltalake(source, pa.table({"id": [99], "part": ["c"]}), mode="append")
    assert ids(folder / "old") == [*wanted, 99], moment


def test_a_killed_disable_is_gone_on_with(original: Path, tmp_path: Path, share: Share) -> None:
    moved = copy_of(original, tmp_path / "moved")
    assert run("enable", moved).returncode == 0
    write_deltalake(str(moved / "new"), pa.table({"id": [50], "part": ["c"]}), mode="append")
    wanted = ids(moved / "new")
    kept = tmp_path / "kept"
    shutil.copytree(moved, kept)

    def reset() -> None:
        shutil.rmtree(moved)
        shutil.copytree(kept, moved)

    for moment in share.each(moments_of("disable", moved)):
        reset()
        kill("disable", moved, moment)
        redirects = Redirects()
        source = str(moved / "old")
        assert outcome(redirects.disable(source)).state is RedirectState.NORMAL, moment
        assert ids(moved / "old") == wanted, moment
        assert DeltaTable(source).protocol().min_writer_version == 2, moment
        before = tree(moved / "old")
        assert outcome(redirects.disable(source)).changed is False, moment
        assert tree(moved / "old") == before, moment
