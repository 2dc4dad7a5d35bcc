"""No object is to be sent by two at a time."""

from __future__ import annotations

from lakeferry.server.sessions.object_name_claims import Promises


def test_a_name_is_promised_to_one_until_it_lets_go() -> None:
    promises, one, other = Promises(), object(), object()
    assert promises.claim(one, "a")
    assert promises.claim(one, "a")
    assert not promises.claim(other, "a")
    assert promises.claim(other, "b")
    promises.release(one)
    promises.release(one)
    assert promises.claim(other, "a")
    assert not promises.claim(one, "b")
    promises.release(other)
    assert promises.claim(one, "a")
    assert promises.claim(one, "b")
