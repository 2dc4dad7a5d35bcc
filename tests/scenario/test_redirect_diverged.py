"""A source that got changes of its own while its table was elsewhere doesn't come back."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import write_deltalake

from lakeferry.api.redirects import Redirects
from lakeferry.errors import Diverged
from lakeferry.storage import open_store
from lakeferry.table import DeltaLog
from tests.support import redirects
from tests.support.redirected_tables import MODES, MOVED_ON, ROWS, Stage, at_stage, ids, rows


@pytest.mark.parametrize("mode", MODES)
def test_disable_refuses_before_it_locks_the_target(mode: str, tmp_path: Path) -> None:
    """A lock is for ever, so that whoever was refused could never write again."""
    places = at_stage(tmp_path, Stage.READY, mode, rules=["etl:WRITE"])
    redirects.append(DeltaLog(open_store(str(places.source))), "its-own.parquet")
    logs = places.logs

    with Redirects() as moves, pytest.raises(Diverged, match="changed data") as refused:
        moves.disable(str(places.source))

    assert refused.value.fields["target"] == places.target.as_uri()
    assert places.logs == logs
    write_deltalake(str(places.target), rows([11]), mode="append")
    assert ids(places.target) == [*ROWS, MOVED_ON, 11]
