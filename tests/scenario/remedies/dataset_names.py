"""Names: of datasets at a server, of servers, and of tokens; and where redirects are looked for."""

from __future__ import annotations

import shlex
import subprocess
from functools import partial

import pytest

import lakeferry
from lakeferry.errors import Interrupted
from lakeferry.storage import open_store
from lakeferry.transfer.repository.dataset_names import DatasetName
from lakeferry.transfer.repository.push_records import PushRecord
from tests.support.lake import ORDERS
from tests.support.remedies import NEEDS_A_PERSON, Witness, follows, provoked

_CHANGES = "unit/transfer/repository/test_dataset_changes.py::"

NEEDS_A_PERSON.update(
    {
        "dataset_folders.py: delete the objects of deleted datasets with 'lakeferry gc'": provoked(
            "it takes 10,000 renamed or deleted datasets",
            f"{_CHANGES}TestCrashes::test_the_list_is_bounded",
        ),
        "dataset_folders.py: if a later version of Lakeferry wrote the file, use that version; "
        "else restore it from a backup: without it, renamed datasets have their old names, and "
        "deleted ones are there again": provoked(
            "a person has to find the backup",
            f"{_CHANGES}TestCrashes::test_a_damaged_list_is_not_guessed_at",
        ),
        "dataset_folders.py: try again when it has ended, in a minute at the latest": provoked(
            "it takes two processes that meet in one storage call",
            f"{_CHANGES}TestCrashes::test_a_hold_of_a_process_that_has_ended_stops_nobody",
        ),
        "failure_messages.py: it was renamed or deleted while the push started: 'lakeferry ls' "
        "shows its name now; the same command pushes it as a new dataset under the old "
        "name": provoked(
            "it takes two processes that meet in one storage call",
            "simulation/test_transfer_renames.py::"
            "test_a_push_to_a_dataset_that_is_changed_meanwhile",
        ),
        "dataset_folders.py: run the same command again": provoked(
            "it takes two processes that meet in one storage call",
            "unit/transfer/repository/test_dataset_changes.py::",
        ),
        "datasets.py: compare the versions of Lakeferry at both ends": (
            "a newer Lakeferry or another program has to be installed"
        ),
    }
)


def _root(witness: Witness, *names: str) -> str:
    """Return a server's root of its own, with tables below it."""
    for name in names:
        witness.lake.make(f"root/{name}")
    return witness.lake.uri("root")


@follows(
    "dataset_changes.py: 'lakeferry ls' shows the datasets",
    "dataset_changes.py: choose another name",
    "dataset_changes.py: run the command again when it has ended, or in {} s",
    "dataset_changes.py: move that folder to another place below the root first",
    "datasets.py: write private or public",
)
def a_dataset_gets_a_free_name(witness: Witness) -> None:
    root = _root(witness, "orders", "sales")
    told = witness.refused("dataset", "rename", root, "oders", "old")["remedy"]
    assert "lakeferry ls" in told
    (first, _) = witness.done("ls", root)["datasets"]
    witness.done("dataset", "visibility", root, first["name"], "public")
    witness.raises(partial(lakeferry.set_dataset_visibility, root, "orders", "all"))
    witness.returns(partial(lakeferry.set_dataset_visibility, root, "orders", "private"))
    witness.refused("dataset", "rename", root, "orders", "sales")
    witness.done("dataset", "rename", root, "orders", "old")

    record = PushRecord(open_store(root), DatasetName("sales"), None)
    record.begin(["sales/x"])
    witness.refused("dataset", "delete", root, "sales")
    record.end()
    witness.done("dataset", "delete", root, "sales", "--dry-run")
    inner = witness.lake.folder / "root/sales/inner"
    witness.lake.make("root/sales/inner")
    witness.refused("dataset", "delete", root, "sales")
    inner.rename(witness.lake.folder / "root/inner")
    witness.done("dataset", "delete", root, "sales")


@follows(
    "deletion_guard.py: bring its rows back first: lakeferry redirect disable {}; or, {}",
    "deletion_guard.py: undo that first: lakeferry redirect cancel {}; or, {}",
    "deletion_guard.py: first run 'lakeferry redirect disable' with its path (or 'redirect thaw' "
    "if it is frozen); or, {}",
)
def a_table_that_a_redirect_leads_to_is_brought_back_first(witness: Witness) -> None:
    root = _root(witness, "frozen")
    source = witness.lake.make("source")
    witness.done("redirect", "enable", source, f"{root}/orders")
    told = witness.refused("dataset", "delete", root, "orders")
    assert told["code"] == "redirect_illegal_transition"
    command = told["remedy"].partition(": ")[2].partition(";")[0]
    witness.done(*shlex.split(command)[1:])
    witness.done("dataset", "delete", root, "orders")

    witness.lake.make("other")

    def stop(what: str, done: int, total: int) -> None:
        if what == "copying data" and done == total:
            raise Interrupted("interrupted")

    move = partial(witness.lake.table("other").redirect, f"{root}/more", engine="local")
    with pytest.raises(Interrupted):
        move(observer=stop)
    remedy = witness.refused("dataset", "delete", root, "more")["remedy"]
    witness.done(*shlex.split(remedy.partition(": ")[2].partition("; or")[0])[1:])
    assert witness.done("dataset", "delete", root, "more")["changed"] is False

    witness.done("redirect", "freeze", f"{root}/frozen")
    witness.refused("dataset", "delete", root, "frozen")
    witness.done("redirect", "thaw", f"{root}/frozen")
    witness.done("dataset", "delete", root, "frozen")


@follows(
    "remotes.py: use letters, digits, '.', '_' and '-', and begin with a letter or a digit",
    "remotes.py: write for example --token-from-env ACME_TOKEN",
    "remotes.py: 'lakeferry remote remove {}' removes it; then add it again",
    "remotes.py: set {}, or give --token",
    "remotes.py: write https://host/name, or name the server: lakeferry remote add {} https://host",
    "remotes.py: delete the file, and add the remotes again",
    "remotes.py: look at the file; if it is right: chown $(id -un) {} && chmod 600 {}",
    "datasets.py: write ./{} for the folder, or the URL that 'lakeferry remote list' shows",
)
def a_server_gets_a_name(witness: Witness) -> None:
    url, token = witness.server.url, witness.token()
    witness.refused("remote", "add", "a/b", url)
    witness.done("remote", "add", "a-b", url)
    witness.refused("remote", "add", "acme", url, "--token-from-env", "lf_secret-token")
    witness.done("remote", "add", "acme", url, "--token-from-env", "ACME_TOKEN")
    witness.refused("remote", "add", "acme", "https://elsewhere.example.com")
    witness.done("remote", "remove", "acme")
    witness.done("remote", "add", "acme", url, "--token-from-env", "ACME_TOKEN")
    witness.refused("ls", "acme")
    witness.done("ls", "acme", ACME_TOKEN=token)
    witness.done("ls", "acme", "--token", token)

    (found,) = witness.lake.home.rglob("remotes.json")
    table = witness.lake.make("t")
    words = ("--token", witness.token("--scope", "write"))
    told = witness.refused("push", table, "globex/orders", *words)["remedy"]
    assert "lakeferry remote add globex" in told
    witness.done("remote", "add", "globex", url)
    witness.done("push", table, "globex/orders", *words)

    (witness.lake.home / "globex").mkdir()
    witness.refused("ls", "globex", *words)
    witness.done("ls", url, *words)
    (witness.lake.home / "globex").rmdir()

    found.chmod(0o666)
    told = witness.refused("ls", "globex", *words)["remedy"]
    command = told.partition(": ")[2]
    subprocess.run(["/bin/sh", "-c", command], check=True, cwd=found.parent)
    assert found.stat().st_mode & 0o777 == 0o600
    witness.done("ls", "globex", *words)

    found.write_text("{")
    witness.refused("ls", "globex", *words)
    found.unlink()
    witness.done("remote", "add", "globex", url)
    witness.done("ls", "globex", *words)


@follows(
    "access_tokens.py: write 1 to {} printable characters in one line",
    "remote_root.py: copy it again, as 'lakeferry token create' printed it",
    "remote_root.py: <error.get('remedy')>",
)
def a_token_has_a_name_and_is_sent(witness: Witness) -> None:
    root, url = witness.server.store.uri, witness.server.url
    witness.refused("token", "create", "--root", root, "--name", "two\nlines")
    made = witness.done("token", "create", "--root", root, "--scope", "write", "--name", "nightly")
    token = made["token"]
    witness.refused("ls", url, "--token", f"{token}…")
    witness.done("ls", url, "--token", token)
    witness.refused("dataset", "rename", url, "not-there", "other", "--token", token)
    witness.done("ls", url, "--token", token)


@follows(
    "redirect_search.py: check the path; it has to have tables below it",
    "table_search.py: give a prefix that is nearer to the tables",
)
def redirects_are_looked_for_where_tables_are(witness: Witness) -> None:
    witness.refused("redirect", "list", witness.lake.uri("nothing"))
    deep = "/".join(["d"] * 33)
    witness.lake.make(f"deep/{deep}/orders", ORDERS)
    (unreadable,) = witness.done("redirect", "list", witness.lake.uri("deep"))["unreadable"]
    witness.told(unreadable["error"])
    found = witness.done("redirect", "list", witness.lake.uri(f"deep/{deep}"))
    assert found["tables"] == 1
