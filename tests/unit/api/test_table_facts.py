from __future__ import annotations

import json
from pathlib import Path

import pytest

import lakeferry
from lakeferry.api.table_facts import column_rows
from tests.support.file_reads import count_reads
from tests.support.history import Append, Checkpoint, Delete, History, SetProperties
from tests.unit.cli.program import make

EVIL = "<script>alert(1)</script>"


def renamed(place: Path) -> lakeferry.Table:
    """Make a table with a name, columns and properties that somebody chose with care."""
    make(History().then(Append(2), SetProperties(((EVIL, EVIL),))), place)
    for commit in (place / "_delta_log").glob("*.json"):
        lines = []
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            if (metadata := action.get("metaData")) is not None:
                schema = json.loads(metadata["schemaString"])
                schema["fields"].append({"name": EVIL, "type": EVIL, "nullable": True})
                metadata |= {"name": EVIL, "description": EVIL, "schemaString": json.dumps(schema)}
            lines.append(json.dumps(action))
        commit.write_text("\n".join(lines))
    return lakeferry.Table(str(place))


def test_names_columns_and_properties_of_a_table_are_escaped(tmp_path: Path) -> None:
    table = renamed(tmp_path / "t")
    for shown in (table._repr_html_(), table.inspect()._repr_html_()):
        assert "<script" not in shown
        assert shown.count("&lt;script&gt;") >= 4


def test_a_notebook_shows_a_table_without_reading_its_file_actions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "t"
    (place / "_delta_log").mkdir(parents=True)
    history = History().then(Append(20_000), Checkpoint(), Delete(1))
    for name, data in history.objects(place.as_uri()).items():
        if name.startswith("_delta_log/"):
            (place / name).write_bytes(data)
    (checkpoint,) = (place / "_delta_log").glob("*.checkpoint.parquet")
    reads = count_reads(monkeypatch)
    shown = lakeferry.Table(str(place))._repr_html_()
    assert "Columns" in shown
    assert place.as_uri() in shown
    assert reads.log_lists == 1
    spans = reads.spans[checkpoint.as_uri()]
    assert 0 < sum(end - start for start, end in spans) < checkpoint.stat().st_size / 4


def test_a_table_that_is_not_there_is_shown_with_the_reason(tmp_path: Path) -> None:
    shown = lakeferry.Table(str(tmp_path / EVIL))._repr_html_()
    assert "there is no table at" in shown
    assert "remedy: check the path" in shown
    assert "<script" not in shown


def test_an_inspection_is_bounded(tmp_path: Path) -> None:
    many = tuple((f"property.{number}", "x" * 10_000) for number in range(2_000))
    place = make(History().then(SetProperties(many)), tmp_path / "t")
    shown = lakeferry.Table(str(place)).inspect()._repr_html_()
    assert "the first 50 of 2,000 properties" in shown
    assert len(shown) < 60_000


def test_a_schema_that_cannot_be_read_has_no_columns() -> None:
    assert list(column_rows("[")) == []
    assert list(column_rows("")) == []
