"""Entries as values: whose entry it is."""

from __future__ import annotations

from lakeferry.redirect.entry import Mode, Redirect, RedirectTarget, TargetKind
from lakeferry.redirect.states import RedirectState

SOURCE = "s3://old/t"
PLACE = RedirectTarget(TargetKind.OBJECT_STORE, "s3://new/t")


def test_the_target_is_not_a_cycle_of_itself() -> None:
    redirect = Redirect(Mode.WRITER_ONLY, RedirectState.ENABLING, target=PLACE)
    assert redirect.is_target("s3a://new/t/")
    assert not redirect.is_target(SOURCE)
