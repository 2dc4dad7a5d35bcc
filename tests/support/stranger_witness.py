"""What must hold where somebody deletes a redirect's target and creates another table there.

Rows that were at the target alone are gone with it, whoever did that. Everything else holds:

* the source loses no commit and no row;
* the other table keeps every file; none of our commits, checkpoints and locks stays in its log;
* once it is there, nobody is led to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from lakeferry.redirect.states import RedirectState
from tests.support.invariants import Broken
from tests.support.places import below
from tests.support.redirect_witness import Commit, RedirectWitness, commit_of, commits_of
from tests.support.redirects import OLD, WORLD, content, folder_of

_OF_LOG = re.compile(r"_delta_log/[0-9]{20}\..*")


class StrangerWitness(RedirectWitness):
    """Watches a world in which other tables take the places of targets."""

    def __init__(self, objects: Mapping[str, bytes], *, rules: bool = False) -> None:
        """Begin with a table at the source, and no strangers."""
        super().__init__(objects, rules=rules)
        self.strangers: dict[str, dict[str, bytes]] = {}
        """What the tables consist of that have taken a place."""
        self._before: dict[str, dict[int, bytes]] = {}

    def open_places(self) -> list[str]:
        """Return the places that were opened as targets, and that no stranger has taken."""
        opened = [
            move.place
            for move in self._moves.values()
            if move.decided is not None and move.decided[0] is RedirectState.READY
        ]
        return [place for place in opened if place not in self.strangers]

    def took_over(
        self, objects: Mapping[str, bytes], place: str, table: dict[str, bytes], at_home: set[str]
    ) -> None:
        """Note that another table is at a place; ``objects`` is the world before that."""
        self._before[place] = commits_of(below(objects, folder_of(place)))
        was_there = self.location == place
        self.strangers[place] = table
        if was_there:
            kept = self.acknowledged.items()
            self.acknowledged = {name: data for name, data in kept if name in at_home}

    def was_acknowledged(self, name: str, data: bytes, place: str = OLD) -> None:
        """Note that a row is in the table, unless the table is another one by now."""
        if place not in self.strangers:
            super().was_acknowledged(name, data, place)

    @property
    def location(self) -> str:
        """Where the table is now, or the source where the target is lost."""
        place = super().location
        return OLD if place in self.strangers else place

    def saw(self, objects: Mapping[str, bytes], changed: str, now_ms: int) -> None:
        """Check what a change may have broken; what strangers have is looked at in the end."""
        if f"{WORLD}/{changed.partition('/')[0]}" not in self.strangers:
            super().saw(objects, changed, now_ms)

    def ended(self, objects: Mapping[str, bytes], now_ms: int) -> None:
        """Check everything once more, and that no stranger was touched."""
        super().ended(objects, now_ms)
        for place, table in self.strangers.items():
            self._check_untouched(place, table, below(objects, folder_of(place)))

    def _check_untouched(
        self, place: str, table: Mapping[str, bytes], now: Mapping[str, bytes]
    ) -> None:
        harmed = sorted(name for name, data in table.items() if now.get(name) != data)
        if harmed:
            raise Broken(f"the stranger at {place} lost {harmed}")
        for name in now.keys() - table.keys():
            if not _OF_LOG.fullmatch(name):
                continue
            # A writer who knows the place by its path may have written to the stranger.
            commit = now.get(f"{name.partition('.')[0]}.json")
            theirs = commit is not None and name.partition(".")[0] + ".json" not in table
            theirs = theirs and name.endswith((".json", ".crc"))
            # What was read of the stranger alone is right.
            theirs = theirs or (name.endswith(".crc") and b"another-" in now[name])
            # So is a writer who puts a checksum file just when its commit is gone with the table.
            version = int(name.rpartition("/")[2].partition(".")[0])
            gone = self._before[place].get(version)
            written = gone is not None and not commit_of(gone).mark
            theirs = theirs or (name.endswith(".crc") and written)
            if not theirs or commit_of(commit or b"").mark:
                raise Broken(f"the stranger at {place} got {name}")

    def _may_commit(self, version: int, commit: Commit, objects: Mapping[str, bytes]) -> bool:
        # What was read before the target was lost may come home after it.
        theirs = [known[version] for known in self._before.values() if version in known]
        same = (commit_of(data).info.get("txnId") == commit.info.get("txnId") for data in theirs)
        return any(same) or super()._may_commit(version, commit, objects)

    def _end(
        self, version: int, state: RedirectState, commit: Commit, objects: Mapping[str, bytes]
    ) -> None:
        move = next(reversed(self._moves.values()))
        if move.place in self.strangers:
            move.ended = state
        else:
            super()._end(version, state, commit, objects)

    def _note_decisions(self, place: str, found: Mapping[str, bytes]) -> None:
        if place not in self.strangers:
            super()._note_decisions(place, found)

    def _check_target(self, place: str, found: Mapping[str, bytes]) -> None:
        if place not in self.strangers:
            super()._check_target(place, found)


def at_home(objects: Mapping[str, bytes]) -> set[str]:
    """Return the names of the rows that the source has by itself."""
    return set(content(objects, OLD).names)
