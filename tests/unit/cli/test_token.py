"""``token`` as a user runs it: the list, and what is taken back."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli.program import run


def test_tokens_are_listed_and_taken_back(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    root = ("--root", tmp_path / "root")
    assert run("token", "list", *root, "--json", home=tmp_path).document == {"tokens": []}
    for words in (("--scope", "write"), ("--dataset", "acc/d", "--expires", "1d")):
        assert run("token", "create", *root, *words, home=tmp_path).code == 0
    first, second = run("token", "list", *root, "--json", home=tmp_path).document["tokens"]
    assert first.keys() == {"id", "scope", "dataset", "created_ms", "expires_ms"}
    assert (first["scope"], first["dataset"], first["expires_ms"]) == ("write", None, None)
    assert second["expires_ms"] - second["created_ms"] == 24 * 3600 * 1000
    shown = run("token", "list", *root, home=tmp_path).out.splitlines()
    assert shown[0].split("\t") == ["id", "scope", "dataset", "created", "expires"]
    assert [line.split("\t")[0] for line in shown[1:]] == [first["id"], second["id"]]

    planned = run("token", "revoke", first["id"], *root, "--dry-run", "--json", home=tmp_path)
    assert planned.document["plan"] == [{"op": "revoke_token", "id": first["id"]}]
    for changed in (True, False):
        gone = run("token", "revoke", first["id"], *root, "--json", home=tmp_path)
        assert (gone.code, gone.document) == (0, {"id": first["id"], "changed": changed})
    left = run("token", "list", *root, "--json", home=tmp_path).document["tokens"]
    assert left == [second]
    refused = run("token", "revoke", "../x", *root, "--json", home=tmp_path)
    assert (refused.code, refused.error["code"]) == (2, "invalid_input")


def test_a_root_that_is_not_there_is_not_tidied_up(tmp_path: Path) -> None:
    refused = run("gc", tmp_path / "typo", "--json", home=tmp_path)
    assert (refused.code, refused.error["code"]) == (1, "not_found")
    assert "--root" in refused.error["remedy"]
    (tmp_path / "empty").mkdir()
    assert run("gc", tmp_path / "empty", "--json", home=tmp_path).document["deleted"] == []
