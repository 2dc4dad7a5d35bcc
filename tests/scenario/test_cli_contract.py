"""What holds for every command: JSON anywhere, exit codes, errors, interrupts."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.history import (
    Append,
    Checkpoint,
    History,
    Kind,
    Layout,
    SetProperties,
    Upgrade,
)
from tests.support.servers import S3Bucket, free_port
from tests.unit.cli.program import PROGRAM, environment, make, run

KEYS = {
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "us-east-1",
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return make(History().then(Append(2)), tmp_path / "table")


@pytest.mark.parametrize(
    "words",
    [
        ["--json", "inspect", "table"],
        ["inspect", "--json", "table"],
        ["inspect", "table", "--json"],
        ["inspect", "--version", "1", "--json", "table"],
    ],
)
def test_json_may_stand_anywhere(table: Path, tmp_path: Path, words: list[str]) -> None:
    ended = run(*words, home=tmp_path)
    assert ended.code == 0
    assert ended.document["version"] == 1
    assert ended.err == ""


def test_after_two_dashes_json_is_the_name_of_a_table(tmp_path: Path) -> None:
    make(History(), tmp_path / "--json")
    ended = run("--json", "inspect", "--", "--json", home=tmp_path)
    assert ended.document["location"] == f"{tmp_path.as_uri()}/--json"


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "{table}"],
        ["history", "{table}"],
        ["checkpoint", "{table}"],
        ["checkpoint", "{table}", "--dry-run"],
        ["verify", "{table}", "{table}"],
        ["files", "{table}", "--output", "f.parquet"],
        ["catalog", "register", "a.b.t", "{table}"],
        ["catalog", "--help"],
        ["catalog", "move", "--help"],
        ["redirect", "status", "{table}"],
        ["redirect", "resolve", "{table}"],
        ["redirect", "freeze", "{table}", "--dry-run"],
        ["redirect", "thaw", "{table}"],
        ["redirect", "--help"],
        ["redirect", "enable", "--help"],
        ["doctor"],
        ["completion", "zsh"],
        ["--version"],
        ["--help"],
        ["inspect", "--help"],
    ],
)
def test_json_is_one_document_and_text_is_none(
    table: Path, tmp_path: Path, words: list[str]
) -> None:
    words = [word.format(table=table) for word in words]
    document = run(*words, "--json", home=tmp_path)
    assert (document.code, document.err) == (0, "")
    assert isinstance(document.document, dict)
    assert document.out.count("\n") == 1
    text = run(*words, home=tmp_path)
    assert (text.code, text.err) == (0, "")
    assert text.out
    assert "\x1b" not in text.out


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["bogus"],
        ["inspct", "x"],
        ["inspect"],
        ["inspect", "a", "b"],
        ["inspect", "x", "--bogus"],
        ["inspect", "x", "--version", "one"],
        ["inspect", "x", "--version", "-1"],
        ["inspect", "x", "--version"],
        ["history", "x", "--limit", "0"],
        ["files", "x", "--version", "1", "--timestamp", "2"],
        ["files", "x", "--timestamp", "yesterday"],
        ["files", "x", "--output"],
        ["verify", "x"],
        ["verify", "x", "y", "--engine", "flink"],
        ["completion", "tcsh"],
        ["inspect", "x", "--storage-option", "nonsense"],
        ["inspect", ""],
        ["inspect", "lakefs://repository/main/table"],
        ["inspect", "sql:schema.table"],
        ["inspect", "unity:catalog.schema.table"],
        ["catalog"],
        ["catalog", "bogus"],
        ["catalog", "show"],
        ["catalog", "show", "sql:a.b.t", "./place"],
        ["catalog", "show", "other:a.b.t"],
        ["catalog", "register", "a.b.t"],
        ["catalog", "register", "a.b.t", "sql:a.b.u"],
        ["catalog", "move", "a.b.t"],
        ["inspect", "ftp://host/table"],
        ["inspect", "s3://"],
    ],
)
def test_wrong_usage_is_2_and_invalid_input(tmp_path: Path, words: list[str]) -> None:
    document = run(*words, "--json", home=tmp_path)
    assert document.code == 2
    assert document.out == ""
    assert document.error["code"] == "invalid_input"
    assert document.error["remedy"]
    text = run(*words, home=tmp_path)
    assert text.code == 2
    said = text.err.splitlines()
    assert said[-2].startswith("error: ")
    assert said[-1].startswith("remedy: ")


def test_a_command_that_is_nearly_right_is_named(tmp_path: Path) -> None:
    assert "did you mean 'inspect'?" in run("inspct", home=tmp_path).err
    assert "did you mean 'enable'?" in run("redirect", "enabel", home=tmp_path).err
    assert "did you mean '--limit'?" in run("history", ".", "--limt", "3", home=tmp_path).err


def test_a_malformed_storage_option_is_not_repeated(tmp_path: Path) -> None:
    ended = run("inspect", "x", "--storage-option", "hunter2", home=tmp_path)
    assert "hunter2" not in ended.err


def test_refusals_are_1_with_their_code(table: Path, tmp_path: Path) -> None:
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "sub" / "data.parquet").write_bytes(b"x")
    (tmp_path / "file").write_bytes(b"x")
    gap = make(History().then(Append(), Append()), tmp_path / "gap")
    (gap / "_delta_log" / f"{1:020d}.json").unlink()
    torn = make(History().then(Append()), tmp_path / "torn")
    (torn / "_delta_log" / f"{1:020d}.json").write_text('{"add":{"path"')
    bare = make(History().then(Append()), tmp_path / "bare")
    (bare / "_delta_log" / f"{0:020d}.json").write_text("{}\n")
    cases = {
        ("inspect", "nowhere"): "table_not_found",
        ("inspect", "folder"): "not_a_table",
        ("inspect", "file"): "not_a_table",
        ("inspect", "gap"): "corrupt_log",
        ("inspect", "torn"): "corrupt_log",
        ("inspect", "bare"): "corrupt_log",
        ("inspect", "table", "--version", "7"): "version_not_available",
        ("files", "table", "--version", "7"): "version_not_available",
        ("files", "table", "--timestamp", "1"): "version_not_available",
        ("checkpoint", "table", "--version", "7"): "version_not_available",
        ("inspect", "sql:a.b.nowhere"): "table_not_found",
        ("catalog", "show", "a.b.nowhere"): "table_not_found",
        ("catalog", "move", "a.b.nowhere", "table"): "table_not_found",
        ("history", "nowhere"): "table_not_found",
        ("verify", "table", "nowhere"): "table_not_found",
    }
    for words, code in cases.items():
        ended = run(*words, "--json", home=tmp_path)
        assert (ended.code, ended.out) == (1, ""), words
        assert ended.error["code"] == code, words
        text = run(*words, home=tmp_path)
        assert text.code == 1
        assert text.err.splitlines()[0].startswith("error: ")


def test_a_reader_version_above_3_is_refused(tmp_path: Path) -> None:
    place = make(History(), tmp_path / "table")
    commit = place / "_delta_log" / f"{0:020d}.json"
    text = commit.read_text()
    assert '"minReaderVersion":1' in text
    commit.write_text(text.replace('"minReaderVersion":1', '"minReaderVersion":4'))
    for command in ("inspect", "history", "files", "checkpoint"):
        ended = run(command, "table", "--json", home=tmp_path)
        assert (ended.code, ended.error["code"]) == (1, "unsupported_feature")


@pytest.mark.parametrize("checkpointed", [False, True])
def test_unknown_reader_features_are_shown_and_otherwise_refused(
    tmp_path: Path, checkpointed: bool
) -> None:
    layout = Layout(deletion_vectors="u")
    steps = (Append(2), Upgrade(reader=("teleport",), writer=("teleport",)))
    history = History(layout).then(*steps, *([Checkpoint()] if checkpointed else []))
    make(history, tmp_path / "table")
    shown = run("inspect", "table", "--json", home=tmp_path)
    assert shown.code == 0
    assert shown.document["num_files"] == 2
    assert "unknown_feature" in {each["code"] for each in shown.document["warnings"]}
    for words in (["files", "table"], ["checkpoint", "table"], ["verify", "table", "table"]):
        ended = run(*words, "--json", home=tmp_path)
        assert (ended.code, ended.out) == (1, ""), words
        assert ended.error["code"] == "unsupported_feature"
        assert ended.error["features"] == ["teleport"]


@pytest.mark.parametrize("kind", [None, Kind.CLASSIC, Kind.V2_JSON])
def test_files_of_a_shape_that_isn_t_known_are_a_feature_and_no_damage(
    tmp_path: Path, kind: Kind | None
) -> None:
    layout = Layout(deletion_vectors="u", v2_checkpoints=True)
    steps = (Append(2), Upgrade(reader=("teleport",), writer=("teleport",)))
    history = History(layout).then(*steps, *([Checkpoint(kind)] if kind else []))
    place = make(history, tmp_path / "table")
    log = place / "_delta_log"
    (log / f"{3:020d}.json").write_text(
        '{"commitInfo":{"operation":"WRITE"}}\n{"add":{"beam":{"from":1},"size":"large"}}\n'
    )
    shown = run("inspect", "table", "--json", home=tmp_path)
    assert shown.code == 0, shown.err
    found = shown.document
    assert (found["version"], found["num_files"], found["size_bytes"]) == (3, None, None)
    assert "unknown_feature" in {each["code"] for each in found["warnings"]}
    assert "unknown number of files" in run("inspect", "table", home=tmp_path).out
    for words in (["files", "table"], ["checkpoint", "table"], ["verify", "table", "table"]):
        ended = run(*words, "--json", home=tmp_path)
        assert (ended.code, ended.error["code"]) == (1, "unsupported_feature"), words
        assert ended.error["features"] == ["teleport"]
    # Without the feature the same lines are damage.
    for commit in sorted(log.glob("*.json")):
        commit.write_text(commit.read_text().replace('"teleport"', '"deletionVectors"'))
    if kind is not Kind.CLASSIC:
        ended = run("inspect", "table", "--json", home=tmp_path)
        assert (ended.code, ended.error["code"]) == (1, "corrupt_log")


def test_a_property_that_isn_t_understood_is_no_wrong_usage(tmp_path: Path) -> None:
    retention = "delta.deletedFileRetentionDuration"
    make(History().then(SetProperties(((retention, "a while"),))), tmp_path / "table")
    ended = run("checkpoint", "table", "--json", home=tmp_path)
    assert (ended.code, ended.error["code"]) == (1, "unsupported_feature")
    assert (ended.error["property"], ended.error["value"]) == (retention, "a while")


def test_paths_that_lead_around_lead_to_the_file(tmp_path: Path) -> None:
    place = make(History().then(Append(1)), tmp_path / "table")
    (place / "_delta_log" / f"{2:020d}.json").write_text(
        '{"add":{"path":"./x/..//y","size":1,"partitionValues":{}}}\n'
    )
    listed = run("files", "table", "--json", home=tmp_path)
    assert f"{place.as_uri()}/y" in {file["path"] for file in listed.lines}
    (place / "_delta_log" / f"{3:020d}.json").write_text(
        '{"add":{"path":"../elsewhere","size":1,"partitionValues":{}}}\n'
    )
    listed = run("files", "table", "--json", home=tmp_path)
    assert f"{place.parent.as_uri()}/elsewhere" in {file["path"] for file in listed.lines}


def test_a_folder_that_may_not_be_read_is_forbidden(tmp_path: Path) -> None:
    # Root may read everything, so the program becomes somebody else. It runs once
    # before that, to load what it needs: its own files may be root's alone.
    script = (
        "import os, sys\n"
        "from lakeferry.cli.app import run_command\n"
        "place = sys.argv[1]\n"
        "assert run_command(['inspect', place, '--json']) == 0\n"
        "os.chmod(f'{place}/_delta_log', 0)\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "sys.exit(run_command(['inspect', place, '--json']))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        place = make(History(), Path(folder) / "table")
        try:
            ended = subprocess.run(
                [sys.executable, "-c", script, place],
                env=environment(Path(folder)),
                cwd=folder,
                capture_output=True,
                check=False,
            )
        finally:
            (place / "_delta_log").chmod(0o755)
    assert ended.returncode == 1, ended.stderr
    assert json.loads(ended.stderr.splitlines()[-1])["error"]["code"] == "forbidden"


def test_a_store_that_is_down_is_storage_unavailable(tmp_path: Path) -> None:
    dead = {**KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
    ended = run("inspect", "s3://bucket/table", "--json", home=tmp_path, variables=dead)
    assert (ended.code, ended.error["code"]) == (1, "storage_unavailable")


def test_tables_on_s3(s3_bucket: S3Bucket, tmp_path: Path) -> None:
    variables = s3_bucket.server.environment()
    for uri in (f"{s3_bucket.uri}-missing/table", f"{s3_bucket.uri}/nothing-here"):
        ended = run("inspect", uri, "--json", home=tmp_path, variables=variables)
        assert (ended.code, ended.error["code"]) == (1, "table_not_found"), uri
    assert s3_bucket.server.folder is not None
    make(History().then(Append(2)), s3_bucket.server.folder / s3_bucket.name / "orders")
    uri = f"{s3_bucket.uri}/orders"
    shown = run("inspect", f"{uri}/", "--json", home=tmp_path, variables=variables)
    assert shown.document["location"] == uri
    written = run("checkpoint", uri, "--json", home=tmp_path, variables=variables)
    assert written.document["changed"] is True
    local = make(History().then(Append(2)), tmp_path / "orders")
    checks = ("--digest", "--rows", "--json")
    same = run("verify", local, uri, *checks, home=tmp_path, variables=variables)
    assert (same.code, same.document["equal"]) == (0, True)
    wrong = {**variables, "AWS_SECRET_ACCESS_KEY": "wrong"}
    ended = run("inspect", uri, "--json", home=tmp_path, variables=wrong)
    assert (ended.code, ended.error["code"]) == (1, "unauthorized")


def test_an_interrupt_in_the_middle_is_130(table: Path, tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from lakeferry.cli import main\n"
        "import lakeferry.api.table\n"
        "def busy(*_, **__): print('busy', flush=True); time.sleep(60)\n"
        "lakeferry.api.table.Table.inspect = busy\n"
        "sys.exit(main.main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, "inspect", str(table), "--json"],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"busy\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
    assert (process.returncode, out) == (130, b"")
    assert json.loads(err.splitlines()[-1])["error"]["code"] == "interrupted"


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_interrupt_while_a_store_is_silent_is_130_within_moments(
    tmp_path: Path, flags: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with subprocess.Popen(
            [PROGRAM, "history", "s3://bucket/table", *flags],
            cwd=tmp_path,
            env=environment(tmp_path, {**KEYS, "AWS_ENDPOINT_URL": endpoint}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                # The store's own limit would be three times as long.
                out, err = process.communicate(timeout=5)
    assert (process.returncode, out) == (130, b"")
    said = err.splitlines()[-1 if flags else 0]
    assert (b'"code":"interrupted"' if flags else b"error: interrupted") in said


def test_a_reader_who_leaves_early_is_no_error(tmp_path: Path) -> None:
    make(History().then(Append(60)), tmp_path / "table")
    command = f"{PROGRAM} files table --json | head -n 1; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        check=True,
    )
    assert ended.stdout.splitlines()[-1] == b"0"
    assert ended.stderr == b""


def test_a_mistake_of_ours_is_one_line_and_a_traceback_only_on_demand(
    table: Path, tmp_path: Path
) -> None:
    script = tmp_path / "broken.py"
    script.write_text(
        "import sys\n"
        "from lakeferry.cli import main\n"
        "import lakeferry.api.table\n"
        "def broken(*_, **__): raise ZeroDivisionError('two\\nlines')\n"
        "lakeferry.api.table.Table.inspect = broken\n"
        "sys.exit(main.main())\n"
    )
    for variables, lines in (({}, 1), ({"LAKEFERRY_DEBUG": "1"}, 5)):
        ended = subprocess.run(
            [sys.executable, script, "inspect", str(table), "--json"],
            env=environment(tmp_path, variables),
            capture_output=True,
            check=False,
        )
        assert (ended.returncode, ended.stdout) == (1, b"")
        said = ended.stderr.splitlines()
        assert json.loads(said[-1])["error"]["code"] == "internal_error"
        assert (len(said) == 1) == (lines == 1)


def test_a_flag_beats_the_environment_which_beats_the_files(tmp_path: Path) -> None:
    make(History(), tmp_path / "table")

    def answer(*flags: str, **variables: str) -> str:
        # Without a Java, Spark can't start: so it shows who asked for it.
        words = ("verify", "table", "table", "--rows", *flags)
        no_java = {"JAVA_HOME": str(tmp_path / "no-java")}
        ended = run(*words, home=tmp_path, variables=no_java | variables)
        assert (ended.code == 0) != ("Spark" in ended.err), ended.err
        return "local" if ended.code == 0 else "spark"

    user = tmp_path / ".config" / "lakeferry"
    user.mkdir(parents=True)
    (user / "lakeferry.toml").write_text('engine = "spark"\n')
    assert answer() == "spark"
    (tmp_path / "lakeferry.toml").write_text('engine = "local"\n')
    assert answer() == "local"
    assert answer(LAKEFERRY_ENGINE="spark") == "spark"
    assert answer("--engine", "local", LAKEFERRY_ENGINE="spark") == "local"


def test_an_unknown_key_in_a_file_is_invalid_input(tmp_path: Path) -> None:
    make(History(), tmp_path / "table")
    (tmp_path / "lakeferry.toml").write_text('engin = "local"\n')
    ended = run("inspect", "table", "--json", home=tmp_path)
    assert (ended.code, ended.error["code"]) == (2, "invalid_input")
    assert "'engine'" in ended.error["remedy"]


def test_help_and_version_load_neither_arrow_nor_spark(tmp_path: Path) -> None:
    for words in (
        ["--version"],
        ["--help"],
        ["inspect", "--help"],
        ["catalog", "show", "--help"],
        ["redirect", "enable", "--help"],
        ["completion", "bash"],
    ):
        script = (
            "import sys\n"
            "from lakeferry.cli.main import main\n"
            f"sys.argv = ['lakeferry', *{words!r}]\n"
            "code = main()\n"
            "loaded = {'pyarrow', 'pyspark', 'obstore', 'deltalake', 'rich'} & set(sys.modules)\n"
            "sys.exit(','.join(sorted(loaded)) or code)\n"
        )
        ended = subprocess.run(
            [sys.executable, "-c", script],
            env=environment(tmp_path),
            capture_output=True,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, b""), words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(tmp_path: Path, shell: str) -> None:
    ended = run("completion", shell, home=tmp_path)
    assert "_LAKEFERRY_COMPLETE" in ended.out


def test_completion_offers_commands_and_options(tmp_path: Path) -> None:
    def offered(words: str, position: int) -> list[str]:
        variables = {
            "_LAKEFERRY_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(position),
        }
        return run(home=tmp_path, variables=variables).out.split()

    assert offered("lakeferry ins", 1) == ["plain,inspect"]
    assert "plain,--storage-option" in offered("lakeferry inspect --", 2)
    assert offered("lakeferry completion f", 2) == ["plain,fish"]
    names = ("register", "move", "show", "list", "rename", "remove")
    assert offered("lakeferry catalog ", 2) == [f"plain,{name}" for name in names]
    assert offered("lakeferry catalog show u", 3) == ["plain,unity:"]
    assert offered("lakeferry redirect re", 2) == ["plain,resume", "plain,resolve"]
    enable = "lakeferry redirect enable a b"
    assert offered(f"{enable} --mode w", 6) == ["plain,writer-only"]
    assert offered(f"{enable} --dialect rfc,d", 6) == ["plain,rfc,delta-spark"]
