"""Whether a client can do something, and the verdict over several features together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Ability(Enum):
    """Whether a client can do something."""

    YES = "yes"
    PARTLY = "partly"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FeatureAnswer:
    """Whether a client supports a feature, or a protocol, and why not.

    ``because`` holds the features, or the versions of the protocol, that decide it. ``note`` says
    what is possible in part.
    """

    ability: Ability
    because: tuple[str, ...] = ()
    note: str = ""


_DECIDES = (Ability.NO, Ability.UNKNOWN, Ability.PARTLY)
"""An earlier one decides about a protocol, if any of its features has it."""


def together(answers: Iterable[FeatureAnswer]) -> FeatureAnswer:
    """Return the answer for features together."""
    found = tuple(answers)
    for ability in _DECIDES:
        those = [each for each in found if each.ability is ability]
        if those:
            names = tuple(dict.fromkeys(name for each in those for name in each.because))
            notes = "; ".join(dict.fromkeys(each.note for each in those if each.note))
            return FeatureAnswer(ability, names, notes)
    return FeatureAnswer(Ability.YES)
