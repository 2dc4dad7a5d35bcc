"""Which interleavings a run tries: ``--simulation-seeds`` of them, or one ``--simulation-seed``.

A module that has ``SEEDS`` says by that how many its tests try where the command line doesn't.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

DEFAULT_SEEDS = 600
CHUNKS = 20
"""Seeds are shared among this many tests, so that workers can share the work."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("simulation")
    group.addoption(
        "--simulation-seed", type=int, help="replay the interleaving with this number, and no other"
    )
    group.addoption(
        "--simulation-seeds",
        type=int,
        help=f"how many interleavings to try (default: {DEFAULT_SEEDS}, or what a module says)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test that asks for ``seeds`` a share of them."""
    if "seeds" not in metafunc.fixturenames:
        return
    one = metafunc.config.getoption("--simulation-seed", None)
    if one is not None:
        metafunc.parametrize("seeds", [range(one, one + 1)], ids=[f"seed {one}"])
        return
    usual = getattr(metafunc.module, "SEEDS", DEFAULT_SEEDS)
    count = metafunc.config.getoption("--simulation-seeds", None) or usual
    bounds = sorted({count * chunk // CHUNKS for chunk in range(CHUNKS + 1)})
    shares = [range(a, b) for a, b in pairwise(bounds)]
    metafunc.parametrize("seeds", shares, ids=[f"{s.start} to {s.stop - 1}" for s in shares])
