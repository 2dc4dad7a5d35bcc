"""Every command that a page shows is run here, or is listed with the reason why it can't be.

A command that can't be run is at least parsed: its options have to be those of the program.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import click
import pytest

from lakeferry import config
from tests.support.documented_world import DocumentedWorld
from tests.support.page_commands import blocks, calls, parse
from tests.support.unity_server import UnityServer

TOP = Path(__file__).parents[2]
PAGES = [
    TOP / "README.md",
    TOP / "CONTRIBUTING.md",
    TOP / "tests/support/README.md",
    *sorted((TOP / "docs").rglob("*.md")),
]
_INSTALLS = "it installs packages from an index; tests/scenario/test_wheel.py installs the wheel"
_LAKEFS = "it needs a lakeFS; tests/scenario/test_lakefs_webhook.py and test_export.py have one"
_CLUSTER = "it needs a Spark cluster; tests/compat/test_submitted_jobs.py has one"
_CHANGES_MACHINE = "it changes the machine: users, services, packages of the system"
NOT_RUN = {
    ("README.md", "lakeferry export lakefs://sales/main/orders"): _LAKEFS,
    ("README.md", "pip install lakeferry"): _INSTALLS,
    ("README.md", "make demo"): "tests/scenario/test_cli_demo.py runs the demo",
    ("tests/support/README.md", ".venv/bin/pytest"): "it is a test itself",
    ("docs/console.md", "lakeferry ui"): "it goes on until Ctrl-C",
    ("docs/export.md", "lakeferry export lakefs://sales/main/orders"): _LAKEFS,
    ("docs/fleet.md", "lakeferry fleet run --window"): "it waits until the evening",
    ("docs/first-move.md", "python3 -m venv ferry"): _INSTALLS,
    ("docs/install.md", "python3 -m venv /opt/lakeferry"): _INSTALLS,
    ("docs/install.md", "pip install lakeferry"): _INSTALLS,
    ("docs/install.md", "python3 -m venv job"): _INSTALLS,
    ("docs/install.md", "export PYSPARK_PYTHON"): _CLUSTER,
    ("docs/install.md", "make dist"): "make dist and podman run outside of the tests",
    ("docs/install.md", "useradd"): _CHANGES_MACHINE,
    ("docs/lakefs-webhook.md", "export LAKEFERRY_WEBHOOK_SECRET"): _LAKEFS,
    ("docs/lakefs-webhook.md", "lakeferry lakefs init"): _LAKEFS,
    ("docs/operations/backup.md", "rsync"): "rsync isn't everywhere; it was tried by hand",
    ("docs/operations/backup.md", "pg_dump"): "it asks for a password",
    ("docs/operations/monitoring.md", "install"): _CHANGES_MACHINE,
    ("docs/operations/postgresql.md", "pip install"): _INSTALLS,
    ("docs/operations/server.md", "python3 -m venv /opt/lakeferry"): _CHANGES_MACHINE,
    ("docs/operations/server.md", "make dist"): "make dist and podman run outside of the tests",
    ("docs/operations/tls.md", "install"): _CHANGES_MACHINE,
    ("docs/operations/tls.md", "export SSL_CERT_FILE"): (
        "it needs a certificate; tests/scenario/test_transfer_tls.py has one"
    ),
    ("docs/transfer.md", "lakeferry push acme/big"): (
        "somebody interrupts it; tests/scenario/test_transfer_faults.py interrupts such pushes"
    ),
    ("docs/transfer.md", "lakeferry push acme/orders http://localhost:8470"): (
        "its server has its root in an object store; tests/scenario/test_transfer_urls.py has one"
    ),
    ("docs/transfer.md", "lakeferry gc ./server --dry-run"): (
        "it shows what an interrupted push has left; tests/scenario/test_transfer_gc.py does that"
    ),
}
"""Blocks that aren't run, by their page and how their first command begins, with the reason."""


def name(page: Path) -> str:
    return page.relative_to(TOP).as_posix()


def reason(page: Path, first: str) -> str | None:
    """Return why a block isn't run, or None if it is."""
    found = [
        why
        for (where, begins), why in NOT_RUN.items()
        if where == name(page) and first.startswith(begins)
    ]
    assert len(found) <= 1, (page, first)
    return found[0] if found else None


WITH_COMMANDS = [page for page in PAGES if blocks(page.read_text())]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name)
def test_the_commands_of_a_page_do_what_it_shows(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unity() -> UnityServer:
        server: UnityServer = request.getfixturevalue("unity")
        return server

    def postgresql() -> str:
        url: str = request.getfixturevalue("postgresql_url")
        return url

    # What tests make in this process belongs to the world, too.
    monkeypatch.setenv("HOME", str(tmp_path))
    world = DocumentedWorld(tmp_path, unity, postgresql)
    wrong = []
    try:
        for block in blocks(page.read_text()):
            if reason(page, block.first) is not None:
                assert block.events == (), block.first
                continue
            for event in block.events:
                world.happen(event)
            for command in block.commands:
                wrong += [f"$ {command.line}\n{each}" for each in world.run(command)]
    finally:
        world.close()
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name)
def test_every_command_has_options_that_the_program_knows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = []
    for block in blocks(page.read_text()):
        for words in (words for each in block.commands for words in calls(each.line)):
            for word in words:
                if word.endswith(".csv"):
                    Path(word).touch()
            try:
                parse(words)
            except click.UsageError as error:
                wrong.append(f"{' '.join(words)}: {error.format_message()}")
    assert wrong == []


def test_no_reason_is_about_a_block_that_is_gone() -> None:
    for where, begins in NOT_RUN:
        firsts = [block.first for block in blocks((TOP / where).read_text())]
        assert sum(first.startswith(begins) for first in firsts) == 1, (where, begins)


def test_a_reason_names_tests_that_are_there() -> None:
    named = {test for why in NOT_RUN.values() for test in re.findall(r"tests/[\w/]+\.py", why)}
    assert len(named) > 5
    assert [test for test in sorted(named) if not (TOP / test).is_file()] == []


def test_no_command_is_in_a_block_that_no_test_sees() -> None:
    for page in PAGES:
        text = page.read_text()
        for kind, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            if kind in ("", "text", "bash", "shell"):
                seen = [
                    line for line in block.splitlines() if re.match(r"(\$ )?lakeferry [a-z]", line)
                ]
                assert seen == [], f"{name(page)}: make this a block of the kind console: {seen}"


def test_targets_of_make_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (TOP / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        text = page.read_text()
        code = re.findall(r"^(?:\$ )?make ([a-z-]+)|`make ([a-z-]+)", text, re.MULTILINE)
        assert {one or other for one, other in code} <= targets, page


def _blocks_of(kind: str) -> list[tuple[str, str]]:
    fence = re.compile(rf"^```{kind}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [
        (f"{name(page)} {number}", block)
        for page in PAGES
        for number, block in enumerate(fence.findall(page.read_text()))
    ]


def _shortly(value: str) -> str:
    return value.partition("\n")[0][:60]


@pytest.mark.parametrize(("shown", "code"), _blocks_of("python"), ids=_shortly)
def test_python_on_pages_is_python(shown: str, code: str) -> None:
    compile(code, shown, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize(("shown", "code"), _blocks_of("toml"), ids=_shortly)
def test_settings_on_pages_are_accepted(shown: str, code: str, tmp_path: Path) -> None:
    (tmp_path / config.FILE_NAME).write_text(code)
    assert config.read_file(tmp_path / config.FILE_NAME) is not None


@pytest.mark.parametrize(("shown", "text"), _blocks_of("json"), ids=_shortly)
def test_documents_on_pages_are_json(shown: str, text: str) -> None:
    json.loads(text)
