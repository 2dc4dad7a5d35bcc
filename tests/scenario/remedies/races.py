"""Others who come between: writers, movers and stores in the middle of a command.

A program can't be paused from a command line, so a mover in this process is (see
:mod:`tests.support.meanwhile`); its remedy is then followed on the command line.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lakeferry.api.redirects import Redirects
from lakeferry.errors import LakeferryError
from lakeferry.storage import open_store
from lakeferry.storage.local_store import LocalStore
from lakeferry.storage.uris import local_path
from tests.scenario.remedies.redirects import (
    BEGUN,
    begun,
    delta_log,
    overwritten,
    quoted,
    stopped,
)
from tests.scenario.remedies.tables import LONG, log_file, set_property
from tests.scenario.remedies.targets import moved
from tests.support.history import Append, Compact, History
from tests.support.meanwhile import Moment, commits, meanwhile
from tests.support.redirects import append
from tests.support.remedies import Witness, follows
from tests.support.stores import Fault, FaultyStore, StoreCall, any_of, on

NOTHING = '{"commitInfo":{"operation":"WRITE"}}\n'
"""A commit of a program that looks at no features; it changes no data."""


def enabled_while(witness: Witness, moment: Moment, act: Callable[[], object]) -> LakeferryError:
    """Move ``t`` to ``n`` while ``act`` happens right before the moment; return the error."""
    mover = meanwhile(moment, act)
    source, target = witness.lake.uri("t"), witness.lake.uri("n")
    return witness.raises(lambda: mover.enable(source, target))


def commit_file(witness: Witness, table: str, version: int) -> Path:
    """Return the path of a commit of any table."""
    return witness.lake.folder / table / "_delta_log" / f"{version:020d}.json"


# --- While a table moves ------------------------------------------------------------------


@follows("enabling.py: run the same command again to move the table nevertheless")
def a_move_that_somebody_cancelled_meanwhile_is_run_again(witness: Witness) -> None:
    source = witness.lake.make("t")
    cancel = ("redirect", "cancel", source)
    enabled_while(witness, commits(source, BEGUN), lambda: witness.done(*cancel))
    assert witness.done("redirect", "enable", source, witness.lake.uri("n"))["state"] == "READY"


_COMMIT = re.compile(r"_delta_log/[0-9]{20}\.json")


@contextmanager
def careless_writer(table: str) -> Iterator[None]:
    """Overwrite every commit that is made to a table, as a writer without put-if-absent does."""
    put = LocalStore.put_if_absent

    def overwriting(store: LocalStore, path: str, data: bytes) -> bool:
        done = put(store, path, data)
        if store.uri.endswith(f"/{table}") and _COMMIT.fullmatch(path):
            store.put(path, NOTHING.encode())
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "put_if_absent", overwriting)
        yield


@follows(
    "enabling.py: stop that writer until the move has begun, and run the same command again "
    "(docs/concurrency.md lists such engines)"
)
def a_move_succeeds_once_a_careless_writer_is_stopped(witness: Witness) -> None:
    source, target = witness.lake.make("t"), witness.lake.uri("n")
    with careless_writer("t"):
        witness.raises(lambda: witness.lake.table("t").redirect(target))
    assert witness.done("redirect", "enable", source, target)["state"] == "READY"


@follows(
    "enabling.py: 'lakeferry redirect cancel {}' undoes the move; nothing is lost at the source"
)
def a_target_that_lost_history_is_taken_back(witness: Witness) -> None:
    source, target = witness.lake.make("t", LONG), witness.lake.uri("n")
    before = witness.done("files", source)

    def cleaned() -> None:
        for version in range(3):
            commit_file(witness, "n", version).unlink()

    locked = LONG.newest_version + 1

    def is_published(uri: str, call: StoreCall) -> bool:
        return (
            uri == target
            and call.verb == "LIST"
            and call.paths[0].startswith("_delta_log")
            and commit_file(witness, "n", locked).exists()
            and commit_file(witness, "n", 0).exists()
        )

    enabled_while(witness, is_published, cleaned)
    assert witness.done(*quoted(witness))["state"] == "NORMAL"
    assert witness.done("files", source) == before


@follows("move.py: stop that writer; then 'lakeferry redirect cancel {}' undoes the move")
def a_move_that_was_written_over_meanwhile_is_taken_back(witness: Witness) -> None:
    source, target = witness.lake.make("t"), witness.lake.uri("n")
    enabled_while(witness, commits(target, BEGUN), lambda: overwritten(witness))
    assert witness.done(*quoted(witness))["state"] == "NORMAL"
    assert witness.done("redirect", "enable", source, target)["state"] == "READY"


@follows(
    "move.py: stop that writer and move {}/{} elsewhere; then 'lakeferry redirect "
    "resume {}' continues the move, and 'lakeferry redirect cancel {}' undoes it"
)
def a_commit_in_the_way_at_the_target_is_moved_elsewhere(witness: Witness) -> None:
    source = witness.lake.make("t")
    for number, state in ((1, "NORMAL"), (0, "READY")):
        version = witness.done("inspect", source)["version"] + 1
        with stopped("n", version):
            witness.lake.table("t").redirect(witness.lake.uri("n"))
        commit_file(witness, "n", version + 1).write_text(NOTHING)
        for verb in ("resume", "cancel"):
            witness.refused("redirect", verb, source)
        _move_elsewhere(witness)
        assert witness.done(*quoted(witness, number))["state"] == state


def _move_elsewhere(witness: Witness) -> None:
    """Move the commit that the last remedy names."""
    named = witness.remedies[-1].partition("and move ")[2].partition(" ")[0]
    Path(local_path(named)).rename(witness.lake.home / "elsewhere.json")


@follows(
    "move.py: stop that writer and move {}/{} elsewhere; then 'lakeferry redirect "
    "resume {}' continues the move, and 'lakeferry redirect cancel {}' undoes it"
)
def a_commit_in_the_way_of_the_lock_is_moved_elsewhere(witness: Witness) -> None:
    source = begun(witness)
    commit_file(witness, "n", BEGUN).write_text(NOTHING)
    witness.refused("redirect", "resume", source)
    _move_elsewhere(witness)
    assert witness.done(*quoted(witness, 0))["state"] == "READY"


@follows(
    "move.py: 'lakeferry redirect cancel {}' undoes the move; then choose another target",
    "resuming.py: 'lakeferry redirect cancel {}' undoes the move; then choose another target",
)
def a_place_that_was_taken_meanwhile_is_exchanged(witness: Witness) -> None:
    source, target = witness.lake.make("t"), witness.lake.uri("n")
    longer = History().then(*(Append(1) for _ in range(9)))
    witness.lake.make("other", longer)

    def taken() -> None:
        there = witness.lake.folder / "n"
        shutil.copytree(witness.lake.folder / "other", there, dirs_exist_ok=True)

    error = enabled_while(witness, commits(source, BEGUN), taken)
    assert error.cause == "another table was made there meanwhile"
    witness.refused("redirect", "resume", source)
    assert witness.done(*quoted(witness))["state"] == "NORMAL"
    assert witness.done("inspect", target)["version"] == longer.newest_version
    assert not (witness.lake.folder / "n" / "_delta_log" / "_lakeferry").exists()
    witness.done("redirect", "enable", source, witness.lake.uri("m"))


@follows(
    "move.py: 'lakeferry redirect resume {}' continues the move, 'lakeferry redirect cancel {}' "
    "undoes it"
)
def a_decision_that_vanished_is_made_again(witness: Witness) -> None:
    source, target = witness.lake.make("t"), witness.lake.uri("n")
    for number, state in ((1, "NORMAL"), (0, "READY")):
        version = witness.done("inspect", source)["version"] + 1
        decision = commit_file(witness, "n", version + 1)

        def is_read(uri: str, call: StoreCall, decision: Path = decision) -> bool:
            return uri == target and call.paths[0].endswith(decision.name) and decision.exists()

        enabled_while(witness, is_read, decision.unlink)
        assert witness.done(*quoted(witness, number))["state"] == state


@follows(
    "precopy.py: restore the missing log files from a copy; or, if 'lakeferry files {}' "
    "still reads the table, run 'lakeferry checkpoint {}' first"
)
def a_log_that_only_a_compacted_one_bridges_is_restored(witness: Witness) -> None:
    steps = (Append(1), Append(1), Append(1), Compact(2))
    source = witness.lake.make("t", History().then(*steps))
    commit = log_file(witness, 2)
    copy = commit.read_bytes()
    commit.unlink()
    words = ("redirect", "enable", source, witness.lake.uri("n"))
    witness.refused(*words)
    commit.write_bytes(copy)
    witness.done(*words)


@contextmanager
def careless_store(table: str) -> Iterator[None]:
    """Let a place answer every put-if-absent as if the name were free."""
    put = LocalStore.put_if_absent

    def overwriting(store: LocalStore, path: str, data: bytes) -> bool:
        if store.uri.endswith(f"/{table}"):
            store.put(path, data)
            return True
        return put(store, path, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "put_if_absent", overwriting)
        yield


@follows(
    "preflight.py: Lakeferry can't move a table safely on this store; use one with a "
    "working put-if-absent"
)
def a_table_moves_to_a_store_that_keeps_its_promises(witness: Witness) -> None:
    source = witness.lake.make("t")
    with careless_store("n"):
        witness.raises(lambda: witness.lake.table("t").redirect(witness.lake.uri("n")))
        witness.returns(lambda: witness.lake.table("t").redirect(witness.lake.uri("m")))
    assert witness.done("redirect", "status", source)["state"] == "READY"


# --- While a table comes back ---------------------------------------------------------------


@follows(
    "carried_commits.py: stop the writer of that commit; then 'lakeferry redirect resume {}' "
    "continues the 'redirect disable'"
)
def a_withdrawal_goes_on_once_the_source_is_left_alone(witness: Witness) -> None:
    source = moved(witness)
    append(delta_log(witness, "n"), "x.parquet")
    mover = meanwhile(commits(source, BEGUN + 2), lambda: overwritten(witness))
    witness.raises(lambda: mover.disable(source))
    assert witness.done(*quoted(witness))["state"] == "NORMAL"
    files = delta_log(witness, "t").snapshot().files["path"].to_pylist()
    assert "x.parquet" in files


# --- Commits ----------------------------------------------------------------------------------


@follows(
    "conflicts.py: 'lakeferry history TABLE --limit 5' shows that commit; then run the same "
    "command again"
)
def a_table_that_was_changed_meanwhile_is_looked_at_and_frozen(witness: Witness) -> None:
    source = witness.lake.make("t")
    mover = meanwhile(commits(source), lambda: set_property(witness, "owner", "somebody"))
    witness.raises(lambda: mover.freeze(source))
    (newest, *_) = witness.done("history", source, "--limit", 5)["commits"]
    assert newest["version"] == BEGUN
    assert witness.done("redirect", "freeze", source)["frozen"]


@follows(
    "put_commit.py: run the same command again when the store answers: if the commit is there, "
    "the command continues from it or says how to continue; 'lakeferry history {} --no-follow' "
    "shows it"
)
def a_commit_whose_answer_was_lost_is_gone_on_with(witness: Witness) -> None:
    source, target = witness.lake.make("t"), witness.lake.uri("n")
    name = f"{BEGUN:020d}.json"
    rule = any_of(
        on("PUT_IF_ABSENT", Fault.LOSE_ANSWER, containing=name),
        on("GET", Fault.FAIL, containing=name, times=-1),
    )
    mover = Redirects(engine="local")
    mover.setting = replace(
        mover.setting, open_store=lambda uri: FaultyStore(open_store(uri), rule)
    )
    witness.raises(lambda: mover.enable(source, target))
    newest = witness.done(*quoted(witness))["commits"][0]
    assert newest["version"] == BEGUN
    witness.refused("redirect", "enable", source, target)
    assert witness.done(*quoted(witness))["state"] == "READY"
