"""The first mistakes of a new user: what each remedy says is done to the letter."""

from __future__ import annotations

import shlex
import socket

from tests.support.remedies import NEEDS_A_PERSON, Witness, follows, provoked

NEEDS_A_PERSON.update(
    {
        "confirmation.py: run the command again and answer y, or give --yes": (
            "it takes a terminal: tests/scenario/test_cli_terminal.py answers there"
        ),
        "spark_jars.py: fetch them from another mirror: --ivy-settings FILE": (
            "it takes a mirror with other jars"
        ),
        "spark_jars.py: install Java 17 or newer, or set JAVA_HOME to it": (
            "a program has to be installed"
        ),
        "spark_jars.py: pip install 'lakeferry[spark]'": "a package has to be installed",
        "spark_jars.py: pip install pyspark=={} delta-spark=={}": ("a package has to be installed"),
        "spark_versions.py: use a newer Spark, or --engine local": "it takes another Spark",
        "spark_jars.py: run the command on a machine that can reach Maven's repository, or use "
        "a mirror: --ivy-settings FILE takes the same file as Spark's spark.jars.ivySettings": (
            "it takes another network"
        ),
        "cloud_errors.py: set {} in the environment, or give {}": (
            "only the user has the credentials"
        ),
        "cloud_errors.py: set the store's environment variables, or give --storage-option": (
            "only the user has the credentials, and every store that is known names its variables"
        ),
        "rights.py: run: chmod u+{} {}": provoked(
            "it takes a user without root's power, and is followed there",
            "scenario/test_first_use.py::"
            "test_without_the_right_to_write_the_folder_and_the_right_are_named",
        ),
        "rights.py: ask {}, who owns {}, for the right to {} it ({})": (
            "another person has to give the right"
        ),
        "rights.py: choose a place on another file system, or mount this one for writing": (
            "it takes another file system"
        ),
        "remote_dataset.py: check the host's name in the URL with the server's owner": "it "
        "takes a name server that says no, which not every network has",
    }
)


@follows("app.py: '{} --help' shows how it is used")
def a_command_without_its_table_shows_how_it_is_used(witness: Witness) -> None:
    witness.refused("inspect")
    shown = witness.lake.run(*shlex.split(witness.remedies[-1].split("'")[1])[1:])
    assert "lakeferry inspect ./orders" in shown.out
    witness.done("inspect", witness.lake.make("t"))


@follows(
    "repository.py: give the folder above it, or another one: in a root each dataset has "
    "a folder of its own"
)
def a_table_is_no_root(witness: Witness) -> None:
    table = witness.lake.make("t")
    before = witness.lake.tree()
    witness.refused("serve", "--root", table, "--port", 0)
    witness.refused("gc", table)
    witness.refused("token", "create", "--root", table)
    assert witness.lake.tree() == before
    witness.done("token", "create", "--root", table.rpartition("/")[0])


@follows("dropping.py: 'lakeferry feature list {}' shows the table's features")
def a_feature_that_is_not_there_is_looked_up(witness: Witness) -> None:
    table = witness.lake.make("t")
    witness.refused("feature", "drop", table, "columnMapping")
    witness.done(*shlex.split(witness.remedies[-1].split("'")[1])[1:])


@follows("dropping.py: did you mean {}? 'lakeferry feature drop {} {}' drops it")
def the_feature_that_was_meant_is_dropped(witness: Witness) -> None:
    table = witness.lake.make("t")
    listed = witness.done("feature", "list", table)["features"]
    name = next(each["name"] for each in listed if each["droppable"])
    told = witness.refused("feature", "drop", table, name.lower() + "s")["remedy"]
    assert f"did you mean {name}?" in told
    witness.done(*shlex.split(told.split("'")[1])[1:], "--dry-run")


@follows("delta_log.py: give the table's folder instead: {}")
def the_folder_of_the_log_leads_to_the_table(witness: Witness) -> None:
    told = witness.refused("inspect", f"{witness.lake.make('t')}/_delta_log")["remedy"]
    witness.done("inspect", told.rpartition(": ")[2])


@follows("delta_log.py: give the folder that holds the table's {}")
def a_folder_is_given_instead_of_a_file(witness: Witness) -> None:
    table = witness.lake.make("t")
    (witness.lake.folder / "notes.txt").write_text("x")
    witness.refused("inspect", witness.lake.uri("notes.txt"))
    witness.done("inspect", table)


@follows(
    "local_dataset.py: give the folder that holds _delta_log, or blocks/, data/ and refs/",
    "local_dataset.py: give the table's folder instead: {}",
)
def a_push_of_a_part_of_a_table_names_the_table(witness: Witness) -> None:
    table, url = witness.lake.make("t"), f"{witness.server.url}/first-use-part"
    words = ("--token", witness.token("--scope", "write"))
    (witness.lake.folder / "x").mkdir()
    (witness.lake.folder / "x" / "file").write_text("")
    witness.refused("push", witness.lake.uri("x"), url, *words)
    told = witness.refused("push", f"{table}/_delta_log", url, *words)["remedy"]
    witness.done("push", told.rpartition(": ")[2], url, *words)


@follows("local_dataset.py: pull into a folder that is empty or doesn't exist yet")
def a_pull_goes_into_a_folder_of_its_own(witness: Witness) -> None:
    table, url = witness.lake.make("t"), f"{witness.server.url}/first-use-pull"
    words = ("--token", witness.token("--scope", "write"))
    witness.done("push", table, url, *words)
    (witness.lake.folder / "x").mkdir()
    (witness.lake.folder / "x" / "file").write_text("")
    witness.refused("pull", url, witness.lake.uri("x"), *words)
    witness.done("pull", url, witness.lake.uri("x/new"), *words)


@follows(
    "remote_dataset.py: check that a server is running there, and that host and port are those "
    "that 'lakeferry serve' printed when it started",
    "remote_dataset.py: if you trust the network in between, give the URL with http:// instead "
    "of https://; or give the port at which the server speaks https",
)
def the_url_that_the_server_printed_is_used(witness: Witness) -> None:
    table, url = witness.lake.make("t"), f"{witness.server.url}/first-use-url"
    words = ("--token", witness.token("--scope", "write"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        witness.refused("push", table, f"http://127.0.0.1:{free.getsockname()[1]}/x", *words)
    witness.refused("push", table, url.replace("http://", "https://"), *words)
    witness.done("push", table, url, *words)


@follows("repository.py: give the folder that is the --root of 'lakeferry serve'")
def a_folder_is_given_instead_of_a_file_in_a_root(witness: Witness) -> None:
    root = witness.server.store.uri
    (witness.lake.folder / "notes.txt").write_text("x")
    for words in (("gc",), ("token", "list", "--root"), ("token", "create", "--root")):
        assert "it is a file" in witness.refused(*words, witness.lake.uri("notes.txt"))["message"]
    witness.done("gc", root)


@follows(
    "repository.py: use the --root of 'lakeferry serve'; a new root is made "
    "by 'lakeferry serve --root {}'"
)
def the_root_that_the_server_has_is_named(witness: Witness) -> None:
    root = witness.server.store.uri
    witness.refused("token", "create", "--root", f"{root}-x")
    witness.refused("gc", f"{root}-x")
    witness.done("gc", root)
