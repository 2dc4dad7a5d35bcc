"""Redirect entries that arrived by push or pull: kept, but not followed.

A log that arrives by transfer keeps every byte, so its properties may hold a redirect entry
that names any place of the receiver's machine. Two kinds of small files beside the log
distinguish such an entry from one that was set here::

    _delta_log/_lakeferry/received        this log, or a part of it, arrived by transfer
    _delta_log/_lakeferry/moves/<name>    a redirect or a freeze that was begun here

The first is written before the first commit of a transfer is visible, the second before the
commit that begins a redirect. The second is always written, as a transfer may arrive between
a check and that commit. If the first exists, an entry is valid only with the second. A copy
of the table's folder has both, and a move copies the first to the target. Neither file is
read for a table without an entry.

Stock delta-spark doesn't know these files. It follows an entry of its own dialect if the
entry names the table's own path as its source: :func:`check_harmless` refuses such a table.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import unquote

import msgspec

from lakeferry.errors import ObjectNotFound, RedirectSpecInvalid
from lakeferry.log import paths
from lakeferry.redirect import dialects, read_entry
from lakeferry.redirect.entry import Dialect, Mode, Redirect, plain_path
from lakeferry.storage import Store, normalise
from lakeferry.table import DeltaLog

RECEIVED = f"{paths.OWN_DIR}/received"
NOT_FOLLOWED = (
    "the redirect arrived by push or pull, so it isn't followed: 'lakeferry redirect disable' "
    "removes it"
)
_MOVES = f"{paths.OWN_DIR}/moves/"


class _Entry(msgspec.Struct):
    spec: str


_ENTRY_DECODER = msgspec.json.Decoder(_Entry)


class _Spec(msgspec.Struct):
    source: str = msgspec.field(name="sourcePath")


_SPEC_DECODER = msgspec.json.Decoder(_Spec)


def is_received(table: Store) -> bool:
    """Return whether a table's log, or a part of it, arrived by transfer."""
    return table.exists(RECEIVED)


def counts(table: Store, redirect: Redirect) -> bool:
    """Return whether a redirect was set at this table, and didn't arrive by transfer."""
    return not is_received(table) or table.exists(_record_of(redirect))


def mark(table: Store) -> None:
    """Write the file that says that a table's log may contain received commits from now on.

    An entry that the table has when it is first marked was set here, and stays valid.
    """
    try:
        if table.get(RECEIVED):
            # A move has put this mark here, and would delete it if it is cancelled.
            table.put(RECEIVED, b"")
        return
    except ObjectNotFound:
        redirect = _present(table)
    if redirect is not None:
        _put_record(table, redirect)
    table.put_if_absent(RECEIVED, b"")


def inherit(table: Store, copy: Store) -> None:
    """Mark a copy of a table's log before it is made, if the table itself is marked."""
    if is_received(table):
        copy.put_if_absent(RECEIVED, b"")


def mark_set_here(table: Store, redirect: Redirect) -> None:
    """Write the file that says that a redirect was set here. Call it before the commit.

    Call it again if the redirect's target or the move's id changes.
    """
    _put_record(table, redirect)


def locked(target: Store, lock: Redirect) -> None:
    """Write the file that says that we locked a target, if the target is marked as received.

    Call it before the lock is committed and again afterwards, as a transfer may arrive in
    between. An unmarked target gets no file.
    """
    if is_received(target):
        _put_record(target, lock)


def move_received(table: Store, target: Store, lock: Redirect) -> None:
    """Mark the target of a move, if the source is marked.

    Call it when the source is locked, so that nothing more arrives there, and before the
    target can be opened. ``lock`` is the entry that the target has until then.
    """
    if is_received(table):
        _put_record(target, lock)
        target.put_if_absent(RECEIVED, (_move_id(lock) or "").encode())


def take_back_received(table: Store, redirect: Redirect) -> None:
    """Delete the file of a redirect that was never READY."""
    table.delete_many([_record_of(redirect)])


def leave(target: Store, lock: Redirect) -> None:
    """Delete the mark that a cancelled move has put, unless a transfer arrived there."""
    with suppress(ObjectNotFound):
        if target.get(RECEIVED) == (_move_id(lock) or "").encode():
            target.delete_many([RECEIVED, _record_of(lock)])


def check_harmless(configuration: Mapping[str, str], table_uri: str) -> None:
    """Refuse properties that would make stock delta-spark follow an entry from this place.

    delta-spark compares the entry's source with the table's path, and ignores features.
    """
    for mode in Mode:
        value = configuration.get(dialects.property_of(Dialect.DELTA_SPARK, mode))
        if value is None:
            continue
        source = _source_path(value, table_uri)
        if source.rstrip("/") not in _paths_of(table_uri):
            continue
        raise RedirectSpecInvalid(
            f"the received table at {table_uri} would lead Spark to another table",
            cause=f"it has a redirect entry that names {source}, the path of this place, as its "
            "source, and delta-spark would follow it",
            remedy="choose a place with another path, or ask its owner to send the table "
            "without the redirect",
            location=table_uri,
            value=value,
        )


def _present(table: Store) -> Redirect | None:
    """Return the redirect that a table has now, or ``None`` if there is no valid entry."""
    if next(table.list(f"{paths.LOG_DIR}/0"), None) is None:
        return None
    state = DeltaLog(table).state()
    with suppress(RedirectSpecInvalid):
        return read_entry.read(state.protocol, state.metadata, table.uri)
    return None


def _put_record(table: Store, redirect: Redirect) -> None:
    said = {"moveId": _move_id(redirect), "target": str(redirect.target or "") or None}
    table.put_if_absent(_record_of(redirect), msgspec.json.encode(said))


def _record_of(redirect: Redirect) -> str:
    """Return the name of the file that says that a redirect was begun here.

    The name depends on the move and on its target: a peer with the table's history knows the
    id of the move, and could forge an entry with the same id and another target.
    """
    # Hashed, because an entry's text is untrusted and must not become a file name.
    spec = {} if redirect.target is None else redirect.target.spec()
    named = [
        _move_id(redirect),
        redirect.kind.value,
        _place(spec.get("Location")),
        spec.get("Table"),
        _place(redirect.journal.location if redirect.journal else None),
    ]
    return f"{_MOVES}{hashlib.sha256(msgspec.json.encode(named)).hexdigest()[:32]}"


def _place(location: str | None) -> str | None:
    """Return a place in a normal form, as dialects spell it differently."""
    return None if location is None else unquote(normalise(location))


def _move_id(redirect: Redirect) -> str | None:
    return redirect.journal.move_id if redirect.journal is not None else None


def _source_path(value: str, table_uri: str) -> str:
    """Return the source that an entry of delta-spark names; refuse one that can't be read.

    delta-spark's parser accepts more than ours, and could find a path in it.
    """
    try:
        return _SPEC_DECODER.decode(_ENTRY_DECODER.decode(value).spec).source
    except (msgspec.MsgspecError, RecursionError) as error:
        raise RedirectSpecInvalid(
            f"the received table at {table_uri} has a redirect entry that can't be read",
            cause=str(error),
            remedy="ask its owner to remove the table property",
            location=table_uri,
            value=value,
        ) from error


def _paths_of(table_uri: str) -> set[str]:
    path = plain_path(table_uri).rstrip("/")
    return {path, os.path.realpath(path)} if table_uri.startswith("file:") else {path}
