"""Where ``files --output`` can't write."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from lakeferry.cli.files import _write_parquet
from lakeferry.errors import InvalidInput, StorageUnavailable


def reader() -> pa.RecordBatchReader:
    return pa.table({"path": ["a"]}).to_reader()


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageUnavailable, match="no space left"):
        _write_parquet(reader(), str(tmp_path / "f.parquet"))
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_stays_as_it_is(tmp_path: Path) -> None:
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for place in (pipe, folder):
        with pytest.raises(InvalidInput):
            _write_parquet(reader(), str(place))
    assert pipe.is_fifo()


def test_a_link_goes_on_to_lead_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "f.parquet").touch()
    (tmp_path / "link").symlink_to("f.parquet")
    assert _write_parquet(reader(), str(tmp_path / "link")) == 1
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "f.parquet").stat().st_size > 0
