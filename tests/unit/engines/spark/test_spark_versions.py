from __future__ import annotations

import re
from pathlib import Path

import pytest

from lakeferry.engines.spark import spark_versions
from lakeferry.engines.spark.spark_versions import NEWEST_WITH_DELTA, SPARK_LINES, line_of
from lakeferry.errors import InvalidInput

DECISION = Path(__file__).parents[4] / "docs/decisions/0033-ranges-of-versions.md"


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("3.5.0", "3.5"),
        ("3.5.9-amzn-1", "3.5"),
        ("4.0.0.dev0", "4.0"),
        ("4.2.1", "4.2"),
        ("4.3.0", "4.3"),
        ("4.17.0", "4.3"),
        ("5.0", "4.3"),
    ],
)
def test_a_version_is_of_its_line_and_what_is_newer_is_of_the_newest(
    version: str, line: str
) -> None:
    assert line_of(version).line == line


@pytest.mark.parametrize("version", ["3.4.4", "2.4.8", "unknown"])
def test_a_line_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(version)) as refused:
        line_of(version)
    assert "--engine local" in str(refused.value.remedy)


def test_releases_that_delta_lake_fails_with_are_known() -> None:
    fails = {v: line_of(v).delta_fails_with(v) for v in ("4.1.1", "4.1.4", "4.2.0", "4.3.0")}
    assert fails == {"4.1.1": False, "4.1.4": True, "4.2.0": False, "4.3.0": True}


def test_the_line_of_the_lock_is_the_newest_that_has_delta_lake() -> None:
    assert [each for each in SPARK_LINES if each.delta][-1] == NEWEST_WITH_DELTA
    lock = (Path(__file__).parents[4] / "requirements.lock").read_text()
    for package, version in (
        ("pyspark", NEWEST_WITH_DELTA.pyspark),
        ("delta-spark", NEWEST_WITH_DELTA.delta),
    ):
        assert f"\n{package}=={version} \\" in lock


def test_the_decision_names_the_packages_of_each_line() -> None:
    text = DECISION.read_text()
    for each in SPARK_LINES:
        if each.packages:
            assert f"| {each.line} | {each.delta} | `{each.packages}` |" in text


def test_the_installed_version_is_read_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As with SPARK_HOME, where no package was installed.
    monkeypatch.setattr(spark_versions, "pyspark_folder", lambda: tmp_path)
    (tmp_path / "version.py").write_text('# ...\n__version__: str = "4.0.3-vendor"\n')
    assert spark_versions.installed_pyspark() == "4.0.3-vendor"
    monkeypatch.setattr(spark_versions, "pyspark_folder", lambda: None)
    assert spark_versions.installed_pyspark() is None
