"""Results and progress in a real notebook: one kernel executes all cells of one notebook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.history import Append, Delete, History, Layout
from tests.unit.cli.program import environment, make

PREPARE = """
import lakeferry

orders = lakeferry.Table({orders!r})
served = lakeferry.Server({root!r}, port=0)
token = lakeferry.create_token({root!r}, scope="write")
"""
CELLS = {
    "table": "orders",
    "inspect": "orders.inspect()",
    "history": "orders.history()",
    "files": "orders.files()",
    "missing": "lakeferry.Table({missing!r})",
    "plan": "orders.redirect({target!r}, dry_run=True)",
    "move": "orders.redirect({target!r})",
    "status": "orders.redirect_status()",
    "list": "lakeferry.list_redirects({folder!r})",
    "push": "with served: pushed = orders.push(served.url + '/orders', token=token)\npushed",
    "async pull": "with served: pulled = await lakeferry.Table({copy!r}).async_pull("
    "served.url + '/orders', token=token)\npulled",
    "fleet": "fleet = lakeferry.Fleet({database!r})\nfleet.scan({folder!r})",
    "observed": "seen = []\norders.redirect_disable("
    "observer=lambda what, done, total: seen.append(what))",
    "seen": "bool(seen)",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[Any]]:
    """Return the outputs of each cell."""
    folder = tmp_path_factory.mktemp("notebook")
    make(History(Layout(partitioned=True)).then(Append(30), Delete(1)), folder / "lake" / "orders")
    places = {
        "orders": str(folder / "lake" / "orders"),
        "target": str(folder / "new"),
        "copy": str(folder / "copy"),
        "missing": str(folder / "<b>nothing</b>"),
        "folder": str(folder / "lake"),
        "root": str(folder / "server"),
        "database": f"sqlite:///{folder}/fleet.db",
    }
    (folder / "server").mkdir()
    notebook = nbformat.v4.new_notebook()
    sources = [PREPARE, *CELLS.values()]
    notebook.cells = [nbformat.v4.new_code_cell(each.format(**places)) for each in sources]
    client = NotebookClient(notebook, timeout=120, kernel_name="python3")
    client.execute(env=environment(folder))
    return {name: cell.outputs for name, cell in zip(CELLS, notebook.cells[1:], strict=True)}


def shown(outputs: Mapping[str, list[Any]], name: str) -> str:
    """Return the HTML of a cell's result."""
    result = outputs[name][-1]
    assert result.output_type == "execute_result", outputs[name]
    html: str = result.data["text/html"]
    return html


def displayed(outputs: Mapping[str, list[Any]], name: str) -> list[str]:
    """Return what a cell shows of its progress: the last state of each display."""
    found = [each for each in outputs[name] if each.output_type == "display_data"]
    return [each.data["text/plain"] for each in found]


def test_a_table_shows_its_columns_and_one_that_is_missing_the_reason(
    outputs: Mapping[str, list[Any]],
) -> None:
    assert "Columns" in shown(outputs, "table")
    assert "features in force" in shown(outputs, "inspect")
    assert "there is no table at" in shown(outputs, "missing")
    assert "<b>nothing" not in shown(outputs, "missing")


def test_files_and_history_show_their_first_rows(outputs: Mapping[str, list[Any]]) -> None:
    assert "the first 10 of 29 files" in shown(outputs, "files")
    assert "History of 3 commits" in shown(outputs, "history")
    assert "Live files of version 2" in outputs["files"][-1].data["text/plain"]


def test_a_move_shows_its_plan_its_progress_and_its_result(
    outputs: Mapping[str, list[Any]],
) -> None:
    assert "would copy 29 data files" in shown(outputs, "plan")
    assert any("copying" in text for text in displayed(outputs, "move"))
    assert "READY" in shown(outputs, "move")
    assert "READY" in shown(outputs, "status")
    assert "1 redirect of 1 table" in shown(outputs, "list")


def test_progress_is_one_output_whose_last_state_is_complete(
    outputs: Mapping[str, list[Any]],
) -> None:
    (progress,) = (each for each in outputs["move"] if each.output_type == "display_data")
    assert "<progress" in progress.data["text/html"]
    assert 'value="1.0000"' in progress.data["text/html"]
    assert not [each for each in outputs["move"] if each.output_type == "stream"]


def test_transfers_show_their_progress_with_and_without_await(
    outputs: Mapping[str, list[Any]],
) -> None:
    assert "objects moved" in shown(outputs, "push")
    assert any(text.startswith("pushing") for text in displayed(outputs, "push"))
    assert "objects moved" in shown(outputs, "async pull")
    assert any(text.startswith("pulling") for text in displayed(outputs, "async pull"))


def test_a_fleet_shows_its_tables(outputs: Mapping[str, list[Any]]) -> None:
    assert "1 table" in shown(outputs, "fleet")


def test_an_observer_of_ones_own_replaces_the_display(outputs: Mapping[str, list[Any]]) -> None:
    assert displayed(outputs, "observed") == []
    assert outputs["seen"][-1].data["text/plain"] == "True"
