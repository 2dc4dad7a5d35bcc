from __future__ import annotations

from lakeferry.web.console_sessions import IDLE_S, LONGEST_S, ConsoleSessions


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_is_found_by_its_id_alone() -> None:
    sessions = ConsoleSessions()
    session_id, session = sessions.begin("token")
    assert sessions.find(session_id) is session
    for other in (None, "", session_id + "x", session_id[:-1], "x" * 10_000):
        assert sessions.find(other) is None
    sessions.end(session_id)
    assert sessions.find(session_id) is None


def test_a_session_ends_when_it_is_not_used_and_when_it_is_old() -> None:
    clock = Clock()
    sessions = ConsoleSessions(ticks=clock)
    idle, _ = sessions.begin()
    used, _ = sessions.begin()
    while clock.now + IDLE_S < LONGEST_S:
        clock.now += IDLE_S
        assert sessions.find(used) is not None
    assert sessions.find(idle) is None
    clock.now = LONGEST_S + 1
    assert sessions.find(used) is None
    assert len(sessions) == 0


def test_the_one_that_was_used_longest_ago_makes_room() -> None:
    sessions = ConsoleSessions(most=2)
    first, second = sessions.begin()[0], sessions.begin()[0]
    sessions.find(first)
    sessions.begin()
    assert sessions.find(second) is None
    assert sessions.find(first) is not None


def test_secrets_are_not_in_its_text() -> None:
    _, session = ConsoleSessions().begin("lf_secret")
    assert "lf_secret" not in repr(session)
    assert session.csrf not in repr(session)
