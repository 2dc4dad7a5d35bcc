"""Moves that were broken off, and requests that don't fit a table's state."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lakeferry.errors import StorageUnavailable
from lakeferry.storage import open_store
from lakeferry.storage.local_store import LocalStore
from lakeferry.storage.uris import same_place
from lakeferry.table import DeltaLog
from tests.scenario.remedies.tables import log_file, set_property
from tests.scenario.remedies.targets import moved
from tests.support.history import SetProperties
from tests.support.lake import ORDERS, entry, redirected
from tests.support.remedies import Witness, follows
from tests.support.stores import Stopped

BEGUN = ORDERS.newest_version + 1
"""The version with which a move of ``t`` begins at both places."""


@contextmanager
def stopped(table: str, version: int, *, after: bool = True) -> Iterator[None]:
    """Stop what runs inside when it commits a version of a table, after or before the put."""
    put = LocalStore.put_if_absent
    wanted = f"{version:020d}.json"

    def stopping(store: LocalStore, path: str, data: bytes) -> bool:
        here = store.uri.endswith(f"/{table}") and path == f"_delta_log/{wanted}"
        if here and not after:
            raise Stopped
        done = put(store, path, data)
        if here:
            raise Stopped
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "put_if_absent", stopping)
        with pytest.raises(Stopped):
            yield


def begun(witness: Witness, target: str = "n", verify: str = "store") -> str:
    """Begin a move of the table ``t`` that stops where writers wait; return the source."""
    source = witness.lake.make("t")
    with stopped("t", BEGUN):
        witness.lake.table("t").redirect(witness.lake.uri(target), verify=verify)
    return source


def delta_log(witness: Witness, table: str) -> DeltaLog:
    """Return a table's log, to write to it as another writer does."""
    return DeltaLog(open_store(witness.lake.uri(table)))


def overwritten(witness: Witness) -> None:
    """Commit to the source as a writer does that doesn't look at features."""
    version = witness.done("inspect", witness.lake.uri("t"))["version"] + 1
    log_file(witness, version).write_text('{"commitInfo":{"operation":"WRITE"}}\n')


def quoted(witness: Witness, number: int = 0) -> list[str]:
    """Return the words of a command in the last remedy, in quotes after ``lakeferry``."""
    commands = [part for part in witness.remedies[-1].split("'") if part.startswith("lakeferry ")]
    return shlex.split(commands[number])[1:]


# --- Moves that were broken off ---------------------------------------------------------


@follows(
    "repeated_enable.py: 'lakeferry redirect resume {}' continues it, 'lakeferry redirect "
    "cancel {}' undoes it",
    "freeze.py: 'lakeferry redirect cancel {}' undoes the move",
)
def a_move_that_has_begun_is_taken_back_or_gone_on_with(witness: Witness) -> None:
    source = begun(witness)
    witness.refused("redirect", "thaw", source)
    witness.done(*quoted(witness))
    with stopped("t", BEGUN + 2):
        witness.lake.table("t").redirect(witness.lake.uri("n"))
    witness.refused("redirect", "enable", source, witness.lake.uri("m"))
    assert witness.done(*quoted(witness))["state"] == "READY"


@follows(
    "repeated_enable.py: 'lakeferry redirect resume {}' completes it; then run the same command "
    "again"
)
def a_withdrawal_is_ended_before_the_table_is_moved_again(witness: Witness) -> None:
    source = moved(witness)
    with stopped("n", BEGUN + 2):
        witness.lake.table("t").redirect_disable()
    again = ("redirect", "enable", source, witness.lake.uri("n"))
    witness.refused(*again)
    witness.done(*quoted(witness))
    witness.done(*again, "--replace-closed-target")


@follows("repeated_enable.py: run 'lakeferry redirect thaw {}', then the same command again")
def a_frozen_table_is_thawed_and_moved(witness: Witness) -> None:
    table = witness.lake.make("t")
    witness.done("redirect", "freeze", table)
    words = ("redirect", "enable", table, witness.lake.uri("n"))
    witness.refused(*words)
    witness.done(*quoted(witness))
    witness.done(*words)


@follows("resuming.py: 'lakeferry redirect thaw {}' makes it writable again")
def a_frozen_table_is_thawed_instead_of_resumed(witness: Witness) -> None:
    table = witness.lake.make("t")
    witness.done("redirect", "freeze", table)
    witness.refused("redirect", "resume", table)
    witness.done(*quoted(witness))


@follows("cancel.py: 'lakeferry redirect resume {}' completes the move{}")
def a_move_past_the_point_of_no_return_is_ended_and_brought_back(witness: Witness) -> None:
    source = witness.lake.make("t")
    with stopped("n", BEGUN + 1):
        witness.lake.table("t").redirect(witness.lake.uri("n"))
    witness.refused("redirect", "cancel", source)
    witness.done(*quoted(witness, 0))
    assert witness.done(*quoted(witness, 1))["state"] == "NORMAL"


@follows("move_lookup.py: 'lakeferry redirect cancel {}' removes the redirect")
def a_move_whose_source_was_written_to_is_taken_back(witness: Witness) -> None:
    source = begun(witness)
    overwritten(witness)
    witness.refused("redirect", "resume", source)
    assert witness.done(*quoted(witness))["state"] == "NORMAL"


@follows(
    "cancel.py: copy the rows that were written to the target, if there are any, to the source; "
    "{}; then 'lakeferry {}' removes the redirect"
)
def a_move_with_two_tables_is_taken_back_when_one_is_removed(witness: Witness) -> None:
    source = witness.lake.make("t")
    with stopped("n", BEGUN + 1):
        witness.lake.table("t").redirect(witness.lake.uri("n"))
    overwritten(witness)
    witness.refused("redirect", "cancel", source)
    shutil.rmtree(witness.lake.folder / "n")
    assert witness.done(*quoted(witness))["state"] == "NORMAL"


@follows("resuming.py: 'lakeferry redirect cancel {}' undoes the move; then choose another target")
def a_move_whose_place_was_taken_goes_elsewhere(witness: Witness) -> None:
    source = begun(witness)
    shutil.rmtree(witness.lake.folder / "n")
    witness.lake.make("n")
    witness.refused("redirect", "resume", source)
    witness.done(*quoted(witness))
    witness.done("redirect", "enable", source, witness.lake.uri("m"))


@follows(
    "resuming.py: continue with that program, or remove the redirect: lakeferry redirect {} {}"
)
def another_program_s_redirect_is_taken_away(witness: Witness) -> None:
    value = entry(witness.lake.uri("n"))
    witness.lake.make("n")
    table = witness.lake.make("t", redirected(("delta.redirectReaderWriter", value)))
    witness.refused("redirect", "resume", table)
    witness.done("redirect", "disable", table)
    waiting = entry(witness.lake.uri("n"), State="ENABLE-REDIRECT-IN-PROGRESS")
    table = witness.lake.make("u", redirected(("delta.redirectReaderWriter", waiting)))
    witness.refused("redirect", "resume", table)
    witness.done("redirect", "cancel", table)


@follows(
    "unfinished_move.py: 'lakeferry redirect cancel {}' undoes it, then run the same command "
    "again; 'lakeferry redirect resume {}' continues it instead",
    "target_claim.py: 'lakeferry redirect status {}' shows that move; 'lakeferry redirect "
    "cancel {}' undoes it and frees the place; or choose another target",
)
def a_move_that_only_copied_is_taken_back(witness: Witness) -> None:
    source, other = witness.lake.make("t"), witness.lake.make("u")
    with stopped("t", BEGUN, after=False):
        witness.lake.table("t").redirect(witness.lake.uri("n"))
    elsewhere = ("redirect", "enable", source, witness.lake.uri("m"))
    witness.refused(*elsewhere)
    there = ("redirect", "enable", other, witness.lake.uri("n"))
    witness.refused(*there)
    witness.done(*quoted(witness, 0))
    witness.done(*quoted(witness, 1))
    witness.done(*there)
    witness.done(*elsewhere)


@follows("leftovers.py: delete {} if nobody needs what is there, or choose another target")
def a_place_whose_move_nobody_remembers_is_cleared_by_hand(witness: Witness) -> None:
    source, other = witness.lake.make("t"), witness.lake.make("u")
    with stopped("t", BEGUN, after=False):
        witness.lake.table("t").redirect(witness.lake.uri("n"))
    shutil.rmtree(witness.lake.folder / "t")
    for flags in (["--dry-run"], []):
        refused = witness.refused("redirect", "enable", other, witness.lake.uri("n"), *flags)
        assert source in refused["message"]
    shutil.rmtree(witness.lake.folder / "n")
    witness.done("redirect", "enable", other, witness.lake.uri("n"))


@follows(
    "following_errors.py: try again in a moment; 'lakeferry redirect status {}' shows its progress"
)
def a_table_that_is_moving_is_written_to_later(witness: Witness) -> None:
    source = begun(witness)
    witness.raises(lambda: witness.lake.table("t").resolve(write=True))
    witness.done(*quoted(witness))
    witness.done("redirect", "resume", source)
    witness.returns(lambda: witness.lake.table("t").resolve(write=True))


# --- States ---------------------------------------------------------------------------------


@follows(
    "states.py: the table has no redirect; '{} enable {} TARGET' starts one",
    "states.py: '{} disable {}' ends the redirect first",
    "states.py: '{} resume {}' continues the move, '{} cancel {}' undoes it ('{} thaw {}' for a "
    "frozen table)",
    "states.py: first run '{} resume {}': it completes the return of the table",
)
def every_state_names_the_commands_that_lead_out_of_it(witness: Witness) -> None:
    table = witness.lake.make("t")
    witness.refused("redirect", "resume", table)
    words = [word.replace("TARGET", witness.lake.uri("n")) for word in quoted(witness)]
    witness.done(*words)
    witness.refused("redirect", "freeze", table)
    witness.done(*quoted(witness))
    witness.done("redirect", "freeze", table)
    witness.refused("redirect", "freeze", table, "--mode", "reader-writer")
    witness.done(*quoted(witness, 2))
    with stopped("t", witness.done("inspect", table)["version"] + 1):
        witness.lake.table("t").redirect(witness.lake.uri("m"))
    witness.refused("redirect", "freeze", table)
    witness.done(*quoted(witness))
    with stopped("t", witness.done("inspect", table)["version"] + 1):
        witness.lake.table("t").redirect_disable()
    witness.refused("redirect", "freeze", table)
    witness.done(*quoted(witness))
    witness.done("redirect", "freeze", table)


@follows("unfinished_move.py: {}; {}, and leaves the copies at the target")
def a_move_to_a_place_that_is_out_of_reach_is_forgotten(witness: Witness) -> None:
    source, read = witness.lake.make("t"), LocalStore.get
    with stopped("t", BEGUN, after=False):
        witness.lake.table("t").redirect(witness.lake.uri("n"))

    def reading(store: LocalStore, path: str) -> bytes:
        if store.uri.endswith("/n"):
            raise StorageUnavailable("out of reach")
        return read(store, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "get", reading)
        witness.raises(witness.lake.table("t").redirect_cancel)
    witness.done(*quoted(witness, 1))
    assert witness.done("redirect", "status", source)["unfinished"] is None


# --- Entries of other programs -------------------------------------------------------------


@follows("following_errors.py: end one of these redirects: lakeferry redirect disable {}")
def a_circle_is_broken(witness: Witness) -> None:
    for name, other in (("x", "y"), ("y", "x")):
        value = entry(witness.lake.uri(other))
        witness.lake.make(name, redirected(("delta.redirectReaderWriter", value)))
    witness.refused("files", witness.lake.uri("x"))
    witness.done("redirect", "disable", witness.remedies[-1].split()[-1])
    witness.done("files", witness.lake.uri("x"))
    witness.done("files", witness.lake.uri("y"))
    # A redirect that would close a circle: the others are ended one after the other.
    back = ("redirect", "enable", witness.lake.uri("y"), witness.lake.uri("x"))
    witness.refused(*back, "--to-existing", "--unverified")
    witness.done("redirect", "disable", witness.remedies[-1].split()[-1])
    witness.done(*back, "--to-existing", "--unverified")


@follows(
    "read_entry.py: correct the redirect's table property with the program that set it, or "
    "remove the property"
)
def an_entry_that_makes_no_sense_is_removed(witness: Witness) -> None:
    name = "delta.redirectReaderWriter"
    table = witness.lake.make("t", redirected((name, "{")))
    witness.refused("files", table)
    set_property(witness, name, None)
    witness.done("files", table)


@follows("read_entry.py: remove the property: ALTER TABLE ... UNSET TBLPROPERTIES ('{}')")
def a_property_without_its_feature_is_removed(witness: Witness) -> None:
    name = "delta.redirectReaderWriter"
    table = witness.lake.make("t", ORDERS.then(SetProperties(((name, entry("file:///x")),))))
    words = ("redirect", "enable", table, witness.lake.uri("n"))
    witness.refused(*words)
    set_property(witness, name, None)
    witness.done(*words)


@follows("entry.py: remove the table property and the table feature of one of the two redirects")
def one_of_two_modes_is_removed(witness: Witness) -> None:
    value = entry(witness.lake.make("n"))
    both = ("delta.redirectReaderWriter", "delta.redirectWriterOnly")
    table = witness.lake.make("t", redirected(*((name, value) for name in both)))
    witness.refused("redirect", "disable", table)
    set_property(witness, "delta.redirectWriterOnly", None)
    features = ["redirectReaderWriter"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    lists = {"readerFeatures": features, "writerFeatures": features}
    version = witness.done("inspect", table)["version"] + 1
    log_file(witness, version).write_text(json.dumps({"protocol": protocol | lists}) + "\n")
    witness.done("redirect", "disable", table)


@follows(
    "entry.py: run the command with {} instead; if the table's folder was moved by hand, first "
    "move it back there"
)
def a_copy_of_a_redirected_table_leads_to_the_original(witness: Witness) -> None:
    source, folder = moved(witness), witness.lake.folder
    shutil.copytree(folder / "t", folder / "copy")
    witness.refused("redirect", "disable", witness.lake.uri("copy"))
    (named,) = re.findall(r"run the command with (\S+) instead", witness.remedies[-1])
    assert same_place(named, source)
    shutil.rmtree(folder / "copy")
    (folder / "t").rename(folder / "renamed")
    witness.refused("redirect", "disable", witness.lake.uri("renamed"))
    (folder / "renamed").rename(folder / "t")
    witness.done("redirect", "disable", named)
