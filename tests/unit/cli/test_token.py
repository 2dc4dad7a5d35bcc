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
    assert first.keys() == {"id", "name", "note", "scope", "dataset", "created_ms", "expires_ms"}
    assert (first["name"], first["note"]) == (None, None)
    assert (first["scope"], first["dataset"], first["expires_ms"]) == ("write", None, None)
    assert second["expires_ms"] - second["created_ms"] == 24 * 3600 * 1000
    shown = run("token", "list", *root, home=tmp_path).out.splitlines()
    assert shown[0].split("\t") == ["id", "name", "scope", "dataset", "created", "expires", "note"]
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


def test_a_token_has_a_name_and_a_note(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    root = ("--root", tmp_path / "root")
    said = ("--name", "nightly", "--note", "for Ana's job")
    for _ in range(2):
        # One token replaces another of its name; the ids differ.
        made = run("token", "create", *root, *said, "--json", home=tmp_path)
        assert (made.document["name"], made.document["note"]) == ("nightly", "for Ana's job")
    listed = run("token", "list", *root, "--json", home=tmp_path).document["tokens"]
    assert [(each["name"], each["note"]) for each in listed] == [("nightly", "for Ana's job")] * 2
    assert listed[0]["id"] != listed[1]["id"]
    shown = run("token", "list", *root, home=tmp_path).out.splitlines()[1].split("\t")
    assert (shown[1], shown[-1]) == ("nightly", "for Ana's job")

    for wrong in (("--name", ""), ("--name", "n" * 101), ("--note", "two\nlines")):
        refused = run("token", "create", *root, *wrong, "--json", home=tmp_path)
        assert (refused.code, refused.error["code"]) == (2, "invalid_input")
    assert len(list((tmp_path / "root/.lakeferry/tokens").iterdir())) == 2
