"""Tables that other engines wrote: we say what delta-spark says, or refuse what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakeferry.errors import LakeferryError
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog
from tests.golden.conftest import GOLDEN
from tests.support import opinions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())

REFUSED = {
    "data-reader-absolute-paths-escaped-chars": "corrupt_log",
    "deltalog-state-reconstruction-from-checkpoint-missing-metadata": "corrupt_log",
    "deltalog-state-reconstruction-from-checkpoint-missing-protocol": "corrupt_log",
    "deltalog-state-reconstruction-without-metadata": "corrupt_log",
    "deltalog-state-reconstruction-without-protocol": "corrupt_log",
    "versions-not-contiguous": "corrupt_log",
    "data-reader-date-types-America": "not_a_table",
    "data-reader-date-types-Asia": "not_a_table",
    "data-reader-date-types-Etc": "not_a_table",
    "hive": "not_a_table",
    "log-store-listFrom": "not_a_table",
    "log-store-read": "not_a_table",
    "no-delta-log-folder": "not_a_table",
}
# Its readers are turned away by the protocol, not by the log.
UNREADABLE = {"deltalog-invalid-protocol-version": "unsupported_feature"}


@pytest.mark.parametrize("name", [name for name in TABLES if name in REFUSED])
def test_broken_tables_are_refused(name: str) -> None:
    """A table that is broken gives an error with its code."""
    with pytest.raises(LakeferryError) as refused:
        DeltaLog(open_store(str(GOLDEN / name))).snapshot()
    assert refused.value.code == REFUSED[name]


@pytest.mark.parametrize("name", [name for name in TABLES if name not in REFUSED | UNREADABLE])
def test_we_say_what_delta_spark_says(name: str, spark: SparkSession) -> None:
    """Every version of every table is the same to us and to delta-spark."""
    location = str(GOLDEN / name)
    log = DeltaLog(open_store(location))
    listing = log.listing()
    earliest = listing.earliest_version()
    assert earliest is not None
    for version in range(earliest, listing.newest_version + 1):
        expected = opinions.delta_spark(spark, location, version)
        snapshot = log.snapshot(version)
        found = opinions.ours(snapshot, log.store.uri)
        assert found == expected
        assert snapshot.num_files == len(expected.live)
        assert snapshot.size_bytes == expected.size_bytes
        state = log.state(version)
        assert (state.protocol, state.metadata) == (snapshot.protocol, snapshot.metadata)
    assert opinions.delta_spark(spark, location).version == listing.newest_version
