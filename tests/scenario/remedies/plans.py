"""``plan``: what can't be planned, and how it is asked for."""

from __future__ import annotations

import shlex

from tests.support.remedies import Witness, follows


@follows("change_plan.py: write 'drop' and the name of a feature, or no feature")
def a_feature_that_the_change_does_not_take(witness: Witness) -> None:
    witness.lake.make("t")
    plan = witness.lake.table("t").plan_for
    witness.raises(lambda: plan("move", "appendOnly"))
    witness.returns(lambda: plan("move"))


@follows("change_plan.py: use one of {}")
def a_change_that_nobody_knows(witness: Witness) -> None:
    witness.lake.make("t")
    plan = witness.lake.table("t").plan_for
    witness.raises(lambda: plan("burn"))
    witness.returns(lambda: plan("share"))
    witness.raises(lambda: plan("move", mode="read-mostly"))
    witness.returns(lambda: plan("move", mode="writer-only"))


@follows("change_plan.py: plan a move of the table at its new place: lakeferry plan {} move")
def a_move_of_a_table_that_has_moved(witness: Witness) -> None:
    source, target = witness.lake.make("t"), witness.lake.root + "/n"
    witness.done("redirect", "enable", source, target)
    told = witness.refused("plan", source, "move")["remedy"]
    witness.done(*shlex.split(told.partition(": lakeferry ")[2]))
