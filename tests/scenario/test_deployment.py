"""The files in ``deploy``: what they name is there in a running server, and in the program."""

from __future__ import annotations

import json
import re
import shlex
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import lakeferry
from lakeferry.errors import LakeferryError
from tests.support.history import Append, History
from tests.support.page_commands import parse
from tests.unit.cli.program import make
from tools.docs.error_reference import classes

DEPLOY = Path(__file__).parents[2] / "deploy"
_NAME = re.compile(r"\b(?:lakeferry|process)_\w+")
_MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"')
_GROUPED = re.compile(r"\bby \(([^)]*)\)")
# What Prometheus itself adds.
_ADDED = {"job", "instance"}


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return the metrics of a server that was pushed to, with their labels."""
    folder = tmp_path_factory.mktemp("deployed")
    table = make(History().then(Append(1)), folder / "t")
    with lakeferry.Server(str(folder / "root")) as server:
        token = lakeferry.create_token(str(folder / "root"), scope="write")
        assert isinstance(token, str)
        lakeferry.Table(str(table)).push(f"{server.url}/t", token=token)
        with pytest.raises(LakeferryError, match="401"):
            lakeferry.Table(str(folder / "copy")).pull(f"{server.url}/t", token="lf_no_x")
        with urllib.request.urlopen(f"{server.url}/metrics") as answer:
            text = answer.read().decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def _dashboard() -> Any:
    return json.loads((DEPLOY / "grafana-dashboard.json").read_text())


def _rules() -> list[Any]:
    (group,) = yaml.safe_load((DEPLOY / "prometheus-alerts.yml").read_text())["groups"]
    rules: list[Any] = group["rules"]
    return rules


def _expressions() -> Iterator[tuple[str, str]]:
    for panel in _dashboard()["panels"]:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]
    for rule in _rules():
        yield rule["alert"], rule["expr"]


@pytest.mark.parametrize(("shown", "expression"), list(_expressions()), ids=lambda each: each[:40])
def test_each_metric_and_label_is_one_of_a_running_server(
    shown: str, expression: str, samples: dict[str, set[str]]
) -> None:
    names = set(_NAME.findall(expression))
    assert names <= samples.keys()
    labels = set().union(*(samples[name] for name in names)) | _ADDED
    used = {name for name, _ in _MATCHER.findall(expression)}
    used |= {name.strip() for group in _GROUPED.findall(expression) for name in group.split(",")}
    assert used <= labels


def test_the_dashboard_shows_every_metric_of_the_server(samples: dict[str, set[str]]) -> None:
    text = " ".join(expression for _, expression in _expressions())
    ours = {name for name in samples if name.startswith("lakeferry_")}
    ours = {name for name in ours if not name.endswith(("_created", "_sum", "_count"))}
    assert ours <= set(_NAME.findall(text))


def test_outcomes_in_expressions_are_codes_of_errors() -> None:
    known = {each.code for each in classes()} | {"done", "client_left"}
    for _, expression in _expressions():
        for label, value in _MATCHER.findall(expression):
            if label == "outcome":
                assert set(value.split("|")) <= known


def test_each_alert_is_explained() -> None:
    page = (DEPLOY.parent / "docs" / "operations" / "monitoring.md").read_text()
    for rule in _rules():
        assert f"| `{rule['alert']}` |" in page
        assert {"summary", "description"} <= rule["annotations"].keys()
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}


def test_panels_have_names_of_their_own_and_dont_overlap() -> None:
    panels = _dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_the_service_and_the_container_start_the_program_with_options_that_it_has() -> None:
    unit = (DEPLOY / "lakeferry.service").read_text()
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    program, *words = shlex.split(line.replace("${LAKEFERRY_PORT}", "8470"))
    assert program == "/opt/lakeferry/bin/lakeferry"
    assert parse(words).params["log_format"] == "json"
    recipe = (DEPLOY / "Containerfile").read_text()
    (command,) = re.findall(r"^CMD (.*)$", recipe, re.MULTILINE)
    assert parse(json.loads(command)).params["host"] == "0.0.0.0"


def test_the_proxy_passes_what_the_server_needs() -> None:
    proxy = (DEPLOY / "nginx.conf").read_text()
    for needed in (
        "proxy_request_buffering off;",
        "client_max_body_size    0;",
        "proxy_set_header   Upgrade    $http_upgrade;",
        "server 127.0.0.1:8470;",
    ):
        assert needed in proxy
