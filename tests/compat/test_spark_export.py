"""Exporting a log on Spark: the same bytes as in one process, however the listing gets there."""

from __future__ import annotations

from pathlib import Path

import pytest

import lakeferry
from lakeferry.errors import MissingFile
from lakeferry.export import stored_listing
from lakeferry.storage import open_store
from tests.support.history import (
    Append,
    Checkpoint,
    Delete,
    DeleteRows,
    History,
    Kind,
    Layout,
)

pytestmark = pytest.mark.spark

LAYOUT = Layout(partitioned=True, deletion_vectors="u", v2_checkpoints=True)
HISTORY = History(LAYOUT).then(
    *(Append(3), DeleteRows(1), Checkpoint(Kind.V2_PARQUET, sidecars=2)),
    *(Append(2), Delete(1), DeleteRows(1)),
)


def log_of(location: str) -> dict[str, bytes]:
    store = open_store(location)
    names = [entry.path for entry in store.list("_delta_log/")]
    return {name: store.get(name) for name in names if "/_lakeferry/" not in name}


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("sent_along_bytes", [0, stored_listing.SENT_ALONG_BYTES])
def test_executors_write_the_bytes_that_this_process_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent_along_bytes: int
) -> None:
    monkeypatch.setattr(stored_listing, "SENT_ALONG_BYTES", sent_along_bytes)
    HISTORY.write(open_store(str(tmp_path / "t")))
    table = lakeferry.Table(str(tmp_path / "t"))
    done = [table.export(str(tmp_path / engine), engine=engine) for engine in ("local", "spark")]
    assert all(each.files_written == 7 for each in done)
    assert log_of(str(tmp_path / "spark")) == log_of(str(tmp_path / "local"))
    left = [path for path in (tmp_path / "spark").rglob("*") if path.is_file()]
    assert not [path for path in left if path.suffix == ".arrow"]


@pytest.mark.usefixtures("spark")
def test_a_missing_file_is_found_by_executors_too(tmp_path: Path) -> None:
    HISTORY.write(open_store(str(tmp_path / "t")))
    data = [path for path in (tmp_path / "t").rglob("part-*") if path.is_file()]
    newest = max(data, key=lambda path: path.name)
    newest.unlink()
    with pytest.raises(MissingFile):
        lakeferry.Table(str(tmp_path / "t")).export(str(tmp_path / "x"), engine="spark")
    assert not (tmp_path / "x" / "_delta_log" / "_last_checkpoint").exists()
