"""Datasets at both ends of a push or a pull: names, places, and files that are in the way."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import deltalake
import pyarrow as pa

import lakeferry
from lakeferry.api.table import parse_rate
from lakeferry.storage import open_store
from lakeferry.storage.uris import local_path
from lakeferry.transfer.datasets.delta.delta_dataset import FIRST_PULL_CLAIM
from lakeferry.transfer.datasets.delta.root_checkpoints import CHAIN_FOLDER
from lakeferry.transfer.datasets.stored_chain import HEAD
from tests.scenario.remedies.tables import leave_to_a_compacted_log
from tests.support.history import Append
from tests.support.hosting import hold
from tests.support.lake import ORDERS
from tests.support.odf import Chain
from tests.support.remedies import Witness, follows
from tests.support.serving import serving
from tests.unit.transfer.client.test_push_and_pull import laid_out


def _writing(witness: Witness, name: str) -> tuple[str, tuple[str, str]]:
    """Return a dataset's URL at the server, and the words that let one push there."""
    return f"{witness.server.url}/{name}", ("--token", witness.token("--scope", "write"))


@follows(
    "blocks_of_log.py: restore the missing commits from a copy, or write a checkpoint of "
    "its newest version first"
)
def a_table_with_a_gap_that_a_compacted_log_fills_gets_a_checkpoint(witness: Witness) -> None:
    table = leave_to_a_compacted_log(witness)
    url, words = _writing(witness, "compacted")
    witness.refused("push", table, url, *words)
    witness.done("checkpoint", table)
    witness.done("push", table, url, *words)


@follows(
    "rate_limit.py: write how many bytes per second: 512K, 10MB, 1.5GiB",
    "remote_dataset.py: choose 1 to 1000",
    "remote_dataset.py: choose 1 or more",
    "remote_dataset.py: use private or public",
)
def a_push_has_numbers_that_make_sense(witness: Witness) -> None:
    table = witness.lake.make("t")
    url, words = _writing(witness, "numbers")
    told = witness.refused("push", table, url, *words, "--limit-rate", "fast")["message"]
    assert "512K, 10MB" in told
    witness.raises(partial(parse_rate, "fast"))
    push = partial(lakeferry.Table(table).push, url, token=words[1])
    witness.raises(partial(push, parallel=0))
    witness.raises(partial(push, limit_rate=0))
    witness.raises(partial(push, visibility="secret"))
    witness.returns(partial(push, parallel=1, limit_rate=1 << 30, visibility="public"))
    witness.done("push", table, url, *words, "--limit-rate", "10MB")


@follows(
    "server_root.py: write a number and a unit, such as 12h or 7d",
    "server_root.py: use read or write",
)
def a_token_has_a_life_and_a_scope(witness: Witness) -> None:
    root = witness.server.store.uri
    witness.raises(partial(lakeferry.create_token, root, scope="all"))
    witness.returns(partial(lakeferry.create_token, root, scope="write"))
    witness.raises(partial(lakeferry.create_token, root, expires="soon"))
    witness.returns(partial(lakeferry.create_token, root, expires="12h"))


@follows(
    "running_server.py: write https://host, or http://host",
    "repository.py: give --root a folder, or a place in an object store",
)
def a_server_is_started_with_an_address_and_a_root(witness: Witness) -> None:
    folder = witness.lake.folder
    root = witness.lake.uri("server")
    witness.refused("serve", "--root", root, "--port", "0", "--public-url", "host")
    witness.refused("serve", "--root", "lakefs://repo/main/server", "--port", "0")
    with serving(folder, {}, "--public-url", "https://host"):
        witness.done("token", "create", "--root", root)


@follows(
    "local_dataset.py: choose another place",
    "push_and_pull.py: check the path; if a pull was interrupted, run the same pull again to "
    "complete it",
)
def a_name_and_a_place_that_are_taken_are_changed(witness: Witness) -> None:
    table = witness.lake.make("t")
    url, words = _writing(witness, "taken")
    witness.done("push", table, url, *words)
    told = witness.refused("push", table, f"{url}/below", *words)["remedy"]
    assert told == "choose another name for the dataset"
    hold(open_store(witness.lake.uri("odf")), laid_out(Chain(b"\xed\x01" + bytes(32)).append()))
    witness.refused("pull", url, witness.lake.uri("odf"), "--force", *words)
    begun = witness.lake.folder / "begun"
    (begun / "_delta_log").mkdir(parents=True)
    (begun / "_delta_log" / "_begun").write_text("")
    witness.refused("push", begun.as_uri(), url, "--no-follow", *words)
    witness.done("push", table, f"{url}-2/below", *words)
    witness.done("pull", url, witness.lake.uri("c"), *words)


@follows(
    "failure_messages.py: use the dataset's name in the repository",
    "odf.py: choose another name for the dataset",
    "delta_dataset.py: choose another name for the dataset",
    "failure_messages.py: choose another name for the dataset",
)
def a_dataset_keeps_its_name_and_another_gets_another(witness: Witness) -> None:
    url, words = _writing(witness, "kept")
    first, other = (
        Chain(b"\xed\x01" + b"\1" * 32).append(),
        Chain(b"\xed\x01" + b"\2" * 32).append(),
    )
    one, two = witness.lake.uri("one"), witness.lake.uri("two")
    hold(open_store(one), laid_out(first))
    hold(open_store(two), laid_out(other))
    witness.done("push", one, url, *words)
    witness.refused("push", one, f"{url}-2", *words)
    witness.done("push", one, url, *words)
    witness.refused("push", two, url, "--force", *words)
    witness.done("push", two, f"{url}-2", *words)


@follows("delta_dataset.py: delete {}/{}: the chain is then made again")
def a_damaged_head_is_deleted(witness: Witness) -> None:
    table = witness.lake.make("t")
    url, words = _writing(witness, "damaged-head")
    witness.done("push", table, url, *words)
    head = (witness.lake.folder / "t" / CHAIN_FOLDER / HEAD).read_text()
    (witness.lake.folder / "t" / CHAIN_FOLDER / HEAD).write_text(f"{head.split()[0]} what?")
    told = witness.refused("push", table, url, *words)["remedy"]
    (witness.lake.folder / "t" / told.split()[1].rstrip(":")).unlink()
    witness.done("push", table, url, *words)


@follows("delta_dataset.py: restore the log, or delete {}")
def a_log_that_is_gone_is_restored(witness: Witness) -> None:
    table, log = witness.lake.make("t"), witness.lake.folder / "t" / "_delta_log"
    url, words = _writing(witness, "log-gone")
    witness.done("push", table, url, *words)
    saved = {file: file.read_bytes() for file in log.glob("*.*") if file.is_file()}
    for file in saved:
        file.unlink()
    witness.refused("push", table, url, "--no-follow", *words)
    for file, data in saved.items():
        file.write_bytes(data)
    witness.done("push", table, url, *words)


@follows(
    "failure_messages.py: restore the missing data files of the newest version here; delete the "
    "table's _delta_log/_lakeferry/transfer/refs/head, so that Lakeferry looks for the files "
    "again; then push again"
)
def a_file_that_is_missing_is_restored(witness: Witness) -> None:
    table = witness.lake.make("t", ORDERS.then(Append(2)))
    url, words = _writing(witness, "file-missing")
    files = witness.lake.run("files", table).lines
    path = Path(local_path(files[-1]["path"]))
    path.rename(witness.lake.folder / "saved")
    told = witness.refused("push", table, url, *words)["remedy"]
    assert told.startswith("restore the missing data files"), told
    (witness.lake.folder / "saved").rename(path)
    (
        witness.lake.folder / "t" / told.partition("delete the table's ")[2].partition(",")[0]
    ).unlink()
    witness.done("push", table, url, *words)


@follows(
    "delta_dataset.py: if no version of the table here needs it, delete it, and try again",
    "failure_messages.py: the server's log names the file that is in the way: if nobody needs it, "
    "ask the server's administrator to delete it, and push again",
)
def a_file_in_the_way_is_deleted(witness: Witness) -> None:
    lake = witness.lake
    table, copy = lake.uri("t"), lake.uri("c")
    url, words = _writing(witness, "in-the-way")
    deltalake.write_deltalake(lake.folder / "t", pa.table({"id": [1]}))
    witness.done("push", table, url, *words)
    witness.done("pull", url, copy, *words)
    deltalake.write_deltalake(lake.folder / "t", pa.table({"id": [2]}), mode="append")
    new = {each.name for each in (lake.folder / "t").glob("*.parquet")} - {
        each.name for each in (lake.folder / "c").glob("*.parquet")
    }
    there = Path(witness.server.store.uri.removeprefix("file://")) / "in-the-way" / new.pop()
    there.write_bytes(b"another")
    told = witness.refused("push", table, url, *words)["remedy"]
    assert "administrator to delete it, and push again" in told
    assert there.name in witness.server.shown()
    there.unlink()
    witness.done("push", table, url, *words)
    here = lake.folder / "c" / there.name
    here.write_bytes(b"another")
    witness.refused("pull", url, copy, *words)
    here.unlink()
    witness.done("pull", url, copy, *words)


@follows(
    "named_files.py: copy the table to a place of its own with "
    "'lakeferry redirect enable', and transfer the copy"
)
def a_table_with_absolute_paths_is_copied_first(witness: Witness) -> None:
    lake = witness.lake
    deltalake.write_deltalake(lake.folder / "t", pa.table({"id": [1]}))
    log = lake.folder / "t" / "_delta_log" / f"{0:020}.json"
    name = next((lake.folder / "t").glob("*.parquet"))
    log.write_text(log.read_text().replace(f'"path":"{name.name}"', f'"path":"{name.as_uri()}"'))
    url, words = _writing(witness, "absolute")
    witness.refused("push", lake.uri("t"), url, *words)
    witness.done("redirect", "enable", lake.uri("t"), lake.uri("c"))
    witness.done("push", lake.uri("c"), url, *words)


@follows("failure_messages.py: wait until that push ends, or push again in {} seconds")
def a_name_that_an_unfinished_first_push_holds_is_waited_for(witness: Witness) -> None:
    table = witness.lake.make("t")
    url, words = _writing(witness, "held")
    # A server that was killed, elsewhere: nobody can tell whether it still runs.
    store = witness.server.store
    store.put(f"held/{FIRST_PULL_CLAIM}", b"ffffffff-1-1")
    mark = Path(local_path(store.uri)) / "held" / FIRST_PULL_CLAIM
    begun_s = mark.stat().st_mtime
    os.utime(mark, (begun_s - 60, begun_s - 60))
    told = witness.refused("push", table, f"{url}/below", *words)["remedy"]
    left_s = int(told.removesuffix(" seconds").rpartition(" ")[2])
    assert 0 < left_s <= 60
    os.utime(mark, (begun_s - 60 - left_s, begun_s - 60 - left_s))
    witness.done("push", table, f"{url}/below", *words)
