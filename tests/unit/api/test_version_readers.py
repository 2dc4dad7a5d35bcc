from __future__ import annotations

from lakeferry.api.table_timeline import read_timeline
from lakeferry.api.version_readers import version_readers
from lakeferry.clients.known_lines import KNOWN_LINES
from lakeferry.clients.verdicts import Ability
from lakeferry.table import DeltaLog
from tests.support.history import Append, History, SetProperties, Upgrade

PAST = History().then(
    Append(1),
    Upgrade(reader=("deletionVectors",), writer=("deletionVectors",)),
    Append(1),
    SetProperties((("a", "b"),)),
)


def test_versions_of_one_protocol_are_answered_together() -> None:
    timeline = read_timeline(DeltaLog(PAST.store()))
    groups, words = version_readers(timeline)
    assert [each.title for each in groups] == ["versions 2 to 4", "versions 0 to 1"]
    assert all(len(each.rows) == len(KNOWN_LINES) for each in groups)
    assert words == ("nobody that is known", groups[0].refused)
    assert groups[1].refused == ""


def test_who_can_not_read_is_named_whole_or_in_part() -> None:
    (newest, _), _ = version_readers(read_timeline(DeltaLog(PAST.store())))
    refused = {row.client for row in newest.rows if row.reads is Ability.NO}
    reading = {row.client for row in newest.rows if row.reads is not Ability.NO}
    whole, _, part = newest.refused.partition("; some releases of ")
    assert set(whole.split(", ")) == refused - reading
    assert set(part.split(", ")) == refused & reading


def test_versions_whose_protocol_is_unknown_have_no_answer() -> None:
    store = History().then(*[Append(1)] * 200).store()
    assert version_readers(read_timeline(DeltaLog(store))) == ((), ())
