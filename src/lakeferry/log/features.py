"""The registry of table features: what each means, and what Lakeferry can do with it.

Implements the protocol's "Table Features", "Reader Version Requirements", "Writer Version
Requirements" and "Valid Feature Names in Table Features". It also has names that only an RFC or
an engine knows. :data:`FEATURES` is the only table; everything else in this module is a query
on it.

Our three abilities mean:

* **carry**: copying the bytes of the log and the data copies the whole table. This isn't true
  if commits or file lists are outside the log.
* **read**: we get the right live files of a version, sizes, partition values and deletion
  vectors. We read logs, not rows, so a feature that only changes what is inside data files
  needs no support.
* **write**: the commits that we make (metadata, protocol, empty, backfilled, files replaced by
  files with equal content) and our checkpoints keep the feature's promises. We never commit new
  rows, so we can't break promises about new rows (constraints, generated and identity columns).

We never guess about a feature that isn't in the table. If only writers must know it, every
reader may ignore it, so we carry and read it, but don't write. If readers must know it, we
support none of the three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial

from lakeferry.errors import UnsupportedFeature
from lakeferry.log.actions import READER_FEATURES_VERSION, WRITER_FEATURES_VERSION, Protocol


class FeatureKind(Enum):
    """Who has to know a feature."""

    WRITER = "writer"
    READER_WRITER = "reader-writer"


class Drop(Enum):
    """What has to happen before a feature can leave the protocol."""

    NEVER = "it can't be dropped"
    PROTOCOL_ONLY = "nothing but the protocol changes"
    UNUSED = "refused while the schema, the properties or a domain use it"
    PROPERTIES = "its properties are removed"
    DOMAIN = "its metadata domain is removed"
    FILE_ACTIONS = "live files are committed again without the fields of the feature"
    CLASSIC_CHECKPOINT = "the newest checkpoint becomes a classic one"
    REWRITE = "data files that use it are rewritten"
    TRUNCATE = "history before the protected version is truncated"


@dataclass(frozen=True, slots=True)
class Feature:
    """One row of the registry.

    ``legacy`` holds the reader and the writer version that imply the feature without naming it.
    ``active_by`` is the property that activates the feature, if it has one of ``active_values``
    (any value if that is empty); a property that ends in a dot stands for all that begin with
    it. ``leaves_traces`` tells whether history that used the feature misleads a client that
    doesn't know it, so that dropping needs protected checkpoints. ``duty`` says what our
    commits must do to keep the feature's promise.
    """

    name: str
    kind: FeatureKind
    legacy: tuple[int, int] | None = None
    requires: tuple[str, ...] = ()
    active_by: str | None = None
    active_values: tuple[str, ...] = ("true",)
    leaves_traces: bool = False
    carry: bool = True
    read: bool = True
    write: bool = True
    drop: Drop = Drop.NEVER
    duty: str = ""
    known: bool = True

    @property
    def droppable(self) -> bool:
        """Whether the feature can be dropped."""
        return self.drop is not Drop.NEVER

    def is_active(self, configuration: Mapping[str, str]) -> bool:
        """Return True if the table's properties activate the feature.

        Return False for features that the schema or the protocol alone activates, because
        properties don't show those.
        """
        if self.active_by is None:
            return False
        if self.active_by.endswith("."):
            return any(key.startswith(self.active_by) for key in configuration)
        value = configuration.get(self.active_by)
        return value is not None and (not self.active_values or value.lower() in self.active_values)


_w = partial(Feature, kind=FeatureKind.WRITER)
# Reader-writer features leave traces unless their row says otherwise, as in delta-spark.
_rw = partial(Feature, kind=FeatureKind.READER_WRITER, leaves_traces=True)
# Commits, or lists of files, may be outside the log, where we don't look.
_w_elsewhere = partial(_w, carry=False, read=False, write=False)
_rw_elsewhere = partial(_rw, carry=False, read=False, write=False)

_KEEP_IDS = "a file that is committed again keeps baseRowId and defaultRowCommitVersion"
_KEEP_RECORDS = "every add has numRecords in its statistics"
_CATALOG_REQUIRES = ("inCommitTimestamp", "vacuumProtocolCheck")
_ADAPTIVE_REQUIRES = ("columnMapping", "deletionVectors", "domainMetadata", "rowTracking")

_TABLE = (
    # Features that version numbers imply.
    _w(
        "appendOnly",
        legacy=(1, 2),
        active_by="delta.appendOnly",
        drop=Drop.PROPERTIES,
        duty="no data is removed",
    ),
    _w("invariants", legacy=(1, 2)),
    _w("checkConstraints", legacy=(1, 3), active_by="delta.constraints.", drop=Drop.UNUSED),
    _w(
        "changeDataFeed",
        legacy=(1, 4),
        active_by="delta.enableChangeDataFeed",
        drop=Drop.PROPERTIES,
    ),
    _w("generatedColumns", legacy=(1, 4)),
    _rw(
        "columnMapping",
        legacy=(2, 5),
        active_by="delta.columnMapping.mode",
        active_values=("id", "name"),
        drop=Drop.REWRITE,
        duty="statistics and partition values carry physical names",
    ),
    _w("identityColumns", legacy=(1, 6)),
    # Features that must be named.
    _w("allowColumnDefaults"),
    _w(
        "checkpointProtection",
        active_by="delta.requireCheckpointProtectionBeforeVersion",
        active_values=(),
        drop=Drop.TRUNCATE,
        duty="checkpoints before the protected version are neither removed nor made blindly",
    ),
    _w(
        "clustering",
        requires=("domainMetadata",),
        drop=Drop.DOMAIN,
        duty="clustering columns keep their statistics",
    ),
    _w("collations", requires=("domainMetadata",), duty="the schema keeps its collations"),
    _w("collations-preview", requires=("domainMetadata",), duty="the schema keeps its collations"),
    _w("columnMappingUsageTracking", requires=("columnMapping",)),
    _rw("deletionVectors", active_by="delta.enableDeletionVectors", drop=Drop.REWRITE),
    _w("domainMetadata", drop=Drop.UNUSED),
    _rw("geospatial", drop=Drop.UNUSED),
    _rw("geospatial-dev", drop=Drop.UNUSED),
    _w(
        "icebergCompatV1",
        requires=("columnMapping",),
        active_by="delta.enableIcebergCompatV1",
        duty=_KEEP_RECORDS,
    ),
    _w(
        "icebergCompatV2",
        requires=("columnMapping",),
        active_by="delta.enableIcebergCompatV2",
        duty=_KEEP_RECORDS,
    ),
    _w(
        "icebergCompatV3",
        requires=("columnMapping", "rowTracking"),
        active_by="delta.enableIcebergCompatV3",
        duty=_KEEP_RECORDS,
    ),
    # Not written: they have a list of allowed features, and the ones that we add aren't in it.
    _w(
        "icebergWriterCompatV1",
        requires=("icebergCompatV2",),
        active_by="delta.enableIcebergWriterCompatV1",
        write=False,
    ),
    _w(
        "icebergWriterCompatV3",
        requires=("icebergCompatV3",),
        active_by="delta.enableIcebergWriterCompatV3",
        write=False,
    ),
    _w(
        "inCommitTimestamp",
        active_by="delta.enableInCommitTimestamps",
        drop=Drop.PROPERTIES,
        duty="commitInfo comes first and its inCommitTimestamp only grows",
    ),
    # Not written: its properties had other names, which no current engine knows.
    _w("inCommitTimestamp-preview", write=False),
    _w(
        "materializePartitionColumns",
        active_by="delta.enableMaterializePartitionColumnsFeature",
        drop=Drop.PROPERTIES,
        duty="rewritten files contain their partition columns",
    ),
    _w(
        "rowTracking",
        requires=("domainMetadata",),
        active_by="delta.enableRowTracking",
        drop=Drop.FILE_ACTIONS,
        duty=_KEEP_IDS,
    ),
    # An RFC that no engine implements: the log is an ordinary one, but rules for writers are
    # open.
    _rw("timestampNanos", requires=("timestampNtz",), write=False),
    _rw("timestampNtz"),
    _rw("typeWidening", active_by="delta.enableTypeWidening", drop=Drop.REWRITE),
    _rw("typeWidening-preview", active_by="delta.enableTypeWidening", drop=Drop.REWRITE),
    _rw(
        "v2Checkpoint",
        active_by="delta.checkpointPolicy",
        active_values=("v2",),
        drop=Drop.CLASSIC_CHECKPOINT,
    ),
    _rw(
        "vacuumProtocolCheck",
        drop=Drop.PROTOCOL_ONLY,
        duty="the writer protocol is checked before files are deleted",
    ),
    _rw("variantShredding", requires=("variantType",), active_by="delta.enableVariantShredding"),
    _rw("variantShredding-preview", active_by="delta.enableVariantShredding"),
    _rw("variantType"),
    _rw("variantType-preview"),
    # Tables whose commits or file lists are partly outside the log.
    _rw_elsewhere("adaptiveMetadata", requires=_ADAPTIVE_REQUIRES),
    _rw_elsewhere(
        "adaptiveMetadata-preview",
        requires=("catalogManaged", *_ADAPTIVE_REQUIRES),
    ),
    _rw_elsewhere("catalogManaged", requires=_CATALOG_REQUIRES),
    _rw_elsewhere("catalogOwned-preview", requires=_CATALOG_REQUIRES),
    _w_elsewhere(
        "coordinatedCommits-preview",
        requires=_CATALOG_REQUIRES,
        active_by="delta.coordinatedCommits.commitCoordinator-preview",
        active_values=(),
    ),
    _w_elsewhere(
        "managedCommit",
        requires=("inCommitTimestamp",),
        active_by="delta.managedCommit.commitOwner",
        active_values=(),
    ),
    # Redirects, in both spellings. The log itself is an ordinary one. The redirect, not the
    # feature, decides which clients are sent elsewhere and which may commit here.
    _rw(
        "redirectReaderWriter",
        active_by="delta.redirectReaderWriter",
        active_values=(),
        leaves_traces=False,
        drop=Drop.PROPERTIES,
    ),
    _w(
        "redirectWriterOnly",
        active_by="delta.redirectWriterOnly",
        active_values=(),
        drop=Drop.PROPERTIES,
    ),
    _rw(
        "redirectReaderWriter-preview",
        active_by="delta.redirectReaderWriter-preview",
        active_values=(),
        leaves_traces=False,
        drop=Drop.PROPERTIES,
    ),
    _w(
        "redirectWriterOnly-preview",
        active_by="delta.redirectWriterOnly-preview",
        active_values=(),
        drop=Drop.PROPERTIES,
    ),
)

FEATURES: Mapping[str, Feature] = {feature.name: feature for feature in _TABLE}
"""All known features by name. Names are case-sensitive, as in engines."""

REDIRECT_FEATURES = frozenset(name for name in FEATURES if name.startswith("redirect"))
"""The features of all redirect dialects."""
REDIRECT_PROPERTIES = frozenset(
    {"lakeferry.redirect", *REDIRECT_FEATURES, *(f"delta.{name}" for name in REDIRECT_FEATURES)}
)
"""The properties in which redirect entries are, in all dialects."""

MANAGED = "catalogManaged"
"""The feature by which a catalog decides about a table's commits."""
CATALOG_FEATURES = frozenset({MANAGED, "catalogOwned-preview"})
"""The same feature by its present and its former name."""
GONE_WITH_CATALOG = frozenset({"vacuumProtocolCheck"})
"""Features that a catalog requires, and on which nothing in a log depends."""
TABLE_ID_PROPERTY = "io.unitycatalog.tableId"
"""The property with the id that Unity Catalog has given to a managed table."""
CATALOG_PROPERTIES = frozenset({TABLE_ID_PROPERTY, f"delta.feature.{MANAGED}"})
"""The properties that bind a table to its catalog."""


def feature(name: str, *, of_readers: bool) -> Feature:
    """Return the registry's row for ``name``, or a row for an unknown feature.

    ``of_readers`` tells whether the protocol requires it of readers; nothing else is known
    about an unknown feature.
    """
    known = FEATURES.get(name)
    if known is not None:
        return known
    return Feature(
        name,
        FeatureKind.READER_WRITER if of_readers else FeatureKind.WRITER,
        leaves_traces=of_readers,
        carry=not of_readers,
        read=not of_readers,
        write=False,
        known=False,
    )


def implied_features(protocol: Protocol) -> frozenset[str]:
    """Return every feature in force, whether named or implied by a version number.

    ``(2, 5)`` and ``(3, 7)`` with the same six names give the same set. A name in a list counts
    even if the version number doesn't allow the list: the writer meant that clients must know
    the feature.
    """
    return protocol.features | _implied_by_versions(protocol)


def _implied_by_versions(protocol: Protocol) -> frozenset[str]:
    # From version 7 on writers name each feature, also legacy ones, and nothing is implied.
    if protocol.min_writer_version >= WRITER_FEATURES_VERSION:
        return frozenset()
    return frozenset(
        row.name
        for row in _TABLE
        if row.legacy is not None
        and row.legacy[0] <= protocol.min_reader_version
        and row.legacy[1] <= protocol.min_writer_version
    )


def in_force(protocol: Protocol) -> tuple[Feature, ...]:
    """Return the rows of :func:`implied_features`, by name."""
    readers = frozenset(protocol.reader_features or ())
    return tuple(
        feature(name, of_readers=name in readers) for name in sorted(implied_features(protocol))
    )


def unsupported_features(protocol: Protocol, *, asks_catalog: bool = False) -> tuple[str, ...]:
    """Return the names of the features in force that we can't write; empty if we support all.

    An unknown version number counts as a feature named like ``minReaderVersion=4``.
    ``asks_catalog``: the table is read and written as its catalog decides.
    """
    return _beyond(protocol, writers=True) + tuple(
        row.name
        for row in in_force(protocol)
        if not (row.read and row.write) and not (asks_catalog and row.name == MANAGED)
    )


def catalog_managed(protocol: Protocol) -> tuple[str, ...]:
    """Return the features by which a catalog controls the table's commits; usually none."""
    return tuple(sorted(CATALOG_FEATURES & implied_features(protocol)))


def check_carriable(protocol: Protocol) -> None:
    """Raise :class:`~lakeferry.errors.UnsupportedFeature` unless copying bytes copies the table."""
    _check(protocol, "copied as it is", lambda row: row.carry, writers=False)


def check_readable(protocol: Protocol, *, asks_catalog: bool = False) -> None:
    """Raise :class:`~lakeferry.errors.UnsupportedFeature` unless we read the right live files.

    A managed table is refused unless the caller's store asks its catalog.
    """
    _check(
        protocol,
        "read",
        lambda row: row.read or (asks_catalog and row.name == MANAGED),
        writers=False,
    )


def check_writable(protocol: Protocol, *, asks_catalog: bool = False) -> None:
    """Raise :class:`~lakeferry.errors.UnsupportedFeature` unless we may commit to the table.

    A managed table is refused unless the caller's store asks its catalog.
    """
    _check(
        protocol,
        "written",
        lambda row: (row.read and row.write) or (asks_catalog and row.name == MANAGED),
        writers=True,
    )


def _check(protocol: Protocol, done: str, can: Callable[[Feature], bool], *, writers: bool) -> None:
    versions = _beyond(protocol, writers=writers)
    if versions:
        raise UnsupportedFeature(
            f"the table can't be {done}",
            cause=f"it requires {' and '.join(versions)}, which this version of Lakeferry "
            "doesn't support",
            remedy="use a version of Lakeferry that supports this protocol",
            features=list(versions),
        )
    refused = [row for row in in_force(protocol) if not can(row)]
    if refused:
        names = [row.name for row in refused]
        raise UnsupportedFeature(
            f"the table can't be {done}",
            cause=f"it has {'features' if len(names) > 1 else 'the feature'} that Lakeferry "
            f"doesn't support for that: {', '.join(names)}",
            remedy=_remedy(refused),
            features=names,
        )


def _beyond(protocol: Protocol, *, writers: bool) -> tuple[str, ...]:
    found = []
    if protocol.min_reader_version > READER_FEATURES_VERSION:
        found.append(f"minReaderVersion={protocol.min_reader_version}")
    if writers and protocol.min_writer_version > WRITER_FEATURES_VERSION:
        found.append(f"minWriterVersion={protocol.min_writer_version}")
    return tuple(found)


def _remedy(refused: Iterable[Feature]) -> str:
    rows = list(refused)
    if any(not row.known for row in rows):
        return (
            "use a version of Lakeferry that supports these features, or drop them from the table"
        )
    if any(not row.carry for row in rows):
        return "use the table through the catalog or service that manages its commits"
    return "drop these features from the table with the engine that manages it"
