"""The public Python API: a table, and what can be asked of it.

:class:`Table` says the same as the command line, with the same words; what it
returns has the fields that the command line prints as JSON (``as_document``).
Everything here looks at the very table that was named: a redirected source is
refused where it would have to be followed.

Numbers that are reported come from replaying the log. A checksum file is a
second witness: where it says otherwise, that is a warning.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lakeferry import engine
from lakeferry import verify as comparison
from lakeferry.engine import Observer, unobserved
from lakeferry.errors import CorruptLog, InvalidInput, LakeferryError, UnsupportedFeature
from lakeferry.log import actions, features, paths
from lakeferry.log.actions import Metadata, Protocol
from lakeferry.log.deletion_vectors import relative_path
from lakeferry.log.lines import Lines
from lakeferry.log.replay import Snapshot, State
from lakeferry.log.segment import Checkpoint, Listing, Segment
from lakeferry.storage import open_store
from lakeferry.storage.uris import resolve
from lakeferry.table import DeltaLog, load
from lakeferry.table.checkpoint import Written
from lakeferry.table.delta_log import Revision
from lakeferry.verify import Verification

PROTECTION_BOUNDARY = "delta.requireCheckpointProtectionBeforeVersion"
_FILES_BATCH_ROWS = 8_192
# Paths that are their own URI reference: nothing to decode, nothing to encode, no dot segment.
_PLAIN_PATH = r"^([A-Za-z0-9_=,+~-][A-Za-z0-9_=,+~.-]*/)*[A-Za-z0-9_=,+~-][A-Za-z0-9_=,+~.-]*$"
_VECTOR = pa.struct(
    [
        pa.field("storage_type", pa.string()),
        pa.field("path_or_inline_dv", pa.string()),
        pa.field("offset", pa.int32()),
        pa.field("size_in_bytes", pa.int32()),
        pa.field("cardinality", pa.int64()),
        pa.field("uri", pa.string()),
    ]
)
FILES = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("partition_values", pa.map_(pa.string(), pa.string())),
        pa.field("deletion_vector", _VECTOR),
    ]
)
"""The columns of :meth:`Table.files`."""
# What a document shows where the log says nothing, in the order in which people read it.
_NO_PROTOCOL: dict[str, Any] = {
    "minReaderVersion": None,
    "minWriterVersion": None,
    "readerFeatures": [],
    "writerFeatures": [],
}
_NO_METADATA: dict[str, Any] = {"id": None, "name": None, "description": None, "createdTime": None}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a table that its owner should know; ``code`` is stable."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """A checkpoint in the log; ``complete`` says whether every file of it is there."""

    version: int
    kind: str
    complete: bool


@dataclass(frozen=True, slots=True)
class RedirectEntry:
    """A redirect as the table carries it: a feature of the protocol, a property, or both."""

    feature: str | None
    property: str | None
    value: str | None


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a table is at one version. See the command ``inspect``."""

    location: str
    version: int
    protocol: Protocol
    metadata: Metadata
    num_files: int | None
    size_bytes: int | None
    earliest_version: int | None
    checkpoints: tuple[CheckpointState, ...]
    redirect: RedirectEntry | None
    boundary: int | None
    warnings: tuple[Finding, ...]

    def as_document(self) -> dict[str, Any]:
        """Return the JSON document of the command ``inspect``."""
        return {
            "location": self.location,
            "version": self.version,
            "protocol": _NO_PROTOCOL | actions.as_json(self.protocol),
            "metadata": _NO_METADATA | actions.as_json(self.metadata),
            "num_files": self.num_files,
            "size_bytes": self.size_bytes,
            "earliest_version": self.earliest_version,
            "checkpoints": [msgspec.to_builtins(found) for found in self.checkpoints],
            "redirect": None if self.redirect is None else msgspec.to_builtins(self.redirect),
            "protection": {"boundary": self.boundary},
            "warnings": [msgspec.to_builtins(warning) for warning in self.warnings],
        }


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of a table's history; what its writer didn't say is ``None``."""

    version: int
    timestamp: int
    operation: str | None
    operation_parameters: Any
    operation_metrics: Any
    user_id: str | None
    user_name: str | None
    user_metadata: Any
    engine_info: str | None
    is_blind_append: bool | None
    isolation_level: str | None
    read_version: int | None
    txn_id: str | None

    def as_document(self) -> dict[str, Any]:
        """Return one element of ``commits`` of the command ``history``."""
        return cast(dict[str, Any], msgspec.to_builtins(self))


class Table:
    """A Delta table at a place.

    ``uri`` is a local path or a URI (``file``, ``s3``, ``gs``, ``az``);
    ``storage_options`` are spelled as delta-rs spells them and beat the
    environment; ``warn`` is told in a sentence of what was wrong with the log
    and could be worked around. Nothing is asked of the store before the first
    method is called, and every call sees the table as it is then.
    """

    def __init__(
        self,
        uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Name a table."""
        self._warn = warn
        self._store = open_store(uri, storage_options)

    def __repr__(self) -> str:
        """Show where the table is; never its options, which may hold a secret."""
        return f"Table({self.uri!r})"

    @property
    def uri(self) -> str:
        """Where the table is, in Lakeferry's one spelling."""
        return self._store.uri

    def snapshot(self, version: int | None = None) -> Snapshot:
        """Return a version, or the newest, with its live files as an Arrow table."""
        snapshot = self._log().snapshot(version)
        features.check_readable(snapshot.protocol)
        return snapshot

    def inspect(self, version: int | None = None) -> Inspection:
        """Describe a version, or the newest, and what is odd about the table."""
        findings: list[Finding] = []
        log = self._log(lambda text: findings.append(Finding("checkpoint_unreadable", text)))
        found, counted = _described(log, version)
        listing = log.listing()
        checkpoints = tuple(
            CheckpointState(each.version, each.kind.value, self._is_complete(each))
            for each in listing.checkpoints
        )
        findings += _about_protocol(found)
        findings += _about_log(log, listing, checkpoints)
        findings += _about_checksum(log, listing, found, counted)
        configuration = found.metadata.configuration
        return Inspection(
            location=self.uri,
            version=found.version,
            protocol=found.protocol,
            metadata=found.metadata,
            num_files=None if counted is None else counted.num_files,
            size_bytes=None if counted is None else counted.size_bytes,
            earliest_version=listing.earliest_version(),
            checkpoints=checkpoints,
            redirect=_redirect(found),
            boundary=_whole_number(configuration.get(PROTECTION_BOUNDARY)),
            warnings=tuple(dict.fromkeys(findings)),
        )

    def history(self, limit: int | None = None, *, follow: bool = True) -> list[Commit]:
        """Return the commits that are still in the log, newest first."""
        log = self._log()
        if follow:
            _refuse_redirected(self.uri, log.state())
        return [_commit(revision) for revision in log.history(limit)]

    def files(
        self,
        version: int | None = None,
        *,
        timestamp_ms: int | None = None,
        follow: bool = True,
        engine: str = "auto",
        observer: Observer = unobserved,
    ) -> pa.RecordBatchReader:
        """Return the live files of a version, a batch at a time; the columns are :data:`FILES`.

        ``timestamp_ms`` asks for the version that was the newest at that time.
        """
        log = self._log()
        if timestamp_ms is not None:
            if version is not None:
                raise InvalidInput("a version and a timestamp at once", remedy="give one of them")
            version = log.version_at(timestamp_ms)
        snapshot, batches = self._live_files(log, version, engine, observer)
        features.check_readable(snapshot.protocol)
        if follow:
            _refuse_redirected(self.uri, snapshot)
        return pa.RecordBatchReader.from_batches(FILES, _file_batches(batches, self.uri))

    def checkpoint(self, version: int | None = None, *, dry_run: bool = False) -> Written:
        """Write a checkpoint of a version, or the newest, unless a complete one is there."""
        log = self._log()
        written = log.checkpoint(version, dry_run=dry_run)
        if not written.created:
            # One that is there says nothing about whether we understand the table.
            features.check_writable(log.state(written.version).protocol)
        return written

    def verify(
        self,
        other: Table,
        *,
        digest: bool = False,
        rows: bool = False,
        engine: str = "auto",
        observer: Observer = unobserved,
    ) -> Verification:
        """Compare the newest version of this table (``a``) with that of another (``b``).

        ``digest`` compares the bytes of files that both have, ``rows`` counts
        the rows of every file. See :mod:`lakeferry.verify` for what is equal.
        """
        a = comparison.Side(self._store, self.snapshot())
        b = comparison.Side(other._store, other.snapshot())
        if digest or rows:
            objects = a.snapshot.num_files + b.snapshot.num_files
            size_bytes = a.snapshot.size_bytes + b.snapshot.size_bytes
            if self._engine(engine, objects, size_bytes) == "spark":
                self._warn("Spark doesn't compare files yet; this process does, with equal results")
        return comparison.compare(a, b, digest=digest, rows=rows, observer=observer)

    def _log(self, warn: Callable[[str], None] | None = None) -> DeltaLog:
        return DeltaLog(self._store, warn=warn or self._warn)

    def _is_complete(self, checkpoint: Checkpoint) -> bool:
        """Look for the sidecars too, which only the checkpoint itself names."""
        if not checkpoint.complete or checkpoint.kind is not paths.Kind.V2:
            return checkpoint.complete
        alone = Segment(checkpoint.version, checkpoint, (), None, None)
        try:
            rows = load.small_rows(self._store, alone, Lines(), ("sidecar",))
            for sidecar in rows.sidecars:
                self._store.head(load.sidecar_name(self.uri, sidecar))
        except LakeferryError:
            return False
        return True

    def _engine(self, wanted: str, objects: int, size_bytes: int) -> engine.Name:
        """Return the engine for a job; without Spark ``auto`` makes do with this process."""
        chosen = engine.choose(wanted, objects, size_bytes)
        if chosen == "spark" and wanted == "auto" and not _spark_is_installed():
            self._warn("Spark or Java isn't installed; this process does the work alone")
            return "local"
        return chosen

    def _live_files(
        self, log: DeltaLog, version: int | None, wanted: str, observer: Observer
    ) -> tuple[Snapshot, Iterator[pa.RecordBatch]]:
        """Return a version, and its live files in batches, by the engine that suits its log."""
        segment = log.segment(version)
        read = [*segment.deltas, *(segment.checkpoint.files if segment.checkpoint else ())]
        if self._engine(wanted, len(read), sum(file.size_bytes for file in read)) == "spark":
            from lakeferry.engines import open_engine

            with ExitStack() as stack:
                spark = stack.enter_context(open_engine("spark"))
                plan = engine.ReplayPlan(self._store.config, segment)
                # A checkpoint that can't be read has to be worked around, below.
                with suppress(CorruptLog):
                    replayed = stack.enter_context(spark.replay(plan, observer))
                    return replayed.small, _until_read(replayed, stack.pop_all())
        snapshot = log.snapshot(version)
        return snapshot, iter(snapshot.files.to_batches())


def _described(log: DeltaLog, version: int | None) -> tuple[Snapshot | State, Snapshot | None]:
    """Return a version, and once more with its files where those can be counted.

    A table with a feature that isn't known may keep its files in a way that
    isn't known either; then its protocol and metadata are all there is to show.
    """
    try:
        snapshot = log.snapshot(version)
    except CorruptLog:
        state = log.state(version)
        _refuse_reader_version(state.protocol)
        if not features.unsupported(state.protocol):
            raise
        return state, None
    _refuse_reader_version(snapshot.protocol)
    return snapshot, snapshot


def _refuse_reader_version(protocol: Protocol) -> None:
    # Without its features, so that only the version numbers are judged.
    features.check_readable(Protocol(protocol.min_reader_version, protocol.min_writer_version))


def _about_protocol(found: Snapshot | State) -> Iterator[Finding]:
    for row in features.in_force(found.protocol):
        if not row.known:
            can = "can be read, not changed" if row.read else "can be neither read nor changed"
            yield Finding(
                "unknown_feature",
                f"{row.kind.value} feature {row.name} isn't known: the table {can}; what is "
                "shown of it may be incomplete",
            )
        elif not row.read:
            yield Finding(
                "unsupported_feature",
                f"feature {row.name} keeps commits or files outside of the log: what is shown "
                "may be incomplete",
            )
    for oddity in features.warnings(found.protocol, found.metadata.configuration):
        if oddity.oddity is not features.Oddity.ACTIVE_WITHOUT_FEATURE:
            yield Finding(oddity.oddity.name.lower(), oddity.message)
        else:
            yield Finding("property_without_feature", oddity.message)
    entry = _redirect(found)
    if entry is None:
        return
    if entry.property is None:
        yield Finding(
            "redirect_without_entry",
            f"feature {entry.feature} is in the protocol and no property says where it leads",
        )
    elif entry.feature is None:
        yield Finding(
            "property_without_feature",
            f"{entry.property} is set and the protocol lacks its feature: it blocks nobody",
        )


def _about_log(
    log: DeltaLog, listing: Listing, checkpoints: tuple[CheckpointState, ...]
) -> Iterator[Finding]:
    for each in checkpoints:
        if not each.complete:
            yield Finding(
                "checkpoint_incomplete",
                f"a file of the {each.kind} checkpoint of version {each.version} is missing",
            )
    if (hint := log.hint()) is None:
        if any(True for _ in log.store.list(paths.LAST_CHECKPOINT)):
            yield Finding(
                "last_checkpoint_unreadable",
                f"{paths.LAST_CHECKPOINT} can't be read or contradicts its own checksum; "
                "it is left aside",
            )
    elif not any(each.complete and each.version >= hint.version for each in checkpoints):
        yield Finding(
            "last_checkpoint_dangling",
            f"{paths.LAST_CHECKPOINT} names version {hint.version}, "
            "which has no complete checkpoint",
        )
    if listing.earliest_version() is None:
        yield Finding("history_broken", "the log has gaps: no older version can be rebuilt")


def _about_checksum(
    log: DeltaLog, listing: Listing, found: Snapshot | State, counted: Snapshot | None
) -> Iterator[Finding]:
    file = listing.checksums.get(found.version)
    if file is None:
        return
    checksum = load.read_checksum(log.store, file)
    if checksum is None:
        yield Finding("checksum_unreadable", f"checksum file {file.path} can't be read")
        return
    pairs: list[tuple[str, object, object]] = [
        ("protocol", checksum.protocol, found.protocol),
        ("the table's id", checksum.metadata.id, found.metadata.id),
        ("the schema", checksum.metadata.schema_string, found.metadata.schema_string),
        ("the properties", checksum.metadata.configuration, found.metadata.configuration),
    ]
    if counted is not None:
        pairs += [
            ("numFiles", checksum.num_files, counted.num_files),
            ("tableSizeBytes", checksum.table_size_bytes, counted.size_bytes),
        ]
    for name, stated, replayed in pairs:
        if stated != replayed:
            counts = f" ({stated} there, {replayed} in the log)" if type(stated) is int else ""
            yield Finding(
                "checksum_mismatch", f"{file.path} contradicts the log about {name}{counts}"
            )


def _redirect(found: Snapshot | State) -> RedirectEntry | None:
    """Return the redirect that a table carries, in whichever dialect it is written."""
    configuration = found.metadata.configuration
    for feature in sorted(features.REDIRECT_FEATURES):
        named = feature if feature in found.protocol.features else None
        # One dialect leaves out the prefix of Delta's own properties.
        for name in (f"delta.{feature}", feature):
            if name in configuration:
                return RedirectEntry(named, name, configuration[name])
        if named is not None:
            return RedirectEntry(named, None, None)
    return None


def _refuse_redirected(uri: str, found: Snapshot | State) -> None:
    entry = _redirect(found)
    if entry is not None and entry.property is not None:
        raise UnsupportedFeature(
            f"{uri} carries a redirect",
            cause="this version of Lakeferry doesn't follow redirects yet",
            remedy="use --no-follow to look at this very table",
            features=[entry.feature or entry.property],
        )


def _commit(revision: Revision) -> Commit:
    values = revision.commit_info.values if revision.commit_info else {}

    def get(name: str, kind: type) -> Any:
        value = values.get(name)
        return value if type(value) is kind else None

    return Commit(
        version=revision.version,
        timestamp=revision.timestamp,
        operation=get("operation", str),
        operation_parameters=values.get("operationParameters"),
        operation_metrics=values.get("operationMetrics"),
        user_id=get("userId", str),
        user_name=get("userName", str),
        user_metadata=values.get("userMetadata"),
        engine_info=get("engineInfo", str),
        is_blind_append=get("isBlindAppend", bool),
        isolation_level=get("isolationLevel", str),
        read_version=get("readVersion", int),
        txn_id=get("txnId", str),
    )


def _spark_is_installed() -> bool:
    has_java = "JAVA_HOME" in os.environ or shutil.which("java") is not None
    return has_java and find_spec("pyspark") is not None


def _until_read(replayed: engine.Replayed, held: ExitStack) -> Iterator[pa.RecordBatch]:
    """Yield the files, and let go of the engine after the last or when nobody wants more."""
    with held:
        yield from replayed.files()


def _file_batches(batches: Iterator[pa.RecordBatch], root: str) -> Iterator[pa.RecordBatch]:
    for batch in itertools.chain.from_iterable(map(_in_pieces, batches)):
        path, size, values, vectors = batch.columns
        if values.null_count:
            values = pa.array(
                [pairs or [] for pairs in values.to_pylist()], FILES.field("partition_values").type
            )
        yield pa.RecordBatch.from_arrays(
            [absolute_uris(path, root), size, values, _vectors(vectors, root)], schema=FILES
        )


def _in_pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    columns = batch.select(["path", "size", "partitionValues", "deletionVector"])
    for start in range(0, batch.num_rows, _FILES_BATCH_ROWS):
        yield columns.slice(start, _FILES_BATCH_ROWS)


def absolute_uris(log_paths: pa.Array, root: str) -> pa.Array:
    """Return the absolute URI that each path in the log of the table at ``root`` means."""
    plain = pc.match_substring_regex(log_paths, _PLAIN_PATH)
    joined = pc.binary_join_element_wise(root, log_paths, "/")
    if pc.all(plain).as_py():
        return joined
    unusual = pc.invert(plain)
    respelled = [_resolve(root, path) for path in log_paths.filter(unusual).to_pylist()]
    return pc.replace_with_mask(joined, unusual, pa.array(respelled, pa.string()))


def _vectors(vectors: pa.StructArray, root: str) -> pa.StructArray:
    kind, where, offset, size, cardinality = (
        pc.struct_field(vectors, name)
        for name in ("storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality")
    )
    if vectors.null_count == len(vectors):
        return pa.nulls(len(vectors), _VECTOR)
    uris = [
        _vector_uri(root, kind, path)
        for kind, path in zip(kind.to_pylist(), where.to_pylist(), strict=True)
    ]
    return pa.StructArray.from_arrays(
        [kind, where, offset, size, cardinality, pa.array(uris, pa.string())],
        fields=list(_VECTOR),
        mask=vectors.is_null(),
    )


def _vector_uri(root: str, kind: str | None, path: str) -> str | None:
    if kind in (None, "i"):
        return None
    if kind == "u":
        path = relative_path(path)
    elif kind != "p":
        raise CorruptLog("a deletion vector's descriptor can't be read", cause=f"type {kind!r}")
    return _resolve(root, path)


def _resolve(root: str, path: str) -> str:
    try:
        return resolve(root, path)
    except InvalidInput as bad:
        raise CorruptLog(
            "the log names a file that can't be anywhere", cause=f"{path!r}", path=path
        ) from bad


def _whole_number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None
