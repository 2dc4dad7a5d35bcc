"""What somebody who has never seen the program does wrong, and what it answers."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

import lakeferry
from tests.support import components
from tests.support.history import Append, History, Layout
from tests.unit.cli.program import PROGRAM, Ended, environment, make, run


def _table(place: Path) -> Path:
    return make(History(Layout(partitioned=True)).then(Append(1)), place)


@contextmanager
def _served(root: Path) -> Iterator[tuple[str, str]]:
    """Serve a root, and give its address and a token that may write."""
    with lakeferry.Server(str(root)) as server:
        token = lakeferry.create_token(str(root), scope="write")
        assert isinstance(token, str)
        yield server.url, token


def test_the_module_is_the_program(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "lakeferry", "--version"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (ended.returncode, ended.stdout[:10]) == (0, b"lakeferry ")


@pytest.mark.parametrize(
    "words", [("create",), ("create", "--dry-run"), ("list",), ("revoke", "c83440a0819d4e17")]
)
def test_tokens_of_a_root_that_is_not_there_are_refused(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    refused = run("token", *words, "--root", tmp_path / "typo", "--json", home=tmp_path)
    assert (refused.code, refused.error["code"]) == (1, "not_found")
    assert "lakeferry serve --root" in refused.error["remedy"]
    assert not (tmp_path / "typo").exists()


def _named(refused: Ended) -> str:
    """Return the folder that a remedy names, for use as a table."""
    assert refused.code == 1
    assert refused.error["code"] == "not_a_table"
    assert ": " in refused.error["remedy"]
    return str(refused.error["remedy"]).rpartition(": ")[2]


@pytest.mark.parametrize("command", ["inspect", "files", "history"])
def test_a_part_of_a_table_leads_to_the_table(tmp_path: Path, command: str) -> None:
    table = _table(tmp_path / "orders")
    file = next(table.rglob("*.parquet"))
    for part in (table / "_delta_log", file.parent, file):
        refused = run(command, part, "--json", home=tmp_path)
        assert _named(refused) == table.as_uri()
        assert run(command, _named(refused), "--json", home=tmp_path).code == 0


def test_a_file_that_belongs_to_no_table_is_called_a_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    refused = run("inspect", tmp_path / "notes.txt", "--json", home=tmp_path)
    assert refused.error["code"] == "not_a_table"
    assert "it is a file" in refused.error["message"]
    push = ("push", tmp_path / "notes.txt", "http://127.0.0.1:9/x", "--json")
    assert "it is a file" in run(*push, home=tmp_path).error["message"]


def test_what_is_wrong_with_a_file_on_the_line_is_told_in_one_sentence(tmp_path: Path) -> None:
    for words in (
        ("redirect", "enable", "--from-file", "nothing.csv"),
        ("files", "t", "--output", tmp_path),
        ("setup", "spark", "--ivy-settings", "nothing.xml"),
        ("demo", "--folder", PROGRAM),
    ):
        message = run(*words, "--json", home=tmp_path).error["message"]
        assert not any(word in message for word in ("File", "Directory", "Path")), message


def test_a_misspelt_feature_leads_to_the_right_one(tmp_path: Path) -> None:
    history = History(Layout(deletion_vectors="u")).then(Append(2))
    table = make(history, tmp_path / "orders")
    refused = run("feature", "drop", table, "deletionvector", "--json", home=tmp_path)
    assert refused.error["code"] == "feature_not_present"
    assert "did you mean deletionVectors?" in refused.error["remedy"]
    line = shlex.split(refused.error["remedy"].split("'")[1])
    assert line[0] == "lakeferry"
    assert run(*line[1:], "--json", home=tmp_path).code == 0


def test_without_the_right_to_write_the_folder_and_the_right_are_named(tmp_path: Path) -> None:
    table = _table(tmp_path / "orders")
    log = table / "_delta_log"
    log.chmod(0o555)
    words = [str(PROGRAM), "checkpoint", str(table), "--json"]
    refused = _as_user(words, tmp_path)
    assert refused.returncode == 1
    error = Ended(1, "", refused.stderr.decode()).error
    assert error["code"] == "forbidden"
    assert f"may not write the folder {log}" in error["message"]
    remedy = error["remedy"].removeprefix("run: ")
    subprocess.run(shlex.split(remedy), check=True)
    assert _as_user(words, tmp_path).returncode == 0


@pytest.mark.parametrize(("folder", "right"), [("", "x"), ("_delta_log", "rx"), ("above", "x")])
def test_who_only_reads_is_told_to_get_no_right_to_write(
    tmp_path: Path, folder: str, right: str
) -> None:
    table = _table(tmp_path / "orders" / "above" / "t")
    closed = table.parent if folder == "above" else table / folder
    closed.chmod(0)
    words = [str(PROGRAM), "inspect", str(table), "--json"]
    remedies = []
    try:
        for _ in right:
            refused = _as_user(words, tmp_path)
            if refused.returncode == 0:
                break
            remedies.append(Ended(1, "", refused.stderr.decode()).error["remedy"])
            subprocess.run(shlex.split(remedies[-1].removeprefix("run: ")), check=True)
        assert _as_user(words, tmp_path).returncode == 0
    finally:
        closed.chmod(0o755)
    given = {letter for each in remedies for letter in each.split("u+")[1].split()[0]}
    assert given == set(right)


@pytest.mark.parametrize(
    ("words", "variable"),
    [
        (("setup", "spark"), "LAKEFERRY_CACHE"),
        (("demo", "--folder", "closed/demo"), ""),
        (("catalog", "register", "sql:a.b.c", "orders"), "XDG_DATA_HOME"),
        (("push", "orders", "http://127.0.0.1:9/orders"), ""),
        (("token", "create", "--root", "closed"), ""),
        (("files", "orders", "--output", "closed/files.parquet"), ""),
    ],
)
def test_a_folder_of_our_own_that_may_not_be_written_is_named(
    tmp_path: Path, words: tuple[str, ...], variable: str
) -> None:
    if words[0] in ("setup", "demo"):
        components.require("spark-jars")
    log = _table(tmp_path / "orders") / "_delta_log"
    closed = tmp_path / "closed"
    closed.mkdir()
    for folder in (closed, log):
        folder.chmod(0o555)
    variables = {"LAKEFERRY_CACHE": str(components.cache_folder())}
    if words[0] == "push":
        # A table that may only be read has its chain in the cache.
        variables["LAKEFERRY_CACHE"] = str(closed)
    if variable:
        variables[variable] = str(closed)
    refused = _as_user([str(PROGRAM), *words, "--json"], tmp_path, variables)
    error = Ended(1, "", refused.stderr.decode()).error
    assert refused.returncode == 1
    assert error["code"] == ("catalog_unavailable" if words[0] == "catalog" else "forbidden")
    assert f"may not write the folder {closed}" in error["message"]
    assert error["remedy"] == f"run: chmod u+w {closed}"
    assert variable in error["message"]
    assert list(closed.iterdir()) == []


def _as_user(
    words: list[str], home: Path, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a command without root's power over every file."""
    if os.geteuid() == 0:
        every = "-dac_override,-dac_read_search"
        words = ["setpriv", f"--bounding-set={every}", f"--inh-caps={every}", *words]
    return subprocess.run(
        words,
        cwd=home,
        env=environment(home, variables),
        capture_output=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("place", "variables"),
    [
        ("s3://nowhere/t", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]),
        ("gs://nowhere/t", ["GOOGLE_SERVICE_ACCOUNT"]),
    ],
)
def test_without_credentials_the_variables_are_named(place: str, variables: list[str]) -> None:
    from lakeferry.errors import Unauthorized
    from lakeferry.storage.cloud_errors import as_ours

    asked = OSError("error sending request for url (http://169.254.169.254/latest/api/token)")
    error = as_ours(asked, "", place)
    assert isinstance(error, Unauthorized)
    assert error.remedy is not None
    assert all(name in error.remedy for name in variables)
    assert all(f"--storage-option {name.lower()}=" in error.remedy for name in variables)


def test_without_an_azure_account_the_variables_are_named(tmp_path: Path) -> None:
    error = run("inspect", "az://container/t", "--json", home=tmp_path).error
    assert "storage account" in error["message"]
    assert "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY" in error["remedy"]


def test_a_port_without_a_server_is_asked_about(tmp_path: Path) -> None:
    table = _table(tmp_path / "orders")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/orders"
        for words in (("push", table, url), ("pull", url, tmp_path / "copy")):
            refused = run(*words, "--json", home=tmp_path)
            assert refused.error["code"] == "storage_unavailable"
            assert "check that a server is running there" in refused.error["remedy"]
    assert not (tmp_path / "copy").exists()


def test_https_to_an_http_server_says_http(tmp_path: Path) -> None:
    table = _table(tmp_path / "orders")
    with _served(tmp_path / "root") as (address, token):
        secure = address.replace("http://", "https://")
        refused = run("push", table, f"{secure}/orders", "--token", token, "--json", home=tmp_path)
        assert refused.error["code"] == "storage_unavailable"
        assert "http:// instead of https://" in refused.error["remedy"]
        assert "_ssl.c" not in refused.error["message"]
        assert run("push", table, f"{address}/orders", "--token", token, home=tmp_path).code == 0


def test_without_a_token_it_is_said_where_one_comes_from(tmp_path: Path) -> None:
    table = _table(tmp_path / "orders")
    with _served(tmp_path / "root") as (address, token):
        url = f"{address}/orders"
        refused = run("push", table, url, "--json", home=tmp_path)
        assert refused.error["code"] == "unauthorized"
        for word in ("--token", "LAKEFERRY_TOKEN", "lakeferry token create --root"):
            assert word in refused.error["remedy"]
        wrong = run("push", table, url, "--token", f"lf_{'0' * 16}_x", "--json", home=tmp_path)
        assert "doesn't know this token" in wrong.error["remedy"]
        variables = {"LAKEFERRY_TOKEN": token}
        assert run("push", table, url, home=tmp_path, variables=variables).code == 0


def test_a_pull_into_a_folder_with_other_files_names_another(tmp_path: Path) -> None:
    table = _table(tmp_path / "orders")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("x")
    with _served(tmp_path / "root") as (address, token):
        assert run("push", table, f"{address}/orders", "--token", token, home=tmp_path).code == 0
        pull = ("pull", f"{address}/orders")
        refused = run(*pull, tmp_path / "full", "--token", token, "--json", home=tmp_path)
        assert refused.error["code"] == "not_a_table"
        assert "empty or doesn't exist yet" in refused.error["remedy"]
        assert run(*pull, tmp_path / "full" / "orders", "--token", token, home=tmp_path).code == 0
