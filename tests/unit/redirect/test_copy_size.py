"""Which engine moves a table: by the number and the bytes of its files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakeferry import engine as port
from lakeferry.engine import Engine
from lakeferry.log.commit import Transaction
from lakeferry.redirect import copy_size
from lakeferry.redirect.enable import enabling
from tests.support.history import Append, Checkpoint, History
from tests.support.redirects import OLD, WORLD, added, request_for, setting_of, world_with
from tests.support.stores import DictStore

PAST = History().then(Append(2), Checkpoint(), Append(1))


@pytest.mark.parametrize(
    ("files", "size_bytes", "chosen"),
    [(999, 1, "local"), (1_000, 1, "spark"), (1, 1024**3 - 1, "local"), (2, 2**30, "spark")],
)
def test_auto_goes_by_the_files_that_a_log_refers_to(
    files: int, size_bytes: int, chosen: str
) -> None:
    store = DictStore(world_with(History()), uri=WORLD)
    log = setting_of(store).log(OLD)
    names = [f"part-{number}.parquet" for number in range(files)]
    adds = added(names, dict.fromkeys(names, b""), 0)
    sizes = [size_bytes // files] * files
    adds = adds.set_column(adds.schema.get_field_index("size"), adds.schema.field("size"), [sizes])
    log.commit(Transaction("WRITE", "all", adds=adds), log.state())
    found = copy_size.size_referred_to(log.store, log.segment())
    assert found == (files, size_bytes // files * files)
    assert port.choose("auto", *found) == chosen


def test_a_move_tells_its_engine_how_much_there_is_to_copy() -> None:
    store = DictStore(world_with(PAST), uri=WORLD)
    setting = setting_of(store)
    asked: list[tuple[int, int]] = []

    def choose(objects: int, size_bytes: int, urgent: bool = False) -> Engine:
        asked.append((objects, size_bytes))
        return setting.engine(objects, size_bytes, urgent)

    outcome = enabling.enable(replace(setting, engine=choose), request_for())
    assert asked[0] == (outcome.files_copied, outcome.bytes_copied)
    assert asked[0][1] > 0
