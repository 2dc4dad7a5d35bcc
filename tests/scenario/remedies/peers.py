"""The other end of a push or a pull, when it lies, breaks off or has less than it says."""

from __future__ import annotations

from typing import Any

from lakeferry.storage import open_store
from lakeferry.transfer.datasets.delta.root_checkpoints import CHAIN_FOLDER
from lakeferry.transfer.datasets.stored_chain import HEAD
from tests.support.hosting import hold
from tests.support.odf import Chain
from tests.support.remedies import Witness, follows
from tests.support.transfer_server import TransferServer
from tests.unit.transfer.client.test_push_and_pull import laid_out


def _chain(number: int) -> Chain:
    """Return a dataset of its own, with two objects."""
    return Chain(b"\xed\x01" + bytes([100 + number]) * 32).append().append()


def _data(files: dict[str, bytes]) -> str:
    """Return the path of one of a dataset's objects."""
    return next(path for path in files if path.startswith("data/"))


@follows(
    "trusted_hosts.py: if the server stores its objects there, allow that host: --allow-host {}"
)
def another_host_is_allowed(witness: Witness) -> None:
    with TransferServer(laid_out(_chain(1))) as server:
        server.url_base = server.url.replace("127.0.0.1", "localhost")
        told = witness.refused("pull", server.url, witness.lake.uri("c"))["remedy"]
        witness.done("pull", server.url, witness.lake.uri("c"), *told.split()[-2:])


@follows(
    "remote_dataset.py: check the URL with the owner of the dataset",
    "remote_dataset.py: use the current URL of the dataset",
    "push_and_pull.py: pull it after something was pushed to it",
)
def the_url_of_the_dataset_is_used(witness: Witness) -> None:
    with TransferServer() as wrong, TransferServer(laid_out(_chain(2))) as right:
        words = (wrong.url, witness.lake.uri("c"))
        witness.refused("pull", *words)
        witness.done("pull", right.url, words[1])
        wrong.redirect_sockets_to = f"{right.url}/push"
        witness.refused("push", *words[::-1])
        wrong.files[HEAD] = b"<html>"
        witness.refused("push", *words[::-1])
        witness.done("push", words[1], right.url)


@follows(
    "hashes.py: transfer it again; if that doesn't help, ask the owner of the sender's dataset: "
    "its copy is damaged",
    "downloads.py: try again later",
    "downloads.py: compare the clocks of this machine, the server and the store; if they agree, "
    "ask the server's owner",
)
def an_object_that_did_not_come_is_pulled_again(witness: Witness) -> None:
    files = laid_out(_chain(3))
    path = _data(files)
    with TransferServer(files) as server:
        words = (server.url, witness.lake.uri("c"))
        server.corrupt.add(path)
        witness.refused("pull", *words)
        server.corrupt.clear()
        server.statuses[path] = [418] * 20
        witness.refused("pull", *words)
        server.statuses.clear()
        server.refusals[path] = 100
        witness.refused("pull", *words)
        server.refusals.clear()
        witness.done("pull", *words)


@follows(
    "simple_pull.py: pull it from a server that runs 'lakeferry serve'; if this is one, a proxy "
    "before it stops WebSockets"
)
def a_table_is_pulled_from_a_server(witness: Witness) -> None:
    table, url = witness.lake.make("t"), f"{witness.server.url}/as-files"
    words = ("--token", witness.token("--scope", "write"))
    witness.done("push", table, url, *words)
    top = witness.lake.folder / "t" / CHAIN_FOLDER
    files = {
        file.relative_to(top).as_posix(): file.read_bytes()
        for file in top.rglob("*")
        if file.is_file()
    }
    files[HEAD] = files[HEAD].split()[0]
    with TransferServer(files) as server:
        server.has_websocket = False
        witness.refused("pull", server.url, witness.lake.uri("c"))
    witness.done("pull", url, witness.lake.uri("c"), *words)


@follows(
    "failure_messages.py: if both are the same dataset, --force replaces the receiver's history "
    "by the sender's; a different dataset needs another place"
)
def another_history_is_replaced_by_force(witness: Witness) -> None:
    ours, theirs = witness.lake.uri("c"), _chain(4)
    hold(open_store(ours), laid_out(_chain(4).append(7)))
    with TransferServer(laid_out(theirs.append(8))) as server:
        told = witness.refused("push", ours, server.url)["remedy"]
        server.has_websocket = False
        assert told == witness.refused("pull", server.url, ours)["remedy"]
        witness.done("pull", server.url, ours, "--force")


@follows("uploads.py: pull the dataset again from a complete copy")
def a_damaged_copy_is_pulled_again(witness: Witness) -> None:
    files, url = laid_out(_chain(5)), f"{witness.server.url}/damaged-copy"
    words = ("--token", witness.token("--scope", "write"))
    damaged = witness.lake.uri("damaged")
    hold(open_store(damaged), files | {_data(files): files[_data(files)][:-1]})
    witness.refused("push", damaged, url, *words)
    with TransferServer(files) as server:
        witness.done("pull", server.url, witness.lake.uri("whole"))
    witness.done("push", witness.lake.uri("whole"), url, *words)


@follows(
    "push_client.py: push again: if it was accepted, there is nothing left to push",
    "push_client.py: push again: what has arrived isn't transferred again",
    "failure_messages.py: pull first, then push again",
)
def a_push_is_made_again(witness: Witness) -> None:
    files, ours = laid_out(_chain(6)), witness.lake.uri("c")
    hold(open_store(ours), files)
    with TransferServer() as server:
        path, words = _data(files), ("push", ours, server.url)

        def moved(name: str, message: Any) -> Any:
            heads = {"actual_head": None, "expected_head": files[HEAD].decode()}
            return {"Err": {"InvalidHead": heads}} if name == "accepted" else message

        server.edit = moved
        witness.refused(*words)
        server.edit = lambda _, message: message
        server.refusals[path] = 100
        witness.refused(*words)
        server.refusals.clear()
        server.edit = lambda name, message: (1011, "") if name == "confirmed" else message
        server.commits = False
        witness.refused(*words)
        server.edit, server.commits = lambda _, message: message, True
        witness.done(*words)


@follows("closing.py: run the same command again: what has arrived isn't transferred again")
def a_pull_that_was_cut_is_run_again(witness: Witness) -> None:
    with TransferServer(laid_out(_chain(7))) as server:
        server.edit = lambda name, message: (1000, "") if name == "urls" else message
        witness.refused("pull", server.url, witness.lake.uri("c"))
        server.edit = lambda _, message: message
        witness.done("pull", server.url, witness.lake.uri("c"))


@follows("stored_chain.py: copy {} from a complete copy of the dataset")
def a_block_that_was_lost_is_copied(witness: Witness) -> None:
    files, url = laid_out(_chain(8)), f"{witness.server.url}/lost-block"
    words = ("--token", witness.token("--scope", "write"))
    lost = f"blocks/{_chain(8).blocks[1][0]}"
    here = hold(open_store(witness.lake.uri("t")), files)
    here.delete_many([lost])
    told = witness.refused("push", here.uri, url, *words)["remedy"]
    assert told.split()[1] == lost
    here.put(lost, files[lost])
    witness.done("push", here.uri, url, *words)
    # The same at the server is its owner's to mend: who pulls is told so.
    there, lost = witness.server.store, f"lost-block/{lost}"
    there.delete_many([lost])
    told = witness.refused("pull", url, witness.lake.uri("c"), *words)["remedy"]
    assert told == "ask the owner of the dataset to repair it: it lacks files"
    there.put(lost, files[lost.partition("/")[2]])
    witness.done("pull", url, witness.lake.uri("c"), *words)
