"""The matrix of released clients: which table features each reads and writes. Data.

A line whose ``tried`` names a release is proved by ``tests/compat/test_client_matrix.py``, or
``test_oldest_spark.py``, which ask that release about every feature. All other lines name the file
or the page that they were taken from, with its version; a version that wasn't looked up has no
line, and is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lakeferry.clients.client_lines import PROTOCOL_TEXT, ClientLine, RedirectSupport
from lakeferry.log.commit_writer import CommitWriter, KnownWriter, Release
from lakeferry.log.features import FEATURES, FeatureKind
from lakeferry.version import LAKEFERRY_VERSION

MATRIX_TEST = "tests/compat/test_client_matrix.py"
_WHO_SEES_WHAT = "tests/compat/test_who_sees_what.py"
_STOCK = "tests/compat/test_stock_spark_follows.py"
_OLDEST = "tests/compat/test_oldest_spark.py"
_BY_MATRIX = "docs/compatibility.md#which-spark-does-what"

ALWAYS_KNOWN = frozenset({"appendOnly", "invariants"})
"""The features that every writer knows: version 2 of the protocol for writers implies them."""
_READER_WRITER = frozenset(
    row.name for row in FEATURES.values() if row.kind is FeatureKind.READER_WRITER
)


def _spark_source(tags: str) -> str:
    return (
        f"delta-io/delta {tags}: spark/src/main/scala/org/apache/spark/sql/delta/TableFeature.scala"
    )


# --- delta-spark --------------------------------------------------------------

_BY_NAME = "by its name in a session with Unity Catalog's connector; its path alone is refused"
_SPARK_2_4 = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
    }
)
_SPARK_3_0 = _SPARK_2_4 | {"domainMetadata", "icebergCompatV1", "v2Checkpoint"}
_SPARK_3_1 = _SPARK_3_0 | {"allowColumnDefaults", "clustering", "icebergCompatV2"}
_SPARK_3_2 = _SPARK_3_1 | {
    "inCommitTimestamp-preview",
    "rowTracking",
    "typeWidening-preview",
    "vacuumProtocolCheck",
}
_SPARK_3_3 = (_SPARK_3_2 - {"inCommitTimestamp-preview"}) | {
    "checkpointProtection",
    "coordinatedCommits-preview",
    "identityColumns",
    "inCommitTimestamp",
    "typeWidening",
    "variantType-preview",
}
_SPARK_4_0 = _SPARK_3_3 | {"variantShredding-preview", "variantType"}
_SPARK_4_1 = _SPARK_4_0 | {"materializePartitionColumns", "variantShredding"}
_SPARK_4_3 = _SPARK_4_1 | {"geospatial", "geospatial-dev", "icebergCompatV3"}
# A preview that spark.databricks.delta.adaptiveMetadataTree.preview.enabled can switch off.
_SPARK_4_4 = _SPARK_4_3 | {"adaptiveMetadata-preview"}


def _delta_spark(
    versions: str,
    since: Release,
    until: Release,
    features: frozenset[str],
    tags: str,
    *,
    by_name: str | None = None,
    redirects: RedirectSupport = RedirectSupport.NONE,
    redirects_source: str = PROTOCOL_TEXT,
    tried: str | None = None,
    proof: str = MATRIX_TEST,
) -> ClientLine:
    """Return a line of delta-spark; ``by_name`` is its feature for managed tables."""
    partly = {} if by_name is None else {by_name: _BY_NAME}
    source = _spark_source(tags)
    return ClientLine(
        "delta-spark",
        versions,
        source if tried is None else f"{proof}; {source}",
        KnownWriter.DELTA_SPARK,
        since,
        until,
        features & _READER_WRITER,
        features,
        partly,
        partly,
        redirects=redirects,
        redirects_source=redirects_source,
        opens_old_versions_alone=False,
        tried=tried,
    )


_OPTION, _IGNORED = RedirectSupport.OPTION, RedirectSupport.IGNORED_OPTION
_MANAGED, _MANAGED_PREVIEW = "catalogManaged", "catalogOwned-preview"
_DELTA_SPARK = (
    ClientLine(
        "delta-spark",
        "before 2.4",
        PROTOCOL_TEXT,
        KnownWriter.DELTA_SPARK,
        until=(2, 4, 0),
        writes=ALWAYS_KNOWN,
        complete=False,
    ),
    _delta_spark("2.4", (2, 4, 0), (3, 0, 0), _SPARK_2_4, "v2.4.0"),
    _delta_spark("3.0", (3, 0, 0), (3, 1, 0), _SPARK_3_0, "v3.0.0"),
    _delta_spark("3.1", (3, 1, 0), (3, 2, 0), _SPARK_3_1, "v3.1.0"),
    _delta_spark("3.2", (3, 2, 0), (3, 3, 0), _SPARK_3_2, "v3.2.0 and v3.2.1"),
    # It has redirects' states and rules for commits, but nothing that opens another table.
    _delta_spark(
        "3.3",
        (3, 3, 0),
        (4, 0, 0),
        _SPARK_3_3,
        "v3.3.0 to v3.3.3",
        redirects=_IGNORED,
        redirects_source=_OLDEST,
        tried="3.3.3",
        proof=_OLDEST,
    ),
    _delta_spark(
        "4.0.0",
        (4, 0, 0),
        (4, 0, 1),
        _SPARK_4_0,
        "v4.0.0",
        by_name=_MANAGED_PREVIEW,
        redirects=_OPTION,
        redirects_source=_BY_MATRIX,
    ),
    _delta_spark(
        "4.0.1",
        (4, 0, 1),
        (4, 1, 0),
        _SPARK_4_0,
        "v4.0.1",
        by_name=_MANAGED,
        redirects=_OPTION,
        redirects_source=_BY_MATRIX,
    ),
    _delta_spark(
        "4.1",
        (4, 1, 0),
        (4, 2, 0),
        _SPARK_4_1,
        "v4.1.0",
        by_name=_MANAGED,
        redirects=_OPTION,
        redirects_source=_BY_MATRIX,
    ),
    _delta_spark(
        "4.2",
        (4, 2, 0),
        (4, 3, 0),
        _SPARK_4_1,
        "v4.2.0",
        by_name=_MANAGED,
        redirects=_OPTION,
        redirects_source="docs/compatibility.md#the-clients-that-wrote-a-table",
    ),
    _delta_spark(
        "4.3",
        (4, 3, 0),
        (4, 4, 0),
        _SPARK_4_3,
        "v4.3.0 and v4.3.1",
        by_name=_MANAGED,
        redirects=_OPTION,
        redirects_source="delta-io/delta v4.3.1: spark/src/main/scala/org/apache/spark/sql/delta/"
        "redirect/TableRedirect.scala",
    ),
    _delta_spark(
        "4.4",
        (4, 4, 0),
        (4, 5, 0),
        _SPARK_4_4,
        "v4.4.0",
        by_name=_MANAGED,
        redirects=_OPTION,
        redirects_source=_STOCK,
        tried="4.4.0",
    ),
)

# --- delta-rs, Polars -----------------------------------------------------------

_QUERY = "QueryBuilder reads it; to_pyarrow_table, to_pyarrow_dataset and to_pandas refuse it"
_RUST_1_0 = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "generatedColumns",
        "invariants",
        "timestampNtz",
    }
)
_RUST_1_4 = _RUST_1_0 | {"deletionVectors"}
_RUST_1_6 = _RUST_1_4 | {"variantType", "variantType-preview"}
_RUST_1_6_3 = _RUST_1_6 | {"columnMapping", "v2Checkpoint"}
_RUST_NOW = _RUST_1_6_3 | {"timestampNanos"}
_NO_NOTES: Mapping[str, str] = {}


_IN_PARTS = ("columnMapping", "deletionVectors", "v2Checkpoint", "timestampNanos")


def _delta_rs(
    versions: str,
    since: Release,
    until: Release,
    features: frozenset[str],
    tags: str,
    *,
    not_written: frozenset[str] = frozenset(),
    partly: Mapping[str, str] = _NO_NOTES,
    tried: str | None = None,
) -> ClientLine:
    source = (
        f"delta-io/delta-rs {tags}: crates/core/src/kernel/transaction/protocol.rs, "
        "python/deltalake/table.py"
    )
    in_parts = {name: _QUERY for name in _IN_PARTS if name in features}
    return ClientLine(
        "delta-rs",
        versions,
        source if tried is None else MATRIX_TEST,
        KnownWriter.DELTA_RS,
        since,
        until,
        features & _READER_WRITER,
        features - not_written,
        {**in_parts, **partly},
        partly,
        redirects_source=PROTOCOL_TEXT if tried is None else _WHO_SEES_WHAT,
        opens_old_versions_alone=None if tried is None else True,
        tried=tried,
    )


_NANOS = {"timestampNanos": "in builds with nanosecond-timestamps"}
_DELTA_RS = (
    _delta_rs("1.0 to 1.3", (1, 0, 0), (1, 4, 0), _RUST_1_0, "python-v1.0.0 to python-v1.3.3"),
    _delta_rs("1.4 and 1.5", (1, 4, 0), (1, 6, 0), _RUST_1_4, "python-v1.4.0 to python-v1.5.1"),
    _delta_rs(
        "1.6.0",
        (1, 6, 0),
        (1, 6, 1),
        _RUST_1_6 | {"columnMapping"},
        "python-v1.6.0",
        not_written=frozenset({"columnMapping"}),
        partly=_NANOS,
    ),
    _delta_rs(
        "1.6.1 and 1.6.2",
        (1, 6, 1),
        (1, 6, 3),
        _RUST_1_6 | {"columnMapping"},
        "python-v1.6.1 and python-v1.6.2",
        partly=_NANOS,
    ),
    _delta_rs("1.6.3 to 1.6.5", (1, 6, 3), (1, 6, 6), _RUST_1_6_3, "python-v1.6.3", partly=_NANOS),
    _delta_rs("1.6.6", (1, 6, 6), (1, 6, 7), _RUST_NOW, "", tried="1.6.6"),
)
_POLARS = (
    # Its commits are those of delta-rs.
    ClientLine(
        "Polars",
        "2.1",
        MATRIX_TEST,
        since=(2, 1, 0),
        until=(2, 2, 0),
        reads=frozenset({"deletionVectors", "timestampNtz", "variantType", "variantType-preview"}),
        writes=_RUST_NOW,
        redirects_source=_WHO_SEES_WHAT,
        opens_old_versions_alone=True,
        tried="2.1.0",
    ),
)

# --- The kernels, and what stands on them ------------------------------------------

_RUST_KERNEL_READS = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
_RUST_KERNEL_WRITES = (_RUST_KERNEL_READS - {"typeWidening", "typeWidening-preview"}) | {
    "appendOnly",
    "changeDataFeed",
    "clustering",
    "domainMetadata",
    "inCommitTimestamp",
    "invariants",
    "materializePartitionColumns",
    "rowTracking",
}
_THROUGH_CATALOG = "if the program asks the catalog for the table; its path alone is refused"
_RUST_KERNEL_MANAGED = dict.fromkeys((_MANAGED, _MANAGED_PREVIEW), _THROUGH_CATALOG)


def _rust_kernel(
    versions: str,
    since: Release,
    until: Release,
    tag: str,
    *more: str,
) -> ClientLine:
    return ClientLine(
        "delta-kernel-rs",
        versions,
        f"delta-io/delta-kernel-rs {tag}: kernel/src/table_features/mod.rs",
        since=since,
        until=until,
        reads=_RUST_KERNEL_READS | (frozenset(more) & _READER_WRITER),
        writes=_RUST_KERNEL_WRITES | frozenset(more),
        partly_reads=_RUST_KERNEL_MANAGED,
        partly_writes=_RUST_KERNEL_MANAGED,
    )


_SHREDDING = "variantShredding"
_DELTA_KERNEL_RS = (
    _rust_kernel("0.21 and 0.22", (0, 21, 0), (0, 23, 0), "v0.21.0 and v0.22.0"),
    _rust_kernel("0.23", (0, 23, 0), (0, 24, 0), "v0.23.0", "icebergCompatV3"),
    _rust_kernel(
        "0.24 to 0.26",
        (0, 24, 0),
        (0, 27, 0),
        "v0.24.0 to v0.26.0",
        _SHREDDING,
        "icebergCompatV3",
    ),
    _rust_kernel(
        "0.27",
        (0, 27, 0),
        (0, 28, 0),
        "v0.27.1",
        _SHREDDING,
        "icebergCompatV3",
        "allowColumnDefaults",
    ),
)
_DUCKDB = (
    # Its commits don't name its version. What is said is of the release that is tried.
    ClientLine(
        "DuckDB",
        "1.5.5",
        MATRIX_TEST,
        KnownWriter.DUCKDB,
        reads=_RUST_KERNEL_READS,
        writes=_RUST_KERNEL_WRITES,
        redirects_source=_WHO_SEES_WHAT,
        opens_old_versions_alone=True,
        tried="1.5.5",
    ),
)

_UNUSED = "while the table doesn't use it"
_JAVA_4_0 = frozenset(
    {
        "appendOnly",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "icebergCompatV2",
        "icebergWriterCompatV1",
        "inCommitTimestamp",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
_JAVA_4_0_NOT_WRITTEN = frozenset(
    {
        "typeWidening",
        "typeWidening-preview",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
_JAVA_4_1 = _JAVA_4_0 | {
    "allowColumnDefaults",
    "checkpointProtection",
    "icebergCompatV3",
    "icebergWriterCompatV3",
    "materializePartitionColumns",
}
_JAVA_4_2 = _JAVA_4_1 | {
    "changeDataFeed",
    "collations",
    "collations-preview",
    "geospatial",
    "variantShredding",
}
_JAVA_IF_UNUSED = ("checkConstraints", "generatedColumns", "identityColumns", "invariants")


def _java_kernel(
    client: str,
    writer: KnownWriter,
    versions: str,
    since: Release,
    until: Release,
    features: frozenset[str],
    tags: str,
    *,
    not_written: frozenset[str] = frozenset(),
    managed: bool = True,
) -> ClientLine:
    """Return a line of the kernel for Java, or of a program whose writes are the kernel's."""
    unused = (*_JAVA_IF_UNUSED, *({"changeDataFeed"} - features))
    through = {_MANAGED: _THROUGH_CATALOG} if managed else {}
    return ClientLine(
        client,
        versions,
        f"delta-io/delta {tags}: kernel/kernel-api/src/main/java/io/delta/kernel/internal/"
        "tablefeatures/TableFeatures.java",
        writer,
        since,
        until,
        features & _READER_WRITER,
        features - not_written,
        through,
        {**dict.fromkeys(unused, _UNUSED), **through},
    )


_KERNEL, _FLINK = KnownWriter.KERNEL, KnownWriter.FLINK
_JAVA_LINES = (
    ("4.0", (4, 0, 0), (4, 1, 0), _JAVA_4_0, "v4.0.0", _JAVA_4_0_NOT_WRITTEN, False),
    ("4.1", (4, 1, 0), (4, 2, 0), _JAVA_4_1, "v4.1.0", frozenset[str](), True),
    ("4.2 to 4.4", (4, 2, 0), (4, 5, 0), _JAVA_4_2, "v4.2.0 to v4.4.0", frozenset[str](), True),
)
_DELTA_KERNEL_JAVA = tuple(
    _java_kernel(
        client, writer, label, since, until, known, tags, not_written=not_written, managed=managed
    )
    for client, writer in (("Delta Kernel for Java", _KERNEL), ("Flink", _FLINK))
    for label, since, until, known, tags, not_written, managed in _JAVA_LINES
    # Flink's sink on the kernel came with 4.1.
    if writer is not _FLINK or since >= (4, 1, 0)
)

# --- Delta Standalone, Trino, Databricks ----------------------------------------------

_STANDALONE_WRITES = frozenset({"appendOnly", "invariants"})
_STANDALONE_SOURCE = (
    "delta-io/delta v3.2.0: connectors/standalone/src/main/scala/io/delta/standalone/internal/"
    "actions/actions.scala (reader version 1, writer version 2)"
)
_STANDALONE = (
    ClientLine(
        "Delta Standalone",
        "all",
        _STANDALONE_SOURCE,
        KnownWriter.STANDALONE,
        writes=_STANDALONE_WRITES,
        max_reader_version=1,
        max_writer_version=2,
    ),
    ClientLine(
        "Flink",
        "before 4.1 (on Delta Standalone)",
        _STANDALONE_SOURCE,
        _FLINK,
        until=(4, 1, 0),
        writes=_STANDALONE_WRITES,
        max_reader_version=1,
        max_writer_version=2,
    ),
)

_TRINO_READS = frozenset({"columnMapping", "deletionVectors", "timestampNtz"})
_TRINO_WRITES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "invariants",
        "timestampNtz",
    }
)
_TRINO_449 = _TRINO_READS | {"v2Checkpoint", "vacuumProtocolCheck"}
_TRINO_450 = _TRINO_449 | {"typeWidening", "typeWidening-preview"}
_TRINO_450 |= {"variantType", "variantType-preview"}
_VACUUM = frozenset({"vacuumProtocolCheck"})
_TRINO_MOVED = 460
"""In a later release its features have a file of their own."""


def _trino(first: int, before: int, reads: frozenset[str], writes: frozenset[str]) -> ClientLine:
    last = before - 1
    versions = f"{first} to {last}" if last > first else f"{first}"
    file = "DeltaLakeSchemaSupport.java"
    if before > _TRINO_MOVED:
        file += ", in newer ones DeltaLakeTableFeatures.java"
    return ClientLine(
        "Trino",
        versions,
        f"trinodb/trino {versions}: plugin/trino-delta-lake/src/main/java/io/trino/plugin/"
        f"deltalake/transactionlog/{file}",
        KnownWriter.TRINO,
        (first, 0, 0),
        (before, 0, 0),
        reads,
        writes,
    )


_TRINO = (
    _trino(427, 444, _TRINO_READS, _TRINO_WRITES),
    _trino(444, 449, _TRINO_READS | {"v2Checkpoint"}, _TRINO_WRITES),
    _trino(449, 450, _TRINO_449, _TRINO_WRITES | _VACUUM),
    _trino(450, 454, _TRINO_450, _TRINO_WRITES | _VACUUM),
    _trino(454, 484, _TRINO_450, _TRINO_WRITES | _VACUUM | {"deletionVectors"}),
)

# --- Lakeferry ------------------------------------------------------------------------

_LAKEFERRY = ClientLine(
    "Lakeferry",
    LAKEFERRY_VERSION,
    f"{MATRIX_TEST}; src/lakeferry/log/features.py",
    KnownWriter.LAKEFERRY,
    reads=frozenset(row.name for row in FEATURES.values() if row.read) & _READER_WRITER,
    writes=frozenset(row.name for row in FEATURES.values() if row.read and row.write),
    partly_reads={_MANAGED: _THROUGH_CATALOG},
    partly_writes={_MANAGED: _THROUGH_CATALOG},
    refuses_to_read=frozenset(row.name for row in FEATURES.values() if not row.read)
    - _READER_WRITER,
    redirects=RedirectSupport.FULL,
    redirects_source=_WHO_SEES_WHAT,
    opens_old_versions_alone=True,
    tried=LAKEFERRY_VERSION,
)

KNOWN_LINES: tuple[ClientLine, ...] = (
    _LAKEFERRY,
    *_DELTA_SPARK,
    *_DELTA_RS,
    *_POLARS,
    *_DUCKDB,
    *_DELTA_KERNEL_RS,
    *_STANDALONE,
    *_DELTA_KERNEL_JAVA,
    *_TRINO,
)
"""All lines; of one client the older ones first."""


def unknown_line(client: str, version: str | None = None) -> ClientLine:
    """Return the line of a client, or of a version, about which nothing is known.

    It reads tables that ask nothing of readers, and writes those that ask nothing but what all
    writers know.
    """
    return ClientLine(
        client,
        version or "unknown",
        PROTOCOL_TEXT,
        writes=ALWAYS_KNOWN,
        complete=False,
        redirects=RedirectSupport.UNKNOWN,
    )


def line_of_writer(writer: CommitWriter) -> ClientLine:
    """Return the line of a client that wrote a commit; an unknown one if there is none."""
    for line in KNOWN_LINES:
        if line.is_about(writer):
            return line
    name = writer.name or "a client that doesn't say its name"
    found = unknown_line(name if writer.kind is None else writer.kind.value, writer.version)
    release = writer.release
    first = [line.since for line in KNOWN_LINES if line.writer is writer.kind and line.since]
    if writer.kind is not None and release is not None and first and release < min(first):
        # Redirects are younger than what is known of the client.
        return replace(found, redirects=RedirectSupport.NONE)
    return found


def client_lines_of(client: str, version: str | None = None) -> tuple[ClientLine, ...]:
    """Return the lines of a client by its name, or of one of its versions."""
    found = tuple(line for line in KNOWN_LINES if line.client.lower() == client.lower())
    if version is None:
        return found
    release = CommitWriter(None, None, version).release
    if release is None:
        return ()
    return tuple(line for line in found if line.has_release(release))
