"""Tables that move into a catalog, run as often as a test likes, and what has to hold of them.

As :mod:`tests.simulation.redirect_cases`. Calls of the catalog are calls of the store.
"""

from __future__ import annotations

from functools import partial

from lakeferry.log import paths
from lakeferry.redirect.enable import enabling
from lakeferry.redirect.outcome import Outcome
from lakeferry.redirect.redirect_context import Setting
from lakeferry.redirect.states import RedirectState
from tests.simulation import redirect_cases
from tests.simulation.redirect_cases import Objects, Past
from tests.support.history import Append, Checkpoint, Clean, DeleteRows, History, Layout, Stream
from tests.support.managed_worlds import live_tables, log_by_id
from tests.support.redirects import WORLD, folder_of, redirect_at
from tests.support.stored_tables import MANAGED, KeptTable, managed_request, managed_setting
from tests.support.stores import DictStore

VECTORS = History(Layout(deletion_vectors="u")).then(Append(2), Checkpoint(), DeleteRows(1))
TIMESTAMPS = History(Layout(in_commit_timestamps=True, v2_checkpoints=True)).then(Append(2))
CLEANED = History(Layout(partitioned=True)).then(
    Append(2), Append(1), Checkpoint(), Stream(), Clean()
)
PASTS = {
    "deletion vectors": VECTORS,
    "in-commit timestamps": TIMESTAMPS,
    "a log that was cleaned up": CLEANED,
}


def move(setting: Setting) -> Outcome:
    """Move the table into the catalog."""
    return enabling.enable(setting, managed_request())


run = partial(redirect_cases.run, setting=managed_setting)
leftovers = partial(redirect_cases.leftovers, setting=managed_setting)


def tables_of(objects: Objects) -> dict[str, KeptTable]:
    """Return the tables that the catalog has now."""
    return live_tables(DictStore(objects, uri=WORLD))


def state_of(objects: Objects) -> RedirectState:
    """Return the state of the redirect at the source."""
    found = redirect_at(managed_setting(DictStore(objects, uri=WORLD)))
    return RedirectState.NORMAL if found is None else found.state


def decision_of(objects: Objects) -> str | None:
    """Return how the catalog's first ratified commit has decided the move, READY or NORMAL."""
    for table_id, table in tables_of(objects).items():
        for commit in table.commits:
            place = folder_of(f"{MANAGED}/{table_id}")
            published = objects.get(f"{place}/{paths.commit(commit.version)}")
            body = published or objects[f"{place}/{commit.staged_path}"]
            return "READY" if b'"state":"READY"' in body else "NORMAL"
    return None


def check_ratified(objects: Objects, before: Past) -> None:
    """Check that all that the catalog shows can be read, at the same versions."""
    for table_id, table in tables_of(objects).items():
        place = folder_of(f"{MANAGED}/{table_id}")
        for commit in table.commits:
            staged = objects.get(f"{place}/{commit.staged_path}")
            published = objects.get(f"{place}/{paths.commit(commit.version)}")
            assert staged is not None or published is not None
            assert staged is None or published is None or staged == published
            assert commit.version > table.published or published is not None
        if table.commits and decision_of(objects) == "READY":
            setting = managed_setting(DictStore(objects, uri=WORLD))
            log = log_by_id(setting, table_id)
            for version, expected in before.items():
                assert log.snapshot(version).num_files == len(expected.files)
