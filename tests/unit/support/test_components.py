"""Which components are installed by whom, and what comes of those that can't be."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import components
from tests.support.components import Component, ComponentError


def fail() -> None:
    raise ComponentError("the package is out of reach")


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Component:
    """A package of the system that isn't there and that root can install with ``sh``."""
    monkeypatch.setenv("LAKEFERRY_CACHE", str(tmp_path))
    found = replace(
        components.COMPONENTS["postgresql"], program="sh", locate=lambda: None, install=fail
    )
    monkeypatch.setitem(components.COMPONENTS, "postgresql", found)
    return found


def test_whoever_isn_t_root_is_told_the_command(
    missing: Component, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not missing.installable
    assert missing.remedy.startswith("run `sudo apt-get install")


@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_a_package_that_cannot_be_had_is_a_failure_in_ci_only(
    missing: Component, monkeypatch: pytest.MonkeyPatch, user: int, ci: str, code: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setenv("CI", ci)
    assert components.main(["install", "postgresql"]) == code
    outcome = pytest.fail.Exception if ci else pytest.skip.Exception
    with pytest.raises(outcome, match="postgresql is not installed: run"):
        components.require("postgresql")


def test_what_cannot_be_built_is_a_failure_everywhere(
    missing: Component, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = replace(missing, root_command=None)
    monkeypatch.setitem(components.COMPONENTS, "postgresql", built)
    monkeypatch.setenv("CI", "")
    assert components.main(["install", "postgresql"]) == 1


@pytest.mark.parametrize("name", ["postgresql", "chromium"])
def test_a_package_of_the_system_is_installed_from_a_new_list_of_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv("LAKEFERRY_CACHE", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(components, "_NO_CLUSTER", tmp_path / "no" / "cluster.conf")
    asked = tmp_path / "asked"
    program = tmp_path / "apt-get"
    program.write_text(f'#!/bin/sh\necho "$*" >> {asked}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = replace(components.COMPONENTS[name], locate=lambda: None)
    monkeypatch.setitem(components.COMPONENTS, name, found)
    assert components.main(["install", name]) == 0
    assert asked.read_text().splitlines() == [
        "update",
        f"install --yes --no-install-recommends {name}",
    ]
