"""What must hold of every log, whoever wrote it and whatever happened meanwhile.

:class:`Witness` watches a log change and checks all of it. :func:`reading_of`
brings a snapshot of Lakeferry's into the form in which :mod:`tests.support.naive`
answers, so that both can be compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lakeferry.log import arrow_versions
from lakeferry.log.actions import Metadata, Protocol
from lakeferry.log.replay import Snapshot
from tests.support import naive
from tests.support.naive import Reading, Row


def protocol_row(protocol: Protocol) -> Row:
    """Return a protocol as naive replay has it."""
    features = {
        "readerFeatures": protocol.reader_features,
        "writerFeatures": protocol.writer_features,
    }
    return {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        **{name: list(value) for name, value in features.items() if value is not None},
        **_said(protocol.unknown),
    }


def _said(unknown: Mapping[str, object]) -> Row:
    return {name: value for name, value in unknown.items() if value is not None}


def metadata_row(metadata: Metadata) -> Row:
    """Return metadata as naive replay has it."""
    optional = {
        "name": metadata.name,
        "description": metadata.description,
        "createdTime": metadata.created_time,
    }
    further = metadata.unknown.get("format")
    return {
        "id": metadata.id,
        "schemaString": metadata.schema_string,
        "partitionColumns": list(metadata.partition_columns),
        "configuration": dict(metadata.configuration),
        **{name: value for name, value in optional.items() if value is not None},
        **_said({k: v for k, v in metadata.unknown.items() if k != "configuration"}),
        "format": {
            "provider": metadata.format_provider,
            **_said(further if isinstance(further, dict) else {}),
            "options": dict(metadata.format_options),
        },
    }


def reading_of(snapshot: Snapshot) -> Reading:
    """Return a snapshot in the form of naive replay."""
    info = snapshot.commit_info
    return Reading(
        snapshot.version,
        protocol_row(snapshot.protocol),
        metadata_row(snapshot.metadata),
        {name: domain.configuration for name, domain in snapshot.domains.items()},
        {name: (txn.version, txn.last_updated) for name, txn in snapshot.txns.items()},
        naive.in_order(_rows(snapshot.files), naive.ADD_FIELDS),
        naive.in_order(_rows(snapshot.tombstones), naive.REMOVE_FIELDS),
        None if info is None else dict(info.values),
    )


def _rows(table: Any) -> list[Row]:
    return arrow_versions.to_rows(table)


_NOT_IN_CHECKPOINTS = ("dataChange", "stats")


def whichever_base(reading: Reading) -> Reading:
    """Return what a version says no matter which checkpoint it was read from.

    A checkpoint's file actions change no data, their statistics may be missing or
    parsed, and its tombstones have neither statistics nor tags.
    """
    keep = tuple(name for name in naive.ADD_FIELDS if name not in _NOT_IN_CHECKPOINTS)
    gone = tuple(name for name in naive.REMOVE_FIELDS if name not in (*_NOT_IN_CHECKPOINTS, "tags"))
    future = "ofTheFuture"
    return replace(
        reading,
        protocol={key: value for key, value in reading.protocol.items() if key != future},
        metadata={key: value for key, value in reading.metadata.items() if key != future},
        files=naive.in_order(reading.files, keep),
        tombstones=naive.in_order(reading.tombstones, gone),
    )


# ------------------------------------------------------------------ over a lifetime


class Broken(AssertionError):
    """An invariant doesn't hold."""


TOMBSTONE_RETENTION_MS = 7 * 24 * 60 * 60 * 1000
_COMMIT = re.compile(r"_delta_log/([0-9]{20})\.json")
_HINT = "_delta_log/_last_checkpoint"


class Witness:
    """Watches a log from its first object to its last, and says when something can't be.

    ``saw`` after each change, ``ended`` once nothing runs any more. What actors
    were told goes into ``acknowledged``, ``refused`` and ``in_doubt``, by the
    ``txnId`` in the commit's provenance.

    * a version that was ever visible stays, byte for byte;
    * versions follow each other without a gap;
    * every checkpoint says what the commits say, up to expired tombstones;
    * every checksum file says what the commits say;
    * the hint names a checkpoint that is there, whole;
    * in-commit timestamps grow;
    * an acknowledged commit is in the log once, a refused one never, one in
      doubt at most once.
    """

    def __init__(self, objects: Mapping[str, bytes], root: str) -> None:
        """Begin with what is there."""
        self._root = root
        self._commits = commits_of(objects)
        self._truth: dict[int, Reading] = {}
        self._acknowledged: dict[str, int] = {}
        self._refused: set[str] = set()
        self._in_doubt: set[str] = set()

    def acknowledged(self, txn_id: str, version: int) -> None:
        """Note that an actor was told that its commit is that version."""
        self._acknowledged[txn_id] = version

    def refused(self, txn_id: str) -> None:
        """Note that an actor was told that its commit was not made."""
        self._refused.add(txn_id)

    def in_doubt(self, txn_id: str) -> None:
        """Note that an actor was told that nobody knows."""
        self._in_doubt.add(txn_id)

    def saw(self, objects: Mapping[str, bytes], changed: str, now_ms: int) -> None:
        """Check what a change of one object may have broken."""
        match = _COMMIT.fullmatch(changed)
        if match:
            self._check_commit(objects, int(match.group(1)))
        elif changed == _HINT:
            self._check_hint(objects)
        elif changed.endswith(".crc"):
            self._check_checksum(objects, changed)
        elif ".checkpoint." in changed:
            self._check_checkpoints(objects, int(changed.split("/")[1][:20]), now_ms)

    def ended(self, objects: Mapping[str, bytes], now_ms: int) -> None:
        """Check everything once more, now that nobody writes."""
        for version in commits_of(objects):
            self._check_commit(objects, version)
        for name in objects:
            if name.endswith(".crc"):
                self._check_checksum(objects, name)
        for version in self._commits:
            self._check_checkpoints(objects, version, now_ms)
        self._check_hint(objects)
        self._check_promises(objects)

    def truth(self, objects: Mapping[str, bytes], version: int) -> Reading:
        """Return a version as its commits alone say it; it is computed once and stays."""
        if version not in self._truth:
            self._truth[version] = naive.replay(
                objects, version, root=self._root, base=(), compacted=False
            )
        return self._truth[version]

    def check_reading(self, objects: Mapping[str, bytes], found: Reading, now_ms: int) -> None:
        """Raise unless ``found`` is what its version's commits say."""
        expected = whichever_base(self.truth(objects, found.version))
        same = whichever_base(found)
        missing = [row for row in expected.tombstones if row not in same.tombstones]
        oldest = now_ms - TOMBSTONE_RETENTION_MS
        if any(row.get("deletionTimestamp", 0) > oldest for row in missing):
            raise Broken(f"version {found.version} lacks tombstones: {missing}")
        expected = replace(
            expected, tombstones=[row for row in expected.tombstones if row not in missing]
        )
        if same != expected:
            raise Broken(f"version {found.version} is\n{same}\nand should be\n{expected}")

    def _check_commit(self, objects: Mapping[str, bytes], version: int) -> None:
        now = commits_of(objects)
        for known, data in self._commits.items():
            if now.get(known) != data:
                raise Broken(f"commit {known} is gone or was changed")
        if sorted(now) != list(range(len(now))):
            raise Broken(f"versions have a gap: {sorted(now)}")
        self._commits = now
        info = self.truth(objects, version).commit_info or {}
        own = info.get("inCommitTimestamp")
        if own is not None and version:
            before = self.truth(objects, version - 1).commit_info or {}
            if before.get("inCommitTimestamp", own - 1) >= own:
                raise Broken(
                    f"the in-commit timestamp of {version} isn't later than the one before"
                )
        if info.get("txnId") in self._refused:
            raise Broken(f"{info['txnId']} was refused, and is version {version}")

    def _check_checkpoints(self, objects: Mapping[str, bytes], version: int, now_ms: int) -> None:
        for base in naive.bases(objects, version):
            if base and int(base[0].split("/")[1][:20]) == version:
                found = naive.replay(objects, version, root=self._root, base=base)
                self.check_reading(objects, found, now_ms)

    def _check_checksum(self, objects: Mapping[str, bytes], name: str) -> None:
        version = int(name.split("/")[1][:20])
        truth = self.truth(objects, version)
        said = json.loads(objects[name])
        size = sum(row["size"] for row in truth.files)
        if (said["numFiles"], said["tableSizeBytes"]) != (len(truth.files), size):
            raise Broken(f"{name} says {said}, and files are {truth.files}")
        if naive.checksum(objects, version) != (truth.protocol, truth.metadata):
            raise Broken(f"{name} says {said}, and it is {truth.protocol}, {truth.metadata}")
        for field, known in (
            ("setTransactions", {(app, *txn) for app, txn in truth.txns.items()}),
            ("domainMetadata", set(truth.domains.items())),
        ):
            if field not in said:
                continue
            stated = {
                (item["appId"], item["version"], item.get("lastUpdated"))
                if "appId" in item
                else (item["domain"], item["configuration"])
                for item in said[field]
            }
            if stated != known:
                raise Broken(f"{name} says {field} are {stated}, and they are {known}")

    def _check_hint(self, objects: Mapping[str, bytes]) -> None:
        if _HINT not in objects:
            return
        version = json.loads(objects[_HINT])["version"]
        bases = naive.bases(objects, version)
        if not bases[0] or int(bases[0][0].split("/")[1][:20]) != version:
            raise Broken(f"the hint names {version}, which has no whole checkpoint")

    def _check_promises(self, objects: Mapping[str, bytes]) -> None:
        made: dict[str, list[int]] = {}
        for version in self._commits:
            info = self.truth(objects, version).commit_info or {}
            made.setdefault(info.get("txnId", ""), []).append(version)
        for txn_id, version in self._acknowledged.items():
            if made.get(txn_id) != [version]:
                raise Broken(f"{txn_id} was acknowledged as {version}, and is {made.get(txn_id)}")
        for txn_id in self._refused & set(made):
            raise Broken(f"{txn_id} was refused, and is {made[txn_id]}")
        for txn_id in self._in_doubt & set(made):
            if len(made[txn_id]) > 1:
                raise Broken(f"{txn_id} was in doubt, and is {made[txn_id]}")


def commits_of(objects: Mapping[str, bytes]) -> dict[int, bytes]:
    """Return the commits of a log by version."""
    matches = ((_COMMIT.fullmatch(name), data) for name, data in objects.items())
    return {int(match.group(1)): data for match, data in matches if match}
