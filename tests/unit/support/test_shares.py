"""Every case of the exhaustive suites is in exactly one share, and shares take turns."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile
from pathlib import Path

import pytest

from tests.support import shares
from tests.support.shares import SHARES, WHOLE, Share


@pytest.mark.parametrize("of", range(1, 9))
@pytest.mark.parametrize("count", [0, 1, 2, 5, 7, 40, 2_001])
def test_every_case_is_in_exactly_one_share(count: int, of: int) -> None:
    all_of_them = [Share(number, of) for number in range(1, of + 1)]
    cases = [f"case {index}" for index in range(count)]
    in_order, in_blocks, asked = Counter[str](), Counter[int](), Counter[str]()
    onwards = Counter[int]()
    for share in all_of_them:
        in_order.update(share.each(iter(cases)))
        in_blocks.update(share.block(count))
        onwards.update(takewhile(lambda index: index < count + 3, share.onwards(3)))
        asked.update(case for index, case in enumerate(cases) if share.has(index))
    assert in_order == asked == Counter(cases)
    assert in_blocks == Counter(range(count))
    assert onwards == Counter(range(3, count + 3))


@pytest.mark.parametrize("of", range(1, 9))
def test_shares_are_of_one_size(of: int) -> None:
    sizes = {len(Share(number, of).block(100)) for number in range(1, of + 1)}
    sizes |= {len(Share(number, of).each(range(100))) for number in range(1, of + 1)}
    assert max(sizes) - min(sizes) <= 1


def test_cases_go_on_from_those_of_another_test() -> None:
    both = [Share(number, 11).each("abcde") for number in range(1, 12)]
    after = [Share(number, 11).each("fghij", before=5) for number in range(1, 12)]
    together = ["".join(one + other) for one, other in zip(both, after, strict=True)]
    assert together == [*"abcdefghij", ""]
    assert WHOLE.each("fghij", before=5) == [*"fghij"]


def test_a_case_that_has_a_number_is_with_its_neighbours() -> None:
    assert Share(2, 5).block(2_000) == range(400, 800)


def test_a_case_in_an_order_is_with_others_from_everywhere() -> None:
    assert Share(2, 5).each("abcdefgh") == ["b", "g"]


@pytest.mark.parametrize("count", [1, 2, 5, 7, 40])
def test_no_share_is_without_some_of_a_few_cases(count: int) -> None:
    taken = [Share(number, 7).some(range(count)) for number in range(1, 8)]
    assert all(taken)
    assert {case for cases in taken for case in cases} == set(range(count))
    assert WHOLE.some(range(count)) == [*range(count)]


def test_the_whole_has_every_case() -> None:
    assert WHOLE.block(7) == range(7)
    assert WHOLE.each("abc") == ["a", "b", "c"]
    assert WHOLE.is_whole


@pytest.mark.parametrize("share", [Share(1, 5), Share(5, 5), Share(3, 100), WHOLE], ids=str)
def test_what_a_run_prints_repeats_it(share: Share) -> None:
    assert Share.parse(str(share)) == share


@pytest.mark.parametrize("text", ["", "2", "0/5", "6/5", "-1/5", "2/0", "2/5/7", "two/5", "ALL"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="share"):
        Share.parse(text)


def test_as_many_runs_as_there_are_shares_take_all_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    taken = [shares.next_in(folder) for _ in range(2 * SHARES)]
    every = {Share(number, SHARES) for number in range(1, SHARES + 1)}
    assert set(taken[:SHARES]) == set(taken[SHARES:]) == every
    assert [path.name for path in folder.iterdir()] == ["share"]


@pytest.mark.parametrize("parts", [2, 3, 4, 6])
def test_whoever_runs_the_tests_in_parts_still_takes_every_share(
    tmp_path: Path, parts: int
) -> None:
    """The unit tests first and then the rest, say: the rest takes every second share."""
    taken = [shares.next_in(tmp_path) for _ in range(parts * SHARES)]
    assert set(taken[::parts]) == {Share(number, SHARES) for number in range(1, SHARES + 1)}


@pytest.mark.parametrize("noted", ["", "rubbish", "9/5", "\0"])
def test_a_note_that_says_nothing_is_written_anew(tmp_path: Path, noted: str) -> None:
    (tmp_path / "share").write_text(noted)
    first, second = shares.next_in(tmp_path), shares.next_in(tmp_path)
    assert second.number == first.number % SHARES + 1


def test_where_nothing_can_be_noted_there_is_a_share_nevertheless(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert shares.next_in(tmp_path / "file").of == SHARES


def test_the_command_line_is_asked_before_the_environment_and_nobody_takes_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(shares.VARIABLE, "2/5")
    assert shares.chosen("3/4", tmp_path) == Share(3, 4)
    assert shares.chosen(None, tmp_path) == Share(2, 5)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.delenv(shares.VARIABLE)
    assert shares.chosen(None, tmp_path).of == SHARES
