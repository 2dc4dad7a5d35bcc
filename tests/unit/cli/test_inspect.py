"""``history`` names a table as the user did."""

from __future__ import annotations

import json
from pathlib import Path

from lakeferry.log import paths
from tests.support.history import Append, History
from tests.unit.cli.program import Ended, make, run

NAME = "sql:cat.schema.orders"


def done(home: Path, *words: object) -> Ended:
    """Run the program, which has to succeed."""
    ended = run(*words, home=home)
    assert ended.code == 0, ended.err
    return ended


def named_table(home: Path) -> Path:
    """Make a table with a name in the catalog."""
    place = make(History().then(Append(1)), home / "orders")
    done(home, "catalog", "register", NAME, place)
    return place


def test_a_warning_about_a_table_in_a_catalog_has_the_name_that_was_given(tmp_path: Path) -> None:
    place = named_table(tmp_path)
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["catalogManaged"],
        "writerFeatures": ["catalogManaged", "inCommitTimestamp"],
    }
    (place / paths.commit(2)).write_text(json.dumps({"protocol": protocol}) + "\n")
    warned = done(tmp_path, "history", NAME).err
    assert f"{NAME} is managed by its catalog" in warned
    assert str(place) not in warned


def test_the_history_of_a_redirected_table_in_a_catalog_names_it(tmp_path: Path) -> None:
    place = named_table(tmp_path)
    done(tmp_path, "redirect", "enable", place, tmp_path / "new", "--yes")
    told = done(tmp_path, "history", NAME).err
    assert f"{NAME} is redirected" in told
    assert str(place) not in told
