"""The site: its links, its diagrams, and the references that are made from the source."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import lakeferry
from tests.support import remedies
from tools.docs import (
    command_reference,
    drawings,
    error_reference,
    metric_reference,
    python_reference,
    setting_reference,
    site_hooks,
    state_diagram,
)
from tools.docs.repository_pages import ROOT, for_site, linked_files, repository_path, site_path

SVG = "{http://www.w3.org/2000/svg}"
DIAGRAM = """stateDiagram-v2
    [*] --> NORMAL
    NORMAL --> MOVING: enable
    MOVING --> READY: resume
    MOVING --> NORMAL: cancel
    READY --> READY: change
    NORMAL --> READY: skip now
"""


@pytest.mark.parametrize(
    ("page", "link", "wanted"),
    [
        ("index.md", "docs/redirect.md#states", "redirect.md#states"),
        ("index.md", "docs/decisions/0036-the-fleet.md", "decisions/0036-the-fleet.md"),
        ("index.md", "bench/README.md", "benchmarks.md"),
        ("index.md", "LICENSE", "files/LICENSE"),
        ("benchmarks.md", "copies.py", "files/bench/copies.py"),
        ("install.md", "../deploy/Containerfile", "files/deploy/Containerfile"),
        ("decisions/0036-the-fleet.md", "../fleet.md", "../fleet.md"),
        ("fleet.md", "decisions/0036-the-fleet.md", "decisions/0036-the-fleet.md"),
        ("reference/errors.md", "../cli.md", "../cli.md"),
        ("contributing.md", "CHANGELOG.md", "changes.md"),
        ("cli.md", "#settings", "#settings"),
        ("cli.md", "https://semver.org/", "https://semver.org/"),
    ],
)
def test_a_link_of_the_repository_becomes_one_of_the_site(
    page: str, link: str, wanted: str
) -> None:
    assert for_site(page, f"see [it]({link}).") == f"see [it]({wanted})."


def test_code_stays_as_it_is_but_for_pipes_in_tables() -> None:
    fenced = "```\n[a](../x.md) \\|\n```"
    assert for_site("cli.md", fenced) == fenced
    assert for_site("cli.md", "| `a \\| b` | c \\| d |") == "| `a | b` | c \\| d |"


def test_files_to_which_pages_link_are_on_the_site() -> None:
    text = "[a](../deploy/Containerfile) [b](redirect.md) [c](https://x.org) ![d](images/a.svg)"
    assert [*linked_files("install.md", text)] == ["deploy/Containerfile"]


@pytest.mark.parametrize("page", ["index.md", "changes.md", "reference/errors.md"])
def test_a_page_is_found_by_both_of_its_names(page: str) -> None:
    assert site_path(repository_path(page)) == page
    assert (ROOT / repository_path(page)).is_file()


def _drawn(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(state_diagram.draw(text, "A table's states"))


def test_a_diagram_shows_each_state_and_each_event() -> None:
    drawing = _drawn(DIAGRAM)
    shown = [each.text for each in drawing.iter(f"{SVG}text")]
    for word in ("NORMAL", "MOVING", "READY", "enable", "resume", "cancel", "↻ change", "skip now"):
        assert shown.count(word) == 1, word


def test_a_diagram_is_described_for_those_who_dont_see_it() -> None:
    drawing = _drawn(DIAGRAM)
    assert drawing.get("role") == "img"
    ids = {each.get("id"): each.text or "" for each in drawing.iter() if each.get("id")}
    title, description = (ids[name] for name in (drawing.get("aria-labelledby") or "").split())
    assert title == "A table's states"
    for edge in state_diagram.transitions(DIAGRAM)[1:]:
        assert f"{edge.source} to {edge.target} by “{edge.event}”" in description


def test_every_diagram_of_the_documents_can_be_drawn() -> None:
    drawn = 0
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for block in page.read_text().split("```mermaid\n")[1:]:
            text = block.partition("```")[0]
            drawing = _drawn(text)
            width = float(drawing.get("width") or "0")
            assert 100 < width < 1100, page
            # Nobody can read a label that begins outside of the picture.
            places = [float(each.get("x") or "0") for each in drawing.iter(f"{SVG}text")]
            assert 10 < min(places) <= max(places) < width - 10
            drawn += 1
    assert drawn >= 6


@pytest.mark.parametrize("text", ["sequenceDiagram\n A->>B: x\n", "stateDiagram-v2\n a -> b\n"])
def test_what_cant_be_drawn_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"diagram|transition"):
        state_diagram.draw(text, "x")


def test_the_reference_has_every_command_with_its_options_and_examples() -> None:
    page = command_reference.command_page()
    count = 0
    for words, command in command_reference.commands():
        assert f"# lakeferry {' '.join(words)}\n" in page
        for option in command.params:
            if isinstance(option, click.Option) and "--json" not in option.opts:
                assert f"`{option.opts[0]}`" in page, (words, option.opts)
        for line, _ in getattr(command, "examples", ()):
            assert f"\n{line}\n" in page
            count += 1
    assert count > 60


def test_the_reference_has_every_public_name() -> None:
    page = python_reference.python_page()
    for name in set(lakeferry.__all__) - {"__version__", "spark"}:
        assert f"# {name}\n" in page, name
    for name, _ in python_reference.methods(lakeferry.Table):
        assert f"### Table.{name}\n" in page
    # Options that come as a dictionary, and a class that is imported for its annotation only.
    assert "| `replace_closed_target` | `bool` |" in page
    assert "### Transferred\n" in page


def test_the_reference_has_every_error_and_its_remedies() -> None:
    page = error_reference.error_page()
    for each in error_reference.classes():
        assert f"## {each.code}\n" in page
    fixed = [site for site in remedies.sites().values() if not site.text.startswith("<")]
    found = [site for site in fixed if error_reference._cell(site.text.replace("{}", "…")) in page]
    assert len(found) > 0.8 * len(fixed)


def test_the_message_of_an_error_is_read_from_where_it_is_raised() -> None:
    code = """
HINT = "wait"
def f(x):
    raise TimedOut(f"{x} took too long", remedy=HINT if x else "hurry")
"""
    found = error_reference.raised({"a.py": code})["TimedOut"]
    assert [(each.problem, each.remedy) for each in found] == [
        ("… took too long", "hurry"),
        ("… took too long", "wait"),
    ]


def test_every_variable_that_the_source_reads_is_explained() -> None:
    assert setting_reference.variables_in_source() == setting_reference.VARIABLES.keys()
    page = setting_reference.setting_page()
    assert "`catalog.sql_url`" in page
    assert "`UC_TOKEN`" in page


def test_every_metric_of_the_server_is_listed() -> None:
    names = {name for name, *_ in metric_reference.metrics()}
    assert {"lakeferry_sessions", "lakeferry_commits_total", "lakeferry_held_bytes"} <= names
    assert "| `lakeferry_sessions` | gauge | `op` |" in metric_reference.metric_page()


@pytest.mark.parametrize(
    ("text", "loaded"),
    [
        ('<script src="https://cdn.example.com/a.js"></script>', "https://cdn.example.com/a.js"),
        ('<link rel="stylesheet" href="//fonts.example.com/f">', "//fonts.example.com/f"),
        ("@import url('https://x.example.com/a.css')", "https://x.example.com/a.css"),
    ],
)
def test_what_a_page_loads_from_elsewhere_is_found(text: str, loaded: str) -> None:
    assert site_hooks.loads(text)[0] == loaded
    assert site_hooks.loads('<a href="https://semver.org/">x</a><img src="images/a.svg">') == []


@pytest.mark.parametrize("draw", drawings.DRAWINGS, ids=lambda draw: draw.__name__)
def test_a_picture_is_drawn_as_it_is_in_the_documents(draw: Callable[[], drawings.Drawing]) -> None:
    drawing = draw()
    assert (drawings.FOLDER / f"{drawing.name}.svg").read_text() == drawing.svg()
    root = ElementTree.fromstring(drawing.svg())
    ids = {each.get("id"): each.text or "" for each in root.iter() if each.get("id")}
    title, description = (ids[name] for name in (root.get("aria-labelledby") or "").split())
    assert title
    assert len(description) > 100


def test_pictures_and_the_site_have_the_same_classes() -> None:
    style = (ROOT / "docs/stylesheets/site.css").read_text()
    for draw in drawings.DRAWINGS:
        used = {
            name
            for each in ElementTree.fromstring(draw().svg()).iter()
            for name in (each.get("class") or "").split()
        }
        for name in used - {"wide"}:
            assert f".drawing .{name} {{" in style, name


def test_each_reference_has_its_place_on_a_page() -> None:
    text = "\n".join(path.read_text() for path in Path(ROOT, "docs/reference").glob("*.md"))
    for name in site_hooks.REFERENCES:
        assert text.count(f"<!-- from the source: {name} -->") == 1
