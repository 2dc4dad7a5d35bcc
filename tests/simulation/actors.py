"""The actors of simulations: functions that do what programs do to a table.

An actor tells its witness what it was told about each of its commits. To add
one, write a function of :class:`~tests.support.simulation.Actor`; a test adds it
to a simulation. Functions here that return an actor take its settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lakeferry.errors import (
    CommitStateUnknown,
    ObjectNotFound,
    StorageUnavailable,
    VersionNotAvailable,
)
from lakeferry.log import actions
from lakeferry.log.actions import DomainMetadata, Txn
from lakeferry.log.commit import Transaction
from lakeferry.log.conflicts import Conflict
from lakeferry.log.replay import TableState
from tests.support import naive
from tests.support.invariants import Broken, commits_of, reading_of
from tests.support.simulation import Actor, Behaviour

ATTEMPTS = 4


def writer(actor: Actor) -> None:
    """Commit changes of metadata, protocol, domains and transaction ids, and empty commits."""
    for _ in range(ATTEMPTS):
        log = actor.log
        read = log.state()
        txn_id = actor.unique("txn")
        change = actor.chance.choice(CHANGES)
        transaction = change(actor, read, txn_id)
        try:
            result = log.commit(transaction, read)
        except CommitStateUnknown:
            actor.witness.in_doubt(txn_id)
            raise
        except StorageUnavailable:
            # Anything but a commit in doubt promises that there is none.
            actor.witness.refused(txn_id)
            raise
        if isinstance(result, Conflict):
            actor.witness.refused(txn_id)
        else:
            actor.witness.acknowledged(txn_id, result.version)


def _set_property(actor: Actor, read: TableState, txn_id: str) -> Transaction:
    configuration = dict(read.metadata.configuration) | {actor.name: txn_id}
    metadata = actions.changed(read.metadata, configuration=configuration)
    return Transaction("SET TBLPROPERTIES", txn_id, metadata=metadata)


def _keep_time(actor: Actor, read: TableState, txn_id: str) -> Transaction:
    configuration = dict(read.metadata.configuration) | {"delta.enableInCommitTimestamps": "true"}
    return Transaction(
        "SET TBLPROPERTIES",
        txn_id,
        protocol=_with_features(read, "inCommitTimestamp"),
        metadata=actions.changed(read.metadata, configuration=configuration),
    )


def _use_v2(actor: Actor, read: TableState, txn_id: str) -> Transaction:
    configuration = dict(read.metadata.configuration) | {"delta.checkpointPolicy": "v2"}
    return Transaction(
        "SET TBLPROPERTIES",
        txn_id,
        protocol=_with_features(read, "v2Checkpoint", reader=True),
        metadata=actions.changed(read.metadata, configuration=configuration),
    )


def _upgrade(actor: Actor, read: TableState, txn_id: str) -> Transaction:
    feature = actor.chance.choice(("appendOnly", "domainMetadata"))
    return Transaction("UPGRADE PROTOCOL", txn_id, protocol=_with_features(read, feature))


def _with_features(read: TableState, *names: str, reader: bool = False) -> actions.Protocol:
    before = read.protocol
    # Naming the first feature means naming all that older versions imply.
    implied = () if before.min_writer_version == 7 else ("appendOnly", "invariants")
    writers = dict.fromkeys([*(before.writer_features or implied), *names])
    readers = dict.fromkeys([*(before.reader_features or ()), *(names if reader else ())])
    return actions.changed(
        before,
        min_reader_version=3 if readers else before.min_reader_version,
        min_writer_version=7,
        reader_features=tuple(readers) if readers else None,
        writer_features=tuple(writers),
    )


def _domain(actor: Actor, read: TableState, txn_id: str) -> Transaction:
    name = actor.chance.choice(("a", "b"))
    domain = DomainMetadata(name, txn_id, removed=actor.chance.random() < 0.3)
    return Transaction("WRITE", txn_id, domains=(domain,))


def _txn(actor: Actor, read: TableState, txn_id: str) -> Transaction:
    app = actor.chance.choice((actor.name, "shared"))
    txn = Txn(app, actor.chance.randrange(1000), actor.clock())
    return Transaction("STREAMING UPDATE", txn_id, txns=(txn,))


def _empty(actor: Actor, read: TableState, txn_id: str) -> Transaction:
    return Transaction("WRITE", txn_id)


Change = Callable[[Actor, TableState, str], Transaction]
CHANGES: tuple[Change, ...] = (
    *(_set_property, _keep_time, _use_v2, _upgrade, _domain, _domain, _txn, _empty, _empty),
)


def foreign_appender(actor: Actor) -> None:
    """Append and remove files as another engine would: whole log read, next version put."""
    for _ in range(ATTEMPTS):
        txn_id = actor.unique("file")
        for _ in range(20):
            objects = _download(actor)
            newest = naive.newest_version(objects)
            body = _appended(actor, objects, txn_id)
            name = f"_delta_log/{newest + 1:020d}.json"
            if _put(actor, txn_id, name, body):
                actor.witness.acknowledged(txn_id, newest + 1)
                break
        else:
            actor.witness.refused(txn_id)


def _put(actor: Actor, txn_id: str, name: str, body: bytes) -> bool:
    try:
        if actor.store.put_if_absent(name, body):
            return True
        return actor.store.get(name) == body
    except StorageUnavailable as down:
        if not down.fields["outcome_unknown"] and down.message.startswith("PUT"):
            actor.witness.refused(txn_id)
        else:
            actor.witness.in_doubt(txn_id)
        raise


def _download(actor: Actor) -> dict[str, bytes]:
    names = [info.path for info in actor.store.list("_delta_log/", stop_before="_delta_log/_")]
    commits = [name for name in names if name.endswith(".json") and name.count(".") == 1]
    try:
        return dict(zip(commits, actor.store.get_many(commits), strict=True))
    except ObjectNotFound as gone:
        raise Broken(f"a listed commit isn't there: {gone}") from gone


def _appended(actor: Actor, objects: dict[str, bytes], txn_id: str) -> bytes:
    state = naive.replay(objects, base=())
    info: dict[str, Any] = {"timestamp": actor.clock(), "operation": "WRITE", "txnId": txn_id}
    if state.metadata["configuration"].get("delta.enableInCommitTimestamps") == "true":
        before = (state.commit_info or {}).get("inCommitTimestamp", 0)
        info["inCommitTimestamp"] = max(actor.clock(), before + 1)
    lines: list[dict[str, Any]] = [{"commitInfo": info}]
    if state.files and actor.chance.random() < 0.4:
        gone = actor.chance.choice(state.files)
        kept = {name: gone[name] for name in ("path", "deletionVector") if name in gone}
        removal = {"deletionTimestamp": actor.clock(), "dataChange": True}
        lines.append({"remove": kept | removal})
    add = {
        "path": f"{txn_id}.parquet",
        "partitionValues": {},
        "size": actor.chance.randrange(1, 1000),
        "modificationTime": actor.clock(),
        "dataChange": True,
        "stats": '{"numRecords":1}',
        "tags": None,
    }
    lines.append({"add": add})
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def checkpointer(actor: Actor) -> None:
    """Write checkpoints of the newest version and of older ones."""
    for _ in range(ATTEMPTS):
        newest = actor.log.segment().version
        version = actor.chance.choice((None, actor.chance.randint(0, newest)))
        written = actor.log.checkpoint(version)
        if version is not None and written.version != version:
            raise Broken(f"asked for a checkpoint of {version}, got {written.version}")


def reader(actor: Actor) -> None:
    """Load snapshots at random versions and times, and compare each with the commits."""
    newest = 0
    for _ in range(ATTEMPTS):
        snapshot = actor.log.snapshot()
        if snapshot.version < newest:
            raise Broken(f"read version {newest}, and then {snapshot.version} as the newest")
        newest = snapshot.version
        small = actor.log.small_snapshot(newest)
        if (small.protocol, small.metadata) != (snapshot.protocol, snapshot.metadata):
            raise Broken(f"two readings of version {newest} differ")
        chosen = actor.log.snapshot(actor.chance.randint(0, newest))
        for found in (snapshot, chosen):
            actor.witness.check_reading(actor.objects, reading_of(found), actor.clock())
        _travel(actor)


def _travel(actor: Actor) -> None:
    """Ask for the version at a time that has passed, and compare with the commits' own times."""
    objects = actor.objects
    last = actor.witness.truth(objects, max(commits_of(objects)))
    timed = last.metadata["configuration"].get("delta.enableInCommitTimestamps") == "true"
    moment = actor.clock() - actor.chance.randrange(1, 100_000)
    try:
        version = actor.log.version_at(moment)
    except VersionNotAvailable:
        return
    own = actor.witness.truth(actor.objects, version).commit_info or {}
    if timed and own.get("inCommitTimestamp", moment) > moment:
        raise Broken(f"version {version} is younger than {moment}")


ACTORS: tuple[Behaviour, ...] = (writer, foreign_appender, checkpointer, reader)
