"""Redirects whose target is lost or is another table now: what the user does then."""

from __future__ import annotations

import re
import shutil
from typing import Any

from lakeferry.catalogs import open_catalog
from tests.support.history import Append, History
from tests.support.remedies import Witness, follows

LINEAGE = "lineage.py: if the table that moved was kept elsewhere, put it back there; {}"
UNNAMED = (
    "target_in_catalog.py: register the table's location again: lakeferry catalog register {} "
    "LOCATION; {}"
)
UNANSWERED = "target_in_catalog.py: {}; {}"


def moved(witness: Witness, *words: str) -> str:
    """Move the table ``t`` to ``n``, and return its old place."""
    source = witness.lake.make("t")
    witness.done("redirect", "enable", source, witness.lake.uri("n"), *words)
    return source


def database(witness: Witness) -> dict[str, str]:
    """Return the variable that names the catalog of a case."""
    return {"LAKEFERRY_SQL_URL": f"sqlite:///{witness.lake.home}/c.sqlite"}


def named(witness: Witness) -> str:
    """Move the table ``t`` to ``n``, under a name in a catalog, and return its old place."""
    source, words = witness.lake.make("t"), ("--location", witness.lake.uri("n"))
    witness.done("redirect", "enable", source, "sql:a.b.t", *words, **database(witness))
    return source


def replaced(witness: Witness) -> None:
    """Delete the target, and create another table there."""
    shutil.rmtree(witness.lake.folder / "n")
    witness.lake.make("n", History().then(*(Append(1) for _ in range(9))))


def dropped(witness: Witness) -> None:
    """Drop the name ``a.b.t`` from the catalog, as another program does."""
    assert open_catalog("sql", database(witness)).unregister("a.b.t")


def given_up(witness: Witness, **variables: str) -> Any:
    """Run the command that the last remedy names, word for word."""
    found = re.search(
        r"'lakeferry (redirect disable [^']* --abandon-target)'", witness.remedies[-1]
    )
    assert found is not None, witness.remedies[-1]
    document = witness.done(*found.group(1).split(), **variables)
    assert (document["state"], document["changed"]) == ("NORMAL", True)
    assert "lost_versions" in document
    return document


def register_again(witness: Witness, *refused: str, **variables: str) -> None:
    """Run the command that names a dropped table again, for its place."""
    witness.refused(*refused, **variables)
    found = re.search(r"lakeferry (catalog register \S+) LOCATION", witness.remedies[-1])
    assert found is not None, witness.remedies[-1]
    witness.done(*found.group(1).split(), witness.lake.uri("n"), **variables)


@follows(LINEAGE)
def a_target_that_was_replaced_is_given_up(witness: Witness) -> None:
    source = moved(witness)
    replaced(witness)
    for words in (
        ("disable",),
        ("disable", "--dry-run"),
        ("disable", "--remove-target"),
        ("resolve",),
    ):
        verb, *flags = words
        refused = witness.refused("redirect", verb, source, *flags)
        assert refused["code"] == "redirect_target_replaced"
    for verb in ("history", "files"):
        assert witness.refused(verb, source)["code"] == "redirect_target_replaced"
    assert given_up(witness)["lost_versions"] is None
    assert witness.done("redirect", "resolve", source)["redirected"] is False


@follows(LINEAGE)
def a_target_that_was_replaced_is_put_back(witness: Witness) -> None:
    source, kept = moved(witness), witness.lake.folder / "kept"
    shutil.copytree(witness.lake.folder / "n", kept)
    replaced(witness)
    witness.refused("redirect", "disable", source)
    shutil.rmtree(witness.lake.folder / "n")
    shutil.copytree(kept, witness.lake.folder / "n")
    assert witness.done("redirect", "disable", source)["state"] == "NORMAL"


@follows("following_errors.py: restore the target from a copy; {}")
def a_target_that_is_gone_is_given_up(witness: Witness) -> None:
    for mode in ("reader-writer", "writer-only"):
        shutil.rmtree(witness.lake.folder / "t", ignore_errors=True)
        source = moved(witness, "--mode", mode)
        shutil.rmtree(witness.lake.folder / "n")
        for verb in ("resume", "resolve", "disable"):
            refused = witness.refused("redirect", verb, source)
            assert refused["code"] == "redirect_target_missing"
        given_up(witness)


@follows(UNNAMED)
def a_target_that_was_dropped_from_its_catalog_is_given_up(witness: Witness) -> None:
    source, there = named(witness), database(witness)
    dropped(witness)
    for verb in ("resolve", "disable"):
        assert (
            witness.refused("redirect", verb, source, **there)["code"] == "redirect_target_missing"
        )
    assert given_up(witness, **there)["lost_versions"] == 0


@follows(UNNAMED)
def a_target_that_was_dropped_from_its_catalog_is_registered_again(witness: Witness) -> None:
    source, there = named(witness), database(witness)
    dropped(witness)
    register_again(witness, "redirect", "disable", source, **there)
    assert witness.done("redirect", "disable", source, **there)["state"] == "NORMAL"


@follows(LINEAGE)
def a_name_that_leads_to_another_table_is_given_up(witness: Witness) -> None:
    source, there = named(witness), database(witness)
    witness.done("catalog", "move", "sql:a.b.t", witness.lake.make("other"), **there)
    for verb in ("resolve", "disable"):
        assert (
            witness.refused("redirect", verb, source, **there)["code"] == "redirect_target_replaced"
        )
    given_up(witness, **there)
    assert witness.done("catalog", "show", "sql:a.b.t", **there)["location"] == witness.lake.uri(
        "other"
    )


@follows(
    "target_lock.py: 'lakeferry redirect disable {} --abandon-target' makes {} an ordinary table "
    "again, with the rows that it had at READY; then disable the redirect of {} too"
)
def a_target_that_another_table_came_home_from_is_given_up(witness: Witness) -> None:
    source, there, new = named(witness), database(witness), witness.lake.uri("n")
    witness.done("redirect", "enable", new, witness.lake.uri("m"), **there)
    witness.done("catalog", "move", "sql:a.b.t", witness.lake.uri("m"), **there)
    witness.done("redirect", "disable", source, **there)
    for verb in ("disable", "resume"):
        refused = witness.refused("redirect", verb, new)
        assert refused["code"] == "redirect_illegal_transition"
    assert given_up(witness)["lost_versions"] == 0
    assert witness.done("redirect", "resolve", new)["redirected"] is False


@follows(UNANSWERED)
def a_target_in_a_catalog_that_is_gone_is_given_up(witness: Witness) -> None:
    source = named(witness)
    (witness.lake.home / "file").write_text("this is no database " * 100)
    gone = f"sqlite:///{witness.lake.home}/file"
    for verb in ("resolve", "disable"):
        refused = witness.refused("redirect", verb, source, LAKEFERRY_SQL_URL=gone)
        assert refused["code"] == "catalog_unavailable", refused
    given_up(witness, LAKEFERRY_SQL_URL=gone)


@follows("data_completeness.py: restore them from a copy; {}")
def a_target_that_lost_files_is_given_up(witness: Witness) -> None:
    source = moved(witness)
    # A commit of the target's own, whose file is gone.
    log = witness.lake.folder / "n" / "_delta_log"
    newest = max(int(path.stem) for path in log.glob("0*.json"))
    add = '{"add":{"path":"lost.parquet","partitionValues":{},"size":9,"modificationTime":1,'
    (log / f"{newest + 1:020d}.json").write_text(add + '"dataChange":true}}\n')
    assert witness.refused("redirect", "disable", source)["code"] == "missing_file"
    given_up(witness)


@follows(
    "abandon.py: leave out --abandon-target: 'lakeferry redirect disable {}' ends the redirect"
)
def a_target_that_is_there_is_brought_back(witness: Witness) -> None:
    source = moved(witness)
    for flags in ([], ["--dry-run"]):
        witness.refused("redirect", "disable", source, "--abandon-target", *flags)
    found = re.search(r"'lakeferry (redirect disable [^']*)'", witness.remedies[-1])
    assert found is not None
    assert witness.done(*found.group(1).split())["state"] == "NORMAL"


@follows("disabling.py: leave them out")
def options_that_need_the_target_are_left_out(witness: Witness) -> None:
    source = moved(witness)
    shutil.rmtree(witness.lake.folder / "n")
    words = ("redirect", "disable", source, "--abandon-target")
    witness.refused(*words, "--remove-target")
    assert witness.done(*words)["state"] == "NORMAL"


@follows("preflight.py: choose a target that isn't in a table's folder")
def a_target_in_the_folder_of_another_table(witness: Witness) -> None:
    source, other = witness.lake.make("t"), witness.lake.make("other")
    witness.refused("redirect", "enable", source, f"{other}/n")
    witness.done("redirect", "enable", source, f"{witness.lake.root}/n")
