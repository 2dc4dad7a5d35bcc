"""Rules: which sessions stay at the source, and what they may commit there."""

from __future__ import annotations

import pytest

from lakeferry.errors import InvalidInput
from lakeferry.redirect import no_redirect_rules
from lakeferry.redirect.entry import Mode, Redirect, RedirectTarget, TargetKind
from lakeferry.redirect.no_redirect_rules import Rule
from lakeferry.redirect.states import RedirectState

PLACE = RedirectTarget(TargetKind.OBJECT_STORE, "s3://new/t")
RULES = (Rule("maintenance", ("VACUUM START", "VACUUM END")), Rule(None, ("REFRESH UNIFORM",)))


def test_a_rule_for_an_app_comes_before_one_for_everybody() -> None:
    redirect = Redirect(Mode.WRITER_ONLY, RedirectState.READY, target=PLACE, rules=RULES[::-1])
    assert redirect.rule_for("MAINTENANCE") == RULES[0]
    assert redirect.rule_for("other") == RULES[1]
    assert redirect.rule_for(None) == RULES[1]
    assert RULES[0].allows("vacuum start")
    assert not RULES[0].allows("VACUUM")
    assert not RULES[0].allows("WRITE")


def test_rules_are_written_as_the_command_line_takes_them() -> None:
    assert no_redirect_rules.parse_rules(["maintenance:VACUUM", ":WRITE, DELETE", "reader:"]) == (
        Rule("maintenance", ("VACUUM START", "VACUUM END")),
        Rule(None, ("WRITE", "DELETE")),
        Rule("reader", ()),
    )
    with pytest.raises(InvalidInput):
        no_redirect_rules.parse_rules(["no colon"])
