from __future__ import annotations

import importlib.metadata

import pytest

from lakeferry import packages
from lakeferry.packages import Requirement, package_at_fault, requirements, unmet_requirements

LINES = [
    "click>=8.3",
    "obstore<0.13,>=0.12",
    "pyyaml>=6.0.2",
    "delta-spark!=4.4.1,<5,>=4.4 ; extra == 'spark'",
    "lakeferry[spark,postgresql] ; extra == 'all'",
]


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: LINES)


@pytest.mark.usefixtures("metadata")
def test_requirements_are_those_of_the_metadata() -> None:
    assert requirements() == [
        Requirement("click", ">=8.3"),
        Requirement("obstore", "<0.13,>=0.12"),
        Requirement("pyyaml", ">=6.0.2"),
        Requirement("delta-spark", "!=4.4.1,<5,>=4.4", "spark"),
    ]


@pytest.mark.parametrize(
    ("versions", "version", "accepted"),
    [
        ("<0.13,>=0.12", "0.12", True),
        ("<0.13,>=0.12", "0.12.9", True),
        ("<0.13,>=0.12", "0.13.0", False),
        ("<0.13,>=0.12", "0.9", False),
        (">=8.3", "8.3.0", True),
        (">=8.3", "10.0", True),
        (">=8.3.0", "8.3", True),
        ("!=4.4.1,<5,>=4.4", "4.4.1", False),
        ("!=4.4.1,<5,>=4.4", "4.4.0", True),
        (">=1.0", "1.0rc1", True),
        ("", "1", True),
    ],
)
def test_a_version_is_in_its_range_or_not(versions: str, version: str, accepted: bool) -> None:
    assert Requirement("x", versions).accepts(version) is accepted


@pytest.mark.usefixtures("metadata")
@pytest.mark.parametrize(
    ("module", "package", "remedy"),
    [
        ("obstore.store", "obstore", "pip install 'obstore<0.13,>=0.12'"),
        ("yaml", "pyyaml", "pip install 'pyyaml>=6.0.2'"),
        ("delta.tables", "delta-spark", "pip install 'lakeferry[spark]'"),
        ("multidict", "multidict", "pip install 'multidict'"),
    ],
)
def test_a_package_that_is_missing_is_named(
    module: str, package: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "_installed", lambda _: None)
    missing = package_at_fault(ModuleNotFoundError(f"No module named {module!r}", name=module))
    assert missing is not None
    assert missing.message == f"the Python package {package} isn't installed"
    assert (missing.remedy, missing.fields) == (remedy, {"package": package})


@pytest.mark.usefixtures("metadata")
def test_a_package_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_installed", {"click": "8.1.7"}.get)
    error = ImportError("cannot import name 'X' from 'click.shell'", name="click.shell")
    missing = package_at_fault(error)
    assert missing is not None
    assert missing.message == "the Python package click 8.1.7 lacks what this needs"
    assert [(each.package, version) for each, version in unmet_requirements()] == [
        ("click", "8.1.7"),
        ("obstore", None),
        ("pyyaml", None),
    ]


@pytest.mark.usefixtures("metadata")
def test_what_fails_with_an_older_package_than_required_blames_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = TypeError("type 'ParamType' is not subscriptable")
    monkeypatch.setattr(packages, "_installed", {"click": "8.1.7"}.get)
    blamed = package_at_fault(failed)
    assert blamed is not None
    assert str(blamed) == f"Lakeferry requires a newer click: TypeError: {failed}"
    assert blamed.remedy == "pip install 'click>=8.3'"
    monkeypatch.setattr(packages, "_installed", {"click": "8.3", "obstore": "0.12"}.get)
    assert package_at_fault(failed) is None


def test_a_python_without_a_module_of_its_own_is_named() -> None:
    missing = package_at_fault(ModuleNotFoundError("No module named '_sqlite3'", name="_sqlite3"))
    assert missing is not None
    assert "standard library" in missing.message
    assert missing.remedy == "use a Python that was built with it"


def test_a_module_of_ours_that_is_missing_is_a_defect() -> None:
    assert package_at_fault(ModuleNotFoundError("x", name="lakeferry.nothing")) is None
    assert package_at_fault(ImportError("x")) is None


def test_what_is_installed_here_is_all_that_is_required() -> None:
    assert len(requirements()) > 14
    assert unmet_requirements() == []
