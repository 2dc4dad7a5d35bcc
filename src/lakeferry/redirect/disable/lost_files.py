"""Data files that the source has lost, and of which the target may have the only copies.

Users may delete the old files of a table that has moved, to free space. A withdrawal copies them
back, and never deletes a target before the source has all it needs.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from lakeferry.log.rewrite import Adopted, Homeward
from lakeferry.redirect import data_completeness, owned_file_removal, steps
from lakeferry.redirect.disable.withdrawal import Withdrawal
from lakeferry.redirect.enable import precopy
from lakeferry.redirect.entry import Data
from lakeferry.redirect.states import RedirectState
from lakeferry.storage.uris import shell_safe
from lakeferry.table.live_files import uri_of


def lost_from_source(way: Withdrawal) -> int:
    """Return how many files the source has lost that the target may have."""
    # A target that refers to the source's files has none of them.
    if way.journal.data is Data.REFERENCE or way.redirect.state is RedirectState.DROPPING:
        return 0
    return data_completeness.lacking_files(way.setting, way.source)


def lack_without_target(way: Withdrawal) -> data_completeness.Lack:
    """Return which live files the source would lack if the target were deleted."""
    home = way.source.store
    if way.redirect.state is RedirectState.DROPPING:
        return lack_at_home(way, owned_file_removal.files_referred_to(way.source))
    named = owned_file_removal.files_referred_to(way.target)
    outside = data_completeness.lack_outside(way.setting, way.target, named, way.rewrite, home.uri)
    if way.journal.data is not Data.REFERENCE:
        # Files that the source's own folder has lost are copied back.
        return outside
    rename = Homeward(home.uri, way.target.store.uri)
    inside = data_completeness.lack_inside(way.setting, way.target, rename, home.config)
    return data_completeness.both(inside, outside)


def lack_at_home(way: Withdrawal, named: pa.Array) -> data_completeness.Lack:
    """Return which files of its newest version the source lacks; its log names ``named``."""
    found = data_completeness.lack(way.setting, way.source, named)
    way.has_all = not found.count
    return found


def copies_of(way: Withdrawal, lack: data_completeness.Lack) -> str:
    """Return a text that says where copies of the missing files are."""
    home, place = way.source.store.uri, way.target.store.uri
    path = lack.examples[0]
    gone = shell_safe(uri_of(home, path))
    if way.journal.data is Data.REFERENCE:
        return f"the move made no copy of {gone}"
    (name,) = Adopted(home)(pa.array([path], pa.string())).to_pylist()
    return f"the copy of {gone} is {shell_safe(uri_of(place, name))}"


def fill_source(way: Withdrawal, version: int) -> None:
    """Copy back files that the source has lost; users may delete old ones to free space.

    Includes all versions, for time travel. Done before the lock, as it may take long.
    """
    if not (lost := lost_from_source(way)):
        return
    way.filled = True
    home, away = way.source.store.uri, way.target.store.uri
    way.setting.step(steps.copy_missing(away, home, lost))
    way.setting.warn(f"data files are gone from {home}: they are copied back from {away}")
    everything = precopy.stretch(way.target.listing(), -1, version, away)
    way.target.working_around(everything, partial(way.copy, resumed=True))
