"""Plans a change of one table: what its clients can do before, during and after it.

Nothing is written, and no engine is started: the newest commits are read, and the matrix of
clients (:mod:`lakeferry.clients`) is asked. What the change itself would refuse is refused here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lakeferry.clients.wish_effects import ClientEffects as ClientEffects
from lakeferry.clients.wish_effects import (
    MoveWish,
    ProtocolRange,
    ProtocolWish,
    ShareWish,
    TableClients,
    Wish,
    client_effects,
)
from lakeferry.errors import InvalidInput, RedirectIllegalTransition
from lakeferry.log import features, protocols
from lakeferry.log.actions import Protocol
from lakeferry.log.commit_writer import CommitWriter, commit_writer
from lakeferry.log.replay import TableState
from lakeferry.protection import boundary, dropping
from lakeferry.redirect import read_entry
from lakeferry.redirect.enable import preflight
from lakeferry.redirect.entry import Data, Dialect, Mode
from lakeferry.redirect.recent_writers import COMMITS, newest_infos
from lakeferry.redirect.states import RedirectState
from lakeferry.storage.uris import shell_safe
from lakeferry.table import DeltaLog, unsupported
from lakeferry.table.recent_protocols import recent_protocols

WISHES = ("move", "protect", "share", "drop")


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What a change means for the clients of a table.

    ``steps`` are those of the change's own dry run, if it has one that needs no target. ``since``
    is the oldest version whose commit was read.
    """

    location: str
    version: int
    wish: str
    feature: str | None
    steps: tuple[dict[str, Any], ...]
    since: int
    clients: tuple[ClientEffects, ...]

    def as_document(self) -> dict[str, Any]:
        """Return the JSON document of ``plan``."""
        return {
            "location": self.location,
            "version": self.version,
            "wish": self.wish,
            "feature": self.feature,
            "steps": list(self.steps),
            "since_version": self.since,
            "clients": [each.as_document() for each in self.clients],
        }


@dataclass(frozen=True, slots=True)
class MoveTraits:
    """The options of a move that decide which clients follow it."""

    mode: str = Mode.READER_WRITER.value
    data: str = Data.COPY.value
    dialects: tuple[str, ...] = ()
    managed: bool = False
    to_name: bool = False

    def wish(self) -> MoveWish:
        """Return the move that is wished for."""
        mode = _one_of(Mode, self.mode, "--mode")
        chosen = tuple(_one_of(Dialect, each, "--dialect") for each in self.dialects)
        to_name = self.to_name or self.managed
        dialects = chosen or preflight.default_dialects(mode, to_name=to_name)
        data = _one_of(Data, self.data, "--data")
        return MoveWish(mode, dialects, self.managed, data)


def plan_table(
    log: DeltaLog,
    wish: str,
    feature: str | None = None,
    *,
    traits: MoveTraits | None = None,
    truncate_history: bool = False,
) -> TablePlan:
    """Return what a change of the table means for its clients."""
    _check_words(wish, feature)
    with unsupported.unless_unsupported(log, None):
        newest = log.newest()
        state = newest.state()
    unsupported.refuse_reader_version(state.protocol)
    steps: list[dict[str, Any]] = []
    if wish == "drop":
        with unsupported.unless_unsupported(log, None):
            steps = dropping.foresee_drop(log, str(feature), truncate_history=truncate_history)
    wished = _wish(log, state, wish, steps, traits or MoveTraits())
    counts: dict[CommitWriter, int] = {}
    for _, info in newest_infos(log, newest):
        writer = CommitWriter(None) if info is None else commit_writer(info.values)
        counts[writer] = counts.get(writer, 0) + 1
    spans = recent_protocols(log, newest, state.protocol, COMMITS)
    table = TableClients(
        state.protocol,
        tuple(ProtocolRange(*span) for span in spans),
        tuple(counts.items()),
    )
    return TablePlan(
        log.store.uri,
        newest.version,
        wish,
        feature,
        tuple(steps),
        spans[0][0],
        client_effects(table, wished),
    )


def _check_words(wish: str, feature: str | None) -> None:
    if wish not in WISHES:
        raise InvalidInput(
            f"{wish!r} isn't a change that can be planned",
            remedy=f"use one of {', '.join(WISHES)}",
        )
    if (feature is not None) is not (wish == "drop"):
        problem = "a feature is missing" if wish == "drop" else f"{wish} takes no feature"
        raise InvalidInput(problem, remedy="write 'drop' and the name of a feature, or no feature")


def _wish(
    log: DeltaLog,
    state: TableState,
    wish: str,
    steps: list[dict[str, Any]],
    traits: MoveTraits,
) -> Wish:
    location = log.store.uri
    if wish == "drop":
        return ProtocolWish(
            _protocol_after(steps),
            keeps_history=all(step["op"] != "truncate_history" for step in steps),
        )
    if wish == "share":
        features.check_carriable(state.protocol)
        return ShareWish()
    if wish == "protect":
        boundary.check_no_redirect(state, location, "changed")
        features.check_writable(state.protocol, asks_catalog=log.store.asks_catalog)
        return ProtocolWish(protocols.adding(state.protocol, [boundary.FEATURE]))
    _check_not_moved(state, location)
    features.check_carriable(state.protocol)
    features.check_readable(state.protocol)
    features.check_writable(state.protocol)
    return traits.wish()


def _protocol_after(steps: Iterable[dict[str, Any]]) -> Protocol:
    """Return the protocol that the last commit of a drop leaves."""
    (document,) = (step["protocol"] for step in steps if "protocol" in step)
    return Protocol(
        document["minReaderVersion"],
        document["minWriterVersion"],
        _names(document["readerFeatures"]),
        _names(document["writerFeatures"]),
    )


def _names(listed: Iterable[str] | None) -> tuple[str, ...] | None:
    return tuple(listed) if listed else None


def _check_not_moved(state: TableState, location: str) -> None:
    """Refuse to plan the move of a table that has moved, or that is frozen."""
    read_entry.check_no_stray(state.protocol, state.metadata, location)
    redirect = read_entry.read(state.protocol, state.metadata, location)
    if redirect is None or redirect.state is not RedirectState.READY:
        boundary.check_no_redirect(state, location, "moved")
        return
    raise RedirectIllegalTransition(
        f"{location} has moved already",
        cause=f"its redirect to {redirect.target} is READY",
        remedy="plan a move of the table at its new place: lakeferry plan "
        f"{shell_safe(str(redirect.target))} move",
        location=location,
    )


def _one_of(kind: type[Any], value: str, option: str) -> Any:
    for each in kind:
        if each.value == value:
            return each
    raise InvalidInput(
        f"{value!r} isn't one of the values of {option}",
        remedy=f"use one of {', '.join(each.value for each in kind)}",
    )
