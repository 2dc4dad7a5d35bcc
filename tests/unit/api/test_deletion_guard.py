"""Which tables may be deleted: those to which no redirect leads, and that have none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import lakeferry
from lakeferry.api.deletion_guard import check_no_path_leads
from lakeferry.catalogs.places import Places
from lakeferry.errors import Interrupted, RedirectIllegalTransition
from lakeferry.redirect.received_entries import RECEIVED
from lakeferry.storage import normalise, open_store
from lakeferry.table import DeltaLog
from tests.support.history import Append, History
from tests.support.redirects import append
from tests.unit.cli.program import make


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A table at an old path, and the same at its new path below a root."""
    make(History().then(Append(2)), tmp_path / "old")
    lakeferry.Table(str(tmp_path / "old")).redirect(str(tmp_path / "root/t"), engine="local")
    return tmp_path


def check(folder: Path) -> None:
    check_no_path_leads(Places(), normalise(str(folder)))


def refused(folder: Path, why: str) -> None:
    with pytest.raises(RedirectIllegalTransition, match=why) as told:
        check(folder)
    assert "--force" in str(told.value.remedy)


def test_a_table_without_redirects_may_go(tmp_path: Path) -> None:
    check(make(History().then(Append(1)), tmp_path / "t"))
    check(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    check(tmp_path / "folder")


def test_the_target_of_a_redirect_stays_until_the_redirect_has_ended(lake: Path) -> None:
    refused(lake / "root/t", f"the old path {normalise(str(lake / 'old'))} leads here")
    refused(lake / "old", "it has moved")
    lakeferry.Table(str(lake / "old")).redirect_disable()
    check(lake / "root/t")
    check(lake / "old")


def test_files_that_a_way_back_by_reference_needs_stay(tmp_path: Path) -> None:
    source, target = tmp_path / "old", tmp_path / "root/t"
    make(History().then(Append(2)), source)
    table = lakeferry.Table(str(source))
    table.redirect(str(target), data="reference", engine="local")
    append(DeltaLog(open_store(str(target))), "since.parquet")
    table.redirect_disable(data="reference", engine="local")
    names = [each.rpartition("/")[2] for each in table.files().read_all()["path"].to_pylist()]
    assert "since.parquet" in names
    refused(target, "names files here: without them its rows are lost")
    # Who brings everything back needs nothing there.
    make(History().then(Append(2)), tmp_path / "other")
    other = lakeferry.Table(str(tmp_path / "other"))
    other.redirect(str(tmp_path / "root/u"), data="reference", engine="local")
    append(DeltaLog(open_store(str(tmp_path / "root/u"))), "since.parquet")
    other.redirect_disable(engine="local")
    check(tmp_path / "root/u")
    shutil.rmtree(source)
    check(target)


def test_a_place_to_which_a_table_is_moving_stays(tmp_path: Path) -> None:
    source, target = tmp_path / "old", tmp_path / "root/t"
    make(History().then(Append(2)), source)
    table = lakeferry.Table(str(source))

    def stop(what: str, done: int, total: int) -> None:
        if what == "copying data" and done == total:
            raise Interrupted("interrupted")

    with pytest.raises(Interrupted):
        table.redirect(str(target), engine="local", observer=stop)
    assert [each.name for each in (target / "_delta_log").iterdir()] == ["_lakeferry"]
    refused(target, f"the move of {normalise(str(source))} to it isn't finished")
    table.redirect_cancel()
    check(target)


def test_an_old_path_that_is_gone_leads_nowhere(lake: Path) -> None:
    (lake / "old").rename(lake / "other")
    check(lake / "root/t")


def test_an_old_path_that_cannot_be_read_may_lead_there(lake: Path) -> None:
    for commit in (lake / "old/_delta_log").glob("*.json"):
        commit.write_text("{")
    for checkpoint in (lake / "old/_delta_log").glob("*.checkpoint*"):
        checkpoint.unlink()
    refused(lake / "root/t", "leads here")


def test_a_copy_is_not_what_the_redirect_leads_to(lake: Path) -> None:
    (lake / "root/t").rename(lake / "root/away")
    lakeferry.Table(str(lake / "root/away"))
    check(lake / "root/away")


def test_a_frozen_table_stays_until_it_is_thawed(tmp_path: Path) -> None:
    table = make(History().then(Append(1)), tmp_path / "t")
    lakeferry.Table(str(table)).freeze()
    refused(table, "it is frozen")
    lakeferry.Table(str(table)).thaw()
    check(table)


def test_of_a_received_table_no_other_place_is_opened(lake: Path) -> None:
    store = open_store(str(lake / "root/t"))
    store.put(RECEIVED, b"")
    # Its publisher may have written any path into the log, so nothing is there to be read.
    (lake / "old").rename(lake / "elsewhere")
    refused(lake / "root/t", "an old path may lead here")
    plain = make(History().then(Append(1)), lake / "root/plain")
    open_store(str(plain)).put(RECEIVED, b"")
    check(plain)


def test_a_table_that_cannot_be_read_may_have_a_redirect(tmp_path: Path) -> None:
    table = make(History().then(Append(1)), tmp_path / "t")
    (table / "_delta_log/00000000000000000000.json").write_text("{")
    refused(table, "can't find out if")
