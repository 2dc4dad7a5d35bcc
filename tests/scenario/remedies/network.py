"""Servers, tokens and object stores: wrong addresses, words and rights."""

from __future__ import annotations

import shlex

import deltalake
import pyarrow as pa

from tests.support.history import Append
from tests.support.lake import ORDERS
from tests.support.remedies import Witness, follows, retried

T = "{lake}/t"

retried(
    "uris.py: give credentials by environment variables or --storage-option",
    "inspect|s3://key:secret@bucket/t",
    f"inspect|{T}|--storage-option|aws_access_key_id=key",
)
retried("uris.py: write {}://bucket/path", "inspect|s3:///t", f"inspect|{T}")
retried(
    "uris.py: give the table's path or URI here",
    "catalog|register|sql:a.b.t|sql:a.b.u",
    f"catalog|register|sql:a.b.t|{T}",
)


@follows(
    "dataset_urls.py: write http://host/name, https://host/account/name, or the same with odf+",
    "remote_dataset.py: write store.example.com, store.example.com:9000 or *.example.com",
)
def a_push_with_words_that_make_no_sense_is_corrected(witness: Witness) -> None:
    table, url = witness.lake.make("t"), f"{witness.server.url}/words"
    words = ("--token", witness.token("--scope", "write"))
    witness.refused("push", table, "ftp://host/t", *words)
    witness.refused("push", table, url, "--allow-host", "a b", *words)
    witness.done("push", table, url, *words)


@follows(
    "failure_messages.py: if both are the same dataset, --force replaces the receiver's history "
    "by the sender's; a different dataset needs another place"
)
def a_push_to_a_table_that_went_another_way_is_forced(witness: Witness) -> None:
    url, made = f"{witness.server.url}/another-way", witness.token("--scope", "write")
    first = witness.lake.make("t", ORDERS.then(Append(1)))
    second = witness.lake.make("u", ORDERS.then(Append(2)))
    witness.done("push", first, url, "--token", made)
    witness.refused("push", second, url, "--token", made)
    witness.done("push", second, url, "--token", made, "--force")


@follows(
    "push_and_pull.py: check the URL, and which datasets the token is for",
    "session_retries.py: choose another name or another place: "
    "a table is never replaced by a different table",
)
def a_pull_of_a_wrong_name_or_onto_another_table_is_corrected(witness: Witness) -> None:
    table, url = witness.lake.make("t"), f"{witness.server.url}/pulled"
    words = ("--token", witness.token("--scope", "write"))
    witness.done("push", table, url, *words)
    witness.refused("pull", f"{url}-x", witness.lake.uri("c"), *words)
    deltalake.write_deltalake(witness.lake.folder / "other", pa.table({"id": [1]}))
    witness.refused("pull", url, witness.lake.uri("other"), *words)
    witness.done("pull", url, witness.lake.uri("c"), *words)


@follows(
    "handshake.py: give a token with --token T or in the variable LAKEFERRY_TOKEN: {}', "
    "and with --scope write for a push",
    "handshake.py: give another token with --token T or in the variable "
    "LAKEFERRY_TOKEN: the server doesn't know this token, or it has expired; {}'",
    "handshake.py: use a token with the scope write: {} --scope write'",
    "handshake.py: check the URL, and which datasets the token is for",
)
def a_token_that_covers_the_dataset_and_may_write_is_given(witness: Witness) -> None:
    table, url = witness.lake.make("t"), f"{witness.server.url}/covered"
    scope = ("--scope", "write")
    witness.refused("push", table, url)
    witness.refused("push", table, url, "--token", "lf_mistyped")
    witness.refused("push", table, url, "--token", witness.token())
    other = witness.token("--dataset", "other", *scope)
    witness.refused("push", table, url, "--token", other)
    witness.done("push", table, url, "--token", witness.token("--dataset", "covered", *scope))


@follows("local_dataset.py: check the path")
def a_push_of_what_is_no_dataset_is_corrected(witness: Witness) -> None:
    table, url = witness.lake.make("t"), f"{witness.server.url}/no-dataset"
    words = ("--token", witness.token("--scope", "write"))
    witness.refused("push", witness.lake.uri("nowhere"), url, *words)
    witness.done("push", table, url, *words)


@follows(
    "dataset_names.py: write name or account/name, with letters, digits, '-', '_' and '.'; "
    "some words are reserved"
)
def a_name_that_a_dataset_can_not_have_is_corrected(witness: Witness) -> None:
    root = witness.server.store.uri
    witness.refused("token", "create", "--root", root, "--dataset", "a/b/c/d")
    witness.done("token", "create", "--root", root, "--dataset", "a/b")


@follows(
    "access_tokens.py: an id is the 16 characters between lf_ and the next _: "
    "'lakeferry token list --root {}' shows them"
)
def a_token_is_revoked_by_its_id(witness: Witness) -> None:
    made, root = witness.token(), witness.server.store.uri
    told = witness.refused("token", "revoke", "--root", root, "x")["remedy"]
    listed = witness.done(*shlex.split(told.split("'")[1])[1:])["tokens"]
    (found,) = (each["id"] for each in listed if each["id"] in made)
    witness.done("token", "revoke", "--root", root, found)
