"""Named remotes: where they are kept, what a name means, and which token goes where."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lakeferry.api.remotes import (
    REMOTES_FILE,
    add_remote,
    find_remote,
    is_remote,
    list_remotes,
    remove_remote,
    token_for,
)
from lakeferry.errors import CommitConflict, Forbidden, InvalidInput
from tests.unit.cli.program import run

URL = "https://data.acme.example"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def path(env: dict[str, str]) -> Path:
    return Path(env["XDG_CONFIG_HOME"]) / "lakeferry" / REMOTES_FILE


def test_names_are_added_listed_and_removed(env: dict[str, str]) -> None:
    assert list_remotes(env) == []
    assert not remove_remote("acme", environment=env)
    assert add_remote("acme", f"{URL}/", environment=env, dry_run=True)
    assert not path(env).exists()
    assert add_remote("acme", f"{URL}/", environment=env)
    assert not add_remote("acme", URL, environment=env)
    assert add_remote("b", "odf+http://h:8470/x", token_from_env="B_TOKEN", environment=env)
    assert [each.as_document() for each in list_remotes(env)] == [
        {"name": "acme", "url": URL, "token_from_env": None},
        {"name": "b", "url": "odf+http://h:8470/x", "token_from_env": "B_TOKEN"},
    ]
    for other in ("https://elsewhere.example", "http://data.acme.example"):
        with pytest.raises(CommitConflict, match="there is a remote named acme"):
            add_remote("acme", other, environment=env)
    assert remove_remote("acme", environment=env, dry_run=True)
    assert remove_remote("acme", environment=env)
    assert [each.name for each in list_remotes(env)] == ["b"]


def test_nobody_else_reads_or_writes_the_file(env: dict[str, str]) -> None:
    add_remote("acme", URL, environment=env)
    assert stat.S_IMODE(path(env).stat().st_mode) == 0o600
    assert [each.name for each in path(env).parent.iterdir()] == [REMOTES_FILE]
    for mode in (0o620, 0o602, 0o666):
        path(env).chmod(mode)
        with pytest.raises(Forbidden, match="other users may write"):
            find_remote("acme/orders", env)
    path(env).chmod(0o644)
    assert find_remote("acme/orders", env).url == f"{URL}/orders"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_somebody_else_is_not_used(env: dict[str, str]) -> None:
    add_remote("acme", URL, environment=env)
    os.chown(path(env), 12345, 12345)
    with pytest.raises(Forbidden):
        list_remotes(env)


@pytest.mark.parametrize("name", ["", "a/b", ".", "-x", "a b", "x" * 65, "a:b", "é"])
def test_not_everything_is_a_name(name: str, env: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        add_remote(name, URL, environment=env)
    assert not is_remote(name, env)


@pytest.mark.parametrize(
    "url", ["data.example", "ftp://h", "https://u:p@h/x", "https://h/?a=b", "https://h/#f", "./x"]
)
def test_not_everything_is_a_server(url: str, env: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        add_remote("acme", url, environment=env)
    assert not path(env).exists()


def test_a_token_is_never_kept(env: dict[str, str]) -> None:
    secret = "lf_0123456789abcdef_" + "x" * 43
    for wrong in (f"{secret}-", "a b", ""):
        with pytest.raises(InvalidInput) as refused:
            add_remote("acme", URL, token_from_env=wrong, environment=env)
        assert wrong == "" or wrong not in str(refused.value.as_document())
    assert not path(env).exists()


def test_each_server_gets_its_own_token(env: dict[str, str]) -> None:
    add_remote("acme", URL, token_from_env="ACME", environment=env)
    add_remote("plain", URL, environment=env)
    env |= {"LAKEFERRY_TOKEN": "general", "ACME": "special"}

    def token(text: str, given: str | None = None) -> str | None:
        return token_for(find_remote(text, env, token=given), given, env)

    assert token("acme/orders") == "special"
    assert token("plain/orders") == "general"
    assert token(f"{URL}/orders") == "general"
    assert token("acme/orders", "given") == "given"
    assert token("acme/orders", "") is None
    del env["ACME"]
    with pytest.raises(InvalidInput, match="the variable ACME isn't set"):
        token("acme/orders")
    assert token("acme/orders", "given") == "given"


def test_what_a_text_means(env: dict[str, str]) -> None:
    add_remote("acme", f"{URL}/lake", environment=env)
    assert find_remote("acme", env).url == f"{URL}/lake"
    assert find_remote("acme/a/b", env).url == f"{URL}/lake/a/b"
    for text in ("https://x.example/acme", "./acme", "../acme", "/acme", "s3://b/acme"):
        assert find_remote(text, env).url == text
    with pytest.raises(InvalidInput, match="there is no remote named other"):
        find_remote("other/orders", env)


def test_a_project_defines_no_remotes(tmp_path: Path) -> None:
    (tmp_path / "lakeferry.toml").write_text('[remotes]\nacme = "https://evil.example"\n')
    refused = run("ls", "acme", "--json", home=tmp_path)
    assert (refused.code, refused.error["code"]) == (2, "invalid_input")
    assert "evil" not in refused.err
    (tmp_path / "lakeferry.toml").unlink()
    (tmp_path / REMOTES_FILE).write_text('{"remotes":{"acme":{"url":"https://evil.example"}}}')
    assert run("remote", "list", "--json", home=tmp_path).document == {"remotes": []}


def test_a_name_of_a_folder_and_a_remote_is_refused(tmp_path: Path) -> None:
    assert run("remote", "add", "acme", "http://127.0.0.1:9", "--json", home=tmp_path).document == {
        "name": "acme",
        "url": "http://127.0.0.1:9",
        "token_from_env": None,
        "changed": True,
    }
    (tmp_path / "acme").mkdir()
    for words in (("ls", "acme"), ("dataset", "delete", "acme", "x")):
        refused = run(*words, "--json", home=tmp_path)
        assert (refused.code, refused.error["code"]) == (2, "invalid_input")
        assert "./acme" in refused.error["remedy"]
    assert run("ls", "./acme", "--json", home=tmp_path).document == {"datasets": []}
    # A TABLE is a path, and where a URL has to be, no path can be.
    refused = run("push", "acme/t", "acme/t", "--json", home=tmp_path)
    assert refused.error["code"] in ("table_not_found", "not_found", "not_a_table"), refused.err


def test_the_wrong_order_is_noticed(tmp_path: Path) -> None:
    run("remote", "add", "acme", "http://127.0.0.1:9", home=tmp_path)
    refused = run("push", "acme/orders", "./orders", "--json", home=tmp_path)
    assert (refused.code, "wrong order" in refused.error["message"]) == (2, True)
    refused = run("pull", "./orders", "acme/orders", "--json", home=tmp_path)
    assert (refused.code, "wrong order" in refused.error["message"]) == (2, True)
