"""The verdict over several features."""

from __future__ import annotations

from lakeferry.clients.verdicts import Ability, FeatureAnswer, together


def test_no_goes_before_unknown_and_unknown_before_partly() -> None:
    no, unknown, partly = (
        FeatureAnswer(each) for each in (Ability.NO, Ability.UNKNOWN, Ability.PARTLY)
    )
    assert together([partly, unknown, no]).ability is Ability.NO
    assert together([partly, unknown]).ability is Ability.UNKNOWN
    assert together([partly, FeatureAnswer(Ability.YES)]).ability is Ability.PARTLY
    assert together([]).ability is Ability.YES
