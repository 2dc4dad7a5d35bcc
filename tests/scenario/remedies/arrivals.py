"""Redirects that arrived with a table: what has to be done before the copy is one's own."""

from __future__ import annotations

import json
import shlex

from lakeferry.storage.uris import local_path
from tests.support.lake import entry, redirected
from tests.support.remedies import NEEDS_A_PERSON, Witness, follows

NEEDS_A_PERSON.update(
    {
        "received_entries.py: ask its owner to remove the table property": (
            "the table is somebody else's, and only its owner can change it"
        ),
        "failure_messages.py: the server's log has the reason; correct the dataset with the "
        "program that wrote it, or, if somebody else has pushed, pull first": (
            "another program's server refuses a history of another program's making"
        ),
    }
)


@follows(
    "received_entry_commands.py: remove it first: lakeferry redirect disable {}",
    "received_entry_commands.py: leave the option out: lakeferry redirect disable {}",
)
def a_redirect_that_arrived_is_taken_away_before_another_is_set(witness: Witness) -> None:
    lake, url = witness.lake, f"{witness.server.url}/arrived"
    words = ("--token", witness.token("--scope", "write"))
    value = entry(lake.uri("elsewhere"))
    table = lake.make("t", redirected(("delta.redirectWriterOnly", value)))
    witness.done("push", table, url, "--no-follow", *words)
    copy = lake.uri("c")
    witness.done("pull", url, copy, *words)
    witness.refused("redirect", "enable", copy, lake.uri("moved"))
    witness.refused("redirect", "disable", copy, "--remove-target")
    witness.done("redirect", "disable", copy)
    witness.done("redirect", "enable", copy, lake.uri("moved"))


@follows("transfers.py: pull into a folder that isn't in a table's folder")
def a_dataset_is_pulled_beside_a_table(witness: Witness) -> None:
    lake, url = witness.lake, f"{witness.server.url}/arrived-beside"
    words = ("--token", witness.token("--scope", "write"))
    witness.done("push", lake.make("t"), url, *words)
    witness.refused("pull", url, lake.uri("t/copy"), *words)
    assert not (lake.folder / "t/copy").exists()
    witness.done("pull", url, lake.uri("copy"), *words)
    witness.done("pull", url, lake.uri("copy"), *words)


@follows("status.py: remove it: lakeferry redirect disable {}")
def an_entry_without_sense_that_arrived_is_taken_away(witness: Witness) -> None:
    lake, url = witness.lake, f"{witness.server.url}/without-sense"
    words = ("--token", witness.token("--scope", "write"))
    table = lake.make("t", redirected(("delta.redirectWriterOnly", "{")))
    witness.done("push", table, url, "--no-follow", *words)
    witness.done("pull", url, lake.uri("c"), *words)
    told = witness.refused("redirect", "status", lake.uri("c"))["remedy"]
    witness.done(*shlex.split(told.partition("lakeferry ")[2]))
    witness.done("redirect", "status", lake.uri("c"))


@follows(
    "received_entries.py: choose a place with another path, or ask its owner to send the table "
    "without the redirect"
)
def a_table_that_stock_spark_would_follow_is_pulled_elsewhere(witness: Witness) -> None:
    lake, url = witness.lake, f"{witness.server.url}/followed"
    words = ("--token", witness.token("--scope", "write"))
    spec = {"sourcePath": local_path(lake.uri("c")), "destPath": lake.uri("elsewhere")}
    value = {"type": "PathBasedRedirect", "state": "REDIRECT-READY", "spec": json.dumps(spec)}
    named = ("delta.redirectWriterOnly-preview", json.dumps(value | {"noRedirectRules": []}))
    witness.done("push", lake.make("t", redirected(named)), url, "--no-follow", *words)
    witness.refused("pull", url, lake.uri("c"), *words)
    witness.done("pull", url, lake.uri("another"), *words)
