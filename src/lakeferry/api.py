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

from lakeferry import engine, inspection
from lakeferry import verify as comparison
from lakeferry.engine import Observer, unobserved
from lakeferry.errors import CorruptLog, InvalidInput, UnsupportedFeature
from lakeferry.inspection import Inspection
from lakeferry.log import features
from lakeferry.log.deletion_vectors import relative_path
from lakeferry.log.replay import Snapshot, State
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog
from lakeferry.table.checkpoint import Written
from lakeferry.table.delta_log import Revision
from lakeferry.verify import Verification

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
        log = self._log()
        with inspection.unless_unsupported(log, version):
            snapshot = log.snapshot(version)
        features.check_readable(snapshot.protocol)
        return snapshot

    def inspect(self, version: int | None = None) -> Inspection:
        """Describe a version, or the newest, and what is odd about the table."""
        return inspection.inspect(self._store, version)

    def history(self, limit: int | None = None, *, follow: bool = True) -> list[Commit]:
        """Return the commits that are still in the log, newest first."""
        log = self._log()
        with inspection.unless_unsupported(log, None):
            state = log.state()
            inspection.refuse_reader_version(state.protocol)
            if follow:
                _refuse_redirected(self.uri, state)
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
        with inspection.unless_unsupported(log, version):
            snapshot, batches = self._live_files(log, version, engine, observer)
        features.check_readable(snapshot.protocol)
        if follow:
            _refuse_redirected(self.uri, snapshot)
        return pa.RecordBatchReader.from_batches(FILES, _file_batches(batches, self.uri))

    def checkpoint(self, version: int | None = None, *, dry_run: bool = False) -> Written:
        """Write a checkpoint of a version, or the newest, unless a complete one is there."""
        log = self._log()
        with inspection.unless_unsupported(log, version, features.check_writable):
            return log.checkpoint(version, dry_run=dry_run)

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
        snapshot = log.snapshot_of(segment)
        return snapshot, iter(snapshot.files.to_batches())


def _refuse_redirected(uri: str, found: Snapshot | State) -> None:
    entry = inspection.redirect_entry(found)
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
    respelled = [comparison.uri_of(root, path) for path in log_paths.filter(unusual).to_pylist()]
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
    return comparison.uri_of(root, path)
