"""Remedies of transfers, servers and stores that no command line can be made to print here."""

from __future__ import annotations

from tests.support.remedies import NEEDS_A_PERSON

_RACE = "it takes two processes that meet in one storage call; the simulations provoke it"
_LATE = "it takes minutes of silence; tests/unit/transfer/test_session_pull.py has a clock for it"
_BROKEN_STORE = "it takes a store that breaks its own rules: tests/unit/storage has some"
_FILE_SYSTEM = "it takes another file system; tests/unit/storage/test_local.py pretends one"
_PEER = "it takes a peer that breaks the protocol; tests/unit/transfer and the fuzzer have some"
_WEBHOOK = "lakeFS is told, and nobody at a command line; tests/unit/server/test_app.py asks"

NEEDS_A_PERSON.update(
    {
        "server/app.py: check both clocks; an event that was recorded isn't taken": _WEBHOOK,
        "server/app.py: nothing is to be done: its export was asked for then": _WEBHOOK,
        "server/serving.py: see its log": "it takes a machine that is too slow to start a server",
        "storage/durable.py: Move the table to another file system.": _FILE_SYSTEM,
        "storage/durable.py: Try again; if it stays so, use a file system whose folders can be "
        "locked.": _FILE_SYSTEM,
        "storage/lakefs.py: Lakeferry can't rely on this server.": _BROKEN_STORE,
        "storage/lakefs.py: Try again: it may have been replaced meanwhile.": _RACE,
        "storage/lakefs.py: Use s3://{}/BRANCH/… with lakeFS as the endpoint (--storage-option "
        "aws_endpoint=…) and its key.": (
            "it takes a real lakeFS: tests/scenario/test_lakefs_store.py writes through its gateway"
        ),
        "storage/lakefs_write.py: run the command again": _RACE,
        "storage/multipart.py: See whether it is up and its endpoint is right, then try again.": (
            "the store has to go away in the middle of a large upload"
        ),
        "storage/objects.py: Lakeferry can't rely on this store.": _BROKEN_STORE,
        "storage/objects.py: Use a store with conditional puts.": _BROKEN_STORE,
        "storage/store.py: Try again: what is read may have been replaced meanwhile.": _RACE,
        "transfer/chain.py: pull first; or replace the other chain with --force": _PEER,
        "transfer/dataset.py: look at the head, and push again": (
            "the store has to go away in the middle of a commit; the simulations let it"
        ),
        "transfer/dataset.py: pull first, then push again": _RACE,
        "transfer/dataset.py: send them, then commit again": _PEER,
        "transfer/delta_blocks.py: compact the table's small files, then clean up its log": (
            "it takes a commit with hundreds of thousands of files"
        ),
        "transfer/delta_dataset.py: if no version of the table here needs the file, delete it, "
        "and try again": _PEER,
        "transfer/delta_dataset.py: its sender's chain is damaged, or the table here is": _PEER,
        "transfer/delta_judging.py: restore them where the table comes from": (
            "a sender finds out before a receiver does; against a pull of a table that is damaged "
            "at its server only the server's owner helps"
        ),
        "transfer/delta_roots.py: look at what is there, and choose another place": _RACE,
        "transfer/dialects.py: ask for them in pages": _PEER,
        "transfer/ends.py: compare the clocks of both machines, or transfer fewer at a time": (
            "two clocks have to differ; tests/unit/transfer/test_session_pull.py has two"
        ),
        "transfer/gc.py: try again when less is going on": (
            "it takes a slow store; tests/unit/transfer/test_gc.py has one"
        ),
        "transfer/remote.py: ask the server's owner for its certificate": (
            "another person has to act, and a certificate has to be installed"
        ),
        "transfer/remote.py: try again later, or from elsewhere": _LATE,
        "transfer/remote.py: try again: what has arrived isn't transferred a second time": (
            "the connection has to break in between: tests/scenario/test_transfer_faults.py cuts it"
        ),
        "transfer/repository.py: use a store with working conditional puts (If-Match, "
        "If-None-Match)": _BROKEN_STORE,
        "transfer/session.py: run it again: what has arrived isn't transferred a second time": (
            _LATE
        ),
        "transfer/tarball.py: it has to be a tar of plain files, each named by its block's hash": (
            _PEER
        ),
        "transfer/tokens.py: try again": "64 random bits have to come twice",
    }
)
