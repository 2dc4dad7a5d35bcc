"""Writers for the tests in which several processes work on one table at once.

Each function is what one process does; it returns what was acknowledged to it.
Everything here takes and returns plain values, for processes.

All of them work at once, with one exception: stock delta-spark looks whether a
name is free and then writes it, so another writer's commit can be lost in
between. That race is delta-spark's own and is kept out by a lock on a file,
which Spark takes for itself and all others share.
"""

from __future__ import annotations

import fcntl
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from lakeferry.log import actions
from lakeferry.log.commit import Transaction
from lakeferry.storage import StoreConfig, open_config
from lakeferry.table import DeltaLog
from lakeferry.table.put_commit import Committed


@contextmanager
def turnstile(lock: Path, *, alone: bool = False) -> Iterator[None]:
    """Work beside all others who aren't alone, or alone."""
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def commit_metadata(config: StoreConfig, lock: Path, who: int, times: int) -> list[tuple[str, int]]:
    """Set a property of its own ``times`` times; conflicts are looked at again and retried."""
    log = DeltaLog(open_config(config))
    acknowledged = []
    for turn in range(times):
        name = f"lakeferry.writer.{who}"
        while True:
            read = log.state()
            configuration = {**read.metadata.configuration, name: str(turn)}
            txn_id = str(uuid.uuid4())
            metadata = actions.changed(read.metadata, configuration=configuration)
            transaction = Transaction("SET TBLPROPERTIES", txn_id, metadata=metadata)
            with turnstile(lock):
                done = log.commit(transaction, read)
            if isinstance(done, Committed):
                acknowledged.append((txn_id, done.version))
                break
    return acknowledged


def commit_nothing(config: StoreConfig, lock: Path, who: int, times: int) -> list[tuple[str, int]]:
    """Commit empty transactions, which follow anything but a change of metadata."""
    log = DeltaLog(open_config(config))
    acknowledged = []
    for _ in range(times):
        while True:
            txn_id = str(uuid.uuid4())
            transaction = Transaction("EMPTY", txn_id, {"who": str(who)})
            with turnstile(lock):
                done = log.commit(transaction, log.state())
            if isinstance(done, Committed):
                acknowledged.append((txn_id, done.version))
                break
    return acknowledged


def write_checkpoints(config: StoreConfig, lock: Path, times: int) -> list[int]:
    """Write checkpoints of whatever is newest."""
    log = DeltaLog(open_config(config))
    written = []
    for _ in range(times):
        with turnstile(lock):
            written.append(log.checkpoint().version)
    return written


def append_with_delta_rs(
    location: str, options: Mapping[str, str], lock: Path, who: int, times: int
) -> list[int]:
    """Append rows, one commit each; return the ids that were acknowledged."""
    from deltalake import CommitProperties, write_deltalake
    from deltalake.exceptions import CommitFailedError

    acknowledged = []
    for turn in range(times):
        row = who * 1_000_000 + turn
        while True:
            try:
                with turnstile(lock):
                    write_deltalake(
                        location,
                        pa.table({"id": pa.array([row], pa.int64())}),
                        mode="append",
                        storage_options=dict(options) or None,
                        commit_properties=CommitProperties(max_commit_retries=50),
                    )
            except CommitFailedError:
                # The metadata was changed meanwhile: nothing was committed.
                continue
            acknowledged.append(row)
            break
    return acknowledged
