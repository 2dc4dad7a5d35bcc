"""Copies that differ from their originals, as ``--verify full`` finds them."""

from __future__ import annotations

import shlex
import shutil
from functools import partial
from pathlib import Path

import pytest

from lakeferry.log import paths
from lakeferry.storage.local_store import LocalStore
from lakeferry.storage.uris import local_path
from tests.scenario.remedies.redirects import begun, delta_log
from tests.scenario.remedies.targets import moved
from tests.support.corrupting import flipped, spoil_copies_on_disk
from tests.support.redirects import append
from tests.support.remedies import Witness, follows


@follows(
    "precopy.py: 'lakeferry redirect resume {}' copies what differs again, and compares it; "
    "'lakeferry redirect cancel {}' undoes the move"
)
def a_wrong_copy_is_made_again_or_the_move_is_undone(witness: Witness) -> None:
    witness.lake.make("t")
    target = witness.lake.uri("n")
    move = partial(witness.lake.table("t").redirect, target, verify="full", engine="local")
    for number in (1, 0):
        with pytest.MonkeyPatch.context() as patch:
            spoil_copies_on_disk(patch, target, ".parquet")
            remedy = witness.raises(move).remedy
        assert remedy is not None
        # Undo it the first time, and go on the second time.
        witness.done(*shlex.split(remedy.split("'lakeferry ")[number + 1].rpartition("' ")[0]))
    assert witness.done("redirect", "status", witness.lake.uri("t"))["state"] == "READY"
    witness.done("verify", witness.lake.uri("t"), target, "--digest")


@follows(
    "precopy.py: delete {}; then 'lakeferry redirect resume {}' writes it again, and compares it; "
    "or 'lakeferry redirect cancel {}' undoes the move"
)
def a_wrong_commit_that_was_copied_while_writers_wait_is_deleted(witness: Witness) -> None:
    source, target = witness.lake.make("t"), witness.lake.uri("n")
    late = delta_log(witness, "t").state().version + 1
    put, append_late = LocalStore.put_if_absent, [partial(append, delta_log(witness, "t"))]

    def wrong(store: LocalStore, path: str, data: bytes) -> bool:
        is_late = path == paths.commit(late)
        if is_late and store.uri == source and append_late:
            append_late.pop()("late.parquet")
        return put(store, path, flipped(data) if is_late and store.uri == target else data)

    move = partial(witness.lake.table("t").redirect, target, verify="full", engine="local")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "put_if_absent", wrong)
        remedy = witness.raises(move).remedy
    assert remedy is not None
    (copy,) = shlex.split(remedy.partition("delete ")[2].partition("; then")[0])
    Path(local_path(copy)).unlink()
    witness.done(*shlex.split(remedy.partition("'lakeferry ")[2].partition("' writes")[0]))
    assert witness.done("redirect", "status", source)["state"] == "READY"
    witness.done("verify", source, target, "--digest")


@follows(
    "withdrawal.py: find out which of the two is right; if it is {}, delete {}; if it is {}, copy "
    "it over {}; then run the same command again: it compares both"
)
def a_file_that_came_back_wrong_is_deleted(witness: Witness) -> None:
    source = moved(witness)
    append(delta_log(witness, "n"), "x.parquet")
    words = ("redirect", "disable", source, "--verify", "full")
    with pytest.MonkeyPatch.context() as patch:
        spoil_copies_on_disk(patch, source, "x.parquet")
        disable = partial(witness.lake.table("t").redirect_disable, verify="full", engine="local")
        remedy = witness.raises(disable).remedy
    assert remedy is not None
    (copy,) = shlex.split(remedy.partition("delete ")[2].partition("; if it")[0])
    Path(local_path(copy)).unlink()
    witness.done(*words)
    assert delta_log(witness, "t").store.get("x.parquet") == b"the rows of x.parquet"


@follows(
    "withdrawal.py: find out which of the two is right; if it is {}, delete {}; if it is {}, copy "
    "it over {}; then run the same command again: it compares both"
)
def a_file_that_the_target_has_damaged_is_taken_from_the_source(witness: Witness) -> None:
    source = moved(witness)
    home, away = delta_log(witness, "t").store, delta_log(witness, "n").store
    damaged, lost = [each.path for each in home.list("part-")][:2]
    right = home.get(damaged)
    away.put(damaged, flipped(right))
    # So all files are copied back that the source doesn't have.
    home.delete_many([lost])
    disable = partial(witness.lake.table("t").redirect_disable, verify="full", engine="local")
    remedy = witness.raises(disable).remedy
    assert remedy is not None
    copy, original = (
        local_path(shlex.split(each)[0])
        for each in remedy.rpartition("if it is ")[2]
        .partition("; then")[0]
        .split(", copy it over ")
    )
    shutil.copy(copy, original)
    witness.done("redirect", "disable", source, "--verify", "full")
    assert home.get(damaged) == right


@follows("log_file_copy.py: run the same command again: it writes the file again and compares it")
def a_log_file_that_came_out_wrong_is_written_again(witness: Witness) -> None:
    source = witness.lake.make("t")
    put, place = LocalStore.put, witness.lake.uri("e")

    def wrong(store: LocalStore, path: str, data: bytes) -> None:
        is_wrong = store.uri == place and path.endswith(f"{1:020d}.json")
        put(store, path, flipped(data) if is_wrong else data)

    export = partial(witness.lake.table("t").export, place, verify="full", engine="local")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "put", wrong)
        witness.raises(export)
    witness.done("export", source, "--to", place, "--verify", "full")


@follows("copy_comparison.py: leave out --verify: the command then reads both ends, as before")
def a_move_goes_on_as_it_began(witness: Witness) -> None:
    source = begun(witness, verify="full")
    witness.refused("redirect", "resume", source, "--verify", "store")
    done = witness.done("redirect", "resume", source)
    assert done["files_compared"] is not None


@follows(
    "api/redirects.py: leave out --verify; 'lakeferry verify SOURCE TARGET --digest' reads both "
    "tables and compares them"
)
def a_target_that_exists_is_compared_by_another_command(witness: Witness) -> None:
    source, target = witness.lake.make("t"), witness.lake.make("n")
    words = ("redirect", "enable", source, target, "--to-existing")
    witness.refused(*words, "--verify", "full")
    witness.done("verify", source, target, "--digest")
    witness.done(*words)


@follows("located_table.py: use one of {}")
def a_way_to_verify_that_nobody_knows(witness: Witness) -> None:
    witness.lake.make("t")
    move = witness.lake.table("t").redirect
    witness.raises(partial(move, witness.lake.uri("n"), verify="half"))
    witness.returns(partial(move, witness.lake.uri("n"), verify="full", engine="local"))
