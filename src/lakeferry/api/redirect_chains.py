"""Arranges redirects as chains: from each old place to the place where its table is now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MOST_STEPS = 8
"""As many redirects in a row are followed; see :mod:`lakeferry.redirect.resolve`."""


@dataclass(frozen=True, slots=True)
class KnownRedirect:
    """A redirect as a list or the inventory has it; a frozen table has no target."""

    source: str
    state: str
    target: str | None
    mode: str | None = None
    name: str | None = None
    """The target's name in its catalog."""


@dataclass(frozen=True, slots=True)
class RedirectChain:
    """Redirects in a row, from the oldest place on.

    ``returns`` if the last one leads back to a place of the chain, ``is_cut`` if more follow.
    """

    steps: tuple[KnownRedirect, ...]
    returns: bool = False
    is_cut: bool = False


def redirect_chains(redirects: Iterable[KnownRedirect]) -> tuple[RedirectChain, ...]:
    """Return a chain for each place that no redirect leads to, and one for each cycle.

    Chains that join have their common end each. What follows a cut chain is a chain of its own. Of
    two redirects of one place the last one counts.
    """
    by_source = {each.source: each for each in redirects}
    targets = {each.target for each in by_source.values() if each.target is not None}
    chains = [_chain(each, by_source) for each in by_source.values() if each.source not in targets]
    seen = {step.source for chain in chains for step in chain.steps}
    for each in by_source.values():
        if each.source not in seen:
            chain = _chain(each, by_source)
            chains.append(chain)
            seen |= {step.source for step in chain.steps}
    return tuple(sorted(chains, key=lambda chain: chain.steps[0].source))


def _chain(first: KnownRedirect, by_source: dict[str, KnownRedirect]) -> RedirectChain:
    steps, places = [first], {first.source}
    while (target := steps[-1].target) is not None:
        if target in places:
            return RedirectChain(tuple(steps), returns=True)
        following = by_source.get(target)
        if following is None:
            break
        if len(steps) == MOST_STEPS:
            return RedirectChain(tuple(steps), is_cut=True)
        steps.append(following)
        places.add(target)
    return RedirectChain(tuple(steps))
