"""Which interleavings a run tries: its share, ``--simulation-seeds``, or one ``--simulation-seed``.

A module that has ``SEEDS`` says by that how many its tests try, all shares together, where the
command line doesn't.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.shares import TAKEN

DEFAULT_SEEDS = 600
CHUNKS = 20
"""A run's seeds are divided among so many tests, so that workers can share the work."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("simulation")
    group.addoption(
        "--simulation-seed", type=int, help="replay the interleaving with this number, and no other"
    )
    group.addoption(
        "--simulation-seeds",
        type=int,
        help="how many interleavings to try, whatever the share "
        f"(default: this run's share of {DEFAULT_SEEDS}, or of what a module says)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test that asks for ``seeds`` some of them."""
    if "seeds" not in metafunc.fixturenames:
        return
    one = metafunc.config.getoption("--simulation-seed", None)
    if one is not None:
        metafunc.parametrize("seeds", [range(one, one + 1)], ids=[f"seed {one}"])
        return
    tried = metafunc.config.getoption("--simulation-seeds", None)
    usual = getattr(metafunc.module, "SEEDS", DEFAULT_SEEDS)
    seeds = range(tried) if tried else metafunc.config.stash[TAKEN].block(usual)
    bounds = sorted({seeds.start + len(seeds) * chunk // CHUNKS for chunk in range(CHUNKS + 1)})
    chunks = [range(a, b) for a, b in pairwise(bounds)]
    metafunc.parametrize("seeds", chunks, ids=[f"{s.start} to {s.stop - 1}" for s in chunks])
