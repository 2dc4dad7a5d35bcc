"""delta-spark in its testing mode and we understand each other's redirects.

It knows its own dialect in both modes then, and nothing of the RFC's.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import write_deltalake

import lakeferry
from lakeferry.api.redirects import Redirects
from lakeferry.errors import (
    Diverged,
    RedirectIllegalTransition,
    RedirectInProgress,
)
from lakeferry.redirect.states import RedirectState
from tests.support import components
from tests.support.preview_spark import PreviewError, PreviewSpark, preview_spark
from tests.support.redirected_tables import (
    MODES,
    MOVED_ON,
    ROWS,
    Places,
    Stage,
    at_stage,
    content,
    create,
    ids,
    newest_version,
    rows,
)

# A JVM of its own, beside the one that all other tests share.
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark of its own")]

IN_PROGRESS = "DELTA_COMMIT_INTERMEDIATE_REDIRECT_STATE"
AGAINST_THE_RULES = "DELTA_NO_REDIRECT_RULES_VIOLATED"
AT_TARGET = [*ROWS, MOVED_ON]


@pytest.fixture(scope="module")
def preview(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreviewSpark]:
    jars = components.require("spark-jars")
    with preview_spark(jars, tmp_path_factory.mktemp("preview")) as running:
        yield running


def followed(location: object) -> list[int]:
    """The rows that we find through a path."""
    found: list[int] = lakeferry.open(str(location)).to_table()["id"].to_pylist()
    return sorted(found)


# --- Redirects of ours ----------------------------------------------------------


def test_it_follows_ours_in_its_dialect_there_and_back(
    preview: PreviewSpark, tmp_path: Path
) -> None:
    places = create(tmp_path)
    places.move(mode="reader-writer", dialects=["delta-spark"])
    source = content(places.source)

    preview.insert(places.source, MOVED_ON)
    preview.sql(f"DELETE FROM delta.`{places.source}` WHERE id < 5")

    assert preview.ids(places.source) == AT_TARGET[5:]
    assert ids(places.target) == followed(places.source) == AT_TARGET[5:]
    assert preview.ids(places.source, follow=False) == ROWS
    assert content(places.source) == source
    logs = places.logs
    with pytest.raises(PreviewError, match=AGAINST_THE_RULES):
        preview.insert(places.source, 11, follow=False)
    assert places.logs == logs

    with Redirects() as moves:
        moves.disable(str(places.source))
    preview.insert(places.source, 11)
    assert preview.ids(places.source) == ids(places.source) == [*AT_TARGET[5:], 11]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("stage", "expected"), [(Stage.ENABLING, ROWS), (Stage.DROPPING, AT_TARGET)]
)
def test_it_waits_while_ours_is_set_up_or_withdrawn(
    stage: Stage, expected: list[int], mode: str, preview: PreviewSpark, tmp_path: Path
) -> None:
    places = at_stage(tmp_path, stage, mode, dialects=["delta-spark"])
    logs = places.logs
    assert preview.ids(places.source) == expected
    with pytest.raises(PreviewError, match=IN_PROGRESS):
        preview.insert(places.source, 11)
    assert places.logs == logs


def test_it_does_not_know_the_dialect_of_the_rfc(preview: PreviewSpark, tmp_path: Path) -> None:
    places = at_stage(tmp_path, Stage.READY, "reader-writer")
    with pytest.raises(PreviewError, match=r"redirectReaderWriter\b(?!-)"):
        preview.ids(places.source)


# --- Redirects of its own -------------------------------------------------------


@pytest.fixture
def copied(tmp_path: Path) -> Places:
    """A table and a copy of it, as delta-spark's redirects want it."""
    places = create(tmp_path)
    shutil.copytree(places.source, places.target)
    return places


@pytest.mark.parametrize("mode", MODES)
def test_its_redirect_that_is_being_set_up_can_be_cancelled_and_nothing_else(
    mode: str, preview: PreviewSpark, copied: Places
) -> None:
    preview.add_redirect(mode, copied.source, copied.target)
    source, target, logs = str(copied.source), str(copied.target), copied.logs
    with Redirects() as moves:
        found = moves.status(source)
        assert (found.state, found.mode, found.dialect) == (
            RedirectState.ENABLING,
            mode,
            ("delta-spark",),
        )
        assert found.target == copied.target.as_uri()
        assert not moves.resolve(source).redirected
        with pytest.raises(RedirectInProgress):
            moves.resolve(source, write=True)
        with pytest.raises(RedirectInProgress):
            moves.enable(source, target, mode=mode, to_existing=True)
        with pytest.raises(RedirectIllegalTransition, match="another program"):
            moves.resume(source)
        with pytest.raises(RedirectIllegalTransition):
            moves.disable(source)
        assert copied.logs == logs

        moves.cancel(source)

        assert moves.status(source).state is RedirectState.NORMAL
    write_deltalake(source, rows([MOVED_ON]), mode="append")
    preview.insert(copied.source, 11)
    assert preview.ids(copied.source) == ids(copied.source) == [*AT_TARGET, 11]


@pytest.mark.parametrize("mode", MODES)
def test_its_redirect_is_followed_and_ended_by_us(
    mode: str, preview: PreviewSpark, copied: Places
) -> None:
    preview.add_redirect(mode, copied.source, copied.target)
    preview.update_redirect(mode, copied.source, copied.target, "RedirectReady")
    preview.insert(copied.source, MOVED_ON)
    source, target = str(copied.source), str(copied.target)
    assert followed(source) == AT_TARGET
    files = lakeferry.Table(source).files().read_all()["path"].to_pylist()
    assert all(file.startswith(f"{copied.target.as_uri()}/") for file in files)
    write_deltalake(lakeferry.resolve(source, write=True), rows([11]), mode="append")
    assert preview.ids(source) == [*AT_TARGET, 11]

    logs, there = copied.logs, content(copied.target)
    with Redirects() as moves:
        found = moves.status(source)
        assert (found.state, found.mode, found.dialect) == (
            RedirectState.READY,
            mode,
            ("delta-spark",),
        )
        assert not moves.enable(source, target, mode=mode).changed
        with pytest.raises(RedirectIllegalTransition):
            moves.enable(source, f"{target}-elsewhere", mode=mode)
        with pytest.raises(RedirectIllegalTransition, match="another program"):
            moves.resume(source)
        with pytest.raises(RedirectIllegalTransition):
            moves.cancel(source)
        assert copied.logs == logs

        moves.disable(source)

    # Another program made the redirect: it goes, and nothing is brought back.
    assert preview.ids(source) == followed(source) == ids(source) == ROWS
    assert content(copied.target) == there
    preview.insert(source, 12)
    assert ids(source) == [*ROWS, 12]


@pytest.mark.parametrize("mode", MODES)
def test_its_redirect_that_is_being_withdrawn_is_withdrawn_by_us(
    mode: str, preview: PreviewSpark, copied: Places
) -> None:
    preview.add_redirect(mode, copied.source, copied.target)
    preview.update_redirect(mode, copied.source, copied.target, "RedirectReady")
    preview.update_redirect(mode, copied.source, copied.target, "DropRedirectInProgress")
    source = str(copied.source)
    with Redirects() as moves:
        assert moves.status(source).state is RedirectState.DROPPING
        assert moves.resolve(source).location == copied.target.as_uri()
        with pytest.raises(RedirectInProgress):
            moves.resolve(source, write=True)
        moves.disable(source)
        assert moves.status(source).state is RedirectState.NORMAL
    preview.insert(source, MOVED_ON)
    assert ids(source) == AT_TARGET


def test_its_redirect_by_a_statement_is_understood_with_its_rules(
    preview: PreviewSpark, copied: Places
) -> None:
    entry = {
        "type": "PathBasedRedirect",
        "state": "REDIRECT-READY",
        "spec": json.dumps({"sourcePath": str(copied.source), "destPath": str(copied.target)}),
        "noRedirectRules": [{"appName": "etl", "allowedOperations": ["WRITE"]}],
    }
    value = json.dumps(entry).replace("\\", "\\\\")
    preview.sql(
        f"ALTER TABLE delta.`{copied.source}` SET TBLPROPERTIES"
        f" ('delta.redirectReaderWriter-preview' = '{value}')"
    )
    source = str(copied.source)
    with Redirects() as moves:
        found = moves.status(source)
        assert (found.state, found.mode) == (RedirectState.READY, "reader-writer")
        assert [str(rule) for rule in found.rules] == ["etl:WRITE"]
        assert moves.resolve(source).location == copied.target.as_uri()
        assert moves.resolve(source, app_name="ETL").location == copied.source.as_uri()
    assert not lakeferry.Table(source).inspect().warnings


# --- No-redirect rules ----------------------------------------------------------


@pytest.fixture
def warned() -> list[str]:
    return []


def ruled(folder: Path, rule: str) -> Places:
    """A table that moved, with one more row at the target, and with a rule."""
    return at_stage(folder, Stage.READY, "writer-only", dialects=["delta-spark"], rules=[rule])


def test_a_rule_lets_its_app_commit_at_the_source_what_it_lists_and_nothing_else(
    preview: PreviewSpark, tmp_path: Path, warned: list[str]
) -> None:
    places = ruled(tmp_path, "etl:VACUUM")
    version = newest_version(places.source)
    assert preview.ids(places.source, app="etl") == ROWS
    for refused in (
        "INSERT INTO {} VALUES (11)",
        "DELETE FROM {} WHERE id = 1",
        "OPTIMIZE {}",
        "ALTER TABLE {} SET TBLPROPERTIES ('user.said' = 'yes')",
    ):
        with pytest.raises(PreviewError, match=AGAINST_THE_RULES):
            preview.sql(refused.format(f"delta.`{places.source}`"), app="etl")
    assert newest_version(places.source) == version

    preview.sql(f"VACUUM delta.`{places.source}`", app="etl")

    assert newest_version(places.source) == version + 2
    preview.insert(places.source, 11, app="another")
    assert ids(places.target) == [*AT_TARGET, 11]

    # The source has commits of its own now: the numbers can't match any more.
    with Redirects(warn=warned.append) as moves:
        done = moves.disable(str(places.source))
    assert any("all changes are brought back in one commit" in warning for warning in warned)
    # One with what changed, one for DROPPING, one for NORMAL.
    assert newest_version(places.source) == version + 2 + 3
    assert done.version == version + 5
    assert ids(places.source) == [*AT_TARGET, 11]
    assert preview.ids(places.source, app="etl") == [*AT_TARGET, 11]


def test_a_source_whose_data_a_rule_let_change_does_not_come_back(
    preview: PreviewSpark, tmp_path: Path
) -> None:
    places = ruled(tmp_path, "etl:WRITE")
    preview.insert(places.source, 99, app="etl")
    assert ids(places.source) == [*ROWS, 99]
    logs = places.logs

    with Redirects() as moves, pytest.raises(Diverged, match="changed data"):
        moves.disable(str(places.source))

    assert places.logs == logs
    write_deltalake(str(places.target), rows([11]), mode="append")
    assert preview.ids(places.source) == [*AT_TARGET, 11]
