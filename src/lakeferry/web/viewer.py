"""``Viewer``: what a visitor of the console may see and do. All pages ask it, and nothing else.

============================  ======================  =========================================
visitor                       sees                    does
============================  ======================  =========================================
the user of ``ui``            everything              everything; any place may be named
a token for all datasets      datasets and the fleet  if it is to write: runs the fleet, below
                                                      places that are allowed
a token for one dataset       that dataset            if it is to write: changes that dataset
============================  ======================  =========================================
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from lakeferry.errors import InvalidInput
from lakeferry.storage.uris import normalise, relative_name, same_place, split, without_links
from lakeferry.transfer.repository.access_tokens import TokenGrant
from lakeferry.transfer.repository.dataset_names import OWN_FOLDER


@dataclass(frozen=True, slots=True)
class Viewer:
    """A visitor's rights, for one request."""

    name: str
    """How pages call the visitor; never a secret."""
    may_write: bool
    dataset: str | None = None
    """The one dataset that is shown; ``None`` is all of them, and the fleet."""
    names_any_place: bool = False
    """Whether any path may be opened, scanned and written: it is the user's own machine."""
    places: tuple[str, ...] = field(default=(), repr=False)
    """The places that may be named otherwise, with all that is below them."""

    @classmethod
    def of_user(cls) -> Viewer:
        """Return the user of this machine."""
        return cls("you", may_write=True, names_any_place=True)

    @classmethod
    def of_token(cls, name: str, grant: TokenGrant, places: tuple[str, ...] = ()) -> Viewer:
        """Return the visitor whom a token lets in."""
        return cls(name, grant.may_write, grant.dataset, places=places)

    @property
    def sees_fleet(self) -> bool:
        """Whether the inventory, jobs, redirects and what belongs to no single dataset is shown."""
        return self.dataset is None

    @property
    def runs_fleet(self) -> bool:
        """Whether moves may be planned, run, paused and cancelled."""
        return self.sees_fleet and self.may_write

    def sees_dataset(self, name: str) -> bool:
        """Return whether a dataset of the server is shown."""
        return self.dataset is None or self.dataset == name

    def changes_dataset(self, name: str) -> bool:
        """Return whether a dataset of the server may be changed."""
        return self.may_write and self.sees_dataset(name)

    def may_name(self, place: str, known: tuple[str, ...] = ()) -> bool:
        """Return whether a place, or a name in a catalog, may be scanned or written.

        ``known`` are further places that are allowed, such as those of the inventory.
        """
        if self.names_any_place:
            return True
        return any(_is_within(place, each) for each in (*self.places, *known))


def _is_within(place: str, outer: str) -> bool:
    if "://" not in outer and ":" in outer:
        # A catalog, or a part of one: names are below it.
        lead = outer if outer.endswith(":") else f"{outer}."
        return place == outer or place.startswith(lead)
    with suppress(InvalidInput):
        # A link on local disk may lead out of what is allowed.
        inner, around = without_links(normalise(place)), without_links(normalise(outer))
        if OWN_FOLDER in split(inner).path.split("/"):
            # What a server keeps about its datasets, with its tokens, is no place for tables.
            return False
        return same_place(inner, around) or relative_name(around, inner) is not None
    return False
