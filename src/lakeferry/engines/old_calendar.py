"""Refuses old dates in files that Spark wrote before version 3, in another calendar.

That calendar is the Julian one before 1582, and it has local times before 1900 that depend on the
time zone. So the same number means another day, or another second, in the calendar of today.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import UnsupportedFeature

SPARK_VERSION = b"org.apache.spark.version"
"""Where Spark says in a file's footer which version wrote it."""
_OLD_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
# From these values on, both calendars give days and seconds the same names.
_CALENDARS_AGREE = {
    pa.date32().id: pa.scalar(-141_427, pa.int32()),
    pa.timestamp("us").id: pa.scalar(-2_208_988_800_000_000, pa.int64()),
}


def is_of_old_calendar(found: pa.Schema) -> bool:
    """Return True if Spark wrote the file in the calendar that it used before version 3."""
    metadata = found.metadata or {}
    version = metadata.get(SPARK_VERSION, b"")
    return version[:2] in (b"1.", b"2.") or any(key in metadata for key in _OLD_CALENDAR)


def check_same_in_both(values: pa.Array) -> None:
    """Refuse values of a file in the old calendar that mean something else in the new one."""
    earliest = _CALENDARS_AGREE.get(values.type.id)
    if earliest is None:
        return
    least = pc.min(values.view(earliest.type))
    if least.is_valid and least.as_py() < earliest.as_py():
        raise UnsupportedFeature(
            "a data file can't be rewritten",
            cause="it has old dates in the calendar that Spark used before version 3",
            remedy="rewrite its rows with Spark, and try again",
        )
