"""What must hold of a table that moves, at every place, whatever happens meanwhile.

:class:`RedirectWitness` watches a world of places: one source, and any number of
targets. Every move is told by its id, which the commits of a redirect carry.

* The source: a version that was ever visible stays, byte for byte; its redirect
  goes only from state to state as the specification has it; nobody but a redirect's
  own commits, and what a rule allows, gets in while there is one.
* One history: what both places hold says the same, commit by commit.
* A target that can be opened is locked, unless it was opened; once it was, it is
  an ordinary table until the redirect is withdrawn.
* One put decides: where a target was opened the source never goes back, where it
  was closed never on; only a cancel that is done may take its closing commit away.
* At the end, every row that was acknowledged is in the table that a modern client
  is led to, with its bytes; every row that was refused is not.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakeferry.redirect.states import RedirectState
from tests.support import naive
from tests.support.invariants import Broken
from tests.support.places import below
from tests.support.redirects import (
    OLD,
    REDIRECT_FEATURES,
    WORLD,
    bytes_at,
    content,
    folder_of,
    home_name,
    vector_path,
)

_COMMIT = re.compile(r"_delta_log/([0-9]{20})\.json")
_OPENS = re.compile(r"_delta_log/[0-9]{20}\.(json|checkpoint\..*|[0-9]{20}\.compacted\.json)")
_ENTRIES = ("delta.redirectReaderWriter", "delta.redirectWriterOnly")
_MAY_FOLLOW = {
    (RedirectState.NORMAL, RedirectState.NORMAL),
    (RedirectState.NORMAL, RedirectState.ENABLING),
    (RedirectState.ENABLING, RedirectState.READY),
    (RedirectState.ENABLING, RedirectState.NORMAL),
    (RedirectState.READY, RedirectState.READY),
    (RedirectState.READY, RedirectState.DROPPING),
    (RedirectState.DROPPING, RedirectState.NORMAL),
}


@dataclass(frozen=True)
class Commit:
    """A commit as the witness sees it."""

    actions: tuple[tuple[str, Any], ...] = field(repr=False)

    @functools.cached_property
    def info(self) -> Mapping[str, Any]:
        """What it says of itself."""
        return self._last("commitInfo") or {}

    @functools.cached_property
    def protocol(self) -> Mapping[str, Any] | None:
        """The protocol, where it has one."""
        return self._last("protocol")

    @functools.cached_property
    def metadata(self) -> Mapping[str, Any] | None:
        """The metadata, where it has one."""
        return self._last("metaData")

    @property
    def mark(self) -> Mapping[str, Any]:
        """What a commit of a redirect says of it."""
        found: Mapping[str, Any] = self.info.get("lakeferryRedirect") or {}
        return found

    def _last(self, name: str) -> Mapping[str, Any] | None:
        return next((value for key, value in reversed(self.actions) if key == name), None)


@functools.lru_cache(maxsize=4096)
def commit_of(data: bytes) -> Commit:
    """Read a commit."""
    found = [json.loads(line) for line in data.split(b"\n") if line.strip()]
    return Commit(tuple(item for action in found for item in action.items()))


@dataclass(frozen=True)
class Entry:
    """A redirect's entry in some metadata."""

    state: RedirectState
    location: str | None
    move_id: str | None
    existing: bool


def entry_of(metadata: Mapping[str, Any]) -> Entry | None:
    """Return the entry that metadata has, in the RFC's spelling."""
    configuration = metadata["configuration"]
    found = [configuration[name] for name in _ENTRIES if name in configuration]
    if not found:
        return None
    value = json.loads(found[0])
    journal = json.loads(configuration["lakeferry.redirect"])
    location = value["Spec"].get("Location")
    existing = journal["data"] == "existing"
    return Entry(RedirectState(value["State"]), location, journal.get("moveId"), existing)


@dataclass
class Move:
    """What is known of one move: when it began and to where, and how it was decided."""

    version: int
    place: str
    decided: tuple[RedirectState, bytes] | None = None
    ended: RedirectState | None = None


class RedirectWitness:
    """Watches a world in which a table moves. See the module."""

    def __init__(self, objects: Mapping[str, bytes], *, rules: bool = False) -> None:
        """Begin with a table at the source; ``rules`` tells that some may commit beside it."""
        self._rules = rules
        self._moves: dict[str, Move] = {}
        self._source: dict[int, bytes] = {}
        self._state = RedirectState.NORMAL
        self._equal: set[tuple[str, int, bytes, bytes]] = set()
        self.acknowledged: dict[str, bytes] = {}
        self._refused: set[str] = set()
        self._written_at: dict[str, str] = {}
        home = below(objects, folder_of(OLD))
        for version, data in commits_of(home).items():
            self._source[version] = data
        live = content(objects, OLD)
        for name in live.names:
            self.acknowledged[name] = bytes_at(objects, name, OLD) or b""

    # What actors were told.

    def was_acknowledged(self, name: str, data: bytes, place: str = OLD) -> None:
        """Note that an actor was told that its row is in the table, which it found there."""
        self.acknowledged[name] = data
        self._written_at[name] = place

    def was_refused(self, name: str) -> None:
        """Note that an actor was told that its row isn't."""
        self._refused.add(name)

    # What happened.

    def saw(self, objects: Mapping[str, bytes], changed: str, now_ms: int) -> None:
        """Check what a change of one object may have broken."""
        folder, _, path = changed.partition("/")
        if _OPENS.fullmatch(path) is None:
            return
        found = below(objects, folder)
        if folder == folder_of(OLD):
            if _COMMIT.fullmatch(path):
                self._check_source(found, objects)
            return
        place = f"{WORLD}/{folder}"
        self._note_decisions(place, found)
        self._check_target(place, found)

    def ended(self, objects: Mapping[str, bytes], now_ms: int) -> None:
        """Check everything once more, now that nobody writes."""
        self._check_source(below(objects, folder_of(OLD)), objects)
        for place in {move.place for move in self._moves.values()}:
            found = below(objects, folder_of(place))
            self._note_decisions(place, found)
            self._check_target(place, found)
        self.check_promises(objects)

    @property
    def state(self) -> RedirectState:
        """The state of the redirect at the source."""
        return self._state

    def has_begun(self, place: str) -> bool:
        """Tell whether a move to that place has ever begun."""
        return any(move.place == place for move in self._moves.values())

    @property
    def is_frozen(self) -> bool:
        """Whether the table is read-only without a move."""
        return (
            self._state is RedirectState.ENABLING and not next(reversed(self._moves.values())).place
        )

    @property
    def location(self) -> str:
        """Where the table is now: as one put has decided, even before the source says so."""
        last = next(reversed(self._moves.values()), None)
        if last is None or self._state is RedirectState.NORMAL:
            return OLD
        decided = last.decided[0] if last.decided else None
        return last.place if decided is RedirectState.READY else OLD

    @property
    def visible(self) -> set[str]:
        """What a modern client must see that begins to read now.

        Not what was written at a target that is open already, to which the source
        doesn't lead yet.
        """
        if self._state is not RedirectState.ENABLING:
            return set(self.acknowledged)
        ahead = {self.location} - {OLD}
        return {name for name in self.acknowledged if self._written_at.get(name) not in ahead}

    def check_promises(self, objects: Mapping[str, bytes]) -> None:
        """Check that the table holds what writers were told."""
        place = self.location
        try:
            found = content(objects, place)
        except naive.Unreadable as unreadable:
            raise Broken(f"the table at {place} can't be opened: {unreadable}") from unreadable
        live = {name: row["bytes"] for (name, _), row in found.files.items()}
        for name, data in self.acknowledged.items():
            if live.get(name) != data:
                raise Broken(
                    f"{name} was acknowledged, and at {place} is {live.get(name, 'not')!r}"
                )
        inside = self._refused & set(live)
        if inside:
            raise Broken(f"{inside} were refused, and are at {place}")
        if len(live) != len(found.files):
            raise Broken(f"a file is live twice at {place}: {sorted(found.files)}")

    # The source.

    def _check_source(self, found: Mapping[str, bytes], objects: Mapping[str, bytes]) -> None:
        now = commits_of(found)
        for version, data in self._source.items():
            if now.get(version) != data:
                raise Broken(f"commit {version} of the source is gone or was changed")
        if sorted(now) != list(range(min(now), max(now) + 1)):
            raise Broken(f"versions of the source have a gap: {sorted(now)}")
        for version in range(max(self._source) + 1, max(now) + 1):
            self._source[version] = now[version]
            self._follow(version, commit_of(now[version]), objects)

    def _follow(self, version: int, commit: Commit, objects: Mapping[str, bytes]) -> None:
        """Take in the source's next commit."""
        if commit.metadata is None:
            if self._state in (RedirectState.ENABLING, RedirectState.DROPPING):
                raise Broken(f"version {version} of the source was written while {self._state}")
            if self._state is RedirectState.READY and not self._may_commit(
                version, commit, objects
            ):
                raise Broken(f"version {version} of the source was written while READY")
            return
        entry = entry_of(commit.metadata)
        state = RedirectState.NORMAL if entry is None else entry.state
        if (self._state, state) not in _MAY_FOLLOW:
            raise Broken(f"version {version} of the source takes it from {self._state} to {state}")
        if entry is not None and state is RedirectState.ENABLING:
            assert entry.move_id is not None
            if entry.move_id in self._moves:
                raise Broken(f"version {version} begins the move {entry.move_id} again")
            self._moves[entry.move_id] = Move(version, entry.location or "")
        elif self._state is RedirectState.ENABLING:
            self._end(version, state, commit, objects)
        self._state = state

    def _may_commit(self, version: int, commit: Commit, objects: Mapping[str, bytes]) -> bool:
        if commit.mark:
            return True
        if self._rules and commit.info.get("operation") == "VACUUM START":
            return True
        name = f"{folder_of(self.location)}/_delta_log/{version:020d}.json"
        theirs = objects.get(name)
        if theirs is None:
            return False
        return commit_of(theirs).info.get("txnId") == commit.info.get("txnId")

    def _end(
        self, version: int, state: RedirectState, commit: Commit, objects: Mapping[str, bytes]
    ) -> None:
        move_id, move = next(reversed(self._moves.items()))
        move.ended = state
        if not move.place:
            return
        if version != move.version + 1 or commit.mark.get("moveId") != move_id:
            raise Broken(f"the move {move_id} of version {move.version} ends at {version}")
        self._note_decisions(move.place, below(objects, folder_of(move.place)))
        if move.decided is None or move.decided[0] is not state:
            raise Broken(f"the source is {state}, and its target was decided: {move.decided}")

    # The target.

    def _note_decisions(self, place: str, found: Mapping[str, bytes]) -> None:
        """Note what the target's version after the lock says, and that it stays so."""
        for move_id, move in self._moves.items():
            if move.place != place:
                continue
            data = found.get(f"_delta_log/{move.version + 1:020d}.json")
            if move.decided is not None:
                gone_well = (
                    move.decided[0] is RedirectState.NORMAL and move.ended is RedirectState.NORMAL
                )
                if data != move.decided[1] and not gone_well:
                    raise Broken(f"what decided the move {move_id} is gone or was changed")
            elif data is not None:
                commit = commit_of(data)
                if commit.mark.get("moveId") != move_id or commit.metadata is None:
                    raise Broken(f"the move {move_id} was decided by {commit.info}")
                opens = entry_of(commit.metadata) is None
                move.decided = (RedirectState.READY if opens else RedirectState.NORMAL, data)

    def _check_target(self, place: str, found: Mapping[str, bytes]) -> None:
        """Check that a target that can be opened is the same table, and locked until it is it."""
        try:
            version, base, deltas = naive.segment(found, compacted=False)
        except naive.Unreadable:
            return
        if version < 0 or (not base and not deltas):
            return
        self._check_one_history(place, commits_of(found))
        is_open = any(
            move.place == place
            and move.decided is not None
            and move.decided[0] is RedirectState.READY
            and move.ended is not RedirectState.NORMAL
            for move in self._moves.values()
        )
        protocol = self._newest_protocol(found, base, deltas, place)
        named = {*protocol.get("writerFeatures", ())} & REDIRECT_FEATURES
        if not is_open and not named:
            raise Broken(f"{place} can be opened at version {version}, and isn't locked")
        if is_open and named and not self._is_withdrawn(found, version):
            raise Broken(f"{place} is open, and its protocol has {named}")

    def _is_withdrawn(self, found: Mapping[str, bytes], version: int) -> bool:
        mark = commit_of(found[f"_delta_log/{version:020d}.json"]).mark
        return mark.get("state") == RedirectState.DROPPING.value

    def _newest_protocol(
        self, found: Mapping[str, bytes], base: naive.Base, deltas: list[str], place: str
    ) -> Mapping[str, Any]:
        for name in reversed(deltas):
            protocol = commit_of(found[name]).protocol
            if protocol is not None:
                return protocol
        return naive.replay(found, root=place, base=base, compacted=False).protocol

    def _check_one_history(self, place: str, theirs: Mapping[int, bytes]) -> None:
        for version, data in theirs.items():
            ours = self._source.get(version)
            if ours is None or (place, version, ours, data) in self._equal:
                continue
            here, there = said(commit_of(ours)), said(commit_of(data))
            if here != there and not self._has_own_number(version, commit_of(ours)):
                raise Broken(f"version {version} is at {place}\n{there}\nand at the source\n{here}")
            self._equal.add((place, version, ours, data))

    def _has_own_number(self, version: int, ours: Commit) -> bool:
        """Tell whether the source's numbers are its own: a rule let somebody commit there."""
        ready = [m.version + 1 for m in self._moves.values() if m.ended is RedirectState.READY]
        return self._rules and any(version > number for number in ready)


def said(commit: Commit) -> dict[str, Any]:
    """Return what a commit says of a table, apart from where it is and from its redirect."""
    found: dict[str, Any] = {"add": [], "remove": [], "cdc": []}
    for name, value in commit.actions:
        if name in ("add", "remove", "cdc"):
            vector = value.get("deletionVector")
            where = vector_path(vector) if vector else None
            plain = {key: value.get(key) for key in ("size", "dataChange", "stats")}
            found[name].append((home_name(value["path"]), where, plain))
        elif name == "metaData":
            kept = {
                key: item
                for key, item in value["configuration"].items()
                if "redirect" not in key.lower()
            }
            found[name] = value | {"configuration": kept}
        elif name == "commitInfo":
            times = (value.get("inCommitTimestamp"), value.get("timestamp"), value.get("txnId"))
            found[name] = times
        elif name != "protocol":
            found.setdefault(name, []).append(value)
    return found


def commits_of(found: Mapping[str, bytes]) -> dict[int, bytes]:
    """Return the commits at a place by version."""
    matches = ((_COMMIT.fullmatch(name), data) for name, data in found.items())
    return {int(match.group(1)): data for match, data in matches if match}
