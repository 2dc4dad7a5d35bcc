"""Patches PySpark's methods, so that they ask where a table is first.

delta-spark can't open a redirected source that blocks readers, so a path must be replaced before
it gets there. The patched classes are those of PySpark in the driver's process (``classic``);
Spark Connect has others, which don't use a JVM.

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


def add_client(spark: SparkSession, storage_options: Mapping[str, str]) -> None:
    """Give a session a client; if it has one, replace the client's options."""
    with clients_lock:
        number = spark.conf.get(CLIENT_SETTING, None)
        if number is None or number not in client_options:
            number = str(next(_numbers))
        if not _applied:
            _apply()
        client_options[number] = dict(storage_options)
        give_number(spark, number)


def remove_client(spark: SparkSession) -> None:
    """Remove a session's client, if it has one."""
    with clients_lock:
        number = spark.conf.get(CLIENT_SETTING, None)
        if number is None:
            return
        spark.conf.unset(CLIENT_SETTING)
        client_options.pop(number, None)
        if number in told_jvm:
            told_jvm.discard(number)
            if spark.conf.get(FOLLOW_IN_JVM, None) == "true":
                spark.conf.unset(FOLLOW_IN_JVM)
        if not client_options:
            _withdraw()


def _apply() -> None:
    """Install all patches; if one fails, undo the others."""
    try:
        for owner, name, patch in _patches():
            before = vars(owner)[name]
            if isinstance(before, classmethod):
                after: Any = classmethod(patch(before.__func__))
            else:
                after = patch(before)
            setattr(owner, name, after)
            _applied.append((owner, name, before, after))
    except BaseException:
        _withdraw()
        raise


def _withdraw() -> None:
    while _applied:
        owner, name, before, after = _applied.pop()
        # If somebody has patched our patch, theirs stays, and ours does nothing any more.
        if vars(owner).get(name) is after:
            setattr(owner, name, before)


def _patches() -> list[Patch]:
    """Return each class and method to patch, with its patch."""
    is_delta_there = find_spec("delta") is not None
    return [*reader_writer_patches(), *(delta_patches() if is_delta_there else ())]
