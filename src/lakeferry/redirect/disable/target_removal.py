"""Deletes the name of a withdrawn target, and the target itself if the user asks for it.

Before that, :func:`check_removal` refuses if the target may have the only copies of files. The
source is NORMAL when anything is deleted, so a failure is a warning, and the next ``disable``
tries again.
"""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from lakeferry.errors import CorruptLog, LakeferryError, MissingFile, NotATable, TableNotFound
from lakeferry.log.rewrite import Relative
from lakeferry.redirect import (
    managed_place,
    owned_file_removal,
    settling,
    steps,
    target_registration,
)
from lakeferry.redirect.disable import lost_files, returned_versions
from lakeferry.redirect.disable.withdrawal import Withdrawal, disable_command, is_of_move
from lakeferry.redirect.managed_target import ManagedTarget
from lakeferry.table.managed import ManagedStore


def check_removal(way: Withdrawal) -> None:
    """Refuse ``--remove-target`` where the target may have the only copies of live files."""
    if not way.options.remove_target:
        return
    home, place = way.source.store.uri, way.target.store.uri
    lack = lost_files.lack_without_target(way)
    if lack.count:
        copies = lost_files.copies_of(way, lack)
        raise MissingFile(
            f"{place} can't be removed",
            cause=f"{lack.count} data files that {home} names are gone, and the target may "
            f"have the only copies: {', '.join(lack.examples)}",
            remedy=f"first put them back where they were ({copies}), and run the "
            f"same command again; or leave out --remove-target to keep {place}",
            path=lack.examples[0],
            count=lack.count,
            target=place,
        )


def clear_up(way: Withdrawal) -> bool:
    """Delete the target's name, and the target if requested; return whether it worked.

    The redirect has ended, so a failure is only a warning and the next 'disable' retries. A
    target that doesn't belong to this move any more keeps both.
    """
    place = way.target.store.uri
    command = disable_command(way.source.store.uri)
    locked: list[bool] = []
    settling.attempt(way.setting, place, lambda: locked.append(way.is_locked()), command)
    if not any(locked):
        if locked:
            _tell_kept(way)
        return False
    if not way.removes_target and way.managed is not None:
        return _publish_lock(way)
    forgot: list[bool] = []
    settling.attempt(
        way.setting,
        f"the name of {place} in its catalog",
        lambda: forgot.append(
            target_registration.unregister_target(way.setting, way.redirect, place)
        ),
        command,
    )
    if way.removes_target:
        what = f"the deletion of {place}"
        again = f"{command} --remove-target"
        settling.attempt(way.setting, what, lambda: delete_target(way), again)
    return any(forgot) or way.removes_target


def _tell_kept(way: Withdrawal) -> None:
    """Tell what a target has whose newest version isn't the lock, and why it isn't removed."""
    place = way.target.store.uri
    with suppress(LakeferryError):
        state = way.target.state()
        if is_of_move(state, place, way.redirect):
            # Another process may have locked it.
            way.locked_version = state.version
            if not way.is_locked():
                _tell_written(way, state.version)
            return
    if way.removes_target and way.managed is None:
        way.setting.warn(f"{place} isn't deleted: another table is there now")


def _tell_written(way: Withdrawal, version: int) -> None:
    """Tell that a target has a version that wasn't brought back."""
    place, home = way.target.store.uri, way.source.store.uri
    written = f"a writer added version {version} after the lock, and {home} doesn't have it"
    if not way.removes_target:
        way.setting.warn(
            f"{place} has rows that weren't brought back: {written}; they stay there, and the rows "
            "that you need can be copied from there"
        )
        return
    kept = (
        f"{place} isn't deleted" if way.managed is None else f"{way.redirect.target} isn't dropped"
    )
    way.setting.warn(f"{kept}: {written}")


def _newest(way: Withdrawal) -> int | None:
    """Return the newest version of a target, ``None`` if it is partly deleted."""
    try:
        return way.target.state().version
    except (TableNotFound, NotATable, CorruptLog):
        return None


def _publish_lock(way: Withdrawal) -> bool:
    """Publish what a managed target has, in case whoever locked it couldn't; say if anything was.

    So readers of the folder find the lock, too.
    """
    store = way.target.store
    published: list[bool] = []
    if not isinstance(store, ManagedStore):
        return False

    def publish() -> None:
        published.append(bool(store.publish().published))

    what = f"the publication of the lock of {way.redirect.target}"
    settling.attempt(way.setting, what, publish, f"publish {way.redirect.target}")
    return any(published)


def delete_target(way: Withdrawal) -> None:
    """Delete the target, unless the source refers to something there."""
    store = way.target.store
    named = owned_file_removal.files_referred_to(way.source)
    if not way.has_all and lost_files.lack_at_home(way, named).count:
        alone = f"{way.source.store.uri} lacks data files, and the only copies may be at the target"
        way.setting.warn(f"{store.uri} isn't deleted: {alone}")
        return
    if refers_to_target(way, named):
        way.setting.warn(
            f"{store.uri} isn't deleted: an earlier 'redirect disable --data reference' was "
            f"interrupted, and {way.source.store.uri} refers to files there"
        )
        return
    newest = _newest(way)
    if newest is not None and newest > way.locked_version:
        _tell_written(way, newest)
        return
    if way.managed is not None:
        _drop_managed(way, way.managed)
        return
    way.setting.step(steps.at("delete", store.uri))
    way.kept = way.setting.removal.remove_table(
        way.target, way.source, way.journal.move_id, way.is_locked
    )


def _drop_managed(way: Withdrawal, managed: ManagedTarget) -> None:
    """Drop a managed target in its catalog, which deletes its files, unless it has more rows."""
    place = way.target.store.uri
    lacking = returned_versions.lacking_version(way, way.ended_version)
    if lacking is not None:
        way.setting.warn(
            f"{way.redirect.target} isn't dropped: {way.source.store.uri} doesn't have its version "
            f"{lacking}"
        )
        return
    former = way.redirect.target.name if way.redirect.target is not None else None
    tables = managed_place.tables_of(way.setting, way.redirect.target)
    if tables.drop(managed.table_id, former or managed.private_name):
        way.setting.step(steps.name("drop", way.redirect.target, place))


def refers_to_target(way: Withdrawal, named: pa.Array) -> bool:
    """Return whether the source's log (``named``) refers to files at the target."""
    return names_files_at(way.target.store.uri, named)


def names_files_at(place: str, named: pa.Array) -> bool:
    """Return whether paths of another table's log (``named``) lead to files at a place."""
    return bool(pc.any(pc.not_equal(Relative(place)(named), named)).as_py())
