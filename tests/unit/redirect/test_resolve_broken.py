"""A table whose newest commit can't be read: nobody can tell whether it is redirected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lakeferry
from lakeferry.errors import CorruptLog
from tests.support.history import Append, History
from tests.unit.cli.program import make, run


def test_old_versions_are_read_as_the_remedy_says(tmp_path: Path) -> None:
    place = make(History().then(Append(1), Append(1)), tmp_path / "t")
    (place / "_delta_log" / f"{3:020d}.json").write_text('{"add":')
    done = run("files", str(place), "--version", "1", "--json", home=tmp_path)
    assert done.code == 1
    error = json.loads(done.err.splitlines()[-1])["error"]
    assert error["code"] == "corrupt_log"
    assert "--version N and --no-follow" in error["remedy"]
    followed = run("files", str(place), "--version", "1", "--no-follow", "--json", home=tmp_path)
    assert followed.code == 0
    assert len(followed.out.splitlines()) == 1
    with pytest.raises(CorruptLog) as refused:
        lakeferry.open(str(place), version=1)
    assert "follow=False" in str(refused.value.remedy)
    assert lakeferry.open(str(place), version=1, follow=False).count_rows() == 3
