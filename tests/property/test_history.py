"""The tables that tests are made from are real: another engine reads every one of them."""

from __future__ import annotations

from pathlib import Path

import duckdb
import duckdb_extension_delta
import pytest

from lakeferry.storage import open_store
from tests.support import naive
from tests.support.history import (
    DIALECTS,
    ROWS_PER_FILE,
    Append,
    Change,
    Checkpoint,
    Checksum,
    Clean,
    Clutter,
    Compact,
    Delete,
    DeleteRows,
    Domain,
    Hint,
    HintState,
    History,
    KeepTime,
    Kind,
    Layout,
    Optimize,
    Restate,
    Restore,
    SetProperties,
    Stream,
)

V2 = Layout(v2_checkpoints=True)
BUSY = (Append(4), Delete(1), DeleteRows(2), Optimize(2), Restore(1), Restate(1), Append(2))
CASES = {
    "classic checkpoint": History().then(*BUSY, Checkpoint(), Append(1), Checksum(full=True)),
    "multi-part checkpoint": History().then(*BUSY, Checkpoint(Kind.MULTI_PART), Delete(1)),
    "partitioned": History(Layout(partitioned=True)).then(*BUSY, Checkpoint(), *BUSY),
    "vectors in files": History(Layout(deletion_vectors="u")).then(*BUSY, Checkpoint(), *BUSY),
    "vectors inline": History(Layout(deletion_vectors="i")).then(*BUSY, Checkpoint(), *BUSY),
    "vectors by absolute path": History(Layout(deletion_vectors="p")).then(*BUSY),
    "columns by name": History(Layout(column_mapping="name", partitioned=True)).then(*BUSY),
    "columns by id": History(Layout(column_mapping="id")).then(*BUSY, Checkpoint(stats="both")),
    "V2 in JSON": History(V2).then(*BUSY, Checkpoint(Kind.V2_JSON), Delete(1)),
    "V2 in Parquet": History(V2).then(*BUSY, Checkpoint(Kind.V2_PARQUET), Delete(1)),
    "V2 without sidecars": History(V2).then(*BUSY, Checkpoint(Kind.V2_PARQUET, sidecars=0)),
    "V2 in a classic name": History(V2).then(*BUSY, Checkpoint(Kind.V2_CLASSIC), Append(1)),
    "parsed statistics": History().then(*BUSY, Checkpoint(stats="parsed", unknown=True)),
    "cleaned up": History().then(*BUSY, Checkpoint(), Append(1), Clean()),
    "compacted": History().then(*BUSY, Compact(3), Append(1), Clutter()),
    "times and rows": History(
        Layout(row_tracking=True, in_commit_timestamps=True, change_data=True, domains=True)
    ).then(*BUSY, Change(), Domain(), Stream(), Checkpoint(), Append(1)),
    "times from later on": History().then(Append(1), KeepTime(), Append(1), Delete(1)),
    **{
        f"hint: {state.value}": History().then(Append(2), Checkpoint(), *BUSY, Hint(state))
        for state in (HintState.MISSING, HintState.STALE, HintState.CORRUPT)
    },
    **{
        f"dialect: {dialect.name}": History(dialect=dialect).then(
            *BUSY, SetProperties((("owner", "ü"),)), Stream()
        )
        for dialect in DIALECTS
    },
}


@pytest.mark.parametrize("name", CASES)
def test_another_engine_reads_every_table(name: str, tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "table"))
    CASES[name].write(store, with_data=True)
    reading = naive.replay(CASES[name].objects(store.uri), root=store.uri)
    rows = sum(
        ROWS_PER_FILE - file.get("deletionVector", {}).get("cardinality", 0)
        for file in reading.files
    )
    assert rows_by_duckdb(tmp_path / "table") == rows > 0


def rows_by_duckdb(table: Path) -> int:
    extensions = Path(duckdb_extension_delta.__file__).parent / "extensions"
    (extension,) = extensions.glob("*/delta.duckdb_extension")
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{extension}'")
        found = connection.execute("SELECT count(id) FROM delta_scan(?)", [str(table)]).fetchone()
    assert found is not None
    return int(found[0])


def test_the_same_history_is_the_same_bytes() -> None:
    past = CASES["times and rows"]
    assert past.objects() == past.objects()
