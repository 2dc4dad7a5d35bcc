"""What a person sees in a terminal: questions, and tables on narrow and wide screens."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

import lakeferry
from lakeferry.cli.screen import cells
from tests.support.history import Append, History, Layout
from tests.support.terminal import shown
from tests.unit.cli.program import make, run


def _table(place: Path) -> Path:
    return make(History(Layout(partitioned=True)).then(Append(3)), place)


def _state(table: Path) -> str:
    return lakeferry.Table(str(table)).redirect_status().state.value


def _rows(text: str) -> dict[str, str]:
    """Return the rows of the table of clients by the name of the client."""
    table = text.partition("How each client gets to the new place:")[0]
    return {line.split("  ")[0].strip(): line for line in table.splitlines()}


def test_a_terminal_is_told_who_follows_and_asked_before_a_move(tmp_path: Path) -> None:
    table = _table(tmp_path / "orders")
    enable = ("redirect", "enable", table, tmp_path / "new")
    code, text = shown(*enable, home=tmp_path, answer="n")
    assert code == 130
    assert _state(table) == "NORMAL"
    assert not (tmp_path / "new").exists()
    assert "nothing was changed" in text
    lines = _rows(text)
    assert lines["delta-rs, Polars, DuckDB"].count("blocked") == 2
    assert lines["PySpark with Lakeferry"].count("follows") == 2
    code, text = shown(*enable, home=tmp_path, answer="y")
    assert (code, _state(table)) == (0, "READY")
    # The same again changes nothing, so that nothing is asked.
    assert shown(*enable, home=tmp_path)[0] == 0


def test_a_question_that_is_left_changes_nothing_and_says_so(tmp_path: Path) -> None:
    table = _table(tmp_path / "orders")
    words = ("redirect", "enable", table, tmp_path / "new")
    code, text = shown(*words, home=tmp_path, answer="\x04")
    assert code == 130
    assert "\nerror: nothing was changed: the question wasn't answered\n" in text
    assert _state(table) == "NORMAL"


def test_yes_answers_and_a_writer_only_move_says_who_reads_a_frozen_copy(tmp_path: Path) -> None:
    table = _table(tmp_path / "orders")
    words = ("redirect", "enable", table, tmp_path / "new", "--mode", "writer-only", "--yes")
    code, text = shown(*words, home=tmp_path)
    assert (code, _state(table)) == (0, "READY")
    assert "[y/N]" not in text
    lines = _rows(text)
    assert "frozen copy" in lines["delta-rs, Polars, DuckDB"]
    assert "frozen copy" in lines["Spark without the option"]
    assert "enableTableRedirectFeature=true" in text


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_warnings_have_lines_of_their_own_beside_a_bar(tmp_path: Path, columns: int) -> None:
    enable = ("redirect", "enable", _table(tmp_path / "orders"), tmp_path / "new")
    words = (*enable, "--data", "reference", "--mode", "writer-only", "--dry-run")
    code, text = shown(*words, home=tmp_path, columns=columns)
    assert code == 0
    # Nothing but Python can open a table with our package.
    how = " ".join(text.partition("How each client gets to the new place:")[2].split())
    assert "Trino and other engines give them the new path, if they read absolute paths" in how
    assert text.count("warning: ") == text.count("\nwarning: ") >= 3


@pytest.mark.parametrize("json", [True, False])
def test_without_a_terminal_nothing_is_asked(tmp_path: Path, json: bool) -> None:
    table = _table(tmp_path / "orders")
    more = ("--json",) if json else ()
    ended = run("redirect", "enable", table, tmp_path / "new", *more, home=tmp_path)
    assert (ended.code, _state(table)) == (0, "READY")
    assert ("delta-rs, Polars, DuckDB" in ended.err) is not json
    if json:
        assert ended.document["state"] == "READY"


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_no_word_breaks_on_a_narrow_screen(tmp_path: Path, columns: int) -> None:
    words = ("redirect", "enable", _table(tmp_path / "orders"), tmp_path / "new", "--yes")
    _, text = shown(*words, home=tmp_path, columns=columns)
    for word in ("lakeferry.spark.install(spark)", "lakeferry.resolve(path),", "blocked"):
        assert word in text
    for word in ("inspect", "history"):
        _, text = shown(word, tmp_path / "orders", home=tmp_path, columns=columns)
        assert "partitioned by" in text or "operation" in text
        for line in text.splitlines():
            assert len(line) <= columns or len(max(line.split(), key=len)) > columns - 2


def test_files_are_a_table_with_partitions_sizes_and_a_total(tmp_path: Path) -> None:
    table = _table(tmp_path / "orders")
    _, text = shown("files", table, home=tmp_path)
    head = next(line for line in text.splitlines() if "partition" in line)
    assert head.split() == ["partition", "size", "deleted", "name"]
    assert "bytes" in text
    assert ".parquet" in text
    assert text.rstrip().splitlines()[-1].startswith("3 files, ")


def test_odd_names_and_long_parameters_fit_a_narrow_screen(tmp_path: Path) -> None:
    columns = 50
    cities = ["東京都千代田区", "日本語 の 値", "a%b 'q' \"d\"", "😀 emoji"]
    place = tmp_path / "5% 'q' 😀 東京"
    data = pa.table({"number": range(4), "city": cities})
    deltalake.write_deltalake(place, data, partition_by=["city"])
    table = deltalake.DeltaTable(place)
    merge = table.merge(
        data, "s.number = t.number AND s.city = t.city", source_alias="s", target_alias="t"
    )
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    for command, words in {
        "inspect": ["number", "city"],
        "files": ["partition", "4 files, ", *cities],
        "history": ["MERGE", "s.number", '[{"actionType":'],
    }.items():
        code, text = shown(command, place, home=tmp_path, columns=columns)
        assert code == 0
        assert all(word in text for word in words)
        for line in text.splitlines():
            assert cells(line) <= columns or "file://" in line


def test_a_history_has_a_line_for_each_commit_in_a_pipe(tmp_path: Path) -> None:
    table = _table(tmp_path / "orders")
    head, *rows = run("history", table, home=tmp_path).out.splitlines()
    assert head.split("\t") == ["version", "time", "operation", "user", "engine", "parameters"]
    assert [row.split("\t")[0] for row in rows] == ["1", "0"]
    assert all(len(row.split("\t")) == 6 for row in rows)


def test_what_a_person_wants_to_know_of_a_table_is_shown(tmp_path: Path) -> None:
    table = make(History(Layout(deletion_vectors="u")).then(Append(2)), tmp_path / "orders")
    found = run("inspect", table, "--json", home=tmp_path).document
    assert found["num_rows"] == len(lakeferry.open(str(table)).to_table())
    assert found["last_change"]["timestamp"] > 0
    assert found["last_change"]["operation"] == "WRITE"
    assert "deletionVectors" in found["features"]
    page = run("inspect", table, home=tmp_path).out
    assert f"rows: {found['num_rows']}\n" in page
    assert "features in force: " in page
    assert "last change: 20" in page


def test_history_says_that_it_followed_a_redirect(tmp_path: Path) -> None:
    table = _table(tmp_path / "orders")
    assert run("redirect", "enable", table, tmp_path / "new", home=tmp_path).code == 0
    told = run("history", table, home=tmp_path)
    assert f"this is the history of {(tmp_path / 'new').as_uri()}" in told.err
    assert "history of" not in run("history", table, "--no-follow", home=tmp_path).err
    assert "note" not in run("history", table, "--json", home=tmp_path).err


def test_dry_runs_are_told_in_sentences(tmp_path: Path) -> None:
    table = make(History(Layout(deletion_vectors="u")).then(Append(2)), tmp_path / "orders")
    moves = run("redirect", "enable", table, tmp_path / "new", "--dry-run", home=tmp_path)
    drops = run("feature", "drop", table, "deletionVectors", "--dry-run", home=tmp_path)
    for line in [*moves.out.splitlines(), *drops.out.splitlines()]:
        # How files travel is told below the step.
        assert line.startswith(("would ", "  "))
        assert not set(line.replace(str(tmp_path), "")) & set("{}_")
    assert "would copy 2 data files of " in moves.out


def test_a_target_in_a_catalog_is_shown_by_its_name(tmp_path: Path) -> None:
    table, name = _table(tmp_path / "orders"), "sql:a.b.orders"
    words = ("redirect", "enable", table, name, "--location", tmp_path / "new")
    assert f"target: {name}\n" in run(*words, home=tmp_path).out
    assert f"target: {name}\n" in run("redirect", "status", table, home=tmp_path).out
    assert f"to {name} (" in run("inspect", table, home=tmp_path).out


def test_a_terminal_is_asked_before_a_lost_target_is_given_up(tmp_path: Path) -> None:
    table = _table(tmp_path / "orders")
    assert run("redirect", "enable", table, tmp_path / "new", home=tmp_path).code == 0
    shutil.rmtree(tmp_path / "new")
    disable = ("redirect", "disable", table, "--abandon-target")
    code, text = shown(*disable, home=tmp_path, answer="n")
    assert (code, _state(table)) == (130, "READY")
    assert "is abandoned" in " ".join(text.split())
    code, _ = shown(*disable, home=tmp_path, answer="y")
    assert (code, _state(table)) == (0, "NORMAL")


@pytest.mark.parametrize(
    ("words", "sign"),
    [
        ("inspect s3://bucket/t", "reading the log"),
        ("redirect enable s3://bucket/t new", "reading the log"),
        ("redirect resolve s3://bucket/t", "following redirects"),
        ("gc s3://bucket/root", "working"),
        ("token list --root s3://bucket/root", "reading the root"),
        ("serve --root s3://bucket/root --port 0", "reading the root"),
    ],
)
def test_a_store_that_doesn_t_answer_leaves_no_terminal_silent(
    tmp_path: Path, words: str, sign: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        variables = {
            "AWS_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "y",
        }
        _, text = shown(*words.split(), home=tmp_path, until=sign, variables=variables)
    assert sign in text
    assert "error" not in text
