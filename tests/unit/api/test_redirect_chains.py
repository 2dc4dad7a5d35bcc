from __future__ import annotations

from lakeferry.api.redirect_chains import MOST_STEPS, KnownRedirect, redirect_chains


def places(*pairs: tuple[str, str | None]) -> list[list[str]]:
    found = redirect_chains(KnownRedirect(source, "READY", target) for source, target in pairs)
    return [[step.source for step in chain.steps] for chain in found]


def test_redirects_in_a_row_are_one_chain() -> None:
    assert places(("b", "c"), ("a", "b"), ("x", "y")) == [["a", "b"], ["x"]]


def test_chains_that_join_have_their_end_each() -> None:
    assert places(("a", "c"), ("b", "c"), ("c", "d")) == [["a", "c"], ["b", "c"]]


def test_a_frozen_table_is_a_chain_of_its_own() -> None:
    assert places(("a", None)) == [["a"]]


def test_a_cycle_is_shown_once_and_said() -> None:
    cycle = [KnownRedirect("a", "READY", "b"), KnownRedirect("b", "READY", "a")]
    (chain,) = redirect_chains(cycle)
    assert chain.returns
    assert [step.source for step in chain.steps] == ["a", "b"]
    into = redirect_chains([*cycle, KnownRedirect("z", "READY", "a")])
    assert [[step.source for step in each.steps] for each in into] == [["z", "a", "b"]]


def test_a_chain_that_nobody_follows_is_cut() -> None:
    steps = [KnownRedirect(f"t{n:02}", "READY", f"t{n + 1:02}") for n in range(30)]
    chains = redirect_chains(steps)
    assert [chain.is_cut for chain in chains] == [True, True, True, False]
    assert [len(chain.steps) for chain in chains] == [MOST_STEPS] * 3 + [30 - 3 * MOST_STEPS]


def test_what_was_found_last_counts() -> None:
    old, new = KnownRedirect("a", "READY", "b"), KnownRedirect("a", "READY", "c")
    assert redirect_chains([old, new])[0].steps == (new,)
