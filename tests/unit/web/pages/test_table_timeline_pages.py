from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from lakeferry.catalogs.places import Places
from lakeferry.config import Config
from tests.support.history import Append, Checkpoint, Delete, History, Layout, SetProperties
from tests.unit.api.test_table_timeline import long_log
from tests.unit.cli.program import make
from tests.unit.web.asgi_visitor import AsgiVisitor

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
PAST = History(Layout(partitioned=True)).then(Append(20), Checkpoint(), Delete(2))


class Seen(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def visitor(tmp_path: Path) -> AsgiVisitor:
    environment = {"LAKEFERRY_SQL_URL": f"sqlite:///{tmp_path}/fleet.db"}
    return AsgiVisitor.of(Config(environment=environment))


def at(place: object, path: str = "/-/tables", **query: object) -> str:
    return f"{path}?{urlencode({'at': str(place), **query})}"


def strangely_named(place: Path) -> Path:
    """Make a table in which every text that somebody may choose is a script."""
    make(PAST.then(SetProperties(((EVIL, EVIL),))), place)
    for commit in (place / "_delta_log").glob("*.json"):
        lines = []
        for line in commit.read_text().splitlines():
            action = json.loads(line)
            for name, value in action.items():
                _spoil(name, value)
            lines.append(json.dumps(action))
        commit.write_text("\n".join(lines))
    for checkpoint in (place / "_delta_log").glob("*checkpoint*"):
        checkpoint.unlink()
    return place


def _spoil(name: str, value: Any) -> None:
    if name == "commitInfo":
        value |= {"operation": EVIL, "engineInfo": EVIL, "userName": EVIL}
    elif name == "metaData":
        schema = json.loads(value["schemaString"])
        for each in schema["fields"]:
            if each["name"] == "part":
                each["name"] = EVIL
        value |= {"partitionColumns": [EVIL], "schemaString": json.dumps(schema), "name": EVIL}
    elif name in ("add", "remove"):
        value["partitionValues"] = {EVIL: EVIL}


def test_a_table_is_shown_with_its_versions_properties_and_command(
    tmp_path: Path, visitor: AsgiVisitor
) -> None:
    place = make(PAST.then(SetProperties((("delta.appendOnly", "false"),))), tmp_path / "orders")
    answer = visitor.get(at(place))
    text = Seen(answer.text).text
    assert answer.status == 200
    assert "classic checkpoint" in text
    assert "delta.appendOnly = false" in text
    assert f"lakeferry history {place} --no-follow" in text
    assert "nobody that is known" in text
    assert "Who can read these versions" in text
    files = Seen(visitor.get(at(place, "/-/tables/files")).text).text
    assert "18 files" in files
    assert "up to 64.0 KiB" in files
    assert "64.0 KiB to 256.0 KiB" not in files, "none is larger"
    assert "=null" in files


def test_strings_of_a_table_are_shown_and_run_nothing(tmp_path: Path, visitor: AsgiVisitor) -> None:
    place = strangely_named(tmp_path / "a<b>")
    for path in ("/-/tables", "/-/tables/files"):
        answer = visitor.get(at(place, path))
        assert answer.status == 200
        seen = Seen(answer.text)
        assert EVIL in seen.text
        assert "<script>" not in answer.text
        assert seen.tags.count("script") == 1, "the console's own"
        assert "img" not in seen.tags
        assert not any(name.startswith("on") or name == "style" for name in seen.attributes)


def test_the_page_of_a_hundred_thousand_commits_is_small(
    visitor: AsgiVisitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = long_log()
    monkeypatch.setattr(Places, "open", lambda *_: store)
    store.calls.reset()
    answer = visitor.get(at("/long"))
    assert answer.status == 200
    assert len(answer.body) < 200_000
    assert store.calls["LIST"] == 1
    assert store.calls["GET"] + store.calls["RANGE"] < 70
    # The numbers of the whole log come after the page, or when the link is followed.
    (link,) = re.findall(r'id="table-log" data-load="([^"]+)"', answer.text)
    log = visitor.get(html.unescape(link))
    assert "100,000 commits" in Seen(log.text).text
    assert log.text.count('class="bar here"') == 1
    older = visitor.get(at("/long", before=50_050))
    assert "Versions 50,000 to 50,049" in Seen(older.text).text
    assert len(older.body) < 200_000


def test_a_place_without_a_table_is_told(tmp_path: Path, visitor: AsgiVisitor) -> None:
    answer = visitor.get(at(tmp_path / "nothing"))
    assert answer.status == 404
    assert "there is no table" in answer.text
    assert visitor.get(at("x" * 9_000)).status == 400
    assert visitor.get("/-/tables/files").status == 400


def test_without_a_place_it_is_asked_for(visitor: AsgiVisitor) -> None:
    answer = visitor.get("/-/tables")
    assert answer.status == 200
    assert 'name="at"' in answer.text
    assert quote("/-/tables") in answer.text
