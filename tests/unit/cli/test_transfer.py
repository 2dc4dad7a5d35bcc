"""``push`` and ``pull`` as a user runs them: documents, exit codes, where a token comes from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakeferry.storage import open_store
from tests.support.transfer_server import TransferServer
from tests.unit.cli.program import run
from tests.unit.transfer.client.test_push_and_pull import chain, laid_out


@pytest.fixture
def server() -> Iterator[TransferServer]:
    with TransferServer(laid_out(chain())) as running:
        running.token = "secret"
        yield running


def test_a_dataset_comes_and_goes_on(server: TransferServer, tmp_path: Path) -> None:
    came = run("pull", server.url, "d", "--json", home=tmp_path, variables=token("secret"))
    assert (came.code, came.err) == (0, "")
    assert came.document == {
        "head": server.head,
        "blocks": 4,
        "objects": 5,
        "bytes": sum(len(data) for path, data in server.files.items() if path[0] in "dc"),
        "skipped": 0,
        "changed": True,
    }
    with TransferServer() as other:
        went = run("push", "d", f"odf+{other.url}", "--visibility", "public", home=tmp_path)
        assert went.code == 0, went.err
        assert other.files == server.files
        assert "pushed 4 blocks, 5 objects" in went.out
        again = run("push", "d", other.url, "--json", home=tmp_path)
    assert (again.code, again.document["changed"]) == (0, False)


def token(value: str) -> dict[str, str]:
    return {"LAKEFERRY_TOKEN": value}


def test_errors_have_their_codes(server: TransferServer, tmp_path: Path) -> None:
    def code_of(*words: str) -> tuple[int, str]:
        ended = run(*words, "--json", home=tmp_path)
        assert ended.out == ""
        return ended.code, ended.error["code"]

    right = ("--token", "secret")
    assert code_of("pull", server.url, "d") == (1, "unauthorized")
    assert code_of("push", "d", server.url, *right) == (1, "table_not_found")
    assert code_of("pull", "gopher://h/d", "d") == (2, "invalid_input")
    assert code_of("pull", server.url, "d", "--token", "\t") == (2, "invalid_input")
    assert code_of("pull", server.url, "d", "--allow-host", "http://h") == (2, "invalid_input")
    assert code_of("pull", server.url, "d", "--limit-rate", "fast") == (2, "invalid_input")
    assert code_of("pull", server.url, "d", "--parallel", "0") == (2, "invalid_input")
    # Nonsense of the server's isn't the user's.
    server.edit = lambda name, message: "nonsense" if name == "plan" else message
    assert code_of("pull", server.url, "d", *right) == (1, "invalid_input")


def test_a_dry_run_does_nothing(server: TransferServer, tmp_path: Path) -> None:
    ended = run("pull", server.url, "d", "--dry-run", "--json", "--token", "secret", home=tmp_path)
    assert ended.code == 0, ended.err
    assert ended.document["dry_run"] is True
    assert [step["op"] for step in ended.document["plan"]] == ["pull"]
    assert not open_store(str(tmp_path / "d")).is_occupied()
