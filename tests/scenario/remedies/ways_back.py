"""Redirects that are ended, and targets that are there before or after them."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from urllib.parse import unquote

from lakeferry.log.commit import Transaction
from lakeferry.storage.uris import local_path
from tests.scenario.remedies.redirects import BEGUN, delta_log, quoted, stopped
from tests.scenario.remedies.targets import moved
from tests.support.lake import ORDERS, entry, redirected
from tests.support.redirects import added, append
from tests.support.remedies import Witness, follows


def to_existing(witness: Witness) -> str:
    """Redirect the table ``t`` to its copy ``n``; return the source."""
    source = witness.lake.make("t")
    shutil.copytree(witness.lake.folder / "t", witness.lake.folder / "n")
    witness.done("redirect", "enable", source, witness.lake.uri("n"), "--to-existing")
    return source


# --- Targets that are there before -----------------------------------------------------


@follows("existing_target.py: leave out --to-existing: the table is then copied there")
def a_target_that_is_not_there_is_copied(witness: Witness) -> None:
    words = ("redirect", "enable", witness.lake.make("t"), witness.lake.uri("n"))
    witness.refused(*words, "--to-existing")
    witness.done(*words)


@follows(
    "existing_target.py: give the folder that holds the copy's _delta_log, or leave out "
    "--to-existing and choose an empty target"
)
def a_target_that_is_no_table_is_left_for_a_free_place(witness: Witness) -> None:
    source, other = witness.lake.make("t"), witness.lake.folder / "n"
    other.mkdir()
    (other / "notes.txt").write_text("x")
    words = ("redirect", "enable", source)
    witness.refused(*words, witness.lake.uri("n"), "--to-existing")
    witness.done(*words, witness.lake.uri("m"))


@follows("existing_target.py: run 'lakeferry redirect thaw {}' first")
def a_target_that_is_frozen_is_thawed(witness: Witness) -> None:
    source, target = witness.lake.make("t"), witness.lake.make("n")
    witness.done("redirect", "freeze", target)
    words = ("redirect", "enable", source, target, "--to-existing", "--unverified")
    witness.refused(*words)
    witness.done(*quoted(witness))
    witness.done(*words)


@follows("existing_target.py: 'lakeferry redirect resume {}' completes that move first")
def a_target_that_is_moving_ends_its_move_first(witness: Witness) -> None:
    source = witness.lake.make("u")
    witness.lake.make("t")
    with stopped("t", BEGUN):
        witness.lake.table("t").redirect(witness.lake.uri("n"))
    words = ("redirect", "enable", source, witness.lake.uri("t"), "--to-existing", "--unverified")
    witness.refused(*words)
    witness.done(*quoted(witness))
    witness.done(*words)


@follows(
    "existing_target.py: copy the table to another place: leave out --to-existing and give an "
    "empty target"
)
def a_closed_target_is_exchanged_for_a_free_place(witness: Witness) -> None:
    source = moved(witness)
    witness.done("redirect", "disable", source)
    words = ("redirect", "enable", source)
    witness.refused(*words, witness.lake.uri("n"), "--to-existing")
    witness.done(*words, witness.lake.uri("m"))


@follows("existing_target.py: copy the table again; or give --unverified to redirect nevertheless")
def a_target_with_other_content_is_copied_anew(witness: Witness) -> None:
    source, target = witness.lake.make("t"), witness.lake.make("n", ORDERS)
    append(delta_log(witness, "n"), "x.parquet")
    words = ("redirect", "enable", source, target, "--to-existing")
    witness.refused(*words)
    shutil.rmtree(witness.lake.folder / "n")
    shutil.copytree(witness.lake.folder / "t", witness.lake.folder / "n")
    witness.done(*words)
    witness.done("redirect", "disable", source)
    append(delta_log(witness, "n"), "x.parquet")
    witness.refused(*words)
    witness.done(*words, "--unverified")


@follows(
    "target_claim.py: choose another target, remove what is there, or use --to-existing for a "
    "table that was copied by other means"
)
def a_place_that_is_taken_is_exchanged_removed_or_used(witness: Witness) -> None:
    source = witness.lake.make("t")
    copy = shutil.copytree(witness.lake.folder / "t", witness.lake.folder / "n")
    words = ("redirect", "enable", source, witness.lake.uri("n"))
    witness.refused(*words)
    witness.done(*words, "--to-existing")
    witness.done("redirect", "disable", source)
    witness.refused(*words)
    shutil.rmtree(copy)
    witness.done(*words)


@follows("api/redirects.py: use --to-existing")
def data_that_is_there_is_asked_for_by_the_flag(witness: Witness) -> None:
    witness.lake.make("t")
    witness.lake.make("n")
    table, target = witness.lake.table("t"), witness.lake.uri("n")
    witness.raises(lambda: table.redirect(target, data="existing"))
    witness.returns(lambda: table.redirect(target, to_existing=True, unverified=True))


@follows("api/redirects.py: use one of {}")
def a_mode_that_is_misspelt_is_corrected(witness: Witness) -> None:
    witness.lake.make("t")
    table, target = witness.lake.table("t"), witness.lake.uri("n")
    witness.raises(lambda: table.redirect(target, mode="writers"))
    witness.returns(lambda: table.redirect(target, mode="writer-only"))


@follows("preflight.py: choose another name, or use --to-existing for a table that is there")
def a_name_that_is_taken_is_exchanged(witness: Witness) -> None:
    source, other = witness.lake.make("t"), witness.lake.make("u")
    there = {"LAKEFERRY_SQL_URL": f"sqlite:///{witness.lake.home}/c.sqlite"}
    witness.done("catalog", "register", "sql:a.b.t", other, **there)
    words = ("--location", witness.lake.uri("n"))
    witness.refused("redirect", "enable", source, "sql:a.b.t", *words, **there)
    witness.done("redirect", "enable", source, "sql:a.b.u", *words, **there)


# --- Targets that are closed ----------------------------------------------------------------


@follows(
    "target_claim.py: give --replace-closed-target to delete that table first (if it was moved "
    "from the same source, all of it is back there), or choose another target",
    "closed_target.py: move them elsewhere, or choose another target",
)
def a_closed_target_is_replaced(witness: Witness) -> None:
    source = moved(witness)
    witness.done("redirect", "disable", source)
    words = ("redirect", "enable", source, witness.lake.uri("n"))
    witness.refused(*words)
    guest = witness.lake.folder / "n" / "guest.txt"
    guest.write_text("somebody's")
    witness.refused(*words, "--replace-closed-target")
    guest.rename(witness.lake.home / "guest.txt")
    witness.done(*words, "--replace-closed-target")


@follows(
    "closed_target.py: copy the rows that you need from {}, and delete the table there; or choose "
    "another target"
)
def a_closed_target_that_was_written_to_is_deleted_by_its_user(witness: Witness) -> None:
    source = moved(witness)
    witness.done("redirect", "disable", source)
    folder = witness.lake.folder / "n"
    append(delta_log(witness, "n"), "x.parquet")
    words = ("redirect", "enable", source, witness.lake.uri("n"), "--replace-closed-target")
    witness.refused(*words)
    shutil.rmtree(folder)
    witness.done(*words)


@follows("closed_target.py: choose another target")
def a_closed_target_that_is_referred_to_stays(witness: Witness) -> None:
    source = moved(witness, "--data", "reference")
    append(delta_log(witness, "n"), "x.parquet")
    witness.done("redirect", "disable", source, "--data", "reference")
    witness.refused("redirect", "enable", source, witness.lake.uri("n"), "--replace-closed-target")
    witness.done("redirect", "enable", source, witness.lake.uri("m"))


@follows("closed_target.py: first put them back where they were ({}), or choose another target")
def a_closed_target_that_has_the_only_rows_gives_them_back_first(witness: Witness) -> None:
    source = moved(witness)
    witness.done("redirect", "disable", source)
    folder = witness.lake.folder
    for file in (folder / "t").glob("*.parquet"):
        file.unlink()
    words = ("redirect", "enable", source, witness.lake.uri("n"), "--replace-closed-target")
    witness.refused(*words, "--dry-run")
    witness.refused(*words)
    for file in (folder / "n").glob("*.parquet"):
        shutil.copy(file, folder / "t")
    witness.done(*words)


@follows("closed_target.py: first put them back where they were ({}), or choose another target")
def a_closed_target_that_adopted_files_gives_them_back_first(witness: Witness) -> None:
    source, base = a_clone_that_moved(witness)
    witness.done("redirect", "disable", source)
    base.unlink()
    words = ("redirect", "enable", source, witness.lake.uri("n"), "--replace-closed-target")
    witness.refused(*words, "--dry-run")
    witness.refused(*words)
    shutil.copy(copy_of_adopted(witness, base), base)
    witness.done(*words)


def a_clone_that_moved(witness: Witness) -> tuple[str, Path]:
    """Move a table that names a file of the table ``base``; return its old place, and the file."""
    witness.lake.make("base")
    name = delta_log(witness, "base").snapshot().files["path"][0]
    file = witness.lake.folder / "base" / unquote(name.as_py())
    witness.lake.make("t")
    log = delta_log(witness, "t")
    path = f"{witness.lake.uri('base')}/{name.as_py()}"
    adds = added([path], {path: file.read_bytes()}, 0)
    log.commit(Transaction("CLONE", "clone", adds=adds), log.state())
    source = witness.lake.uri("t")
    witness.done("redirect", "enable", source, witness.lake.uri("n"))
    return source, file


def copy_of_adopted(witness: Witness, file: Path) -> Path:
    """Return the copy of a file that is gone, which the last remedy names."""
    found = re.search(r"the copy of (\S+) is ([^\s)]+)\)", witness.remedies[-1])
    assert found is not None, witness.remedies[-1]
    assert Path(local_path(found.group(1))) == file
    return Path(local_path(found.group(2)))


# --- Ways back --------------------------------------------------------------------------------


@follows("disabling.py: leave out --remove-target")
def a_target_that_was_there_before_stays(witness: Witness) -> None:
    source = to_existing(witness)
    words = ("redirect", "disable", source)
    witness.refused(*words, "--remove-target", "--dry-run")
    witness.refused(*words, "--remove-target")
    witness.done(*words, "--dry-run")
    witness.done(*words)


@follows(
    "bring_back_existing.py: leave out --bring-back, and copy the rows that you need from the "
    "target"
)
def changes_behind_another_program_s_redirect_are_left_there(witness: Witness) -> None:
    target = witness.lake.make("n")
    table = witness.lake.make("t", redirected(("delta.redirectReaderWriter", entry(target))))
    words = ("redirect", "disable", table)
    witness.refused(*words, "--bring-back", "--dry-run")
    witness.refused(*words, "--bring-back")
    witness.done(*words)


@follows(
    "bring_back_existing.py: leave out --bring-back, and copy the rows that you need from the "
    "target"
)
def two_files_of_one_name_stay_where_they_are(witness: Witness) -> None:
    source = to_existing(witness)
    name = delta_log(witness, "t").snapshot().files["path"][0].as_py()
    larger = {name: b"other rows " * 500}
    there = delta_log(witness, "n")
    there.store.put(name, larger[name])
    there.commit(Transaction("WRITE", "other", adds=added([name], larger, 0)), there.state())
    witness.refused("redirect", "disable", source, "--bring-back")
    witness.done("redirect", "disable", source)


@follows(
    "source_divergence.py: Lakeferry can't merge them: keep the redirect; or move the "
    "target's folder elsewhere, run 'lakeferry redirect disable {} --abandon-target', and write to "
    "the source what has changed at the target"
)
def a_source_with_changes_of_its_own_is_kept_without_its_target(witness: Witness) -> None:
    source = moved(witness)
    append(delta_log(witness, "n"), "x.parquet")
    log = witness.lake.folder / "t" / "_delta_log"
    add = '{"add":{"path":"own.parquet","partitionValues":{},"size":9,"modificationTime":1,'
    (log / f"{BEGUN + 2:020d}.json").write_text(add + '"dataChange":true}}\n')
    witness.refused("redirect", "disable", source)
    (witness.lake.folder / "n").rename(witness.lake.folder / "aside")
    witness.done(*quoted(witness))
    append(delta_log(witness, "t"), "x.parquet")
    files = delta_log(witness, "t").snapshot().files["path"].to_pylist()
    assert {"own.parquet", "x.parquet"} < set(files)


WITHOUT_COPIES = (
    "target_removal.py: first put them back where they were ({}), and run the same "
    "command again; or leave out --remove-target to keep {}"
)


@follows(WITHOUT_COPIES)
def a_target_that_adopted_files_is_removed_when_they_are_back(witness: Witness) -> None:
    source, base = a_clone_that_moved(witness)
    base.unlink()
    words = ("redirect", "disable", source, "--remove-target")
    witness.refused(*words, "--dry-run")
    assert witness.refused(*words)["code"] == "missing_file"
    shutil.copy(copy_of_adopted(witness, base), base)
    witness.done(*words)
    assert not (witness.lake.folder / "n").exists()


@follows(WITHOUT_COPIES)
def a_target_that_adopted_files_stays_where_removal_is_left_out(witness: Witness) -> None:
    source, base = a_clone_that_moved(witness)
    base.unlink()
    words = ("redirect", "disable", source)
    witness.refused(*words, "--remove-target")
    copy = copy_of_adopted(witness, base)
    witness.done(*words)
    # It may be asked for later, and is refused for the same reason.
    witness.refused(*words, "--remove-target", "--dry-run")
    witness.refused(*words, "--remove-target")
    shutil.copy(copy, base)
    witness.done(*words, "--remove-target")


@follows("withdrawal.py: leave out --data reference")
def what_was_copied_comes_back_by_copying(witness: Witness) -> None:
    source = moved(witness)
    witness.refused("redirect", "disable", source, "--data", "reference")
    witness.done("redirect", "disable", source)


@follows("withdrawal.py: leave out --data reference or --remove-target")
def a_target_that_is_referred_to_is_not_removed(witness: Witness) -> None:
    source = moved(witness, "--data", "reference")
    words = ("redirect", "disable", source, "--data", "reference")
    witness.refused(*words, "--remove-target")
    witness.done(*words)


@follows(
    "withdrawal.py: leave out --data: the command then uses the value that it was started with"
)
def a_withdrawal_goes_on_as_it_began(witness: Witness) -> None:
    source = moved(witness, "--data", "reference")
    append(delta_log(witness, "n"), "x.parquet")
    with stopped("t", BEGUN + 2):
        witness.lake.table("t").redirect_disable(data="reference")
    witness.refused("redirect", "disable", source, "--data", "copy")
    witness.done("redirect", "disable", source)


CHAIN = (
    "target_lock.py: end that redirect first: lakeferry redirect {} {}; then run the same command "
    "again"
)


def ends_first(witness: Witness, source: str) -> None:
    """Do what a refused disable says, and then the same again."""
    witness.refused("redirect", "disable", source)
    command = witness.remedies[-1].partition("lakeferry ")[2].partition(";")[0]
    witness.done(*command.split())
    witness.done("redirect", "disable", source)


@follows(CHAIN)
def a_target_that_moved_on_comes_back_first(witness: Witness) -> None:
    source = moved(witness)
    witness.done("redirect", "enable", witness.lake.uri("n"), witness.lake.uri("m"))
    ends_first(witness, source)


@follows(CHAIN)
def a_target_that_is_moving_on_goes_back_first(witness: Witness) -> None:
    source = moved(witness)
    with stopped("n", BEGUN + 2):
        witness.lake.table("n").redirect(witness.lake.uri("m"))
    ends_first(witness, source)


@follows(CHAIN)
def a_target_that_is_coming_back_ends_that_first(witness: Witness) -> None:
    source = moved(witness)
    witness.done("redirect", "enable", witness.lake.uri("n"), witness.lake.uri("m"))
    with stopped("n", BEGUN + 4):
        witness.lake.table("n").redirect_disable()
    ends_first(witness, source)


@follows(CHAIN)
def a_target_of_a_redirect_that_is_frozen_is_thawed_first(witness: Witness) -> None:
    source = moved(witness)
    witness.done("redirect", "freeze", witness.lake.uri("n"))
    ends_first(witness, source)


# --- Data files --------------------------------------------------------------------------------


@follows(
    "precopy.py: restore them from a copy, or remove them from the table, as deltalake's "
    "DeltaTable.repair() does"
)
def data_files_that_are_missing_are_restored_or_forgotten(witness: Witness) -> None:
    from deltalake import DeltaTable

    source = witness.lake.make("t")
    words = ("redirect", "enable", source, witness.lake.uri("n"))
    for path in (witness.lake.folder / "t").glob("*.parquet"):
        path.rename(witness.lake.home / path.name)
    witness.refused(*words)
    for path in witness.lake.home.glob("*.parquet"):
        path.rename(witness.lake.folder / "t" / path.name)
    witness.done(*words)
    witness.done("redirect", "disable", source, "--remove-target")
    for path in (witness.lake.folder / "t").glob("*.parquet"):
        path.unlink()
    witness.refused(*words)
    DeltaTable(source).repair()
    witness.done(*words)


@follows("precopy.py: restore that file from a copy, or write its rows again with your engine")
def a_data_file_of_another_size_is_restored(witness: Witness) -> None:
    source = witness.lake.make("t")
    words = ("redirect", "enable", source, witness.lake.uri("n"))
    name = delta_log(witness, "t").snapshot().files["path"][0].as_py()
    path = witness.lake.folder / "t" / unquote(name)
    copy = path.read_bytes()
    path.write_bytes(copy + b"more")
    witness.refused(*words)
    path.write_bytes(copy)
    witness.done(*words)


@follows(
    "following_errors.py: 'lakeferry redirect disable {}' makes {} an ordinary table again, with "
    "all its rows"
)
def an_entry_that_a_restore_brought_back_is_removed(witness: Witness) -> None:
    source = moved(witness)
    log = delta_log(witness, "t")
    ready = log.state()
    witness.done("redirect", "disable", source)
    restore = Transaction("RESTORE", "r", protocol=ready.protocol, metadata=ready.metadata)
    log.commit(restore, log.state())
    witness.refused("redirect", "resolve", source)
    witness.done(*shlex.split(witness.remedies[-1].split("'")[1])[1:])
    assert witness.done("redirect", "resolve", source)["location"] == source
