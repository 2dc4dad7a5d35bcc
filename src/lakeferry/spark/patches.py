"""Patches PySpark's methods, so that they ask where a table is first.

delta-spark can't open a redirected source that blocks readers, so a path must be replaced before
it gets there. The patched classes are those of PySpark in the driver's process; Spark Connect has
others, which don't use a JVM. :mod:`lakeferry.engines.spark.spark_versions` says which methods a
line of Spark lacks.

A patched method first looks up its session's client, by a number in the session's configuration.
Sessions that streaming clones, inside of ``foreachBatch``, inherit the number; new sessions
don't, and behave as usual. The first client installs the patches, and the last one to leave
removes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from lakeferry.engines.spark.spark_calls import spark_line
from lakeferry.spark.patched_delta_tables import delta_patches
from lakeferry.spark.patched_readers_writers import reader_writer_patches
from lakeferry.spark.session_clients import (
    CLIENT_SETTING,
    FOLLOW_IN_JVM,
    Patch,
    client_options,
    clients_lock,
    give_number,
    told_jvm,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_numbers = itertools.count(1)
_applied: list[tuple[type, str, Any, Any]] = []
"""Class, name, original attribute, and our replacement."""
_installed = False
"""Whether all patches are there; what is in ``_applied`` otherwise couldn't be restored yet."""


def add_client(spark: SparkSession, storage_options: Mapping[str, str]) -> None:
    """Give a session a client; if it has one, replace the client's options.

    If that fails, the session has no client, and no method is patched for it.
    """
    with clients_lock:
        number = spark.conf.get(CLIENT_SETTING, None)
        if number is None or number not in client_options:
            number = str(next(_numbers))
        if not _installed:
            _apply()
        before = client_options.get(number)
        client_options[number] = dict(storage_options)
        try:
            give_number(spark, number)
        except BaseException:
            if before is None:
                _forget(number)
            raise


def remove_client(spark: SparkSession) -> None:
    """Remove a session's client, if it has one."""
    with clients_lock:
        number = spark.conf.get(CLIENT_SETTING, None)
        if number is None:
            return
        spark.conf.unset(CLIENT_SETTING)
        if number in told_jvm and spark.conf.get(FOLLOW_IN_JVM, None) == "true":
            spark.conf.unset(FOLLOW_IN_JVM)
        _forget(number)


def _forget(number: str) -> None:
    """Forget a client; with the last one all patches are withdrawn."""
    client_options.pop(number, None)
    told_jvm.discard(number)
    if not client_options:
        _withdraw()


def _apply() -> None:
    """Install all patches; if one fails, undo the others.

    What couldn't be undone is noted in the error, and undone before the next installation.
    """
    global _installed
    _withdraw()
    try:
        for owner, name, patch in _patches():
            before = vars(owner)[name]
            if isinstance(before, classmethod):
                after: Any = classmethod(patch(before.__func__))
            else:
                after = patch(before)
            _applied.append((owner, name, before, after))
            setattr(owner, name, after)
        _installed = True
    except BaseException as failed:
        try:
            _withdraw()
        except Exception as kept:  # noqa: BLE001 - the first failure is the one to report
            left = ", ".join(f"{owner.__name__}.{name}" for owner, name, _, _ in _applied)
            failed.add_note(f"Lakeferry couldn't restore {left}: {kept}")
        raise


def _withdraw() -> None:
    """Restore every method; those that can't be restored are kept for the next try."""
    global _installed
    _installed = False
    left: list[tuple[type, str, Any, Any]] = []
    failure: BaseException | None = None
    while _applied:
        owner, name, before, after = _applied[-1]
        try:
            # If somebody has patched our patch, theirs stays, and ours does nothing any more.
            if vars(owner).get(name) is after:
                setattr(owner, name, before)
        except Exception as failed:  # noqa: BLE001 - the others must be restored, too
            left.append((owner, name, before, after))
            failure = failure or failed
        _applied.pop()
    _applied.extend(reversed(left))
    if failure is not None:
        raise failure


def _patches() -> list[Patch]:
    """Return each class and method to patch, with its patch.

    Methods that this line of Spark doesn't have yet are left out; any other missing one is an
    error, because reads by its successor would not be followed.
    """
    is_delta_there = find_spec("delta") is not None
    found = [*reader_writer_patches(), *(delta_patches() if is_delta_there else ())]
    lacks = spark_line().lacks
    return [
        (owner, name, patch)
        for owner, name, patch in found
        if name in vars(owner) or f"{owner.__name__}.{name}" not in lacks
    ]
